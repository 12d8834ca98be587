"""Where everything lies in a block of keys and values, and in a recurrent state, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ....errors import UsageError
from ...graph.graph import Graph
from .layout import BLOCK_POSITIONS, CACHE_TYPES, STATE_COLUMNS

# Bytes of one number, and the multiple that heads are padded to; Q8_0 adds a 16-bit scale to each 32.
_BYTES = {"F32": 4.0, "F16": 2.0, "Q8_0": 1.0 + 2 / 32}
_PADDING = {"F32": 16, "F16": 16, "Q8_0": 32}


@dataclass(frozen=True)
class LayerBlock:
    """Where the keys and values of one layer are in a block.

    Attributes:
        n_head_kv: Key/value heads.
        head_dim: Numbers of a head.
        padded: Numbers of a head, with its padding.
        head_bytes: Bytes of 64 positions of a head: of its keys, and as many of its values.
        keys, values: Bytes from the block's beginning to those of head 0; the other heads follow each other.
        index_dim: Elements of an index key; 0: there are none.
        index: Bytes from the block's beginning to its index keys, float32 [64, index_dim].
    """

    n_head_kv: int
    head_dim: int
    padded: int
    head_bytes: int
    keys: int
    values: int
    index_dim: int = 0
    index: int = 0


@dataclass(frozen=True)
class BlockLayout:
    """A block: one piece of memory for 64 positions of all layers of a group. How keys and values lie in it is
    described in kernels/heads.py. A block begins at a cache line; its memory need not be zeros.

    Attributes:
        cache_type: F32, F16 or Q8_0.
        layers: In the order of the group.
        nbytes: Of a block, a multiple of 64.
    """

    cache_type: str
    layers: tuple[LayerBlock, ...]
    nbytes: int

    @classmethod
    def of(cls, cache_type: str, heads: Sequence[tuple[int, int] | tuple[int, int, int]]) -> BlockLayout:
        """The layout for a type of cache and layers with such n_head_kv and head_dim, and index_dim where there is one.

        Raises:
            UsageError: There is no such type.
        """
        if cache_type not in CACHE_TYPES:
            raise UsageError(
                f"there is no cache of type {cache_type!r}",
                code="usage",
                field="cache_type",
                hint=", ".join(CACHE_TYPES),
            )
        made, end = [], 0
        for n_head_kv, head_dim, *rest in heads:
            padded = -(-head_dim // _PADDING[cache_type]) * _PADDING[cache_type]
            head_bytes = int(BLOCK_POSITIONS * padded * _BYTES[cache_type])
            values = end + n_head_kv * head_bytes
            index, index_dim = values + n_head_kv * head_bytes, sum(rest)
            made.append(LayerBlock(n_head_kv, head_dim, padded, head_bytes, end, values, index_dim, index))
            end = index + 4 * BLOCK_POSITIONS * index_dim
        return cls(cache_type, tuple(made), end)


@dataclass(frozen=True)
class RecurrentLayer:
    """The state of one recurrent layer: a convolution's window, and a matrix for each head, or one of the two.

    Attributes:
        n_channels, d_conv: Of the convolution: channels, and how many positions it reaches over, the row's own among
            them; 0 and 1: there is none.
        n_head, d_key, d_value: Of the matrices: heads, rows and columns; 0: there are none.
        window, matrices: Bytes from the state's beginning; the layouts are described in kernels/recurrent.py.
    """

    n_channels: int
    d_conv: int
    n_head: int
    d_key: int
    d_value: int
    window: int = 0
    matrices: int = 0


@dataclass(frozen=True)
class StateLayout:
    """The recurrent state of a text: one piece of memory for all layers of a set, which begins at a cache line.

    A new text's state may be zeros, or be read at the address 0.

    Attributes:
        layers: In the order of the set, with their places.
        nbytes: Of a state, a multiple of 64.
    """

    layers: tuple[RecurrentLayer, ...]
    nbytes: int

    @classmethod
    def of(cls, layers: Sequence[RecurrentLayer]) -> StateLayout:
        """The layout for layers of such sizes, whose places are not read."""
        made, end = [], 0
        for layer in layers:
            matrices = end + _lines(4 * (layer.d_conv - 1) * layer.n_channels)
            columns = -(-layer.d_value // STATE_COLUMNS) * STATE_COLUMNS
            made.append(replace(layer, window=end, matrices=matrices))
            end = matrices + 4 * layer.n_head * layer.d_key * columns
        return cls(tuple(made), end)


@dataclass(frozen=True)
class KeptLayout:
    """What is kept of rows so that recurrent states can be brought to any of them: float32, row by row.

    Attributes:
        row_bytes: Of a row: what each recurrent operation of the graph needs of it, one after the other.
        rows: How many there is room for.
    """

    row_bytes: int
    rows: int

    @classmethod
    def of(cls, graph: Graph, rows: int = 1) -> KeptLayout:
        """The layout for so many rows of a graph."""
        widths = [part.width for operation in graph.recurrences for part in operation.kept()]
        return cls(4 * sum(widths), rows)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, a multiple of 64."""
        return _lines(self.rows * self.row_bytes)


def _lines(nbytes: int) -> int:
    return -(-nbytes // 64) * 64
