"""8-bit floats with scales beside them: the product is the weight, as `transformers` computes it.

A scale belongs to a block of a matrix, to a row, or to the whole; which of these, shows in how many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..container.payload import Computed, Range, read_part
from ..container.strict_json import shorten
from ..errors import FormatError
from ..generated.constants import GgmlType
from ..quants import dequantize
from .hf_config import HfConfig
from .safetensors import StoredTensor

SCALE = "_scale_inv"
# Scales of activations: weights that are unfolded meet activations that were never narrowed.
_ACTIVATIONS = (".activation_scale", ".input_scale")
_NARROW = (GgmlType.F8_E4M3, GgmlType.F8_E5M2)
_WIDE = (GgmlType.F32, GgmlType.F16, GgmlType.BF16, GgmlType.F8_E8M0, GgmlType.U8)


@dataclass(frozen=True, slots=True)
class ScaledTensor(StoredTensor):
    """A tensor whose values are products of stored values and scales.

    Attributes:
        packed: The stored values.
        scale: The scales; rows and columns in the last two axes, or a single one.
        block: Rows and columns that have one scale.
    """

    packed: StoredTensor
    scale: StoredTensor
    block: tuple[int, int]

    @property
    def data(self) -> Range:
        """The products, made when they are asked for: F32, or rounded to the nearest BF16."""
        width = self.shape[-1]
        return Computed(prod(self.shape[:-1]), width * GgmlType.BYTES[self.ggml_type], self._make)

    def _make(self, first: int, count: int) -> bytes:
        rows, width = self.shape[-2:]
        stored = np.frombuffer(read_part(self.packed.data, first * width, count * width), np.uint8)
        values = dequantize(stored.reshape(count, width), self.packed.ggml_type)
        scales = _scales(self.scale, -(-rows // self.block[0]), -(-width // self.block[1]))
        numbers = np.arange(first, first + count)
        lines = numbers // rows * -(-rows // self.block[0]) + numbers % rows // self.block[0]
        lines = lines if len(scales) > 1 else np.zeros_like(lines)
        with np.errstate(all="ignore"):
            products = values * np.repeat(scales[lines], self.block[1], axis=1)[:, :width]
            made = products if self.ggml_type == GgmlType.F32 else _round(products)
            lost = np.isfinite(values) & ~np.isfinite(products)
            if self.ggml_type != GgmlType.F32:
                lost |= np.isfinite(products) & ((made & 0x7F80) == 0x7F80)
        if lost.any():
            row, column = (int(axis) for axis in np.unravel_index(int(lost.argmax()), lost.shape))
            raise FormatError(
                f"element [{first + row}, {column}] times its scale is infinite",
                code="quantize.value",
                path=self.file.path,
                field=self.name,
            )
        return made.tobytes()


def unfold_scales(
    tensors: Sequence[StoredTensor], config: HfConfig, *, wide: bool
) -> tuple[list[StoredTensor], list[str]]:
    """The tensors, 8-bit floats with their scales as one tensor each, and what the user should know.

    Args:
        config: Says how large blocks are where the last ones are not whole.
        wide: The products stay F32, for they will become another type.
    """
    named = {tensor.name: tensor for tensor in tensors}
    scaled: dict[str, ScaledTensor] = {}
    for name, scale in named.items():
        packed = named.get(name.removesuffix(SCALE)) if name.endswith(SCALE) else None
        block = None if packed is None else _block(packed, scale, config)
        if packed is not None and block is not None:
            kind = GgmlType.F32 if wide else GgmlType.BF16
            size = prod(packed.shape) * GgmlType.BYTES[kind]
            scaled[packed.name] = ScaledTensor(
                packed.name, kind, packed.shape, packed.file, packed.begin, size, packed, scale, block
            )
    owners = {name.removesuffix(".weight") for name in scaled}
    idle = [name for name in named if name.endswith(_ACTIVATIONS) and name.rpartition(".")[0] in owners]
    gone = {*(tensor.scale.name for tensor in scaled.values()), *idle}
    notes = []
    if idle:
        notes.append(f"{len(idle)} scales of activations are left out, the first is {shorten(idle[0])[1:-1]}")
    return [scaled.get(tensor.name, tensor) for tensor in tensors if tensor.name not in gone], notes


def _block(packed: StoredTensor, scale: StoredTensor, config: HfConfig) -> tuple[int, int] | None:
    """Rows and columns that share a scale; None where the scales do not fit the matrix."""
    if packed.ggml_type not in _NARROW or scale.ggml_type not in _WIDE or len(packed.shape) < 2:
        return None
    if not prod(packed.shape) or not prod(scale.shape):
        return None
    matrices = prod(packed.shape[:-2])
    extents, grid = packed.shape[-2:], scale.shape[-2:]
    if len(scale.shape) < 2:  # one for all, or one for each of several matrices
        if prod(scale.shape) not in (1, matrices):
            return None
        grid = (1, 1)
    elif prod(scale.shape[:-2]) != matrices:
        return None
    said = _said_block(config)
    found = []
    for axis in range(2):
        extent, count = extents[axis], grid[axis]
        if extent % count == 0:
            found.append(extent // count)
        elif said is not None and -(-extent // said[axis]) == count:
            found.append(said[axis])
        else:
            return None
    return found[0], found[1]


def _said_block(config: HfConfig) -> tuple[int, int] | None:
    settings: Any = config.outer.get("quantization_config", config.values.get("quantization_config"))
    said = settings.get("weight_block_size") if isinstance(settings, dict) else None
    if not isinstance(said, list) or len(said) != 2 or not all(type(size) is int and size > 0 for size in said):
        return None
    return said[0], said[1]


@lru_cache(maxsize=4)
def _scales(scale: StoredTensor, lines: int, columns: int) -> NDArray[np.float32]:
    """The scales as float32, one line for each line of blocks of each matrix: [matrices * lines, columns]."""
    data = np.frombuffer(read_part(scale.data, 0, scale.byte_size), np.uint8)
    # Bytes that are no floats are exponents, as E8M0 has them.
    kind = GgmlType.F8_E8M0 if scale.ggml_type == GgmlType.U8 else scale.ggml_type
    return dequantize(data, kind).reshape(-1, columns) if lines and columns else np.empty((0, 0), np.float32)


def _round(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The nearest BF16 of each value, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values).view("<u4").astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype("<u2")
