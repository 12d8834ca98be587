"""Adds the steps of layers with a recurrent state to a program: a causal convolution, and the gated delta rule."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .attention import RowsAt, float_bits
from .buffers import aligned
from .cache import RecurrentLayer
from .layout import STATE_COLUMNS
from .step import StepBlock
from .team import Program


class Gates(NamedTuple):
    """What makes the factors of the gated delta rule from rows of float32 [n_head].

    decay = exp(factor · softplus(decay row + bias)), beta = σ(beta row).

    Attributes:
        decay, beta: The rows.
        bias, factor: Addresses of float32 [n_head]; the factors are negative.
    """

    decay: RowsAt
    beta: RowsAt
    bias: int
    factor: int


def convolution(
    program: Program,
    step: StepBlock,
    layer: RecurrentLayer,
    x: RowsAt,
    out: RowsAt,
    taps: int,
    *,
    number: int,
    dilation: int = 1,
) -> None:
    """Adds out[t] = silu(Σ_j taps[j] x[t - (n - 1 - j) dilation]) of every channel; the text's state has its window.

    There are n = 1 + (d_conv - 1) / dilation taps.

    Args:
        x: float32 [rows, n_channels].
        out: As many rows; may not be x.
        taps: Address of float32 [n, n_channels], that of the token itself last.
        number: Which of a segment's states.
    """
    program.keep(step)
    n_taps = 1 + (layer.d_conv - 1) // dilation
    state = step.state_word(number), layer.window
    program.add("conv_silu", step.address, *x, *out, taps, layer.n_channels, n_taps, *state, dilation)


def delta_rule(
    program: Program,
    step: StepBlock,
    layer: RecurrentLayer,
    q: RowsAt,
    k: RowsAt,
    v: RowsAt,
    gates: Gates,
    out: RowsAt,
    *,
    threads: int,
    number: int,
    n_head_k: int,
    tiled: bool,
    epsilon: float,
    scale: float,
) -> None:
    """Adds the gated delta rule: M = decay M; M += k (beta (v - Mᵀ k))ᵀ; out = Mᵀ q, with q and k of length 1.

    q and k are divided by sqrt(Σ x² + epsilon) first, q is multiplied by `scale` as well.

    Args:
        q, k: float32 [rows, n_head_k * d_key].
        v, out: float32 [rows, n_head * d_value].
        tiled: Whether head h takes the q and k of head h mod n_head_k; else of h // (n_head / n_head_k).
        number: Which of a segment's states.
    """
    each = -(-4 * (2 * STATE_COLUMNS + 2 * layer.d_key) // 128) * 128
    scratch = program.keep(aligned((threads * each,), np.uint8))
    program.keep(step)
    program.add(
        "delta_rule",
        step.address,
        *q,
        *k,
        *v,
        *gates.decay,
        *gates.beta,
        gates.bias,
        gates.factor,
        *out,
        layer.n_head,
        n_head_k,
        layer.d_key,
        layer.d_value,
        int(tiled),
        float_bits(epsilon),
        float_bits(scale),
        step.state_word(number),
        layer.matrices,
        int(scratch.ctypes.data),
        each,
        counter=True,
    )
