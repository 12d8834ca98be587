"""Tables that kernels look codes up in: where each begins in one array of 32-bit words. Nothing here imports numba."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# Grids of two or one words of four int8 to a point, and how many points they have.
_GRIDS = (("IQ2_XXS", 2, 256), ("IQ2_XS", 2, 512), ("IQ2_S", 2, 1024), ("IQ3_XXS", 1, 256), ("IQ3_S", 1, 512))
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# Twice the values of E2M1.
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

IQ4_AT = 0
E2M1_AT = 16
IQ2_XXS_AT = 32
IQ2_XS_AT = IQ2_XXS_AT + 2 * 256
IQ2_S_AT = IQ2_XS_AT + 2 * 512
IQ3_XXS_AT = IQ2_S_AT + 2 * 1024
IQ3_S_AT = IQ3_XXS_AT + 256
TABLE_WORDS = IQ3_S_AT + 512


def tables() -> npt.NDArray[np.int32]:
    """The array; the grids are those of the `gguf` package."""
    from gguf import quants

    parts = [np.array(_IQ4, np.int32), np.array(_E2M1, np.int32)]
    for name, words, points in _GRIDS:
        codec = getattr(quants, name)
        codec.init_grid()
        grid = np.ascontiguousarray(codec.grid, np.float32).astype(np.int8).reshape(-1).view("<i4")
        assert len(grid) == words * points
        parts.append(grid)
    return np.concatenate(parts)
