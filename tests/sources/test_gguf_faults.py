"""Every fault that a GGUF file can have: a typed error with the place and the value, in bounded time."""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf_maker import EVERY_KIND, F32, Q4_0, make_gguf, pack_string, tiny_llama, vector, write_gguf

from gpack.errors import BoundsError, FormatError, GpackError, PathError, UnsupportedError
from gpack.sources import gguf_cursor
from gpack.sources.gguf import GgufSource


def refused(path: Path, kind: type[GpackError], code: str, *words: str, **options: Any) -> GpackError:
    """Opens the file, which must fail with this class and code, naming the path and the words."""
    with pytest.raises(GpackError) as caught:
        GgufSource.open(path, **options)
    error = caught.value
    assert type(error) is kind
    assert error.code == code
    for word in (path.name, *words):
        assert word in str(error)
    return error


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


# --- the header ---


def test_big_endian_is_recognised(target: Path) -> None:
    target.write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
    refused(target, UnsupportedError, "gguf.big_endian", "big-endian")


@pytest.mark.parametrize("version", [0, 1, 4, 65539])
def test_other_versions_are_refused_by_number(target: Path, version: int) -> None:
    write_gguf(target, version=version)
    refused(target, UnsupportedError, "gguf.version", f"version {version}")


@pytest.mark.parametrize("content", [b"", b"GG", b"GGML" + bytes(20), b"version https://git-lfs"])
def test_other_files_are_refused(target: Path, content: bytes) -> None:
    target.write_bytes(content)
    refused(target, FormatError, "gguf.magic", repr(content[:4]))


@pytest.mark.parametrize("count", [3, 1 << 32, (1 << 63) + 1, (1 << 64) - 1])
def test_counts_beyond_the_file(target: Path, count: int) -> None:
    write_gguf(target, {"a": 1}, kv_count=count)
    error = refused(target, BoundsError, "gguf.truncated", str(count) if count > 3 else "")
    assert error.section in ("header", "metadata")
    write_gguf(target, {}, [vector("t", 0)], tensor_count=count)
    assert refused(target, BoundsError, "gguf.truncated").section == "tensor info"


def test_an_absurd_number_of_entries_is_refused(target: Path) -> None:
    target.write_bytes(make_gguf(kv_count=2_000_000))
    os.truncate(target, 1 << 30)
    refused(target, UnsupportedError, "gguf.value", "2000000")


# --- metadata ---


def raw_entry(key: bytes, value_type: int, payload: bytes) -> bytes:
    return pack_string(key) + struct.pack("<I", value_type) + payload


@pytest.mark.parametrize(("key", "words"), [(b"", "0 bytes"), (b"k" * 65536, "65536 bytes"), (b"k\xff", "not UTF-8")])
def test_keys(target: Path, key: bytes, words: str) -> None:
    write_gguf(target, raw_metadata=raw_entry(key, 4, b"abcd"), raw_entries=1)
    error = refused(target, FormatError, "gguf.key", words)
    assert (error.section, error.offset) == ("metadata", 24)


def test_a_doubled_key(target: Path) -> None:
    write_gguf(target, [("same", "u8", 1), ("other", "u8", 2), ("same", "str", "x")])
    assert refused(target, FormatError, "gguf.key", "'same'", "doubled").field == "same"


@pytest.mark.parametrize("value_type", [13, 255, 0xFFFFFFFF])
def test_unknown_value_types(target: Path, value_type: int) -> None:
    write_gguf(target, raw_metadata=raw_entry(b"odd", value_type, bytes(20)), raw_entries=1)
    error = refused(target, FormatError, "gguf.value_type", str(value_type))
    assert (error.field, error.offset) == ("odd", 24 + 8 + 3)
    array = struct.pack("<IQ", value_type, 0)
    write_gguf(target, raw_metadata=raw_entry(b"odd", 9, array), raw_entries=1)
    error = refused(target, FormatError, "gguf.value_type", str(value_type))
    assert (error.field, error.offset) == ("odd", 24 + 8 + 3 + 4)
    nested = struct.pack("<IQ", 9, 1) + array
    write_gguf(target, raw_metadata=raw_entry(b"odd", 9, nested), raw_entries=1)
    refused(target, FormatError, "gguf.value_type", "odd", str(value_type))


def test_bools_are_0_or_1(target: Path) -> None:
    write_gguf(target, raw_metadata=raw_entry(b"flag", 7, b"\2"), raw_entries=1)
    assert refused(target, FormatError, "gguf.value", "byte 2").field == "flag"
    flags = struct.pack("<IQ", 7, 3) + b"\1\0\xfe"
    write_gguf(target, raw_metadata=raw_entry(b"flags", 9, flags), raw_entries=1)
    assert refused(target, FormatError, "gguf.value", "byte 254").offset == 24 + 8 + 5 + 4 + 12 + 2


@pytest.mark.parametrize("element_type", range(13))
@pytest.mark.parametrize("count", [1 << 20, 1 << 60, (1 << 64) - 1])
def test_array_counts_beyond_the_file(target: Path, element_type: int, count: int) -> None:
    write_gguf(target, raw_metadata=raw_entry(b"arr", 9, struct.pack("<IQ", element_type, count)), raw_entries=1)
    assert refused(target, BoundsError, "gguf.truncated", str(count)).field == "arr"


@pytest.mark.parametrize("length", [1 << 16, 1 << 63, (1 << 64) - 1])
def test_string_lengths_beyond_the_file(target: Path, length: int) -> None:
    text = struct.pack("<Q", length) + b"abc"
    write_gguf(target, raw_metadata=raw_entry(b"text", 8, text), raw_entries=1)
    assert refused(target, BoundsError, "gguf.truncated", str(length)).field == "text"
    strings = struct.pack("<IQ", 8, 2) + pack_string("fine") + text
    write_gguf(target, raw_metadata=raw_entry(b"texts", 9, strings), raw_entries=1)
    error = refused(target, BoundsError, "gguf.truncated", "string 1 of 2", str(length + 8))
    assert (error.field, error.offset) == ("texts", 24 + 8 + 5 + 4 + 12 + 12)


def nested_arrays(depth: int) -> bytes:
    return struct.pack("<IQ", 9, 1) * (depth - 1) + struct.pack("<IQ", 0, 0)


def test_nesting_has_a_limit(target: Path) -> None:
    write_gguf(target, raw_metadata=raw_entry(b"deep", 9, nested_arrays(8)), raw_entries=1)
    with GgufSource.open(target) as source:
        assert source.get("deep") == [[[[[[[[]]]]]]]]
    write_gguf(target, raw_metadata=raw_entry(b"deep", 9, nested_arrays(9)), raw_entries=1)
    assert refused(target, FormatError, "gguf.nesting", "8").field == "deep"
    write_gguf(target, raw_metadata=raw_entry(b"deep", 9, nested_arrays(100_000)), raw_entries=1)
    refused(target, FormatError, "gguf.nesting")


def test_many_small_arrays_are_linear(target: Path) -> None:
    count = 20_000
    arrays = struct.pack("<IQ", 9, count) + (struct.pack("<IQ", 8, 1) + pack_string("ab")) * count
    write_gguf(target, raw_metadata=raw_entry(b"many", 9, arrays), raw_entries=1)
    start = time.process_time()
    with GgufSource.open(target) as source:
        assert source.get("many") == [["ab"]] * count
    assert time.process_time() - start < 60  # seconds of the CPU


def test_millions_of_arrays_are_refused(target: Path) -> None:
    # In a sparse file each is twelve zeros: an empty array of u8.
    arrays = struct.pack("<IQ", 9, 1 << 20)
    target.write_bytes(make_gguf(raw_metadata=raw_entry(b"many", 9, arrays), raw_entries=1))
    os.truncate(target, 1 << 25)
    assert refused(target, UnsupportedError, "gguf.value", str(1 << 20)).field == "many"


def test_a_header_of_gigabytes_is_refused(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A sparse file takes no disk, but its header would take the memory.
    target.write_bytes(make_gguf(raw_metadata=raw_entry(b"huge", 9, struct.pack("<IQ", 0, 1 << 34)), raw_entries=1))
    os.truncate(target, 1 << 35)
    assert refused(target, UnsupportedError, "gguf.value", str(1 << 34)).field == "huge"
    monkeypatch.setattr(gguf_cursor, "MAX_HEADER_BYTES", 2000)
    write_gguf(target, {"texts": ["abcdefgh"] * 1000})
    refused(target, UnsupportedError, "gguf.value", "2000")
    write_gguf(target, {"texts": ["a" * 1200, "b" * 1200]})
    refused(target, UnsupportedError, "gguf.value", "string 1 of 2")


@pytest.mark.parametrize("alignment", [0, 3, 24, 1 << 21, 1 << 31, 0xFFFFFFFF])
def test_impossible_alignments(target: Path, alignment: int) -> None:
    write_gguf(target, [("general.alignment", "u32", alignment)], [vector("t")])
    error = refused(target, FormatError, "gguf.alignment", str(alignment))
    assert error.field == "general.alignment"


def test_the_alignment_is_a_u32(target: Path) -> None:
    write_gguf(target, [("general.alignment", "u64", 32)])
    refused(target, FormatError, "gguf.alignment", "UINT64")


# --- tensors ---


@pytest.mark.parametrize("name", ["", "n" * 65536, "\udcff"])
def test_tensor_names(target: Path, name: str) -> None:
    write_gguf(target, {}, [vector(name)])
    assert refused(target, FormatError, "gguf.tensor_name").section == "tensor info"


def test_a_doubled_tensor_name(target: Path) -> None:
    write_gguf(target, {}, [vector("twin"), vector("twin")])
    assert refused(target, FormatError, "gguf.tensor_name", "'twin'", "doubled").field == "twin"


@pytest.mark.parametrize("ggml_type", [4, 5, 31, 32, 33, 36, 37, 38, 43, 1000, 65536, 65538, 0xFFFFFFFF])
def test_unknown_tensor_types(target: Path, ggml_type: int) -> None:
    write_gguf(target, {}, [vector("known"), ("new", ggml_type, (7, 3), bytes(64))])
    refused(target, UnsupportedError, "gguf.tensor_type", "'new'", str(ggml_type))
    with GgufSource.open(target, allow_unknown_types=True) as source:
        known, new = source.tensors
        assert (known.byte_size, new.byte_size, new.ggml_type, new.dims) == (32, -1, ggml_type, (7, 3))
        with pytest.raises(UnsupportedError, match="new"):
            source.read(new)


@pytest.mark.parametrize("ggml_type", [41, 42])
def test_the_newest_types_have_their_sizes(target: Path, ggml_type: int) -> None:
    blocks = {41: (128, 18), 42: (64, 18)}
    elements, size = blocks[ggml_type]
    write_gguf(target, {}, [("t", ggml_type, (2 * elements, 3), bytes(6 * size))])
    with GgufSource.open(target) as source:
        assert source.tensors[0].byte_size == 6 * size


@pytest.mark.parametrize(("dims", "words"), [((33,), "33"), ((1, 32), "1"), ((), "1")])
def test_rows_are_whole_blocks(target: Path, dims: tuple[int, ...], words: str) -> None:
    write_gguf(target, {}, [("odd", Q4_0, dims, bytes(64))])
    assert refused(target, FormatError, "gguf.tensor_dims", words, "32").field == "odd"


@pytest.mark.parametrize("n_dims", [5, 1000, 0xFFFFFFFF])
def test_too_many_dimensions(target: Path, n_dims: int) -> None:
    write_gguf(target, {}, [vector("t")], n_dims={"t": n_dims})
    assert refused(target, FormatError, "gguf.tensor_dims", str(n_dims)).field == "t"


@pytest.mark.parametrize(
    "dims",
    [
        (1 << 63,),
        (1 << 32, 1 << 32),
        (1 << 16, 1 << 16, 1 << 16, 1 << 16),
        (0, 1 << 63),
        (0, 1 << 53),
        ((1 << 64) - 1, 1),
    ],
)
def test_dimensions_that_overflow(target: Path, dims: tuple[int, ...]) -> None:
    write_gguf(target, {}, [("wide", F32, dims, bytes(32))])
    assert refused(target, FormatError, "gguf.tensor_dims", str(dims[-1])).field == "wide"


@pytest.mark.parametrize("offset", [64, 1 << 40, (1 << 64) - 32])
def test_tensors_beyond_the_file(target: Path, offset: int) -> None:
    write_gguf(target, {}, [vector("in"), vector("out")], offsets={"out": offset})
    assert refused(target, BoundsError, "gguf.tensor_bounds", str(offset)).field == "out"


def test_a_tensor_larger_than_the_file(target: Path) -> None:
    write_gguf(target, {}, [("big", F32, (1 << 20,), bytes(32))])
    refused(target, BoundsError, "gguf.tensor_bounds", "big", str(1 << 22))


@pytest.mark.parametrize("offset", [1, 16, 33])
def test_misaligned_tensors(target: Path, offset: int) -> None:
    write_gguf(target, {}, [vector("a"), vector("b")], offsets={"b": offset}, trailing=bytes(64))
    assert refused(target, BoundsError, "gguf.tensor_bounds", str(offset), "32").field == "b"


def test_overlapping_tensors(target: Path) -> None:
    tensors = [vector("first", 16), vector("second", 16)]
    write_gguf(target, {}, tensors, offsets={"second": 32})
    refused(target, BoundsError, "gguf.tensor_bounds", "first", "second", "offset 32")
    write_gguf(target, {}, tensors, offsets={"second": 0})
    refused(target, BoundsError, "gguf.tensor_bounds", "first", "second")


def test_tensors_in_any_order_with_holes(target: Path) -> None:
    tensors = [vector("a"), vector("b"), ("none", F32, (0,), b"")]
    write_gguf(target, {}, tensors, offsets={"a": 96, "b": 32, "none": 32}, trailing=bytes(64))
    with GgufSource.open(target) as source:
        start = source.shards[0].header_size
        assert [info.offset - start for info in source.tensors] == [96, 32, 32]


# --- the file system ---


def test_missing_files(tmp_path: Path) -> None:
    refused(tmp_path / "nothing.gguf", PathError, "io.not_found")
    refused(tmp_path / "zero\0byte.gguf", PathError, "io.not_found")
    write_gguf(tmp_path / "file", {})
    refused(tmp_path / "file" / "x.gguf", PathError, "io.not_found")
    (tmp_path / "dangling.gguf").symlink_to("nowhere")
    refused(tmp_path / "dangling.gguf", PathError, "io.not_found")


def test_no_regular_files(tmp_path: Path, target: Path) -> None:
    refused(tmp_path, PathError, "io.not_a_file")
    os.mkfifo(target)
    refused(target, PathError, "io.not_a_file")
    refused(Path("/dev/zero"), PathError, "io.not_a_file")


def test_links_in_a_circle(target: Path) -> None:
    target.symlink_to(target)
    refused(target, PathError, "io.read")


def test_a_file_truncated_after_opening(target: Path) -> None:
    write_gguf(target, {"l": ["ab"]}, [vector("t", 4096)])
    with GgufSource.open(target) as source:
        os.truncate(target, source.tensors[0].offset + 100)
        with pytest.raises(PathError) as caught:
            source.read(source.tensors[0])
        assert caught.value.code == "io.short_read"
        assert caught.value.offset == source.tensors[0].offset + 100
        assert source.read_at(0, 0, 4) == b"GGUF"
        with pytest.raises(PathError):
            source.read_at(0, -1, 4)


def test_failed_opening_leaves_no_descriptor(target: Path) -> None:
    write_gguf(target, {}, [vector("t")], offsets={"t": 1})
    before = len(os.listdir("/proc/self/fd"))
    refused(target, BoundsError, "gguf.tensor_bounds")
    assert len(os.listdir("/proc/self/fd")) == before


# --- hostile bytes ---


def test_truncation_at_every_byte(target: Path) -> None:
    tensors = [vector("t"), ("u", Q4_0, (32,), bytes(18))]
    content = make_gguf(EVERY_KIND, tensors)
    data_end = len(content) - (32 - 18)
    for size in range(data_end):
        target.write_bytes(content[:size])
        with pytest.raises(GpackError) as caught:
            GgufSource.open(target)
        assert caught.value.code in ("gguf.magic", "gguf.truncated", "gguf.tensor_bounds")
        assert caught.value.path == str(target)


def test_random_damage_is_read_or_refused(target: Path) -> None:
    metadata, tensors = tiny_llama(layers=1)
    content = make_gguf(metadata + EVERY_KIND, tensors)
    with GgufSource.open(write_gguf(target, metadata + EVERY_KIND, tensors)) as source:
        header_size = source.shards[0].header_size
    rng = random.Random(5)
    mutations: list[Callable[[bytearray, int], None]] = [
        lambda data, at: data.__setitem__(at, data[at] ^ (1 << rng.randrange(8))),
        lambda data, at: data.__setitem__(at, rng.choice([0, 1, 8, 9, 127, 255])),
        lambda data, at: data.__setitem__(slice(at, at + 8), rng.randbytes(8)),
        lambda data, at: data.__delitem__(slice(at, at + rng.randrange(1, 9))),
    ]
    start = time.process_time()
    outcomes = {"read": 0, "refused": 0}
    for _ in range(1500):
        data = bytearray(content)
        for _ in range(rng.randrange(1, 4)):
            rng.choice(mutations)(data, rng.randrange(header_size))
        target.write_bytes(data)
        try:
            with GgufSource.open(target, allow_unknown_types=rng.random() < 0.5) as source:
                for key in source.metadata:
                    source.get(key)
            outcomes["read"] += 1
        except GpackError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 50
    assert time.process_time() - start < 60
