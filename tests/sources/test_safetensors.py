"""safetensors headers: what the format's own writer writes, and every fault with its own code and words."""

from __future__ import annotations

import json
import os
import random
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_maker import f32, write_by_hand, write_safetensors

from gpack.container.payload import read_part
from gpack.errors import BoundsError, FormatError, GpackError, PathError, UnsupportedError
from gpack.generated.constants import GgmlType
from gpack.sources.files import SourceFile
from gpack.sources.safetensors import StoredTensor, read_header

HEAD = 8
# The writer's name of a type, the pack's, and bytes of an element.
TYPES = [
    ("float32", "F32", 4),
    ("float16", "F16", 2),
    ("bfloat16", "BF16", 2),
    ("float64", "F64", 8),
    ("int8", "I8", 1),
    ("uint8", "U8", 1),
    ("int16", "I16", 2),
    ("uint16", "U16", 2),
    ("int32", "I32", 4),
    ("uint32", "U32", 4),
    ("int64", "I64", 8),
    ("uint64", "U64", 8),
    ("bool", "BOOL", 1),
    ("float8_e4m3fn", "F8_E4M3", 1),
    ("float8_e5m2", "F8_E5M2", 1),
    ("float8_e8m0fnu", "F8_E8M0", 1),
    ("complex64", "C64", 8),
]


def read(path: Path) -> dict[str, StoredTensor]:
    with SourceFile(path) as file:
        return {tensor.name: tensor for tensor in read_header(file).tensors}


def refused(path: Path, kind: type[GpackError], code: str, *words: str) -> GpackError:
    """Reads the header, which must fail with this class and code, naming the path and the words."""
    with pytest.raises(GpackError) as caught:
        read(path)
    error = caught.value
    assert type(error) is kind
    assert error.code == code
    for word in (path.name, *words):
        assert word in str(error)
    return error


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def entry(begin: int = 0, end: int = 8, *, dtype: Any = "F32", shape: Any = (2,), **others: Any) -> dict[str, Any]:
    return {
        "dtype": dtype,
        "shape": list(shape) if isinstance(shape, tuple) else shape,
        "data_offsets": [begin, end],
        **others,
    }


# --- what is well ---


@pytest.mark.parametrize(("written", "name", "size"), TYPES)
def test_every_type_keeps_its_bytes(target: Path, written: str, name: str, size: int) -> None:
    data = bytes(range(48))
    write_safetensors(target, {"t": (written, (3, 16 // size), data), "u": ("float32", (), b"abcd")})
    with SourceFile(target) as file:
        tensors = {tensor.name: tensor for tensor in read_header(file).tensors}
        assert GgmlType.NAMES[tensors["t"].ggml_type] == name
        assert tensors["t"].shape == (3, 16 // size)
        assert bytes(read_part(tensors["t"].data, 0, 48)) == data
        assert (tensors["u"].shape, tensors["u"].byte_size) == ((), 4)


def test_empty_tensors_and_an_order_of_its_own(target: Path) -> None:
    header = {"b": entry(8, 16), "none": entry(8, 8, shape=(0, 5)), "a": entry(0, 8), "__metadata__": {"x": "y"}}
    tensors = read(write_by_hand(target, header, bytes(16)))
    assert list(tensors) == ["b", "none", "a"]
    assert tensors["b"].begin - tensors["a"].begin == 8


def test_a_link_is_judged_by_where_it_leads(target: Path, tmp_path: Path) -> None:
    stored = write_safetensors(tmp_path / "blob", {"t": f32(np.ones(4))})
    target.symlink_to(stored)
    assert list(read(target)) == ["t"]
    target.unlink()
    target.symlink_to("/dev/zero")
    refused(target, PathError, "io.not_a_file")


# --- faults ---


@pytest.mark.parametrize("size", [0, 1, 7])
def test_too_short_for_a_length(target: Path, size: int) -> None:
    target.write_bytes(bytes(size))
    refused(target, BoundsError, "safetensors.header_length", str(size))


@pytest.mark.parametrize("length", [23, 1 << 32, (1 << 64) - 1])
def test_a_header_longer_than_the_file(target: Path, length: int) -> None:
    write_by_hand(target, b"{}", bytes(20), length=length)
    refused(target, BoundsError, "safetensors.header_length", str(length), "only 22 follow")


def test_a_header_longer_than_the_format_allows(target: Path) -> None:
    with target.open("wb") as file:
        file.write(struct.pack("<Q", 100_000_001))
        file.truncate(HEAD + 100_000_001)
    refused(target, BoundsError, "safetensors.header_length", "100000001", "100000000")


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"{",
        b'{"a"',
        b"\xff{}",
        b"null",
        b'{"a": NaN}',
        b'{"a": 1' + b"0" * 5000 + b"}",
        b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    ],
)
def test_a_header_that_is_no_object(target: Path, header: bytes) -> None:
    refused(write_by_hand(target, header), FormatError, "safetensors.json", "header")


@pytest.mark.parametrize(
    "value", [1, None, [], {}, {"dtype": "F32", "shape": []}, {"dtype": "F32", "data_offsets": [0, 0]}]
)
def test_an_entry_that_is_none(target: Path, value: Any) -> None:
    refused(write_by_hand(target, {"t": value}), FormatError, "safetensors.json", "t: ")


@pytest.mark.parametrize("metadata", [None, 1, [], {"a": 1}, {"a": None}, {"format": "pt"}])
def test_metadata_is_given_as_it_is(target: Path, metadata: Any) -> None:
    """It is no part of the tensors, which are whole whatever it says."""
    with SourceFile(write_by_hand(target, {"__metadata__": metadata})) as file:
        header = read_header(file)
    assert header.metadata == metadata
    assert header.tensors == []


def test_a_doubled_name(target: Path) -> None:
    one = json.dumps(entry())
    header = f'{{"t": {one}, "t": {one}}}'.encode()
    refused(write_by_hand(target, header, bytes(8)), FormatError, "safetensors.tensor_name", "'t' stands twice")


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 65536])
def test_a_name_that_no_pack_can_hold(target: Path, name: str) -> None:
    refused(write_by_hand(target, {name: entry()}, bytes(8)), FormatError, "safetensors.tensor_name")


@pytest.mark.parametrize("dtype", ["F5", "F6_E1M4", "f32", "Q4_0", "", 7, None])
def test_an_unknown_type_is_named(target: Path, dtype: Any) -> None:
    error = refused(
        write_by_hand(target, {"odd": entry(dtype=dtype)}, bytes(8)), UnsupportedError, "safetensors.dtype", "'odd'"
    )
    assert repr(dtype) in error.message


@pytest.mark.parametrize("shape", ["2", 2, None, [-1], [2.0], ["2"], [True], [[2]], [1 << 50]])
def test_a_shape_that_is_none(target: Path, shape: Any) -> None:
    code = "safetensors.size" if shape == [1 << 50] else "safetensors.shape"
    refused(write_by_hand(target, {"t": entry(shape=shape)}, bytes(8)), FormatError, code, "t: ")


@pytest.mark.parametrize(("shape", "words"), [([-1, 2], "axis 0 of the shape is -1"), ([2, "x" * 500], "axis 1")])
def test_the_extent_that_is_no_size_is_named(target: Path, shape: Any, words: str) -> None:
    error = refused(write_by_hand(target, {"t": entry(shape=shape)}, bytes(8)), FormatError, "safetensors.shape", words)
    assert len(error.message) < 200


# --- values of less than a byte, and newer types ---


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [
        # 4 bits: 2 x 6 values are 6 bytes; 6 bits: 3 x 4 values are 9 bytes
        ("F4", (2, 6), 6),
        ("F4", (2,), 1),
        ("F6_E2M3", (3, 4), 9),
        ("F6_E3M2", (8,), 6),
        ("F4", (0, 3), 0),
        ("F8_E4M3FNUZ", (3, 3), 9),
        ("F8_E5M2FNUZ", (), 1),
        ("F8_E8M0", (5,), 5),
    ],
)
def test_small_floats_keep_their_bytes(target: Path, dtype: str, shape: tuple[int, ...], size: int) -> None:
    header = {"t": entry(0, size, dtype=dtype, shape=shape)}
    tensor = read(write_by_hand(target, header, bytes(range(size))))["t"]
    assert (GgmlType.NAMES[tensor.ggml_type], tensor.shape, tensor.byte_size) == (dtype, shape, size)
    assert tensor.ggml_type >= 0x10000


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [("F4", (2, 6), 5), ("F4", (3,), 1), ("F4", (3,), 2), ("F4", (), 1), ("F6_E2M3", (3,), 3)],
)
def test_small_floats_that_take_other_bytes(target: Path, dtype: str, shape: tuple[int, ...], size: int) -> None:
    header = {"t": entry(0, size, dtype=dtype, shape=shape)}
    refused(write_by_hand(target, header, bytes(size)), FormatError, "safetensors.size", dtype, f"span {size}")


def test_rows_that_end_inside_a_byte(target: Path) -> None:
    """The file has 6 values in 3 bytes, but a row is one byte and a half."""
    header = {"t": entry(0, 3, dtype="F4", shape=(2, 3))}
    refused(write_by_hand(target, header, bytes(3)), UnsupportedError, "safetensors.dtype", "a row of 3 values of F4")


def test_too_many_axes(target: Path) -> None:
    header = {"t": entry(shape=(1,) * 8 + (2,))}
    refused(write_by_hand(target, header, bytes(8)), FormatError, "safetensors.shape", "9 axes")


def test_products_do_not_wrap(target: Path) -> None:
    shape = (1 << 32, 1 << 32, 2)
    refused(write_by_hand(target, {"t": entry(shape=shape)}, bytes(8)), FormatError, "safetensors.size", str(1 << 67))


@pytest.mark.parametrize("offsets", [None, [], [0], [0, 8, 8], [0.0, 8], [-8, 8], ["0", "8"], {"0": 8}])
def test_offsets_that_are_no_pair(target: Path, offsets: Any) -> None:
    header = {"t": {"dtype": "F32", "shape": [2], "data_offsets": offsets}}
    refused(write_by_hand(target, header, bytes(8)), FormatError, "safetensors.offsets", "t: ")


def test_offsets_in_the_wrong_order(target: Path) -> None:
    refused(write_by_hand(target, {"t": entry(8, 0)}, bytes(8)), FormatError, "safetensors.offsets", "8", "0", "after")


def test_data_beyond_the_file(target: Path) -> None:
    refused(write_by_hand(target, {"t": entry(0, 8)}, bytes(7)), BoundsError, "safetensors.bounds", "8", "only 7")


@pytest.mark.parametrize(("dtype", "shape"), [("F16", (2,)), ("F32", (3,)), ("F64", (2,)), ("BOOL", ()), ("F32", (0,))])
def test_type_and_shape_take_other_bytes(target: Path, dtype: str, shape: tuple[int, ...]) -> None:
    header = {"t": entry(dtype=dtype, shape=shape)}
    refused(write_by_hand(target, header, bytes(8)), FormatError, "safetensors.size", dtype, "span 8")


@pytest.mark.parametrize("begin", [0, 4])
def test_overlap(target: Path, begin: int) -> None:
    header = {"a": entry(0, 8), "b": entry(begin, begin + 8)}
    refused(write_by_hand(target, header, bytes(8 + begin)), BoundsError, "safetensors.overlap", "inside", "'a'")


def test_holes(target: Path) -> None:
    for header, size, words in (
        ({"a": entry(4, 12)}, 12, ("4 bytes before it", "a ")),
        ({"a": entry(0, 8), "b": entry(12, 20)}, 20, ("4 bytes before it", "b ")),
        ({"a": entry(0, 8)}, 9, ("last 1 bytes",)),
        ({}, 3, ("last 3 bytes",)),
    ):
        refused(write_by_hand(target, header, bytes(size)), BoundsError, "safetensors.hole", *words)


def test_a_file_cut_at_any_byte_is_refused(target: Path) -> None:
    whole = write_safetensors(target, {"a": f32(np.ones(4)), "b": f32(np.ones((2, 2)))}).read_bytes()
    for size in range(len(whole)):
        target.write_bytes(whole[:size])
        with pytest.raises(FormatError):
            read(target)


def test_changed_bytes_never_crash_or_hang(target: Path) -> None:
    rng = random.Random(4)
    whole = write_safetensors(target, {f"t{n}": f32(np.ones((n, 2))) for n in range(6)}).read_bytes()
    head = HEAD + struct.unpack("<Q", whole[:HEAD])[0]
    started = time.process_time()
    for _ in range(2000):
        changed = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(head)] = rng.randrange(256)
        target.write_bytes(changed)
        try:
            tensors = read(target)
        except GpackError:
            continue
        assert all(tensor.begin + tensor.byte_size <= len(whole) for tensor in tensors.values())
    assert time.process_time() - started < 20


def test_nothing_stays_open(target: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(3):
        with pytest.raises(FormatError):
            read(write_by_hand(target, b"{"))
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after == before
