"""Places for a graph's values in one piece of device memory: they are used again when nobody reads them any more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...graph.graph import Graph
from ...graph.values import Routing, Value
from .driver import ALIGNMENT

Key = tuple[str, int]  # what is kept of a value: "x" itself, "codes" and "scales" of it in 8 bits, and so on


@dataclass
class Places:
    """Memory that is handed out and taken back; addresses count from 0.

    Attributes:
        end: Bytes that are needed.
    """

    end: int = 0
    _free: list[tuple[int, int]] = field(default_factory=list)  # sizes and places
    _taken: dict[Key, tuple[int, int]] = field(default_factory=dict)

    def take(self, key: Key, nbytes: int) -> int:
        """A place for something."""
        size = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        fitting = [each for each in self._free if each[0] >= size]
        if fitting:
            best = min(fitting)
            self._free.remove(best)
            if best[0] > size:
                self._free.append((best[0] - size, best[1] + size))
            at = best[1]
        else:
            at, self.end = self.end, self.end + size
        self._taken[key] = size, at
        return at

    def give_back(self, keys: Iterable[Key]) -> None:
        """Places may be used again."""
        for key in keys:
            if key in self._taken:
                self._free.append(self._taken.pop(key))

    def known(self, key: Key) -> int | None:
        """Where something is, as long as it is kept."""
        found = self._taken.get(key)
        return None if found is None else found[1]


def last_uses(graph: Graph) -> dict[int, list[Value | Routing]]:
    """For the number of each operation the values that nobody reads after it; results are read for ever."""
    last: dict[Value | Routing, int] = {}
    for number, operation in enumerate(graph.operations):
        last[operation.output] = number
        for value in operation.inputs():
            last[value] = number
    found: dict[int, list[Value | Routing]] = {}
    for value, number in last.items():
        if value not in graph.results:
            found.setdefault(number, []).append(value)
    return found
