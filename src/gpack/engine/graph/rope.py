"""Rotary position embedding: the angles of positions, worked out in float64.

Sources: Su et al., RoFormer (2021); Peng et al., YaRN (2023), with the magnitude and the corner frequencies that
llama.cpp uses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_MOST_ANGLE = 1e100  # of position 1; beyond any model, and finite at any position


@dataclass(frozen=True)
class Rope:
    """How positions turn queries and keys.

    Attributes:
        n_rotated: Elements of a head that are turned, in pairs.
        base: Frequency j of n_rotated / 2 is base^(-2 j / n_rotated).
        interleaved: Pairs are (2 j, 2 j + 1); else (j, j + n_rotated / 2), which is called neox.
        factor: Positions are divided by it (`linear`), or low frequencies are (`yarn`).
        yarn: What YaRN needs; None where it is not used.
        divisors: Frequencies are divided by them; None: they are not.
        gain: Cosines and sines are multiplied by it, whatever YaRN does.
    """

    n_rotated: int
    base: float
    interleaved: bool
    factor: float = 1.0
    yarn: Yarn | None = None
    divisors: tuple[float, ...] | None = None
    gain: float = 1.0

    def frequencies(self) -> npt.NDArray[np.float64]:
        """Angle of each pair at position 1."""
        j = np.arange(self.n_rotated // 2, dtype=np.float64)
        omega = self.base ** (-2 * j / self.n_rotated)
        if self.divisors is not None:
            omega = omega / np.array(self.divisors, np.float64)
        if self.yarn is None:
            return omega / self.factor
        ramp = self.yarn.ramp(self.n_rotated, self.base)
        scaled: npt.NDArray[np.float64] = omega * ((1 - ramp) / self.factor + ramp)
        return scaled

    def is_finite(self) -> bool:
        """Whether all angles are finite, at any position that there may be."""
        try:
            with np.errstate(all="ignore"):
                largest = np.abs(self.frequencies()).max()
        except OverflowError:  # corner frequencies of YaRN
            return False
        return bool(largest <= _MOST_ANGLE) and math.isfinite(self.magnitude())

    def magnitude(self) -> float:
        """What cosines and sines are multiplied by."""
        return self.gain * (
            1.0 if self.yarn is None else (1 + 0.1 * math.log(self.factor)) * self.yarn.attention_factor
        )


@dataclass(frozen=True)
class Yarn:
    """The parameters of YaRN.

    Attributes:
        n_original: Context length that the model was first trained on.
        beta_fast, beta_slow: Turns over that length above and below which a frequency is kept, or divided.
        attention_factor: Factor of the magnitude.
        truncates: The first and the last pair that are scaled in part are rounded to whole numbers.
    """

    n_original: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncates: bool = True

    def ramp(self, n_rotated: int, base: float) -> npt.NDArray[np.float64]:
        """1 where a frequency is kept, 0 where it is divided, for each pair."""

        def corner(turns: float) -> float:
            return n_rotated * math.log(self.n_original / (2 * math.pi * turns)) / (2 * math.log(base))

        first, last = corner(self.beta_fast), corner(self.beta_slow)
        if self.truncates:
            first, last = math.floor(first), math.ceil(last)
        low, high = max(0, first), min(n_rotated - 1, last)
        j = np.arange(n_rotated // 2, dtype=np.float64)
        made: npt.NDArray[np.float64] = 1 - np.clip((j - low) / max(0.001, high - low), 0, 1)
        return made
