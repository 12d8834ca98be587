"""A pool of memory for the states of texts, with a byte budget."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import UsageError
from ..backends.base import Backend, Layout, Memory


@dataclass(eq=False)
class Block:
    """Memory of one layout. Texts and checkpoints share it by referring to it; the last reference gives it back.

    Attributes:
        writer: The one text that may write here.
        shared: Positions below this one are seen by others too: even the writer leaves them alone.
    """

    memory: Memory
    layout: Layout
    writer: object
    shared: int = 0

    @property
    def id(self) -> int:
        """What a step names it by."""
        return self.memory.id


class _Lease(weakref.ref[Block]):
    """Tells when a block has ended, and what memory it leaves."""

    layout: Layout
    memory: Memory


class Pool:
    """Hands out blocks, from any thread.

    What comes back is kept for the next who asks, and freed where another layout needs the bytes.

    Ctrl-C may come wherever a call ends. So what is counted and what it counts change with no call between them, and
    blocks come back by a call that is not Python's: an exception in a finaliser would be lost, and the memory with it.

    Attributes:
        budget: Most bytes of all blocks.
        relief: Called where the budget is reached: gives back what can be done without, and says whether there was any.
            They may not ask for blocks.
    """

    def __init__(self, backend: Backend, budget: int) -> None:
        self.backend, self.budget = backend, budget
        self.relief: list[weakref.WeakMethod[Callable[[], bool]]] = []
        self._lock = threading.Lock()
        self._leases: set[_Lease] = set()
        self._returned: deque[weakref.ref[Block]] = deque()  # leases of blocks that have ended
        self._free: dict[Layout, list[Memory]] = {}
        self._used = self._kept = 0  # bytes that are referred to, and that are free

    @property
    def used(self) -> int:
        """Bytes of all blocks that somebody refers to."""
        with self._lock:
            self._collect()
            return self._used

    def take(self, layout: Layout, writer: object) -> Block:
        """A block with undefined contents.

        Raises:
            UsageError: `engine.budget`: the budget does not allow it, or the device has no memory left.
        """
        with self._lock:
            self._collect()
            memory = self._again(layout) or self._new(layout)
            block = Block(memory, layout, writer)
            lease = _Lease(block, self._returned.append)
            lease.layout, lease.memory = layout, memory
            self._used += memory.nbytes
            self._leases.add(lease)
            return block

    def copy(self, block: Block, writer: object) -> Block:
        """A block with the same contents.

        Raises:
            UsageError: As `take`.
        """
        made = self.take(block.layout, writer)
        self.backend.copy(block.layout, block.memory, made.memory)
        return made

    def _collect(self) -> None:
        while self._returned:
            lease = self._returned[0]
            assert isinstance(lease, _Lease)
            waiting, memory = self._free.setdefault(lease.layout, []), lease.memory
            self._leases.discard(lease)
            self._used -= memory.nbytes
            self._returned.popleft()
            self._kept += memory.nbytes
            waiting.append(memory)

    def _again(self, layout: Layout) -> Memory | None:
        waiting = self._free.get(layout)
        if not waiting:
            return None
        memory = waiting[-1]
        self._kept -= memory.nbytes
        waiting.pop()
        return memory

    def _new(self, layout: Layout) -> Memory:
        size = layout.nbytes
        if self._used + self._kept + size > self.budget:
            self._kept = 0
            self._free.clear()
        while self._used + size > self.budget and any(method() for ref in self.relief if (method := ref()) is not None):
            self._collect()
            self._kept = 0
            self._free.clear()
        if self._used + size > self.budget:
            raise UsageError(
                f"the states of all texts would take {self._used + size} bytes, the budget is {self.budget}",
                code="engine.budget",
                field="state_bytes",
                hint="close or truncate texts, or allow more bytes",
            )
        try:
            return self.backend.allocate(layout)
        except MemoryError as error:
            raise UsageError(
                f"there is no memory for {size} more bytes of state", code="engine.budget", field="state_bytes"
            ) from error
