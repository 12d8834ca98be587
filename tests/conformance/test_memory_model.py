"""Models in memory: the same pack as from a GGUF, GGUF's encoding by hand, and values that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf_maker import write_gguf

from gpack.conformance.memory_model import MemoryModel, pack_of, size_of, value_of
from gpack.conformance.recipes import bases
from gpack.convert.gguf import convert_gguf
from gpack.errors import UsageError


def test_the_pack_is_that_of_a_gguf_of_the_same_model(tmp_path: Path) -> None:
    for source in (bases.everything_source(), bases.small_source()):
        gguf = write_gguf(tmp_path / "model.gguf", *source)
        convert_gguf(gguf, tmp_path / "model.gpack")
        assert bases.convert(*source) == (tmp_path / "model.gpack").read_bytes()


@pytest.mark.parametrize(
    ("kind", "value", "raw", "types", "count"),
    [
        ("u8", 255, "ff", (0, 0), 1),
        ("i16", -2, "feff", (3, 3), 1),
        ("bool", True, "01", (7, 7), 1),
        ("f32", 0.5, "0000003f", (6, 6), 1),
        ("u64", 2**64 - 1, "ff" * 8, (10, 10), 1),
        ("str", "\u00e9", "c3a9", (8, 8), 1),
        ("str", b"\xff", "ff", (8, 8), 1),
        ("[u8]", [1, 2], "0102", (9, 0), 2),
        ("[str]", ["ab", ""], "02000000000000006162" + "00" * 8, (9, 8), 2),
        ("[[u8]]", [[7]], "00000000" + "0100000000000000" + "07", (9, 9), 1),
        ("[i32]", [], "", (9, 5), 0),
    ],
)
def test_encoding_by_hand(kind: str, value: Any, raw: str, types: tuple[int, int], count: int) -> None:
    made = value_of("k", kind, value)
    assert (bytes(made.raw).hex(), (made.value_type, made.element_type), made.count) == (raw, types, count)


@pytest.mark.parametrize(
    ("kind", "value"), [("u8", 256), ("u8", "x"), ("str", 5), ("[str]", 5), ("none", 1), ("[none]", [1]), ("u32", -1)]
)
def test_values_that_do_not_fit(kind: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        value_of("a.key", kind, value)
    assert caught.value.field == "a.key"


def test_sizes() -> None:
    """A Q4_0 block of 32 elements takes 18 bytes, a Q6_K block of 256 takes 210; rank 0 is one element."""
    assert size_of(2, (64, 3)) == 2 * 18 * 3
    assert size_of(14, (256, 2)) == 420
    assert size_of(0, ()) == 4


def test_assets_extensions_and_version() -> None:
    model = MemoryModel((), assets={"a": b"x"}, extensions={"maker": 1}, version=0, alignment=0)
    data = pack_of(model)
    assert b'"extensions":{"maker":1}' in data
    assert b"TokenizerAssets" in data
    assert data[64 + 40 : 64 + 48] == bytes(8)  # source_version and source_alignment
