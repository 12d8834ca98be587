"""`guild diff`: what differs between two packs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from .. import errors
from ..compare import Diff, Difference, diff
from ..terminal import units
from ..terminal.table import printable

DESCRIPTION = """\
Show what differs between two packs: header, directory, metadata keys with their values, tensors (type, shape, home,
bytes, and of floats how far values are apart), tokenizer, files beside the weights, manifest, sections.

Sections with equal digests are taken for equal; --bytes reads and compares every byte of both files instead, also those
between sections. Files are read a few bytes at a time, whatever their size. Damaged files are compared as far as they
can be opened; what could not be compared is reported."""
EPILOG = """\
exit codes: 0 equal; 1 different, or something outside of the packs could not be compared; 2 wrong usage, or a file is
no pack; 3 a file is missing or unreadable. --json prints {"ok": true, "equal": ..., "differences": [...], ...}."""

_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("a", help="the first .gpack file")
    parser.add_argument("b", help="the second .gpack file")
    parser.add_argument("--bytes", action="store_true", help="trust no digest: compare every byte of both files")
    parser.add_argument("--expert-dir", metavar="DIR", help="where the shards of external experts are")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Compares."""
    from ..container.reader import part_error

    for path in (args.a, args.b):
        if error := part_error(path):
            raise error
    found = diff(args.a, args.b, compare_bytes=args.bytes, expert_dir=args.expert_dir)
    if args.json:
        print(json.dumps({"ok": True, **found.to_dict()}, indent=2))
    else:
        for line in _lines(found, every_byte=args.bytes):
            print(printable(line))
    return errors.EXIT_OK if found.equal else errors.EXIT_INVALID


def _lines(found: Diff, *, every_byte: bool) -> Iterator[str]:
    for sign, side in (("---", found.a), ("+++", found.b)):
        digest = side["manifest_sha256"]
        yield f"{sign} {side['path']}: {units.size(side['size'])}, manifest {digest[:16] if digest else 'unreadable'}"
        for broken in side["damage"]:
            yield f"    damaged: {broken['rule']}: {broken['message']}"
    for difference in found.differences:
        yield _line(difference)
    for note in found.not_compared:
        yield f"not compared: {note.part} {note.name}: {note.reason}"
    if found.differences:
        counted = ", ".join(f"{count} of {part}" for part, count in found.counts.items())
        yield f"the packs differ: {counted}"
    elif not found.equal:
        yield "no difference was found, but not everything could be compared"
    else:
        yield "the packs are equal" + ("" if every_byte else ", going by their digests; --bytes compares every byte")


def _line(difference: Difference) -> str:
    """One difference, such as `tensor ~ blk.0.attn_q.weight: type F16 -> Q8_0`."""
    words = [f"{name} {_text(before)} -> {_text(after)}" for name, (before, after) in difference.changes.items()]
    if len(difference.changes) == 1 and difference.name in difference.changes:
        before, after = difference.changes[difference.name]
        words = [f"{_text(before)} -> {_text(after)}"]
    words += _detail(dict(difference.detail))
    return f"{difference.part:10}{_SIGNS[difference.kind]} {difference.name}: {'; '.join(words)}"


def _detail(detail: dict[str, Any]) -> Iterator[str]:
    count = detail.pop("differing_bytes", None)
    if count is not None:
        first = detail.pop("first_offset")
        length = detail.pop("bytes")
        where = "" if first is None else f", the first at byte {first}"
        yield f"{count} of {length} bytes differ{where}"
    farthest = detail.pop("max_abs_difference", None)
    if farthest is not None:
        yield f"values differ by at most {farthest:.6g}"
    for name, value in detail.items():
        yield f"{name.replace('_', ' ')} {_text(value)}"


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 240 else f"{text[:237]}..."
