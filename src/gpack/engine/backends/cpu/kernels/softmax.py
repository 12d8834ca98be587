"""The softmax of attention, block by block: scores become weights, and parts are put together in their order."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from ..layout import BLOCK_POSITIONS
from ..variants import Variant
from .arithmetic import exp32
from .memory import floats
from .vectors import LANES, add16, exp16_of, fma16_of, load16, max16, most16, mul16, splat16, store16, sub16, sum16

_HIDDEN, _ONE = np.float32(-np.inf), np.float32(1)


class SoftmaxCode(NamedTuple):
    """Compiled code's functions for a variant; all their arguments are addresses and sizes, int64.

    Attributes:
        soften: A row's scores of a block to weights.
        fold: Adds a part to those before it.
        write_row: Sums by weight.
    """

    soften: Any
    fold: Any
    write_row: Any


def softmax_code(variant: Variant) -> SoftmaxCode:
    """The code for a variant."""
    fma16, exp16 = fma16_of(variant), exp16_of(variant)
    block, lanes = BLOCK_POSITIONS, LANES
    plain = njit(error_model="numpy", fastmath=False)

    @plain
    def soften(scores: Any, first: Any, last: Any, sums: Any, padded: Any, most: Any, weight: Any) -> None:
        """One row's scores to weights, 0 outside of first..last; earlier sums are scaled to the new maximum."""
        row = floats(scores)
        for i in range(first):
            row[i] = _HIDDEN
        for i in range(last, block):
            row[i] = _HIDDEN
        a, b, c, d = load16(scores), load16(scores + 64), load16(scores + 128), load16(scores + 192)
        before = floats(most)[0]
        largest = most16(max16(max16(a, b), max16(c, d)))
        largest = max(before, largest)
        shift = splat16(largest)
        a, b, c, d = exp16(sub16(a, shift)), exp16(sub16(b, shift)), exp16(sub16(c, shift)), exp16(sub16(d, shift))
        store16(scores, a)
        store16(scores + 64, b)
        store16(scores + 128, c)
        store16(scores + 192, d)
        weights = sum16(add16(add16(a, b), add16(c, d)))
        if largest > before:
            factor = exp32(before - largest)
            factors = splat16(factor)
            for at in range(sums, sums + padded * 4, 64):
                store16(at, mul16(load16(at), factors))
            floats(weight)[0] = floats(weight)[0] * factor + weights
            floats(most)[0] = largest
        else:
            floats(weight)[0] += weights

    @plain
    def fold(
        is_first: Any, sums: Any, most: Any, weight: Any, part_sums: Any, part_most: Any, part_weight: Any, padded: Any
    ) -> None:
        """Adds a row's next part to those before it, or begins with its first."""
        found, found_weight = floats(part_most)[0], floats(part_weight)[0]
        if is_first:
            for at in range(0, padded * 4, 64):
                store16(sums + at, load16(part_sums + at))
            floats(most)[0], floats(weight)[0] = found, found_weight
            return
        before, before_weight = floats(most)[0], floats(weight)[0]
        # What has the smaller scores is scaled. Which it is cannot be foretold: so there is no branch.
        is_larger = found > before
        scaled, other = (sums, part_sums) if is_larger else (part_sums, sums)
        scaled_weight, other_weight = (before_weight, found_weight) if is_larger else (found_weight, before_weight)
        factor = exp32(before - found if is_larger else found - before)
        factors = splat16(factor)
        for at in range(0, padded * 4, 64):
            store16(sums + at, fma16(load16(scaled + at), factors, load16(other + at)))
        floats(most)[0] = found if is_larger else before
        floats(weight)[0] = scaled_weight * factor + other_weight

    @plain
    def write_row(sums: Any, weight: Any, out: Any, head_dim: Any) -> None:
        """Sums divided by their weight, to where they belong."""
        inverse = _ONE / floats(weight)[0]
        inverses, whole = splat16(inverse), head_dim // lanes * lanes
        for at in range(0, whole * 4, 64):
            store16(out + at, mul16(load16(sums + at), inverses))
        total, target = floats(sums), floats(out)
        for i in range(whole, head_dim):
            target[i] = total[i] * inverse

    return SoftmaxCode(soften, fold, write_row)
