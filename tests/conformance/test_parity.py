"""Four parsers of one schema: struct records, numpy dtypes, construct and Kaitai give the same values of every vector.

And two writers: what construct builds of the parsed values are the bytes that gpack's writer wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import construct
import kaitaistruct
import numpy as np
import pytest
from kaitai_compiler import gpack_parser

from codegen.model import snake
from gpack.conformance import Vector, dump, vectors
from gpack.generated import constructs, dtypes
from gpack.generated.constants import SECTION_NAMES
from gpack.generated.layout import COLUMNS
from gpack.generated.sections import SECTIONS
from gpack.generated.structs import GPackHeaderV1, GPackSectionEntryV1, Record

ALL = [vector for vector in vectors.load() if not vector.large]
Values = dict[str, Any]


class Table:
    """A section that begins with a header record, cut out of a vector, with the places of its rows."""

    def __init__(self, kind: int, data: bytes) -> None:
        self.kind, self.data = kind, data
        body = SECTIONS[kind]
        assert body.header is not None
        self.header: Any = body.header.decode(data)
        self.rows: dict[str, list[Record]] = {}
        self.sound = True
        for table in body.tables:
            start, count, stride = (
                getattr(self.header, name) for name in (table.offset_field, table.count_field, table.stride_field)
            )
            fits = stride >= table.record.SIZE and start + count * stride <= len(data)
            places = [start + index * stride for index in range(count)] if fits else []
            self.rows[table.id] = [table.record.decode(data, place) for place in places]
            self.sound = self.sound and fits

    @property
    def end(self) -> int:
        """Where the heap ends."""
        return int(self.header.ofs_heap + self.header.len_heap)


def sections(data: bytes) -> Iterator[tuple[GPackSectionEntryV1, bytes]]:
    """Directory entries that lie in the file, and the sections' bytes; nothing is assumed to be right."""
    if len(data) < GPackHeaderV1.SIZE:
        return
    header = GPackHeaderV1.decode(data)
    for index in range(header.section_count):
        at = header.section_table_offset + index * GPackSectionEntryV1.SIZE
        if at + GPackSectionEntryV1.SIZE > len(data):
            return
        entry = GPackSectionEntryV1.decode(data, at)
        if entry.offset + entry.size <= len(data):
            yield entry, data[entry.offset : entry.offset + entry.size]


@cache
def records() -> list[tuple[str, bytes]]:
    """Every different record that stands in a vector: its struct's name and its bytes."""
    found: dict[tuple[str, bytes], None] = {}
    for vector in ALL:
        data = vector.data()
        if len(data) >= GPackHeaderV1.SIZE:
            found["GPackHeaderV1", data[:64]] = None
            found["GPackFooterV1", data[-64:]] = None
        for entry, _ in sections(data):
            found["GPackSectionEntryV1", entry.encode()] = None
    for table in tables():
        for record in (table.header, *(row for rows in table.rows.values() for row in rows)):
            found[type(record).__name__, record.encode()] = None
    return list(found)


@cache
def tables() -> list[Table]:
    """Every different section with a header record, of all vectors."""
    found: dict[tuple[int, bytes], None] = {}
    for vector in ALL:
        for entry, data in sections(vector.data()):
            body = SECTIONS.get(entry.kind)
            if body is not None and body.header is not None and len(data) >= body.header.SIZE:
                found[entry.kind, data] = None
    return [Table(kind, data) for kind, data in found]


def by_struct(name: str, data: bytes) -> Values:
    from gpack.generated import structs

    record: type[Record] = getattr(structs, name)
    return record.decode(data).to_dict()


def by_numpy(name: str, data: bytes) -> Values:
    dtype = getattr(dtypes, snake(name).upper())
    (row,) = np.frombuffer(data, dtype)
    # numpy drops the NULs after text and raw bytes are void.
    return {
        column.name: row[column.name].tobytes().ljust(column.size, b"\0")
        if column.type.startswith(("bytes", "ascii"))
        else tuple(row[column.name].tolist())
        if "[" in column.type
        else row[column.name].item()
        for column in COLUMNS[name]
    }


def plain(value: Any) -> Any:
    """What construct and Kaitai give, as `struct` has it."""
    if isinstance(value, construct.EnumIntegerString):
        return int(value)
    if isinstance(value, list):
        return tuple(map(plain, value))
    return getattr(value, "as_int", value)


def by_construct(name: str, data: bytes) -> Values | None:
    try:
        parsed = getattr(constructs, name).parse(data)
    except construct.ConstError:  # another magic; construct reads no further
        return None
    except construct.StringError:  # a name that is not ASCII
        return None
    return {
        column.name: parsed[column.name].encode().ljust(column.size, b"\0")
        if column.type.startswith("ascii")
        else plain(parsed[column.name])
        for column in COLUMNS[name]
    }


# ---------------------------------------------------------------- values


def test_struct_and_numpy() -> None:
    assert len(records()) > 500
    for name, data in records():
        assert by_struct(name, data) == by_numpy(name, data), name


def test_struct_and_construct() -> None:
    refused = 0
    for name, data in records():
        parsed = by_construct(name, data)
        if parsed is None:
            refused += 1
            continue
        expected = by_struct(name, data)
        for column in COLUMNS[name]:
            if column.type.startswith("ascii"):  # construct ends a text at its first NUL
                text = expected[column.name].partition(b"\0")[0]
                assert parsed[column.name].partition(b"\0")[0] == text
            else:
                assert parsed[column.name] == expected[column.name], (name, column.name)
    assert refused < 25  # each kind of header has one with another magic


def test_tables_by_numpy_and_construct() -> None:
    """Whole tables: rows that are longer than version 1's too."""
    seen = 0
    for table in tables():
        body = SECTIONS[table.kind]
        if not table.sound or not body.tables or table.end > len(table.data):
            continue
        if len(table.data) > 1 << 20:  # one of a million rows, of which construct says no more in 20 seconds
            continue
        if table.header.magic != type(table.header).MAGIC or table.header.ofs_rows != type(table.header).SIZE:
            continue
        parsed = getattr(constructs, SECTION_NAMES[table.kind]).parse(table.data)
        for described in body.tables:
            start, stride = (getattr(table.header, name) for name in (described.offset_field, described.stride_field))
            dtype = dtypes.with_itemsize(getattr(dtypes, snake(described.record.__name__).upper()), stride)
            rows = table.rows[described.id]
            array = np.frombuffer(table.data, dtype, len(rows), start)
            assert len(parsed[described.id]) == len(rows)
            for column in COLUMNS[described.record.__name__]:
                if "[" in column.type:
                    continue
                expected = [getattr(row, column.name) for row in rows]
                assert array[column.name].tolist() == expected
                if table.header.ofs_heap == start + len(rows) * stride or described.id == "rows":
                    assert [plain(row[column.name]) for row in parsed[described.id]] == expected
        seen += 1
    assert seen > 100


# ---------------------------------------------------------------- writers


VALID = [vector for vector in ALL if vector.expect == "accept"]
# construct writes zeros where version 1 has no fields; these vectors have other bytes there.
WRITTEN = [vector for vector in VALID if not vector.id.startswith(("valid/longer-rows", "valid/longest-rows"))]


def rebuilt(layout: Any, data: bytes) -> bytes:
    made: bytes = layout.build(layout.parse(data))
    return made


@pytest.mark.parametrize("vector", WRITTEN, ids=lambda vector: vector.id)
def test_construct_builds_the_writers_bytes(vector: Vector) -> None:
    """Header, directory, footer, tables and tokenizer of the file, each parsed and built again by construct alone."""
    data = vector.data()
    header = GPackHeaderV1.decode(data)
    made = bytearray(data)
    made[:64] = rebuilt(constructs.GPackHeaderV1, data[:64])
    made[-64:] = rebuilt(constructs.GPackFooterV1, data[-64:])
    for index in range(header.section_count):
        at = header.section_table_offset + 96 * index
        made[at : at + 96] = rebuilt(constructs.GPackSectionEntryV1, data[at : at + 96])
    for entry, section in sections(data):
        body = SECTIONS.get(entry.kind)
        if body is None or body.header is None:
            continue
        if body.shape == "table":
            built = rebuilt(getattr(constructs, SECTION_NAMES[entry.kind]), section)
        elif body.shape == "sequence":
            built = rebuilt(getattr(constructs, body.header.__name__.replace("HeaderV1", "V1")), section)
            assert len(built) == len(section)
        else:
            built = rebuilt(getattr(constructs, body.header.__name__), section[: body.header.SIZE])
        made[entry.offset : entry.offset + len(built)] = built
    assert bytes(made) == data


def from_dump(name: str, said: Values) -> Values:
    """A record's values for construct, from those of a dump; reserved fields are construct's own."""
    made: Values = {}
    for column in COLUMNS[name]:
        if column.name in said and not column.reserved:
            value = said[column.name]
            made[column.name] = bytes.fromhex(value) if column.type.startswith("bytes") else number(value)
    return made


def number(value: Any) -> Any:
    if isinstance(value, list):
        return [number(item) for item in value]
    return int(value) if isinstance(value, str) and value.isdigit() else value


def table_from_dump(section: Values, kind: int) -> bytes:
    """Header, rows and heap; the heap is laid out by the format's rule: in row order, values at multiples of 8."""
    body = SECTIONS[kind]
    assert body.header is not None
    heap = bytearray()
    parts = {}
    for table in body.tables:
        rows = []
        for said in section[table.id]:
            row = from_dump(table.record.__name__, said)
            for ref, alignment in table.record.REFS:
                data = bytes.fromhex(said[ref]["hex"])
                heap += bytes(-len(heap) % alignment) if data else b""
                row |= {f"{ref}_offset": len(heap) if data else 0, f"{ref}_length": len(data)}
                heap += data
            rows.append(row)
        parts[table.id] = rows
    header = from_dump(body.header.__name__, section["header"])
    made: bytes = getattr(constructs, SECTION_NAMES[kind]).build({"header": header, **parts, "heap": bytes(heap)})
    return made


@pytest.mark.parametrize("vector", WRITTEN, ids=lambda vector: vector.id)
def test_construct_writes_the_file_that_a_dump_describes(vector: Vector, tmp_path: Path) -> None:
    """All records of the file, made by construct from the values of the dump; only payloads are copied."""
    path = vector.write(tmp_path)
    data, said = path.read_bytes(), dump(path)
    made = bytearray(len(data))
    for index, section in enumerate(said["sections"]):
        entry = section["entry"]
        start, size, kind = int(entry["offset"]), int(entry["size"]), entry["kind"]
        built = table_from_dump(section, kind) if "rows" in section else b""
        made[start : start + size] = built + data[start + len(built) : start + size]
        at = int(said["header"]["section_table_offset"]) + 96 * index
        made[at : at + 96] = constructs.GPackSectionEntryV1.build(from_dump("GPackSectionEntryV1", entry))
    made[:64] = constructs.GPackHeaderV1.build(from_dump("GPackHeaderV1", said["header"]))
    made[-64:] = constructs.GPackFooterV1.build(from_dump("GPackFooterV1", said["footer"]))
    assert bytes(made) == data


# ---------------------------------------------------------------- Kaitai


@pytest.fixture(scope="module")
def kaitai() -> ModuleType:
    return gpack_parser()


@pytest.fixture(scope="module")
def read(kaitai: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Vector], Values]:
    """A vector as Kaitai reads it, in the form of `dump`."""
    return lambda vector: kaitai_dump(kaitai, vector.data())


def kaitai_record(item: Any, name: str) -> Values:
    made: Values = {}
    for column in COLUMNS[name]:
        if not column.reserved:
            made[column.name] = shown(column.type, plain(getattr(item, column.name)))
    return made


def shown(kind: str, value: Any) -> Any:
    if kind.startswith("bytes"):
        return value.hex()
    if kind.startswith("ascii"):
        return value
    if isinstance(value, tuple):
        return [shown(kind.partition("[")[0], item) for item in value]
    return str(value) if kind in ("u64", "i64") else value


def kaitai_row(row: Any, name: str, refs: tuple[tuple[str, int], ...]) -> Values:
    made = kaitai_record(row, name)
    for ref, _ in refs:
        del made[f"{ref}_offset"], made[f"{ref}_length"]
        value = getattr(row, ref)
        made[ref] = {"hex": (value.encode() if isinstance(value, str) else value).hex()}
    return made


def kaitai_dump(kaitai: ModuleType, data: bytes) -> Values:
    file = kaitai.Gpack.from_bytes(data)
    made: Values = {"header": kaitai_record(file.header, "GPackHeaderV1"), "sections": []}
    made["footer"] = kaitai_record(file.footer, "GPackFooterV1")
    if file.header.total_file_size != len(data):
        raise kaitaistruct.KaitaiStructError("the file has another size", "/header")
    for entry in file.sections:
        section: Values = {"entry": kaitai_record(entry, "GPackSectionEntryV1")}
        made["sections"].append(section)
        body = SECTIONS.get(entry.kind)
        if body is None or body.header is None:
            continue
        if body.shape == "single":
            section["header"] = kaitai_record(entry.body, body.header.__name__)
            continue
        section["header"] = kaitai_record(entry.body.header, body.header.__name__)
        for table in body.tables:
            rows = getattr(entry.body, table.id)
            section[table.id] = [kaitai_row(row, table.record.__name__, table.record.REFS) for row in rows]
    return made


@pytest.mark.parametrize("vector", VALID, ids=lambda vector: vector.id)
def test_kaitai_reads_what_gpack_reads(vector: Vector, read: Callable[[Vector], Values], tmp_path: Path) -> None:
    assert read(vector) == dump(vector.write(tmp_path))


@pytest.mark.parametrize(
    "vector", [v for v in ALL if v.expect == "reject" and v.level == "structure"], ids=lambda vector: vector.id
)
def test_kaitai_rejects_what_its_grammar_can_see(vector: Vector, read: Callable[[Vector], Values]) -> None:
    with pytest.raises((kaitaistruct.KaitaiStructError, EOFError, ValueError)):
        read(vector)
