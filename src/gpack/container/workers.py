"""Threads that do jobs for a caller who may be interrupted at any moment.

`concurrent.futures` takes locks in Python code: Ctrl-C at the wrong moment leaves one taken for ever, and then neither
the next call nor the end of the program comes through. What threads share here is changed by C code, in one step.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Answers = SimpleQueue[tuple[int, Any, BaseException | None]]
_Order = tuple[int, Callable[[], Any], _Answers]


class Workers:
    """Threads, started when they are first needed; they end when this object goes.

    Attributes:
        count: Most threads.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._started = 0
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()

    def run(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """Does all jobs, several at a time; returns what they return, in their order.

        After an interrupt the jobs go on by themselves: what they write to must not be used for anything else.

        Raises:
            BaseException: What a job raised, of several the first in the order of the jobs; the others are done too.
        """
        if len(jobs) == 1:
            return [jobs[0]()]
        while self._started < min(self.count, len(jobs)):
            try:
                _thread.start_new_thread(_work, (self._orders,))
            except RuntimeError:  # the system allows no more
                if not self._started:
                    return [job() for job in jobs]
                break
            self._started += 1
        answers: _Answers = SimpleQueue()
        for number, job in enumerate(jobs):
            self._orders.put((number, job, answers))
        done = sorted((answers.get() for _ in jobs), key=lambda answer: answer[0])
        for _, _, fault in done:
            if fault is not None:
                raise fault
        return [value for _, value, _ in done]

    def __del__(self) -> None:
        self._orders.put(None)


def start(job: Callable[[], T]) -> Callable[[], T]:
    """Begins a job in a thread of its own; returns what waits for it and gives what it returned, or raises.

    A caller that is interrupted need not wait: the job then ends by itself, so what it reads must be its own.
    """
    orders: SimpleQueue[_Order | None] = SimpleQueue()
    answers: _Answers = SimpleQueue()
    orders.put((0, job, answers))
    orders.put(None)
    try:
        _thread.start_new_thread(_work, (orders,))
    except RuntimeError:  # the system allows no more
        _work(orders)

    def wait() -> T:
        _, value, fault = answers.get()
        if fault is not None:
            raise fault
        return value  # type: ignore[no-any-return]

    return wait


def _work(orders: SimpleQueue[_Order | None]) -> None:
    while (order := orders.get()) is not None:
        number, job, answers = order
        try:
            answers.put((number, job(), None))
        except BaseException as error:  # it is the caller's
            answers.put((number, None, error))
        del order, job, answers  # nothing of theirs is kept while there is nothing to do
    orders.put(None)  # for the next one
