"""`guild perplexity`: how well a model foretells a text."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from .. import errors
from ..terminal import units
from ..terminal.table import printable
from .loading import add_loading, load
from .running import add_engine_arguments, engine_options
from .speaking import Remarks
from .vocabulary import as_text, read_input

if TYPE_CHECKING:
    from ..generate.perplexity import Perplexity

DESCRIPTION = """\
Measure the perplexity of a model on a text: exp of the mean of -ln p over its tokens. The lower it is, the better the
model foretells the text; between models of one vocabulary, or types of weights of one model, the numbers compare.

The windows are those of llama.cpp's llama-perplexity: of --ctx tokens, side by side, and of each the second half
counts. With --stride N each window begins N tokens after the one before, and its last N tokens count."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("file", help="a .gpack or .gguf file")
    parser.add_argument("text", metavar="TEXT_FILE", help="the text, UTF-8; -: standard input")
    parser.add_argument("-c", "--ctx", type=int, default=512, metavar="N", help="tokens of a window (default 512)")
    parser.add_argument(
        "--stride", type=int, default=0, metavar="N", help="tokens from window to window (default 0: a window's size)"
    )
    parser.add_argument("--windows", type=int, metavar="N", help="only the first N windows (default: all)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    engine = parser.add_argument_group("engine")
    add_engine_arguments(engine)
    add_loading(engine)


def run(args: argparse.Namespace) -> int:
    """Measures."""
    if args.windows is not None and args.windows < 1:
        raise errors.UsageError(f"--windows is {args.windows}", code="usage", field="windows")
    text = as_text(read_input(args.text), args.text)
    shows = not args.json and sys.stderr.isatty()
    with Remarks(), load(args, args.file) as model:
        from ..generate.perplexity import measure, windows

        ids = model.tokenizer.encode(text)
        count = len(windows(len(ids), args.ctx, args.stride)[: args.windows])

        def tell(found: Perplexity) -> None:
            if shows:
                print(f"\r{found.windows} of {count}: {found.value:.4f}", end="", file=sys.stderr, flush=True)

        started = time.perf_counter()
        try:
            options = {"n_ctx": args.ctx, "stride": args.stride, "most": args.windows, "progress": tell}
            found = measure(model, ids, **options, **engine_options(args))
        finally:
            if shows:
                print(file=sys.stderr)
        seconds = time.perf_counter() - started
        name = model.path
    if args.json:
        info = {
            "ok": True,
            "model": name,
            "perplexity": found.value,
            "standard_error": found.error,
            "tokens": found.tokens,
            "windows": found.windows,
            "ctx": args.ctx,
            "stride": args.stride,
            "seconds": round(seconds, 3),
        }
        print(json.dumps(info, indent=2))
        return errors.EXIT_OK
    error = "" if found.error is None else f" ± {found.error:.4f}"
    how = f"{units.plural(found.tokens, 'token')} in {units.plural(found.windows, 'window')}, {units.duration(seconds)}"
    print(printable(f"{name}: perplexity {found.value:.4f}{error} ({how})"))
    return errors.EXIT_OK
