"""One at a time: the steps of an engine, and whatever shortens or replaces its texts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import UsageError


class Turns:
    """A lock that refuses the thread that holds it, which would else wait for itself: in a handler of signals."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None

    @contextmanager
    def take(self) -> Iterator[None]:
        """Waits for whoever has the turn.

        Raises:
            UsageError: `engine.sequence`: that is this very thread.
        """
        if self._holder == threading.get_ident():
            raise UsageError(
                "a step of this thread is running: its texts cannot be changed within it",
                code="engine.sequence",
                field="sequence",
                hint="change them when the step has ended",
            )
        with self._lock:
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = None
