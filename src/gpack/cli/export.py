"""`guild export`: the GGUF that a pack was made from."""

from __future__ import annotations

import argparse
import json

from .. import errors
from ..convert.export import export_gguf
from ..terminal import units
from ..terminal.table import printable
from .progress import Progress
from .words import output_file

DESCRIPTION = """\
Write one GGUF with the same keys, tensors, types, order, version, alignment and bytes as the source had; of a split
source the whole. Converting it again gives the same pack, byte for byte, given the same name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("file", help="the .gpack file")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        type=output_file(".gguf"),
        metavar="FILE",
        help="the .gguf file to write; an existing one is replaced",
    )
    parser.add_argument("--expert-dir", metavar="DIR", help="where the shards of external experts are")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Exports."""
    with Progress("export", enabled=False if args.json else None) as bar:
        done = export_gguf(args.file, args.output, expert_dir=args.expert_dir, progress=bar.update)
    if args.json:
        result = {
            "ok": True,
            "output": done.output,
            "size": done.size,
            "tensors": done.tensor_count,
            "keys": done.metadata_count,
        }
        print(json.dumps(result, indent=2))
    else:
        summary = f"{units.size(done.size)}, {done.tensor_count} tensors, {done.metadata_count} keys"
        print(f"{printable(done.output)}: {summary}")
    return errors.EXIT_OK
