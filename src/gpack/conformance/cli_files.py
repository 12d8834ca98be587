"""`gpack-conformance check`, `vectors`, `recipes`, `list` and `report`: files in, files out."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from .. import errors
from ..terminal.table import printable
from ..terminal.units import plural
from .checking import check as check_file
from .cli_run import write_text
from .html import html_report
from .outcomes import load_run
from .protocol import LEVELS
from .reader_judge import asked
from .rendering import render_json, render_junit, render_text
from .selection import Item, chosen, lines_of
from .vectors import load, write_all
from .writer_recipes import WRITER_LEVELS
from .writer_run import given
from .writer_set import writer_recipes


def check(args: argparse.Namespace) -> int:
    """Checks a file against every rule; exit code 0 where none is broken."""
    report = check_file(args.file, level=args.level or LEVELS[-1])
    if args.format == "text":
        text = render_text(report, verbose=args.verbose)
    else:
        text = {"json": render_json, "junit": render_junit}[args.format](report)
    if args.output is None:
        print(text.rstrip("\n"))
    else:
        write_text(args.output, text)
        print(f"{printable(args.file)}: {'OK' if report.ok else 'FAILED'}: {printable(args.output)}")
    return errors.EXIT_OK if report.ok else errors.EXIT_INVALID


def vectors(args: argparse.Namespace) -> int:
    """Writes vectors as files."""
    found = chosen(load(), args.only)
    picked = asked(found, args.level, large=True) if args.level else found
    folder = _folder(args.out)
    written = write_all(picked, folder)
    print(f"{plural(len(written), 'vector')} in {args.out}")
    return errors.EXIT_OK


def recipes(args: argparse.Namespace) -> int:
    """Writes the recipes, each into a folder of its own, as a writer finds them."""
    found = chosen(writer_recipes(), args.only)
    picked = given(found, args.level) if args.level else found
    for recipe in picked:
        recipe.materialise(_folder(str(Path(args.out) / recipe.id)), profile=args.profile)
    print(f"{plural(len(picked), 'recipe')} in {args.out}")
    return errors.EXIT_OK


def list_all(args: argparse.Namespace) -> int:
    """Lists vectors and recipes."""
    shown = [] if args.kind == "writer" else list(load())
    tasks = [] if args.kind == "reader" else list(writer_recipes())
    everything: list[Item] = [*shown, *tasks]
    picked = {item.id for item in chosen(everything, args.only)}
    if args.level:
        shown = asked(shown, args.level, large=True) if args.level in LEVELS else []
        tasks = given(tasks, args.level) if args.level in WRITER_LEVELS else []
    shown = [vector for vector in shown if vector.id in picked]
    tasks = [task for task in tasks if task.id in picked]
    if args.json:
        info = {
            "ok": True,
            "vectors": [vector.to_dict() for vector in shown],
            "recipes": [{"id": task.id, "doc": task.doc, "level": task.level} for task in tasks],
        }
        print(json.dumps(info, indent=2))
    else:
        print("\n".join(lines_of([*shown, *tasks])))
    return errors.EXIT_OK


def report(args: argparse.Namespace) -> int:
    """Makes one page of several results."""
    runs = [load_run(path) for path in args.results]
    write_text(args.html, html_report(runs, title=args.title))
    failed = sum(not run.ok for run in runs)
    print(f"{plural(len(runs), 'program')}, {failed} of them failing: {args.html}")
    return errors.EXIT_OK


def _folder(path: str) -> Path:
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise errors.PathError(f"cannot be made: {error.strerror}", code="io.write", path=path) from error
    return folder
