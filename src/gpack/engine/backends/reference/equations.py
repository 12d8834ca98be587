"""Equations that operations share, in numpy and float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ...graph import operations as op
from ...graph.rope import Rope
from .arrays import Array


def rms(x: Array, weight: npt.NDArray[np.float32], epsilon: float) -> Array:
    """x / sqrt(mean(x²) + epsilon) · weight, over the last axis."""  # noqa: D403
    normed: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight
    return normed


def pieces_of(x: Array, count: int) -> Array:
    """Rows [..., width] as [..., count, width / count]."""
    return x.reshape(*x.shape[:-1], count, -1)


def unit_heads(x: Array, epsilon: float) -> Array:
    """x / sqrt(Σx² + epsilon), over the last axis."""  # noqa: D403
    made: Array = x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + epsilon)
    return made


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), which no x overflows."""
    made: Array = np.exp(-np.logaddexp(0, -x))
    return made


def silu(x: Array) -> Array:
    """x · sigmoid(x)."""  # noqa: D403
    return x * sigmoid(x)


def gelu(x: Array) -> Array:
    """The form with tanh: x / 2 · (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))."""
    made: Array = x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return made


ACTIVATIONS: dict[op.Activation, Callable[[Array], Array]] = {"silu": silu, "gelu": gelu, "sigmoid": sigmoid}


def softmax(scores: Array) -> Array:
    """exp(x) / Σ exp(x) over the last axis."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    made: Array = powers / powers.sum(axis=-1, keepdims=True)
    return made


def rotate(x: Array, positions: npt.NDArray[np.int64], rope: Rope) -> Array:
    """Turns pairs of the first elements of each head [rows, heads, elements] by position · frequency."""
    half = rope.n_rotated // 2
    angles = positions[:, None, None] * rope.frequencies()
    cosine, sine = np.cos(angles) * rope.magnitude(), np.sin(angles) * rope.magnitude()
    pairs = np.arange(half)
    first, second = (2 * pairs, 2 * pairs + 1) if rope.interleaved else (pairs, pairs + half)
    a, b = x[..., first], x[..., second]
    turned = x.copy()
    turned[..., first] = a * cosine - b * sine
    turned[..., second] = a * sine + b * cosine
    return turned


def attend(q: Array, keys: Array, values: Array, scale: float, is_seen: npt.NDArray[np.bool_]) -> Array:
    """softmax(q kᵀ · scale) v over the positions that each row sees.

    Args:
        q: [rows, n_head, head_dim].
        keys, values: [positions, n_head_kv, head_dim]; query head h reads key/value head h // (n_head / n_head_kv).
        is_seen: [rows, positions].
    """
    group = q.shape[1] // keys.shape[1]
    out = np.empty(q.shape)
    for h in range(q.shape[1]):
        k, v = keys[:, h // group], values[:, h // group]
        out[:, h] = softmax(np.where(is_seen, q[:, h] @ k.T * scale, -np.inf)) @ v
    return out
