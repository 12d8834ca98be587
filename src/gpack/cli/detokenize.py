"""`guild detokenize`: the text of token ids."""

from __future__ import annotations

import argparse
import json
import re
import sys

from .. import errors
from .vocabulary import open_tokenizer, read_input

DESCRIPTION = """\
Print the text of token ids: of the arguments, of a file, or of standard input, separated by spaces, newlines or
commas; a JSON list will do. The bytes come out as they are, without a newline after them, unless on a terminal."""

_MAX_DIGITS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("file", help="a .gpack or .gguf file, or a directory with tokenizer.json")
    parser.add_argument("ids", nargs="*", metavar="ID", help="token ids; without them and without -f: standard input")
    parser.add_argument("-f", "--ids-file", metavar="FILE", help="read the ids from a file; -: standard input")
    parser.add_argument("--skip-special", action="store_true", help="leave control tokens out")
    parser.add_argument("--json", action="store_true", help="print the text as JSON; bytes in hex where it is no UTF-8")


def run(args: argparse.Namespace) -> int:
    """Detokenizes."""
    if args.ids and args.ids_file is not None:
        raise errors.UsageError("the ids are given twice: as arguments and with -f", code="usage")
    with open_tokenizer(args.file) as tokenizer:
        written = " ".join(args.ids) if args.ids else read_input(args.ids_file).decode("utf-8", "replace")
        ids = parse_ids(written)
        data = tokenizer.decode_bytes(ids, skip_special=args.skip_special)
    if args.json:
        info: dict[str, object] = {"ok": True, "count": len(ids), "text": data.decode("utf-8", "replace")}
        try:
            data.decode("utf-8")
        except UnicodeDecodeError:
            info["bytes"] = data.hex()
        print(json.dumps(info))
        return errors.EXIT_OK
    sys.stdout.flush()
    sys.stdout.buffer.write(data + b"\n" if sys.stdout.isatty() else data)
    sys.stdout.buffer.flush()
    return errors.EXIT_OK


def parse_ids(written: str) -> list[int]:
    """The ids in a text.

    Raises:
        UsageError: Something in it is no id.
    """
    written = written.strip()
    if written.startswith("[") and written.endswith("]"):
        written = written[1:-1]
    ids = []
    for part in re.split(r"[\s,]+", written):
        if not part:
            continue
        if not re.fullmatch(r"[0-9]+", part) or len(part) > _MAX_DIGITS:
            shown = part if len(part) <= 40 else part[:40] + "..."
            raise errors.UsageError(f"{shown!r} is no token id", code="usage", hint="ids are numbers from 0 on")
        ids.append(int(part))
    return ids
