"""How every program of this package begins and ends: errors in one form, exit codes, signals, closed outputs.

Standard library only, and light: `guild verify --quick` starts with it.
"""

from __future__ import annotations

import os
import sys

from .. import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


def guarded(program: str, run: Callable[[], int], *, as_json: bool) -> int:
    """What `run` returns; whatever it raises is reported as every program of this package reports it.

    Args:
        program: Its name, for messages.
        as_json: Errors come as JSON on standard output.

    Returns:
        The exit code.
    """
    mark = _count_renamed()
    _forget_lost_pages()
    try:
        _replace_closed()
        _print_anything()
        status = run()
        sys.stdout.flush()
        lost = _lost_pages()
        return status if lost is None else _fail(lost, program=program, as_json=as_json)
    except errors.GpackError as error:
        return _fail(_lost_pages() or error, program=program, as_json=as_json)
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
        internal = _lost_pages() or errors.InternalError(
            f"{type(error).__name__}: {error}",
            code="internal",
            hint="please report it; GPACK_DEBUG=1 shows the traceback",
        )
        return _fail(internal, program=program, as_json=as_json)


def _forget_lost_pages() -> None:
    """What was lost before this command began is none of its business."""
    pages = sys.modules.get("gpack.container.lost_pages")
    if pages is not None:
        pages.forget()


def _lost_pages() -> errors.GpackError | None:
    """That a mapped file was cut, which is the reason of whatever else went wrong."""
    pages = sys.modules.get("gpack.container.lost_pages")
    found: errors.GpackError | None = None if pages is None else pages.lost()
    return found


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


def _fail(error: errors.GpackError, *, program: str, as_json: bool) -> int:
    if as_json:
        import json

        try:
            print(json.dumps({"ok": False, "error": error.to_dict()}, indent=2), flush=True)
        except OSError:
            _drop_output()
    else:
        from .table import printable

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
