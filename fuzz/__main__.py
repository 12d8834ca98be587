"""`python -m fuzz [TARGET ...]`: fuzzes for some time and says what was tried; exit code 1 where something is found.

Without a target all of them run, one after the other, and share the time. A corpus that grew is kept in `--folder` and
begins the next run. An input that something was found with lies there too: `--try FILE` runs a target with it alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gpack.errors import GpackError

from . import c_reader, kernels, running
from .registry import targets
from .result import Result, table

_C_READER, _KERNELS = "c-reader", "kernels"
_DEFAULT_SECONDS = 60
_LEAST = 2  # seconds of a target


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the targets."""
    names = [*targets(), _C_READER, _KERNELS]
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(names)}; default all")
    parser.add_argument("--seconds", type=int, help=f"for all together; default {_DEFAULT_SECONDS}, none with --runs")
    parser.add_argument("--runs", type=int, default=0, help="executions of each target")
    parser.add_argument("--folder", type=Path, default=Path(".fuzz"), help="for what is kept; default .fuzz")
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--try", dest="one", type=Path, metavar="FILE", help="run one target with one input")
    options = parser.parse_args(argv)
    unknown = sorted(set(options.targets) - set(names))
    if unknown:
        parser.error(f"there is no target {', '.join(unknown)}; there are {', '.join(names)}")
    chosen = options.targets or names
    if options.one is not None:
        return _try(chosen, options.one)
    seconds = options.seconds if options.seconds is not None else 0 if options.runs else _DEFAULT_SECONDS
    ends = time.monotonic() + seconds
    results: list[Result] = []
    for left, name in enumerate(chosen):
        share = max(int((ends - time.monotonic()) / (len(chosen) - left)), _LEAST) if seconds else 0
        results.append(_run(name, seconds=share, runs=options.runs, folder=options.folder / name))
        print(table(results[-1:]).splitlines()[-1], flush=True)
        if results[-1].finding is not None:
            print(f"the input is in {options.folder / name}\n{results[-1].finding}\n", flush=True)
    print(f"\n{table(results)}")
    if options.json is not None:
        options.json.write_text(json.dumps([result.to_dict() for result in results], indent=2) + "\n")
    return 1 if any(result.finding is not None for result in results) else 0


def _run(name: str, *, seconds: int, runs: int, folder: Path) -> Result:
    if name == _C_READER:
        return c_reader.run(seconds=seconds, runs=runs, folder=folder)
    if name == _KERNELS:
        return kernels.run(seconds=seconds, runs=runs)
    return running.run(name, seconds=seconds, runs=runs, folder=folder)


def _try(chosen: Sequence[str], path: Path) -> int:
    """Runs one target with one input; what escapes it is shown."""
    target = targets().get(chosen[0]) if len(chosen) == 1 else None
    if target is None:
        sys.exit("--try needs one target in Python")
    data = path.read_bytes()
    print("header holds" if target.header(data) else "header does not hold")
    try:
        print("taken" if target.run(data) else "refused")
    except GpackError as error:
        print(f"refused: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
