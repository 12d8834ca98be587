"""Which files a safetensors model consists of, however it is named, and what is wrong with the index or the shards."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_maker import f32, write_json, write_safetensors, write_sharded

from gpack.errors import FormatError, GpackError, PathError
from gpack.sources.safetensors_set import SafetensorsSet

RUNS = [{f"t{run}{n}": f32(np.full(2, 10 * run + n)) for n in range(2)} for run in range(3)]
NAMES = [f"t{run}{n}" for run in range(3) for n in range(2)]


def names(path: Path) -> list[str]:
    opened = SafetensorsSet(path)
    opened.close()
    return [tensor.name for tensor in opened.tensors]


def refused(path: Path, code: str, *words: str, kind: type[GpackError] = FormatError) -> None:
    before = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
    with pytest.raises(GpackError) as caught:
        SafetensorsSet(path)
    assert type(caught.value) is kind
    assert caught.value.code == code
    for word in words:
        assert word in str(caught.value)
    after = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
    assert len(after) == len(before)


def edit_index(folder: Path, change: Any) -> Path:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index)
    return write_json(path, index)


# --- what is well ---


def test_any_name_of_a_sharded_model(tmp_path: Path) -> None:
    paths = write_sharded(tmp_path, RUNS)
    for named in (tmp_path, tmp_path / "model.safetensors.index.json", *paths):
        assert names(named) == NAMES


def test_shards_without_an_index(tmp_path: Path) -> None:
    paths = write_sharded(tmp_path, RUNS)
    (tmp_path / "model.safetensors.index.json").unlink()
    for named in (tmp_path, *paths):
        assert names(named) == NAMES


def test_one_file(tmp_path: Path) -> None:
    other = write_safetensors(tmp_path / "weights.safetensors", RUNS[1])
    assert names(other) == names(tmp_path) == ["t10", "t11"]
    write_safetensors(tmp_path / "model.safetensors", RUNS[0])
    assert names(tmp_path) == ["t00", "t01"]
    assert names(other) == ["t10", "t11"]


def test_a_cache_of_links(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    write_sharded(tmp_path / "blobs", RUNS)
    for path in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / path.name).symlink_to(f"../blobs/{path.name}")
    assert names(tmp_path / "snapshot") == NAMES


# --- faults ---


def test_all_missing_shards_are_listed(tmp_path: Path) -> None:
    paths = write_sharded(tmp_path, RUNS)
    paths[0].unlink()
    paths[2].unlink()
    for named in (tmp_path, paths[1]):
        refused(named, "safetensors.shards", "2 of 3", paths[0].name, paths[2].name)
    (tmp_path / "model.safetensors.index.json").unlink()
    refused(paths[1], "safetensors.shards", "2 of 3", paths[0].name, paths[2].name)


def test_a_link_to_nowhere_is_a_missing_shard(tmp_path: Path) -> None:
    paths = write_sharded(tmp_path, RUNS)
    paths[0].unlink()
    paths[0].symlink_to("nowhere")
    refused(tmp_path, "safetensors.shards", paths[0].name)


def test_more_shards_than_a_process_may_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sharded(tmp_path, RUNS)
    real, opened = os.open, 0

    def limited(path: Any, flags: int, *options: Any) -> int:
        nonlocal opened
        opened += 1
        if opened > 2:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, flags, *options)

    monkeypatch.setattr(os, "open", limited)
    refused(tmp_path, "io.read", "Too many open files", "ulimit -n", kind=PathError)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_a_link_to_nowhere_is_no_reason_to_take_other_files(tmp_path: Path, name: str) -> None:
    """The folder's shards would do without their index, but it is not for a reader to guess."""
    write_sharded(tmp_path, RUNS)
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to("nowhere")
    refused(tmp_path, "io.not_found", name, "the link leads to no file", kind=PathError)


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".", "", "C:x", "a\\b", "a\0b", 7, None]
)
def test_an_index_never_leads_out_of_its_folder(tmp_path: Path, name: Any) -> None:
    write_sharded(tmp_path, RUNS)
    path = edit_index(tmp_path, lambda index: index["weight_map"].update(t00=name))
    refused(path, "safetensors.index_path", "t00")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "{}",
        '{"weight_map": {}}',
        '{"weight_map": []}',
        '{"weight_map": null}',
        '{"weight_map": {"a": "x", "a": "y"}}',
        "[" * 10_000,
    ],
)
def test_an_index_that_is_none(tmp_path: Path, text: str) -> None:
    write_sharded(tmp_path, RUNS)
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(text)
    refused(path, "safetensors.index", path.name)


def test_an_index_that_names_what_no_shard_holds(tmp_path: Path) -> None:
    write_sharded(tmp_path, RUNS)
    path = edit_index(tmp_path, lambda index: index["weight_map"].update(ghost="model-00001-of-00003.safetensors"))
    refused(path, "safetensors.index", "ghost")


def opened(path: Path) -> SafetensorsSet:
    made = SafetensorsSet(path)
    made.close()
    return made


def test_the_index_and_the_shards_contradict_one_another(tmp_path: Path) -> None:
    """All the bytes are there, so that the model is whole: what differs is told."""
    write_sharded(tmp_path, RUNS)
    path = edit_index(tmp_path, lambda index: index["weight_map"].pop("t20"))
    found = opened(path)
    assert [tensor.name for tensor in found.tensors] == NAMES
    assert found.notes == ["t20 (model-00003-of-00003.safetensors) is in the shards, though the index does not name it"]
    edit_index(tmp_path, lambda index: index["weight_map"].update(t20="model-00001-of-00003.safetensors"))
    found = opened(path)
    assert [tensor.name for tensor in found.tensors] == NAMES
    assert found.notes == ["t20 (model-00003-of-00003.safetensors) is in another shard than the index says"]
    assert found.reasons == []


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    """The index decides; without one the first shard's is taken, and that is a reason not to run the model."""
    other = {"t00": f32(np.full(2, 99))}
    paths = write_sharded(tmp_path, [RUNS[0], other | RUNS[1]])
    found = opened(paths[0])
    assert {t.name: t.file.path.name for t in found.tensors}["t00"] == paths[1].name  # the last one is in the index
    assert len(found.notes) == 1
    assert "those that the index names were taken" in found.notes[0]
    assert found.reasons == []
    (tmp_path / "model.safetensors.index.json").unlink()
    found = opened(paths[0])
    assert {t.name: t.file.path.name for t in found.tensors}["t00"] == paths[0].name
    assert found.notes == []
    assert len(found.reasons) == 1
    assert "no index says which one counts" in found.reasons[0]


@pytest.mark.parametrize(
    "pattern",
    ["model-{:05}-of-000003.safetensors", "model-{}-of-3.safetensors", "layers-{}.safetensors", "{}.safetensors"],
)
def test_a_part_is_never_taken_for_all(tmp_path: Path, pattern: str) -> None:
    """Whatever the shards are called, an index beside them that lists the file tells the whole."""
    files = [pattern.format(number) for number in range(1, 4)]
    for name, run in zip(files, RUNS, strict=True):
        write_safetensors(tmp_path / name, run)
    mapped = {tensor: name for name, run in zip(files, RUNS, strict=True) for tensor in run}
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": mapped})
    for named in (tmp_path, *(tmp_path / name for name in files)):
        assert sorted(names(named)) == NAMES
    # An index of another model beside it changes nothing.
    write_json(tmp_path / "alien.safetensors.index.json", {"weight_map": {"x": "alien.safetensors"}})
    assert sorted(names(tmp_path / files[1])) == NAMES
    # Nor does the name of the index.
    (tmp_path / "model.safetensors.index.json").rename(tmp_path / "weights.safetensors.index.json")
    assert sorted(names(tmp_path / files[1])) == NAMES


def test_shards_of_any_padding_without_an_index(tmp_path: Path) -> None:
    files = ["model-1-of-00003.safetensors", "model-02-of-3.safetensors", "model-000003-of-03.safetensors"]
    for name, run in zip(files, RUNS, strict=True):
        write_safetensors(tmp_path / name, run)
    for named in (tmp_path, *(tmp_path / name for name in files)):
        assert names(named) == NAMES
    (tmp_path / files[1]).unlink()
    refused(tmp_path / files[0], "safetensors.shards", "1 of 3", "model-2-of-00003")


def test_shards_that_are_counted_from_zero(tmp_path: Path) -> None:
    files = [f"model-{number:05}-of-00003.safetensors" for number in range(3)]
    for name, run in zip(files, RUNS, strict=True):
        write_safetensors(tmp_path / name, run)
    for named in (tmp_path, *(tmp_path / name for name in files)):
        assert names(named) == NAMES


def test_numbered_files_without_an_index(tmp_path: Path) -> None:
    """Each is whole, so that it is read alone; that others count on from it is a reason not to run it."""
    for number, run in enumerate(RUNS):
        write_safetensors(tmp_path / f"layers-{number}.safetensors", run)
    found = opened(tmp_path / "layers-1.safetensors")
    assert [tensor.name for tensor in found.tensors] == ["t10", "t11"]
    assert len(found.reasons) == 1
    assert "layers-0.safetensors, layers-2.safetensors" in found.reasons[0]
    # Sizes in names count nothing.
    for size, run in zip((7, 13), RUNS, strict=False):
        write_safetensors(tmp_path / f"big-{size}b.safetensors", run)
    assert opened(tmp_path / "big-7b.safetensors").reasons == []


def test_a_damaged_index_beside_a_whole_file(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "weights.safetensors", RUNS[0])
    (tmp_path / "model.safetensors.index.json").write_text("{")
    found = opened(tmp_path / "weights.safetensors")
    assert [tensor.name for tensor in found.tensors] == ["t00", "t01"]
    assert len(found.reasons) == 1
    assert "damaged" in found.reasons[0]


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    refused(tmp_path, "convert.source", "none")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    refused(tmp_path, "convert.source", "programs")
    write_safetensors(tmp_path / "a.safetensors", RUNS[0])
    write_safetensors(tmp_path / "b.safetensors", RUNS[1])
    refused(tmp_path, "convert.source", "a.safetensors, b.safetensors", "the file that is meant")


def test_missing_and_strange_files(tmp_path: Path) -> None:
    refused(tmp_path / "nothing.safetensors", "io.not_found", kind=PathError)
    refused(tmp_path / "model-00004-of-00003.safetensors", "safetensors.shards", "impossible")
    os.mkfifo(tmp_path / "model.safetensors")
    refused(tmp_path, "io.not_a_file", kind=PathError)


def test_no_tensors_at_all(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {})
    refused(tmp_path, "convert.source", "no tensors")
