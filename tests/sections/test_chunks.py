"""Digests of chunks and parity: what is written is what hashlib, blake3's published vector and plain arithmetic say."""

from __future__ import annotations

import random
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from sealed_packs import DATA, MIB, flip, sealed

import gpack
from gpack import errors
from gpack.conformance.parts import Parts
from gpack.conformance.recipes import bases
from gpack.container.payload import Block, read_payload
from gpack.container.reader import Container
from gpack.convert.seal import seal
from gpack.generated.constants import ParityCode, SectionKind
from gpack.generated.structs import ChunkDigestsHeaderV1, GPackSectionEntryV1
from gpack.sections import parity
from gpack.sections.chunks import ALGORITHMS, ChunkHasher, Chunks, digest_of
from gpack.sections.verify import verify


def test_blake3_is_blake3() -> None:
    """The digest of nothing, as BLAKE3's authors publish it."""
    digest = digest_of(ALGORITHMS["blake3"])()
    assert digest.digest().hex() == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"


def test_chunks_are_counted_from_each_section_on() -> None:
    entries = [
        GPackSectionEntryV1(kind=n, offset=at, size=size)
        for n, (at, size) in enumerate([(64, 10), (128, 0), (192, 25)])
    ]
    chunks = Chunks(entries, 10)
    found = [(chunk.entry.kind, chunk.offset, chunk.length) for chunk in chunks]
    assert found == [(0, 64, 10), (2, 192, 10), (2, 202, 10), (2, 212, 5)]
    assert [chunk.number for chunk in chunks.of(2)] == [1, 2, 3]
    with pytest.raises(IndexError):
        chunks[4]


@pytest.mark.parametrize("step", [1, 3, 4, 7, 100])
def test_runs_of_any_length_are_cut_into_chunks(step: int) -> None:
    hasher = ChunkHasher(sha256, 4)
    data = bytes(range(10))
    for start in range(0, len(data), step):
        hasher.feed(memoryview(data)[start : start + step])
    assert hasher.end() == [sha256(data[at : at + 4]).digest() for at in (0, 4, 8)]
    assert hasher.end() == hasher.done  # twice is once


def test_the_digests_are_those_of_the_bytes(tmp_path: Path) -> None:
    with Container.open(sealed(tmp_path / "a.gpack", algorithm="sha256")) as container:
        found = container.read(SectionKind.CHUNK_DIGESTS)
        parts = [container.read(kind) for kind in (SectionKind.METADATA_KV_BIN, SectionKind.TENSOR_INDEX_BIN)]
    parts += [DATA[:MIB], DATA[MIB : 2 * MIB], DATA[2 * MIB : 3 * MIB], DATA[3 * MIB :]]
    assert found[:64].hex() == "47504344" + "01000000" + "14000000" + "06000000" + "00" * 48
    assert found[64:] == b"".join(sha256(part).digest() for part in parts)


@pytest.mark.parametrize(
    ("percent", "data", "rows"), [(3, 31, 1), (5, 20, 1), (10, 20, 2), (50, 20, 10), (100, 16, 16)]
)
def test_so_much_parity_as_was_asked_for(percent: int, data: int, rows: int) -> None:
    entry = GPackSectionEntryV1(kind=3, size=100 * MIB)
    shape = parity.Shape.plan(Chunks([entry], MIB), percent)
    assert (shape.data, shape.parity) == (data, rows)
    assert shape.stripes == -(-100 // data)
    assert 100 * shape.parity >= percent * shape.data


@pytest.mark.parametrize("percent", [0, -1, 101])
def test_a_percentage_that_makes_no_sense(percent: int) -> None:
    with pytest.raises(errors.UsageError):
        parity.Shape.plan(Chunks((), MIB), percent)


def _by_hand(columns: list[bytes], row: int) -> bytes:
    """A parity block, byte by byte and bit by bit."""
    made = bytearray(len(columns[0]))
    for column, block in enumerate(columns):
        factor = bases.inverse((len(columns) + row) ^ column)
        for place, value in enumerate(block):
            made[place] ^= bases.product(factor, value)
    return bytes(made)


def test_parity_is_what_the_specification_says(tmp_path: Path) -> None:
    """The library's blocks against arithmetic bit by bit, at both ends of every block."""
    pytest.importorskip("pyeclib")
    with Container.open(sealed(tmp_path / "a.gpack", percent=50)) as container:
        section = container.read(SectionKind.PARITY)
        tables = [container.read(kind) for kind in (SectionKind.METADATA_KV_BIN, SectionKind.TENSOR_INDEX_BIN)]
    header = parity.read_header(section, len(section))
    assert (header.num_data, header.num_parity, header.num_stripes, header.num_chunks) == (6, 3, 1, 6)
    assert (header.code, header.block_size, header.parity_bytes) == (ParityCode.CAUCHY, MIB, 3 * MIB)
    chunks = [*tables, DATA[:MIB], DATA[MIB : 2 * MIB], DATA[2 * MIB : 3 * MIB], DATA[3 * MIB :]]
    padded = [chunk.ljust(MIB, b"\0") for chunk in chunks]
    for row in range(3):
        block = section[64 + row * MIB : 64 + (row + 1) * MIB]
        for part in (slice(0, 256), slice(65536 - 8, 65536 + 8), slice(MIB - 64, MIB)):
            assert block[part] == _by_hand([chunk[part] for chunk in padded], row)


@pytest.mark.parametrize("lost", [{0}, {4}, {0, 1}, {2, 3}, {0, 5}, {5, 6}, {6}, {1, 4}])
def test_any_lost_blocks_are_worked_out(lost: set[int]) -> None:
    """Five blocks of data and two of parity, of which any two may be lost."""
    columns = [random.Random(n).randbytes(32) for n in range(5)]
    blocks = [*columns, *(_by_hand(columns, row) for row in range(2))]
    shape = parity.Shape(5, 2, 1, 32)

    def read(block: int, start: int, length: int) -> bytes | None:
        return None if block in lost else blocks[block][start : start + length]

    found = parity.recover(shape, lost, read, 20, 8)
    assert {block: data.tobytes() for block, data in found.items()} == {block: blocks[block][8:28] for block in lost}


def test_more_than_parity_can_mend_is_refused() -> None:
    with pytest.raises(errors.FormatError) as caught:
        parity.recover(parity.Shape(3, 1, 1, 8), {0, 1}, lambda block, start, length: bytes(length), 8)
    assert caught.value.code == "repair.parity"


def test_products_are_those_of_the_field() -> None:
    table, inverses = parity._tables()
    rng = np.random.default_rng(1)
    for left, right in rng.integers(0, 256, (200, 2)).tolist():
        assert table[left, right] == bases.product(left, right)
    assert all(bases.product(value, int(inverses[value])) == 1 for value in range(1, 256))


# ---------------------------------------------------------------- verifying


@pytest.mark.parametrize("how", [{}, {"chunks": True}, {"chunks": True, "threads": 3}])
def test_a_flipped_bit_is_found_to_the_mib(tmp_path: Path, how: dict[str, int]) -> None:
    path = sealed(tmp_path / "a.gpack")
    assert verify(path, **how).ok  # type: ignore[arg-type]
    with Container.open(path) as container:
        start = container.entry("Data").offset
    flip(path, start + 2 * MIB + 5)
    report = verify(path, **how).report  # type: ignore[arg-type]
    found = [violation for violation in report.violations if violation.rule == "chunks.digest"]
    assert [(violation.section, violation.offset) for violation in found] == [("Data", start + 2 * MIB)]
    assert ("section.sha256" in report.counts) is (not how)


def test_damaged_digests_are_told_from_damaged_chunks(tmp_path: Path) -> None:
    path = sealed(tmp_path / "a.gpack")
    with Container.open(path) as container:
        flip(path, container.entry(SectionKind.CHUNK_DIGESTS).offset + ChunkDigestsHeaderV1.SIZE)
    report = verify(path, chunks=True).report
    assert {v.section for v in report.violations if v.rule == "section.sha256"} == {"ChunkDigests"}


def test_chunks_of_a_pack_without_digests(tmp_path: Path) -> None:
    path = tmp_path / "plain.gpack"
    path.write_bytes(bases.plain())
    with pytest.raises(errors.MissingError) as caught:
        verify(path, chunks=True)
    assert caught.value.code == "chunks.none"


def test_without_blake3_the_sections_are_checked_and_the_rest_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sealed(tmp_path / "a.gpack")
    monkeypatch.setitem(__import__("sys").modules, "blake3", None)
    result = verify(path)
    assert result.ok
    assert "chunks.digest" not in result.report.checked
    assert result.notes == (
        "chunk digests were not checked: digests of chunks by BLAKE3 need the package blake3, which is not installed "
        "(pip install blake3)",
    )
    with pytest.raises(errors.UnsupportedError) as caught:
        verify(path, chunks=True)
    assert caught.value.code == "chunks.library"


def test_readers_pass_over_both_sections(tmp_path: Path) -> None:
    """What a pack says does not change, nor which readers may open it."""
    path = tmp_path / "a.gpack"
    path.write_bytes(bases.sealed())
    plain = tmp_path / "b.gpack"
    plain.write_bytes(bases.small())
    with gpack.open(path) as pack, gpack.open(plain) as other:
        assert pack.container.header.min_reader_version == 1
        assert pack.container.header.flags == other.container.header.flags
        assert {name: pack[name].tobytes() for name in pack} == {name: other[name].tobytes() for name in other}


# ---------------------------------------------------------------- sealing


def test_sealing_gives_what_a_conversion_gives(tmp_path: Path) -> None:
    pytest.importorskip("pyeclib")
    path, sealed_path = tmp_path / "a.gpack", tmp_path / "b.gpack"
    sealed(path, algorithm=None)
    seal(path, sealed_path, parity=20)
    assert sealed_path.read_bytes() == sealed(tmp_path / "c.gpack", percent=20).read_bytes()
    seal(sealed_path, tmp_path / "d.gpack", parity=20)  # once more is the same
    assert (tmp_path / "d.gpack").read_bytes() == sealed_path.read_bytes()


def test_damage_is_not_sealed(tmp_path: Path) -> None:
    path = sealed(tmp_path / "a.gpack")
    with Container.open(path) as container:
        flip(path, container.entry("Data").offset)
    with pytest.raises(errors.DigestError) as caught:
        seal(path, tmp_path / "b.gpack")
    assert caught.value.code == "section.sha256"
    assert caught.value.path == str(path)
    assert not (tmp_path / "b.gpack").exists()


def test_bytes_of_a_payload_are_read_from_the_middle() -> None:
    assert bytes(read_payload(Block(bytes(range(100))), 40, 3)) == b"\x28\x29\x2a"


def test_the_sealer_of_the_kit_agrees() -> None:
    pack = Parts.parse(bases.sealed())
    assert pack.seal() == bases.sealed()
