"""Types whose block is one element: floats, integers, BOOL and the 8-bit floats of the OCP specifications.

The 8-bit floats follow "OCP 8-bit Floating Point Specification (OFP8)" revision 1.0 and, for E8M0, "OCP
Microscaling Formats (MX) Specification" version 1.0. F8_E4M3 is the OFP8 type without infinities, which
safetensors and PyTorch (`float8_e4m3fn`) mean by that name.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from gpack.errors import FormatError
from gpack.generated.constants import GgmlType
from gpack.quants.decoder import Decoder


def _numpy_type(dtype: str) -> Decoder:
    """A decoder for a type that numpy has; `dtype` with its byte order."""

    def decode(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        stored: NDArray[np.generic] = rows.view(dtype)
        # A compiled kernel that takes float32 may fault on an address that is no multiple of 4.
        is_ready = stored.dtype == np.float32 and stored.flags.aligned
        values: NDArray[np.float32] = stored.astype(np.float32, copy=not is_ready)
        return values

    return decode


def narrow_f64(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """The nearest float32 of each value; what is infinite or NaN stays so.

    Raises:
        FormatError: `quantize.value`: a finite value lies beyond float32's range.
    """
    with np.errstate(over="ignore", under="ignore"):
        narrow: NDArray[np.float32] = values.astype(np.float32)
    lost = np.isinf(narrow) & np.isfinite(values)
    if lost.any():
        index = np.unravel_index(int(lost.argmax()), lost.shape)
        raise FormatError(
            f"element {list(map(int, index))} is {float(values[index]):g}, which float32 cannot hold",
            code="quantize.value",
            hint="read it as F64",
        )
    return narrow


def _f64(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    return narrow_f64(rows.view("<f8"))


def _bf16(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """BF16 is the high half of a float32."""
    bits: NDArray[np.uint32] = rows.view("<u2").astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def _bool(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Any byte but 0 is true, as in C."""
    return rows.astype(np.bool_).astype(np.float32)


def _f8_e5m2(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """F8_E5M2 is the high half of a float16, with its infinities and NaNs."""
    return (rows.astype(np.uint16) << 8).view(np.float16).astype(np.float32)


def _f8_e4m3(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    return _e4m3_values()[rows]


def _f8_e8m0(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    return _e8m0_values()[rows]


@cache
def _e4m3_values() -> NDArray[np.float32]:
    """The values of all 256 codes: sign, 4 exponent bits of bias 7, 3 mantissa bits; no infinities."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    # Exponent 0 holds the subnormals: no hidden bit, the smallest normal exponent.
    significand = np.where(exponent == 0, mantissa, mantissa + 8)
    magnitude = np.ldexp(significand.astype(np.float32), np.maximum(exponent, 1) - 7 - 3)
    magnitude[code & 127 == 127] = np.nan
    signed: NDArray[np.float32] = np.copysign(magnitude, np.where(code & 128, -1, 1)).astype(np.float32)
    return signed


@cache
def _e8m0_values() -> NDArray[np.float32]:
    """The values of all 256 codes: powers of two of bias 127, and NaN; 2^-127 is a subnormal float32."""
    values = np.ldexp(np.float64(1), np.arange(256) - 127)
    values[255] = np.nan
    return values.astype(np.float32)


DECODERS: dict[int, Decoder] = {
    GgmlType.F32: _numpy_type("<f4"),
    GgmlType.F16: _numpy_type("<f2"),
    GgmlType.BF16: _bf16,
    GgmlType.F64: _f64,
    GgmlType.I8: _numpy_type("i1"),
    GgmlType.I16: _numpy_type("<i2"),
    GgmlType.I32: _numpy_type("<i4"),
    GgmlType.I64: _numpy_type("<i8"),
    GgmlType.U8: _numpy_type("u1"),
    GgmlType.U16: _numpy_type("<u2"),
    GgmlType.U32: _numpy_type("<u4"),
    GgmlType.U64: _numpy_type("<u8"),
    GgmlType.BOOL: _bool,
    GgmlType.F8_E4M3: _f8_e4m3,
    GgmlType.F8_E5M2: _f8_e5m2,
    GgmlType.F8_E8M0: _f8_e8m0,
}
