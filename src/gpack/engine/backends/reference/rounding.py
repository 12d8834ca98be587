"""The roundings of faster backends, so that they can be compared with values that were rounded alike.

A backend that keeps activations in 8 bits, or keys and values in 16, is far from exact float64; from a reference that
does the same it is as far as float32 is. Both rules work in float32, since a code can hang on the last bit.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ....errors import UsageError
from ..cpu.layout import CACHE_TYPES, Q8_VALUES
from .arrays import Array

_TOP = np.float32(127)
_TOPS = (127.0, 127.45, 126.5, 126.0)  # codes that the largest value is tried to have
_SMALLEST = np.float32(2.0**-121)  # a group whose largest value is less becomes zeros

_Floats = npt.NDArray[np.float32]


def as_8_bits(x: Array) -> Array:
    """Activations as the products of quantised weights see them: groups of 32 codes from -127 to 127 and a scale.

    Four scales are tried. With codes c the best scale for them is Σxc / Σc², and the codes with the largest
    (Σxc)² / Σc² leave the least of Σx²; of equals the first is taken. Halves become the even code.

    Args:
        x: [..., n], n a multiple of 32; is first rounded to float32.
    """
    groups = x.astype(np.float32).reshape(*x.shape[:-1], -1, Q8_VALUES)
    largest = np.abs(groups).max(axis=-1, keepdims=True)  # NaN, where there is one
    is_usable = (largest >= _SMALLEST) & (largest < np.inf)
    with np.errstate(all="ignore"):
        scaled = groups * (_TOP / largest)
        tried = np.array([np.rint(scaled * np.float32(top / float(_TOP))) for top in _TOPS])
        products, squares = _sum_by_halves(scaled * tried), _sum_by_halves(tried * tried)
        best = np.argmax(products * products / squares, axis=0)[None]
        codes, product, square = (np.take_along_axis(each, best, 0)[0] for each in (tried, products, squares))
        scale = largest * np.float32(1 / float(_TOP)) * (product / square)
        rounded = codes.astype(np.float64) * scale
    # Where a value is not finite, nothing of its group is.
    made = np.where(is_usable, rounded, np.where(np.isfinite(largest), 0.0, np.nan))
    return made.reshape(x.shape)


def _sum_by_halves(values: _Floats) -> _Floats:
    """Sums over the last axis: its second half is added to its first until one is left."""
    while (half := values.shape[-1] // 2) > 0:
        values = values[..., :half] + values[..., half:]
    return values


def as_cached(x: Array, cache_type: str) -> Array:
    """Keys or values as a cache of a type holds them.

    Args:
        x: [..., head_dim]; of Q8_0 each 32 elements of a head, the last ones perhaps fewer, share a scale.

    Raises:
        UsageError: There is no such type.
    """
    values = x.astype(np.float32)
    if cache_type == "F32":
        return values.astype(np.float64)
    if cache_type == "F16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float64)
    check_cache_type(cache_type)
    parts = [_as_q8_0(values[..., first : first + Q8_VALUES]) for first in range(0, x.shape[-1], Q8_VALUES)]
    return np.concatenate(parts, axis=-1)


def _as_q8_0(values: _Floats) -> Array:
    """Codes are found with the scale in float32, and multiplied with the scale in 16 bits."""
    with np.errstate(all="ignore"):
        scale = np.abs(values).max(axis=-1, keepdims=True) / _TOP
        kept = scale.astype(np.float16).astype(np.float64)
        codes = np.where(kept == 0, np.float32(0), np.rint(values * (np.float32(1) / scale)))
        cached: Array = codes * kept
    return cached


def check_cache_type(cache_type: str) -> None:
    """Refuses unknown types of caches.

    Raises:
        UsageError: There is no such type.
    """
    if cache_type not in CACHE_TYPES:
        raise UsageError(
            f"there is no cache of type {cache_type!r}", code="usage", field="cache_type", hint=", ".join(CACHE_TYPES)
        )
