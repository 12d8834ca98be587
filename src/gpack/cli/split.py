"""`guild split`: a pack is cut into parts."""

from __future__ import annotations

import argparse
import json

from .. import errors
from ..convert.parts import split
from ..terminal import units
from ..terminal.table import printable
from .loading import number_of_bytes
from .progress import Progress

DESCRIPTION = """\
Cut a pack into parts of at most --size bytes, for hosts that limit the size of files: NAME.part-00001-of-00003 and so
on, plain ranges of its bytes. `guild join` puts them together again; so does cat, in the order of their names. On file
systems that can, the parts share the pack's bytes on the disk."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("file", help="the .gpack file; it stays")
    parser.add_argument("--size", type=number_of_bytes, required=True, metavar="BYTES", help="most of a part: 4G, 500M")
    parser.add_argument("-o", "--output-dir", metavar="DIR", help="where the parts go (default: beside the pack)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Splits."""
    with Progress("split", enabled=False if args.json else None) as bar:
        parts = split(args.file, args.size, folder=args.output_dir, progress=bar.update)
    if args.json:
        made = [{"file": str(part.path), "size": part.size} for part in parts]
        print(json.dumps({"ok": True, "parts": made}, indent=2))
    else:
        for part in parts:
            print(printable(f"{part.path}: {units.size(part.size)}"))
    return errors.EXIT_OK
