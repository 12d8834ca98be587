"""The scan of string arrays: always what the plain walk gives, in linear time."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from gguf_maker import pack_string
from hypothesis import given, settings
from hypothesis import strategies as st

from gpack.sections import strings as scanner
from gpack.sections.strings import StringOverrunError, scan_table

# Byte strings that break the assumption of the fast path in each way, among ordinary ones.
ODD_LENGTHS = [0, 1, 7, 8, 9, 255, 256, 257, 511, 512, 70_000]
STRINGS = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=8).map(str.encode),
    st.sampled_from([b"", b"\0" * 7, b"\0" * 8, b"a" + b"\0" * 7, b"\0" * 40, b"\x05" + b"\0" * 7 + b"hello"]),
    st.sampled_from(ODD_LENGTHS).map(bytes),
    st.sampled_from(ODD_LENGTHS).map(lambda length: b"x" * length),
)


def check(strings: list[bytes]) -> None:
    data = b"".join(map(pack_string, strings))
    table = scan_table(memoryview(data), len(strings))
    ends = itertools.accumulate(8 + len(text) for text in strings)
    assert (table.starts + table.lengths).tolist() == list(ends)
    assert table.lengths.tolist() == [len(text) for text in strings]
    assert [table[index] for index in range(len(table))] == strings


@given(st.lists(STRINGS, max_size=300))
@settings(deadline=None)
def test_the_scan_gives_what_was_packed(strings: list[bytes]) -> None:
    check(strings)


@given(st.lists(STRINGS, max_size=60), st.integers(1, 40), st.integers(8, 600))
@settings(deadline=None)
def test_block_borders_anywhere_change_nothing(strings: list[bytes], repeat: int, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanner, "_BLOCK_BYTES", block)
        check(strings * repeat)


@given(st.lists(STRINGS, min_size=1, max_size=80), st.data())
@settings(deadline=None)
def test_a_cut_anywhere_is_an_overrun(strings: list[bytes], data: st.DataObject) -> None:
    packed = b"".join(map(pack_string, strings))
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(StringOverrunError) as caught:
        scan_table(memoryview(packed[:cut]), len(strings))
    # The string that reaches beyond the cut is the first whose end lies after it.
    ends = list(itertools.accumulate(8 + len(text) for text in strings))
    index = next(i for i, end in enumerate(ends) if end > cut)
    assert caught.value.index == index
    assert caught.value.position == (ends[index - 1] if index else 0)


@pytest.mark.parametrize("length", [1 << 31, 1 << 62, (1 << 63) - 8, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("before", [0, 5, 500])
def test_an_absurd_length_is_named(length: int, before: int) -> None:
    data = pack_string("abc") * before + length.to_bytes(8, "little") + bytes(100)
    with pytest.raises(StringOverrunError) as caught:
        scan_table(memoryview(data), before + 1)
    assert (caught.value.index, caught.value.length) == (before, length)


@pytest.mark.parametrize(
    "text",
    [b"", bytes(8), bytes(300), b"a" + bytes(7), b"x" * 256, b"\x01" + bytes(7) + b"\x02" + bytes(7)],
    ids=["empty", "zeros", "long zeros", "zero tail", "long", "false lengths"],
)
def test_the_worst_cases_are_linear(text: bytes) -> None:
    count = 200_000
    data = memoryview(pack_string(text) * count)
    start = time.process_time()
    table = scan_table(data, count)
    assert time.process_time() - start < 60  # seconds: a quadratic scan takes hours, the plain walk a tenth of one
    assert np.all(table.lengths == len(text))


def test_decode_keeps_bytes_that_are_not_utf8() -> None:
    table = scan_table(memoryview(pack_string(b"\xff\xfe") + pack_string("Ġé")), 2)
    assert table.decode() == ["\udcff\udcfe", "Ġé"]
