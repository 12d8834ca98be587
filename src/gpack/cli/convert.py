"""`guild convert`: a model of another format becomes a pack."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from .. import errors
from ..container.structure import open_file, read_at
from ..convert.conversion import Conversion, describe, report
from ..convert.gguf import convert_gguf
from ..generated.gguf.constants import GGUF_MAGIC
from . import units
from .progress import Progress
from .table import printable, render

DESCRIPTION = """\
Convert a GGUF model into one pack. Of a split model any shard will do. The output is written beside its destination,
checked, and renamed into place: whatever happens, a partial pack never stands there.

With --external-experts the routed experts stay in the GGUF's files, which must then lie beside the pack, or in the
folder that --expert-dir names, whenever it is used. Their bytes are not read: the size of the experts costs no time.
`guild pack-experts` makes a pack with everything inside of it later."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("source", help="the .gguf file, or any shard of a split model")
    parser.add_argument("-o", "--output", required=True, help="the .gpack file to write; an existing one is replaced")
    parser.add_argument("--name", help="name of the model (default: general.name, else the architecture)")
    parser.add_argument(
        "--external-experts", action="store_true", help="leave the routed experts in the GGUF's files, unread"
    )
    parser.add_argument(
        "--hash-shards",
        action="store_true",
        help="with --external-experts: record a digest of every byte of those files (reads them)",
    )
    parser.add_argument("--dry-run", action="store_true", help="only show sections, size, free space and expected time")
    parser.add_argument(
        "--report",
        nargs="?",
        const="",
        metavar="FILE",
        help="also write a JSON file that tells sources and the place of every tensor (default: OUTPUT.report.json)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Converts."""
    if args.hash_shards and not args.external_experts:
        raise errors.UsageError("--hash-shards needs --external-experts", code="usage")
    check_source(args.source)
    target = f"{args.output}.report.json" if args.report == "" else args.report
    _check_report(target, args.source, args.output)
    with Progress("convert", enabled=False if args.json else None) as bar:
        done = convert_gguf(
            args.source,
            args.output,
            name=args.name,
            external_experts=args.external_experts,
            hash_shards=args.hash_shards,
            dry_run=args.dry_run,
            progress=bar.update,
        )
    if target is not None:
        write_json(target, report(done))
    if args.json:
        print(json.dumps({"ok": True, "dry_run": args.dry_run, **describe(done)}, indent=2))
    else:
        _print(done, describe(done))
    return errors.EXIT_OK


def check_source(path: str) -> None:
    """Says what a source is that cannot be converted, before anything else does.

    Raises:
        FormatError: `convert.source`: it is no GGUF.
        PathError: It is missing or unreadable.
    """
    descriptor, size = open_file(path)
    with open(descriptor, "rb", buffering=0) as file:
        magic = GGUF_MAGIC.to_bytes(4, "little")
        start = read_at(file.fileno(), 0, min(size, len(magic)), path)
    if start != magic:
        raise errors.FormatError(
            f"the file begins with {start!r}, a GGUF with {magic!r}", code="convert.source", path=path,
            hint="give a .gguf file, or one shard of a split model",
        )  # fmt: skip


def _check_report(target: str | None, source: str, output: str) -> None:
    """Refuses a report that would take the place of the model.

    Raises:
        UsageError: `convert.same_file`.
    """
    if target is None:
        return
    same = os.path.exists(target) and os.path.samefile(target, source)
    if same or os.path.realpath(target) == os.path.realpath(output):
        raise errors.UsageError("the report would overwrite the model", code="convert.same_file", path=target)


def write_json(path: str, value: Any) -> None:
    """Writes a report, whole or not at all.

    Raises:
        PathError: The file cannot be written.
    """
    from ..container.atomic import AtomicFile

    data = (json.dumps(value, indent=2) + "\n").encode()
    with AtomicFile(path, len(data)) as file:
        file.write_at(data, 0)
        file.sync()
        file.commit()


def _print(done: Conversion, told: dict[str, Any]) -> None:
    model = told["model"]
    rows = [
        (section["name"], section["offset"], section["size"], units.size(section["size"]), section["item_count"])
        for section in told["sections"]
    ]
    print(render(rows, ["section", "offset", "bytes", "size", "items"], "lrrrr"))
    parameters = units.count(model["parameter_count"])
    print(
        f"\n{printable(model['name'])}: {model['architecture']}, {parameters} parameters, {model['tensor_count']} tensors"
    )
    _print_shards(done, told)
    if done.result is None:
        fits = "fits" if told["fits"] else "DOES NOT FIT"
        print(f"dry run: {units.size(told['size'])}, {fits} ({units.size(told['free_bytes'])} free", end="")
        print(f", replaces {units.size(told['replaces_bytes'])})" if told["replaces_bytes"] else ")")
        print(f"expected time: {units.duration(told['expected_seconds'])} and what the disk needs")
        return
    seconds = done.seconds
    print(
        f"{printable(done.output)}: {units.size(told['size'])} in {units.duration(seconds['plan'] + seconds['write'])}"
        f" ({units.rate(told['size'], seconds['write'])}), {units.duration(seconds['sync'])} until it was on the disk"
    )
    print(f"manifest sha256 {told['manifest_sha256']}")


def _print_shards(done: Conversion, told: dict[str, Any]) -> None:
    """Where external experts stay, and what that asks of the user."""
    shards = told.get("experts", {}).get("shards", [])
    if not shards:
        if done.plan.external is not None:
            print("there are no routed experts: nothing stays outside of the pack")
        return
    names = ", ".join(shard["name"] for shard in shards)
    print(printable(f"{units.size(told['experts']['bytes'])} of experts stay in {names}"))
    folder = os.path.dirname(os.path.abspath(done.plan.source.files[0].path))
    if not os.path.samefile(folder, os.path.dirname(os.path.abspath(done.output))):
        print(printable(f"the pack lies elsewhere: use it with --expert-dir {folder}, or put those files beside it"))
