"""Ctrl-C between any two steps, and reads that do not end: later calls are right, and `close` waits for nobody."""

from __future__ import annotations

import concurrent.futures
import linecache
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import numpy as np
import pytest
from gguf_maker import tiny_moe, write_gguf

import gpack
from gpack import errors
from gpack.container.workers import Workers
from gpack.convert.gguf import convert_gguf
from gpack.generated.constants import GgmlType
from gpack.model import ple
from gpack.model.aio import ReadQueue, open_queue
from gpack.model.direct import RangeFile
from gpack.model.experts import FileExpertSource
from gpack.model.ple import PleTable
from gpack.model.row_cache import RowCache

PLACES = (os.path.dirname(gpack.__file__), threading.__file__, os.path.dirname(concurrent.futures.__file__))
ROWS, ROW_BYTES = 4000, 90
T = TypeVar("T")
PATIENCE = 60  # seconds until a test gives up; nothing here takes long


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = tmp_path_factory.mktemp("interrupts") / "table"
    values = np.random.default_rng(1).integers(0, 256, (ROWS, ROW_BYTES), np.uint8)
    path.write_bytes(values.tobytes())
    return path, values


def open_table(path: Path, **options: Any) -> PleTable:
    return PleTable.open_raw(path, 0, ggml_type=GgmlType.IQ4_NL, ne0=160, ne1=ROWS, **options)


@contextmanager
def interrupted(step: int) -> Iterator[list[int]]:
    """Raises KeyboardInterrupt where a signal might, at the n-th such place; yields the line where that was.

    Those are the lines and the ends of functions of the package and of Python's modules for threads. Not lines that
    begin with `with`, which come once more when the block ends: the interpreter handles no signal between a block's end
    and the release of its lock.
    """
    left, hit = [step], []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        path = frame.f_code.co_filename
        if not path.startswith(PLACES):
            return None
        line = linecache.getline(path, frame.f_lineno).lstrip()
        if event == "return" or (event == "line" and not line.startswith("with ")):
            left[0] -= 1
            if left[0] == 0:
                hit.append(frame.f_lineno)
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield hit
    finally:
        sys.settrace(before)


def elsewhere(ask: Callable[[], T]) -> T:
    """What another thread gets; it must not wait for what an interrupt has ended."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(ask()), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert len(results) == 1
    return results[0]


@pytest.mark.parametrize("way", ["queue", "threads"])
def test_rows_are_right_wherever_an_interrupt_ended_a_call(
    way: str, table: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "threads":
        monkeypatch.setattr(ple, "open_queue", lambda _: None)
    elif (queue := open_queue(4)) is None:
        pytest.skip("this system has no queue of reads")
    else:
        queue.close()
    path, values = table
    rng = np.random.default_rng(2)
    steps = 0
    with open_table(path, cache_bytes=20 << 10, reads_in_flight=4) as opened:
        while True:
            steps += 1
            ids = rng.integers(0, ROWS, 60)
            with interrupted(steps) as hit:
                try:
                    found = opened.rows(ids)
                except KeyboardInterrupt:
                    found = None
            assert (found is None) == bool(hit)
            again = rng.integers(0, ROWS, 60)
            assert np.array_equal(elsewhere(partial(opened.rows, again)), values[again])
            if found is not None:
                assert np.array_equal(found, values[ids])
                break
    assert steps > 40  # so many lines were ended by an interrupt


def test_a_queue_keeps_the_memory_that_is_still_being_written(
    table: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if (queue := open_queue(8)) is None:
        pytest.skip("this system has no queue of reads")
    queue.close()
    path, values = table

    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    with open_table(path) as opened:
        opened.rows([0, 100])
        with monkeypatch.context() as patch:
            patch.setattr(ReadQueue, "_wait", interrupt)
            with pytest.raises(KeyboardInterrupt):
                opened.rows([1000, 2000, 3000])
        left = opened._queue
        assert left is not None
        assert left._target is not None
        assert opened._arena is None
        assert np.array_equal(opened.rows([1000, 2000, 3000]), values[[1000, 2000, 3000]])
        assert left._target is None


def stop_reading(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Reads of files wait until the second event; the first one tells that one does."""
    waits, go = threading.Event(), threading.Event()
    preadv = os.preadv

    def stuck(descriptor: int, buffers: Any, offset: int) -> int:
        waits.set()
        go.wait(PATIENCE)
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", stuck)
    return waits, go


def test_closing_a_table_waits_for_no_read(table: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ple, "open_queue", lambda _: None)
    path, values = table
    before = len(os.listdir("/proc/self/fd"))
    opened = open_table(path, reads_in_flight=2)
    waits, go = stop_reading(monkeypatch)
    results: list[Any] = []

    def read() -> None:
        try:
            results.append(opened.rows([5, 1000, 3999]))
        except errors.ClosedError as error:
            results.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]  # one reads, the other waits for its turn
    for thread in threads:
        thread.start()
    assert waits.wait(PATIENCE)
    opened.close()
    opened.close()
    assert not go.is_set()
    with pytest.raises(errors.ClosedError):
        opened.rows([1])
    go.set()
    for thread in threads:
        thread.join(PATIENCE)
    # Who was at it has rows; who comes later is told that the table was closed.
    for result in results:
        assert isinstance(result, errors.ClosedError) or np.array_equal(result, values[[5, 1000, 3999]])
    assert len(results) == 2
    assert opened._arena is None
    assert opened._threads._started == 0
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def experts(tmp_path: Path) -> Path:
    convert_gguf(write_gguf(tmp_path / "m.gguf", *tiny_moe()), tmp_path / "m.gpack")
    return tmp_path / "m.gpack"


def test_closing_experts_waits_for_no_read(experts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = FileExpertSource.open_gpack(experts)
    wanted = source.get(1, 1).up.tobytes()
    waits, go = stop_reading(monkeypatch)
    results: list[bytes] = []
    thread = threading.Thread(target=lambda: results.append(source.get(1, 0).up.tobytes()))
    thread.start()
    assert waits.wait(PATIENCE)
    source.close()
    assert not go.is_set()
    with pytest.raises(errors.ClosedError):
        source.get(1, 1)
    go.set()
    thread.join(PATIENCE)
    assert [len(result) for result in results] == [len(wanted)]
    assert source.counts.cached_bytes == 0


def test_experts_come_wherever_an_interrupt_ended_a_call(experts: Path) -> None:
    """The same expert, asked for by another thread: it must not wait for one that will never end."""
    steps = 0
    with FileExpertSource.open_gpack(experts, budget_bytes=1 << 20) as whole:
        wanted = whole.get(1, 2).down.tobytes()
    while True:
        steps += 1
        with FileExpertSource.open_gpack(experts, budget_bytes=1 << 20) as source:
            with interrupted(steps) as hit, suppress(KeyboardInterrupt):
                source.get(1, 2)
            assert elsewhere(partial(source.get, 1, 2)).down.tobytes() == wanted
        if not hit:
            break
    assert steps > 20


def test_the_row_cache_never_mixes_rows_up() -> None:
    cache = RowCache(8, 8 * 8, ways=8)  # one set
    steps, ids = 0, np.arange(8)
    while True:
        steps += 1
        with interrupted(steps) as hit, suppress(KeyboardInterrupt):
            cache.insert(ids, np.repeat(ids.astype(np.uint8)[:, None], 8, axis=1))
        out = np.zeros((8, 8), np.uint8)
        missing = cache.look_up(ids, out)
        for place in set(range(8)) - set(missing.tolist()):
            assert set(out[place].tolist()) == {ids[place] % 256}
        if not hit:
            break
        ids = ids + 8


def test_workers_work_on_wherever_an_interrupt_ended_a_call() -> None:
    steps = 0
    while True:
        steps += 1
        workers = Workers(3)
        with interrupted(steps) as hit, suppress(KeyboardInterrupt):
            workers.run([lambda: 0] * 5)
        assert elsewhere(partial(workers.run, [lambda: 1] * 5)) == [1] * 5
        if not hit:
            break
    assert steps > 15


def test_a_closed_file_is_told_by_our_own_error(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    descriptor = os.open(path, os.O_RDONLY)
    file = RangeFile(descriptor, path, direct=False)
    os.close(descriptor)
    file.close()
    file.close()
    for use in (file.check_length, lambda: file.read_into(memoryview(bytearray(3)), 0), lambda: file.map(0, 3)):
        with pytest.raises(errors.ClosedError) as caught:
            use()
        assert caught.value.code == "pack.closed"
