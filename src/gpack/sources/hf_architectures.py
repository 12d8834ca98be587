"""The architectures whose tensors and configuration are translated to what a GGUF of the model has."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..container.strict_json import shorten
from .hf_config import HfConfig

_DECODER = re.compile(r".+(?:For(?:CausalLM|ConditionalGeneration)|LMHeadModel)")


@dataclass(frozen=True)
class Architecture:
    """How a family of models differs from a plain decoder.

    Attributes:
        name: GGUF's name.
        model_types: What `model_type` says.
        class_names: What `architectures` says, for configurations without a type.
        permutes_rope: The rows of q and k change from halves to neighbouring pairs.
        adds_one_to_norms: The file's norms are stored around 0.
        is_linear: Some layers are gated delta nets.
        norms_heads: q and k of each head are normed.
        has_experts: Layers have routed experts.
        has_streams: The hidden state is several streams (see hf_streams).
        norms_rows: q and k are normed as whole rows.
        fuses_qkv: One matrix has the rows of q, k and v.
        fuses_gate: One matrix, `ffn_up`, has the rows of gate, then those of up.
        norms: The norms of a layer.
        rotates_parts: A part of each head may be rotated.
        has_biases: There may be biases in attention and the feed-forward network.
        has_window: There is a key for a window of attention, in all layers.
    """

    name: str
    model_types: frozenset[str]
    class_names: frozenset[str]
    permutes_rope: bool = False
    adds_one_to_norms: bool = False
    is_linear: bool = False
    norms_heads: bool = False
    has_experts: bool = False
    has_streams: bool = False
    norms_rows: bool = False
    fuses_qkv: bool = False
    fuses_gate: bool = False
    norms: tuple[str, ...] = ("attn_norm", "ffn_norm")
    rotates_parts: bool = False
    has_biases: bool = False
    has_window: bool = False

    @property
    def constant(self) -> str:
        """The name among `gguf.MODEL_ARCH` whose map has its tensors' names, or those that it shares."""
        return "QWEN35MOE" if self.has_streams else self.name.upper()


ARCHITECTURES = (
    Architecture(
        "llama",
        frozenset({"llama", "mistral"}),
        frozenset({"LlamaForCausalLM", "MistralForCausalLM"}),
        permutes_rope=True,
        has_biases=True,
    ),
    Architecture(
        "mistral3",
        frozenset({"ministral3"}),
        frozenset({"Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"}),
        permutes_rope=True,
    ),
    Architecture(
        "granite", frozenset({"granite"}), frozenset({"GraniteForCausalLM"}), permutes_rope=True, has_biases=True
    ),
    Architecture(
        "smollm3", frozenset({"smollm3"}), frozenset({"SmolLM3ForCausalLM"}), permutes_rope=True, has_biases=True
    ),
    Architecture(
        "olmo2",
        frozenset({"olmo2"}),
        frozenset({"Olmo2ForCausalLM"}),
        norms_heads=True,
        norms_rows=True,
        norms=("post_attention_norm", "post_ffw_norm"),
    ),
    Architecture(
        "phi3",
        frozenset({"phi3"}),
        frozenset({"Phi3ForCausalLM"}),
        fuses_qkv=True,
        fuses_gate=True,
        rotates_parts=True,
        has_window=True,
    ),
    Architecture(
        "glm4",
        frozenset({"glm4"}),
        frozenset({"Glm4ForCausalLM"}),
        fuses_gate=True,
        norms=("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"),
        rotates_parts=True,
    ),
    Architecture("qwen2", frozenset({"qwen2"}), frozenset({"Qwen2ForCausalLM"})),
    Architecture("qwen3", frozenset({"qwen3"}), frozenset({"Qwen3ForCausalLM"}), norms_heads=True),
    Architecture(
        "qwen3moe", frozenset({"qwen3_moe"}), frozenset({"Qwen3MoeForCausalLM"}), norms_heads=True, has_experts=True
    ),
    Architecture(
        "qwen35",
        frozenset({"qwen3_5", "qwen3_5_text"}),
        frozenset({"Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"}),
        adds_one_to_norms=True,
        is_linear=True,
        norms_heads=True,
    ),
    Architecture(
        "qwen35moe",
        frozenset({"qwen3_5_moe", "qwen3_5_moe_text"}),
        frozenset({"Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"}),
        adds_one_to_norms=True,
        is_linear=True,
        norms_heads=True,
        has_experts=True,
    ),
    Architecture(
        "qwen4exp",
        frozenset({"qwen4_exp", "qwen4_exp_text"}),
        frozenset({"Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration"}),
        adds_one_to_norms=True,
        is_linear=True,
        norms_heads=True,
        has_experts=True,
        has_streams=True,
    ),
)


def find_architecture(config: HfConfig) -> Architecture | None:
    """The architecture of a model; None where it is none that is known."""
    for architecture in ARCHITECTURES:
        if config.model_type in architecture.model_types:
            return architecture
    if not config.model_type:
        for architecture in ARCHITECTURES:
            if not architecture.class_names.isdisjoint(config.class_names):
                return architecture
    return None


def class_reasons(architecture: Architecture, config: HfConfig) -> list[str]:
    """Why the model's class is not the plain decoder that its type stands for; empty where nothing says so.

    Embedding models, classifiers, reward models and draft heads have a known type and tensors of known names, but
    another class.
    """
    strange = [name for name in config.class_names if not _DECODER.fullmatch(name)]
    if strange:
        return [f"its class {shorten(strange[0])} is not a model that generates text"]
    own = [name for name in config.class_names if name not in architecture.class_names]
    if own and not config.is_wrapped and isinstance(config.outer.get("auto_map"), dict):
        return [f"its class {shorten(own[0])} is code of its own (auto_map), which may compute something else"]
    return []
