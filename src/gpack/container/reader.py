"""Opening a container: the quick open of normal start-up, and access to the sections' bytes.

Standard library only, and light: neither numpy nor construct, dataclasses, pathlib or enum are imported here.
"""

from __future__ import annotations

import os
from hashlib import sha256

from .. import errors
from ..generated.structs import GPackFooterV1, GPackHeaderV1, GPackSectionEntryV1
from .mapped import MappedFile
from .report import Report
from .structure import Structure, close_read, open_file, read_at, read_structure, section_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable
    from typing import Any

    Progress = Callable[[int], None]
    Watch = Callable[[memoryview], object]
    WatchOf = Callable[[GPackSectionEntryV1], Watch | None]

CHUNK = 1 << 20  # bytes; larger ranges are hashed by a thread of their own


class Container:
    """An open `.gpack` file whose sections are bytes.

    Attributes:
        path: As given.
        file_size: Bytes.
        header, footer, entries: The fixed records.
    """

    __slots__ = ("_absolute", "_descriptor", "_manifest", "_mapped", "entries", "file_size", "footer", "header", "path")

    def __init__(
        self,
        path: str | os.PathLike[str],
        descriptor: int,
        header: GPackHeaderV1,
        footer: GPackFooterV1,
        structure: Structure,
        io: str = "auto",
    ) -> None:
        self.path = os.fspath(path)
        self._absolute = os.path.abspath(self.path)  # now: the process may change its folder
        self._mapped = MappedFile(self.path, structure.file_size, io)
        self._descriptor = descriptor
        self._manifest: dict[str, Any] | None = None
        self.file_size = structure.file_size
        self.header = header
        self.footer = footer
        self.entries = structure.entries

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, verify_all_hashes: bool = False, io: str = "auto") -> Container:
        """Opens a file.

        The quick open checks magics, versions, exact file size, bounds and alignment of all sections, and the
        manifest's SHA-256; with `verify_all_hashes` the SHA-256 of every section too.

        Args:
            io: How sections are seen later: `mmap`, `read`, or `auto`: mapped, and read where that is refused.

        Raises:
            PathError: The file is missing or unreadable.
            UnsupportedError: The file needs a newer reader (`header.min_reader_version`).
            FormatError: The first rule that the file breaks; the code is the rule's id.
        """
        descriptor, size = open_file(path)
        try:
            return cls._checked(path, descriptor, size, verify_all_hashes=verify_all_hashes, io=io)
        except BaseException:
            close_read(descriptor)
            raise

    @classmethod
    def _checked(
        cls, path: str | os.PathLike[str], descriptor: int, size: int, *, verify_all_hashes: bool, io: str
    ) -> Container:
        report = Report()
        structure = read_structure(descriptor, size, path, report)
        header, footer = structure.header, structure.footer
        if header is not None and footer is not None and report.ok:
            check_manifest_digest(descriptor, header, footer, path, report)
        if verify_all_hashes and report.ok:
            check_digests(descriptor, structure, path, report)
        fault = report.first_error()
        if fault is not None:
            raise part_error(path) or fault.error(path, report.hint)
        if header is None or footer is None:
            raise errors.InternalError("a sound file without header or footer", code="internal", path=path)
        return cls(path, descriptor, header, footer, structure, io)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, a container is its path and its manifest's digest; where it is unpickled the file is opened again.

        Raises:
            ClosedError: It was closed.
        """
        _ = self.descriptor  # refuses where the file was closed
        return _open_again, (self._absolute, self.footer.manifest_sha256, self._mapped.io)

    def __copy__(self) -> Container:
        """The same open file: each of the two is closed alone."""
        structure = Structure(self.file_size)
        structure.entries = self.entries
        descriptor = os.dup(self.descriptor)
        try:
            made = Container(self.path, descriptor, self.header, self.footer, structure, self._mapped.io)
        except BaseException:
            close_read(descriptor)
            raise
        made._absolute = self._absolute
        return made

    def __deepcopy__(self, memo: object) -> Container:
        return self.__copy__()

    def find(self, section: int | str) -> GPackSectionEntryV1 | None:
        """The directory entry of a section, by kind or name; None where the file has none."""
        for entry in self.entries:
            if section in (entry.kind, section_name(entry)):
                return entry
        return None

    def entry(self, section: int | str) -> GPackSectionEntryV1:
        """The directory entry of a section, by kind or name.

        Raises:
            MissingError: The file has no such section.
        """
        found = self.find(section)
        if found is None:
            from ..generated.constants import SECTION_NAMES

            names = ", ".join(map(section_name, self.entries))
            called = SECTION_NAMES.get(section, section) if isinstance(section, int) else repr(section)
            raise errors.MissingError(
                f"there is no section {called}", code="pack.no_section", path=self.path, hint=f"it has {names}"
            )
        return found

    def read(self, section: int | str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of a section, copied.

        Args:
            offset: Start inside the section.
            length: Bytes; None for all that follow.

        Raises:
            BoundsError: The range leaves the section.
            PathError: The read failed.
        """
        entry = self.entry(section)
        length = entry.size - offset if length is None else length
        if not (0 <= offset <= entry.size and 0 <= length <= entry.size - offset):
            raise errors.BoundsError(
                f"bytes {offset} to {offset + length} leave the section of {entry.size} bytes",
                code="section.bounds",
                path=self.path,
                section=section_name(entry),
            )
        return read_at(self.descriptor, entry.offset + offset, length, self.path)

    def view(self, section: int | str) -> memoryview:
        """A section's bytes, read-only: a view of the mapped file, or a copy where it cannot be mapped."""
        entry = self.entry(section)
        return self.span(entry.offset, entry.size)

    def span(self, offset: int, length: int) -> memoryview:
        """A range of the file, read-only: a view of the mapped file, or a copy where it cannot be mapped.

        Raises:
            PathError: The file was cut since it was opened, cannot be read, or must be mapped and cannot be.
        """
        return self._mapped.span(self.descriptor, offset, length)

    def mapping(self) -> mmap.mmap:
        """The mapped file, mapped at the first call.

        Raises:
            PathError: The file system refuses to map the file, or it was cut since it was opened.
        """
        return self._mapped.map(self.descriptor)

    @property
    def manifest(self) -> dict[str, Any]:
        """The parsed manifest.

        Raises:
            FormatError: It is no JSON object of the kind that the format asks for.
        """
        if self._manifest is None:
            from .manifest import parse_manifest

            self._manifest = parse_manifest(self.read(self.header_manifest_kind), path=self.path)
        return self._manifest

    def check_sections(self, kinds: tuple[int, ...]) -> None:
        """Compares the bytes of sections, those of them that the file has, with the digests of the directory.

        Args:
            kinds: Their kinds.

        Raises:
            DigestError: `section.sha256`: the first that differs.
            PathError: The read failed.
        """
        report = Report()
        for entry in self.entries:
            if entry.kind in kinds:
                _check_digest(self.descriptor, entry, self.path, report)
        fault = report.first_error()
        if fault is not None:
            raise fault.error(self.path, report.hint)

    @property
    def header_manifest_kind(self) -> int:
        """Kind of the manifest's section."""
        from ..generated.constants import SectionKind

        return SectionKind.MANIFEST_JSON

    @property
    def descriptor(self) -> int:
        """The open file descriptor.

        Raises:
            ClosedError: The container was closed.
        """
        if self._descriptor < 0:
            raise errors.ClosedError("the file was closed", code="pack.closed", path=self.path)
        return self._descriptor

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._descriptor < 0

    def close(self) -> None:
        """Closes the descriptor and unmaps the file.

        Where views or arrays of the mapped bytes are still alive, the mapping goes with the last of them.
        """
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            close_read(descriptor)
        self._mapped.close()

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            self.close()


def _open_again(path: str, manifest_sha256: bytes, io: str) -> Container:
    """Opens the file of a container that was pickled.

    Raises:
        DigestError: `pack.changed`: by now it is another file.
        GpackError: As `Container.open`.
    """
    found = Container.open(path, io=io)
    if found.footer.manifest_sha256 != manifest_sha256:
        found.close()
        raise errors.DigestError(
            f"the file has the manifest {found.footer.manifest_sha256.hex()}, not {manifest_sha256.hex()} as when the "
            "pack was pickled",
            code="pack.changed",
            path=path,
            hint="do not change a file while it is used",
        )
    return found


def check_manifest_digest(
    descriptor: int, header: GPackHeaderV1, footer: GPackFooterV1, path: object, report: Report
) -> None:
    """Compares the manifest's SHA-256 with the footer's."""
    actual = hash_range(descriptor, header.manifest_offset, header.manifest_size, path)
    if actual != footer.manifest_sha256:
        end = header.manifest_offset + header.manifest_size
        place = f"Bytes {header.manifest_offset} to {end}"
        message = f"{place} have {actual.hex()}, the footer records {footer.manifest_sha256.hex()}."
        report.add("manifest.sha256", "ManifestJson", "sha256", header.manifest_offset, message)


def check_digests(
    descriptor: int,
    structure: Structure,
    path: object,
    report: Report,
    progress: Progress | None = None,
    watch: WatchOf | None = None,
) -> None:
    """Streams every section through SHA-256 and compares with the directory.

    Args:
        progress: Called with the number of bytes hashed since the last call.
        watch: Gives for a section what sees its bytes as well.
    """
    for entry in structure.entries:
        if entry.offset > structure.file_size or entry.size > structure.file_size - entry.offset:
            continue  # reported as section.bounds
        _check_digest(descriptor, entry, path, report, progress, watch(entry) if watch else None)


def _check_digest(
    descriptor: int,
    entry: GPackSectionEntryV1,
    path: object,
    report: Report,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> None:
    actual = hash_range(descriptor, entry.offset, entry.size, path, progress, watch)
    if actual != entry.sha256:
        place = f"Bytes {entry.offset} to {entry.offset + entry.size}"
        message = f"{place} have {actual.hex()}, the directory records {entry.sha256.hex()}{of_nothing(entry.sha256)}."
        report.add("section.sha256", section_name(entry), "sha256", entry.offset, message)


def of_nothing(digest: bytes) -> str:
    """What to add to a message about a digest that is the one of no bytes at all: its writer hashed before it read."""
    return ", which is the digest of nothing" if digest == sha256().digest() else ""


def hash_range(
    descriptor: int,
    offset: int,
    length: int,
    path: object,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> bytes:
    """SHA-256 of a range of the file, read through one small buffer; `watch` sees the bytes as well.

    Raises:
        PathError: The read failed, or the file ends before the range does.
    """
    digest = sha256()
    if length <= CHUNK:
        data = read_at(descriptor, offset, length, path)
        digest.update(data)
        if watch:
            watch(memoryview(data))
        if progress:
            progress(length)
        return digest.digest()
    from .streaming import hash_streamed

    return hash_streamed(descriptor, offset, length, path, progress, watch)


def part_error(path: str | os.PathLike[str]) -> errors.FormatError | None:
    """That the file is a part of a pack, where its name says so."""
    if ".part-" not in os.path.basename(os.fspath(path)):
        return None
    from .foreign import foreign

    found = foreign(path)
    return errors.FormatError(found[0], code="split.part", path=path, hint=found[1]) if found else None
