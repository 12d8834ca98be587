"""Bytes are checked when they are first used: a damaged tensor is not given out, all others are."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from gguf_maker import F32, tiny_llama, tiny_moe, write_gguf
from sealed_packs import MIB, flip, place_of, sealed

import gpack
from gpack import errors
from gpack.cli import main
from gpack.container.reader import Container
from gpack.model import GuildModel
from gpack.model.lazy import LazyCheck
from gpack.model.load import LoadedModel

OPTIONS = ["-p", "hello", "--raw", "-n", "1", "--temp", "0", "--threads", "1"]


@pytest.fixture
def check(tmp_path: Path) -> Iterator[tuple[LazyCheck, int]]:
    """Of a section of three chunks and 100 bytes, whose start is given."""
    path = sealed(tmp_path / "a.gpack")
    start = place_of(path, "Data")
    flip(path, start + 2 * MIB + 9)
    with Container.open(path) as container:
        made = LazyCheck(container)
    yield made, start
    made.close()


def test_chunks_are_checked_once_and_when_asked_for(check: tuple[LazyCheck, int]) -> None:
    lazy, start = check
    assert lazy.n_checked == 0
    lazy.look(start + 5, 1)
    lazy.look(start, MIB)
    assert lazy.n_checked == 1
    lazy.look(start + MIB - 1, 2)  # one byte of each of two
    assert lazy.n_checked == 2
    lazy.look(start + 3 * MIB, 100)
    assert lazy.n_checked == 3
    for offset, length in ((start + 2 * MIB, 1), (start + 3 * MIB - 1, 1), (start, 3 * MIB)):
        with pytest.raises(errors.DigestError) as caught:
            lazy.look(offset, length)
        assert (caught.value.code, caught.value.offset) == ("chunks.digest", start + 2 * MIB)


def test_what_is_in_no_section_has_no_digest(check: tuple[LazyCheck, int]) -> None:
    lazy, start = check
    lazy.look(0, 64)  # the header
    lazy.look(start + 3 * MIB + 100, 1 << 40)
    assert lazy.n_checked == 0
    lazy.look(0, start)
    assert lazy.n_checked == 2  # the two tables


def _pack(tmp_path: Path, *, chunk_digests: str | None = "blake3") -> Path:
    """Two tensors of 2 MiB, each in chunks of its own but for one that they share."""
    values = [random.Random(n).randbytes(2 * MIB) for n in range(2)]
    tensors = [(name, F32, (MIB // 2,), data) for name, data in zip("ab", values, strict=True)]
    write_gguf(tmp_path / "m.gguf", [("general.architecture", "str", "t")], tensors)
    gpack.convert(tmp_path / "m.gguf", tmp_path / "m.gpack", chunk_digests=chunk_digests)
    return tmp_path / "m.gpack"


@pytest.mark.parametrize("io", ["mmap", "read"])
def test_a_damaged_tensor_is_not_given_out(tmp_path: Path, io: str) -> None:
    path = _pack(tmp_path)
    flip(path, place_of(path, "DensePackBlob") + 3 * MIB + 17)
    with LoadedModel.load(path, io=io) as model:
        assert model.tensors["b"].size  # nobody looks
    with LoadedModel.load(path, io=io, verify_all_hashes="lazy") as model:
        assert model.tensors["a"].tobytes() == random.Random(0).randbytes(2 * MIB)
        with pytest.raises(errors.DigestError) as caught:
            model.tensors["b"]
        assert caught.value.code == "chunks.digest"


@pytest.mark.parametrize("io", ["mmap", "read", "direct"])
def test_a_damaged_expert_is_not_given_out(tmp_path: Path, io: str) -> None:
    metadata, tensors = tiny_moe()
    gpack.convert(write_gguf(tmp_path / "m.gguf", metadata, tensors), tmp_path / "m.gpack", chunk_digests="sha256")
    path = tmp_path / "m.gpack"
    with LoadedModel.load(path, io=io, verify_all_hashes="lazy") as model:
        assert model.experts is not None
        layer = next(iter(model.experts.layers))
        model.experts.get(layer, 0)
    flip(path, place_of(path, "ExpertBlobs"))
    with LoadedModel.load(path, io=io, verify_all_hashes="lazy") as model:
        assert model.experts is not None
        with pytest.raises(errors.DigestError):
            model.experts.get(layer, 0)


def test_a_pack_without_digests_of_chunks(tmp_path: Path) -> None:
    with pytest.raises(errors.MissingError) as caught:
        LoadedModel.load(_pack(tmp_path, chunk_digests=None), verify_all_hashes="lazy")
    assert caught.value.code == "chunks.none"


# ---------------------------------------------------------------- running


@pytest.fixture(scope="module", params=["blake3", None])
def runnable(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that runs, with and without digests of chunks."""
    pytest.importorskip("numba")
    folder = tmp_path_factory.mktemp("runnable")
    metadata, tensors = tiny_llama(layers=1)
    write_gguf(folder / "m.gguf", metadata, tensors)
    gpack.convert(folder / "m.gguf", folder / "m.gpack", chunk_digests=request.param)
    return folder / "m.gpack"


def _matrix_place(path: Path) -> tuple[int, int]:
    with gpack.open(path) as pack:
        place = pack.place("blk.0.ffn_down.weight")
        return place.offset, place.length


def test_a_hole_in_a_file_is_no_matrix_of_zeros(
    runnable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Zeros where weights were: found before the first step, though nobody asked for a verify."""
    data = bytearray(runnable.read_bytes())
    start, length = _matrix_place(runnable)
    data[start : start + length] = bytes(length)
    path = tmp_path / "hole.gpack"
    path.write_bytes(data)
    assert main(["run", str(path), *OPTIONS]) == 1
    assert capsys.readouterr().err.endswith("[section.sha256]\n")
    with GuildModel.load(path) as model, pytest.raises(errors.DigestError), model.session():
        pass


def test_a_matrix_that_really_is_zero_runs(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    metadata, tensors = tiny_llama(layers=1)
    zeroed = [
        (name, kind, dims, bytes(len(data)) if name == "blk.0.ffn_down.weight" else data)
        for name, kind, dims, data in tensors
    ]
    assert any(not any(data) for name, _, dims, data in zeroed if math.prod(dims))
    write_gguf(tmp_path / "m.gguf", metadata, zeroed)
    for digests in ("blake3", None):
        gpack.convert(tmp_path / "m.gguf", tmp_path / "m.gpack", chunk_digests=digests)
        assert main(["run", str(tmp_path / "m.gpack"), *OPTIONS]) == 0
    assert main(["run", str(tmp_path / "m.gguf"), *OPTIONS]) == 0


def test_running_lazily(runnable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lazily = ["--verify=lazy", *OPTIONS]
    with gpack.open(runnable) as pack:
        digests = pack.container.find("ChunkDigests") is not None
    assert main(["run", str(runnable.with_suffix(".gguf")), *lazily]) == 2
    if not digests:
        assert main(["run", str(runnable), *lazily]) == 2
        assert "[chunks.none]" in capsys.readouterr().err
        return
    assert main(["run", str(runnable), *OPTIONS]) == 0
    plain = capsys.readouterr().out
    assert main(["run", str(runnable), *lazily]) == 0
    assert capsys.readouterr().out == plain
    path = tmp_path / "m.gpack"
    path.write_bytes(runnable.read_bytes())
    flip(path, _matrix_place(path)[0] + 3)
    assert main(["run", str(path), *lazily]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.endswith("[chunks.digest]\n")
