"""Small pieces of text that the emitters for people share."""

from __future__ import annotations

import re
import textwrap


def wrap(text: str, width: int, prefix: str = "") -> str:
    """The text in lines of at most `width` characters, each after `prefix`; one paragraph."""
    return "\n".join(f"{prefix}{line}" for line in textwrap.wrap(" ".join(text.split()), width - len(prefix)))


def shown_number(value: int) -> str:
    """Small numbers in decimal, others in hexadecimal."""
    return str(value) if abs(value) < 1 << 16 else f"0x{value:X}"


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.replace(" ", "-")
