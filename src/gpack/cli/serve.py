"""`guild serve`: the model answers many clients at once."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import errors
from .devices import add_device, chosen_device
from .loading import add_loading, load, number_of_bytes
from .run import draft_argument
from .running import add_engine_arguments
from .speaking import Remarks, remark

if TYPE_CHECKING:
    from types import FrameType

DESCRIPTION = """\
Serve models: to the clients of OpenAI and Anthropic, to curl, and to a page for people at /.

FILE is a pack or a GGUF. A model is called by its file's name without the ending, or as --model-alias says; the first
one is loaded at once, others when they are first asked for. The server listens on this machine alone unless --host says
otherwise. Ctrl-C, or SIGTERM, ends it: answers that have begun are finished, for at most --finish seconds.

spec/serving.md tells what each path takes."""

KEY_VARIABLE = "GPACK_API_KEY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="a .gpack or .gguf file; several are served by name")
    where = parser.add_argument_group("where")
    where.add_argument("--port", type=int, default=8080, metavar="N", help="port (default 8080); 0: one that is free")
    where.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address (default 127.0.0.1)")
    where.add_argument("--tls-cert", metavar="FILE", help="certificate chain (PEM), for https")
    where.add_argument("--tls-key", metavar="FILE", help="its private key (PEM)")
    who = parser.add_argument_group("who")
    who.add_argument(
        "--api-key-file", metavar="FILE", help=f"the key that clients must send (default: ${KEY_VARIABLE}, else none)"
    )
    who.add_argument(
        "--cors-origin", action="append", default=[], metavar="ORIGIN", help="pages that may ask; *: all; repeatable"
    )
    what = parser.add_argument_group("what")
    what.add_argument(
        "--model-alias",
        action="append",
        default=[],
        metavar="NAME",
        help="what clients call the model; may be repeated, in the order of the files",
    )
    what.add_argument("--ctx", type=int, metavar="N", help="most tokens of a text (default: the model's, at most 8192)")
    what.add_argument("--parallel", type=int, default=16, metavar="N", help="texts at a time (default 16)")
    what.add_argument("--queue", type=int, default=128, metavar="N", help="further requests that wait (default 128)")
    what.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds for an answer (default 600)")
    what.add_argument(
        "--idle", type=float, default=30.0, metavar="S", help="seconds that a client may stall (default 30)"
    )
    what.add_argument("--finish", type=float, default=20.0, metavar="S", help="seconds to end in (default 20)")
    what.add_argument(
        "--max-body", type=number_of_bytes, default=16 << 20, metavar="BYTES", help="of a request (default 16M)"
    )
    what.add_argument(
        "--state-budget", type=number_of_bytes, metavar="BYTES", help="of all texts (default: half of the free memory)"
    )
    what.add_argument(
        "--memory-budget", type=number_of_bytes, metavar="BYTES", help="of loaded models' files (default: no limit)"
    )
    what.add_argument(
        "--cache-dir", metavar="DIR", help="keep what was read of prompts there, from one run to the next"
    )
    what.add_argument("--log-requests", action="store_true", help="log each request, without its texts, on stderr")
    engine = parser.add_argument_group("engine")
    add_engine_arguments(engine)
    engine.add_argument(
        "--draft", type=draft_argument, default="auto", metavar="N", help="tokens to guess of each text (default auto)"
    )
    add_device(engine)
    add_loading(engine)


def run(args: argparse.Namespace) -> int:
    """Serves until it is told to end."""
    _check(args)
    try:
        import uvicorn

        from ..serve.app import Limits, build
        from ..serve.connection import Connection
        from ..serve.served import Settings
        from ..serve.shelf import Slot, size_of
    except ImportError as error:
        raise errors.UnsupportedError(
            f"serving needs the package {error.name}", code="serve.extra", hint=errors.install("serve")
        ) from error
    named = list(zip(_names(args), args.files, strict=True))
    slots = [Slot(name, partial(load, args, path), size_of(path)) for name, path in named]
    settings = Settings(
        parallel=args.parallel,
        queue=args.queue,
        n_ctx=args.ctx,
        threads=args.threads,
        compute=args.compute,
        cpu=args.cpu,
        device=chosen_device(args.device),
        cache_type=args.cache_type,
        draft=args.draft,
        state_bytes=args.state_budget,
        timeout=args.timeout,
        cache_dir=args.cache_dir,
    )
    limits = Limits(args.max_body, _key(args), tuple(args.cors_origin), args.idle, args.finish, logs=args.log_requests)
    listener = _listen(args)
    with listener, Remarks(), _logging():
        for slot in slots[1:]:
            slot.load().close()  # what cannot be served is said before anybody asks
        first = [slots[0].load()]
        slots[0].load = lambda: first.pop() if first else load(args, args.files[0])
        app = build(slots, settings, limits, budget=args.memory_budget)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            http=partial(Connection, idle=args.idle),  # type: ignore[arg-type]
            ws="none",
            ssl_certfile=args.tls_cert,
            ssl_keyfile=args.tls_key,
            timeout_graceful_shutdown=int(args.finish) + 2,
            server_header=False,
        )
        address = listener.getsockname()
        shown = f"[{address[0]}]" if ":" in address[0] else address[0]
        scheme = "https" if args.tls_cert else "http"
        names = ", ".join(slot.name for slot in slots)
        remark(f"guild: serving {names} at {scheme}://{shown}:{address[1]} (Ctrl-C ends)")
        _serve(config, listener, app.state.server, args.finish)
        if app.state.server.failure is not None:
            raise app.state.server.failure
    return errors.EXIT_OK


def _serve(config: Any, listener: socket.socket, served: Any, finish: float) -> None:
    """Runs the server; the first signal ends it kindly, the second cuts what is being written, the third all.

    Args:
        served: What the application is made of.
        finish: Seconds that answers may take to end; those that do not are told that they are cut.
    """
    import asyncio

    import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            def end(_number: int, _frame: FrameType | None) -> None:
                if served.shelf.is_hurried:
                    self.force_exit = True
                    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # it would show what was cut
                served.shelf.is_hurried = self.should_exit
                self.should_exit = served.shelf.is_closing = True

            before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            ending = asyncio.create_task(served.shelf.close(finish))
            await super().shutdown(sockets)
            await ending

    server = Server(config)
    served.failed = lambda: setattr(server, "should_exit", True)
    server.run(sockets=[listener])


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    """Requests and faults of the server on standard error."""
    log = logging.getLogger("gpack.serve")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = True


def _listen(args: argparse.Namespace) -> socket.socket:
    family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
    try:
        return socket.create_server((args.host, args.port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise errors.UsageError(
            f"cannot listen on {args.host}, port {args.port}: {getattr(error, 'strerror', None) or error}",
            code="serve.address",
            hint="another --port, or --port 0 for one that is free",
        ) from error


def _names(args: argparse.Namespace) -> list[str]:
    names = [Path(path).name.removesuffix(".gpack").removesuffix(".gguf") for path in args.files]
    if len(args.model_alias) > len(names):
        raise errors.UsageError("there are more --model-alias than files", code="usage")
    names[: len(args.model_alias)] = args.model_alias
    if len(set(names)) < len(names):
        raise errors.UsageError(
            "two models have one name", code="usage", hint="--model-alias gives them names, in the order of the files"
        )
    return names


def _key(args: argparse.Namespace) -> str | None:
    if args.api_key_file is None:
        return os.environ.get(KEY_VARIABLE) or None
    try:
        key = Path(args.api_key_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise errors.PathError(f"the key cannot be read: {error}", code="io.read", path=args.api_key_file) from error
    if not key:
        raise errors.UsageError("the key is empty", code="usage", path=args.api_key_file)
    return key


def _check(args: argparse.Namespace) -> None:
    """Refuses what makes no sense before anything is loaded."""
    for name, least in (("parallel", 1), ("queue", 0), ("threads", 1), ("ctx", 1), ("max_body", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise errors.UsageError(f"--{name.replace('_', '-')} is {value}", code="usage", field=name)
    if not 0 <= args.port < 1 << 16:
        raise errors.UsageError(f"--port is {args.port}", code="usage", field="port")
    if args.timeout <= 0 or args.idle <= 0 or args.finish < 0:
        raise errors.UsageError("--timeout, --idle and --finish are seconds", code="usage")
    if (args.tls_cert is None) != (args.tls_key is None):
        raise errors.UsageError("--tls-cert and --tls-key belong together", code="usage")
    for path in (args.tls_cert, args.tls_key):
        if path is not None and not os.path.isfile(path):
            raise errors.PathError("there is no such file", code="io.not_found", path=path)
