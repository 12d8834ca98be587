"""Loading a model: from its pack, or from its GGUF where the pack cannot be used."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

from ..container.lost_pages import guard
from ..container.structure import check_path
from ..errors import ClosedError, DigestError, GpackError, InternalError, MissingError, UnsupportedError, UsageError
from ..generated.constants import SectionKind, TensorFlags
from ..pack import Metadata, Pack
from ..pack import open as open_pack
from ..sections.placement import PLE
from ..sections.verify import check_tables
from ..sources.model import IMPORT_EXTENSION, ModelSource
from ..sources.open import open_gguf
from .experts import IO_MODES, FileExpertSource, check_budget, check_mmap_variable
from .lazy import LazyCheck
from .located import Located, locate_in_pack, locate_in_source, routed
from .ple import PleIo, PleTable, ple_mode
from .tensors import TensorMap

if TYPE_CHECKING:
    from ..signatures import Trust
    from ..tokenizer import Tokenizer
    from ..tokenizer.chat import ChatTemplate

LOG = logging.getLogger("gpack")
Path = str | os.PathLike[str]
# What is read of a pack before any weight: damage there would show late, as another model or as none.
_TABLES = (
    SectionKind.METADATA_KV_BIN,
    SectionKind.TENSOR_INDEX_BIN,
    SectionKind.DENSE_INDEX_BIN,
    SectionKind.NATIVE_DENSE_INDEX_BIN,
    SectionKind.EXPERT_LAYOUT_BIN,
    SectionKind.TOKENIZER_BIN,
)
# How what is no expert is seen: a direct read of a few bytes makes no sense.
_TENSOR_IO = {"auto": "auto", "mmap": "auto", "read": "read", "direct": "read"}


@dataclass(frozen=True)
class ModelPaths:
    """Where a model is.

    Attributes:
        gpack_path: The pack.
        primary_model_path: The GGUF, one file or any shard: what is loaded where the pack cannot be used.
        expert_dir: Folder of the shards of external experts; default the pack's own.
        pack_dir, mtp_dir: Pack directory and draft layer that go with the GGUF.
    """

    gpack_path: Path | None = None
    primary_model_path: Path | None = None
    expert_dir: Path | None = None
    pack_dir: Path | None = None
    mtp_dir: Path | None = None


class LoadedModel:
    """A model's weights, metadata and tokenizer. Use it as a context manager, or call `close`.

    Attributes:
        path: The file that was loaded.
        pack: The pack; None where the GGUF was loaded.
        fallback: Why the pack could not be used; None where it was, or none was named.
        tensors: All tensors, by name.
        experts: The routed experts, one at a time; None where the model has none.
        ple: The table of per-layer embeddings; None where the model has none.
        pages_experts: An engine fetches experts one by one from `experts`, because the model was loaded to read them
            or with a budget; else it uses them where they are mapped.
    """

    def __init__(self, path: Path, source: Pack | SourceMetadata, resources: ExitStack) -> None:
        """`load` is the way to make one."""
        self.path = os.fspath(path)
        self.pack = source if isinstance(source, Pack) else None
        self._source = source
        self.fallback: GpackError | None = None
        self.tensors: TensorMap = TensorMap({}, io="read")
        self.experts: FileExpertSource | None = None
        self.ple: PleTable | None = None
        self.pages_experts = False
        self._checked_sections: set[int] = set()
        self._resources = resources
        self._closed = False

    @classmethod
    def load(
        cls,
        paths: ModelPaths | Path,
        *,
        io: str = "auto",
        verify_all_hashes: bool | Literal["lazy"] = False,
        expert_budget_bytes: int | None = None,
        ple_io: PleIo = PleIo.Direct,
        require_signature: Trust | None = None,
    ) -> Self:
        """Loads a model: the pack, or where it is unreadable or invalid, and a GGUF is configured, the GGUF.

        Then one warning is logged, with the reason. The digests of all sections but those of weights and raw files are
        checked, so are the rules of all tables, of metadata, tokenizer and manifest, and shards of external experts are
        opened: what cannot be used shows now.

        Args:
            paths: Where the model is, or the path of the pack alone.
            io: `mmap`, `read`, `direct` (for experts; other tensors are read), or `auto`: tensors are mapped, experts
                as `FileExpertSource.open_gpack` says.
            verify_all_hashes: Check every section's SHA-256 first, which reads the whole pack. `lazy`: check the chunks
                of a tensor, an expert or a row before it is given out for the first time (needs digests of chunks).
            expert_budget_bytes: Most bytes of experts to keep in memory.
            ple_io: How rows of the table of per-layer embeddings are read.
            require_signature: Whom the pack must be signed by. It implies a full verify, for the manifest alone says
                nothing of the weights; and there is no falling back.

        Raises:
            GpackError: What is wrong with the pack, where there is no GGUF to fall back to; else with the GGUF.
            UsageError: Neither is configured, or an option makes no sense.
        """
        if io == "auto":
            check_mmap_variable()  # a wrong one is no fault of the pack's
        if io not in IO_MODES:
            raise UsageError(f"io is {io!r}, not one of {', '.join(IO_MODES)}", code="usage", field="io")
        check_budget(expert_budget_bytes, "expert_budget_bytes")
        guard()
        mode = ple_mode(ple_io)
        where = paths if isinstance(paths, ModelPaths) else ModelPaths(gpack_path=paths)
        for field, value in vars(where).items():
            if value is not None:
                check_path(value, field)
        _check_trust(where, require_signature)
        if where.gpack_path is None:
            if where.primary_model_path is None:
                raise UsageError("neither a pack nor a GGUF is configured", code="usage")
            return cls._from_gguf(where, where.primary_model_path, io, expert_budget_bytes, mode)
        try:
            return cls._from_pack(
                where, where.gpack_path, io, verify_all_hashes, expert_budget_bytes, mode, require_signature
            )
        except Exception as caught:
            # A fault of ours over a damaged pack must not keep the GGUF from being used either.
            if where.primary_model_path is None or isinstance(caught, MemoryError):
                raise
            error = caught if isinstance(caught, GpackError) else _internal(caught, where.gpack_path)
            LOG.warning("%s; loading %s instead", error, os.fspath(where.primary_model_path))
            made = cls._from_gguf(where, where.primary_model_path, io, expert_budget_bytes, mode)
            made.fallback = error
            return made

    @classmethod
    def _from_pack(
        cls,
        where: ModelPaths,
        path: Path,
        io: str,
        verify: bool | Literal["lazy"],
        budget: int | None,
        ple_io: PleIo,
        trust: Trust | None,
    ) -> Self:
        with ExitStack() as stack:
            pack = stack.enter_context(
                open_pack(path, verify_all_hashes=verify is True, expert_dir=where.expert_dir, io=_TENSOR_IO[io])
            )
            if trust is not None:
                _check_signed(pack, trust, where)
            elif verify is not True:  # else all digests are known to be right
                pack.container.check_sections(_TABLES)
            check_tables(pack.container)
            located = locate_in_pack(pack)
            made = cls(path, pack, stack)
            made._attach(located, io, budget, ple_io)
            if verify == "lazy" and trust is None:
                made._watch(pack)
            made.check_files()
            made._resources = stack.pop_all()
            return made

    @classmethod
    def _from_gguf(cls, where: ModelPaths, path: Path, io: str, budget: int | None, ple_io: PleIo) -> Self:
        with ExitStack() as stack:
            source: ModelSource = open_gguf(path, pack_dir=where.pack_dir, mtp_dir=where.mtp_dir)
            stack.enter_context(source)
            made = cls(path, SourceMetadata(source), stack)
            made._attach(locate_in_source(source), io, budget, ple_io)
            made._resources = stack.pop_all()
            return made

    def _attach(self, located: Mapping[str, Located], io: str, budget: int | None, ple_io: PleIo) -> None:
        """Everything that reads the files; each piece is closed with the model."""
        stack = self._resources
        tensors = TensorMap(located, io=io)
        stack.callback(tensors.close)
        self.tensors = tensors
        self.pages_experts = tensors.io == "read" or budget is not None
        if experts := routed(located):
            self.experts = FileExpertSource.open_located(experts, self.path, io=io, budget_bytes=budget)
            stack.callback(self.experts.close)
        table = located.get(PLE)
        if table is not None and table.place is not None and len(table.dims) == 2:
            self.ple = PleTable.open_located(table, io=ple_io)
            stack.callback(self.ple.close)

    def _watch(self, pack: Pack) -> None:
        """Has bytes checked when they are first used; of shards of external experts, all that have digests, now."""
        check = LazyCheck(pack.container)
        self._resources.callback(check.close)
        for reader in (self.tensors, self.experts, self.ple):
            if isinstance(reader, TensorMap | FileExpertSource | PleTable):
                reader.watch(check)
        layout = pack.container.find(SectionKind.EXPERT_LAYOUT_BIN)
        for index in range(0 if layout is None else len(pack.shards)):
            shard = pack.shards.file(index)
            if shard.covered:
                shard.check_digest()

    def check_bytes(self, name: str) -> None:
        """Compares the bytes of a tensor with the digests of its chunks, or else of its section; a GGUF has none.

        Raises:
            DigestError: `section.sha256`: they are damaged.
        """
        if self.pack is None or self.pack.info(name).flags & TensorFlags.EXTERNAL:
            return
        container, row = self.pack.container, self.pack.info(name)
        if container.find(SectionKind.CHUNK_DIGESTS) is None:
            if row.home not in self._checked_sections:
                container.check_sections((row.home,))
                self._checked_sections.add(row.home)
            return
        place = self.pack.place_of(name, row)
        check = LazyCheck(container)
        try:
            check.look(place.offset, place.span)
        except DigestError as error:
            error.code, error.field = "section.sha256", name
            raise
        finally:
            check.close()

    def check_files(self) -> None:
        """Makes sure that what was just computed was computed from whole files.

        Raises:
            PathError: `io.short_read`: a file of the model was cut while it was in use.
        """
        if isinstance(self.tensors, TensorMap):
            self.tensors.check_files()

    @property
    def metadata(self) -> Metadata | SourceMetadata:
        """The metadata of the source: keys to Python values.

        Raises:
            ClosedError: The pack was closed.
        """
        return self._source.metadata if isinstance(self._source, Pack) else self._source

    def array_length(self, key: str) -> int | None:
        """Number of elements of a metadata array, which is not decoded; None where there is none of that key."""
        if isinstance(self.metadata, SourceMetadata):
            return self.metadata.count(key)
        return len(self.metadata[key]) if key in self.metadata else None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokeniser.

        Raises:
            GpackError: There is none, or it is of a kind that is not known.
        """
        from ..tokenizer import Tokenizer

        if self.pack is not None:
            if self.pack.container.find(SectionKind.TOKENIZER_BIN) is None:
                self.check_runnable()  # which tells why there is none
            return Tokenizer.of(self.pack.container)
        source: Any = self.metadata
        return Tokenizer.from_metadata(source.values_by_key, path=self.path)

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The model's chat template, parsed; None where it has none.

        Raises:
            GpackError: It is no template, or jinja2 is not installed.
        """
        from ..tokenizer.chat import ChatTemplate

        source = self.tokenizer.chat_template
        return None if source is None else ChatTemplate(source)

    @property
    def obstacles(self) -> list[str]:
        """Why the pack says that its model cannot be run, one sentence each; empty where it says no such thing."""
        extensions = {} if self.pack is None else self.pack.manifest.get("extensions", {})
        imported = extensions.get(IMPORT_EXTENSION)
        if not isinstance(imported, dict) or imported.get("runnable") is not False:
            return []
        reasons = imported.get("reasons")
        return [str(reason) for reason in reasons] if isinstance(reasons, list) and reasons else ["it gives no reason"]

    def check_runnable(self) -> None:
        """Refuses a model that cannot be run, or was closed.

        Raises:
            ClosedError: `pack.closed`: it was closed.
            UnsupportedError: `engine.obstacle`: the pack says that its model cannot be run.
        """
        if self._closed:
            raise ClosedError(f"{self.path}: the model was closed", code="pack.closed")
        if obstacles := self.obstacles:
            raise UnsupportedError(
                f"the model cannot be run: {'; '.join(obstacles)}",
                code="engine.obstacle",
                path=self.path,
                hint="the pack says so since it was imported; its tensors can be read",
            )

    def close(self) -> None:
        """Closes and unmaps all files; what open sessions and arrays that were given out look at stays mapped."""
        self._closed = True
        self._resources.close()
        self.__dict__.pop("tokenizer", None)  # it looks at the mapped vocabulary

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_trust(where: ModelPaths, trust: Trust | None) -> None:
    """A signature can be required of a pack alone.

    Raises:
        UsageError: There may be a GGUF in its place, or it is not said whom to trust.
    """
    if trust is None:
        return
    trust.check()
    if where.gpack_path is None or where.primary_model_path is not None:
        raise UsageError("a signature is required, and a GGUF has none", code="usage", field="require_signature")


def _check_signed(pack: Pack, trust: Trust, where: ModelPaths) -> None:
    """The pack is signed by whom it should be, and every byte of it, and of its shards, is what was signed.

    Raises:
        GpackError: It is not.
    """
    from ..sections.verify import verify
    from ..signatures import check_signature

    container = pack.container
    check_signature(container, trust)
    found = verify(container.path, shards=True, expert_dir=where.expert_dir, opened=container.descriptor)
    violation = found.report.first_error()
    if violation is not None:
        raise violation.error(container.path, found.report.hint)
    for shard in found.shards:
        if shard.error is not None:
            raise shard.error
        if not shard.covered:
            raise DigestError(
                f"no digest covers the experts in {shard.name}, so that the signature says nothing of them",
                code="signature.uncovered",
                path=container.path,
                hint="convert with --hash-shards, or pack the experts: `guild pack-experts`",
            )


def _internal(error: Exception, path: Path) -> InternalError:
    return InternalError(f"{type(error).__name__}: {error}", code="internal", path=path, hint="please report it")


class SourceMetadata(Mapping[str, Any]):
    """The metadata of a model that is no pack; values are decoded when they are asked for.

    Attributes:
        values_by_key: The values as they are stored.
    """

    def __init__(self, source: ModelSource) -> None:
        self.values_by_key = source.metadata

    def __len__(self) -> int:
        return len(self.values_by_key)

    def __iter__(self) -> Any:
        return iter(self.values_by_key)

    def __getitem__(self, key: str) -> Any:
        """The value.

        Raises:
            MissingError: There is no such key.
        """
        value = self.values_by_key.get(key)
        if value is None:
            raise MissingError(f"there is no key {key!r}", code="pack.no_key")
        return value.python()

    def count(self, key: str) -> int | None:
        """Number of elements of an array, 1 of anything else; None where there is no such key."""
        value = self.values_by_key.get(key)
        return None if value is None else value.count
