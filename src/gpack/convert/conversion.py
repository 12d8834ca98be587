"""A model into a pack: plan, write, and tell what was done."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..container.atomic import free_space
from ..container.writer import BuildResult
from ..errors import FormatError, GpackError, PathError, UsageError
from ..generated.constants import SECTION_NAMES, GgmlType
from ..sections.dense import DenseColumns
from ..sources.model import IMPORT_EXTENSION, ModelSource
from .external import ExternalFiles
from .plan import Plan
from .seal import add_seals


@dataclass(frozen=True)
class Conversion:
    """What a conversion did, or would do.

    Attributes:
        result: None after a dry run.
        seconds: The whole conversion, by part.
    """

    plan: Plan
    output: str
    result: BuildResult | None
    seconds: dict[str, float]


def convert_model(
    model: ModelSource,
    output: str | os.PathLike[str],
    *,
    name: str | None = None,
    external: ExternalFiles | None = None,
    dense_columns: Mapping[str, DenseColumns] | None = None,
    chunk_digests: str | None = None,
    parity: int | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
    started: float | None = None,
) -> Conversion:
    """Converts an open model into a pack.

    Args:
        name: Name of the model; default `general.name`, else the architecture.
        external: The files in which routed experts stay; None embeds them.
        dense_columns: What a pack directory says of dense tensors, by name.
        chunk_digests: Also digest every chunk of 1 MiB, by this algorithm: `blake3` or `sha256`.
        parity: Percent of the data that is written as parity besides, from which damage can be mended; it brings
            chunk digests.
        dry_run: Plan only; nothing is written.
        progress: Called with (bytes written since the last call, bytes in all).
        started: When the work began, by `time.perf_counter`.

    Raises:
        FormatError, UnsupportedError: The source is damaged or cannot be stored; nothing is written.
        PathError: A file cannot be read or written; the destination is as it was.
        UsageError: The output is one of the source's files, or an option makes no sense.
    """
    started = time.perf_counter() if started is None else started
    with _blaming(model.files[0].path):
        _refuse_overwriting(model, Path(output))
        identity = _identity(model)
        plan = Plan(model, name=name, external=external, dense_columns=dense_columns)
        add_seals(plan.builder, chunk_digests, parity)
        planned = time.perf_counter()
        seconds = {"plan": planned - started}
        if dry_run:
            return Conversion(plan, os.fspath(output), None, seconds)
        total = plan.builder.layout().total_file_size
        result = plan.builder.build(
            output,
            progress=None if progress is None else lambda count: progress(count, total),
            before_commit=lambda: _check_unchanged(model, identity),
        )
        seconds |= {"write": result.write_seconds, "sync": result.sync_seconds}
        return Conversion(plan, os.fspath(output), result, seconds)


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """Names the source in what the sections complain of: they do not know where it stands."""
    try:
        yield
    except GpackError as error:
        error.path = error.path or str(path)
        raise


def describe(conversion: Conversion) -> dict[str, Any]:
    """A conversion as JSON-ready values: sizes, placement, free space, times."""
    plan, result = conversion.plan, conversion.result
    layout = plan.builder.layout()
    output = Path(conversion.output)
    described: dict[str, Any] = {
        "output": conversion.output,
        "model": plan.manifest["model"],
        "size": layout.total_file_size,
        "source_size": sum(file.size for file in plan.source.files),
        "sections": [
            {
                "kind": e.kind,
                "name": SECTION_NAMES[e.kind],
                "offset": e.offset,
                "size": e.size,
                "item_count": e.item_count,
            }
            for e in layout.entries
        ],
        "seconds": {part: round(value, 6) for part, value in conversion.seconds.items()},
    }
    if "experts" in plan.manifest:
        described["experts"] = plan.manifest["experts"]
    if notes := [*plan.source.notes, *plan.notes]:
        described["notes"] = notes
    if imported := plan.manifest.get("extensions", {}).get(IMPORT_EXTENSION):
        described[IMPORT_EXTENSION] = imported
    if result is None:
        described["free_bytes"] = free_space(output) if output.parent.is_dir() else 0
        described["replaces_bytes"] = output.stat().st_size if output.is_file() else 0
        described["fits"] = layout.total_file_size <= described["free_bytes"]
        described["expected_seconds"] = round(layout.total_file_size / hash_speed(), 3)
    else:
        described["manifest_sha256"] = result.manifest_sha256
    return described


def report(conversion: Conversion) -> dict[str, Any]:
    """All that is known of a conversion, for `--report`: sources and the place of every tensor too."""
    plan = conversion.plan
    tensors = [
        {
            "name": placed.info.name,
            "type": GgmlType.NAMES[placed.info.ggml_type],
            "dims": list(placed.info.dims),
            "bytes": placed.info.byte_size,
            **plan.source.origin(placed.info),
            "section": SECTION_NAMES[placed.placement.section],
            "offset": placed.offset,
        }
        for placed in plan.placed
    ]
    return {**describe(conversion), "sources": plan.source.describe_files(), "tensors": tensors}


def hash_speed() -> float:
    """Bytes per second of SHA-256 here and now, which is what a conversion waits for."""
    block = bytes(1 << 20)
    sha256(block).digest()  # the first call also loads the code
    started = time.perf_counter()
    for _ in range(8):
        sha256(block).digest()
    return 8 * len(block) / max(time.perf_counter() - started, 1e-6)


def _refuse_overwriting(model: ModelSource, output: Path) -> None:
    for file in model.files:
        if output.exists() and output.samefile(file.path):
            raise UsageError("the output is one of the inputs", code="convert.same_file", path=output)
    if not output.parent.is_dir():
        raise PathError("the output's folder does not exist", code="io.not_found", path=output)


def _identity(model: ModelSource) -> list[tuple[int, int]]:
    """Size and time of the last change of each file."""
    statuses = (os.fstat(file.fileno()) for file in model.files)
    return [(status.st_size, status.st_mtime_ns) for status in statuses]


def _check_unchanged(model: ModelSource, identity: list[tuple[int, int]]) -> None:
    for file, before, now in zip(model.files, identity, _identity(model), strict=True):
        if before != now:
            raise FormatError(
                "the file was changed while it was being converted",
                code="convert.source_changed",
                path=file.path,
                hint="convert again when nothing writes to it",
            )
