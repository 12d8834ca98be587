"""Architectures: one short file each, which says what a model computes; and the table of those that are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from ...errors import UnsupportedError
from ..graph import Graph, Value
from ..hyperparameters import Keys
from ..weights import Weights
from . import gemma3, glm4, granite, llama, mistral3, olmo2, phi3, qwen2, qwen3, qwen3moe, qwen4exp, qwen35, smollm3
from .blocks import Hyperparameters, Model, Traced


@dataclass(frozen=True)
class Architecture:
    """What an architecture's file says.

    Attributes:
        read: Checks the metadata and gives the hyperparameters.
        trace: Notes the forward pass; gives the normed hidden state of each token, or also what its draft layer goes on
            from, where that is something else.
        logits: Notes what turns these into logits.
        draft: Notes the first draft layer: from the next token and what the trunk gave for the one before it, to the
            same of its own; None where its draft layers are not known.
        draft_logits: Notes what turns that into logits.
    """

    read: Callable[[Keys, Weights], Hyperparameters]
    trace: Callable[[Graph, Model], Traced]
    logits: Callable[[Graph, Model, Value], Value]
    draft: Callable[[Graph, Model], Traced] | None = None
    draft_logits: Callable[[Graph, Model, Value], Value] | None = None

    @classmethod
    def of(cls, module: ModuleType) -> Architecture:
        """The architecture of a file."""
        draft, draft_logits = (getattr(module, name, None) for name in ("draft", "draft_logits"))
        return cls(module.read, module.trace, module.logits, draft, draft_logits)


# By general.architecture.
ARCHITECTURES = {
    "gemma3": Architecture.of(gemma3),
    "glm4": Architecture.of(glm4),
    "granite": Architecture.of(granite),
    "llama": Architecture.of(llama),
    "mistral3": Architecture.of(mistral3),
    "olmo2": Architecture.of(olmo2),
    "phi3": Architecture.of(phi3),
    "qwen2": Architecture.of(qwen2),
    "qwen3": Architecture.of(qwen3),
    "qwen3moe": Architecture.of(qwen3moe),
    "qwen35": Architecture.of(qwen35),
    "qwen35moe": Architecture.of(qwen35),
    "qwen4exp": Architecture.of(qwen4exp),
    "smollm3": Architecture.of(smollm3),
}


def find(name: str, path: str) -> Architecture:
    """The architecture of that name.

    Raises:
        UnsupportedError: `engine.architecture`: it is not known.
    """
    found = ARCHITECTURES.get(name)
    if found is None:
        raise UnsupportedError(
            f"the architecture {name!r} cannot be run",
            code="engine.architecture",
            path=path,
            field="general.architecture",
            hint=f"those that can: {', '.join(ARCHITECTURES)}",
        )
    return found
