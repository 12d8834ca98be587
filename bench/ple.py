"""Rows of the table of per-layer embeddings: Direct mode against Mmap, cold and warm. `python -m bench.ple`.

The rows are those that tokens of a real vocabulary ask for through the n-gram hash; tokens are drawn as words of a text
are, a few often, most seldom (Zipf). Cold: the file is out of the page cache, and the row cache empty. Warm: the same
tokens once more. A prompt asks for the rows of 512 tokens at a time, writing for those of one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpack.generated.constants import GgmlType
from gpack.model.ngram import NgramHash, derive_multipliers, derive_offsets, derive_vocab_sizes
from gpack.model.ple import PleIo, PleTable

VOCABULARY, HEADS, NGRAM, EOS = 248_320, 8, 3, 248_044
WIDTH, ROW_BYTES = 160, 90  # IQ4_NL
FULL, QUICK = 4 << 30, 256 << 20
_BLOCK = 64 << 20


def measure(folder: Path, *, size: int, prompt_tokens: int, written_tokens: int) -> list[dict[str, Any]]:
    """One entry for each mode and kind of asking: rows to the second, cold and warm, and the hit rate.

    Args:
        folder: On the disk that is to be measured.
        size: Bytes of the table.
        prompt_tokens, written_tokens: How many tokens ask, 512 and one at a time.
    """
    path = folder / "table.bin"
    rows = size // ROW_BYTES
    _write(path, rows * ROW_BYTES)
    hashed = _hash(rows)
    tokens = np.minimum(np.random.default_rng(1).zipf(1.2, prompt_tokens), VOCABULARY - 1)
    asked = hashed.rows(tokens)
    measured = []
    for what, count, step in (("prompt", prompt_tokens, 512), ("writing", written_tokens, 1)):
        batches = [asked[start : min(start + step, count)] for start in range(0, count, step)]
        for io in PleIo:
            _forget(path)
            with PleTable.open_raw(path, 0, ggml_type=GgmlType.IQ4_NL, ne0=WIDTH, ne1=rows, io=io) as table:
                cold, cold_rate = _pass(table, batches)
                warm, warm_rate = _pass(table, batches)
                measured.append(
                    {
                        "what": what,
                        "mode": io.value,
                        "direct": table.direct,
                        "rows": sum(map(np.size, batches)),
                        "cold_rows_per_s": cold,
                        "warm_rows_per_s": warm,
                        "cold_hit_rate": cold_rate,
                        "warm_hit_rate": warm_rate,
                        "read_bytes": table.counts.read_bytes,
                        "fallback": table.fallback,
                    }
                )
    path.unlink()
    return measured


def _hash(rows: int) -> NgramHash:
    """The hash of the real model, its heads sharing the rows that there are."""
    heads = HEADS * (NGRAM - 1)
    sizes = derive_vocab_sizes(heads, rows // heads - 2000)
    return NgramHash(
        NGRAM, HEADS, tuple(derive_multipliers(VOCABULARY, NGRAM)), tuple(derive_offsets(sizes)), tuple(sizes), EOS
    )


def _pass(table: PleTable, batches: Sequence[Any]) -> tuple[float, float]:
    """Rows to the second, and the share of the rows that the row cache had."""
    before = table.counts
    started = time.perf_counter()
    for ids in batches:
        table.rows(ids)
    seconds = time.perf_counter() - started
    hits, misses = table.counts.hits - before.hits, table.counts.misses - before.misses
    return sum(map(np.size, batches)) / seconds, hits / max(hits + misses, 1)


def _write(path: Path, size: int) -> None:
    """A file of random bytes on the disk, no holes."""
    block = memoryview(os.urandom(_BLOCK))
    with path.open("wb") as file:
        left = size
        while left:
            left -= file.write(block[: min(left, _BLOCK)])
        file.flush()
        os.fsync(file.fileno())


def _forget(path: Path) -> None:
    """Asks the system to drop the file from its page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m bench.ple", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where the table is written (default: a temporary folder)")
    parser.add_argument("--quick", action="store_true", help="a table of 256 MiB instead of 4 GiB")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        tokens = 8192 if options.quick else 65536
        measured = measure(
            Path(folder), size=QUICK if options.quick else FULL, prompt_tokens=tokens, written_tokens=tokens // 32
        )
    if options.json:
        print(json.dumps(measured, indent=2))
        return 0
    for entry in measured:
        hits = f", hit rate {entry['cold_hit_rate']:.0%} cold, {entry['warm_hit_rate']:.0%} warm"
        print(
            f"{entry['what']:8} {entry['mode']:7} {entry['cold_rows_per_s']:12,.0f} rows/s cold "
            f"{entry['warm_rows_per_s']:12,.0f} rows/s warm{hits if entry['mode'] == 'direct' else ''}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
