"""The one shape of all index sections: header, fixed-size rows sorted by name, one heap of bytes.

A lookup is a binary search in the mapped bytes; opening a model parses nothing. Standard library only.
"""

from __future__ import annotations

from ..errors import BoundsError, FormatError
from ..generated.constants import MAX_HEAP
from ..generated.sections import SECTIONS
from ..generated.structs import Record

_WORD = 4  # bytes of a reference's offset, and of its length

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any, Generic, TypeVar

    H = TypeVar("H", bound=Any)
    R = TypeVar("R", bound=Record)
else:  # importing typing takes longer than opening a file

    class Generic:
        """Stands for typing's when the program runs."""

        def __class_getitem__(cls, _):
            return cls

    H = R = None


class Table(Generic[H, R]):
    """A read-only view of an index section.

    Attributes:
        data: The section's bytes.
        header: Its header.
        row_class: The record of a row.
    """

    def __init__(self, kind: int, data: memoryview | bytes) -> None:
        """Decodes the header; rows are decoded when they are asked for.

        Args:
            kind: Kind of the section, one that is a table.

        Raises:
            FormatError: The header is not that of this section, or its rows or heap do not lie inside it.
        """
        known = SECTIONS[kind]
        header_class: Any = known.header
        row_class: Any = known.tables[0].record
        self.data = memoryview(data)
        self.section = known.name
        self.row_class: type[R] = row_class
        self._checked = False
        if len(self.data) < header_class.SIZE:
            raise BoundsError("the section is shorter than its header", code="index.header", section=self.section)
        self.header: H = header_class.decode(self.data)
        self._check_header(header_class.MAGIC)

    def _check_header(self, magic: int) -> None:
        header, size = self.header, len(self.data)
        if header.magic != magic:
            raise FormatError(
                f"the magic is 0x{header.magic:08x}, not 0x{magic:08x}", code="index.magic", section=self.section
            )
        if header.row_size < self.row_class.SIZE:
            raise FormatError(f"rows have {header.row_size} bytes", code="index.row_size", section=self.section)
        rows_end = header.ofs_rows + header.num_rows * header.row_size
        if rows_end > size or header.ofs_heap > size or header.len_heap > size - header.ofs_heap:
            raise BoundsError("rows or heap leave the section", code="index.heap_bounds", section=self.section)

    def __len__(self) -> int:
        return int(self.header.num_rows)

    def row(self, index: int) -> R:
        """The row of that number.

        Raises:
            IndexError: There is no such row.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"{self.section} has {len(self)} rows, there is no row {index}")
        return self.row_class.decode(self.data, self.header.ofs_rows + index * self.header.row_size)

    def __iter__(self) -> Iterator[R]:
        """The rows.

        Raises:
            FormatError: As `check_rows`.
        """
        self.check_rows()
        return (self.row(index) for index in range(len(self)))

    def check_rows(self) -> None:
        """Makes sure that whoever goes through the rows finds what a search finds, and gets no more than the heap.

        Checked once, when the table is first gone through or a name is not found; a search that finds has no need.

        Raises:
            FormatError: References share bytes of the heap (`index.heap_order`), or the rows are not sorted by name
                (`index.sorted`).
            BoundsError: A name leaves the heap.
        """
        if self._checked or not self.row_class.REFS:
            return
        header = self.header
        total = bytes_referred(self.data, header.ofs_rows, len(self), header.row_size, self.row_class)
        if total > header.len_heap:
            self._refuse_sharing(total)
        ref, previous = self.row_class.REFS[0][0], None
        for index in range(len(self)):
            name = bytes(self.bytes_of(self.row(index), ref))
            if previous is not None and name <= previous:
                raise FormatError(
                    f"{name[:80]!r} stands after {previous[:80]!r}",
                    code="index.sorted",
                    section=self.section,
                    field=f"rows[{index}]",
                )
            previous = name
        self._checked = True

    def _refuse_sharing(self, total: int) -> None:
        for index in range(len(self)):
            row = self.row(index)
            for ref, _ in row.REFS:
                self.bytes_of(row, ref)  # nothing is copied; one that leaves the heap is the better thing to tell
        raise FormatError(
            f"references have {total} bytes together, the heap has {self.header.len_heap}: they share some",
            code="index.heap_order",
            section=self.section,
        )

    def bytes_of(self, row: R, ref: str) -> memoryview:
        """The heap bytes that a row's reference points to.

        Raises:
            BoundsError: The reference leaves the heap.
        """
        offset, length = getattr(row, f"{ref}_offset"), getattr(row, f"{ref}_length")
        if offset > self.header.len_heap or length > self.header.len_heap - offset:
            raise BoundsError(
                f"bytes {offset} to {offset + length} leave the heap",
                code="index.heap_ref",
                section=self.section,
                field=ref,
            )
        start = self.header.ofs_heap + offset
        return self.data[start : start + length]

    def text(self, row: R, ref: str) -> str:
        """The same as text.

        Raises:
            FormatError: The bytes are not UTF-8.
        """
        try:
            return bytes(self.bytes_of(row, ref)).decode("utf-8")
        except UnicodeDecodeError as error:
            raise FormatError(f"no UTF-8: {error}", code="index.utf8", section=self.section, field=ref) from error

    def find(self, name: bytes, *, ref: str = "name") -> int | None:
        """Number of the row of that name, by binary search; None where there is none.

        Raises:
            FormatError: It was not found, and the rows are not sorted, so that this says nothing: as `check_rows`.
        """
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            found = bytes(self.bytes_of(self.row(middle), ref))
            if found == name:
                return middle
            if found < name:
                low = middle + 1
            else:
                high = middle
        self.check_rows()
        return None


def bytes_referred(data: memoryview, ofs_rows: int, count: int, row_size: int, row_class: type[Record]) -> int:
    """Bytes of all references of rows together, without decoding a row.

    Raises:
        FormatError: `index.row_size`: rows are not whole words.
    """
    words_per_row, odd = divmod(row_size, _WORD)
    if odd:
        raise FormatError(f"rows have {row_size} bytes", code="index.row_size")
    words = data[ofs_rows : ofs_rows + count * row_size].cast("I")
    places = (row_class.OFFSETS[f"{ref}_length"] // _WORD for ref, _ in row_class.REFS)
    return sum(sum(words[place::words_per_row]) for place in places)


def build_table(
    header: Any, rows: Sequence[tuple[Record, Sequence[bytes | memoryview]]], *, between: bytes = b""
) -> bytes:
    """An index section: header, rows, another table (`between`), heap.

    Args:
        header: The header record; the fields that all headers share are filled in.
        rows: Each row, in the section's order, and the bytes of its references in the order of its fields.
        between: Rows of a second table, whose own references were placed with `Heap`.

    Raises:
        FormatError: The heap is over 4 GiB.
    """
    heap = Heap()
    return finish_table(header, [heap.place(row, values) for row, values in rows], heap, between=between)


class Heap:
    """The bytes that rows point to: in row order, nothing shared, values aligned as the schema says."""

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = []
        self.size = 0

    def place(self, row: R, values: Sequence[bytes | memoryview]) -> R:
        """Appends the bytes of a row's references and makes the row point to them."""
        for (ref, alignment), value in zip(row.REFS, values, strict=True):
            setattr(row, f"{ref}_length", len(value))
            setattr(row, f"{ref}_offset", self._append(value, alignment) if len(value) else 0)
        return row

    def _append(self, value: bytes | memoryview, alignment: int) -> int:
        gap = -self.size % alignment
        if gap:
            self._parts.append(bytes(gap))
        offset = self.size + gap
        self._parts.append(value)
        self.size = offset + len(value)
        if self.size > MAX_HEAP:
            raise FormatError(f"the heap has {self.size} bytes, over 4 GiB", code="index.heap_bounds")
        return offset

    def parts(self) -> Iterable[bytes | memoryview]:
        """The bytes, in order."""
        return self._parts


def finish_table(header: Any, rows: Sequence[Record], heap: Heap, *, between: bytes = b"") -> bytes:
    """Header, rows, second table and heap as one run of bytes; `header.row_size` says the size of a row."""
    header.version = 1
    header.num_rows = len(rows)
    header.ofs_rows = header.SIZE
    header.ofs_heap = header.SIZE + len(rows) * header.row_size + len(between)
    header.len_heap = heap.size
    return b"".join([header.encode(), *(row.encode() for row in rows), between, *heap.parts()])
