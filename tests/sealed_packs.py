"""Packs with digests of chunks: a private section of four chunks, the last of 100 bytes, beside the tables."""

from __future__ import annotations

import random
from pathlib import Path

from gpack.conformance.recipes import bases
from gpack.container.reader import Container
from gpack.container.writer import GPackBuilder
from gpack.convert.seal import REBUILT, add_seals
from gpack.generated.constants import SectionKind

MIB = 1 << 20
DATA = random.Random(7).randbytes(3 * MIB + 100)


def sealed(path: Path, *, algorithm: str | None = "blake3", percent: int | None = None) -> Path:
    """Writes the pack."""
    plain_path = path.with_suffix(".plain")
    plain_path.write_bytes(bases.plain())
    with Container.open(plain_path) as plain:
        builder = GPackBuilder({key: value for key, value in plain.manifest.items() if key not in REBUILT})
        for kind in (SectionKind.METADATA_KV_BIN, SectionKind.TENSOR_INDEX_BIN):
            builder.add(kind, plain.read(kind), 0)
    plain_path.unlink()
    builder.add(0x80000001, DATA, 1, name="Data")
    add_seals(builder, algorithm, percent)
    builder.build(path)
    return path


def place_of(path: Path, section: int | str) -> int:
    """Where a section starts."""
    with Container.open(path) as container:
        return container.entry(section).offset


def flip(path: Path, at: int) -> None:
    """Changes a bit of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))
