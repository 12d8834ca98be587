"""Threads that do jobs: order, faults, how many, and that they end. Interrupts: tests/model/test_interrupts.py."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from functools import partial

import pytest

from gpack.container.workers import Workers

PATIENCE = 60  # seconds


def test_answers_come_in_the_order_of_the_jobs() -> None:
    workers = Workers(4)
    first = threading.Event()

    def job(number: int) -> int:
        if number == 0:
            assert first.wait(PATIENCE)  # ends last
        elif number == 99:
            first.set()
        return number * number

    for _ in range(2):
        first.clear()
        assert workers.run([partial(job, number) for number in range(100)]) == [n * n for n in range(100)]
    assert workers.run([]) == []


def test_so_many_work_at_a_time_and_no_more() -> None:
    workers = Workers(3)
    together, most, now = threading.Barrier(3), 0, 0
    lock = threading.Lock()

    def job() -> None:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        together.wait(PATIENCE)
        with lock:
            now -= 1

    workers.run([job] * 12)
    assert most == 3


def test_one_job_is_done_by_the_caller() -> None:
    assert Workers(3).run([threading.get_ident]) == [threading.get_ident()]
    assert threading.get_ident() not in Workers(3).run([threading.get_ident] * 2)


def test_the_first_fault_is_raised_when_all_jobs_are_done() -> None:
    done: list[int] = []

    def job(number: int) -> None:
        if number in (3, 5):
            raise ValueError(number)
        done.append(number)

    workers = Workers(2)
    jobs: list[Callable[[], None]] = [partial(job, number) for number in range(8)]
    with pytest.raises(ValueError, match="3"):
        workers.run(jobs)
    assert sorted(done) == [0, 1, 2, 4, 6, 7]
    assert workers.run([lambda: 1, lambda: 2]) == [1, 2]


def test_a_system_that_allows_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    assert Workers(3).run([threading.get_ident] * 3) == [threading.get_ident()] * 3


def test_threads_end_with_their_owner() -> None:
    workers, together = Workers(3), threading.Barrier(3)
    events = [threading.Event() for _ in range(3)]
    kept = threading.local()

    class End:
        """Goes with the thread whose local data holds it."""

        def __init__(self, event: threading.Event) -> None:
            self.event = event

        def __del__(self) -> None:
            self.event.set()

    def job(event: threading.Event) -> None:
        together.wait(PATIENCE)  # so that each thread gets one
        kept.end = End(event)

    workers.run([partial(job, event) for event in events])
    assert not any(event.is_set() for event in events)
    del workers
    assert all(event.wait(PATIENCE) for event in events)
