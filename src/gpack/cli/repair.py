"""`guild repair`: a damaged pack is mended."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence

from .. import errors
from ..repair.mend import Repair, repair
from ..repair.target import Damage
from ..terminal import units
from ..terminal.table import printable
from .progress import Progress
from .words import output_file

DESCRIPTION = """\
Mend a damaged pack. Its digests of chunks (`guild convert --chunk-digests`, `guild seal`) tell which chunks are
damaged; where it has none, those of the other copy do, or comparing does. The right bytes come from --from OTHER: a
second copy of the pack, a pack with the same sections, or the GGUF or safetensors that it was made from, of which no
more is read than the damaged chunks need; or from the pack's own parity (--parity). Every chunk is checked before it
is used, and a full verify of the result ends the repair.

-o NEW writes a new file. --in-place changes the pack: all new bytes are written to FILE.repair and synced before. A
repair that was killed has changed nothing, or is finished by the next command that is given the pack."""

_LISTED = 100  # damaged ranges that are printed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("file", help="the damaged .gpack file")
    parser.add_argument("--from", dest="other", metavar="OTHER", help="who has the right bytes (default: parity alone)")
    parser.add_argument(
        "-o",
        "--output",
        type=output_file(".gpack"),
        metavar="FILE",
        help="the .gpack file to write; an existing one is replaced",
    )
    parser.add_argument("--in-place", action="store_true", help="change the file itself, with a journal beside it")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Repairs."""
    if args.in_place == (args.output is not None):
        raise errors.UsageError("give either -o NEW or --in-place", code="usage")
    with Progress("repair", enabled=False if args.json else None) as bar:
        done = repair(args.file, args.output, other=args.other, in_place=args.in_place, progress=bar.update)
    sound = done.verification is not None and done.verification.ok
    if args.json:
        _print_json(args.file, done, sound=sound)
    else:
        _print(args.file, done, sound=sound)
    return errors.EXIT_OK if sound else errors.EXIT_INVALID


def damage_lines(damages: Sequence[Damage]) -> Iterator[str]:
    """What is damaged, a line to a run."""
    for damage in damages[:_LISTED]:
        yield printable(f"{damage.section}: bytes {damage.offset} to {damage.offset + damage.length} are damaged")
    if len(damages) > _LISTED:
        yield f"... and {len(damages) - _LISTED} more"


def _print_json(path: str, done: Repair, *, sound: bool) -> None:
    result = {
        "ok": sound,
        "file": path,
        "output": done.path,
        "damages": [damage.to_dict() for damage in done.damages],
        "taken": done.taken,
        "bytes_read": done.bytes_read,
        "violations": [] if done.verification is None else [v.to_dict() for v in done.verification.report.violations],
    }
    print(json.dumps(result, indent=2))


def _print(path: str, done: Repair, *, sound: bool) -> None:
    for line in damage_lines(done.damages):
        print(line)
    for name, count in done.taken.items():
        print(printable(f"{units.size(count)} from {name}"))
    if done.path is not None:
        print(printable(f"{done.path}: mended, and every rule and byte checked"))
    elif sound:
        print(printable(f"{path}: nothing is damaged, and nothing was written"))
    else:
        print(printable(f"{path}: no byte is damaged, but it breaks rules: `guild verify` lists them"))
