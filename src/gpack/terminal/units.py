"""Sizes, counts, durations and rates as people read them."""

from __future__ import annotations

from collections.abc import Sequence

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNTS = ("", "k", "M", "B", "T")
_BELOW_SECONDS = ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"))  # upper bound [s], factor, unit


def size(n_bytes: float) -> str:
    """Bytes with a binary unit and one decimal: `512 B`, `138.8 MiB`."""
    return _scaled(n_bytes, 1024, _SIZES)


def count(number: float) -> str:
    """A count with a decimal unit and one decimal, B being 10^9: `999`, `134.5 M`, `35.0 B`."""
    return _scaled(number, 1000, _COUNTS)


def plural(number: int, noun: str) -> str:
    """A number with its noun: `1 rule`, `2 rules`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def rate(n_bytes: float, seconds: float) -> str:
    """Bytes to the second: `1.2 GiB/s`; a dash where no time has passed."""
    return f"{size(n_bytes / seconds)}/s" if seconds > 0 else "-"


def duration(seconds: float) -> str:
    """A duration in the units that fit it: `250 µs`, `85 ms`, `1.25 s`, `42.0 s`, `2 min 05 s`, `3 h 07 min`."""
    for bound, factor, unit in _BELOW_SECONDS:
        # Compared after rounding, so that 0.9996 s is not called 1000 ms.
        if round(seconds * factor) < round(bound * factor):
            return f"{seconds * factor:.0f} {unit}"
    if round(seconds, 2) < 10:
        return f"{seconds:.2f} s"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    if round(seconds) < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02} s"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours} h {rest:02} min"


def _scaled(number: float, base: int, units: Sequence[str]) -> str:
    """The number in the largest unit in which it is at least 1 after rounding to one decimal."""
    if abs(number) < base and round(number) < base:
        return f"{number:.0f} {units[0]}".rstrip()
    value = float(number)
    for unit in units[1:]:
        value /= base
        if abs(round(value, 1)) < base or unit == units[-1]:
            break
    return f"{value:.1f} {unit}"
