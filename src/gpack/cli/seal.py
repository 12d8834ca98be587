"""`guild seal`: a pack that exists, again with digests of its chunks, and parity."""

from __future__ import annotations

import argparse
import json

from .. import errors
from ..convert.seal import seal
from ..sections.chunks import DEFAULT_ALGORITHM
from ..terminal import units
from ..terminal.table import printable
from .convert import add_seal_arguments
from .progress import Progress
from .words import output_file

DESCRIPTION = """\
Write a pack again with a digest of every chunk of 1 MiB, so that damage is found to the MiB and parts can be checked
alone, and with --parity also with what damage can be mended from. Every section is checked while it is copied; nothing
is written where one is damaged.

The result is a new file with an identity of its own, the one that `guild convert --chunk-digests` gives. A signature of
the old file does not apply to it: sign it again."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("file", help="the .gpack file")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        type=output_file(".gpack"),
        metavar="FILE",
        help="the .gpack file to write; an existing one is replaced",
    )
    add_seal_arguments(parser, DEFAULT_ALGORITHM)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Seals."""
    with Progress("seal", enabled=False if args.json else None) as bar:
        done = seal(args.file, args.output, chunk_digests=args.chunk_digests, parity=args.parity, progress=bar.update)
    if args.json:
        result = {
            "ok": True,
            "output": done.path,
            "size": done.size,
            "manifest_sha256": done.manifest_sha256,
            "seconds": {"write": round(done.write_seconds, 6), "sync": round(done.sync_seconds, 6)},
        }
        print(json.dumps(result, indent=2))
    else:
        print(f"{printable(done.path)}: {units.size(done.size)} in {units.duration(done.write_seconds)}")
        print(f"manifest sha256 {done.manifest_sha256}")
        print("It is a new file: a signature of the old one does not apply to it.")
    return errors.EXIT_OK
