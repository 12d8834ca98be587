"""Several threads that do the same work side by side, until it is done or the run is stopped."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread


def side_by_side(jobs: int, work: Callable[[], None], stop: Event) -> None:
    """Calls `work` in so many threads, and waits for all of them.

    Args:
        stop: Set where one of them fails; the others look at it.

    Raises:
        BaseException: What the first of them raised.
    """
    failed: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)
            stop.set()

    # Daemons: a user who insists on an end waits for none of them.
    threads = [Thread(target=guarded, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
