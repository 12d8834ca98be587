"""Ranges: any part of any kind equals the same part of its bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpack.container.payload import Block, Computed, Joined, Range, read_part, whole
from gpack.container.place import Place
from gpack.errors import InternalError


def bytes_of(source: Range) -> bytes:
    return bytes(read_part(source, 0, source.size))


@pytest.fixture
def ranges(tmp_path: Path) -> Iterator[list[tuple[Range, bytes]]]:
    data = random.Random(1).randbytes(1000)
    with (tmp_path / "data").open("w+b", buffering=0) as file:
        file.write(data)
        yield list(every_kind(file.fileno(), data, tmp_path))


def every_kind(descriptor: int, data: bytes, path: Path) -> list[tuple[Range, bytes]]:
    place = Place(path, descriptor, 10, 900)
    rows = Computed(30, 7, lambda first, count: data[first * 7 : (first + count) * 7], batch_bytes=40)
    joined = Joined((place, Joined(()), rows, Place(path, descriptor, 0, 0), Place(path, descriptor, 3, 5)))
    return [
        (place, data[10:910]),
        (rows, data[:210]),
        (joined, data[10:910] + data[:210] + data[3:8]),
        (Joined(()), b""),
        (Place(path, descriptor, 5, 20, runs=4, stride=30), b"".join(data[5 + 30 * run :][:20] for run in range(4))),
        (Block(data[:50]), data[:50]),
        (Computed(0, 7, lambda first, count: b""), b""),
    ]


def test_parts(ranges: list[tuple[Range, bytes]]) -> None:
    rng = random.Random(2)
    for source, data in ranges:
        assert source.size == len(data)
        assert bytes_of(source) == data
        for _ in range(300):
            start = rng.randint(0, len(data))
            end = rng.randint(start, len(data))
            assert bytes(read_part(source, start, end - start)) == data[start:end]


def test_computed_rows_come_in_batches() -> None:
    asked = []

    def make(first: int, count: int) -> bytes:
        asked.append((first, count))
        return bytes(count * 10)

    list(Computed(7, 10, make, batch_bytes=25).part(15, 50))
    assert asked == [(1, 2), (3, 2), (5, 2)]


def test_what_is_no_part_is_refused(ranges: list[tuple[Range, bytes]]) -> None:
    for source, data in ranges:
        for start, length in ((-1, 1), (0, len(data) + 1), (len(data), 1), (0, -1)):
            with pytest.raises(InternalError):
                list(source.part(start, length))


def test_rows_of_another_length_are_a_fault() -> None:
    with pytest.raises(InternalError, match="2 rows came as 3 bytes"):
        list(whole(Computed(2, 2, lambda first, count: b"abc")))


def test_places_say_where_each_part_lies(tmp_path: Path) -> None:
    """Experts of 20 bytes, 30 apart, from byte 5 on: bytes 15 to 55 of them are in three."""
    place = Place(tmp_path, 7, 5, 20, runs=4, stride=30)
    assert (place.size, place.span) == (80, 110)
    assert [(part.offset, part.length) for part in place.part(15, 40)] == [(20, 5), (35, 20), (65, 15)]
    assert list(place.part(80, 0)) == []
    assert all((part.descriptor, part.path, part.runs) == (7, tmp_path, 1) for part in place.part(0, 80))


def test_places_are_cut_into_runs(tmp_path: Path) -> None:
    cut = Place(tmp_path, 7, 5, 80).cut(4)
    assert cut is not None
    assert (cut.offset, cut.length, cut.runs, cut.stride, cut.span) == (5, 20, 4, 20, 80)
    strided = Place(tmp_path, 7, 5, 20, runs=4, stride=30)
    assert strided.cut(4) is strided
    assert strided.cut(2) is None
    assert repr(strided) == f"<Place 20 bytes from 5 of '{tmp_path}', 4 times, 30 apart>"
