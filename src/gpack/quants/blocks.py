"""Block formats that the PyPI `gguf` package cannot decode, each from its block's layout in ggml.

A block is a numpy record whose sizes follow from the elements of a block; tests hold it against the bytes of a
block in the schema.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpack.generated.constants import GgmlType
from gpack.quants.decoder import Decoder

_SUM_RUN = 16  # elements that one of Q8_K's block sums covers


def _packed(ggml_type: int, bits: int) -> np.dtype[np.void]:
    """A block of a float16 scale and codes of `bits` bits."""
    return np.dtype([("d", "<f2"), ("q", "u1", (GgmlType.BLOCK[ggml_type] * bits // 8,))])


LAYOUTS: dict[int, np.dtype[np.void]] = {
    GgmlType.Q1_0: _packed(GgmlType.Q1_0, 1),
    GgmlType.Q2_0: _packed(GgmlType.Q2_0, 2),
    GgmlType.Q8_1: np.dtype([("d", "<f2"), ("s", "<f2"), ("q", "i1", (GgmlType.BLOCK[GgmlType.Q8_1],))]),
    GgmlType.Q8_K: np.dtype(
        [
            ("d", "<f4"),
            ("q", "i1", (GgmlType.BLOCK[GgmlType.Q8_K],)),
            ("sums", "<i2", (GgmlType.BLOCK[GgmlType.Q8_K] // _SUM_RUN,)),
        ]
    ),
}


def _scaled(codes: NDArray[np.generic], scale: NDArray[np.generic]) -> NDArray[np.float32]:
    """The product of codes [..., blocks, elements] and scales [..., blocks], in float32."""
    values: NDArray[np.float32] = codes.astype(np.float32)
    values *= scale.astype(np.float32)[..., None]
    return values


def _q1_0(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The values: d where the bit is set, -d where it is not. The lowest bit of a byte comes first."""
    block = rows.view(LAYOUTS[GgmlType.Q1_0])
    bits = np.unpackbits(block["q"], axis=-1, bitorder="little")
    return _scaled(bits.astype(np.int8) * 2 - 1, block["d"])


def _q2_0(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The values (q - 1) d. The lowest two bits of a byte come first."""
    block = rows.view(LAYOUTS[GgmlType.Q2_0])
    codes = block["q"][..., None] >> np.array([0, 2, 4, 6], np.uint8) & np.uint8(3)
    flat = codes.reshape(*block.shape, GgmlType.BLOCK[GgmlType.Q2_0])
    return _scaled(flat.astype(np.int8) - np.int8(1), block["d"])


def _q8_1(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The values q d; the stored sum `s` only serves dot products."""
    block = rows.view(LAYOUTS[GgmlType.Q8_1])
    return _scaled(block["q"], block["d"])


def _q8_k(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The values q d; the stored sums only serve dot products."""
    block = rows.view(LAYOUTS[GgmlType.Q8_K])
    return _scaled(block["q"], block["d"])


DECODERS: dict[int, Decoder] = {GgmlType.Q1_0: _q1_0, GgmlType.Q2_0: _q2_0, GgmlType.Q8_1: _q8_1, GgmlType.Q8_K: _q8_k}
