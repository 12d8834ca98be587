"""Damage at every single place: a changed byte, a changed bit, a file cut anywhere. Nothing goes unseen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from exhaustive import IS_EXHAUSTIVE, grows

from gpack.conformance.parts import Parts
from gpack.conformance.recipes import bases as packs
from gpack.container.reader import Container
from gpack.errors import GpackError
from gpack.generated.structs import GPackFooterV1, GPackHeaderV1, GPackSectionEntryV1
from gpack.sections.verify import verify

PARTS = 4


def opens(path: Path) -> bool:
    """Whether a quick open takes the file; any other exception than ours is a failure of the test."""
    try:
        Container.open(path).close()
    except GpackError:
        return False
    return True


def test_the_pack_has_every_kind_of_section() -> None:
    kinds = [section.entry.kind for section in Parts.parse(packs.small()).sections]
    assert kinds == list(range(15))


def masks(place: int, payload: range | None, *, is_record: bool) -> tuple[int, ...]:
    """How a byte is changed: as a whole and in one bit; where a digest stands over it, in one of these ways.

    In a run that is not exhaustive in one way, and outside of header, directory and footer every 29th byte.
    """
    both = (0xFF, 1 << place // 2 % 8)
    if payload is None and IS_EXHAUSTIVE:
        return both
    is_end = payload is not None and place in (payload[0], payload[-1])
    return both[place % 2 :][:1] if IS_EXHAUSTIVE or is_record or is_end or place % 29 == 0 else ()


@grows
@pytest.mark.parametrize("part", range(PARTS))
def test_every_flip_is_found(part: int, tmp_path: Path) -> None:
    data = packs.small()
    entries = [section.entry for section in Parts.parse(data).sections]
    payloads = [range(entry.offset, entry.offset + entry.size) for entry in entries]
    table = GPackHeaderV1.decode(data).section_table_offset
    size, directory = GPackHeaderV1.SIZE, GPackSectionEntryV1.SIZE * len(entries)
    records = (range(size), range(table, table + directory), range(len(data) - GPackFooterV1.SIZE, len(data)))
    path = tmp_path / "flipped.gpack"
    path.write_bytes(data)
    missed = []
    with path.open("r+b", buffering=0) as file:
        for place in range(len(data) * part // PARTS, len(data) * (part + 1) // PARTS):
            payload = next((payload for payload in payloads if place in payload), None)
            for mask in masks(place, payload, is_record=any(place in record for record in records)):
                os.pwrite(file.fileno(), bytes([data[place] ^ mask]), place)
                if verify(path).ok:
                    missed.append((place, mask))
                if payload is None or mask == 0xFF:
                    opens(path)
            os.pwrite(file.fileno(), data[place : place + 1], place)
    assert missed == []
    assert path.read_bytes() == data
    assert verify(path).ok


def test_a_quick_open_sees_what_it_reads(tmp_path: Path) -> None:
    """Magics, sizes, places and the manifest; not flags that it does not know, reserved bytes, digests, payloads."""
    data = packs.small()
    pack = Parts.parse(data)
    pack.seal()
    manifest = pack.section(14)
    path = tmp_path / "flipped.gpack"
    seen = [*range(4), 6, 7, *range(12, 48), *range(manifest.place, manifest.place + len(manifest.data))]
    seen += [*range(len(data) - 64, len(data) - 4)]
    for place in seen:
        path.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        assert not opens(path), place


@pytest.mark.parametrize("make", [packs.plain, packs.vocabulary])
def test_every_truncation_is_found(make: object, tmp_path: Path) -> None:
    assert callable(make)
    data = make()
    path = tmp_path / "cut.gpack"
    path.write_bytes(data)
    for length in reversed(range(len(data))):
        os.truncate(path, length)
        with pytest.raises(GpackError) as caught:
            Container.open(path)
        expected = {"header.complete"} if length < 128 else {"header.total_file_size"}
        assert caught.value.code in expected
        assert not verify(path).ok


def test_every_length_of_trailing_bytes_is_found(tmp_path: Path) -> None:
    data = packs.plain()
    path = tmp_path / "long.gpack"
    for extra in (b"\0", b"x" * 63, bytes(64), data[-64:], data):
        path.write_bytes(data + extra)
        assert not opens(path)
        assert verify(path).report.counts == {"header.total_file_size": 1}
