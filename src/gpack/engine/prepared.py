"""A model made ready to run: its architecture, its checked hyperparameters, its weights; shared by all sessions."""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ..errors import FormatError
from ..generated.constants import SectionKind
from .architectures import Architecture, find
from .architectures.blocks import Hyperparameters, Model
from .backends.cpu.experts import ExpertPager
from .backends.cpu.store import Kernels
from .hyperparameters import MOST_WIDTH, Keys
from .weights import Weights

if TYPE_CHECKING:
    from ..model.load import GuildModel

_PREPARED: WeakKeyDictionary[GuildModel, Prepared] = WeakKeyDictionary()
_LOCK = threading.Lock()


class Prepared:
    """What sessions of one model share.

    Attributes:
        architecture: What it computes.
        h: The hyperparameters.
        w: The weights.
        n_vocab: Tokens of the vocabulary: rows of the embeddings.
    """

    def __init__(self, model: GuildModel) -> None:
        """Checks the metadata.

        Raises:
            FormatError, UnsupportedError: As `Session`.
        """
        keys = Keys(model.metadata, model.path)
        self.path = model.path
        self.w = Weights(model)
        self.architecture: Architecture = find(keys.architecture, model.path)
        self.h: Hyperparameters = self.architecture.read(keys, self.w)
        self.n_vocab = _vocabulary(model, self.w)
        self._experts = None if _is_mapped(model) else model.experts

    def model(self) -> Model:
        """What an architecture traces, for one session."""
        pager = ExpertPager(self._experts, self.path) if self._experts is not None and self.h.n_expert else None
        return Model(self.h, self.w, pager, self.n_vocab)

    def refuse_unread(self) -> None:
        """Refuses what would be left out, once a session was traced.

        Raises:
            FormatError: As `Weights.refuse_unread`.
        """
        self.w.refuse_unread(range(self.h.n_layer, self.h.n_layer + self.h.n_draft))


def prepare(model: GuildModel) -> Prepared:
    """A model made ready; a second call gives the same.

    Raises:
        FormatError, UnsupportedError: As `Session`.
    """
    with _LOCK:
        known = _PREPARED.get(model)
        if known is None:
            known = _PREPARED[model] = Prepared(model)
        return known


@cache
def kernels_of(variant: str) -> Kernels:
    """The kernels of a variant, shared by all models of the process."""
    return Kernels(variant)


def _is_mapped(model: GuildModel) -> bool:
    """Whether experts are read where they lie: unless the model was loaded to read them, or with a budget."""
    return model.experts is None or not model.pages_experts


def _vocabulary(model: GuildModel, w: Weights) -> int:
    dims = w.dims("token_embd.weight")
    if len(dims) != 2 or dims[1] > MOST_WIDTH * 64:
        raise FormatError(
            f"tensor token_embd.weight has the extents {list(dims)}: no matrix",
            code="engine.shape",
            path=model.path,
            field="token_embd.weight",
        )
    count = _n_tokens(model)
    if count is not None and count != dims[1]:
        raise FormatError(
            f"tensor token_embd.weight has {dims[1]} rows for a vocabulary of {count} tokens",
            code="engine.shape",
            path=model.path,
            field="token_embd.weight",
        )
    return dims[1]


def _n_tokens(model: GuildModel) -> int | None:
    """Tokens of the vocabulary; None where the model has none."""
    if model.pack is not None:
        if model.pack.container.find(SectionKind.TOKENIZER_BIN) is None:
            return None
        return len(model.pack.tokenizer_table)
    return model.array_length("tokenizer.ggml.tokens")
