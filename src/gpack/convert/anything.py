"""Any model into a pack: what the source is shows in what it holds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from ..container.foreign import foreign
from ..container.structure import check_path, open_file, read_at
from ..errors import FormatError, UsageError
from ..generated.gguf.constants import GGUF_MAGIC
from ..quants.encode import TYPES
from ..sources.composite import CompositeSource, columns_of
from ..sources.gguf import GgufSource
from ..sources.hf_import import HfSource
from ..sources.model import ModelSource
from ..sources.open import open_gguf
from ..sources.safetensors_set import INDEX_SUFFIX, SUFFIX
from .conversion import Conversion, convert_model
from .external import external_files
from .quantize import QuantizedSource

GGUF, SAFETENSORS = "gguf", "safetensors"


def convert(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    name: str | None = None,
    quantize: str | None = None,
    text_only: bool = False,
    pack_dir: str | os.PathLike[str] | None = None,
    mtp_dir: str | os.PathLike[str] | None = None,
    external_experts: bool = False,
    hash_shards: bool = False,
    chunk_digests: str | None = None,
    parity: int | None = None,
    report: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Conversion:
    """Converts a model into a pack: a GGUF, or safetensors with the small files beside them.

    Errors, result and the other arguments are those of `convert_model`.

    Args:
        source: A .gguf file or any of its shards; a folder, a .safetensors file, any shard, or an index.
        name: Name of the model; of safetensors also its `general.name`.
        quantize: Name of a type, one of `gpack.quants.encode.TYPES`, that matrices are turned into.
        text_only: Of safetensors, leave out towers that the text model does not need.
        pack_dir, mtp_dir: Of a GGUF, as in `convert_gguf`.
        external_experts, hash_shards: As in `convert_gguf`; of safetensors where the files have a layer's experts at
            equal distances.
        report: A file that is written later and must be none of the source's.
    """
    started = time.perf_counter()
    paths = {"source": source, "output": output, "pack_dir": pack_dir, "mtp_dir": mtp_dir, "report": report}
    for field, path in paths.items():
        if path is not None or field in ("source", "output"):
            check_path(path, field)
    kind = kind_of(source)
    beside = pack_dir is not None or mtp_dir is not None
    _check_options(kind, quantize, text_only=text_only, external_experts=external_experts, beside=beside)
    opened: GgufSource | CompositeSource | HfSource
    if kind == GGUF:
        opened = open_gguf(source, pack_dir=pack_dir, mtp_dir=mtp_dir, external_experts=external_experts)
    else:
        opened = HfSource.open(source, name=name, text_only=text_only, wide=quantize is not None)
    with opened:
        external = external_files(opened, hash_shards=hash_shards) if external_experts else None
        model = QuantizedSource(opened, TYPES[quantize]) if quantize else opened
        _check_report(model, report)
        return convert_model(
            model,
            output,
            name=name,
            external=external,
            dense_columns=columns_of(opened),
            chunk_digests=chunk_digests,
            parity=parity,
            dry_run=dry_run,
            progress=progress,
            started=started,
        )


def kind_of(path: str | os.PathLike[str]) -> str:
    """What a source is: `gguf` or `safetensors`.

    Raises:
        FormatError: `convert.source`: it is neither.
        PathError: It is missing or unreadable.
    """
    if os.path.isdir(path):
        return SAFETENSORS
    if found := foreign(path):
        raise FormatError(found[0], code="convert.source", path=path, hint=found[1])
    descriptor, size = open_file(path)
    with open(descriptor, "rb", buffering=0) as file:
        magic = GGUF_MAGIC.to_bytes(4, "little")
        start = read_at(file.fileno(), 0, min(size, len(magic)), path)
    if start == magic:
        return GGUF
    if os.fspath(path).endswith((SUFFIX, INDEX_SUFFIX)):
        return SAFETENSORS
    raise FormatError(
        f"the file begins with {start!r}, a GGUF with {magic!r}, and its name does not end in {SUFFIX}",
        code="convert.source",
        path=path,
        hint="give a .gguf file, one shard of a split model, or a folder with safetensors",
    )


def _check_options(kind: str, quantize: str | None, *, text_only: bool, external_experts: bool, beside: bool) -> None:
    if quantize is not None and quantize not in TYPES:
        raise UsageError(f"there is no type {quantize!r} to quantise to, only {', '.join(TYPES)}", code="usage")
    if text_only and kind != SAFETENSORS:
        raise UsageError("--text-only is for safetensors: a GGUF has no towers", code="usage")
    if beside and kind != GGUF:
        raise UsageError("a pack directory and draft layers of other files go with a GGUF", code="usage")
    if beside and quantize:
        raise UsageError("what a pack directory or an MTP directory holds cannot be quantised", code="usage")
    if external_experts and quantize:
        raise UsageError("experts that stay outside cannot be quantised", code="usage")


def _check_report(model: ModelSource, report: str | os.PathLike[str] | None) -> None:
    """Refuses a report that would take the place of one of the source's files.

    Raises:
        UsageError: `convert.same_file`.
    """
    if report is None or not Path(report).exists():
        return
    if any(os.path.samefile(report, file.path) for file in model.files):
        raise UsageError("the report would overwrite the model", code="convert.same_file", path=report)
