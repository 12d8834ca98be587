"""What a graph computes with: values, parts of them, and a router's choice. None of them has memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Value:
    """Rows of floats that one operation makes: `per_token` rows of `width` elements for each row of a step.

    Attributes:
        number: Of the value in its graph; no two values of a graph share one.
    """

    number: int
    width: int
    per_token: int = 1

    def __str__(self) -> str:
        return f"%{self.number}"


@dataclass(frozen=True)
class Part:
    """Columns `first` to `first + width` of a value."""

    value: Value
    first: int
    width: int

    def __str__(self) -> str:
        return f"{self.value}[{self.first}:{self.first + self.width}]"

    @classmethod
    def of(cls, value: Value) -> Part:
        """All columns of a value."""
        return cls(value, 0, value.width)


@dataclass(frozen=True)
class Routing:
    """For each row of a step the `n_used` experts that a router chose, and their weights.

    Attributes:
        number: Of the routing; values of the same graph are numbered with it.
    """

    number: int
    n_used: int

    def __str__(self) -> str:
        return f"%{self.number}"
