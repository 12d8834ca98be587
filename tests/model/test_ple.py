"""The table of per-layer embeddings: the same rows from both modes, bounded memory, and what file systems refuse."""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_maker import Tensor, write_gguf

import gpack
from gpack import errors
from gpack.conformance.recipes.bases import everything, plain
from gpack.convert.gguf import convert_gguf
from gpack.generated.constants import GgmlType, SectionKind
from gpack.model import ple
from gpack.model.aio import ReadQueue, open_queue
from gpack.model.ple import PleIo, PleTable
from gpack.quants import dequantize

ROWS, WIDTH, ROW_BYTES = 5000, 160, 90  # 5 blocks of IQ4_NL, 18 bytes each: rows straddle pages
START = 1234  # of the table in the file: no multiple of anything


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A file with a table somewhere inside, and the table."""
    path = tmp_path_factory.mktemp("ple") / "table"
    values = np.random.default_rng(1).integers(0, 256, (ROWS, ROW_BYTES), np.uint8)
    path.write_bytes(b"\x55" * START + values.tobytes() + b"\x55" * 77)
    return path, values


@pytest.fixture(params=["queue", "threads"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Reads in a queue of the kernel, or by threads where there is none."""
    if request.param == "threads":
        monkeypatch.setattr(ple, "open_queue", lambda _: None)
    elif (queue := open_queue(4)) is None:
        pytest.skip("this system has no queue of reads")
    else:
        queue.close()
    return str(request.param)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ple, "open_queue", lambda _: None)


def open_table(path: Path, **options: Any) -> PleTable:
    shape: dict[str, Any] = {"ggml_type": GgmlType.IQ4_NL, "ne0": WIDTH, "ne1": ROWS}
    return PleTable.open_raw(path, START, **(shape | options))


@pytest.mark.parametrize("io", PleIo)
@pytest.mark.parametrize("cache_bytes", [0, 720, 100 << 10, 64 << 20])
@pytest.mark.usefixtures("way")
def test_rows_are_those_of_the_file(table: tuple[Path, Any], io: PleIo, cache_bytes: int) -> None:
    path, values = table
    rng = np.random.default_rng(2)
    with open_table(path, io=io, cache_bytes=cache_bytes) as opened:
        for shape in ((1,), (16,), (7, 16), (3, 2, 50), (0,)):
            for _ in range(4):
                ids = rng.integers(0, ROWS, shape)
                rows = opened.rows(ids)
                assert rows.shape == (*shape, ROW_BYTES)
                assert np.array_equal(rows, values[ids])
        assert np.array_equal(opened.rows([0, ROWS - 1, 0]), values[[0, ROWS - 1, 0]])
        assert np.array_equal(opened.rows(np.arange(ROWS)), values)


@pytest.mark.parametrize("io", PleIo)
def test_values_are_those_of_the_dequantiser(table: tuple[Path, Any], io: PleIo) -> None:
    path, values = table
    with open_table(path, io=io) as opened:
        found = opened.values([[3, 9], [4999, 3]])
    assert found.shape == (2, 2, WIDTH)
    assert np.array_equal(found, dequantize(values[[[3, 9], [4999, 3]]], GgmlType.IQ4_NL), equal_nan=True)


@pytest.mark.usefixtures("way")
def test_rows_longer_than_a_page(tmp_path: Path) -> None:
    values = np.random.default_rng(3).integers(0, 256, (40, 9000), np.uint8)
    path = tmp_path / "wide"
    path.write_bytes(b"x" * 5 + values.tobytes())
    for io in PleIo:
        with PleTable.open_raw(path, 5, ggml_type=GgmlType.U8, ne0=9000, ne1=40, io=io) as opened:
            ids = [39, 0, 7, 8, 7]
            assert np.array_equal(opened.rows(ids), values[ids])


def test_the_cache_counts(table: tuple[Path, Any]) -> None:
    path, values = table
    with open_table(path, io=PleIo.Direct) as opened:
        opened.rows([1, 2, 3, 3, 3])
        assert (opened.counts.hits, opened.counts.misses) == (0, 3)  # asked for once each
        reads = opened.counts.reads
        assert np.array_equal(opened.rows([2, 3, 4]), values[[2, 3, 4]])
        assert (opened.counts.hits, opened.counts.misses) == (2, 4)
        assert opened.counts.reads == reads + 1
        assert opened.counts.hit_rate == pytest.approx(2 / 6)
        assert opened.counts.read_bytes % 4096 == 0


def test_neighbours_share_a_read(table: tuple[Path, Any]) -> None:
    path, _ = table
    with open_table(path, io=PleIo.Direct, reads_in_flight=1) as opened:
        opened.rows(np.arange(100))  # 9000 bytes from byte 1234 on: three pages in a row
        assert (opened.counts.reads, opened.counts.read_bytes) == (1, 3 * 4096)


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="no O_DIRECT")
@pytest.mark.usefixtures("threads")
def test_direct_reads_are_aligned(table: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes

    path, _ = table
    preadv = os.preadv
    seen = []

    def check(descriptor: int, buffers: Any, offset: int) -> int:
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffers[0]))
        seen.append((offset % 4096, len(buffers[0]) % 4096, address % 4096))
        return preadv(descriptor, buffers, offset)

    with open_table(path, io=PleIo.Direct) as opened:
        if not opened.direct:
            pytest.skip(opened.fallback)
        monkeypatch.setattr(os, "preadv", check)
        opened.rows(np.random.default_rng(4).integers(0, ROWS, 300))
        monkeypatch.undo()
        assert not opened.fallback
    assert seen
    assert set(seen) == {(0, 0, 0)}


@pytest.mark.usefixtures("threads")
def test_several_reads_are_under_way_at_a_time(table: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    path, values = table
    preadv = os.preadv
    together = threading.Barrier(4)
    met: list[int] = []

    def meet(descriptor: int, buffers: Any, offset: int) -> int:
        if len(met) < 4:
            met.append(offset)
            together.wait(timeout=10)  # breaks where reads come one after the other
        return preadv(descriptor, buffers, offset)

    with open_table(path, io=PleIo.Direct, reads_in_flight=4) as opened:
        monkeypatch.setattr(os, "preadv", meet)
        ids = [0, 1000, 2000, 3000, 4000]
        assert np.array_equal(opened.rows(ids), values[ids])


@pytest.mark.usefixtures("way")
def test_many_threads(table: tuple[Path, Any]) -> None:
    path, values = table
    faults: list[int] = []
    for io in PleIo:
        with open_table(path, io=io, cache_bytes=50 << 10) as opened:

            def work(seed: int, opened: PleTable = opened) -> None:
                rng = np.random.default_rng(seed)
                for _ in range(30):
                    ids = rng.integers(0, ROWS, 64)
                    if not np.array_equal(opened.rows(ids), values[ids]):
                        faults.append(seed)

            threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert not faults


# ---------------------------------------------------------------- packs


@pytest.mark.parametrize("io", PleIo)
def test_the_table_of_a_pack(io: PleIo, tmp_path: Path) -> None:
    path = tmp_path / "e.gpack"
    path.write_bytes(everything())
    with gpack.open(path) as pack:
        whole = np.array(pack["per_layer_token_embd.weight"])
        opened = PleTable.open_gpack(pack, io=io)
        entry = pack.container.entry(SectionKind.PLE_BLOB)
    with opened:  # the pack is closed
        assert (opened.ne0, opened.ne1, opened.ggml_type) == (64, 5, GgmlType.Q8_0)
        assert np.array_equal(opened.rows([4, 0, 2]), whole[[4, 0, 2]])
    raw = PleTable.open_raw(path, entry.offset + 64, ggml_type=GgmlType.Q8_0, ne0=64, ne1=5, io=io)
    with raw, PleTable.open_gpack(path, io=io) as again:
        assert np.array_equal(raw.rows(range(5)), whole)
        assert np.array_equal(again.rows(range(5)), whole)


def test_a_pack_without_a_table(tmp_path: Path) -> None:
    path = tmp_path / "p.gpack"
    path.write_bytes(plain())
    with pytest.raises(errors.MissingError) as caught:
        PleTable.open_gpack(path)
    assert caught.value.code == "ple.missing"


def test_a_table_much_larger_than_memory(tmp_path: Path) -> None:
    """200 GiB, all of it a hole but for three rows: rows come at once, and memory stays small."""
    rows = (200 << 30) // ROW_BYTES
    path = tmp_path / "huge"
    marked = {0: 1, rows // 2: 2, rows - 1: 3}
    try:
        with path.open("wb") as file:
            file.truncate(START + rows * ROW_BYTES)
            for row, value in marked.items():
                file.seek(START + row * ROW_BYTES)
                file.write(bytes([value]) * ROW_BYTES)
    except OSError as error:
        pytest.skip(f"the file system takes no file of 200 GiB: {error}")
    for io in PleIo:
        with open_table(path, ne1=rows, io=io) as opened:
            if io is PleIo.Mmap and opened.fallback:
                continue  # too little address space; read instead, which Direct shows as well
            before = _resident()
            ids = np.random.default_rng(5).integers(0, rows, 4000)
            ids[:3] = list(marked)
            found = opened.rows(ids)
            assert [set(row.tolist()) for row in found[:3]] == [{1}, {2}, {3}]
            assert not found[3:][~np.isin(ids[3:], list(marked))].any()
            assert _resident() - before < 256 << 20


def _resident() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return int(next(line for line in file if line.startswith("RssAnon:")).split()[1]) << 10


def test_a_real_table_goes_through_a_conversion(tmp_path: Path) -> None:
    values = np.random.default_rng(6).integers(0, 256, (300, ROW_BYTES), np.uint8)
    tensor: Tensor = ("per_layer_token_embd.weight", GgmlType.IQ4_NL, (WIDTH, 300), values.tobytes())
    source = write_gguf(tmp_path / "m.gguf", {"general.architecture": "qwen4exp"}, [tensor])
    convert_gguf(source, tmp_path / "m.gpack")
    for io in PleIo:
        with PleTable.open_gpack(tmp_path / "m.gpack", io=io) as opened:
            assert np.array_equal(opened.rows(range(300)), values)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("moment", ["open", "read"])
@pytest.mark.usefixtures("threads")
def test_direct_falls_back_where_the_file_system_refuses_and_says_so(
    moment: str, table: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, values = table
    opener, preadv = os.open, os.preadv

    def refuse_open(name: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return opener(name, flags, *args, **options)

    def refuse_read(descriptor: int, buffers: Any, offset: int) -> int:
        import fcntl

        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "open" if moment == "open" else "preadv", refuse_open if moment == "open" else refuse_read)
    with caplog.at_level(logging.WARNING), open_table(path, io=PleIo.Direct, reads_in_flight=1) as opened:
        ids = np.random.default_rng(7).integers(0, ROWS, 200)
        assert np.array_equal(opened.rows(ids), values[ids])
        assert not opened.direct
        assert opened.fallback == "Invalid argument"
        assert opened.io is PleIo.Direct
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "direct reads are refused (Invalid argument): reading through the page cache" in caplog.text


def test_mmap_falls_back_too(
    table: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import mmap

    path, values = table
    original = mmap.mmap

    def refuse(descriptor: int, *args: Any, **options: Any) -> Any:
        if descriptor >= 0:
            raise OSError(errno.ENODEV, "No such device")
        return original(descriptor, *args, **options)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(mmap, "mmap", refuse)
        opened = open_table(path, io=PleIo.Mmap)
        with opened:
            assert np.array_equal(opened.rows([5, 4998]), values[[5, 4998]])
            assert "cannot be mapped" in opened.fallback
    assert len(caplog.records) == 1


@pytest.mark.parametrize("io", PleIo)
def test_rows_that_there_are_not(table: tuple[Path, Any], io: PleIo) -> None:
    path, _ = table
    with open_table(path, io=io) as opened:
        for ids in ([-1], [0, ROWS], [1 << 60]):
            with pytest.raises(errors.BoundsError) as caught:
                opened.rows(ids)
            assert caught.value.code == "ple.row"
            assert str(ids[-1]) in caught.value.message


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"ne1": ROWS + 1}, "ple.bounds"),
        ({"ne1": 1 << 60}, "ple.bounds"),
        ({"ne1": -1}, "ple.bounds"),
        ({"ne0": 161}, "ple.shape"),
        ({"ne0": 0}, "ple.shape"),
        ({"ggml_type": 4}, "ple.shape"),
    ],
)
@pytest.mark.parametrize("io", PleIo)
def test_tables_that_cannot_be(table: tuple[Path, Any], io: PleIo, options: dict[str, int], code: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(errors.GpackError) as caught:
        open_table(table[0], io=io, **options)
    assert caught.value.code == code
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("io", PleIo)
@pytest.mark.usefixtures("way")
def test_a_table_that_is_cut_meanwhile(table: tuple[Path, Any], io: PleIo, tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(table[0].read_bytes())
    with open_table(path, io=io) as opened:
        opened.rows([0])
        os.truncate(path, 5000)
        with pytest.raises(errors.PathError) as caught:
            opened.rows([ROWS - 1, ROWS - 1000])
    assert caught.value.code == "io.short_read"


def test_a_disk_that_fails(table: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with open_table(table[0], io=PleIo.Direct) as opened:
        monkeypatch.setattr(os, "preadv", fail)
        with pytest.raises(errors.PathError) as caught:
            opened.rows([1])
        assert caught.value.code == "io.read"
        monkeypatch.undo()
        assert np.array_equal(opened.rows([1]), table[1][[1]])


@pytest.mark.parametrize("answer", [-22, 0, 100])
def test_queued_reads_that_fail_are_read_once_more(
    table: tuple[Path, Any], answer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A negative error number, nothing, or too little: what the kernel answers for single reads."""
    queue = open_queue(8)
    if queue is None:
        pytest.skip("this system has no queue of reads")
    queue.close()
    original = ReadQueue.read

    def fail(self: Any, *arguments: Any) -> Any:
        found = original(self, *arguments)
        found[::2] = answer
        return found

    monkeypatch.setattr(ReadQueue, "read", fail)
    with open_table(table[0], io=PleIo.Direct) as opened:
        ids = np.random.default_rng(8).integers(0, ROWS, 100)
        assert np.array_equal(opened.rows(ids), table[1][ids])


def test_a_queue_that_is_refused(table: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(ReadQueue, "_call", refuse)
    assert open_queue(4) is None
    with open_table(table[0], io=PleIo.Direct) as opened:
        assert np.array_equal(opened.rows([7, 700, 4700]), table[1][[7, 700, 4700]])


def test_missing_files(tmp_path: Path) -> None:
    for name, code in (("none", "io.not_found"), ("folder", "io.not_a_file")):
        (tmp_path / "folder").mkdir(exist_ok=True)
        with pytest.raises(errors.PathError) as caught:
            open_table(tmp_path / name)
        assert caught.value.code == code


def test_modes_by_name(table: tuple[Path, Any]) -> None:
    path, values = table
    for name in ("mmap", "direct"):
        with open_table(path, io=name) as opened:
            assert opened.io is PleIo(name)
            assert (opened.rows([3, 4999]) == values[[3, 4999]]).all()
    with pytest.raises(errors.UsageError, match="no mode 'map'"):
        open_table(path, io="map")


def test_rows_that_are_no_integers_and_closed_tables(table: tuple[Path, Any]) -> None:
    opened = open_table(table[0])
    for ids in ([1.0], ["a"], [2**70], [[1], [1, 2]], [None], True, object()):
        with pytest.raises(errors.UsageError, match="by integers"):
            opened.rows(ids)  # type: ignore[arg-type]
    opened.rows([1])
    opened.close()
    for ask in (opened.rows, opened.values):
        with pytest.raises(errors.ClosedError):
            ask([1])


@pytest.mark.parametrize("value", ["1", None, 1.0, True, [1]])
@pytest.mark.parametrize("field", ["ggml_type", "ne0", "ne1", "cache_bytes", "reads_in_flight"])
def test_numbers_that_are_none(table: tuple[Path, Any], field: str, value: Any) -> None:
    with pytest.raises(errors.UsageError) as caught:
        open_table(table[0], **{field: value})
    assert (caught.value.code, caught.value.field) == ("usage", field)


def test_sizes_that_cannot_be(table: tuple[Path, Any]) -> None:
    for options in ({"cache_bytes": -1}, {"reads_in_flight": 0}):
        with pytest.raises(errors.UsageError) as caught:
            open_table(table[0], **options)
        assert caught.value.field in options
    bad: tuple[Any, ...] = (7, None, [])
    for path in bad:
        with pytest.raises(errors.UsageError, match="is no path"):
            open_table(path)
