"""Strings with the origin of their characters: operations give what those of `str` give, and carry the origin along."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpack.tokenizer.template import text

ALPHABET = st.sampled_from("ab <|>\nß")
STRINGS = st.text(ALPHABET, max_size=12)
MARKED = STRINGS.flatmap(lambda s: st.binary(min_size=len(s), max_size=len(s)).map(lambda m: mark(s, m)))


def mark(value: str, chosen: bytes) -> str:
    return text.with_mask(value, bytes(byte & 1 for byte in chosen))


def pairs(value: str) -> list[tuple[str, int]]:
    return list(zip(text.plain(value), text.mask_of(value), strict=True))


def same(found: str, expected: list[tuple[str, int]]) -> None:
    assert pairs(found) == expected


@given(MARKED, MARKED)
def test_concat_and_join(left: str, right: str) -> None:
    same(text.concat((left, right)), pairs(left) + pairs(right))
    same(text.join(left, [right, right, right]), pairs(right) + (pairs(left) + pairs(right)) * 2)
    same(text.repeat(left, 3), pairs(left) * 3)
    same(text.repeat(left, -1), [])


@given(
    MARKED, st.integers(-15, 15) | st.none(), st.integers(-15, 15) | st.none(), st.sampled_from([None, 1, 2, -1, -3])
)
def test_slices(value: str, start: int | None, stop: int | None, step: int | None) -> None:
    same(text.item(value, slice(start, stop, step)), pairs(value)[start:stop:step])


@given(MARKED)
def test_characters_and_runs(value: str) -> None:
    assert [pairs(character)[0] for character in text.characters(value)] == pairs(value)
    assert [(letter, int(ours)) for part, ours in text.runs(value) for letter in part] == pairs(value)
    assert all(first[1] != second[1] for first, second in zip(text.runs(value), text.runs(value)[1:], strict=False))


@given(MARKED, st.sampled_from([None, "a", "ab", " <"]), st.booleans(), st.booleans())
def test_strip(value: str, chars: str | None, left: bool, right: bool) -> None:
    plain = text.plain(value)
    expected = plain.lstrip(chars) if left else plain
    expected = expected.rstrip(chars) if right else expected
    found = text.strip(value, chars, left=left, right=right)
    assert found == expected
    start = len(plain) - len(plain.lstrip(chars)) if left and expected else 0
    if expected:
        same(found, pairs(value)[start : start + len(expected)])


@given(MARKED, st.sampled_from([None, "a", "ab", " ", "<|"]), st.integers(-1, 3), st.booleans())
def test_split(value: str, separator: str | None, limit: int, from_right: bool) -> None:
    plain = text.plain(value)
    expected = plain.rsplit(separator, limit) if from_right else plain.split(separator, limit)
    found = text.split(value, separator, limit, from_right=from_right)
    assert found == expected
    if separator is not None:
        # Put together again with untrusted separators, all else is where it was.
        whole = text.join(separator, found)
        assert whole == plain
        assert all(ours <= before for (_, ours), (_, before) in zip(pairs(whole), pairs(value), strict=True))
    kept = [pair for pair in pairs(value) if not pair[0].isspace()] if separator is None and limit < 0 else None
    assert kept is None or [pair for part in found for pair in pairs(part)] == kept


@given(MARKED, st.sampled_from(["", "a", "ab", " "]), MARKED, st.integers(-1, 3))
def test_replace(value: str, old: str, new: str, count: int) -> None:
    found = text.replace(value, old, new, count)
    assert found == text.plain(value).replace(old, text.plain(new), count)
    # As many characters are trusted as those that stay and those that come in.
    places = (text.plain(value).count(old) if old else len(value) + 1) if count else 0
    places = places if count < 0 else min(places, count)
    assert sum(text.mask_of(found)) <= sum(text.mask_of(value)) + places * sum(text.mask_of(new))


@given(MARKED, st.sampled_from(["upper", "lower", "title", "swapcase", "capitalize"]))
def test_changes_of_case(value: str, name: str) -> None:
    result = getattr(text.plain(value), name)()
    found = text.changed(value, result)
    assert found == result
    assert 1 not in text.mask_of(found) or 1 in text.mask_of(value)


def test_what_it_is() -> None:
    ours = text.trusted("<|end|>")
    assert ours == "<|end|>"
    assert hash(ours) == hash("<|end|>")
    assert {"<|end|>": 1}[ours] == 1
    assert type(text.plain(ours)) is str
    with pytest.raises(ValueError, match="a mask of 1 for 2"):
        text.Text("ab", b"\1")


@pytest.mark.parametrize(
    "operation",
    [str.upper, str.strip, lambda s: s[1:], lambda s: s + "", lambda s: "".join([s, ""]), lambda s: f"{s}", str.title],
)
def test_what_python_does_by_itself_is_not_trusted(operation: Any) -> None:
    """The safe default: an operation that nobody has taught about origins loses the trust."""
    assert 1 not in text.mask_of(operation(text.trusted(" ab ")))
