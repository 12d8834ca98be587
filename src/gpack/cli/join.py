"""`guild join`: the parts of a pack become the pack again."""

from __future__ import annotations

import argparse
import json

from .. import errors
from ..convert.parts import join
from ..terminal import units
from ..terminal.table import printable
from .progress import Progress
from .words import output_file

DESCRIPTION = """\
Put the parts of a pack (`guild split`) together: any part will do, the others lie beside it. The pack is written whole
or not at all, byte for byte as it was, and its structure is checked; `guild verify` checks every byte."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("file", metavar="PART", help="any of the parts; they stay")
    parser.add_argument(
        "-o", "--output", type=output_file(".gpack"), metavar="FILE", help="the pack (default: the name that was cut)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Joins."""
    with Progress("join", enabled=False if args.json else None) as bar:
        made = join(args.file, args.output, progress=bar.update)
    if args.json:
        result = {"ok": True, "output": str(made.path), "size": made.size, "manifest_sha256": made.manifest_sha256}
        print(json.dumps(result, indent=2))
    else:
        print(printable(f"{made.path}: {units.size(made.size)}"))
        print(f"manifest sha256 {made.manifest_sha256}")
    return errors.EXIT_OK
