"""The entry of `gpack-conformance`: light, so that Ctrl-C is reported properly from the first moment on."""

from __future__ import annotations

from ..terminal.program import guarded


def main() -> int:
    """Runs the command line; returns the exit code."""
    return guarded("gpack-conformance", _run, as_json=False)


def _run() -> int:
    from threading import Event

    from ..terminal.interrupts import held_interrupts

    with held_interrupts(Event()):  # an import that is broken off ends in errors of its own
        from ..conformance.cli import main as command_line
    return command_line()
