"""Engines that sessions share: one for a model and its options, as long as somebody uses it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from ..model.load import LoadedModel
from .backends import Compute, engine_key
from .engine import Engine
from .options import DEFAULT_BATCH

_LOCK = threading.Lock()
_ENGINES: WeakKeyDictionary[LoadedModel, dict[tuple[Any, ...], SharedEngine]] = WeakKeyDictionary()


@dataclass(eq=False)
class SharedEngine:
    """An engine and how many use it.

    Attributes:
        lock: Held while the engine is made, so that others who want the same wait for it.
    """

    key: tuple[Any, ...]
    engines: dict[tuple[Any, ...], SharedEngine]
    lock: threading.Lock
    engine: Engine | None = None
    users: int = 0

    def release(self) -> None:
        """One user less; the last one closes the engine."""
        with _LOCK:
            self.users -= 1
            if self.users:
                return
            self.engines.pop(self.key, None)
        if self.engine is not None:
            self.engine.close()


def acquire(
    model: LoadedModel, *, threads: int | None, compute: Compute, batch: int, cpu: str | None, device: str
) -> SharedEngine:
    """The engine of a model for these options; `release` gives it back.

    Raises:
        GpackError: As `Engine`.
    """
    key = engine_key(device, threads=threads, compute=compute, cpu=cpu, batch=max(batch, DEFAULT_BATCH))
    with _LOCK:
        engines = _ENGINES.setdefault(model, {})
        shared = engines.setdefault(key, SharedEngine(key, engines, threading.Lock()))
        shared.users += 1
    try:
        with shared.lock:
            if shared.engine is None:
                shared.engine = Engine(
                    model,
                    threads=threads,
                    compute=compute,
                    batch=max(batch, DEFAULT_BATCH),
                    cpu=cpu,
                    device=device,
                    check_weights=False,
                )
    except BaseException:
        shared.release()
        raise
    return shared
