"""A model made ready to run: its architecture, its checked hyperparameters, its weights, its graphs.

Shared by all engines.
"""

from __future__ import annotations

import threading
from functools import cached_property
from weakref import WeakKeyDictionary

from ..errors import FormatError, GpackError
from ..generated.constants import SectionKind
from ..model.load import LoadedModel
from .architectures import Architecture, find
from .architectures.blocks import Hyperparameters, Model, Traced
from .graph import Graph, Value
from .hyperparameters import MOST_WIDTH, Keys
from .weights import Weights

_PREPARED: WeakKeyDictionary[LoadedModel, Prepared] = WeakKeyDictionary()
_LOCK = threading.Lock()


class Prepared:
    """What all engines of one model share.

    Attributes:
        architecture: What it computes.
        h: The hyperparameters.
        w: The weights.
        n_vocab: Tokens of the vocabulary: rows of the embeddings.
    """

    def __init__(self, model: LoadedModel) -> None:
        """Checks the metadata.

        Raises:
            FormatError, UnsupportedError: As `Engine`.
        """
        keys = Keys(model.metadata, model.path)
        self.path = model.path
        self.w = Weights(model)
        self.architecture: Architecture = find(keys.architecture, model.path)
        self.h: Hyperparameters = self.architecture.read(keys, self.w)
        self.n_vocab = _vocabulary(model, self.w)

    @cached_property
    def graphs(self) -> tuple[Graph, Graph]:
        """From tokens to rows that begin with the hidden state after the last norm, and from some of these to logits.

        Raises:
            FormatError: As `Engine`; `engine.tensor`: a tensor of the layers has no part in them.
        """
        model = Model(self.h, self.w, self.n_vocab)
        body = Graph()
        rows = _rows(body, self.architecture.trace(body, model))
        head = body.following()
        head.result(self.architecture.logits(head, model, self._hidden(head, rows)))
        self.w.refuse_unread(range(self.h.n_layer, self.h.n_layer + self.h.n_draft))
        return body, head

    @cached_property
    def draft(self) -> tuple[Graph, Graph] | str:
        """The first draft layer as two graphs, as `graphs` has them; or why there is none."""
        architecture = self.architecture
        if not self.h.n_draft:
            return "the model has no draft layer"
        if architecture.draft is None or architecture.draft_logits is None:
            return "the draft layers of this architecture are not known"
        model = Model(self.h, self.w, self.n_vocab)
        body = Graph()
        try:
            rows = _rows(body, architecture.draft(body, model))
            head = body.following()
            head.result(architecture.draft_logits(head, model, self._hidden(head, rows)))
            self.w.refuse_unread(range(self.h.n_layer + 1, self.h.n_layer + self.h.n_draft))
        except GpackError as error:
            return f"its draft layer cannot be used: {error}"
        return body, head

    @cached_property
    def seeds(self) -> slice:
        """The columns of a row that the draft layer goes on from: the hidden state, or what stands after it."""
        width = self.graphs[0].results[0].width
        return slice(self.h.n_embd, width) if width > self.h.n_embd else slice(0, width)

    def _hidden(self, g: Graph, rows: Value) -> Value:
        picked = g.pick(rows)
        return picked if rows.width == self.h.n_embd else g.columns(picked, 0, self.h.n_embd, 0, 1)


def _rows(g: Graph, traced: Traced) -> Value:
    return g.result(traced if isinstance(traced, Value) else g.concat(*traced))


def prepare(model: LoadedModel) -> Prepared:
    """A model made ready; a second call gives the same.

    Raises:
        FormatError, UnsupportedError: As `Engine`.
    """
    with _LOCK:
        known = _PREPARED.get(model)
        if known is None:
            known = _PREPARED[model] = Prepared(model)
        return known


def _vocabulary(model: LoadedModel, w: Weights) -> int:
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


def _n_tokens(model: LoadedModel) -> int | None:
    """Tokens of the vocabulary; None where the model has none."""
    if model.pack is not None:
        if model.pack.container.find(SectionKind.TOKENIZER_BIN) is None:
            return None
        return len(model.pack.tokenizer_table)
    return model.array_length("tokenizer.ggml.tokens")
