"""The command line `gpack-conformance`: tests other people's readers, writers and files."""

from __future__ import annotations

import argparse
import re
import signal
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from .. import errors
from ..terminal.program import catch_termination, guarded
from . import cli_files, cli_run
from .process import MIB, Limits
from .protocol import DEPTHS, LEVELS
from .writer_recipes import PROFILES, WRITER_LEVELS

PROGRAM = "gpack-conformance"
_EPILOG = """\
exit codes: 0 all is right; 1 something failed; 2 wrong usage; 3 a file or the command cannot be used; 70 a fault of
this program; 130 interrupted. spec/conformance.md tells how to test a writer or reader in ten minutes."""
_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([KMGT]?)(?:i?B)?")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line; returns the exit code and never raises for what a user may do."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    own, command = split_command(arguments)
    return guarded(PROGRAM, lambda: _run(own, command), as_json=wants_json(own))


def split_command(arguments: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Our own arguments, and the command after `--`; None where there is no `--`."""
    if "--" not in arguments:
        return list(arguments), None
    at = list(arguments).index("--")
    return list(arguments[:at]), list(arguments[at + 1 :])


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether errors come as JSON: the results would have come so on standard output."""
    following = [*arguments, "-"][1:]
    for argument, after in zip(arguments, following, strict=True):
        if argument in ("--json", "--json=-") and (after == "-" or after.startswith("--") or argument != "--json"):
            return True
        if argument == "--format=json" or (argument == "--format" and after == "json"):
            return True
    return False


def _run(arguments: list[str], command: list[str] | None) -> int:
    catch_termination()
    _keep_exit_statuses()
    parser = _parser()
    try:
        parsed = parser.parse_args(arguments)
    except SystemExit:  # argparse has printed the help or the version
        return errors.EXIT_OK
    takes_command = parsed.action in (cli_run.reader, cli_run.writer)
    if command is not None and not takes_command:
        raise errors.UsageError("this command takes no other command after --", code="usage")
    if takes_command:
        parsed.command = command or []
    return int(parsed.action(parsed))


def _keep_exit_statuses() -> None:
    """Whoever ignores the end of his programs makes those whom he starts do the same: then no exit status is kept."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


class _Parser(argparse.ArgumentParser):
    """Complaints become errors of ours, so that they come as JSON too and share one way out."""

    def error(self, message: str) -> NoReturn:
        raise errors.UsageError(message, code="usage", hint=f"`{self.prog} --help` shows the arguments")


def _parser() -> argparse.ArgumentParser:
    from .. import __version__

    parser = _Parser(
        prog=PROGRAM,
        description="Test readers, writers and files of GPACK.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="version", version=f"{PROGRAM} (gpack) {__version__}")
    commands = parser.add_subparsers(dest="subcommand", required=True, metavar="COMMAND", parser_class=_Parser)
    _add_check(commands)
    _add_run(commands, "reader", "run the vectors against a reader: gpack-conformance reader -- COMMAND")
    _add_run(commands, "writer", "let a writer write the recipes: gpack-conformance writer -- COMMAND")
    _add_files(commands)
    return parser


def _add_check(commands: argparse._SubParsersAction[_Parser]) -> None:
    check = commands.add_parser("check", help="check somebody's file against every rule")
    check.add_argument("file", metavar="FILE")
    check.add_argument("--level", choices=LEVELS, help="only the rules up to this level")
    check.add_argument("--format", choices=("text", "json", "junit"), default="text")
    check.add_argument("-o", "--output", metavar="OUT", help="write the report to a file")
    check.add_argument("-v", "--verbose", action="store_true", help="text: the rules that passed or do not apply, too")
    check.set_defaults(action=cli_files.check)


def _add_files(commands: argparse._SubParsersAction[_Parser]) -> None:
    vectors = commands.add_parser("vectors", help="write the vectors as files")
    vectors.add_argument("--out", metavar="DIR", required=True)
    vectors.add_argument("--level", choices=LEVELS, help="only those that readers of this level are asked about")
    _add_choice(vectors)
    vectors.set_defaults(action=cli_files.vectors)
    recipes = commands.add_parser("recipes", help="write the writer recipes as files, a folder each")
    recipes.add_argument("--out", metavar="DIR", required=True)
    recipes.add_argument("--level", choices=WRITER_LEVELS)
    recipes.add_argument("--profile", choices=PROFILES, default=PROFILES[0])
    _add_choice(recipes)
    recipes.set_defaults(action=cli_files.recipes)
    lists = commands.add_parser("list", help="list vectors and writer recipes")
    lists.add_argument("--kind", choices=("reader", "writer"), help="only the vectors, or only the recipes")
    lists.add_argument("--level", choices=(*LEVELS, *WRITER_LEVELS))
    lists.add_argument("--json", action="store_true", help="print the list as JSON")
    _add_choice(lists)
    lists.set_defaults(action=cli_files.list_all)
    report = commands.add_parser("report", help="make one page of several results: languages by vectors")
    report.add_argument("results", metavar="RESULT.json", nargs="+", help="written by `reader --json FILE`")
    report.add_argument("--html", metavar="FILE", required=True)
    report.add_argument("--title", default="GPACK conformance")
    report.set_defaults(action=cli_files.report)


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", metavar="GLOB", action="append", help="only ids that match; may be repeated")


def _add_run(commands: argparse._SubParsersAction[_Parser], kind: str, text: str) -> None:
    default = Limits()
    run = commands.add_parser(kind, help=text, usage=f"{PROGRAM} {kind} [options] -- COMMAND [ARGUMENT ...]")
    _add_choice(run)
    run.add_argument("--list", action="store_true", help="list what would be asked, and run nothing")
    run.add_argument("--known-failures", metavar="FILE", help="failures that are known; the list can only shrink")
    run.add_argument("--timeout", type=seconds, default=default.timeout, metavar="S", help="for one answer (10)")
    run.add_argument("--memory", type=size, default=default.memory, metavar="SIZE", help="of all its processes (2G)")
    run.add_argument("--disk", type=size, default=default.disk, metavar="SIZE", help="in its folders (1G)")
    run.add_argument("--jobs", type=count, default=1, metavar="N", help="programs side by side (1)")
    run.add_argument("--most-faults", type=count, default=100, metavar="N", help="give up after so many crashes (100)")
    run.add_argument("--json", nargs="?", const="-", metavar="FILE", help="the results as JSON; without FILE: printed")
    run.add_argument("--junit", metavar="FILE", help="the results as JUnit XML")
    run.add_argument("--html", metavar="FILE", help="the results as a page")
    run.add_argument("--name", help="what the program is called in reports")
    run.add_argument("-v", "--verbose", action="store_true", help="tell what passes, too, and list all that fails")
    if kind == "reader":
        run.add_argument("--level", choices=LEVELS, help="the highest level to ask about (what the reader says)")
        run.add_argument("--per-file", action="store_true", help="COMMAND is started for each file, with its path")
        run.add_argument("--depth", choices=DEPTHS, default=DEPTHS[-1], help="how much a --per-file reader dumps")
        run.add_argument("--start-timeout", type=seconds, default=default.start_timeout, metavar="S", help="(30)")
        run.add_argument("--large", action="store_true", help="ask a reader that hashes about files of many GiB, too")
        run.add_argument("--strict-class", action="store_true", help="a rejection of another class fails")
        run.set_defaults(action=cli_run.reader)
    else:
        run.add_argument("--level", choices=WRITER_LEVELS, default=WRITER_LEVELS[-1], help="the highest level (model)")
        run.add_argument("--profile", choices=PROFILES, default=PROFILES[0], help="free: the bytes need not be ours")
        run.set_defaults(action=cli_run.writer)


# ---------------------------------------------------------------- values of options


def size(text: str) -> int:
    """Bytes: `512M`, `1.5GiB`, `4096`.

    Raises:
        ArgumentTypeError: It is none, or under 1 MiB.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size, such as 512M or 2G")
    found = int(float(match[1]) * _UNITS[match[2]])
    if found < MIB:
        raise argparse.ArgumentTypeError(f"{text!r} is under 1M")
    return found


def seconds(text: str) -> float:
    """Seconds, above zero and at most a day.

    Raises:
        ArgumentTypeError: It is none.
    """
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return found


def count(text: str) -> int:
    """A number from 1 to 10000.

    Raises:
        ArgumentTypeError: It is none.
    """
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 10000")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
