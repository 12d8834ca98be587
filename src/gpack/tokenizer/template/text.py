"""Strings that know which of their characters come from the template's own text.

A `Text` is a `str` with a mask: one byte for each character, 1 where the template's author wrote it, 0 elsewhere.
A plain `str` counts as written by somebody else throughout. So whatever an operation forgets to carry over becomes
untrusted, never trusted: the worst fault of this module is a control token that is spelled out as text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice


class Text(str):
    """A string with the origin of its characters; equal to, and hashed as, the plain string.

    Attributes:
        mask: One byte for each character: 1 the template's, 0 anybody else's.
    """

    __slots__ = ("mask",)
    mask: bytes

    def __new__(cls, value: str, mask: bytes) -> Text:
        """Makes one.

        Raises:
            ValueError: The mask is not as long as the text.
        """
        if len(mask) != len(value):
            raise ValueError(f"a mask of {len(mask)} for {len(value)} characters")
        made = super().__new__(cls, value)
        made.mask = mask
        return made


def trusted(value: str) -> Text:
    """A string that the template's author wrote."""
    return Text(value, b"\1" * len(value))


def plain(value: str) -> str:
    """The string without its origin."""
    return str.__str__(value)


def mask_of(value: str) -> bytes:
    """The mask of any string."""
    return value.mask if isinstance(value, Text) else bytes(len(value))


def with_mask(value: str, mask: bytes) -> str:
    """A string with that mask, without it where nothing in it is trusted."""
    return Text(value, mask) if 1 in mask else value


def concat(parts: Iterable[str]) -> str:
    """The strings, one after the other."""
    parts = list(parts)
    joined = "".join(parts)
    if not any(isinstance(part, Text) for part in parts):
        return joined
    return with_mask(joined, b"".join(map(mask_of, parts)))


def join(separator: str, parts: list[str]) -> str:
    """`separator.join(parts)`."""
    woven = [separator] * (2 * len(parts) - 1) if parts else []
    woven[::2] = parts
    return concat(woven)


def repeat(value: str, count: int) -> str:
    """`value * count`."""
    return with_mask(plain(value) * count, mask_of(value) * max(count, 0))


def item(value: str, index: int | slice) -> str:
    """`value[index]`, one character or a slice.

    Raises:
        IndexError: There is no such character.
    """
    if not isinstance(value, Text):
        return value[index]
    if isinstance(index, int):
        return with_mask(str.__getitem__(value, index), bytes([value.mask[index]]))
    return with_mask(str.__getitem__(value, index), value.mask[index])


def characters(value: str) -> Iterator[str]:
    """The characters, each with its origin."""
    return (item(value, at) for at in range(len(value))) if isinstance(value, Text) else iter(value)


def strip(value: str, chars: str | None, *, left: bool = True, right: bool = True) -> str:
    """`value.strip(chars)`, or `lstrip`, or `rstrip`."""
    start = len(value) - len(value.lstrip(chars)) if left else 0
    end = len(value.rstrip(chars)) if right else len(value)
    return item(value, slice(start, max(start, end)))


def pieces(value: str, found: Iterable[str]) -> list[str]:
    """Parts of a string that follow one another in it, with their origin.

    Each part must begin at the first place where it occurs after the one before it; that holds for what
    `split`, `splitlines` and `partition` give.
    """
    if not isinstance(value, Text):
        return list(found)
    at, parts = 0, []
    for part in found:
        at = value.index(part, at)
        parts.append(item(value, slice(at, at + len(part))))
        at += len(part)
    return parts


def split(value: str, separator: str | None, limit: int = -1, *, from_right: bool = False) -> list[str]:
    """`value.split` or `value.rsplit`.

    Raises:
        ValueError: The separator is empty.
    """
    cut: Callable[[str | None, int], list[str]] = value.rsplit if from_right else value.split
    found = cut(separator, limit)
    if not isinstance(value, Text) or separator is None:
        return pieces(value, found)
    at, parts = 0, []
    for part in found:
        parts.append(item(value, slice(at, at + len(part))))
        at += len(part) + len(separator)
    return parts


def replace(value: str, old: str, new: str, count: int = -1) -> str:
    """`value.replace(old, new, count)`."""
    if not isinstance(value, Text) and not isinstance(new, Text):
        return value.replace(old, new, count)
    if old:
        return join(new, split(value, old, count))
    # An empty string stands before each character and at the end.
    places = len(value) + 1 if count < 0 else min(count, len(value) + 1)
    letters = characters(value)
    woven: list[str] = []
    for letter in islice(letters, min(places, len(value))):
        woven += (new, letter)
    woven += letters
    return concat([*woven, new] if places > len(value) else woven)


def changed(value: str, result: str) -> str:
    """The result of changing the case of a string, character by character.

    Where that changes the length, places no longer correspond: then all of it is trusted only if all of the
    string was.
    """
    if not isinstance(value, Text):
        return result
    if len(result) == len(value):
        return with_mask(result, value.mask)
    return trusted(result) if 0 not in value.mask else result


def runs(value: str) -> list[tuple[str, bool]]:
    """The string cut where the origin changes: (part, whether the template's author wrote it)."""
    mask, text = mask_of(value), plain(value)
    parts, start = [], 0
    while start < len(text):
        end = mask.find(0 if mask[start] else 1, start)
        end = len(text) if end < 0 else end
        parts.append((text[start:end], bool(mask[start])))
        start = end
    return parts
