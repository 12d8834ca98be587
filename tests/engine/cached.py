"""Texts with blocks of keys and values at scattered addresses, to try attention on; what is expected, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpack.engine.backends.cpu.attention import AttentionMemory, HeadOptions, RowsAt, attention
from gpack.engine.backends.cpu.buffers import aligned
from gpack.engine.backends.cpu.cache import BlockLayout
from gpack.engine.backends.cpu.step import LoweredSegment, StepBlock
from gpack.engine.backends.cpu.store import Kernels
from gpack.engine.backends.cpu.team import Program, Team

Floats = NDArray[np.float32]
POISON = 0xFF  # a byte that makes NaN of floats, of halves, and of the scales of codes


@dataclass(frozen=True)
class Shape:
    """Heads of a layer, and what they may see."""

    n_head: int
    n_head_kv: int
    head_dim: int
    window: int = 0
    scale: float = 0.0
    n_rotated: int = 0
    interleaved: bool = False
    normed: bool = False
    layers: int = 1  # of the group; the last is tried


@dataclass
class Text:
    """Rows of queries, keys and values [n, heads, head_dim] of a text, and its blocks."""

    q: Floats
    k: Floats
    v: Floats
    cache_type: str
    blocks: list[Any] = field(default_factory=list)
    table: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    position: int = 0

    @classmethod
    def random(cls, shape: Shape, n: int, cache_type: str, seed: int = 0) -> Text:
        rng = np.random.default_rng([seed, n])

        def rows(heads: int) -> Floats:
            return rng.standard_normal((n, heads, shape.head_dim)).astype(np.float32)

        return cls(rows(shape.n_head) * 2, rows(shape.n_head_kv), rows(shape.n_head_kv), cache_type)

    def fresh(self) -> Text:
        """The same text, with nothing in its cache."""
        return Text(self.q, self.k, self.v, self.cache_type)


class Bed:
    """A program that has one layer's attention, and its threads."""

    def __init__(self, kernels: Kernels, shape: Shape, threads: int = 2, max_rows: int = 64, n_ctx: int = 2048) -> None:
        self.shape, self.threads = shape, threads
        self.layouts = {
            name: BlockLayout.of(name, [(shape.n_head_kv, shape.head_dim)] * shape.layers)
            for name in ("F32", "F16", "Q8_0")
        }
        self.step = StepBlock(max_rows, n_groups=2)
        self.program = Program(kernels)
        width, width_kv = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
        self.q, self.out = aligned((max_rows, width), np.float32), aligned((max_rows, width), np.float32)
        # Keys and values lie in one buffer, as those of a joined product do.
        self.kv = aligned((max_rows, 2 * width_kv), np.float32)
        k = RowsAt(self.kv.ctypes.data, 8 * width_kv)
        rng = np.random.default_rng(1)
        half = max(1, shape.n_rotated // 2)
        frequencies = 100.0 ** (-np.arange(half) / half)
        self.angles = np.outer(np.arange(n_ctx), frequencies)
        self.rope = np.concatenate([np.cos(self.angles), np.sin(self.angles)], axis=1).astype(np.float32)
        self.rope_cell = np.array([self.rope.ctypes.data], np.int64)
        self.norms = (1 + 0.1 * rng.standard_normal((2, shape.head_dim))).astype(np.float32)
        heads = HeadOptions(
            shape.n_rotated,
            shape.interleaved,
            self.rope_cell.ctypes.data,
            self.norms[0].ctypes.data if shape.normed else 0,
            self.norms[1].ctypes.data if shape.normed else 0,
            1e-3,
        )
        attention(
            self.program,
            self.step,
            AttentionMemory(threads, max_rows),
            RowsAt(self.q.ctypes.data, 4 * width),
            k,
            RowsAt(k.address + 4 * width_kv, k.row_bytes),
            RowsAt(self.out.ctypes.data, 4 * width),
            n_head=shape.n_head,
            layouts=list(self.layouts.values()),
            layer=shape.layers - 1,
            group=1,
            scale=shape.scale or shape.head_dim**-0.5,
            window=shape.window,
            heads=heads,
        )
        self.team = Team(kernels, threads)

    def __enter__(self) -> Bed:
        return self

    def __exit__(self, *_: object) -> None:
        self.team.close()

    def reach(self, text: Text, end: int) -> None:
        """Gives a text blocks for positions below `end`, poisoned; what fell out of the window is poisoned too."""
        size = self.layouts[text.cache_type].nbytes
        while 64 * len(text.blocks) < end:
            block = aligned((size,), np.uint8)
            block[:] = POISON
            text.blocks.append(block)
        oldest = max(0, text.position - self.shape.window + 1) if self.shape.window else 0
        addresses = [block.ctypes.data for block in text.blocks]
        for number in range(oldest // 64):
            text.blocks[number][:] = POISON
            addresses[number] = 0
        text.table = np.array([*addresses, 0], np.int64)

    def run(self, *chunks: tuple[Text, int]) -> list[Floats]:
        """Carries texts on by so many rows each, in one step; their results [rows, n_head * head_dim]."""
        chosen = sorted(chunks, key=lambda chunk: ("Q8_0", "F32", "F16").index(chunk[0].cache_type))
        segments, first = [], 0
        for text, count in chosen:
            self.reach(text, text.position + count)
            rows = slice(first, first + count)
            taken = slice(text.position, text.position + count)
            self.q[rows] = text.q[taken].reshape(count, -1)
            self.kv[rows] = np.concatenate([text.k[taken].reshape(count, -1), text.v[taken].reshape(count, -1)], axis=1)
            tables = (0, text.table.ctypes.data)
            segments.append(LoweredSegment(first, count, text.position, text.cache_type, tables))
            first += count
        self.out[:] = np.nan
        self.step.fill(segments)
        self.team.run(self.program)
        made = {}
        for segment, (text, count) in zip(segments, chosen, strict=True):
            made[id(text)] = self.out[segment.first_row : segment.first_row + count].copy()
            text.position += count
        return [made[id(text)] for text, _ in chunks]

    def alone(self, text: Text, counts: Sequence[int]) -> Floats:
        """A whole text in chunks, from its beginning."""
        fresh = text.fresh()
        return np.concatenate([self.run((fresh, count))[0] for count in counts])


def expected(bed: Bed, text: Text) -> NDArray[np.float64]:
    """Every row's result, in float64, of keys and values as the cache keeps them."""
    shape = bed.shape
    n, group = len(text.q), shape.n_head // shape.n_head_kv
    q, k = text.q.astype(np.float64), text.k.astype(np.float64)
    if shape.normed:
        q, k = (x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-3) for x in (q, k))
        q, k = q * bed.norms[0], k * bed.norms[1]
    q, k = (rotated(x, bed.angles[:n], shape.n_rotated, shape.interleaved) for x in (q, k))
    k, v = kept(k, text.cache_type), kept(text.v.astype(np.float64), text.cache_type)
    out = np.empty((n, shape.n_head, shape.head_dim))
    position = np.arange(n)
    hidden = position[None, :] > position[:, None]
    if shape.window:
        hidden |= position[None, :] <= position[:, None] - shape.window
    for head in range(shape.n_head):
        scores = q[:, head] @ k[:, head // group].T * (shape.scale or shape.head_dim**-0.5)
        scores[hidden] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = weights / weights.sum(axis=1, keepdims=True) @ v[:, head // group]
    return out.reshape(n, -1)


def rotated(x: NDArray[np.float64], angles: NDArray[np.float64], n: int, interleaved: bool) -> NDArray[np.float64]:
    """Heads with the first n numbers of each rotated."""
    if not n:
        return x
    made = x.copy()
    first, second = (slice(0, n, 2), slice(1, n, 2)) if interleaved else (slice(0, n // 2), slice(n // 2, n))
    a, b, cos, sin = x[..., first], x[..., second], np.cos(angles)[:, None], np.sin(angles)[:, None]
    made[..., first], made[..., second] = a * cos - b * sin, a * sin + b * cos
    return made


def kept(x: NDArray[np.float64], cache_type: str) -> NDArray[np.float64]:
    """Numbers as a type of cache keeps them."""
    if cache_type == "F32":
        return x
    if cache_type == "F16":
        return x.astype(np.float16).astype(np.float64)
    made = np.empty_like(x)
    for first in range(0, x.shape[-1], 32):
        part = x[..., first : first + 32]
        scale = np.abs(part).max(-1, keepdims=True) / 127
        made[..., first : first + 32] = np.rint(part / scale) * scale.astype(np.float16).astype(np.float64)
    return made
