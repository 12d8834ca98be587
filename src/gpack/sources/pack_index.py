"""The text tables of a pack directory: `index.txt`, `dense.txt`, `native_experts.txt`.

Lines of columns split by spaces, integers decimal, `#` begins a comment line. What contradicts the tables' rules, or a
file beside them, is refused with line and column: nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path

from ..container.strict_json import shorten
from ..errors import FormatError, PathError
from ..generated.constants import ARENA_ALIGNMENT, MAX_NUMBER, MAX_ROWS
from ..generated.rules import align_up
from .files import SourceFile

CODE = "packdir.table"
MAX_TABLE = 256 << 20  # bytes; a model has thousands of tensors
INDEX_COLUMNS = (
    "name",
    "file",
    "kind",
    "src_off",
    "src_bytes",
    "dst_off",
    "dst_bytes",
    "ne0",
    "ne1",
    "code_bits",
    "code_bias",
    "group_elems",
    "codebook",
    "has_offset",
    "codes_bytes",
    "scales_bytes",
    "offset_bytes",
    "scales_fp16",
    "act_kind",
)
_PLAIN_COLUMNS = ("name", "offset", "bytes", "shape")
_EXPERT_COLUMNS = ("layer", "gu_type", "d_type", "offset", "blob_bytes", "gate_off", "up_off", "down_off", "shard")
_OLD_COLUMNS = 18  # without act_kind, which version 3 added
_SIGNED = {"code_bias"}
_FLAGS = {"has_offset", "scales_fp16"}
_SUMMARY = re.compile(r"#.*\balign (\d+) pool (\d+) tensors (\d+)\b.*")
_INTEGER = re.compile(r"-?[0-9]{1,20}")


@dataclass(frozen=True)
class Line:
    """A line of a table.

    Attributes:
        number: From 1.
        cells: Its columns.
        names: What the columns are called.
    """

    path: Path
    number: int
    cells: tuple[str, ...]
    names: tuple[str, ...]

    def fault(self, column: str, message: str) -> FormatError:
        """An error at a column."""
        place = f"column {self.names.index(column) + 1} ({column})"
        return FormatError(message, code=CODE, path=self.path, section=f"line {self.number}", field=place)

    def text(self, column: str) -> str:
        """A column's text."""
        return self.cells[self.names.index(column)]

    def integer(self, column: str) -> int:
        """A column's number.

        Raises:
            FormatError: It is none, negative, or too large.
        """
        text = self.text(column)
        if not _INTEGER.fullmatch(text):
            raise self.fault(column, f"{shorten(text)} is no decimal integer")
        value = int(text)
        if abs(value) > MAX_NUMBER or (value < 0 and column not in _SIGNED):
            raise self.fault(column, f"{value} is out of range")
        if column in _FLAGS and value not in (0, 1):
            raise self.fault(column, f"{value} is neither 0 nor 1")
        return value

    def check(self, column: str, *, holds: bool, message: str) -> None:
        """Raises an error at a column unless something holds.

        Raises:
            FormatError: It does not.
        """
        if not holds:
            raise self.fault(column, message)


@dataclass(frozen=True)
class IndexRow:
    """A tensor of `index.txt`; the fields are its columns."""

    line: Line
    name: str
    kind: int
    src_off: int
    src_bytes: int
    dst_off: int
    dst_bytes: int
    dims: tuple[int, ...]
    code_bits: int
    code_bias: int
    group_elems: int
    codebook: int
    has_offset: bool
    codes_bytes: int
    scales_bytes: int
    offset_bytes: int
    scales_fp16: bool
    act_kind: int

    @property
    def skipped(self) -> bool:
        """Only a shape: the tensor is served from the GGUF's own quantised bytes."""
        return self.src_bytes == 0 and self.code_bits == 8

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.dims)


@dataclass(frozen=True)
class PlainRow:
    """A tensor of the short form of `dense.txt`: name, place and shape."""

    line: Line
    name: str
    src_off: int
    src_bytes: int
    dims: tuple[int, ...]


@dataclass(frozen=True)
class ExpertRow:
    """A layer of `native_experts.txt`.

    Attributes:
        offset: First byte of the layer's first blob.
        blob_bytes: Bytes of an expert.
        places: Places of gate, up and down; None in the older form.
        shards: Names of the files of gate, up and down; None where they are not said.
    """

    line: Line
    layer: int
    gu_type: int
    d_type: int
    offset: int
    blob_bytes: int
    places: tuple[int, int, int] | None
    shards: tuple[str, str, str] | None


def read_index(file: SourceFile, data_size: int | None) -> list[IndexRow]:
    """The rows of `index.txt`.

    Args:
        data_size: Bytes of `dense.bin`; None where there is none.

    Raises:
        FormatError: `packdir.table`, with line and column.
    """
    rows: list[IndexRow] = []
    summary: Line | None = None
    for line in _lines(file, INDEX_COLUMNS):
        if line.cells[0].startswith("#"):
            summary = line if _SUMMARY.fullmatch(line.cells[0]) else summary
            continue
        if len(line.cells) not in (_OLD_COLUMNS, len(INDEX_COLUMNS)):
            counts = f"{_OLD_COLUMNS} or {len(INDEX_COLUMNS)}"
            raise line.fault("name", f"the line has {len(line.cells)} columns, not {counts}")
        if rows and len(line.cells) != len(rows[0].line.cells):
            raise line.fault("name", f"the line has {len(line.cells)} columns, the first {len(rows[0].line.cells)}")
        rows.append(_index_row(line))
    _check_rows(file, rows)
    _check_places(rows, "src_off", "src_bytes", data_size)
    _check_places(rows, "dst_off", "dst_bytes", None)
    if summary is not None:
        _check_summary(summary, rows)
    return rows


def _index_row(line: Line) -> IndexRow:
    old = len(line.cells) == _OLD_COLUMNS
    values = {name: line.integer(name) for name in INDEX_COLUMNS[1:_OLD_COLUMNS]}
    values["act_kind"] = 0 if old else line.integer("act_kind")
    line.check("file", holds=values.pop("file") == 0, message="only file 0, dense.bin, is known")
    aligned = values["dst_off"] % ARENA_ALIGNMENT == 0
    line.check("dst_off", holds=aligned, message=f"{values['dst_off']} is no multiple of {ARENA_ALIGNMENT}")
    ne0, ne1 = values.pop("ne0"), values.pop("ne1")
    line.check("ne0", holds=ne0 >= 1, message="a row has at least one element")
    line.check("ne1", holds=ne1 >= 1 and ne0 * ne1 <= MAX_NUMBER, message=f"{ne1} rows of {ne0} elements")
    row = IndexRow(
        line,
        line.text("name"),
        dims=(ne0, ne1),
        has_offset=bool(values.pop("has_offset")),
        scales_fp16=bool(values.pop("scales_fp16")),
        **values,
    )
    line.check("kind", holds=row.kind <= 5, message=f"kind {row.kind} is not known")
    line.check("src_bytes", holds=row.src_bytes > 0 or row.skipped, message="no bytes, and code_bits is not 8")
    if row.code_bits and not row.skipped:
        _check_planes(row)
    elif not row.skipped:
        for column in ("codes_bytes", "scales_bytes", "offset_bytes", "group_elems", "has_offset"):
            line.check(column, holds=not getattr(row, column), message="code_bits is 0: there are no code planes")
    return row


def _check_planes(row: IndexRow) -> None:
    """The planes of a quantised tensor: codes, scales, offsets, and nothing else."""
    line = row.line
    line.check("kind", holds=row.kind == 0, message=f"code planes are stored verbatim, kind 0, not {row.kind}")
    line.check("code_bits", holds=row.code_bits <= 16, message=f"codes of {row.code_bits} bits")
    line.check("code_bias", holds=-(1 << 15) <= row.code_bias < 1 << 15, message=f"{row.code_bias} is out of range")
    line.check("group_elems", holds=1 <= row.group_elems < 1 << 32, message="a group has at least one element")
    line.check("codebook", holds=row.codebook < 1 << 32, message=f"{row.codebook} is out of range")
    least = -(-row.elements * row.code_bits // 8)
    line.check("codes_bytes", holds=row.codes_bytes >= least, message=f"{row.codes_bytes}, the codes take {least}")
    size = 2 if row.scales_fp16 else 4
    groups = -(-row.elements // row.group_elems)
    for column, wanted in (("scales_bytes", True), ("offset_bytes", row.has_offset)):
        found = getattr(row, column)
        holds = found >= groups * size and found % size == 0 if wanted else found == 0
        line.check(column, holds=holds, message=f"{found} bytes for {groups if wanted else 0} groups")
    total = row.codes_bytes + row.scales_bytes + row.offset_bytes
    line.check("src_bytes", holds=row.src_bytes == total, message=f"{row.src_bytes}, the planes take {total}")


def read_dense_table(file: SourceFile, data_size: int) -> list[IndexRow] | list[PlainRow]:
    """The rows of a draft directory's `dense.txt`, in either form.

    Raises:
        FormatError: `packdir.table`, with line and column.
    """
    first = next((line for line in _lines(file, INDEX_COLUMNS) if not line.cells[0].startswith("#")), None)
    if first is None or len(first.cells) >= _OLD_COLUMNS:
        return read_index(file, data_size)
    rows: list[PlainRow] = []
    for line in _lines(file, _PLAIN_COLUMNS):
        if line.cells[0].startswith("#"):
            continue
        if len(line.cells) < len(_PLAIN_COLUMNS):
            raise line.fault("name", f"the line has {len(line.cells)} columns, not at least {len(_PLAIN_COLUMNS)}")
        extents = re.split(r"[x,]", ",".join(line.cells[3:]).strip("[]()"))
        if not 1 <= len(extents) <= 4 or not all(re.fullmatch(r"[1-9][0-9]{0,15}", extent) for extent in extents):
            raise line.fault("shape", f"{shorten(' '.join(line.cells[3:]))} is no shape")
        dims = tuple(map(int, extents))
        if prod(dims) > MAX_NUMBER:
            raise line.fault("shape", "the shape is out of range")
        rows.append(PlainRow(line, line.text("name"), line.integer("offset"), line.integer("bytes"), dims))
    _check_rows(file, rows)
    _check_places(rows, "src_off", "src_bytes", data_size, columns=("offset", "bytes"))
    return rows


def read_experts(file: SourceFile) -> list[ExpertRow]:
    """The rows of `native_experts.txt`.

    Raises:
        FormatError: `packdir.table`, with line and column.
    """
    rows: list[ExpertRow] = []
    for line in _lines(file, _EXPERT_COLUMNS):
        if line.cells[0].startswith("#"):
            continue
        if len(line.cells) not in (5, 8, 9):
            raise line.fault("layer", f"the line has {len(line.cells)} columns, not 5, 8 or 9")
        numbers = [line.integer(name) for name in _EXPERT_COLUMNS[:5]]
        layer, gu_type, d_type, offset, blob_bytes = numbers
        places = None
        if len(line.cells) > 5:
            places = (line.integer("gate_off"), line.integer("up_off"), line.integer("down_off"))
        shards = None
        if len(line.cells) > 8:
            names = line.text("shard").split(",")
            line.check("shard", holds=len(names) in (1, 3), message=f"{len(names)} names, not one or three")
            shards = (names[0], names[len(names) // 3], names[-1])
        if any(row.layer == layer for row in rows):
            raise line.fault("layer", f"layer {layer} stands twice")
        rows.append(ExpertRow(line, layer, gu_type, d_type, offset, blob_bytes, places, shards))
    return rows


# ---------------------------------------------------------------- what all tables share


def _lines(file: SourceFile, names: tuple[str, ...]) -> Iterator[Line]:
    """The lines that are not blank; a comment is one cell."""
    if file.size > MAX_TABLE:
        raise PathError(
            f"the table has {file.size} bytes, at most {MAX_TABLE} are read", code="io.read", path=file.path
        )
    data = file.read_at(0, file.size)
    for number, raw in enumerate(data.split(b"\n"), 1):
        try:
            text = raw.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise FormatError("the line is not UTF-8", code=CODE, path=file.path, section=f"line {number}") from error
        if number > MAX_ROWS:
            raise FormatError("there are too many lines", code=CODE, path=file.path, section=f"line {number}")
        if text:
            yield Line(file.path, number, (text,) if text.startswith("#") else tuple(text.split()), names)


def _check_rows(file: SourceFile, rows: Sequence[IndexRow] | Sequence[PlainRow]) -> None:
    """There are tensors, each once."""
    if not rows:
        raise FormatError("the table has no tensor", code=CODE, path=file.path, hint="was it cut off?")
    seen: dict[str, int] = {}
    for row in rows:
        if row.name in seen:
            raise row.line.fault("name", f"{shorten(row.name)} stands in line {seen[row.name]} too")
        seen[row.name] = row.line.number


def _check_places(
    rows: Sequence[IndexRow] | Sequence[PlainRow],
    offset: str,
    length: str,
    size: int | None,
    *,
    columns: tuple[str, str] | None = None,
) -> None:
    """Ranges lie inside the file and none upon another."""
    column = (columns or (offset, length))[0]
    ranges = sorted(
        ((getattr(row, offset), getattr(row, length), row) for row in rows if getattr(row, length)),
        key=lambda item: item[:2],
    )
    for start, count, row in ranges:
        if size is not None and start + count > size:
            raise row.line.fault(column, f"bytes {start} to {start + count}, the file has {size}")
    for (start, count, before), (following, _, row) in pairwise(ranges):
        if start + count > following:
            raise row.line.fault(
                column, f"it begins at {following}, inside {shorten(before.name)} of line {before.line.number}"
            )


def check_end(file: SourceFile, rows: Sequence[IndexRow] | Sequence[PlainRow]) -> None:
    """Nothing but zeros to the next multiple of 256 follows the last tensor of `dense.bin`.

    Raises:
        FormatError: `packdir.table`: bytes belong to no tensor.
    """
    end = max((row.src_off + row.src_bytes for row in rows), default=0)
    left = file.size - end
    if left < ARENA_ALIGNMENT and not any(file.read_at(end, left)):
        return
    raise FormatError(
        f"the last {left} bytes of the file belong to no tensor",
        code=CODE,
        path=file.path,
        offset=end,
        hint="the table is of another file, or was cut off",
    )


def _check_summary(line: Line, rows: Sequence[IndexRow]) -> None:
    """The comment that states alignment, pool and number of tensors."""
    match = _SUMMARY.fullmatch(line.cells[0])
    alignment, pool, count = map(int, match.groups()) if match else (0, 0, 0)
    end = max((row.dst_off + row.dst_bytes for row in rows), default=0)
    padded = align_up(end, ARENA_ALIGNMENT)
    for holds, message in (
        (alignment == ARENA_ALIGNMENT, f"the alignment is {alignment}, not {ARENA_ALIGNMENT}"),
        (pool in (end, padded), f"the pool has {pool} bytes, the last tensor ends at {end}, the arena at {padded}"),
        (count == len(rows), f"it says {count} tensors, the table has {len(rows)}"),
    ):
        if not holds:
            raise FormatError(message, code=CODE, path=line.path, section=f"line {line.number}")
