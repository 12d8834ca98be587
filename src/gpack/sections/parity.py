"""Parity: an erasure code over the chunks of all other sections, from which damaged ones are worked out.

Blocks are made by ISA-L through the package pyeclib, which is fast; lost ones are worked out here, which happens to a
few blocks and needs no package. Both follow the schema: `ParityCode.CAUCHY`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..container.payload import Payload
from ..container.streaming import read_into
from ..errors import BoundsError, FormatError, UnsupportedError, UsageError, install
from ..generated.constants import CACHE_LINE, MIN_CHUNK_LOG2, ParityCode, SectionKind
from ..generated.rules import align_up, check_parity_header_v1
from ..generated.structs import GPackSectionEntryV1, ParityHeaderV1, parity_v1_size
from .chunks import Chunks, covered

SECTION = "Parity"
MAX_PERCENT = 100
_LIBRARY_BLOCKS = 32  # most blocks of a stripe that pyeclib makes
_SLICE = 1 << 16  # bytes of every block of a stripe that are worked on at a time
_POLYNOMIAL = 0x11D
_FIELD = 256

Bytes = npt.NDArray[np.uint8]
Read = Callable[[int, int, int], bytes | None]  # block of a stripe, first byte in it, how many


@dataclass(frozen=True)
class Shape:
    """How many blocks there are.

    Attributes:
        data, parity: Blocks of a stripe.
        stripes: Stripes.
        block: Bytes of a block.
    """

    data: int
    parity: int
    stripes: int
    block: int

    @classmethod
    def plan(cls, chunks: Chunks, percent: int) -> Shape:
        """As many parity blocks as are asked for, or more, spread over stripes that the library can make.

        Raises:
            UsageError: The percentage makes no sense.
        """
        if not 1 <= percent <= MAX_PERCENT:
            raise UsageError(f"{percent} percent of parity: 1 to {MAX_PERCENT} make sense", code="usage")
        parity = max(_LIBRARY_BLOCKS * percent // (MAX_PERCENT + percent), 1)
        data = min(parity * MAX_PERCENT // percent, _LIBRARY_BLOCKS - parity)
        if len(chunks) < data:  # a small file: one stripe
            data = max(len(chunks), 1)
            parity = min(-(-data * percent // MAX_PERCENT), parity)
        longest = max((min(entry.size, chunks.size) for entry in chunks.entries), default=0)
        return cls(data, parity, -(-len(chunks) // data), align_up(longest, CACHE_LINE))

    def header(self, n_chunks: int) -> ParityHeaderV1:
        """The section's header."""
        return ParityHeaderV1(
            code=ParityCode.CAUCHY,
            num_data=self.data,
            num_parity=self.parity,
            num_stripes=self.stripes,
            num_chunks=n_chunks,
            block_size=self.block,
            parity_bytes=self.stripes * self.parity * self.block,
        )


class ParityBuilder:
    """Makes the section of the sections that were written before it."""

    kind = SectionKind.PARITY

    def __init__(self, percent: int) -> None:
        """Chunks have 1 MiB.

        Raises:
            UsageError: The percentage makes no sense.
            UnsupportedError: `parity.library`: the package pyeclib is not installed.
        """
        _library(1, 1)
        Shape.plan(Chunks((), 1), percent)
        self._percent = percent

    def plan(self, entries: Sequence[GPackSectionEntryV1]) -> tuple[int, int]:
        """Bytes and items of the section, from the sizes of all others."""
        shape, chunks = self._shape(entries)
        return parity_v1_size(shape.header(len(chunks))), shape.stripes * shape.parity

    def watch(self, _entry: GPackSectionEntryV1, _data: memoryview) -> None:
        """What it needs it reads again: neighbours lie in different stripes."""

    def payload(self, descriptor: int, path: object, entries: Sequence[GPackSectionEntryV1]) -> Payload:
        """The section, when all others are written."""
        shape, chunks = self._shape(entries)
        return _Blocks(shape, chunks, descriptor, path)

    def _shape(self, entries: Sequence[GPackSectionEntryV1]) -> tuple[Shape, Chunks]:
        chunks = Chunks(covered(entries), 1 << MIN_CHUNK_LOG2)
        return Shape.plan(chunks, self._percent), chunks


@dataclass(frozen=True)
class _Blocks:
    """The section's bytes, a stripe at a time."""

    shape: Shape
    chunks: Chunks
    descriptor: int
    path: object

    @property
    def size(self) -> int:
        """Bytes."""
        return parity_v1_size(self.shape.header(len(self.chunks)))

    def segments(self) -> Iterator[bytes | memoryview]:
        """Header, then the parity blocks of each stripe."""
        yield self.shape.header(len(self.chunks)).encode()
        for stripe in range(self.shape.stripes):
            yield from self._stripe(stripe)

    def _stripe(self, stripe: int) -> list[memoryview]:
        shape = self.shape
        made = [memoryview(bytearray(shape.block)) for _ in range(shape.parity)]
        encode = _library(shape.data, shape.parity)
        for start in range(0, shape.block, _SLICE):
            length = min(_SLICE, shape.block - start)
            data = memoryview(bytearray(shape.data * length))
            for block in range(shape.data):
                number = block * shape.stripes + stripe
                if number < len(self.chunks):
                    chunk = self.chunks[number]
                    count = max(min(length, chunk.length - start), 0)
                    view = data[block * length : block * length + count]
                    read_into(self.descriptor, chunk.offset + start, view, self.path)
            for view, part in zip(made, encode(bytes(data), length), strict=True):
                view[start : start + length] = part
        return made


@cache
def _library(data: int, parity: int) -> Callable[[bytes, int], list[bytes]]:
    """What makes the parity of data blocks that follow each other.

    Raises:
        UnsupportedError: `parity.library`: it is not installed, or lacks ISA-L.
    """
    missing = UnsupportedError(
        "making parity needs the package pyeclib with ISA-L, which is not installed",
        code="parity.library",
        section=SECTION,
        hint=install("parity"),
    )
    try:
        from pyeclib.ec_iface import ECDriver, ECDriverError
    except ImportError as error:
        raise missing from error
    try:
        driver: Any = ECDriver(k=data, m=parity, ec_type="isa_l_rs_cauchy", chksum_type="none")
    except ECDriverError as error:
        raise missing from error

    def encode(blocks: bytes, length: int) -> list[bytes]:
        # Each comes with a header of the library's own before it.
        return [made[len(made) - length :] for made in driver.encode(blocks)[data:]]

    return encode


# ---------------------------------------------------------------- working blocks out


@cache
def _tables() -> tuple[Bytes, Bytes]:
    """Products of all pairs of elements of GF(2^8), and inverses."""
    logs, powers = [0] * _FIELD, [0] * (2 * _FIELD)
    value = 1
    for power in range(_FIELD - 1):
        powers[power] = powers[power + _FIELD - 1] = value
        logs[value] = power
        value = value << 1 ^ (_POLYNOMIAL if value & _FIELD >> 1 else 0)
    products = np.zeros((_FIELD, _FIELD), np.uint8)
    for left in range(1, _FIELD):
        products[left, 1:] = [powers[logs[left] + logs[right]] for right in range(1, _FIELD)]
    inverses = np.zeros(_FIELD, np.uint8)
    inverses[1:] = [powers[_FIELD - 1 - logs[value]] for value in range(1, _FIELD)]
    return products, inverses


def coefficient(data: int, row: int, column: int) -> int:
    """What data block `column` is multiplied with in parity block `row`, of stripes of so many data blocks."""
    return int(_tables()[1][(data + row) ^ column])


def combine(factors: Sequence[int], blocks: Sequence[Bytes]) -> Bytes:
    """The sum of blocks, each multiplied with its factor."""
    products, _ = _tables()
    made = np.zeros_like(blocks[0])
    for factor, block in zip(factors, blocks, strict=True):
        made ^= products[factor][block]
    return made


def recover(shape: Shape, lost: Collection[int], read: Read, length: int, start: int = 0) -> Mapping[int, Bytes]:
    """Works out bytes of blocks of a stripe.

    Args:
        lost: Numbers of blocks: data from 0, then parity.
        read: Gives bytes of any other block; None where it is lost as well.
        length, start: Which bytes of every block.

    Returns:
        Those bytes of the lost blocks.

    Raises:
        FormatError: `repair.parity`: too many blocks are lost.
    """
    missing = {block for block in lost if block < shape.data}
    held: dict[int, Bytes] = {}
    for block in range(shape.data):
        got = None if block in missing else read(block, start, length)
        if got is None:
            missing.add(block)
        else:
            held[block] = np.frombuffer(got, np.uint8)
    rows: list[int] = []
    sums: list[Bytes] = []
    for row in range(shape.parity):
        if len(rows) == len(missing):
            break
        got = None if shape.data + row in lost else read(shape.data + row, start, length)
        if got is None:
            continue
        known = [np.frombuffer(got, np.uint8), *held.values()]
        factors = [1, *(coefficient(shape.data, row, column) for column in held)]
        rows.append(row)
        sums.append(combine(factors, known))
    if len(rows) < len(missing):
        raise FormatError(
            f"{len(missing)} blocks of a stripe are damaged, and {len(rows)} of parity are left",
            code="repair.parity",
            section=SECTION,
            hint="another copy of the pack is needed",
        )
    columns = sorted(missing)
    inverse = _invert([[coefficient(shape.data, row, column) for column in columns] for row in rows])
    for column, factors in zip(columns, inverse, strict=True):
        held[column] = combine(factors, sums)
    whole = [held[column] for column in range(shape.data)]
    for block in lost:
        if block >= shape.data:
            row = block - shape.data
            held[block] = combine([coefficient(shape.data, row, column) for column in range(shape.data)], whole)
    return {block: held[block] for block in lost}


def _invert(matrix: list[list[int]]) -> list[list[int]]:
    """The inverse of a square matrix over GF(2^8) by elimination; every part of a Cauchy matrix has one."""
    products, inverses = _tables()
    size = len(matrix)
    rows = [np.array([*row, *(int(i == j) for j in range(size))], np.uint8) for i, row in enumerate(matrix)]
    for column in range(size):
        pivot = next(index for index in range(column, size) if rows[index][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = products[inverses[rows[column][column]]][rows[column]]
        for index in range(size):
            if index != column and rows[index][column]:
                rows[index] = rows[index] ^ products[rows[index][column]][rows[column]]
    return [[int(value) for value in row[size:]] for row in rows]


def read_header(data: memoryview | bytes, section_size: int) -> ParityHeaderV1:
    """The header of the section.

    Raises:
        BoundsError, FormatError: It breaks a rule.
    """
    if len(data) < ParityHeaderV1.SIZE:
        raise BoundsError(f"the section has {len(data)} bytes", code="parity.header", section=SECTION)
    header = ParityHeaderV1.decode(data)
    for rule, field in check_parity_header_v1(header, section_size=section_size):
        if rule != "field.reserved":
            raise FormatError(f"{field} is {getattr(header, field)}", code=rule, section=SECTION, field=field)
    return header
