"""What libFuzzer writes while it runs: executions, edges, and what it found."""

from __future__ import annotations

import re
from collections import deque

_LINE = re.compile(r"^#(\d+)\s+\w+\s+cov: (\d+) ")
_KEPT = 200  # lines, of which a finding's report is the end


class FuzzerLog:
    """Lines of libFuzzer's standard error, as they come.

    Attributes:
        edges: Edges that were reached.
        last_edge: The execution that found the last of them.
        seeded: The execution from which on inputs were mutated: those before are the corpus.
    """

    def __init__(self) -> None:
        self.edges = self.last_edge = self.seeded = 0
        self._lines: deque[str] = deque(maxlen=_KEPT)

    def take(self, line: str) -> None:
        """One more line."""
        self._lines.append(line.rstrip())
        found = _LINE.match(line)
        if found is None:
            return
        number, edges = int(found[1]), int(found[2])
        if " INITED " in line.replace("\t", " "):
            self.seeded = number
        if edges > self.edges:
            self.edges, self.last_edge = edges, number

    def told(self) -> str:
        """The end of what was written, without the lines that only say how it goes."""
        return "\n".join(line for line in self._lines if not line.startswith("#"))
