"""Readers made of one grammar say the same of damaged files, and reject none that gpack itself finds whole."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from exhaustive import amount, grows
from reader_process import ask, peak, started

from conformance.readers.build import MissingToolError, readers
from gpack.conformance import vectors
from gpack.generated.structs import GPackHeaderV1, GPackSectionEntryV1
from gpack.sections.verify import verify

# Rust's text is UTF-8 by its type: it rejects names that are none, which the grammar does not check.
LANGUAGES = ("cpp", "csharp", "go", "java", "rust")
STRICTER = ("rust",)
FILES = amount(100, 300)


def damaged() -> Iterator[bytes]:
    """Packs with one or two fields overwritten: in the header, the directory, or the first rows of a section."""
    rng = random.Random(7)
    data = next(vector for vector in vectors.load() if vector.id == "valid/small").data()
    header = GPackHeaderV1.decode(data[: GPackHeaderV1.SIZE])
    starts = [0]
    for number in range(header.section_count):
        place = header.section_table_offset + number * GPackSectionEntryV1.SIZE
        entry = GPackSectionEntryV1.decode(data[place : place + GPackSectionEntryV1.SIZE])
        starts += [place, entry.offset]
    for _ in range(FILES):
        made = bytearray(data)
        for _ in range(rng.choice((1, 1, 2))):
            width = rng.choice((1, 2, 4, 8))
            place = rng.choice(starts) + rng.randrange(0, 240, width)
            value = rng.choice((b"\xff" * width, bytes(width), bytes(width - 1) + b"\x80", rng.randbytes(width)))
            made[place : place + width] = value
        yield bytes(made[: len(data)])


@grows
def test_readers_agree_about_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "damaged.gpack"
    files = list(damaged())
    said: dict[str, list[str]] = {}
    for language in LANGUAGES:
        try:
            command = [*readers()[language].make(), "--level", "structure"]
        except MissingToolError:
            continue  # said by name in test_compiled.py
        with started(command) as (process, _):
            said[language] = []
            for data in files:
                path.write_bytes(data)
                said[language].append(ask(process, path)["verdict"])
            assert peak(process) < 512 << 20
    if len(said) < 2:
        pytest.skip("fewer than two readers could be built")
    first = next(name for name in said if name not in STRICTER)
    for language, verdicts in said.items():
        pairs = list(zip(files, said[first], verdicts, strict=True))
        differing = [data for data, one, other in pairs if one != other]
        if language not in STRICTER:
            assert not differing, language
        assert all(other == "reject" for _, one, other in pairs if one == "reject"), language
    assert FILES // 6 < said[first].count("reject") < FILES
    for data, *verdicts in zip(files, *said.values(), strict=True):
        if "reject" in verdicts:
            path.write_bytes(data)
            assert verify(path).report.first_error() is not None
