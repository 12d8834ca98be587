"""`gpack-conformance reader` and `writer`: run somebody's program, and tell what came of it."""

from __future__ import annotations

import argparse
import shutil
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

from .. import errors
from ..terminal.table import printable
from ..terminal.units import duration, plural
from .html import html_report
from .junit import junit
from .known_failures import apply_known_failures, list_entry, read_known_failures
from .outcomes import Result, Run, dump_json
from .process import Limits
from .protocol import LEVELS
from .reader_judge import ReaderOptions, asked
from .reader_run import run_reader
from .selection import chosen, lines_of
from .vectors import load
from .writer_rules import broken_rules
from .writer_run import WriterOptions, given, run_writer
from .writer_set import writer_recipes

_SHOWN, _SHOWN_PER_RULE = 8, 2  # differences of a result that the text shows
_LISTED = 20  # failures that it lists after them


def reader(args: argparse.Namespace) -> int:
    """Runs vectors against a reader; exit code 0 where nothing fails."""
    from .dumping import dump

    everything = load()
    vectors = chosen(everything, args.only)
    if args.list:
        print("\n".join(lines_of(asked(vectors, args.level or LEVELS[-1], args.depth, large=args.large))))
        return errors.EXIT_OK
    options = ReaderOptions(
        level=args.level,
        per_file=args.per_file,
        depth=args.depth,
        large=args.large,
        strict_class=args.strict_class,
        jobs=args.jobs,
        most_faults=args.most_faults,
        limits=_limits(args, start_timeout=args.start_timeout),
    )
    return _run(
        args,
        {vector.id for vector in everything},
        lambda report: run_reader(args.command, vectors, options, dump, progress=report),
    )


def writer(args: argparse.Namespace) -> int:
    """Lets a writer write the recipes; exit code 0 where nothing fails."""
    everything = writer_recipes()
    recipes = chosen(everything, args.only)
    if args.list:
        print("\n".join(lines_of(given(recipes, args.level))))
        return errors.EXIT_OK
    options = WriterOptions(
        level=args.level, profile=args.profile, jobs=args.jobs, most_faults=args.most_faults, limits=_limits(args)
    )
    return _run(
        args,
        {recipe.id for recipe in everything},
        lambda report: run_writer(args.command, recipes, options, broken_rules, progress=report),
    )


def _limits(args: argparse.Namespace, **more: float) -> Limits:
    return Limits(timeout=args.timeout, memory=args.memory, disk=args.disk, **more)  # type: ignore[arg-type]


def _run(
    args: argparse.Namespace, everything: Collection[str], run_all: Callable[[Callable[[Result], None]], Run]
) -> int:
    args.command = _checked(args.command)
    known = read_known_failures(args.known_failures) if args.known_failures else {}
    for path in (args.json, args.junit, args.html):
        _check_writable(path)
    quiet = args.json == "-"

    def tell(result: Result) -> None:
        if not quiet and (args.verbose or not result.good) and result.id not in known:
            print("\n".join(_result_lines(result)), flush=True)

    run = run_all(tell)
    if args.name:
        run.subject.name = args.name
    apply_known_failures(run, known, everything)
    if quiet:
        print(dump_json(run.to_dict()), end="")
    else:
        print("\n".join(_summary(run, listed=len(run.results) if args.verbose else _LISTED)))
    for path, text in (
        (args.json, dump_json(run.to_dict())),
        (args.junit, junit(run)),
        (args.html, html_report([run])),
    ):
        if path is not None and path != "-":
            write_text(path, text)
    return errors.EXIT_OK if run.ok else errors.EXIT_INVALID


def _checked(command: list[str]) -> list[str]:
    """The command, with the program's whole path: it is started in a folder of its own.

    Raises:
        UsageError: There is none.
        PathError: The program cannot be found (`conformance.command`).
    """
    if not command:
        raise errors.UsageError(
            "there is no command to test", code="usage", hint="it stands after --: reader -- python3 my_reader.py"
        )
    program = shutil.which(command[0])
    if program is None:
        raise errors.PathError(
            "there is no such program, or it cannot be executed", code="conformance.command", path=command[0]
        )
    # A script named by a relative path would not be found from there.
    rest = [str(Path(part).resolve()) if _is_local_path(part) else part for part in command[1:]]
    return [str(Path(program).absolute()), *rest]


def _is_local_path(part: str) -> bool:
    """Whether an argument is a file here, or a folder that is written as a path: a bare word may mean anything."""
    if part.startswith("-") or "\0" in part:
        return False
    return Path(part).is_file() or ("/" in part and Path(part).is_dir())


def _check_writable(path: str | None) -> None:
    """A report that cannot be written is reported before the run, not after it."""
    if path is not None and path != "-" and not Path(path).parent.is_dir():
        raise errors.PathError("the folder does not exist", code="io.not_found", path=path)


def write_text(path: str, text: str) -> None:
    """Writes a report.

    Raises:
        PathError: It cannot be written.
    """
    try:
        Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise errors.PathError(error.strerror or str(error), code="io.write", path=path) from error


# ---------------------------------------------------------------- text


def _result_lines(result: Result) -> list[str]:
    word = "ok  " if result.outcome == "pass" else "skip" if result.good else "FAIL" if result.fails else "warn"
    lines = [f"{word} {result.id}: {result.outcome}" + (f": {result.message}" if result.message else "")]
    shown = _shown(result.differences)
    lines += [f"       {item}" for item in shown]
    if len(result.differences) > len(shown):
        lines.append(f"       and {len(result.differences) - len(shown)} more")
    lines += [f"       note: {note}" for note in result.notes]
    if result.stderr and not result.good:
        lines += [f"       stderr: {line}" for line in result.stderr.splitlines()[-3:]]
    return [printable(line) for line in lines]


def _shown(differences: list[str]) -> list[str]:
    """The first few, and of each rule only the first two."""
    met: Counter[str] = Counter()
    shown = []
    for item in differences:
        rule = item.partition(": ")[0]
        met[rule] += 1
        if met[rule] <= _SHOWN_PER_RULE:
            shown.append(item)
    return shown[:_SHOWN]


def _summary(run: Run, *, listed: int) -> list[str]:
    subject = run.subject
    lines = [f"note: {note}" for note in run.notes]
    for result in run.results:
        if result.known == "fixed":
            lines.append(f"FAIL {result.id}: passes, but the list of known failures names it: remove the entry")
        elif result.known == "changed":
            lines.append(f"FAIL {result.id}: {result.outcome}: {result.message}; the list says that it fails otherwise")
    lines += [f"FAIL {what}: {complaint}" for what, complaint in run.complaints]
    about = ", ".join(filter(None, [subject.language, subject.version, f"level {subject.level}"]))
    outcomes = ", ".join(f"{number} {outcome}" for outcome, number in run.counts.items()) or "nothing was run"
    known = sum(result.known == "known" for result in run.results)
    outcomes += f" ({plural(known, 'known failure')})" if known else ""
    verdict = "OK" if run.ok else "FAILED"
    lines.append(f"{subject.kind} {subject.name} ({about}): {verdict}: {outcomes}; {duration(run.seconds)}")
    new = [result for result in run.results if result.fails and not result.known]
    if new:
        lines.append("A list of known failures with these:")
        lines += [f"  {list_entry(result.id, result.outcome)}" for result in new[:listed]]
        if len(new) > listed:
            lines.append(f"  and {len(new) - listed} more: -v lists them all")
    return [printable(line) for line in lines]
