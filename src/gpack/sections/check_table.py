"""The checks that all index sections share: header, rows, heap references, order, names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..container.pieces import Pieces, part_of
from ..container.report import Report
from ..generated.constants import MAX_ROWS
from ..generated.rules import RULES, align_up
from ..generated.sections import SECTIONS
from .pieced import Made, PiecedTable
from .table import Table

_KEPT = 1 << 16  # rows that are decoded once; of more each is decoded when it is looked at
Broken = list[tuple[str, str]]


class CheckedTable:
    """A table whose header and rows were checked, and what the later checks need of it.

    Attributes:
        base: Offset of the section in the file.
        rows: The rows; empty where the header is not sound.
        names: The bytes of each row's first reference (its name or key); empty bytes where the reference is bad.
        broken: Numbers of rows that break a rule which says how to read them: nothing that they point to is decoded.
        sound: The table can be read: rows and heap lie where they should.
        shards: The rows of ExpertLayoutBin's second table.
    """

    def __init__(self, table: Table[Any, Any] | None, header: Any, base: int, report: Report, section: str) -> None:
        self.table = table
        self.header = header
        self.base = base
        self.report = report
        self.section = section
        self.rows: Sequence[Any] = []
        self.names: Sequence[bytes] = []
        self.shards: list[Any] = []
        self.broken: set[int] = set()

    @property
    def sound(self) -> bool:
        """Whether rows and heap could be read."""
        return self.table is not None

    def part_of(self, row: Any, ref: str) -> memoryview | Pieces:
        """The heap bytes of a row's reference, which must be sound; of a large section to be read."""
        start = self.header.ofs_heap + getattr(row, f"{ref}_offset")
        data: Any = b"" if self.table is None else self.table.data
        return part_of(data, start, getattr(row, f"{ref}_length"))

    def bytes_of(self, row: Any, ref: str) -> bytes:
        """The heap bytes of a row's reference; empty where it is bad."""
        offset, length = getattr(row, f"{ref}_offset"), getattr(row, f"{ref}_length")
        if self.table is None or offset > self.header.len_heap or length > self.header.len_heap - offset:
            return b""
        return bytes(self.table.bytes_of(row, ref))

    def row_base(self, index: int) -> int:
        """Offset of a row in the file."""
        return int(self.base + self.header.ofs_rows + index * self.header.row_size)

    def fault(self, rule: str, index: int, field: str, message: str) -> None:
        """Records a violation at a field of a row."""
        offset = self.row_base(index) + self.rows[index].OFFSETS.get(field, 0)
        self.report.add(rule, self.section, f"rows[{index}].{field}", offset, message)

    def header_fault(self, rule: str, field: str, message: str) -> None:
        """Records a violation at a field of the header."""
        self.report.add(rule, self.section, field, self.base + self.header.OFFSETS[field], message)

    def label(self, index: int) -> str:
        """The row's name for a message."""
        return self.names[index].decode("utf-8", "backslashreplace") if index < len(self.names) else f"row {index}"


def check_table(kind: int, data: memoryview | Pieces, *, base: int, report: Report) -> CheckedTable:
    """Checks header, every row, every reference, the heap's order, and that names are sorted and UTF-8.

    Args:
        kind: Kind of the section, one that is a table; the registry knows its records and what checks them.
        data: The section's bytes.
        base: Offset of the section in the file.
    """
    known = SECTIONS[kind]
    header_class: Any = known.header
    check_header: Any = known.check
    row_class, check_row, section = known.tables[0].record, known.tables[0].check, known.name
    made = CheckedTable(None, header_class(), base, report, section)
    report.check("index.header")
    if len(data) < header_class.SIZE:
        report.add("index.header", section, "", base, f"It has {len(data)} bytes, the header {header_class.SIZE}.")
        return made
    header = made.header = header_class.decode(data[: header_class.SIZE])
    report.check_record(header_class)
    broken = check_header(header, section_size=len(data))
    report.add_broken(broken, header, section, base=base, section_size=len(data))
    rows_end = header.ofs_rows + header.num_rows * header.row_size
    heap_fits = header.ofs_heap <= len(data) and header.len_heap <= len(data) - header.ofs_heap
    if (
        header.magic != header_class.MAGIC
        or header.row_size < row_class.SIZE
        or rows_end > len(data)
        or not heap_fits
        or header.num_rows > MAX_ROWS
    ):
        return made
    made.table = PiecedTable(kind, data) if isinstance(data, Pieces) else Table(kind, data)
    if header.num_rows:
        report.check_record(row_class)
    made.rows = Made(header.num_rows, made.table.row)
    if header.num_rows <= _KEPT:
        made.rows = list(made.rows)
    for index, row in enumerate(made.rows):
        if broken := check_row(row):
            if any(not RULES[rule].recommended for rule, _ in broken):
                made.broken.add(index)
            report.add_broken(broken, row, section, base=made.row_base(index), prefix=f"rows[{index}].")
    if row_class.REFS:
        check_heap(made, made.rows, "rows", header.ofs_rows, header.row_size, end=True)
        if bytes_inside(made.rows, header.len_heap) > header.len_heap:
            made.table = None  # reported as index.heap_order; copying what is shared could take any memory
        else:
            _check_names(made)
    return made


def bytes_inside(rows: Sequence[Any], len_heap: int) -> int:
    """Bytes of all references of rows together, without those that leave the heap."""
    spans = ((getattr(row, f"{ref}_offset"), getattr(row, f"{ref}_length")) for row in rows for ref, _ in row.REFS)
    return sum(length for offset, length in spans if offset + length <= len_heap)


def check_heap(
    checked: CheckedTable, rows: Sequence[Any], what: str, ofs_rows: int, row_size: int, *, end: bool, start: int = 0
) -> int:
    """References point inside the heap, in row order, with the least gaps, which are zero.

    Args:
        what: Name of the table for field paths.
        ofs_rows, row_size: Place of the rows in the section.
        end: The heap must end with the last of these rows.
        start: Where the first reference should point.

    Returns:
        Where the last reference ends.
    """
    header, table = checked.header, checked.table
    if table is None:
        return start
    size, expected = header.len_heap, start
    if rows:
        checked.report.check("index.heap_ref", "index.heap_zero")
    checked.report.check("index.heap_order")
    for index, row in enumerate(rows):
        for ref, alignment in row.REFS:
            offset, length = getattr(row, f"{ref}_offset"), getattr(row, f"{ref}_length")
            name = f"{ref}_offset"
            place = checked.base + ofs_rows + index * row_size + row.OFFSETS[name]
            if offset > size or length > size - offset:
                message = f"Bytes {offset} to {offset + length}, the heap has {size}."
                checked.report.add("index.heap_ref", checked.section, f"{what}[{index}].{name}", place, message)
                continue
            least = align_up(expected, alignment) if length else 0
            if offset != least:
                message = f"Found {offset}, expected {least}."
                checked.report.add("index.heap_order", checked.section, f"{what}[{index}].{name}", place, message)
            elif any(table.data[header.ofs_heap + expected : header.ofs_heap + offset]):
                gap = checked.base + header.ofs_heap + expected
                checked.report.add("index.heap_zero", checked.section, "heap", gap, f"Before heap byte {offset}.")
            expected = offset + length if length else expected
    if end and expected != size:
        checked.header_fault("index.heap_order", "len_heap", f"The last reference ends at {expected} of {size}.")
    return expected


def _check_names(checked: CheckedTable) -> None:
    table = checked.table
    if table is None:
        return
    if checked.rows:
        checked.report.check("index.sorted", "index.utf8")
    ref = checked.rows[0].REFS[0][0] if checked.rows else ""
    checked.names = Made(len(checked.rows), lambda index: checked.bytes_of(checked.rows[index], ref))
    if len(checked.rows) <= _KEPT:
        checked.names = list(checked.names)
    previous: bytes | None = None
    for index, (row, name) in enumerate(zip(checked.rows, checked.names, strict=True)):
        offset, length = getattr(row, f"{ref}_offset"), getattr(row, f"{ref}_length")
        if offset > checked.header.len_heap or length > checked.header.len_heap - offset:
            continue
        if previous is not None and name <= previous:
            message = f"{name[:80]!r} stands after {previous[:80]!r}."
            checked.fault("index.sorted", index, f"{ref}_offset", message)
        previous = name
        try:
            name.decode("utf-8")
        except UnicodeDecodeError as error:
            checked.fault("index.utf8", index, f"{ref}_offset", f"{name[:80]!r}: {error.reason}.")
