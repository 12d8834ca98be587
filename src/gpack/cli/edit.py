"""`guild edit`: other metadata, another chat template, other files beside the weights."""

from __future__ import annotations

import argparse
import json
import os

from .. import errors
from ..convert.edit import Changes, edit
from ..terminal import units
from ..terminal.table import printable
from .progress import Progress
from .vocabulary import read_input
from .words import output_file

DESCRIPTION = """\
Write a pack again with other metadata, another chat template or other files beside the weights. The weights are copied
by the kernel, which shares them on file systems that can, and are not hashed again. The result keeps every rule of the
format, or nothing is written.

--set KEY=VALUE keeps the type of a key that there is, and refuses what does not fit; a new key gets the type of VALUE
as JSON: 1, 0.5, true, ["a", "b"]; anything else is a string.

It is a new file: sign it again where the old one was signed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("file", help="the .gpack file; it stays")
    parser.add_argument(
        "-o", "--output", required=True, type=output_file(".gpack"), metavar="FILE", help="the .gpack file to write"
    )
    change = parser.add_argument_group("changes; each may be repeated but --template")
    change.add_argument("--set", action="append", type=_pair, default=[], metavar="KEY=VALUE", help="set a key")
    change.add_argument("--remove", action="append", default=[], metavar="KEY", help="remove a key")
    change.add_argument("--template", metavar="FILE", help="the chat template; -: standard input")
    change.add_argument("--add-asset", action="append", default=[], metavar="FILE", help="keep a file, by its name")
    change.add_argument("--remove-asset", action="append", default=[], metavar="NAME", help="drop a file")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Edits."""
    changes = Changes(
        values=dict(args.set),
        removed=args.remove,
        template=None if args.template is None else read_input(args.template),
        assets={os.path.basename(path): read_input(path) for path in args.add_asset},
        removed_assets=args.remove_asset,
    )
    with Progress("edit", enabled=False if args.json else None) as bar:
        done = edit(args.file, args.output, changes, progress=bar.update)
    if args.json:
        result = {"ok": True, "output": done.path, "size": done.size, "manifest_sha256": done.manifest_sha256}
        print(json.dumps(result, indent=2))
    else:
        print(printable(f"{done.path}: {units.size(done.size)} in {units.duration(done.write_seconds)}"))
        print(f"manifest sha256 {done.manifest_sha256}")
    return errors.EXIT_OK


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value
