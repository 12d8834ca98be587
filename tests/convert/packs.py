"""A finished pack, taken apart with `struct` and FORMAT.md alone: shares no code with the readers under test."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from gguf_maker import Tensor, write_gguf

from gpack.convert.gguf import convert_gguf
from gpack.errors import GpackError

ORACLE = Path(os.environ.get("GPACK_ORACLE", Path(__file__).parents[2].parent / "shared" / "oracle"))
# Section kinds, as the mission numbers them.
METADATA, TENSORS, DENSE_INDEX, DENSE, NATIVE_INDEX, NATIVE = range(6)
EMBED, HEAD, PLE, EXPERT_LAYOUT, EXPERTS, TOKENIZER, ASSETS, MTP, MANIFEST = range(6, 15)
GATE, UP, DOWN, GATE_UP = 1, 2, 3, 4


class Entry(NamedTuple):
    """A row of the section directory."""

    kind: int
    offset: int
    size: int
    alignment: int
    item_count: int


class Row(NamedTuple):
    """A row of TensorIndexBin."""

    name: str
    ggml_type: int
    dims: tuple[int, ...]
    home: int
    role: int
    home_row: int
    flags: int
    offset: int
    size: int
    position: int


class KeyRow(NamedTuple):
    """A row of MetadataKvBin with its value's bytes."""

    key: str
    value: bytes
    value_type: int
    element_type: int
    elements: int
    position: int
    flags: int


class Parts:
    """The sections of a pack."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        magic, self.version, self.min_reader, self.flags, count, table, at, size, total = struct.unpack_from(
            "<IHHIIQQQQ", self.data
        )
        assert magic == 0x4B435047
        assert total == len(self.data)
        self.entries: dict[int, Entry] = {}
        for index in range(count):
            kind, _, offset, length, alignment, _, items = struct.unpack_from("<IIQQIIQ", self.data, table + 96 * index)
            self.entries[kind] = Entry(kind, offset, length, alignment, items)
        self.manifest = json.loads(self.data[at : at + size])

    def section(self, kind: int) -> bytes:
        entry = self.entries[kind]
        return self.data[entry.offset : entry.offset + entry.size]

    def table(self, kind: int, row_format: str) -> list[tuple[bytes, tuple[Any, ...]]]:
        """Rows of an index section: the bytes of the first reference, and all fields."""
        data = self.section(kind)
        _, _, row_size, rows, _, ofs_rows, ofs_heap, _ = struct.unpack_from("<IHHIIQQQ", data)
        assert struct.calcsize(row_format) == row_size
        made = []
        for index in range(rows):
            fields = struct.unpack_from(row_format, data, ofs_rows + index * row_size)
            made.append((data[ofs_heap + fields[0] : ofs_heap + fields[0] + fields[1]], fields))
        return made

    def tensors(self) -> dict[str, Row]:
        """TensorIndexBin, in the order of its rows."""
        made = {}
        for name, f in self.table(TENSORS, "<IIII8QIIIIQQII"):
            home, role, home_row, flags, offset, size, position, _ = f[12:]
            assert f[4 + f[3] : 12] == (1,) * (8 - f[3])
            row = Row(name.decode(), f[2], f[4 : 4 + f[3]], home, role, home_row, flags, offset, size, position)
            made[row.name] = row
        return made

    def keys(self) -> dict[str, KeyRow]:
        """MetadataKvBin, in the order of its rows."""
        data, made = self.section(METADATA), {}
        heap = struct.unpack_from("<Q", data, 24)[0]
        for key, f in self.table(METADATA, "<IIIIIIQII"):
            value = data[heap + f[2] : heap + f[2] + f[3]]
            made[key.decode()] = KeyRow(key.decode(), value, *f[4:9])
        return made

    def bytes_of(self, row: Row, stride: int = 0) -> bytes:
        """A tensor's bytes at the place that TensorIndexBin says; experts are `stride` apart."""
        data = self.section(row.home)
        if not row.role:
            return data[row.offset : row.offset + row.size]
        length = row.size // row.dims[2]
        starts = [row.offset + expert * stride for expert in range(row.dims[2])]
        return b"".join(data[start : start + length] for start in starts)


def convert(tmp_path: Path, metadata: Any, tensors: Sequence[Tensor] = (), **options: Any) -> Parts:
    """Writes the GGUF, converts it, and takes the pack apart."""
    name = options.pop("name", None)
    source = write_gguf(tmp_path / "m.gguf", metadata, tensors, **options)
    convert_gguf(source, tmp_path / "m.gpack", name=name)
    return Parts(tmp_path / "m.gpack")


def blocks(seed: int, count: int, size: int) -> bytes:
    """`count` blocks of distinguishable bytes."""
    return bytes((seed * 31 + index * 7 + index // 251) % 256 for index in range(count * size))


def refused(source: Path, output: Path, kind: type[GpackError], code: str, *words: str, **options: Any) -> GpackError:
    """The conversion fails with this class and code, and leaves the folder as it was."""
    before = sorted(output.parent.iterdir())
    with pytest.raises(GpackError) as caught:
        convert_gguf(source, output, **options)
    assert type(caught.value) is kind
    assert caught.value.code == code
    for word in words:
        assert word in str(caught.value)
    assert sorted(output.parent.iterdir()) == before
    return caught.value
