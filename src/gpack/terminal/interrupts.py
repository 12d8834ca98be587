"""Ctrl-C that waits for a good moment: raised anywhere, it could fall between a program's start and its being known."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATIENCE = 5.0  # seconds after which a second one is raised at once


@contextmanager
def held_interrupts(stop: threading.Event) -> Iterator[None]:
    """Whatever would raise KeyboardInterrupt meanwhile only sets `stop`; it is raised after the block.

    What runs inside looks at `stop` often. Where it does not end, another Ctrl-C 5 seconds later is raised at once.
    Signals that are ignored, or end the process, stay as they are; so does everything outside of the main thread.

    Raises:
        KeyboardInterrupt: At the end, where one was held.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in _SIGNALS}
    first: list[float] = []

    def hold(number: int, frame: FrameType | None) -> None:
        stop.set()
        first.append(time.monotonic())
        handler = before[number]
        if first[-1] - first[0] > _PATIENCE and callable(handler):
            handler(number, frame)

    held = [number for number, handler in before.items() if callable(handler)]
    try:
        for number in held:
            signal.signal(number, hold)
        yield
    finally:
        for number in held:
            signal.signal(number, before[number])
        if first:
            raise KeyboardInterrupt
