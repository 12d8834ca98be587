"""Products of weight matrices and activations, as steps of a program.

    work = Workspace(kernels, state, max_batch=512, threads=2)
    x, y = Activations(512, 576), Activations(512, 1536)
    embed(program, work, MatrixView.of(token_embd), tokens, x)
    matmul(program, work, MatrixView.of(ffn_up), x, y)

All of them read how many tokens the batch has from `state[0]` when the program runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ....errors import FormatError
from ....generated.constants import GgmlType
from . import slow
from .buffers import Activations, Buffer, aligned
from .kernels import BLOCK_TYPES, PLAIN_TYPES
from .layout import (
    FREE_AT,
    MOST_COLUMNS,
    Q8_VALUES,
    SCRATCH_AT,
    STEP_ROWS,
    STEP_WORDS,
    group_of,
    multiply_kernel,
    panel_bytes,
)
from .matrices import ExpertsView, MatrixView
from .team import Program
from .workspace import Workspace

__all__ = ["Activations", "Buffer", "ExpertsView", "MatrixView", "Workspace", "embed", "matmul", "moe_matmul"]

Floats = npt.NDArray[np.float32]
_PANELS = 512 << 10  # bytes of panels that are multiplied with all tokens before the next: in the second cache
_MOST_TILES = 4


@dataclass(frozen=True)
class _Plan:
    """How a matrix is multiplied: the kernels' addresses, and the sizes that go with them.

    Attributes:
        blocks: Of a row, as the kernels of the type count.
        length: Of a row, as the multiplication counts.
        panel: Bytes of a panel.
        dot, unpack, multiply: Addresses; 0 where there is none.
        few: Up to so many columns are multiplied with the weights as they are stored.
        is_rounded: Whether it reads the activations' 8-bit form.
    """

    blocks: int
    length: int
    panel: int
    dot: int
    unpack: int
    multiply: int
    few: int
    is_rounded: bool


def matmul(
    program: Program,
    work: Workspace,
    matrix: MatrixView,
    x: Activations,
    out: Buffer,
    *,
    bias: Floats | None = None,
    add: bool = False,
) -> None:
    """Adds a step: out[t] = matrix x[t] (+ bias) (+ out[t] where `add`) for all tokens of the batch.

    Args:
        bias: float32 [n_out].

    Raises:
        FormatError: `engine.shape`: the sizes do not fit each other.
    """
    _check(matrix, x, out, (x.per_token,))
    if bias is not None:
        bias = np.ascontiguousarray(bias, np.float32)
        if bias.shape != (matrix.n_out,):
            raise FormatError(f"a bias {list(bias.shape)} for {matrix.n_out} rows", code="engine.shape")
    program.keep((work, matrix, x, out, bias))
    plan = _plan(work, matrix)
    if plan is None:
        multiply = _multiplier(work, matrix, x.per_token)
        program.host(slow.matmul(work, matrix, x, out, multiply, bias=bias, add=add))
    else:
        common = _common(program, work, plan, matrix, x, out)
        words = common(matrix.address, 0 if bias is None else bias.ctypes.data, add)
        program.add("matmul", *words, counter=True)
    if isinstance(out, Activations):
        out.changed()


def moe_matmul(
    program: Program,
    work: Workspace,
    experts: ExpertsView,
    selected: npt.NDArray[np.int32],
    x: Activations,
    out: Buffer,
) -> None:
    """Adds a step: the products with the experts that were selected for each token; no other expert is read.

    out[t * K + j] = experts[selected[t, j]] x[t], or x[t * K + j] where `x` has K rows per token.

    Args:
        selected: int32 [max_batch, K], in memory that stays where it is; the numbers are those of the run.
        out: With K rows per token.

    Raises:
        FormatError: `engine.shape`: the sizes do not fit each other.
    """
    count = selected.shape[1]
    _check(experts, x, out, (1, count))
    if out.per_token != count or selected.dtype != np.int32 or not selected.flags.c_contiguous:
        raise FormatError(f"{count} experts do not fit {out.per_token} rows per token", code="engine.shape")
    program.keep((work, experts, selected, x, out))
    plan = _plan(work, experts)
    if plan is None:
        program.host(slow.moe_matmul(work, experts, selected, x, out, _multiplier(work, experts, count)))
    else:
        order = 4 * (2 * experts.n_expert + 2 + 2 * work.max_batch * count)
        words = _common(program, work, plan, experts, x, out, order)(0, 0, False)
        program.add(
            "moe_matmul",
            *words,
            selected.ctypes.data,
            count,
            experts.addresses.ctypes.data,
            experts.n_expert,
            x.per_token,
            _tail_at(work, experts)[1],
            counter=True,
        )
    if isinstance(out, Activations):
        out.changed()


def embed(program: Program, work: Workspace, matrix: MatrixView, tokens: npt.NDArray[np.int32], out: Buffer) -> None:
    """Adds a step: out[t] = row tokens[t] of the matrix, for all tokens of the batch.

    The bits are those of `gpack.quants.dequantize`.

    Args:
        tokens: int32 [max_batch], in memory that stays where it is; each from 0 to n_out - 1.

    Raises:
        FormatError: `engine.shape`: the rows of `out` are not those of the matrix.
    """
    if out.width != matrix.n_in or out.per_token != 1:
        raise FormatError(f"rows of {matrix.n_in} do not fit {out.width}", code="engine.shape", field=matrix.name)
    program.keep((work, matrix, tokens, out))
    name = GgmlType.NAMES[matrix.ggml_type]
    if name in BLOCK_TYPES or name in PLAIN_TYPES:
        panel_at = SCRATCH_AT
        memory, each = work.memory(panel_at + 4 * work.lanes * matrix.n_in)
        program.add(
            "embed",
            work.state.ctypes.data,
            matrix.address,
            matrix.row_bytes,
            _blocks(matrix),
            matrix.n_in,
            tokens.ctypes.data,
            out.address,
            work.kernels.address(f"floats_{name}"),
            memory,
            each,
            panel_at,
        )
    else:
        program.host(slow.embed(work, matrix, tokens, out))
    if isinstance(out, Activations):
        out.changed()


def _plan(work: Workspace, matrix: MatrixView | ExpertsView) -> _Plan | None:
    """How to multiply; None: by the host."""
    name = GgmlType.NAMES[matrix.ggml_type]
    find, n_in, variant = work.kernels.address, matrix.n_in, work.kernels.variant.name
    is_plain = name in PLAIN_TYPES
    if is_plain or (name in BLOCK_TYPES and work.compute == "f32"):
        return _Plan(
            _blocks(matrix),
            n_in,
            4 * work.lanes * n_in,
            find(f"dot_{name}") if is_plain else 0,
            find(f"floats_{name}"),
            find("multiply_floats"),
            MOST_COLUMNS if is_plain else 0,
            is_rounded=False,
        )
    if name not in BLOCK_TYPES:
        return None
    return _Plan(
        _blocks(matrix),
        n_in // Q8_VALUES,
        panel_bytes(variant, n_in, group_of(name)),
        find(f"dot_{name}"),
        find(f"codes_{name}"),
        find(multiply_kernel(name, variant)),
        MOST_COLUMNS,
        is_rounded=True,
    )


def _multiplier(work: Workspace, matrix: MatrixView | ExpertsView, per_token: int) -> slow.Multiply:
    """Products with weights that the host made float32 of; matrices of like sizes share its memory."""
    rows, n_in, columns = slow.rows_at_once(matrix), matrix.n_in, work.max_batch * per_token

    def make() -> slow.Multiply:
        weights, state = aligned((rows, n_in), np.float32), aligned((STEP_WORDS,), np.int64)
        x, out = Activations(columns, n_in), Buffer(columns, rows)
        inner = Workspace(work.kernels, state, max_batch=columns, threads=1, compute=work.compute)
        program = Program(work.kernels)
        made = MatrixView(int(weights.ctypes.data), GgmlType.F32, rows, n_in, 4 * n_in, matrix.name, weights)
        matmul(program, inner, made, x, out)

        def multiply(some: Floats, columns: Floats) -> Floats:
            weights[: len(some)], x.array[: len(columns)] = some, columns
            state[STEP_ROWS] = len(columns)
            slow.run_here(program)
            return out.array[: len(columns), : len(some)]

        return multiply

    return work.shared(("multiplier", rows, n_in, columns), make)


def _blocks(matrix: MatrixView | ExpertsView) -> int:
    """Blocks of a row, or its weights where they are floats."""
    return matrix.n_in // GgmlType.BLOCK[matrix.ggml_type]


def _tail_at(work: Workspace, matrix: MatrixView | ExpertsView) -> tuple[int, int]:
    """Where in a thread's memory the copy of a last tile lies, and where that copy ends."""
    return FREE_AT, FREE_AT + (work.lanes * matrix.row_bytes + 63) // 64 * 64


def _common(
    program: Program,
    work: Workspace,
    plan: _Plan,
    matrix: MatrixView | ExpertsView,
    x: Activations,
    out: Buffer,
    order: int = 0,
) -> Callable[[int, int, bool], tuple[int, ...]]:
    """The arguments that all products have, in the order of layout.py; rounds the activations if need be.

    Args:
        order: Bytes that pairs of token and expert take.
    """
    if plan.is_rounded and not x.is_quantized:
        groups = x.per_token * x.width // Q8_VALUES
        program.add("quantize_q8", work.state.ctypes.data, x.address, groups, x.rounded_address)
        x.is_quantized = True
    x_at, x_step = (x.rounded_address, x.rounded_step) if plan.is_rounded else (x.address, 4 * x.width)
    n_tiles = -(-matrix.n_out // work.lanes)
    tiles = max(1, min(_MOST_TILES, _PANELS // plan.panel, n_tiles // (4 * work.threads)))
    tail_at, tail_end = _tail_at(work, matrix)
    panels_at = tail_end + (order + 63) // 64 * 64
    memory, each = work.memory(panels_at + tiles * plan.panel)

    def words(weights: int, bias: int, add: bool) -> tuple[int, ...]:
        return (
            work.state.ctypes.data,
            weights,
            matrix.row_bytes,
            matrix.n_out,
            plan.blocks,
            plan.length,
            x_at,
            x_step,
            out.address,
            4 * out.width,
            bias,
            add,
            x.per_token,
            plan.dot,
            plan.unpack,
            plan.multiply,
            plan.few,
            tiles,
            plan.panel,
            memory,
            each,
            tail_at,
            panels_at,
        )

    return words


def _check(matrix: MatrixView | ExpertsView, x: Buffer, out: Buffer, per_token: tuple[int, ...]) -> None:
    if x.width != matrix.n_in or out.width != matrix.n_out:
        raise FormatError(
            f"a matrix of {matrix.n_out} rows of {matrix.n_in} does not take {x.width} to {out.width}",
            code="engine.shape",
            field=matrix.name,
        )
    if x.per_token not in per_token or out.per_token not in per_token:
        raise FormatError(
            f"{x.per_token} rows per token do not become {out.per_token}", code="engine.shape", field=matrix.name
        )
