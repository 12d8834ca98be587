"""Values worked out by hand; most lie at the edge between two units."""

from __future__ import annotations

import pytest

from gpack.terminal import units


@pytest.mark.parametrize(
    ("n_bytes", "expected"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (145_542_349, "138.8 MiB"),  # 138.8 * 2^20 = 145542348.8
        (2**20 - 1, "1.0 MiB"),  # not 1024.0 KiB
        (2**20, "1.0 MiB"),
        (19 * 2**30 + 2**29, "19.5 GiB"),
        (3 * 2**40, "3.0 TiB"),
        (2**53, "8.0 PiB"),
        (2**63, "8192.0 PiB"),
        (1023.7, "1.0 KiB"),  # a rate; not 1024 B
    ],
)
def test_size(n_bytes: float, expected: str) -> None:
    assert units.size(n_bytes) == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.0 k"),
        (49_152, "49.2 k"),
        (999_949, "999.9 k"),
        (999_950, "1.0 M"),
        (134_515_008, "134.5 M"),
        (35_000_000_000, "35.0 B"),
        (1_200_000_000_000, "1.2 T"),
        (5_000_000_000_000_000, "5000.0 T"),
    ],
)
def test_count(number: int, expected: str) -> None:
    assert units.count(number) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 µs"),
        (0.00025, "250 µs"),
        (0.0009996, "1 ms"),
        (0.085, "85 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (1.25, "1.25 s"),
        (9.996, "10.0 s"),
        (42, "42.0 s"),
        (59.96, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (11_220, "3 h 07 min"),
        (360_000, "100 h 00 min"),
    ],
)
def test_duration(seconds: float, expected: str) -> None:
    assert units.duration(seconds) == expected


@pytest.mark.parametrize(
    ("n_bytes", "seconds", "expected"),
    [(3 * 2**30, 2.0, "1.5 GiB/s"), (512, 1, "512 B/s"), (0, 5, "0 B/s"), (100, 0, "-")],
)
def test_rate(n_bytes: int, seconds: float, expected: str) -> None:
    assert units.rate(n_bytes, seconds) == expected
