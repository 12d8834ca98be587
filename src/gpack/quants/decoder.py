"""What every decoder of this package is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

# From uint8 rows [..., row bytes], contiguous along the row and made of whole blocks, to their values in order.
Decoder = Callable[[NDArray[np.uint8]], NDArray[np.float32]]
