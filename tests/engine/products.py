"""Weights, activations and expected products for the tests of `engine.matmul`.

What is expected is computed by numpy in float64, from `gpack.quants.dequantize` and from activations that are rounded
here, by the rule of kernels/q8.py: of four scales for 32 values the one whose codes lie closest, halves to the even.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpack.engine.backends import Compute
from gpack.engine.backends.cpu.buffers import Activations, Buffer
from gpack.engine.backends.cpu.matmul import MatrixView, Workspace, matmul
from gpack.engine.backends.cpu.store import Kernels
from gpack.engine.backends.cpu.team import Program, Team
from gpack.engine.backends.cpu.variants import VARIANTS, usable
from gpack.generated.constants import GgmlType
from gpack.quants import dequantize
from gpack.tensor import Tensor

from .emulated import EmulatedKernels

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Raw = NDArray[np.uint8]

ORACLE = (
    Path(os.environ.get("GPACK_ORACLE", Path(__file__).parents[2].parent / "shared" / "oracle")) / "dequant_blocks.npz"
)
NUMBERS = {name: number for number, name in GgmlType.NAMES.items()}
# Where blocks hold 16-bit floats.
HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
}
BLOCKS = tuple(HALVES)
PLAIN = ("F32", "F16", "BF16")


@cache
def kernels(variant: str) -> Kernels:
    """The kernels of a variant; where this CPU cannot run it they are emulated, or else the test is skipped."""
    if VARIANTS[variant] in usable():
        return Kernels(variant)
    if variant == "vnni" and VARIANTS["avx2"] in usable():
        return EmulatedKernels()
    return pytest.skip(f"this CPU cannot run the kernels {variant}")


def random_rows(name: str, rows: int, n_in: int, seed: int = 0) -> Raw:
    """Stored rows with all codes, scales of both signs and sizes that differ by 2^6."""
    rng = np.random.default_rng([seed, NUMBERS[name], rows, n_in])
    if name in PLAIN:
        return plain_rows(name, rng.standard_normal((rows, n_in)).astype(np.float32))
    number = NUMBERS[name]
    blocks = n_in // GgmlType.BLOCK[number]
    raw = rng.integers(0, 256, (rows, blocks, GgmlType.BYTES[number]), np.uint8)
    for place in HALVES[name]:
        scales = np.ldexp(rng.uniform(1, 2, (rows, blocks)), rng.integers(-9, -3, (rows, blocks)))
        signed = (scales * rng.choice([-1, 1], (rows, blocks))).astype("<f2")
        raw[:, :, place : place + 2] = signed.reshape(rows, blocks, 1).view(np.uint8)
    if name == "MXFP4":
        raw[:, :, 0] = rng.integers(120, 126, (rows, blocks))
    return raw.reshape(rows, -1)


def plain_rows(name: str, values: Floats) -> Raw:
    """float32 values as F32, F16 or (cut off) BF16."""
    if name == "F32":
        stored: NDArray[Any] = values.astype("<f4")
    elif name == "F16":
        stored = values.astype("<f2")
    else:
        stored = (values.astype("<f4").view("<u4") >> 16).astype("<u2")
    return np.ascontiguousarray(stored).view(np.uint8)


def tensor(name: str, raw: Raw, n_in: int, *outer: int) -> Tensor:
    """A tensor over stored rows; `outer`: its other extents, in ggml's order."""
    return Tensor.over(
        memoryview(raw.tobytes()), name=f"{name}.weight", ggml_type=NUMBERS[name], dims=(n_in, *(outer or (len(raw),)))
    )


def values_of(name: str, raw: Raw) -> Doubles:
    """The weights."""
    return dequantize(raw, NUMBERS[name]).astype(np.float64)


def rounded(x: Floats) -> Doubles:
    """Activations as 8 bits leave them."""
    groups = x.reshape(*x.shape[:-1], -1, 32)
    largest = np.abs(groups).max(-1, keepdims=True)
    with np.errstate(all="ignore"):
        inverse = np.where(largest > 0, np.float32(127) / largest, np.float32(0)).astype(np.float32)
    unit, scaled = largest * np.float32(1 / 127), groups * inverse
    tried = [np.rint(scaled * np.float32(top / 127)) for top in (127, 127.45, 126.5, 126)]
    products, squares = [halved(scaled * codes) for codes in tried], [halved(codes * codes) for codes in tried]
    with np.errstate(all="ignore"):
        best = np.argmax([p * p / s for p, s in zip(products, squares, strict=True)], axis=0)[None]
        scale = unit * np.nan_to_num(np.take_along_axis(np.array(products) / np.array(squares), best, 0)[0])
    codes = np.take_along_axis(np.array(tried), best, 0)[0]
    values: Doubles = codes.astype(np.float64) * scale
    return values.reshape(x.shape)


def halved(values: Floats) -> Floats:
    """Sums of the last axis: its halves are added until one is left."""
    while (half := values.shape[-1] // 2) > 0:
        values = values[..., :half] + values[..., half:]
    return values


def seen(name: str, compute: Compute, x: Floats) -> Doubles:
    """Activations as the product of this type sees them."""
    return rounded(x) if compute == "int8" and name in BLOCKS else x.astype(np.float64)


@dataclass
class Bed:
    """Threads, a program and its batch, to try one product."""

    variant: str
    compute: Compute = "int8"
    threads: int = 2
    max_batch: int = 40
    program: Program = field(init=False)
    work: Workspace = field(init=False)

    def __post_init__(self) -> None:
        self.state = np.zeros(16, np.int64)
        found = kernels(self.variant)
        self.program = Program(found)
        self.work = Workspace(found, self.state, max_batch=self.max_batch, threads=self.threads, compute=self.compute)

    @contextmanager
    def team(self) -> Iterator[Callable[[int], None]]:
        """Threads that run the program for a batch of so many tokens."""
        with Team(self.work.kernels, self.threads) as team:

            def run(count: int) -> None:
                self.state[0] = count
                team.run(self.program)

            yield run

    def run(self, *counts: int) -> None:
        """Runs the program for batches of so many tokens."""
        with self.team() as run:
            for count in counts:
                run(count)


def multiply(
    name: str, raw: Raw, x: Floats, variant: str, *, compute: Compute = "int8", threads: int = 2, **options: Any
) -> Floats:
    """The product of stored rows and activations [tokens, n_in], as [tokens, rows]."""
    bed = Bed(variant, compute, threads, max_batch=len(x))
    source, out = Activations(len(x), x.shape[1]), Buffer(len(x), len(raw))
    source.array[:] = x
    matmul(bed.program, bed.work, MatrixView.of(tensor(name, raw, x.shape[1])), source, out, **options)
    bed.run(len(x))
    return out.array
