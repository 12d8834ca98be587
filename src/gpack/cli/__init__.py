"""The command line: `guild`, also called `gpack`. One small module for each command.

Only the module of the command that was asked for is imported, so that `guild verify --quick` starts at once.
"""

from __future__ import annotations

import os
import sys

from .. import errors
from ..repair import JOURNAL_SUFFIX
from ..terminal.program import catch_termination, guarded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Command to its module and what it does, in the order of `--help`.
COMMANDS = {
    "convert": "convert a model, a GGUF or safetensors, into a pack",
    "verify": "check a pack: every rule of the format, the SHA-256 of every byte",
    "repair": "mend a damaged pack from another copy, its source, or parity",
    "seal": "add digests of chunks, and parity, to a pack",
    "sign": "sign a pack: who made it",
    "edit": "change metadata, chat template or files beside the weights",
    "split": "cut a pack into parts, for hosts that limit the size of files",
    "join": "put the parts of a pack together",
    "inspect": "show what a pack or a GGUF holds",
    "diff": "show what differs between two packs",
    "pack-experts": "turn a pack with external experts into one with everything inside",
    "export": "write the GGUF that a pack was made from",
    "run": "let a model answer: one prompt, or a conversation",
    "bench": "measure how fast models run on this machine",
    "perplexity": "measure how well a model foretells a text",
    "serve": "let models answer many clients at once, over HTTP",
    "tokenize": "show a text as the tokens of a model",
    "detokenize": "show the text of token ids",
}
_EPILOG = """\
exit codes: 0 done; 1 the input is damaged or breaks a rule; 2 wrong usage; 3 a file is missing, unreadable or the disk
is full; 4 not supported by this version; 70 a fault of this program; 130 interrupted. Errors carry a stable code in
brackets; with --json they come as {"ok": false, "error": {"code": ...}} on standard output."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line; returns the exit code and never raises for what a user may do."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return guarded("guild", lambda: _run(arguments), as_json="--json" in arguments)


def _run(arguments: list[str]) -> int:
    command = arguments[0] if arguments else ""
    if command == "help":
        named = [word for word in arguments[1:] if not word.startswith("-")]
        return _run([*named[:1], "--help", *(["--json"] if "--json" in arguments else [])])
    if command not in COMMANDS:
        return _without_command(command)
    if command == "verify":
        from .verify import quick_file, run_quick

        path = quick_file(arguments[1:])
        if path is not None:
            finish_repairs([path])
            return run_quick(path)
    catch_termination()
    import argparse

    from ..container.lost_pages import guard

    guard()
    from importlib import import_module

    from .words import Parser

    module = import_module(f".{command.replace('-', '_')}", __name__)
    parser = Parser(
        prog=f"guild {command}",
        description=module.DESCRIPTION,
        epilog=getattr(module, "EPILOG", _EPILOG),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    try:
        parsed = parser.parse(arguments[1:])
    except SystemExit:  # argparse has printed the help
        return errors.EXIT_OK
    finish_repairs(vars(parsed).values())
    return int(module.run(parsed))


def finish_repairs(values: Iterable[object]) -> None:
    """Finishes the repairs of packs that are about to be used, where one was interrupted.

    Args:
        values: Arguments; those that name a pack with a journal beside it count.

    Raises:
        GpackError: A journal is damaged, or the pack cannot be written.
    """
    for value in (one for given in values for one in (given if isinstance(given, list) else [given])):
        if isinstance(value, str) and value and os.path.exists(os.path.realpath(value) + JOURNAL_SUFFIX):
            from ..repair.journal import finish
            from ..terminal.table import printable

            if finish(value):
                print(f"guild: note: {printable(value)}: a repair that was interrupted was finished", file=sys.stderr)


def _without_command(command: str) -> int:
    if command in ("-V", "--version"):
        from .. import __version__

        print(f"guild (gpack) {__version__}")
        return errors.EXIT_OK
    lines = [
        "usage: guild COMMAND [...]",
        "",
        "GPACK: one verified, mmap-ready file for a language model. `gpack` is the same program.",
        "",
        *(f"  {name:14}{text}" for name, text in COMMANDS.items()),
        "",
        "`guild COMMAND --help`, or `guild help COMMAND`, says more.",
        "",
        _EPILOG,
    ]
    if command in ("", "-h", "--help"):
        print("\n".join(lines))
        return errors.EXIT_OK if command else errors.EXIT_USAGE
    from .words import meant

    near = meant(command, [*COMMANDS, "help"])
    hint = f"the commands are {', '.join(COMMANDS)}"
    raise errors.UsageError(
        f"there is no command {command!r}", code="usage", hint=f"did you mean `guild {near}`? {hint}" if near else hint
    )
