"""`guild pack-experts`: a pack with external experts becomes one with everything inside."""

from __future__ import annotations

import argparse
import json

from .. import errors
from ..convert.embed import pack_experts
from ..terminal import units
from ..terminal.table import printable
from .progress import Progress
from .words import output_file

DESCRIPTION = """\
Write a pack that holds the experts which another one leaves in its GGUF's shards. The result is, byte for byte, the
pack that converting the GGUF without --external-experts gives. The shards are looked for beside the pack or in
--expert-dir, and checked before they are read: size, SHA-256 of the header, and of every byte where it is recorded."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("file", help="the .gpack file with external experts")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        type=output_file(".gpack"),
        metavar="FILE",
        help="the .gpack file to write; an existing one is replaced",
    )
    parser.add_argument("--expert-dir", metavar="DIR", help="where the shards are (default: beside the pack)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Packs the experts."""
    with Progress("pack", enabled=False if args.json else None) as bar:
        done = pack_experts(args.file, args.output, expert_dir=args.expert_dir, progress=bar.update)
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
    return errors.EXIT_OK
