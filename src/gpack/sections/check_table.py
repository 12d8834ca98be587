"""The checks that all index sections share: header, rows, heap references, order, names."""

from __future__ import annotations

from typing import Any

from ..container.report import Report
from ..generated.constants import MAX_ROWS
from ..generated.rules import RULES, align_up
from ..generated.sections import SECTIONS
from .table import Table

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
        self.rows: list[Any] = []
        self.names: list[bytes] = []
        self.shards: list[Any] = []
        self.broken: set[int] = set()

    @property
    def sound(self) -> bool:
        """Whether rows and heap could be read."""
        return self.table is not None

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


def check_table(kind: int, data: memoryview, *, base: int, report: Report) -> CheckedTable:
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
    header = made.header = header_class.decode(data)
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
    made.table = Table(kind, data)
    if header.num_rows:
        report.check_record(row_class)
    for index in range(header.num_rows):
        row = made.table.row(index)
        made.rows.append(row)
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


def bytes_inside(rows: list[Any], len_heap: int) -> int:
    """Bytes of all references of rows together, without those that leave the heap."""
    spans = ((getattr(row, f"{ref}_offset"), getattr(row, f"{ref}_length")) for row in rows for ref, _ in row.REFS)
    return sum(length for offset, length in spans if offset + length <= len_heap)


def check_heap(
    checked: CheckedTable, rows: list[Any], what: str, ofs_rows: int, row_size: int, *, end: bool, start: int = 0
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
    heap = table.data[header.ofs_heap : header.ofs_heap + header.len_heap]
    expected = start
    if rows:
        checked.report.check("index.heap_ref", "index.heap_zero")
    checked.report.check("index.heap_order")
    for index, row in enumerate(rows):
        for ref, alignment in row.REFS:
            offset, length = getattr(row, f"{ref}_offset"), getattr(row, f"{ref}_length")
            name = f"{ref}_offset"
            place = checked.base + ofs_rows + index * row_size + row.OFFSETS[name]
            if offset > len(heap) or length > len(heap) - offset:
                message = f"Bytes {offset} to {offset + length}, the heap has {len(heap)}."
                checked.report.add("index.heap_ref", checked.section, f"{what}[{index}].{name}", place, message)
                continue
            least = align_up(expected, alignment) if length else 0
            if offset != least:
                message = f"Found {offset}, expected {least}."
                checked.report.add("index.heap_order", checked.section, f"{what}[{index}].{name}", place, message)
            elif any(heap[expected:offset]):
                gap = checked.base + header.ofs_heap + expected
                checked.report.add("index.heap_zero", checked.section, "heap", gap, f"Before heap byte {offset}.")
            expected = offset + length if length else expected
    if end and expected != len(heap):
        checked.header_fault("index.heap_order", "len_heap", f"The last reference ends at {expected} of {len(heap)}.")
    return expected


def _check_names(checked: CheckedTable) -> None:
    table = checked.table
    if table is None:
        return
    if checked.rows:
        checked.report.check("index.sorted", "index.utf8")
    ref = checked.rows[0].REFS[0][0] if checked.rows else ""
    previous: bytes | None = None
    for index, row in enumerate(checked.rows):
        offset, length = getattr(row, f"{ref}_offset"), getattr(row, f"{ref}_length")
        inside = offset <= checked.header.len_heap and length <= checked.header.len_heap - offset
        name = bytes(table.bytes_of(row, ref)) if inside else b""
        checked.names.append(name)
        if not inside:
            continue
        if previous is not None and name <= previous:
            message = f"{name[:80]!r} stands after {previous[:80]!r}."
            checked.fault("index.sorted", index, f"{ref}_offset", message)
        previous = name
        try:
            name.decode("utf-8")
        except UnicodeDecodeError as error:
            checked.fault("index.utf8", index, f"{ref}_offset", f"{name[:80]!r}: {error.reason}.")
