"""What a step's kernels read about its rows: whose they are, where in their texts, and where their texts' state is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ....errors import InternalError
from .buffers import aligned
from .layout import (
    CACHE_TYPES,
    PART_POSITIONS,
    PICK_LIST,
    PICK_ROWS,
    SEGMENT_TABLES,
    SPLIT_ROWS,
    STEP_N_SEGMENTS,
    STEP_PARTS,
    STEP_POSITIONS,
    STEP_ROWS,
    STEP_SEGMENT_OF,
    STEP_SEGMENT_WORDS,
    STEP_SEGMENTS,
    STEP_SLOT_BYTES,
    STEP_TYPES,
    STEP_WORDS,
)

_TYPE_NUMBERS = {name: number for number, name in enumerate(CACHE_TYPES)}


class LoweredSegment(NamedTuple):
    """A run of rows that are consecutive positions of one text.

    Attributes:
        first_row: Of the step's rows.
        n_rows: How many.
        first_position: Of the first row, in its text.
        cache_type: F32, F16 or Q8_0.
        tables: For each group of layers the address of the text's block table: int64 addresses of blocks by
            position // 64. What fell out of a window may be 0.
        states: For each set of recurrent layers the address of the state that is read, then of that which is written.
        keep: Address of memory that gets what recurrent states depend on of each row; 0: none does.
    """

    first_row: int
    n_rows: int
    first_position: int
    cache_type: str
    tables: tuple[int, ...]
    states: tuple[int, ...] = ()
    keep: int = 0


class StepBlock:
    """The memory that tells kernels of a step's rows; filled before each run.

    Attributes:
        words: int64, what is called the state block; word 0 is the number of rows. The layout is in `layout`.
        n_groups: Block tables of a segment.
        n_sets: Recurrent states of a segment.
        segments: int64 [max_rows, words of a segment]: the segment table.
    """

    def __init__(self, max_rows: int, *, n_groups: int = 1, n_sets: int = 0) -> None:
        """Room for steps of at most so many rows."""
        self.max_rows, self.n_groups, self.n_sets = max_rows, n_groups, n_sets
        self.words: npt.NDArray[np.int64] = aligned((STEP_WORDS,), np.int64)
        self._positions: npt.NDArray[np.int64] = aligned((max_rows,), np.int64)
        self._segment_of: npt.NDArray[np.int32] = aligned((max_rows,), np.int32)
        n_words = SEGMENT_TABLES + n_groups + 2 * n_sets + 1
        self.segments: npt.NDArray[np.int64] = aligned((max_rows, n_words), np.int64)
        self._parts: npt.NDArray[np.uint8] = aligned((0,), np.uint8)
        self._single = ""  # the type of cache where the words are those of a step of one row; "" where they are not
        self.words[STEP_POSITIONS] = self._positions.ctypes.data
        self.words[STEP_SEGMENT_OF] = self._segment_of.ctypes.data
        self.words[STEP_SEGMENTS] = self.segments.ctypes.data
        self.words[STEP_SEGMENT_WORDS] = n_words

    @property
    def address(self) -> int:
        """Of the state block."""
        return int(self.words.ctypes.data)

    def table_word(self, group: int) -> int:
        """The word of a segment that has the address of a group's block table."""
        return SEGMENT_TABLES + group

    def state_word(self, number: int) -> int:
        """The word of a segment that has the address of a recurrent state to read; after it is that to write."""
        return SEGMENT_TABLES + self.n_groups + 2 * number

    @property
    def keep_word(self) -> int:
        """The word of a segment that has the address where its rows are kept, the last one."""
        return SEGMENT_TABLES + self.n_groups + 2 * self.n_sets

    def need_parts(self, nbytes: int) -> None:
        """Says that the results of a part of one row take so many bytes in some layer."""
        self.words[STEP_SLOT_BYTES] = max(self.words[STEP_SLOT_BYTES], nbytes)

    def fill(self, segments: Sequence[LoweredSegment]) -> None:
        """Describes a step.

        Segments of one type of cache have rows that are together. All rows from 0 to the last are some segment's.

        Raises:
            InternalError: That is not so, or there are more rows than there is room for.
            MemoryError: There is no memory for the results of parts.
        """
        if len(segments) == 1 and segments[0].n_rows == 1 and segments[0].cache_type == self._single:
            self._fill_single(segments[0])
            return
        self._single = ""
        if len(segments) > 1:
            # Types together, and long segments first: they are the longest tasks.
            segments = sorted(segments, key=_order)
        words, row_words, slots, n_rows = [0] * (4 * len(CACHE_TYPES)), [], 0, 0
        last_type = -1
        for number, (first, count, position, cache_type, tables, states, keep) in enumerate(segments):
            row_words.append((first, count, position, slots, *tables, *states, keep))
            n_rows += count
            if count <= SPLIT_ROWS:
                slots += ((position + count - 1) // PART_POSITIONS + 1) * count
            at = 4 * _TYPE_NUMBERS[cache_type]
            if at != last_type:
                last_type, words[at], words[at + 2] = at, number, first
            words[at + 1] = number + 1
            words[at + 2], words[at + 3] = min(words[at + 2], first), max(words[at + 3], first + count)
        self._check(segments, words, n_rows)
        if len(segments) == n_rows:
            firsts = [segment[0] for segment in segments]
            self._positions[firsts] = [segment[2] for segment in segments]
            self._segment_of[firsts] = range(n_rows)
        else:
            for number, segment in enumerate(segments):
                first, count, position = segment[:3]
                self._positions[first : first + count] = np.arange(position, position + count)
                self._segment_of[first : first + count] = number
        self._make_parts(slots)
        self.segments[: len(segments)] = row_words
        self.words[STEP_TYPES : STEP_TYPES + len(words)] = words
        self.words[STEP_N_SEGMENTS] = len(segments)
        self.words[STEP_ROWS] = n_rows
        if n_rows == 1:
            self._single = segments[0].cache_type

    def _fill_single(self, segment: LoweredSegment) -> None:
        """A row of a text after another one of the same type: nearly all words are there already."""
        position = segment.first_position
        self._make_parts(position // PART_POSITIONS + 1)
        self._positions[0] = position
        self.segments[0] = (0, 1, position, 0, *segment.tables, *segment.states, segment.keep)

    def _make_parts(self, slots: int) -> None:
        needed = slots * int(self.words[STEP_SLOT_BYTES])
        if needed > self._parts.nbytes:
            parts = aligned((needed * 5 // 4,), np.uint8)
            address = int(parts.ctypes.data)
            # No call stands between these two, at whose end an interrupt could come.
            self.words[STEP_PARTS] = address
            self._parts = parts

    def _check(self, segments: Sequence[LoweredSegment], words: list[int], n_rows: int) -> None:
        if n_rows > self.max_rows or not segments:
            raise InternalError(f"a step of {n_rows} rows, with room for {self.max_rows}", code="internal")
        end = 0
        for at in sorted(range(0, len(words), 4), key=lambda at: words[at + 2]):
            first_segment, last_segment, first, last = words[at : at + 4]
            if first_segment == last_segment:
                continue
            count = sum(segment[1] for segment in segments[first_segment:last_segment])
            if first != end or last - first != count:
                raise InternalError("a step's rows have holes, or types of cache are mixed", code="internal")
            end = last


class PickBlock:
    """Says which rows of a step go on: the state block of the program that makes logits of them.

    Attributes:
        words: int64; word 0 is the number of rows.
    """

    def __init__(self, max_rows: int) -> None:
        """Room for so many rows."""
        self.words: npt.NDArray[np.int64] = aligned((STEP_WORDS,), np.int64)
        self._rows: npt.NDArray[np.int32] = aligned((max_rows,), np.int32)
        self.words[PICK_LIST] = self._rows.ctypes.data

    @property
    def address(self) -> int:
        """Of the state block."""
        return int(self.words.ctypes.data)

    def fill(self, rows: Sequence[int] | npt.NDArray[np.int32]) -> None:
        """Chooses rows, in this order; there may be none."""
        if len(rows) > len(self._rows):
            raise InternalError(f"{len(rows)} rows, with room for {len(self._rows)}", code="internal")
        self._rows[: len(rows)] = rows
        self.words[PICK_ROWS] = len(rows)


def _order(segment: LoweredSegment) -> tuple[int, int]:
    return _TYPE_NUMBERS[segment[3]], -segment[1]
