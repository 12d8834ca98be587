"""Routed experts at run time: the same bytes from every mode, and what the cache does."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_maker import tiny_moe, write_split

import gpack
from gpack import errors
from gpack.conformance.recipes.bases import everything
from gpack.convert.gguf import convert_gguf
from gpack.model.experts import Expert, FileExpertSource
from gpack.model.numa import Interleaver

EXPERT_BYTES = 2 * 32 * 64 // 32 * 18 + 32 * 64 * 2  # gate and up in Q4_0, down in F16
MODES: dict[str, dict[str, Any]] = {
    "read, no cache": {"budget_bytes": 0},
    "cache": {"budget_bytes": 1 << 20},
    "cache of one": {"budget_bytes": EXPERT_BYTES},
    "mmap": {"mmap": True},
    "mmap by name": {"io": "mmap"},
    "direct": {"io": "direct", "budget_bytes": 0},
    "direct, cached": {"io": "direct"},
    "interleaved": {"interleave": Interleaver([0, 1], mbind=lambda *_: 0)},
}


@pytest.fixture(scope="module", params=["separate", "fused"])
def packs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same model with its experts inside and outside."""
    folder = tmp_path_factory.mktemp("experts")
    source = write_split(folder, "m", *tiny_moe(fused=request.param == "fused"))[0]
    convert_gguf(source, folder / "e.gpack")
    convert_gguf(source, folder / "x.gpack", external_experts=True)
    return {"embedded": folder / "e.gpack", "external": folder / "x.gpack"}


def expected(path: Path, layer: int, expert: int) -> list[bytes]:
    """Gate, up and down as the tensors have them."""
    with gpack.open(path) as pack:
        down = pack[f"blk.{layer}.ffn_down_exps.weight"][expert].tobytes()
        if f"blk.{layer}.ffn_gate_exps.weight" in pack:
            parts = [pack[f"blk.{layer}.ffn_{part}_exps.weight"][expert].tobytes() for part in ("gate", "up")]
            return [*parts, down]
        both = pack[f"blk.{layer}.ffn_gate_up_exps.weight"][expert].tobytes()
        return [both[: len(both) // 2], both[len(both) // 2 :], down]


def octets(expert: Expert) -> list[bytes]:
    return [b"" if matrix is None else matrix.tobytes() for matrix in expert]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["embedded", "external"])
def test_every_mode_gives_the_same_bytes(kind: str, mode: str, packs: dict[str, Path]) -> None:
    with FileExpertSource.open_gpack(packs[kind], **MODES[mode]) as source:
        assert list(source.layers) == [1, 2]
        for _ in range(2):
            for layer in source.layers:
                for number in range(source.layers[layer].n_expert):
                    found = source.get(layer, number)
                    assert octets(found) == expected(packs["embedded"], layer, number)
                    assert found.gate is not None
                    assert [found.gate.dims, found.up.dims, found.down.dims] == [(64, 32), (64, 32), (32, 64)]
                    assert [found.gate.type_name, found.down.type_name] == ["Q4_0", "F16"]
                    assert not found.up.flags.writeable


def test_an_embedded_expert_is_one_read(packs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    preadv = os.preadv

    def count(descriptor: int, buffers: Any, offset: int) -> int:
        calls.append(offset)
        return preadv(descriptor, buffers, offset)

    with FileExpertSource.open_gpack(packs["embedded"], budget_bytes=0) as source:
        monkeypatch.setattr(os, "preadv", count)
        source.get(1, 3)
        assert len(calls) == 1
        assert calls[0] % 4096 == 0


def test_a_layer_without_gates_and_one_of_drafts(tmp_path: Path) -> None:
    path = tmp_path / "e.gpack"
    path.write_bytes(everything())
    with FileExpertSource.open_gpack(path) as source, gpack.open(path) as pack:
        assert sorted(source.layers) == [1, 2, 3]  # 3 is the draft layer
        drafts = source.get(3, 1)
        assert drafts.down.tobytes() == pack["blk.3.ffn_down_exps.weight"][1].tobytes()


# ---------------------------------------------------------------- the cache


def test_the_cache_counts_and_keeps_to_its_budget(packs: dict[str, Path]) -> None:
    with FileExpertSource.open_gpack(packs["embedded"], budget_bytes=2 * EXPERT_BYTES) as source:
        first = source.get(1, 0)
        assert source.get(1, 0) is first
        source.get(1, 1)
        assert (source.counts.hits, source.counts.misses, source.counts.evictions) == (1, 2, 0)
        assert source.counts.cached_bytes == 2 * EXPERT_BYTES
        source.get(1, 0)  # used last: expert 1 has to go
        source.get(1, 2)
        assert source.counts.evictions == 1
        assert source.get(1, 0) is first
        before = source.counts.misses
        source.get(1, 1)
        assert source.counts.misses == before + 1
        assert source.counts.cached_bytes == 2 * EXPERT_BYTES
        assert octets(first) == expected(packs["embedded"], 1, 0)


def test_an_expert_larger_than_the_budget_is_not_kept(packs: dict[str, Path]) -> None:
    with FileExpertSource.open_gpack(packs["embedded"], budget_bytes=EXPERT_BYTES - 1) as source:
        source.get(1, 0)
        source.get(1, 0)
        assert (source.counts.hits, source.counts.misses, source.counts.cached_bytes) == (0, 2, 0)
        assert source.counts.read_bytes == 2 * EXPERT_BYTES


def test_arrays_outlive_cache_source_and_pack(packs: dict[str, Path]) -> None:
    for options in ({"budget_bytes": EXPERT_BYTES}, {"mmap": True}):
        pack = gpack.open(packs["external"])
        source = FileExpertSource.open_gpack(pack, **options)
        pack.close()
        held = [source.get(layer, number) for layer in (1, 2) for number in range(4)]
        source.close()
        wanted = [expected(packs["embedded"], layer, number) for layer in (1, 2) for number in range(4)]
        assert list(map(octets, held)) == wanted


def test_many_threads_read_an_expert_once(packs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    original = FileExpertSource._read

    def slow(self: FileExpertSource, layer: Any, expert: int) -> Any:
        reads.append(expert)
        barrier.wait(timeout=0.2) if len(reads) == 1 else None
        return original(self, layer, expert)

    class Barrier:
        def wait(self, timeout: float) -> None:
            threading.Event().wait(timeout)

    barrier = Barrier()
    monkeypatch.setattr(FileExpertSource, "_read", slow)
    results: list[Expert] = []
    with FileExpertSource.open_gpack(packs["external"], budget_bytes=1 << 20) as source:
        threads = [threading.Thread(target=lambda: results.append(source.get(2, 1))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert reads == [1]
        assert (source.counts.hits, source.counts.misses) == (7, 1)
    assert len(results) == 8
    assert all(octets(result) == expected(packs["embedded"], 2, 1) for result in results)


def test_threads_at_random_get_the_right_experts(packs: dict[str, Path]) -> None:
    import random

    wanted = {(layer, n): expected(packs["embedded"], layer, n) for layer in (1, 2) for n in range(4)}
    faults: list[object] = []
    with FileExpertSource.open_gpack(packs["external"], budget_bytes=3 * EXPERT_BYTES) as source:

        def work(seed: int) -> None:
            rng = random.Random(seed)
            for _ in range(100):
                key = rng.choice(list(wanted))
                if octets(source.get(*key)) != wanted[key]:
                    faults.append(key)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert source.counts.hits + source.counts.misses == 600
        assert source.counts.cached_bytes <= 3 * EXPERT_BYTES
    assert not faults


def test_a_failed_read_is_tried_again(packs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with FileExpertSource.open_gpack(packs["external"]) as source:
        with monkeypatch.context() as patch:
            patch.setattr(os, "preadv", fail)
            with pytest.raises(errors.PathError) as caught:
                source.get(1, 0)
        assert caught.value.code == "io.read"
        assert caught.value.path is not None
        assert octets(source.get(1, 0)) == expected(packs["embedded"], 1, 0)


# ---------------------------------------------------------------- choosing a mode


def test_the_environment_asks_for_maps(packs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for value, io in (("1", "mmap"), ("0", "read"), ("", "read")):
        monkeypatch.setenv("GUILD_EXPERT_MMAP", value)
        with FileExpertSource.open_gpack(packs["embedded"]) as source:
            assert source.io == io
        with FileExpertSource.open_gpack(packs["embedded"], mmap=False) as source:
            assert source.io == "read"


def test_mapped_experts_are_views_of_the_file(packs: dict[str, Path]) -> None:
    with FileExpertSource.open_gpack(packs["embedded"], mmap=True) as source:
        first, again = source.get(1, 0), source.get(1, 0)
        assert first.up.ctypes.data == again.up.ctypes.data
        assert first.up.ctypes.data + first.up.nbytes == first.down.ctypes.data


def test_refused_maps_are_read_instead(
    packs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import mmap

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENODEV, "No such device")

    with gpack.open(packs["embedded"]) as pack:
        _ = pack.tensors
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(mmap, "mmap", refuse)
            source = FileExpertSource.open_gpack(pack, mmap=True)
        with source:
            assert source.io == "read"
            assert octets(source.get(2, 3)) == expected(packs["embedded"], 2, 3)
    assert len(caplog.records) == 1
    assert "reading experts instead" in caplog.text


@pytest.mark.parametrize("moment", ["open", "read"])
def test_refused_direct_reads_go_through_the_page_cache(
    moment: str, packs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opener, preadv = os.open, os.preadv

    def refuse_open(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return opener(path, flags, *args, **options)

    def refuse_read(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        import fcntl

        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "open" if moment == "open" else "preadv", refuse_open if moment == "open" else refuse_read)
    with caplog.at_level(logging.WARNING), FileExpertSource.open_gpack(packs["embedded"], io="direct") as source:
        for layer in (1, 2):
            for number in range(4):
                assert octets(source.get(layer, number)) == expected(packs["embedded"], layer, number)
        assert source.io == "read"
    assert len(caplog.records) == 1
    assert "direct reads are refused (Invalid argument)" in caplog.text


@pytest.mark.parametrize("options", [{"mmap": True}, {"budget_bytes": 0}, {"io": "direct", "budget_bytes": 0}])
def test_a_file_that_is_cut_meanwhile(options: dict[str, Any], tmp_path: Path) -> None:
    source = write_split(tmp_path, "m", *tiny_moe())[0]
    convert_gguf(source, tmp_path / "x.gpack", external_experts=True)
    with FileExpertSource.open_gpack(tmp_path / "x.gpack", **options) as experts:
        experts.get(2, 3)
        os.truncate(tmp_path / "m-00003-of-00003.gguf", 4096)
        with pytest.raises(errors.PathError) as caught:
            experts.get(2, 3)
    assert caught.value.code == "io.short_read"


def test_what_cannot_be(packs: dict[str, Path], tmp_path: Path) -> None:
    with FileExpertSource.open_gpack(packs["embedded"]) as source:
        for layer, expert in ((0, 0), (1, 4), (1, -1), (9, 0)):
            with pytest.raises(errors.MissingError) as missing:
                source.get(layer, expert)
            assert missing.value.code == "experts.missing"
    bad: Sequence[dict[str, Any]] = ({"io": "fast"}, {"budget_bytes": -1}, {"io": "read", "mmap": True})
    for options in bad:
        with pytest.raises(errors.UsageError):
            FileExpertSource.open_gpack(packs["embedded"], **options)
    moved = tmp_path / "x.gpack"
    moved.write_bytes(packs["external"].read_bytes())
    with pytest.raises(errors.PathError) as caught:
        FileExpertSource.open_gpack(moved)
    assert caught.value.code == "shard.missing"
    with FileExpertSource.open_gpack(moved, expert_dir=packs["external"].parent) as source:
        assert octets(source.get(1, 1)) == expected(packs["embedded"], 1, 1)


def test_nothing_stays_open(packs: dict[str, Path]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for options in MODES.values():
        FileExpertSource.open_gpack(packs["external"], **options).close()
    assert len(os.listdir("/proc/self/fd")) == before


# --- what is asked wrongly ---


@pytest.mark.parametrize("said", ["yes", "true", "2", " 1"])
def test_a_variable_that_says_neither_yes_nor_no(
    said: str, packs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUILD_EXPERT_MMAP", said)
    with pytest.raises(errors.UsageError, match="GUILD_EXPERT_MMAP") as caught:
        FileExpertSource.open_gpack(packs["embedded"])
    assert (caught.value.code, caught.value.exit_code) == ("usage", 2)
    # Who says what they want needs no variable.
    FileExpertSource.open_gpack(packs["embedded"], mmap=False).close()
    FileExpertSource.open_gpack(packs["embedded"], io="read").close()


@pytest.mark.parametrize(("said", "io"), [("1", "mmap"), ("0", "read"), ("", "read")])
def test_what_the_variable_may_say(said: str, io: str, packs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUILD_EXPERT_MMAP", said)
    with FileExpertSource.open_gpack(packs["embedded"]) as source:
        assert source.io == io


@pytest.mark.parametrize("io", ["mmap", "read"])
def test_a_closed_source(io: str, packs: dict[str, Path]) -> None:
    source = FileExpertSource.open_gpack(packs["embedded"], io=io)
    held = source.get(1, 0)
    source.get(1, 0)
    source.close()
    source.close()
    with pytest.raises(errors.ClosedError) as caught:
        source.get(1, 0)
    assert caught.value.code == "pack.closed"
    assert octets(held) == expected(packs["embedded"], 1, 0)


@pytest.mark.parametrize(("layer", "expert"), [("1", 0), (1, None), (1.0, 0), (True, 0), (1, [0])])
def test_numbers_that_are_none(layer: Any, expert: Any, packs: dict[str, Path]) -> None:
    with FileExpertSource.open_gpack(packs["embedded"]) as source:
        with pytest.raises(errors.UsageError, match="not a number"):
            source.get(layer, expert)
        assert octets(source.get(np.int64(1), np.uint8(2))) == expected(packs["embedded"], 1, 2)


@pytest.mark.parametrize(
    "options",
    [
        {"budget_bytes": "1"},
        {"budget_bytes": 1.5},
        {"budget_bytes": True},
        {"mmap": "yes"},
        {"interleave": 3},
        {"io": 1},
    ],
)
def test_options_that_are_none(options: dict[str, Any], packs: dict[str, Path]) -> None:
    with pytest.raises(errors.UsageError) as caught:
        FileExpertSource.open_gpack(packs["embedded"], **options)
    assert caught.value.field == next(iter(options))
    with pytest.raises(errors.UsageError, match="int is no pack"):
        FileExpertSource.open_gpack(7)  # type: ignore[arg-type]
    folders: tuple[Any, ...] = (7, [], b"x")
    for folder in folders:
        with pytest.raises(errors.UsageError, match="is no path") as caught:
            FileExpertSource.open_gpack(packs["external"], expert_dir=folder)
        assert caught.value.field == "expert_dir"
    pack = gpack.open(packs["embedded"])
    pack.close()
    with pytest.raises(errors.ClosedError):
        FileExpertSource.open_gpack(pack)
