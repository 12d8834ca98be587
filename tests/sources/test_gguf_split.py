"""Split models: any shard opens the whole set, and a set that is not whole is refused, naming the file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from gguf import GGUFReader
from gguf_maker import Entry, Tensor, split_entries, tiny_llama, tiny_moe, write_gguf, write_split

from gpack.errors import FormatError, GpackError, PathError
from gpack.sources.gguf import GgufSource

ORACLE = Path(os.environ.get("GPACK_ORACLE", Path(__file__).parents[2].parent / "shared" / "oracle"))
METADATA, TENSORS = tiny_moe()


def refused(path: Path, code: str, *words: str) -> GpackError:
    with pytest.raises(GpackError) as caught:
        GgufSource.open(path)
    assert caught.value.code == code
    for word in words:
        assert word in str(caught.value)
    return caught.value


@pytest.mark.parametrize("metadata_first", [False, True])
@pytest.mark.parametrize("opened", [0, 1, 2])
def test_any_shard_opens_the_set(tmp_path: Path, opened: int, *, metadata_first: bool) -> None:
    paths = write_split(tmp_path, "m", METADATA, TENSORS, metadata_first=metadata_first)
    with GgufSource.open(paths[opened]) as source:
        assert [shard.path for shard in source.shards] == paths
        assert sum(shard.tensor_count for shard in source.shards) == len(TENSORS)
        assert [key for key, _, _ in METADATA] == list(source.metadata)
        for position, (info, (name, ggml_type, dims, data)) in enumerate(zip(source.tensors, TENSORS, strict=True)):
            assert (info.name, info.ggml_type, info.dims) == (name, ggml_type, dims)
            assert info.position == position
            assert source.read(info) == data
        assert (source.shards[0].tensor_count == 0) == metadata_first


def test_each_shard_has_its_own_alignment(tmp_path: Path) -> None:
    paths = write_split(tmp_path, "m", METADATA, TENSORS, alignments={0: 64, 2: 128})
    with GgufSource.open(paths[1]) as source:
        assert source.alignment == 64
        assert [shard.alignment for shard in source.shards] == [64, 32, 128]
        assert [source.read(info) for info in source.tensors] == [data for *_, data in TENSORS]


def test_a_relative_path_and_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for index, path in enumerate(write_split(tmp_path, "m", METADATA, TENSORS)):
        shutil.move(path, blobs / f"blob{index}")
        path.symlink_to(blobs / f"blob{index}")
    monkeypatch.chdir(tmp_path)
    with GgufSource.open("m-00002-of-00003.gguf") as source:
        assert len(source.tensors) == len(TENSORS)
    refused(blobs / "blob1", "gguf.split", "blob1", "shard 2 of 3", "-00002-of-00003.gguf")


@pytest.mark.parametrize("name", ["whole.gguf", "whole-00001-of-00001.gguf"])
def test_one_file_with_split_keys(tmp_path: Path, name: str) -> None:
    metadata, tensors = tiny_llama()
    path = tmp_path / name
    write_gguf(path, [*metadata, *split_entries(0, 1, len(tensors))], tensors)
    with GgufSource.open(path) as source:
        assert list(source.metadata) == [key for key, _, _ in metadata]
        assert len(source.tensors) == len(tensors)


def test_a_missing_shard(tmp_path: Path) -> None:
    paths = write_split(tmp_path, "m", METADATA, TENSORS)
    paths[1].unlink()
    refused(paths[0], "gguf.split", "missing", "m-00002-of-00003.gguf")
    paths[0].unlink()
    refused(paths[2], "gguf.split", "2 of 3", "m-00001-of-00003.gguf", "m-00002-of-00003.gguf")


def test_many_missing_shards_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "m-00001-of-00050.gguf"
    write_gguf(path, [*METADATA, *split_entries(0, 50, 5)])
    refused(path, "gguf.split", "49 of 50", "m-00006-of-00050.gguf", "44 more")


def test_a_shard_that_is_no_file(tmp_path: Path) -> None:
    paths = write_split(tmp_path, "m", METADATA, TENSORS)
    paths[1].unlink()
    paths[1].mkdir()
    assert isinstance(refused(paths[0], "io.not_a_file", paths[1].name), PathError)


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    paths = write_split(tmp_path, "m", METADATA, TENSORS)
    os.truncate(paths[2], 100)
    refused(paths[0], "gguf.truncated", paths[2].name)
    before = len(os.listdir("/proc/self/fd"))
    refused(paths[1], "gguf.truncated", paths[2].name)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_doubled_shard(tmp_path: Path) -> None:
    paths = write_split(tmp_path, "m", METADATA, TENSORS)
    shutil.copy(paths[1], paths[2])
    error = refused(paths[0], "gguf.split", "doubled", paths[1].name, paths[2].name, "number 1")
    assert error.field == "split.no"


def test_a_shard_under_another_ones_name(tmp_path: Path) -> None:
    paths = write_split(tmp_path, "m", METADATA, TENSORS)
    write_gguf(paths[1], split_entries(7, 3, len(TENSORS)))
    refused(paths[0], "gguf.split", paths[1].name, "number 1", "has 7")
    refused(paths[1], "gguf.split", paths[1].name, "has 7")


def test_a_shard_of_another_split(tmp_path: Path) -> None:
    paths = write_split(tmp_path, "m", METADATA, TENSORS)
    write_gguf(paths[1], split_entries(1, 4, len(TENSORS)))
    refused(paths[0], "gguf.split", "foreign", paths[1].name, "4")
    refused(paths[1], "gguf.split", paths[1].name, "3 shards", "split.count is 4")


def test_a_shard_without_split_keys(tmp_path: Path) -> None:
    paths = write_split(tmp_path, "m", METADATA, TENSORS)
    write_gguf(paths[1], [])
    refused(paths[0], "gguf.split", "foreign", paths[1].name, "split.count")
    refused(paths[1], "gguf.split", paths[1].name, "there is no split.count")


@pytest.mark.parametrize("total", [0, len(TENSORS) + 1])
def test_a_wrong_total(tmp_path: Path, total: int) -> None:
    paths = write_split(tmp_path, "m", METADATA, TENSORS)
    last = TENSORS[2 * -(-len(TENSORS) // 3) :]
    write_gguf(paths[2], split_entries(2, 3, total), last)
    words = (f"a foreign shard: {paths[2].name}", f"has {total} tensors", f"the others say {len(TENSORS)}")
    refused(paths[0], "gguf.split", *words)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_shard_of_a_larger_model_is_the_one_that_is_named(tmp_path: Path, number: int) -> None:
    """Its number and count fit; its total is its own model's. Whichever shard is opened, it is blamed."""
    paths = write_split(tmp_path, "m", METADATA, TENSORS)
    (tmp_path / "other").mkdir()
    more: list[Tensor] = [("extra.weight", 0, (4,), bytes(16))]
    paths[number].write_bytes(write_split(tmp_path / "other", "m", METADATA, TENSORS + more)[number].read_bytes())
    for path in paths:
        refused(path, "gguf.split", f"a foreign shard: {paths[number].name}", f"{len(TENSORS) + 1} tensors")


def test_a_shard_that_lost_its_tensors(tmp_path: Path) -> None:
    paths = write_split(tmp_path, "m", METADATA, TENSORS)
    write_gguf(paths[1], split_entries(1, 3, len(TENSORS)))
    refused(paths[0], "gguf.split", f"has {len(TENSORS)} tensors", "hold")


@pytest.mark.parametrize("value", [("str", "3"), ("i32", -1), ("f32", 3.0), ("bool", True), ("[u16]", [3])])
def test_split_keys_are_counts(tmp_path: Path, value: tuple[str, object]) -> None:
    path = write_gguf(tmp_path / "m.gguf", [("split.count", *value)])
    assert refused(path, "gguf.split", "m.gguf", "split.count").field == "split.count"


@pytest.mark.parametrize("name", ["renamed.gguf", "m-1-of-3.gguf", "m-00002-of-00003.GGUF", "m-00002-of-00003.bin"])
def test_a_renamed_shard(tmp_path: Path, name: str) -> None:
    paths = write_split(tmp_path, "m", METADATA, TENSORS)
    renamed = paths[1].rename(tmp_path / name)
    refused(renamed, "gguf.split", name, "-00002-of-00003.gguf")


@pytest.mark.parametrize("name", ["m-00000-of-00003.gguf", "m-00004-of-00003.gguf"])
def test_impossible_numbers_in_the_name(tmp_path: Path, name: str) -> None:
    path = write_gguf(tmp_path / name, split_entries(0, 3, 0))
    refused(path, "gguf.split", name)


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    twice = [*TENSORS[:-1], TENSORS[0]]
    paths = write_split(tmp_path, "m", METADATA, twice)
    error = refused(paths[0], "gguf.tensor_name", TENSORS[0][0], paths[0].name, paths[2].name)
    assert isinstance(error, FormatError)


def test_later_metadata_that_repeats_the_first(tmp_path: Path) -> None:
    paths = write_split(tmp_path, "m", METADATA, TENSORS, extra={1: METADATA[:3]})
    with GgufSource.open(paths[0]) as source:
        assert len(source.metadata) == len(METADATA)


def test_later_metadata_that_would_be_lost(tmp_path: Path) -> None:
    paths = write_split(tmp_path, "m", METADATA, TENSORS, extra={2: [("extra.key", "u32", 1)]})
    assert refused(paths[0], "gguf.split", paths[2].name, "'extra.key'").field == "extra.key"


def test_later_metadata_that_contradicts(tmp_path: Path) -> None:
    other: list[Entry] = [("general.architecture", "str", "bert")]
    paths = write_split(tmp_path, "m", METADATA, TENSORS, extra={1: other})
    refused(paths[0], "gguf.split", paths[1].name, "'general.architecture'")


@pytest.mark.skipif(not ORACLE.is_dir(), reason=f"the reference files are not at {ORACLE}")
@pytest.mark.parametrize("stem", ["qwen35moe-128-Q8_0", "qwen35moe-256-Q8_0-meta_first", "qwen35moe_mtp"])
def test_what_llama_gguf_split_wrote(stem: str) -> None:
    paths = sorted((ORACLE / "split").glob(f"{stem}-*.gguf"))
    assert len(paths) == 3
    readers = [GGUFReader(path) for path in paths]
    expected = [tensor for reader in readers for tensor in reader.tensors]
    with GgufSource.open(paths[2]) as source:
        assert [info.name for info in source.tensors] == [tensor.name for tensor in expected]
        for info, tensor in zip(source.tensors, expected, strict=True):
            assert source.read(info) == tensor.data.tobytes()
        whole = ORACLE / ("models" if stem == "qwen35moe_mtp" else "quant")
        with GgufSource.open(whole / f"{stem.removesuffix('-meta_first')}.gguf") as original:
            assert source.metadata == original.metadata
            assert {i.name: source.read(i) for i in source.tensors} == {
                i.name: original.read(i) for i in original.tensors
            }
