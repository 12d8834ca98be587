"""Ctrl-C at any point of the engine's Python, and at any moment of a run."""

from __future__ import annotations

import inspect
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import gpack.engine

_FOLDER = str(Path(gpack.engine.__file__).parent)
_BACKENDS = str(Path(gpack.engine.__file__).parent / "backends")


def at_point(number: int, call: Callable[[], Any]) -> tuple[Any, bool]:
    """Calls something; KeyboardInterrupt is raised at a point where Python looks for signals, the first being 0.

    Those are where a function begins that the engine has or calls, and where it has called one that is not Python's.

    Returns:
        What the call returned, and whether it was interrupted.
    """
    count = -1

    def is_it(_code: CodeType) -> bool:
        nonlocal count
        count += 1
        return count == number

    return _interrupted(is_it, call)


def in_function(number: int, point: int, call: Callable[[], Any]) -> tuple[Any, bool]:
    """As `at_point`, in the function that is the `number`th to be entered, backends aside, at one of its own points."""
    seen: dict[CodeType, int] = {}

    def is_it(code: CodeType) -> bool:
        if code.co_filename.startswith(_BACKENDS):
            return False
        seen[code] = seen.get(code, -1) + 1
        return seen[code] == point and list(seen).index(code) == number

    return _interrupted(is_it, call)


def late(number: int, call: Callable[[], Any]) -> tuple[Any, bool]:
    """As `at_point`, but points count from when the backend has run: where results are looked at and committed."""
    count, has_run = -1, False

    def is_it(code: CodeType) -> bool:
        nonlocal count, has_run
        if code.co_filename.startswith(_BACKENDS):
            count, has_run = -1, has_run or code.co_name == "run"
            return False
        count += 1
        return has_run and count == number

    return _interrupted(is_it, call)


def _interrupted(is_it: Callable[[CodeType], bool], call: Callable[[], Any]) -> tuple[Any, bool]:
    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        code, caller = frame.f_code, frame.f_back
        is_ours = code.co_filename.startswith(_FOLDER)
        if event == "call" and not is_ours and caller is not None:
            is_ours, code = caller.f_code.co_filename.startswith(_FOLDER), caller.f_code
        if event not in ("call", "c_return") or not is_ours:
            return
        # In a finaliser, and where a generator is thrown away, Python would print the exception and go on.
        if code.co_name == "__del__" or code.co_flags & inspect.CO_GENERATOR:
            return
        if is_it(code):
            sys.setprofile(None)
            raise KeyboardInterrupt

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        return call(), False
    except KeyboardInterrupt:
        return None, True
    finally:
        sys.setprofile(before)


def after(seconds: float, call: Callable[[], Any]) -> tuple[Any, bool]:
    """Calls something; KeyboardInterrupt comes by a signal after a time, if the call takes so long."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            made = call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return None, True
    finally:
        signal.signal(signal.SIGALRM, before)
    return made, False
