"""Lines that a person edits at a terminal, and that come back in later runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "GUILD_HISTORY"  # environment: where lines are kept; empty: nowhere
_MOST = 1000


def history_file() -> Path | None:
    """Where lines are kept from run to run; None where nowhere is."""
    said = os.environ.get(VARIABLE)
    if said is not None:
        return Path(said) if said else None
    for folder in (os.environ.get("XDG_STATE_HOME", ""), os.path.expanduser("~/.local/state")):
        if os.path.isabs(folder):
            return Path(folder) / "gpack" / "history"
    return None


@contextlib.contextmanager
def edited_lines() -> Iterator[None]:
    """Lines can be edited and come back with the arrow keys, where Python has readline; afterwards they are kept."""
    try:
        import readline
    except ImportError:
        yield
        return
    # What is pasted, marked as such by the terminal, is one message, whatever lines it has.
    readline.parse_and_bind("set enable-bracketed-paste on")
    path = history_file()
    if path is not None:
        with contextlib.suppress(OSError):  # none yet, or not readable: the conversation is what matters
            readline.read_history_file(path)
    try:
        yield
    finally:
        if path is not None:
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                readline.set_history_length(_MOST)
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))  # others read none of it
                readline.write_history_file(path)
