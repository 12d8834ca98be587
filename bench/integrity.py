"""Digests of chunks: what checking them costs and saves, and what a repair reads of another copy."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from gpack.convert.gguf import convert_gguf
from gpack.convert.seal import seal
from gpack.terminal import units

from .bench import Bench
from .measure import Row, Way, bound, by_turns, compare, job, samples, warm_up
from .models import Size, write_dense

_MIB = 1 << 20
LARGE = "large.gpack"
_MOST_READ = 4 * _MIB  # of the other copy, beside its digests


def integrity(bench: Bench) -> list[Row]:
    """Full verifies with and without digests of chunks, verifies by chunks, and one flipped bit mended in place."""
    plain, sealed = _pack(bench), bench.folder / "sealed.gpack"
    seal(plain, sealed)
    ways: dict[str, Way] = {
        "hash": lambda: job("hash_pass", plain),
        "plain": lambda: job("verify", plain),
        "sealed": lambda: job("verify", sealed),
        "chunks": lambda: job("verify_chunks", sealed, 1),
        "threads": lambda: job("verify_chunks", sealed, 2),
    }
    warm_up(ways)
    done = {name: samples(runs) for name, runs in by_turns(bench.rounds, ways).items()}
    size = units.size(plain.stat().st_size)
    target = bench.target
    rows = [
        compare("integrity", f"full verify, {size}", done["plain"], done["hash"], "hashlib pass", target(1.05)),
        compare(
            "integrity", "full verify with digests of chunks", done["sealed"], done["hash"], "hashlib pass", target(1.4)
        ),
        compare(
            "integrity", "verify --chunks", done["chunks"], done["sealed"], "full verify of the same", target(1 / 2.5)
        ),
        compare(
            "integrity", "verify --chunks --threads 2", done["threads"], done["chunks"], "one thread", target(1 / 1.6)
        ),
    ]
    if plain.name == LARGE:
        bench.drop(LARGE)
    return [*rows, *_mended(bench)]


def _pack(bench: Bench) -> Path:
    """Several GiB, so that reading the vocabulary, the same in all packs, does not hide what digests cost."""
    if bench.quick:
        return bench.pack()
    bench.drop("dense.gguf", "dense.gpack", "dense.safetensors")
    source, pack = bench.folder / "large.gguf", bench.folder / LARGE
    write_dense(source, Size(width=3072, hidden=8192, expert_hidden=512))
    convert_gguf(source, pack)
    bench.drop(source.name)
    return pack


def _mended(bench: Bench) -> list[Row]:
    """One bit in the middle of a pack."""
    sealed, other = bench.folder / "sealed.gpack", bench.folder / "other.gpack"
    shutil.copyfile(sealed, other)
    descriptor = os.open(sealed, os.O_RDWR)
    try:
        place = os.fstat(descriptor).st_size // 2
        byte = os.pread(descriptor, 1, place)[0]
        os.pwrite(descriptor, bytes([byte ^ 1]), place)
    finally:
        os.close(descriptor)
    outcome = job("repair", sealed, other)
    bench.drop(sealed.name, other.name)
    what = f"a flipped bit mended in {units.duration(outcome['seconds'])}: read of the other copy beside its digests"
    return [bound("integrity", what, outcome["read"] - outcome["digests"], _MOST_READ, units.size)]
