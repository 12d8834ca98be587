"""When compiled code takes over from plain Python: once what was spent in plain Python is what loading it costs.

Nobody knows how much text a process will still encode. Whoever rents until the rents add up to the price, and buys
then, never pays more than twice what the best choice in hindsight would have cost; so it is done here. Both ways give
the same ids, so that only time depends on it. Costs are counted in characters of ordinary text in plain Python.
"""

from __future__ import annotations

import os
import sys
from zlib import crc32

# Loading takes 0.4 s, half of it numba's own import; a million characters in plain Python take 0.7 s.
LOADING = 500_000
LOADING_BESIDE_NUMBA = 250_000
# Compiling takes 8 s, as long as eleven million characters; but it is done once on a machine, not in each process.
COMPILING = 4_000_000
WHEN_LOADED = 500  # characters of a text from which compiled code is faster once it is there
LONGEST = 1 << 29  # bytes of a text up to which compiled code counts places in 32 bits
LONG_PIECE = 1000  # characters of a piece from which
LONG_PIECE_COST = 4  # each of them costs that many times as much: n log n


class Switch:
    """What was spent in plain Python, and whether compiled code is loaded; one for each file of kernels in a process.

    Attributes:
        spent: Characters of ordinary text, in plain Python, that took as long as all that was encoded.
        loaded: Compiled code was loaded and ran.
        possible: False once it turned out that numba is not installed.
    """

    def __init__(self, kernels: str, *uses: str) -> None:
        """Takes the names of the file of kernels and of those whose functions are compiled into them."""
        self.spent = 0
        self.loaded = False
        self.possible = True
        self._kernels = kernels
        self._files = (kernels, *uses)
        self._price = 0

    def pays(self, cost: int) -> bool:
        """Whether a text of that cost is for compiled code, as far as it may be loaded for it."""
        if not self.possible:
            return False
        if self.loaded:
            return cost >= WHEN_LOADED
        return self.spent + cost >= LOADING_BESIDE_NUMBA and self.spent + cost >= self.price()

    def price(self) -> int:
        """What it costs to load the compiled code, or to compile it where no machine code is on disk."""
        if not self._price:
            self._price = LOADING if self._on_disk() else COMPILING
        return LOADING_BESIDE_NUMBA if self._price == LOADING and "numba" in sys.modules else self._price

    def _on_disk(self) -> bool:
        """Whether numba has kept machine code of this file for this Python; where it looks is tried, nothing loaded."""
        folder = os.path.dirname(os.path.abspath(__file__))
        parent = os.path.basename(folder) + "_"
        places = [os.path.join(folder, "__pycache__")]
        user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        for place in (os.environ.get("NUMBA_CACHE_DIR"), os.path.join(user, "numba")):
            if place:
                places += [os.path.join(place, name) for name in _names(place) if name.startswith(parent)]
        try:
            first = f"{self._kernels}.encode_{fingerprint(*self._files)}-"
        except OSError:
            return False
        last = f".py{sys.version_info[0]}{sys.version_info[1]}{sys.abiflags}.nbi"
        return any(name.startswith(first) and name.endswith(last) for place in places for name in _names(place))


def fingerprint(*names: str) -> str:
    """Tells the sources of compiled code apart: it is part of the names under which numba keeps machine code.

    numba itself looks at one file only, and would go on with what was made of an older version of another.

    Raises:
        OSError: A source is not there.
    """
    value = 0
    for name in names:
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".py"), "rb") as file:
            value = crc32(file.read(), value)
    return f"{value:08x}"


def cost(text: str, pieces: list[str]) -> int:
    """What a text costs in plain Python, in characters of ordinary text."""
    if len(text) < LONG_PIECE:
        return len(text)
    long = sum(length for length in map(len, pieces) if length >= LONG_PIECE)
    return len(text) + (LONG_PIECE_COST - 1) * long


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


BYTE_PAIRS = Switch("kernels", "jitting", "split")
SCORES = Switch("spm_kernels", "jitting")
