"""The orders in which GGUF has rows and columns that Hugging Face has otherwise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .hf_config import HfConfig
from .hf_tensor import Order


def neighbouring_pairs(rows: int, heads: int) -> Order:
    """Rows of q or k for a rotation of neighbouring pairs, from rows for one of halves: 2i is i, 2i + 1 is i + d/2."""
    order: Order = np.arange(rows).reshape(heads, 2, -1).swapaxes(1, 2).ravel()
    return order


@dataclass(frozen=True)
class ValueHeads:
    """Value heads of a gated delta net: files have those of a key head together, GGUF the first of each, then the next.

    Attributes:
        key_heads, value_heads: Their numbers.
        key_size, value_size: Elements of a head.
    """

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int

    @classmethod
    def of(cls, config: HfConfig) -> ValueHeads:
        """The heads of a model.

        Raises:
            FormatError: `hf.config`: the numbers are missing or do not fit.
        """
        made = cls(
            config.need("linear_num_key_heads"),
            config.need("linear_num_value_heads"),
            config.need("linear_key_head_dim"),
            config.need("linear_value_head_dim"),
        )
        if made.value_heads % made.key_heads:
            raise config.fault(
                "linear_num_value_heads", f"it is {made.value_heads}, no multiple of {made.key_heads} key heads"
            )
        return made

    @property
    def mixed_rows(self) -> int:
        """Rows of the projection to q, k and v together."""
        return 2 * self.key_heads * self.key_size + self.value_heads * self.value_size

    def order(self, size: int) -> Order:
        """Rows of all value heads, `size` to a head."""
        heads = np.arange(self.value_heads).reshape(self.key_heads, -1).T.ravel()
        order: Order = (heads[:, None] * size + np.arange(size)).ravel()
        return order

    def mixed_order(self) -> Order:
        """Rows of q, k and v together; those of q and k stay."""
        before = 2 * self.key_heads * self.key_size
        order: Order = np.concatenate([np.arange(before), before + self.order(self.value_size)])
        return order
