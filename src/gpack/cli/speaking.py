"""What `guild run` writes: a model's text on a terminal or in a pipe, and remarks beside it."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from ..terminal import units
from ..terminal.table import printable

if TYPE_CHECKING:
    from ..engine.generate import Generation

# Control characters command a terminal, and these of direction make text read other than it is. Line feeds and tabs
# are text; a carriage return would let a line be written over, and belongs to a line feed at best.
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_HARMLESS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
_HARMLESS |= {code: f"\\u{code:04x}" for code in (*_DIRECTIONS, 0x2028, 0x2029)}
del _HARMLESS[0x0A], _HARMLESS[0x09]
_HARMLESS[0x0D] = ""


def harmless(text: str) -> str:
    """The text with what would command a terminal written out as escapes."""
    return text.translate(_HARMLESS)


class Output:
    """Writes a model's text as it comes: as it is into files and pipes, made harmless on a terminal."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._at_start = True

    def write(self, text: str) -> None:
        """Writes a part of a text at once."""
        if text:
            sys.stdout.write(harmless(text) if self._terminal else text)
            sys.stdout.flush()
            self._at_start = text.endswith("\n")

    def end(self) -> None:
        """Ends the line, where something stands on it."""
        if not self._at_start:
            self.write("\n")


def remark(text: str) -> None:
    """A line on standard error."""
    print(printable(text), file=sys.stderr, flush=True)


class Remarks(logging.Handler):
    """Shows the log: each warning, and once that kernels are being compiled."""

    def __init__(self) -> None:
        super().__init__()
        self._compiling = False

    def emit(self, record: logging.LogRecord) -> None:
        """Shows one record."""
        if record.levelno >= logging.WARNING:
            remark(f"guild: warning: {record.getMessage()}")
        elif not self._compiling:
            self._compiling = True
            remark("guild: compiling kernels for this machine, once; the next start takes no time for that")

    def __enter__(self) -> Remarks:
        logging.getLogger("gpack").addHandler(self)
        compiling = logging.getLogger("gpack.compiling")
        self._before = compiling.level
        compiling.setLevel(logging.INFO)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("gpack.compiling").setLevel(self._before)
        logging.getLogger("gpack").removeHandler(self)


def statistics(done: Generation, load_seconds: float) -> dict[str, Any]:
    """What `--stats` and `--json` tell of the time and memory, JSON-ready; seconds, bytes, tokens per second."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10  # with the pages of the file that were touched
    return {"load_seconds": load_seconds, **done.timings.to_dict(), "peak_memory_bytes": peak}


def statistics_line(done: Generation, load_seconds: float) -> str:
    """The same for people."""
    told, times = statistics(done, load_seconds), done.timings
    cached = f" and {times.cached_tokens} known" if times.cached_tokens else ""
    parts = [
        f"load {units.duration(load_seconds)}",
        f"prompt {units.plural(times.prompt_tokens, 'token')}{cached}, {_rate(times.prompt_rate)}",
    ]
    if times.first_token_seconds is not None:
        parts.append(f"first token after {units.duration(times.first_token_seconds)}")
    parts.append(f"answer {units.plural(len(done.ids), 'token')}, {_rate(times.decode_rate)}")
    parts += [f"peak memory {units.size(told['peak_memory_bytes'])}", f"ended by {done.finish_reason}"]
    if done.seed is not None:
        parts.append(f"seed {done.seed}")
    return " · ".join(parts)


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1f} tokens/s"
