"""The GGUF reader: it reads what was packed by hand, as gguf-py does, and refuses all else."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf_maker import (
    EVERY_KIND,
    F16,
    F32,
    Q4_0,
    Entry,
    Tensor,
    entries_of,
    large_vocabulary,
    make_gguf,
    pack_value,
    tiny_llama,
    tiny_moe,
    type_id,
    vector,
    write_gguf,
)

from gpack.errors import ClosedError
from gpack.sources.gguf import GgufSource

ORACLE = Path(os.environ.get("GPACK_ORACLE", Path(__file__).parents[2].parent / "shared" / "oracle"))
needs_oracle = pytest.mark.skipif(not ORACLE.is_dir(), reason=f"the reference files are not at {ORACLE}")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


# --- what is read ---


@pytest.mark.parametrize("version", [2, 3])
def test_every_kind_of_value(target: Path, version: int) -> None:
    write_gguf(target, EVERY_KIND, version=version)
    with GgufSource.open(target) as source:
        assert source.version == version
        assert list(source.metadata) == [key for key, _, _ in EVERY_KIND]
        for key, kind, expected in EVERY_KIND:
            value = source.metadata[key]
            assert source.get(key) == expected
            assert type(source.get(key)) is type(expected)
            assert value.value_type == type_id(kind)
            packed = pack_value(kind, expected)
            if kind.startswith("["):
                assert (value.element_type, value.count) == (type_id(kind[1:-1]), len(expected))
                assert value.raw == packed[12:]
            else:
                assert (value.element_type, value.count) == (value.value_type, 1)
                assert value.raw == (packed[8:] if kind == "str" else packed)


def test_get_has_a_default(target: Path) -> None:
    with GgufSource.open(write_gguf(target, {"a": 1})) as source:
        assert source.get("b") is None
        assert source.get("b", 7) == 7


def test_text_that_is_not_utf8_survives(target: Path) -> None:
    metadata: list[Entry] = [("s", "str", b"\xff\xfeA"), ("l", "[str]", [b"\x80", b"ok"])]
    with GgufSource.open(write_gguf(target, metadata)) as source:
        assert source.get("s") == "\udcff\udcfeA"
        assert source.get("s").encode("utf-8", "surrogateescape") == b"\xff\xfeA"
        assert source.get("l") == ["\udc80", "ok"]


def test_string_tables_are_spans_of_the_raw_bytes(target: Path) -> None:
    with GgufSource.open(write_gguf(target, {"before": 1, "l": ["ab", "", "cde"]})) as source:
        table = source.metadata["l"].strings()
        assert table.starts.dtype == table.lengths.dtype == np.int64
        assert table.starts.tolist() == [8, 18, 26]
        assert table.lengths.tolist() == [2, 0, 3]
        assert table.data == source.metadata["l"].raw
        with pytest.raises(TypeError, match="before"):
            source.metadata["before"].strings()


def test_the_metadata_outlives_the_source(target: Path) -> None:
    with GgufSource.open(write_gguf(target, {"l": ["ab"]}, [vector("t")])) as source:
        pass
    assert source.get("l") == ["ab"]
    with pytest.raises(ClosedError, match=r"model\.gguf"):
        source.read(source.tensors[0])
    with pytest.raises(ClosedError):
        source.fileno(0)
    source.close()


@pytest.mark.parametrize("alignment", [1, 8, 16, 32, 64, 4096])
def test_tensors_with_any_alignment(target: Path, alignment: int) -> None:
    tensors = [
        vector("a", 3),
        ("b", F16, (5, 2), bytes(range(20))),
        ("c", Q4_0, (32, 2, 1, 2), bytes(72)),
        ("scalar", F32, (), b"\0\0\x80?"),
        ("empty", F32, (0, 4), b""),
        vector("last"),
    ]
    metadata: list[Entry] = [("general.alignment", "u32", alignment)]
    write_gguf(target, metadata, tensors, alignment=alignment)
    with GgufSource.open(target) as source:
        assert source.alignment == source.shards[0].alignment == alignment
        assert source.shards[0].header_size % alignment == 0
        for position, (info, (name, ggml_type, dims, data)) in enumerate(zip(source.tensors, tensors, strict=True)):
            assert (info.name, info.ggml_type, info.dims) == (name, ggml_type, dims)
            assert (info.position, info.shard, info.byte_size) == (position, 0, len(data))
            assert info.offset % alignment == 0
            assert source.read(info) == data
            assert os.pread(source.fileno(0), info.byte_size, info.offset) == data


def test_a_file_without_tensors_may_end_unaligned(target: Path) -> None:
    target.write_bytes(make_gguf({"a": "xyz"})[: 24 + 9 + 4 + 11])
    with GgufSource.open(target) as source:
        assert source.shards[0].header_size == source.shards[0].file_size == 48
        assert source.get("a") == "xyz"


def test_the_last_tensor_may_lack_its_padding(target: Path) -> None:
    target.write_bytes(make_gguf({}, [vector("t", 3)])[:-20])
    with GgufSource.open(target) as source:
        assert source.read(source.tensors[0]) == np.arange(3, dtype="<f4").tobytes()


def test_links_are_followed(tmp_path: Path, target: Path) -> None:
    blob = write_gguf(tmp_path / "0123abc", {"a": 1})
    target.symlink_to(blob)
    with GgufSource.open(str(target)) as source:
        assert source.get("a") == 1


def test_a_header_larger_than_the_first_read(target: Path) -> None:
    words = [f"word {index}" * (index % 40) for index in range(30_000)]
    write_gguf(target, {"words": words, "after": 5}, [vector("t")])
    assert target.stat().st_size > 3 << 20
    with GgufSource.open(target) as source:
        assert source.get("words") == words
        assert source.get("after") == 5


# --- against gguf-py ---


def compare_with_gguf_py(path: Path) -> None:
    reader = GGUFReader(path)
    with GgufSource.open(path) as source:
        fields = [name for name in reader.fields if not name.startswith(("GGUF.", "split."))]
        assert list(source.metadata) == fields
        for name in fields:
            assert source.get(name) == reader.fields[name].contents(), name
        assert source.shards[0].header_size == reader.data_offset or not reader.tensors
        for info, expected in zip(source.tensors, reader.tensors, strict=True):
            assert info.name == expected.name
            assert info.ggml_type == int(expected.tensor_type)
            assert list(info.dims) == expected.shape.tolist()
            assert info.offset == expected.data_offset
            assert source.read(info) == expected.data.tobytes()


@pytest.mark.parametrize(
    ("metadata", "tensors"),
    [
        tiny_llama(),
        tiny_llama(tied=True, alignment=64),
        tiny_moe(),
        tiny_moe(fused=True, dense_first=False, shared_expert=False),
    ],
    ids=["llama", "llama tied", "moe", "moe fused"],
)
def test_tiny_models_as_gguf_py_reads_them(target: Path, metadata: list[Entry], tensors: list[Tensor]) -> None:
    alignment = next((value for key, _, value in metadata if key == "general.alignment"), 32)
    compare_with_gguf_py(write_gguf(target, metadata, tensors, alignment=alignment))


@needs_oracle
def test_reference_models_as_gguf_py_reads_them() -> None:
    paths = sorted([*ORACLE.glob("models/*.gguf"), *ORACLE.glob("quant/*.gguf")])
    assert paths
    for path in paths:
        compare_with_gguf_py(path)


# --- time ---


def best_time(path: Path) -> float:
    """Seconds of the CPU that the fastest of five openings takes."""
    times = []
    for _ in range(5):
        start = time.process_time()
        GgufSource.open(path).close()
        times.append(time.process_time() - start)
    return min(times)


def test_a_large_vocabulary_opens_in_milliseconds(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metadata = large_vocabulary()
    write_gguf(target, metadata)
    seconds = best_time(target)
    with capsys.disabled():
        sys.stdout.write(
            f"\n248,320 tokens and 247,587 merges, {target.stat().st_size} bytes: {seconds * 1e3:.1f} ms\n"
        )
    with GgufSource.open(target) as source:
        for key, _, expected in entries_of(metadata):
            assert source.get(key) == expected
    # The target is 0.1 s; a slow machine gets some room.
    assert seconds < 0.5


@needs_oracle
def test_a_real_vocabulary_opens_in_milliseconds(capsys: pytest.CaptureFixture[str]) -> None:
    path = ORACLE / "vocab" / "ggml-vocab-qwen35.gguf"
    seconds = best_time(path)
    with capsys.disabled():
        sys.stdout.write(f"\n{path.name}: {seconds * 1e3:.1f} ms\n")
    assert seconds < 0.5


@needs_oracle
@pytest.mark.parametrize("name", ["gpt-2", "llama-spm"])
def test_real_vocabularies_as_gguf_py_reads_them(name: str) -> None:
    compare_with_gguf_py(ORACLE / "vocab" / f"ggml-vocab-{name}.gguf")
