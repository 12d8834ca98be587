"""Packs and tensors that are pickled, copied and forked: never another file by the number of an open one."""

from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_maker import tiny_moe, vector, write_gguf
from travelling import PackSet, through_workers

import gpack
from gpack import errors
from gpack.container.atomic import AtomicFile
from gpack.container.reader import Container
from gpack.convert.gguf import convert_gguf
from gpack.generated.constants import GgmlType
from gpack.model.direct import RangeFile
from gpack.sources.files import SourceFile

QUANTISED = "blk.1.ffn_up_exps.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("travel")
    metadata, tensors = tiny_moe(layers=2)
    convert_gguf(write_gguf(folder / "m.gguf", metadata, tensors), folder / "m.gpack", external_experts=True)
    return folder / "m.gpack"


def test_a_pickled_container_reads_its_own_file(model: Path, tmp_path: Path) -> None:
    """Before, the copy read whatever file had the descriptor's number, and closed it under its owner."""
    other = tmp_path / "other"
    other.write_bytes(b"another file" * 1000)
    container = Container.open(model)
    data, number = pickle.dumps(container), container.descriptor
    manifest = container.read("ManifestJson")
    container.close()
    descriptor = os.open(other, os.O_RDONLY)
    assert descriptor == number  # the next file gets the number that became free
    try:
        with pickle.loads(data) as again:
            assert again.descriptor != number
            assert (again.path, again.read("ManifestJson")) == (str(model), manifest)
        assert os.pread(descriptor, 12, 0) == b"another file"  # still open
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_pack_with_every_protocol(model: Path, protocol: int) -> None:
    with gpack.open(model, io="read") as pack, pickle.loads(pickle.dumps(pack, protocol)) as again:
        assert list(again) == list(pack)
        assert all(again[name].tobytes() == pack[name].tobytes() for name in pack)
        assert dict(again.metadata) == dict(pack.metadata)


def test_a_used_pack_and_what_belongs_to_it(model: Path) -> None:
    with gpack.open(model) as pack:
        held = pack[QUANTISED]  # a shard is open by now
        again, metadata = pickle.loads(pickle.dumps((pack, pack.metadata)))
        assert again.shards is not pack.shards
        assert again[QUANTISED].tobytes() == held.tobytes()
        assert metadata["general.architecture"] == pack.metadata["general.architecture"]
        again.close()
        assert pack[QUANTISED].tobytes() == held.tobytes()


def test_relative_paths_and_another_folder(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    with gpack.open(model.name, expert_dir=".") as pack:
        wanted, data = pack[QUANTISED].tobytes(), pickle.dumps(pack)
        monkeypatch.chdir(tmp_path)
        with pickle.loads(pickle.dumps(pack.container)) as again:
            assert again.path == str(model)
    with pickle.loads(data) as moved:
        assert moved[QUANTISED].tobytes() == wanted


def test_another_file_at_the_path(tmp_path: Path) -> None:
    for name in ("a", "b"):
        convert_gguf(write_gguf(tmp_path / f"{name}.gguf", {}, [vector(name)]), tmp_path / f"{name}.gpack")
    with gpack.open(tmp_path / "a.gpack") as pack:
        data = pickle.dumps(pack)
        (tmp_path / "b.gpack").replace(tmp_path / "a.gpack")
        with pytest.raises(errors.DigestError) as caught:
            pickle.loads(data)
        assert caught.value.code == "pack.changed"
        (tmp_path / "a.gpack").unlink()
        with pytest.raises(errors.PathError) as gone:
            pickle.loads(data)
        assert gone.value.code == "io.not_found"
        assert pack["a"].shape == (8,)  # the open pack has its file still


def test_a_closed_pack_cannot_travel(model: Path) -> None:
    pack = gpack.open(model)
    pack.close()
    for travel in (pickle.dumps, copy.copy, copy.deepcopy):
        for thing in (pack, pack.container):
            with pytest.raises(errors.ClosedError):
                travel(thing)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("first", ["copy", "original"])
def test_copies_are_closed_each_alone(model: Path, way: Any, first: str) -> None:
    pack = gpack.open(model)
    made = way(pack)
    assert made.container.descriptor != pack.container.descriptor
    wanted = {name: pack[name].tobytes() for name in pack}
    closed, open_still = (made, pack) if first == "copy" else (pack, made)
    closed.close()
    assert {name: open_still[name].tobytes() for name in open_still} == wanted
    open_still.close()
    with pytest.raises(errors.ClosedError):
        list(open_still)


def test_a_copied_container_outlives_the_file_at_its_path(tmp_path: Path) -> None:
    convert_gguf(write_gguf(tmp_path / "m.gguf", {}, [vector("t")]), tmp_path / "m.gpack")
    with Container.open(tmp_path / "m.gpack") as container:
        (tmp_path / "m.gpack").unlink()
        with copy.copy(container) as made:
            assert made.read("ManifestJson") == container.read("ManifestJson")


def same(made: Any, tensor: Any) -> bool:
    facts = ("name", "ggml_type", "dims", "shape", "dtype")
    equal = all(getattr(made, fact) == getattr(tensor, fact) for fact in facts)
    return equal and type(made) is gpack.Tensor and made.tobytes() == tensor.tobytes()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_tensors_keep_name_and_type(model: Path, protocol: int) -> None:
    with gpack.open(model) as pack:
        made = {name: pickle.loads(pickle.dumps(pack[name], protocol)) for name in pack}
        assert all(same(made[name], pack[name]) for name in pack)
        assert {tensor.ggml_type for tensor in made.values()} >= {GgmlType.F32, GgmlType.Q4_0}
        values = {name: pack[name].dequantize() for name in pack}
    for name, tensor in made.items():  # the pack is closed
        assert not tensor.flags.writeable
        np.testing.assert_array_equal(tensor.dequantize(), values[name])


def test_tensors_out_of_band_are_not_copied_again(model: Path) -> None:
    with gpack.open(model) as pack:
        name = "blk.0.attn_q.weight"
        buffers: list[pickle.PickleBuffer] = []
        data = pickle.dumps(pack[name], 5, buffer_callback=buffers.append)
        assert len(buffers) == 1
        assert len(data) < 1000
        assert same(pickle.loads(data, buffers=buffers), pack[name])


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_and_parts_of_tensors(model: Path, way: Any) -> None:
    with gpack.open(model) as pack:
        parts: tuple[Any, ...] = (pack[QUANTISED], pack[QUANTISED][0], pack[QUANTISED][:, 1:])
        for part in parts:
            made = pickle.loads(way(part)) if way is pickle.dumps else way(part)
            assert same(made, part)
            assert not np.shares_memory(made, part)
            np.testing.assert_array_equal(made.dequantize(), part.dequantize())


def test_what_holds_the_number_of_an_open_file_does_not_travel(model: Path, tmp_path: Path) -> None:
    with gpack.open(model) as pack, SourceFile(model) as source, AtomicFile(tmp_path / "o", 1) as output:
        ranges = RangeFile(pack.container.descriptor, model, direct=False)
        place = pack.place(QUANTISED)
        for thing in (source, output, ranges, place, pack.shards.file(0)):
            for travel in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match="holds an open file"):
                    travel(thing)
        ranges.close()


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_workers_as_of_a_data_loader(model: Path, tmp_path: Path, method: str) -> None:
    with gpack.open(model) as pack:
        items = PackSet(pack)
        wanted = {index: items[index] for index in range(len(items))}
        found = through_workers(items, method, folder=str(tmp_path))
        assert found == wanted
        # The workers have ended, and what they closed was their own.
        assert {index: items[index] for index in range(len(items))} == wanted


def test_a_forked_child_closes_its_own(model: Path) -> None:
    with gpack.open(model) as pack:
        wanted = pack[QUANTISED].tobytes()
        child = os.fork()
        if not child:
            status = 1
            try:
                status = 0 if pack[QUANTISED].tobytes() == wanted else 2
                pack.close()
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert pack[QUANTISED].tobytes() == wanted
