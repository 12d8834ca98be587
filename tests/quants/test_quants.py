"""Values from the C dequantiser of llama.cpp where its results are at hand, and blocks worked out by hand."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from gpack.errors import FormatError, UnsupportedError, UsageError
from gpack.generated.constants import GgmlType
from gpack.quants import blocks, dequantize

# Kept as bytes: complex numbers, and small floats that only safetensors has.
NO_CODEC = (GgmlType.C64, GgmlType.F4, GgmlType.F6_E2M3, GgmlType.F6_E3M2, GgmlType.F8_E4M3FNUZ, GgmlType.F8_E5M2FNUZ)


ORACLE = (
    Path(os.environ.get("GPACK_ORACLE", Path(__file__).parents[2].parent / "shared" / "oracle")) / "dequant_blocks.npz"
)
# fmt: off
ORACLE_TYPES = [
    "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K",
    "Q4_K", "Q5_K", "Q6_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS",
    "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4", "Q1_0", "Q2_0",
]
# fmt: on
NUMBERS = {name: number for number, name in GgmlType.NAMES.items()}

inf, nan = float("inf"), float("nan")


def one(raw: bytes, ggml_type: int) -> list[float]:
    """The values of one row, as Python floats."""
    values = dequantize(raw, ggml_type)
    assert values.dtype == np.float32
    return [float(value) for value in values]


def codes(ggml_type: int, *values: int) -> NDArray[np.float32]:
    """The values of 8-bit codes."""
    return dequantize(bytes(values), ggml_type)


@pytest.mark.skipif(not ORACLE.exists(), reason="blocks of llama.cpp: no ../shared/oracle/dequant_blocks.npz here")
@pytest.mark.parametrize("name", ORACLE_TYPES)
def test_bits_of_llama_cpp(name: str) -> None:
    with np.load(ORACLE) as oracle:
        number, raw, expected = int(oracle[f"{name}.id"]), oracle[f"{name}.raw"], oracle[f"{name}.f32"]
    assert number == NUMBERS[name]
    values = dequantize(raw, number)
    assert values.shape == expected.shape
    assert np.array_equal(values.view(np.uint32), expected.view(np.uint32))
    flat = dequantize(raw.tobytes(), number)
    assert np.array_equal(flat.view(np.uint32), expected.view(np.uint32).reshape(-1))


# f16: 1.0 = 0x3C00, 0.5 = 0x3800, 2.0 = 0x4000, -0.25 = 0xB400; little-endian below.


def test_q4_0() -> None:
    # d = 0.5; byte 0 = 0xF0: element 0 has code 0, element 16 code 15; all other bytes 0x88: code 8.
    values = one(b"\x00\x38" + b"\xf0" + b"\x88" * 15, GgmlType.Q4_0)
    assert values == [-4.0] + [0.0] * 15 + [3.5] + [0.0] * 15


def test_q4_1() -> None:
    # d = 2, m = -0.25; byte 15 = 0x31: element 15 has code 1, element 31 code 3.
    values = one(b"\x00\x40" + b"\x00\xb4" + b"\x00" * 15 + b"\x31", GgmlType.Q4_1)
    assert values == [-0.25] * 15 + [1.75] + [-0.25] * 15 + [5.75]


def test_q8_0() -> None:
    # d = -0.25; codes 0, 1, -1, 127, -128, then 0.
    values = one(b"\x00\xb4" + b"\x00\x01\xff\x7f\x80" + b"\x00" * 27, GgmlType.Q8_0)
    assert values == [0.0, -0.25, 0.25, -31.75, 32.0] + [0.0] * 27


def test_mxfp4() -> None:
    # E8M0 128 = 2; E2M1 codes 0..7 = 0, .5, 1, 1.5, 2, 3, 4, 6 and with bit 3 their negatives.
    values = one(b"\x80" + bytes(i | i << 4 for i in range(16)), GgmlType.MXFP4)
    magnitudes = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0]
    assert values == (magnitudes + [-m for m in magnitudes]) * 2


def test_q1_0() -> None:
    # d = 0.5; byte 0 = 0b0000_0101: elements 0 and 2 are positive; byte 15 = 0x80: element 127 is.
    values = one(b"\x00\x38" + b"\x05" + b"\x00" * 14 + b"\x80", GgmlType.Q1_0)
    assert values == [0.5, -0.5, 0.5] + [-0.5] * 124 + [0.5]


def test_q2_0() -> None:
    # d = 2; byte 0 = 0b11_10_01_00: codes 0, 1, 2, 3; all other bytes 0x55: code 1; byte 15 = 0xC1: 1, 0, 0, 3.
    values = one(b"\x00\x40" + b"\xe4" + b"\x55" * 14 + b"\xc1", GgmlType.Q2_0)
    assert values == [-2.0, 0.0, 2.0, 4.0] + [0.0] * 56 + [0.0, -2.0, -2.0, 4.0]


def test_q8_1_ignores_the_sum() -> None:
    # d = 0.5, s = NaN; codes 1, -128, then 3.
    values = one(b"\x00\x38" + b"\x00\x7e" + b"\x01\x80" + b"\x03" * 30, GgmlType.Q8_1)
    assert values == [0.5, -64.0] + [1.5] * 30


def test_q8_k_ignores_the_sums() -> None:
    # d = 0.125 as float32; codes -128..127; sums of 0x7FFF.
    raw = struct.pack("<f", 0.125) + bytes((i - 128) & 255 for i in range(256)) + b"\xff\x7f" * 16
    assert one(raw, GgmlType.Q8_K) == [(i - 128) / 8 for i in range(256)]


def test_two_blocks_to_a_row_and_leading_axes() -> None:
    block = b"\x00\x3c" + b"\x55" * 15  # d = 1, codes 1
    row = block + b"\x54" + block + b"\x57"  # the 60th element of each block has code 0, then 3
    values = dequantize(np.frombuffer(row * 6, np.uint8).reshape(2, 3, 36), GgmlType.Q2_0)
    assert values.shape == (2, 3, 128)
    assert values.sum(axis=-1).tolist() == [[1.0] * 3] * 2
    assert values[1, 2, 60] == -1.0
    assert values[1, 2, 124] == 2.0


@pytest.mark.parametrize("number", sorted(blocks.LAYOUTS))
def test_layouts_have_the_size_of_the_schema(number: int) -> None:
    assert blocks.LAYOUTS[number].itemsize == GgmlType.BYTES[number]


def test_f8_e4m3() -> None:
    # OFP8 table 2, bias 7: largest 0x7E = 448; smallest normal 0x08 = 2^-6; subnormals m 2^-9; 0x7F, 0xFF NaN.
    values = codes(GgmlType.F8_E4M3, 0x00, 0x01, 0x07, 0x08, 0x38, 0x39, 0x78, 0x7E, 0xB8, 0xFE, 0x81)
    assert values.tolist() == [0.0, 2**-9, 7 * 2**-9, 2**-6, 1.0, 1.125, 256.0, 448.0, -1.0, -448.0, -(2**-9)]
    assert np.isnan(codes(GgmlType.F8_E4M3, 0x7F, 0xFF)).all()
    assert np.isnan(codes(GgmlType.F8_E4M3, *range(256))).sum() == 2
    assert codes(GgmlType.F8_E4M3, 0x80).view(np.uint32).tolist() == [0x80000000]


def test_f8_e5m2() -> None:
    # OFP8 table 2, bias 15: largest 0x7B = 57344; smallest normal 0x04 = 2^-14; subnormals m 2^-16; 0x7C infinite.
    values = codes(GgmlType.F8_E5M2, 0x00, 0x01, 0x03, 0x04, 0x3C, 0x3D, 0x7B, 0x7C, 0xFC, 0xC0)
    assert values.tolist() == [0.0, 2**-16, 3 * 2**-16, 2**-14, 1.0, 1.25, 57344.0, inf, -inf, -2.0]
    assert np.isnan(codes(GgmlType.F8_E5M2, 0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF)).all()
    assert np.isnan(codes(GgmlType.F8_E5M2, *range(256))).sum() == 6


def test_f8_e8m0() -> None:
    # MX 1.0 section 5.4.1: 2^(code - 127), no zero, no sign, no infinity; 0xFF NaN. 2^-127 is subnormal in float32.
    values = codes(GgmlType.F8_E8M0, 0, 1, 126, 127, 128, 254)
    assert values.tolist() == [2.0**-127, 2.0**-126, 0.5, 1.0, 2.0, 2.0**127]
    assert values.view(np.uint32)[0] == 0x00400000
    assert np.isnan(codes(GgmlType.F8_E8M0, 255)).all()


@pytest.mark.parametrize(
    ("name", "raw", "expected"),
    [
        ("F32", "0000803f 000000c0 0000807f 01000000", [1.0, -2.0, inf, 2.0**-149]),
        ("F16", "003c 00c0 007c 0100 ff7b", [1.0, -2.0, inf, 2.0**-24, 65504.0]),
        ("BF16", "803f 00c0 807f 0100", [1.0, -2.0, inf, 2.0**-133]),
        ("F64", "000000000000f03f 000000000000f0ff", [1.0, -inf]),
        ("I8", "00 7f 80 ff", [0.0, 127.0, -128.0, -1.0]),
        ("U8", "00 7f 80 ff", [0.0, 127.0, 128.0, 255.0]),
        ("I16", "0100 0080", [1.0, -32768.0]),
        ("U16", "0100 0080", [1.0, 32768.0]),
        ("I32", "01000000 00000080", [1.0, -(2.0**31)]),
        ("U32", "01000000 00000080", [1.0, 2.0**31]),
        ("I64", "0100000000000000 0000000000000080", [1.0, -(2.0**63)]),
        ("U64", "0100000000000000 0000000000000080", [1.0, 2.0**63]),
        ("BOOL", "00 01 01", [0.0, 1.0, 1.0]),
    ],
)
def test_scalars(name: str, raw: str, expected: list[float]) -> None:
    assert one(bytes.fromhex(raw), NUMBERS[name]) == expected


def test_nan_keeps_its_bits_where_it_is_not_converted() -> None:
    assert dequantize(b"\x01\x00\xa0\x7f", GgmlType.F32).view(np.uint32).tolist() == [0x7FA00001]
    assert dequantize(b"\xa1\xff", GgmlType.BF16).view(np.uint32).tolist() == [0xFFA10000]


def test_wide_types_round_to_the_nearest_float32() -> None:
    # float32 has 24 bits: 2^24 + 1 lies midway and goes to the even side, 2^24 + 3 up to 2^24 + 4.
    integers = [2**24 + 1, 2**24 + 3, 2**63 - 1]
    expected = [2.0**24, 2.0**24 + 4, 2.0**63]
    assert one(struct.pack("<3q", *integers), GgmlType.I64) == expected
    assert one(struct.pack("<3Q", *integers), GgmlType.U64) == expected
    assert one(struct.pack("<2i", *integers[:2]), GgmlType.I32) == expected[:2]
    # One above midway: through a double, whose 53 bits lose the 1, it would go down to 2^62.
    assert one(struct.pack("<q", 2**62 + 2**38 + 1), GgmlType.I64) == [2.0**62 + 2.0**39]
    assert one(struct.pack("<Q", 2**63 + 2**39 + 1), GgmlType.U64) == [2.0**63 + 2.0**40]
    assert one(struct.pack("<3d", 0.1, inf, 1e-50), GgmlType.F64) == [0.10000000149011612, inf, 0.0]


def test_a_finite_value_never_becomes_infinite() -> None:
    # The largest float32 is (2 - 2^-23) 2^127; up to half a step beyond it rounding goes down to it.
    largest = (2 - 2.0**-23) * 2.0**127
    midway = (2 - 2.0**-24) * 2.0**127
    assert one(struct.pack("<2d", largest, np.nextafter(midway, 0)), GgmlType.F64) == [largest, largest]
    for value in (midway, -1e39, 1e300):
        with pytest.raises(FormatError) as caught:
            dequantize(struct.pack("<3d", 1.0, inf, value), GgmlType.F64)
        assert caught.value.code == "quantize.value"
        assert "element [2]" in caught.value.message


@pytest.mark.parametrize("number", [n for n in GgmlType.NAMES if n not in NO_CODEC])
def test_every_type_decodes_any_bytes(number: int) -> None:
    raw = np.random.default_rng(number).integers(0, 256, (3, 2 * GgmlType.BYTES[number]), np.uint8)
    raw[0] = 0xFF  # scales that are NaN
    raw[1] = 0x7B  # and huge ones
    if number == GgmlType.F64:  # which float32 has to hold
        raw[1:, 7::8] &= 0x3F
    before = raw.copy()
    values = dequantize(raw, number)
    assert values.dtype == np.float32
    assert values.shape == (3, 2 * GgmlType.BLOCK[number])
    assert np.array_equal(raw, before)
    for row in range(3):
        assert np.array_equal(dequantize(raw[row].tobytes(), number).view(np.uint32), values[row].view(np.uint32))


@pytest.mark.parametrize("number", [n for n in GgmlType.NAMES if n not in NO_CODEC])
def test_no_rows_and_no_blocks(number: int) -> None:
    assert dequantize(np.empty((0, GgmlType.BYTES[number]), np.uint8), number).shape == (0, GgmlType.BLOCK[number])
    assert dequantize(b"", number).shape == (0,)
    assert dequantize(np.empty((4, 0), np.uint8), number).shape == (4, 0)


def test_f32_is_a_view_where_it_can_be() -> None:
    stored = np.arange(8, dtype="<f4")
    assert np.shares_memory(dequantize(stored.view(np.uint8), GgmlType.F32), stored)
    shifted = np.zeros(37, np.uint8)[1:33]
    shifted[:] = stored.view(np.uint8)
    values = dequantize(shifted, GgmlType.F32)
    assert values.flags.aligned
    assert values.tolist() == stored.tolist()


def test_rows_that_are_not_contiguous() -> None:
    raw = np.zeros((2, 8, 3), np.uint8)
    raw[:, :, 1] = np.frombuffer(struct.pack("<2f", 1.5, -2.0), np.uint8)
    assert dequantize(raw[:, :, 1], GgmlType.F32).tolist() == [[1.5, -2.0]] * 2
    assert dequantize(raw[:, :, 1], GgmlType.F16).shape == (2, 4)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_buffers(kind: type[bytes | bytearray | memoryview]) -> None:
    assert dequantize(kind(b"\x00\x3c"), GgmlType.F16).tolist() == [1.0]


@pytest.mark.parametrize("number", [4, 31, 43, -1, 65600])
def test_unknown_types(number: int) -> None:
    with pytest.raises(UnsupportedError, match=f"type {number} is not known") as caught:
        dequantize(b"\x00" * 64, number)
    assert caught.value.code == "quants.no_codec"


@pytest.mark.parametrize("raw", [b"", b"\x00" * 24])
@pytest.mark.parametrize("number", NO_CODEC)
def test_types_without_a_codec(raw: bytes, number: int) -> None:
    with pytest.raises(UnsupportedError, match=GgmlType.NAMES[number]) as caught:
        dequantize(raw, number)
    assert caught.value.code == "quants.no_codec"


@pytest.mark.parametrize(
    ("shape", "number"),
    [((17,), GgmlType.Q4_0), ((2, 19), GgmlType.Q4_0), ((18, 1), GgmlType.Q2_0), ((6,), GgmlType.F32)],
)
def test_partial_rows(shape: tuple[int, ...], number: int) -> None:
    with pytest.raises(UsageError, match=rf"{shape[-1]} bytes.*{GgmlType.NAMES[number]} blocks") as caught:
        dequantize(np.zeros(shape, np.uint8), number)
    assert caught.value.code == "quants.partial_row"


@pytest.mark.parametrize(
    "data",
    [np.zeros(4, np.float32), np.zeros((), np.uint8), memoryview(bytes(8))[::2], "text"],
    ids=["float32", "no-axis", "strided-buffer", "str"],
)
def test_data_that_is_no_row_of_bytes(data: NDArray[np.uint8]) -> None:
    with pytest.raises(UsageError) as caught:
        dequantize(data, GgmlType.F32)
    assert caught.value.code == "usage"


def test_importing_does_not_import_gguf() -> None:
    program = "import sys, gpack.quants; sys.exit('gguf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
