"""The command line: `guild`, also called `gpack`. One small module for each command.

Only the module of the command that was asked for is imported, so that `guild verify --quick` starts at once.
"""

from __future__ import annotations

import os
import sys

from .. import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import NoReturn

# Command to its module and what it does, in the order of `--help`.
COMMANDS = {
    "convert": "convert a model, a GGUF or safetensors, into a pack",
    "verify": "check a pack: every rule of the format, the SHA-256 of every byte",
    "inspect": "show what a pack or a GGUF holds",
    "diff": "show what differs between two packs",
    "pack-experts": "turn a pack with external experts into one with everything inside",
    "export": "write the GGUF that a pack was made from",
    "run": "let a model answer: one prompt, or a conversation",
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


def guarded(program: str, run: Callable[[], int], *, as_json: bool) -> int:
    """What `run` returns; whatever it raises is told as every program of this package tells it.

    Args:
        program: Its name, for messages.
        as_json: Errors come as JSON on standard output.

    Returns:
        The exit code.
    """
    mark = _count_renamed()
    try:
        _replace_closed()
        _print_anything()
        status = run()
        sys.stdout.flush()
        return status
    except errors.GpackError as error:
        return _fail(error, program=program, as_json=as_json)
    except BrokenPipeError:
        _drop_output()
        return errors.EXIT_OK
    except KeyboardInterrupt:
        interrupted = errors.InterruptedRunError(f"interrupted; {_changed_since(mark)}", code="interrupted")
        return _fail(interrupted, program=program, as_json=as_json)
    except OSError as error:
        return _fail_io(error, program=program, as_json=as_json)
    except MemoryError:
        return _fail(errors.PathError("out of memory", code="io.memory"), program=program, as_json=as_json)
    except Exception as error:
        if os.environ.get("GPACK_DEBUG"):
            raise
        internal = errors.InternalError(
            f"{type(error).__name__}: {error}",
            code="internal",
            hint="please report it; GPACK_DEBUG=1 shows the traceback",
        )
        return _fail(internal, program=program, as_json=as_json)


def _count_renamed() -> int:
    """How many outputs this process has written so far; what writes them is only imported by commands that write."""
    atomic = sys.modules.get("gpack.container.atomic")
    return 0 if atomic is None else int(atomic.count_renamed())


def _changed_since(mark: int) -> str:
    """Which outputs were written, for the message of an interrupt: one that comes late changes nothing any more."""
    atomic = sys.modules.get("gpack.container.atomic")
    written = [] if atomic is None else atomic.files_in_place(mark)
    if not written:
        return "no file was changed"
    return f"{' and '.join(map(str, written))} {'is' if len(written) == 1 else 'are'} in place, whole"


def _run(arguments: list[str]) -> int:
    command = arguments[0] if arguments else ""
    if command not in COMMANDS:
        return _without_command(command)
    if command == "verify":
        from .verify import quick_file, run_quick

        path = quick_file(arguments[1:])
        if path is not None:
            return run_quick(path)
    catch_termination()
    import argparse
    from importlib import import_module

    class Parser(argparse.ArgumentParser):
        """Complaints become errors of ours, so that they come as JSON too and share one way out."""

        def error(self, message: str) -> NoReturn:
            raise errors.UsageError(message, code="usage", hint=f"`{self.prog} --help` shows the arguments")

    module = import_module(f".{command.replace('-', '_')}", __name__)
    parser = Parser(
        prog=f"guild {command}",
        description=module.DESCRIPTION,
        epilog=getattr(module, "EPILOG", _EPILOG),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    try:
        # Options may stand between positional arguments; after "--" everything is positional.
        rest = arguments[1:]
        parsed = parser.parse_args(rest) if "--" in rest else parser.parse_intermixed_args(rest)
    except SystemExit:  # argparse has printed the help
        return errors.EXIT_OK
    return int(module.run(parsed))


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
        "`guild COMMAND --help` tells more.",
        "",
        _EPILOG,
    ]
    if command in ("", "-h", "--help"):
        print("\n".join(lines))
        return errors.EXIT_OK if command else errors.EXIT_USAGE
    raise errors.UsageError(
        f"there is no command {command!r}", code="usage", hint=f"the commands are {', '.join(COMMANDS)}"
    )


def _fail(error: errors.GpackError, *, program: str, as_json: bool) -> int:
    if as_json:
        import json

        try:
            print(json.dumps({"ok": False, "error": error.to_dict()}, indent=2), flush=True)
        except OSError:
            _drop_output()
    else:
        from ..terminal.table import printable

        # Names in it come from the file.
        print(printable(f"{program}: error: {error}"), file=sys.stderr)
    return error.exit_code


def _fail_io(error: OSError, *, program: str, as_json: bool) -> int:
    """An error of the system that no module has made one of ours: about a file, or about our own output."""
    reason = error.strerror or str(error)
    if error.filename is not None:
        return _fail(errors.PathError(reason, code="io.read", path=error.filename), program=program, as_json=as_json)
    _drop_output()
    unwritten = errors.PathError(f"cannot be written: {reason}", code="io.write", path="standard output")
    return _fail(unwritten, program=program, as_json=False)


def _drop_output() -> None:
    """Our output cannot be written, and what is still buffered goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _replace_closed() -> None:
    """An output that the caller closed (`>&-`) takes everything and keeps nothing, and no file gets its number."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def _print_anything() -> None:
    """Characters that the output's encoding lacks come out as escapes instead of as an error."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def catch_termination() -> None:
    """SIGTERM and a closed terminal unwind like Ctrl-C, so that temporary files go away."""
    import signal
    import threading

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # Outside the main thread it is somebody else's program, which keeps its own handlers.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` means it
            signal.signal(signal.SIGHUP, stop)
