"""A pack opened as far as it can be: damage is noted, and only what it hides is out of reach."""

from __future__ import annotations

import os
from typing import Any

from ..container.place import Place
from ..container.reader import Container
from ..container.report import Report
from ..container.structure import Structure, close_read, open_file, read_at, read_structure, section_name
from ..errors import BoundsError, UsageError
from ..generated.structs import GPackFooterV1, GPackHeaderV1, GPackSectionEntryV1
from ..pack import Pack

Key = tuple[int, str]


class Opened:
    """One of the two files. Use it as a context manager.

    Attributes:
        structure: Header, footer and directory, as far as they could be read.
        pack: The file as a pack; what lies in damaged places fails when it is asked for.
    """

    def __init__(self, path: str | os.PathLike[str], expert_dir: str | os.PathLike[str] | None) -> None:
        """Opens the file.

        Raises:
            PathError: It is missing or unreadable.
            UsageError: It is no pack at all.
        """
        self.path = os.fspath(path)
        descriptor, self.size = open_file(path)
        try:
            self._report = Report()
            self.structure: Structure = read_structure(descriptor, self.size, path, self._report)
            header = self.structure.header
            magic = GPackHeaderV1.MAGIC.to_bytes(4, "little")
            start = read_at(descriptor, 0, min(self.size, len(magic)), path)
            if start != magic:
                raise UsageError(
                    f"this is no pack: it begins with {start!r}, a pack with {magic!r}",
                    code="usage",
                    path=path,
                    hint=self._report.hint,
                )
            container = Container(
                path, descriptor, header or GPackHeaderV1(), self.structure.footer or GPackFooterV1(), self.structure
            )
        except BaseException:
            close_read(descriptor)
            raise
        self.pack = Pack(container, expert_dir=expert_dir)

    @property
    def descriptor(self) -> int:
        """The open file."""
        return self.pack.container.descriptor

    @property
    def entries(self) -> dict[Key, GPackSectionEntryV1]:
        """The directory's entries by kind and name."""
        return {(entry.kind, section_name(entry)): entry for entry in self.structure.entries}

    def holds(self, entry: GPackSectionEntryV1) -> bool:
        """Whether a section lies inside the file."""
        return entry.offset <= self.size and entry.size <= self.size - entry.offset

    @property
    def is_sound(self) -> bool:
        """Whether the fixed records break no rule of a quick open."""
        return self._report.ok

    def section(self, kind: int) -> memoryview:
        """A section's bytes.

        Raises:
            MissingError: The file has no such section.
            BoundsError: It leaves the file.
        """
        entry = self.pack.container.entry(kind)
        if not self.holds(entry):
            raise BoundsError("it leaves the file", code="section.bounds", path=self.path, section=section_name(entry))
        return self.pack.section(kind)

    def place(self, name: str) -> Place:
        """Where a tensor's bytes are.

        Raises:
            GpackError: As `Pack.place`, also where the tensor's section leaves the file.
        """
        entry = self.pack.container.find(self.pack.info(name).home)
        if entry is not None:
            _ = self.section(entry.kind)
        return self.pack.place(name)

    def describe(self) -> dict[str, Any]:
        """What the file is, JSON-ready."""
        footer = self.structure.footer
        broken = [violation.to_dict() for violation in self._report.errors()]
        return {
            "path": self.path,
            "size": self.size,
            "manifest_sha256": None if footer is None else footer.manifest_sha256.hex(),
            "damage": broken,
        }

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.pack.close()
