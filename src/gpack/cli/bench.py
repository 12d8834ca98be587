"""`guild bench`: how fast models run on this machine."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from typing import TYPE_CHECKING, Any

from .. import __version__, errors
from ..machine import usable_cores
from ..terminal import units
from ..terminal.table import printable
from .loading import add_loading, load
from .running import add_engine_arguments, engine_options
from .speaking import Remarks

if TYPE_CHECKING:
    from ..generate.guild_model import GuildModel
    from ..generate.rates import Rate

DESCRIPTION = """\
Measure how fast models run: tokens per second of a prompt, of one text that is continued, and with --texts of several
that are continued together. Each job runs once before it counts, then --repetitions times; the table has the median,
the slowest and the fastest, and is Markdown, so that it can be pasted."""
_HEADS = ("model", "size", "parameters", "weights", "threads", "job", "tokens/s", "slowest", "fastest")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="a .gpack or .gguf file")
    parser.add_argument("-p", "--prompt", type=int, default=512, metavar="N", help="tokens of the prompt (default 512)")
    parser.add_argument("-n", "--decode", type=int, default=128, metavar="N", help="steps of a text (default 128)")
    parser.add_argument(
        "--texts", type=_counts, default=(1,), metavar="N,...", help="texts together, in turn: 1,4,16 (default 1)"
    )
    parser.add_argument("-r", "--repetitions", type=int, default=5, metavar="N", help="how often (default 5)")
    parser.add_argument("--json", action="store_true", help="print the results as JSON, each repetition's")
    engine = parser.add_argument_group("engine")
    add_engine_arguments(engine)
    add_loading(engine)


def run(args: argparse.Namespace) -> int:
    """Measures each model in turn."""
    results = []
    if not args.json:
        print(_row(_HEADS))
        print(_row(["---", "--:", "--:", "---", "--:", "---", "--:", "--:", "--:"]))
    for path in args.files:
        with Remarks(), load(args, path) as model:
            results += _measured(args, model)
    if args.json:
        machine = {"gpack": __version__, "processor": _processor(), "system": platform.platform()}
        print(json.dumps({"ok": True, "machine": machine, "results": results}, indent=2))
    else:
        print(f"\nguild {__version__}, {printable(_processor())}")
    return errors.EXIT_OK


def _measured(args: argparse.Namespace, model: GuildModel) -> list[dict[str, Any]]:
    from ..generate.rates import rates

    facts, made = _facts(model), []
    options = {"prompt": args.prompt, "decode": args.decode, "texts": args.texts, "repetitions": args.repetitions}
    threads = args.threads or usable_cores()
    for rate in rates(model, **options, **engine_options(args)):
        made.append({**facts, "threads": threads, "job": rate.job, "rates": [round(one, 3) for one in rate.rates]})
        if not args.json:
            print(_row([*_cells(facts), str(threads), *_numbers(rate)]), flush=True)
    return made


def _facts(model: GuildModel) -> dict[str, Any]:
    """What a model is: its file, the bytes and elements of its tensors, the type that most of the bytes have."""
    from collections import Counter
    from math import prod
    from pathlib import Path

    from ..generated.constants import GgmlType
    from ..sections.dense import byte_count

    by_type: Counter[str] = Counter()
    elements = 0
    for ggml_type, dims in model.tensors.shapes():
        by_type[GgmlType.NAMES[ggml_type]] += byte_count(ggml_type, dims)
        elements += prod(dims)
    (weights, _), *_ = by_type.most_common(1) or [("", 0)]
    return {"model": Path(model.path).name, "bytes": by_type.total(), "parameters": elements, "weights": weights}


def _cells(facts: dict[str, Any]) -> list[str]:
    return [facts["model"], units.size(facts["bytes"]), units.count(facts["parameters"]), facts["weights"]]


def _numbers(rate: Rate) -> list[str]:
    return [rate.job, *(f"{value:.1f}" for value in (statistics.median(rate.rates), min(rate.rates), max(rate.rates)))]


def _row(cells: Any) -> str:
    return printable("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")


def _counts(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of counts, such as 1,4,16")
    return tuple(map(int, parts))


def _processor() -> str:
    """The processor's name, as the system says it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
