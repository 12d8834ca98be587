"""A program as data: launches of kernels, some of whose numbers are known when a step is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .driver import Driver


@dataclass(frozen=True)
class Late:
    """A number that a step says: of its rows, for instance, or where its tables are.

    Attributes:
        name: What the step calls it.
        times, per: It is multiplied by the one, divided by the other and rounded up.
    """

    name: str
    times: int = 1
    per: int = 1

    def of(self, numbers: Mapping[str, int]) -> int:
        """The number in a step."""
        return -(-numbers[self.name] * self.times // self.per)


Number = float | Late


@dataclass(frozen=True)
class Launch:
    """A kernel at work: how many blocks of how many threads, and its arguments, pointers as addresses."""

    kernel: str
    grid: tuple[int | Late, int | Late]
    threads: int
    args: tuple[Number, ...]


def run(driver: Driver, launches: Sequence[Launch], numbers: Mapping[str, int]) -> None:
    """Launches in order; those that a step has no blocks for are left out."""
    for launch in launches:
        x, y = (n.of(numbers) if isinstance(n, Late) else n for n in launch.grid)
        if x and y:
            args = [n.of(numbers) if isinstance(n, Late) else n for n in launch.args]
            driver.launch(launch.kernel, (x, y), launch.threads, args)
