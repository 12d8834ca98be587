"""The models of a server: loaded when first asked for; where memory ends the least recently used goes."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..errors import GpackError
from ..generate.guild_model import GuildModel
from .failures import Failure
from .scheduler import Call
from .served import Served, Settings

LOG = logging.getLogger("gpack.serve")


@dataclass
class Slot:
    """A model that can be asked for.

    Attributes:
        name: What clients call it.
        load: Opens it.
        size: Bytes of its file.
        served: Where it is loaded.
        users: Requests that use it now.
    """

    name: str
    load: Callable[[], GuildModel]
    size: int
    served: Served | None = None
    users: int = 0


class Shelf:
    """Models by name. All methods belong to the event loop's thread."""

    def __init__(self, slots: Sequence[Slot], settings: Settings, *, budget: int | None = None) -> None:
        """Takes the models, none of which is loaded yet.

        Args:
            budget: Most bytes of the files of loaded models; None: all may be loaded.
        """
        self._slots = {slot.name: slot for slot in slots}  # the one that was used last comes last
        self._settings, self._budget = settings, budget
        self._loading = asyncio.Lock()
        self.is_closing = self.is_hurried = False

    @property
    def names(self) -> list[str]:
        """Of all models."""
        return list(self._slots)

    def loaded(self) -> Iterator[Served]:
        """The models that are loaded."""
        return iter([slot.served for slot in self._slots.values() if slot.served is not None])

    def slot(self, name: str | None) -> Slot:
        """A model by its name; without one the only one that there is.

        Raises:
            Failure: 404: there is none of this name.
        """
        if name is None and len(self._slots) == 1:
            return next(iter(self._slots.values()))
        found = self._slots.get(name or "")
        if found is None:
            names = ", ".join(self._slots)
            raise Failure(
                404, f"The model {name!r} does not exist; this server has {names}", "model_not_found", "model"
            )
        return found

    async def get(self, name: str | None) -> Slot:
        """A model that is loaded, held for a request; `release` gives it back.

        Raises:
            Failure: There is none of this name, or it cannot be loaded.
        """
        slot = self.slot(name)
        if self.is_closing:
            raise Failure(503, "The server is shutting down", "server_shutting_down")
        slot.users += 1
        try:
            if slot.served is None:
                async with self._loading:
                    if slot.served is None:
                        await self._load(slot)
        except BaseException:
            slot.users -= 1
            raise
        self._slots[slot.name] = self._slots.pop(slot.name)
        return slot

    @staticmethod
    def release(slot: Slot) -> None:
        """A request has ended."""
        slot.users -= 1

    async def _load(self, slot: Slot) -> None:
        await self._make_room(slot.size)
        loop = asyncio.get_running_loop()

        def post(calls: list[Call]) -> None:
            loop.call_soon_threadsafe(_call, calls)

        def load() -> Served:
            model = slot.load()
            try:
                return Served(slot.name, model, self._settings, post)
            except BaseException:
                model.close()
                raise

        try:
            slot.served = await asyncio.to_thread(load)
        except GpackError as error:
            LOG.error("%s could not be loaded: %s", slot.name, error)
            raise Failure(503, f"The model {slot.name!r} cannot be loaded: {error.message}", "model_loading") from error
        LOG.info("%s is loaded", slot.name)

    async def _make_room(self, size: int) -> None:
        if self._budget is None:
            return
        while True:
            loaded = [slot for slot in self._slots.values() if slot.served is not None]
            if sum(slot.size for slot in loaded) + size <= self._budget:
                return
            idle = [slot for slot in loaded if not slot.users]
            if not idle:
                if not loaded:
                    return  # larger than the budget by itself: it is what was asked for
                raise Failure(503, "Other models are in use, and there is no room for this one", "model_loading")
            await self._unload(idle[0])

    async def _unload(self, slot: Slot) -> None:
        served, slot.served = slot.served, None
        if served is not None:
            await asyncio.to_thread(served.close)

    async def close(self, finish: float) -> int:
        """Ends everything, after so many seconds or as soon as `is_hurried`; how many texts were cut."""
        self.is_closing = True
        loaded = list(self.loaded())
        for slot in self._slots.values():
            slot.served = None  # a second call finds nothing to do
        end = time.monotonic() + finish
        while any(served.is_busy for served in loaded) and not self.is_hurried and time.monotonic() < end:
            await asyncio.sleep(0.05)
        return sum(await asyncio.gather(*[asyncio.to_thread(served.close) for served in loaded]))


def _call(calls: list[Call]) -> None:
    for tell, event in calls:
        tell(event)


def size_of(path: str) -> int:
    """Bytes of a file; 0 where it is not there, which is for loading to say."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0
