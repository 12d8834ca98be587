"""The state that a layer keeps of a text from one step to the next, as the operations of an architecture declare it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KeyValues:
    """Keys and values of all positions, or of a window.

    Attributes:
        window: Newest positions that a row sees, its own among them; 0: all.
    """

    n_head_kv: int
    head_dim: int
    window: int = 0


@dataclass(frozen=True)
class IndexedKeyValues(KeyValues):
    """Keys and values of all positions, and of each an index key, by which blocks of positions are chosen.

    Attributes:
        index_dim: Elements of an index key, which are kept as floats whatever the type of the cache.
    """

    index_dim: int = 1


@dataclass(frozen=True)
class Convolution:
    """The inputs of a causal convolution's last `rows` positions, `width` channels each."""

    rows: int
    width: int


@dataclass(frozen=True)
class DeltaMatrices:
    """A matrix [key_dim, value_dim] for each of n_head heads, which every position changes."""

    n_head: int
    key_dim: int
    value_dim: int


Recurrent = Convolution | DeltaMatrices
LayerState = KeyValues | Convolution | DeltaMatrices


@dataclass(frozen=True)
class StateId:
    """One state of a graph: operations name it, texts have memory for it.

    Attributes:
        layer: Of the model.
        kind: What is kept.
        role: Tells states apart that are otherwise alike.
    """

    layer: int
    kind: LayerState
    role: str = ""

    def __str__(self) -> str:
        return f"layer {self.layer}: {self.kind}{self.role and f' of {self.role}'}"
