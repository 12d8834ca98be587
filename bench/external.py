"""Conversion with external experts: time against the experts' size. `python -m bench.external`.

The experts are holes of the file: nothing may read them, so what is in them does not matter, and they take no disk. For
comparison the smallest model is converted with its experts inside.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.models import EXPERTS, MOE_LAYERS, Size, moe_shapes, write_sparse
from gpack.convert.gguf import convert_gguf

# Rows of an expert's matrix; the width stays, so that only the experts grow.
FULL, QUICK = (512, 2048, 8192, 32768), (256, 1024, 4096)
WIDTH, ROUNDS = 2048, 3


def measure(folder: Path, *, hidden: Sequence[int], width: int = WIDTH, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """One entry for each size: bytes of the experts, seconds of the conversion (median), bytes of the pack."""
    measured = []
    for rows in hidden:
        path, output = folder / "moe.gguf", folder / "moe.gpack"
        size = Size(width=width, hidden=width * 3, expert_hidden=rows)
        expert_bytes = write_sparse(path, *moe_shapes(size))
        for external in (True, False) if rows == hidden[0] else (True,):
            seconds, made = [], 0
            for _ in range(rounds):
                done = convert_gguf(path, output, external_experts=external)
                assert done.result is not None
                seconds.append(done.seconds["plan"] + done.seconds["write"])
                made = done.result.size
                output.unlink()
            measured.append(
                {
                    "mode": "external" if external else "embedded",
                    "expert_bytes": expert_bytes,
                    "seconds": statistics.median(seconds),
                    "pack_bytes": made,
                    "layers": MOE_LAYERS,
                    "experts": EXPERTS,
                }
            )
        path.unlink()
    return measured


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m bench.external", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where the models are written (default: a temporary folder)")
    parser.add_argument("--quick", action="store_true", help="smaller models")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        quick = options.quick
        measured = measure(Path(folder), hidden=QUICK if quick else FULL, width=512 if quick else WIDTH)
    if options.json:
        print(json.dumps(measured, indent=2))
        return 0
    for entry in measured:
        print(
            f"{entry['mode']:9} {entry['expert_bytes'] / (1 << 30):8.2f} GiB of experts "
            f"{entry['seconds']:8.3f} s {entry['pack_bytes'] / (1 << 20):10.1f} MiB written"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
