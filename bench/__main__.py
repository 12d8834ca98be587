"""`python -m bench`: measures GPACK and its peers by turns in the same run, and says which targets were reached.

It makes its own files in the folder for temporary files, or in `--dir`, and removes them whatever happens; they are
read from the page cache, and waiting for the disk is counted apart. Times are medians with the smallest and largest,
of the calmest rounds. The column `others` says how many cores other programs kept busy meanwhile: where that is not
near 0, conversion and verification lacked the second core. Ratios mean more than times, since both sides had the same
machine.
Speed is no assertion: the exit code is 0 whether or not a target was reached.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpack.terminal import units

from .bench import Bench
from .cases import CASES
from .measure import Row, table

# Two models and what is made of them; two packs of 4 GiB.
_SPACE = {False: 10 << 30, True: 1 << 30}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the cases; the exit code is 0 unless a case could not run."""
    options = _parse(argv)
    signal.signal(signal.SIGTERM, _interrupt)  # the files go away then too
    rows: list[Row] = []
    status = 0
    try:
        with _folder(options.dir, quick=options.quick) as folder:
            print(f"in {folder}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", file=sys.stderr)
            bench = Bench(folder, options.rounds, options.quick, options.vocabularies, options.dir, options.model)
            for name in options.only or CASES:
                print(f"{name} ...", file=sys.stderr, flush=True)
                for row in CASES[name](bench):
                    rows.append(row)  # at once: an interrupt leaves what was measured
                    print(f"  {row.what}: {row.ours} {row.ratio}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("bench: interrupted; what was measured until then:", file=sys.stderr)
        status = 130
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps(_document(options, rows), indent=2) + "\n")
    return status


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="0.2 GB instead of 2 GB; without peers that take long")
    parser.add_argument("--only", action="append", choices=CASES, help="one case; may be given several times")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each long job (default 5)")
    parser.add_argument("--dir", type=Path, help="where to put the files (default: the folder for temporary files)")
    parser.add_argument(
        "--vocabularies",
        type=Path,
        metavar="DIR",
        help="real vocabularies: tokenizer.json in DIR or its folders, *.gguf (default: $GPACK_VOCABULARIES)",
    )
    parser.add_argument(
        "--model", default="", metavar="PART", help="of the models that are run, those with this in their names"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    return parser.parse_args(argv)


@contextmanager
def _folder(wanted: Path | None, *, quick: bool) -> Iterator[Path]:
    """A temporary folder with enough room, removed at the end."""
    need = _SPACE[quick]
    place = wanted or Path(tempfile.gettempdir())
    free = shutil.disk_usage(place).free
    if free < need:
        raise SystemExit(f"bench: {place} has {units.size(free)} free, {units.size(need)} are needed; see --dir")
    with tempfile.TemporaryDirectory(prefix="gpack-bench-", dir=place) as folder:
        yield Path(folder)


def _document(options: argparse.Namespace, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "quick": options.quick,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "rows": [row.to_dict() for row in rows],
    }


if __name__ == "__main__":
    sys.exit(main())
