"""Settings of `config.json` that a known architecture cannot have: impossible ones are errors, others are reported.

What llama.cpp's code of an architecture does is fixed, and GGUF has no key for another way. A model that asks for one
is packed, but a run of it would give other values than its makers' code, so it says that it cannot be run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..container.strict_json import shorten
from .hf_architectures import Architecture
from .hf_config import HfConfig
from .hf_metadata import head_size, key_value_heads, recurrent_layers
from .hf_shapes import biased, has_output_gate
from .hf_streams import check_streams, stream_reasons

_ACTIVATIONS = ("silu", "swish")
_UNIT_EPSILON = 1e-6  # with which queries and keys of delta nets are made unit vectors


def check_values(architecture: Architecture, config: HfConfig) -> None:
    """Refuses hyperparameters that no model of the architecture can have.

    Raises:
        FormatError: `hf.config`, naming the key.
    """
    for name in ("hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings"):
        config.need(name)
    heads, groups = config.need("num_attention_heads"), key_value_heads(config)
    if heads % groups:
        raise config.fault("num_key_value_heads", f"it is {groups}, no divisor of the {heads} heads")
    size = head_size(config)
    if size % 2:
        raise config.fault("head_dim", f"it is {size}: a head is rotated in pairs")
    epsilon = config.number("rms_norm_eps")
    if epsilon is None or not 0 < epsilon < 1:
        raise config.fault("rms_norm_eps", f"it is {shorten(epsilon)}, and has to be above 0 and below 1")
    theta = config.rope_number("rope_theta")
    if theta is not None and theta <= 0:
        raise config.fault("rope_theta", f"it is {theta}, and has to be above 0")
    factor = config.rope_number("partial_rotary_factor")
    if factor is not None and not 0 < factor <= 1:
        raise config.fault("rope_parameters.partial_rotary_factor", f"it is {factor}, no part of a whole")
    if architecture.has_streams:
        check_streams(config, recurrent_layers(config)[0])
    if architecture.has_experts:
        experts, used = config.need("num_local_experts", "num_experts"), config.need("num_experts_per_tok")
        if used > experts:
            raise config.fault("num_experts_per_tok", f"it is {used}, the model has {experts} experts")
        config.need("moe_intermediate_size")


def untranslated(architecture: Architecture, config: HfConfig, names: Iterable[str]) -> list[str]:
    """Why a model of the architecture cannot be run with these settings, one sentence each.

    Args:
        names: Its tensors, as GGUF has them.

    Raises:
        FormatError: `hf.config`: a value is impossible.
    """
    reasons = [*_packing(config), *_attention(architecture, config), *_feed_forward(architecture, config)]
    factor = config.rope_number("partial_rotary_factor")
    if factor not in (None, 1.0) and not (architecture.is_linear or architecture.rotates_parts):
        reasons.append(f"partial_rotary_factor is {factor}: {architecture.name} rotates whole heads")
    allowed = {f"{name}.bias" for name in (*biased(architecture, config), "ssm_dt")}
    biases = [name for name in names if name.endswith(".bias") and name.split(".", 2)[-1] not in allowed]
    if biases:
        reasons.append(f"{len(biases)} biases are none that {architecture.name} has, the first is {biases[0]}")
    return reasons


def _packing(config: HfConfig) -> Iterator[str]:
    """How the weights are packed, where that is by a way that is not unpacked."""
    settings = config.outer.get("quantization_config", config.values.get("quantization_config"))
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    if isinstance(method, str) and method != "fp8":
        yield f"the weights are packed by {shorten(method)}, and are kept as they are"


def _attention(architecture: Architecture, config: HfConfig) -> Iterator[str]:
    values, name = config.values, architecture.name
    if values.get("attention_bias") is True and not architecture.has_biases and name not in ("qwen2", "glm4"):
        yield f"attention_bias is true: {name} has no biases in attention"
    if values.get("mlp_bias") is True and not architecture.has_biases:
        yield f"mlp_bias is true: {name} has no biases in its feed-forward layers"
    if architecture.is_linear and not has_output_gate(architecture, config):
        yield f"attn_output_gate is false: {name} gates the output of attention"
    epsilon = config.number("rms_norm_eps")
    if architecture.is_linear and epsilon is not None and abs(epsilon - _UNIT_EPSILON) > _UNIT_EPSILON / 1000:
        yield f"rms_norm_eps is {epsilon:g}: {name} takes it for heads of delta nets too, its makers {_UNIT_EPSILON:g}"
    if architecture.has_streams:
        yield from stream_reasons(config)
    if name == "smollm3" and (said := _rotates_otherwise(config)):
        yield said
    window = _window(config)
    if window is not None and not architecture.has_window:
        yield f"attention slides over a window of {window} tokens, which {name} has no key for"
    if not architecture.is_linear:
        kinds = set(config.strings("layer_types") or ()) - {"full_attention", "sliding_attention"}
        if kinds:
            yield f"layer_types names {shorten(min(kinds))}, which {name} has not"


def _rotates_otherwise(config: HfConfig) -> str | None:
    """Why the layers that rotate nothing are not every fourth, as GGUF's smollm3 has it; None where they are."""
    layers, listed = config.need("num_hidden_layers"), config.values.get("no_rope_layers")
    if listed is not None:
        usual = [int((number + 1) % 4 != 0) for number in range(layers)]
        return None if listed == usual else "no_rope_layers names other layers than every fourth, as smollm3 has it"
    interval = config.count("no_rope_layer_interval")
    return None if interval in (None, 4) else f"no_rope_layer_interval is {interval}: that of smollm3 is 4"


def _window(config: HfConfig) -> int | None:
    """The window of sliding attention; None where no token that the model can have lies outside of it."""
    window, values = config.count("sliding_window"), config.values
    if not window or window >= config.need("max_position_embeddings") or values.get("use_sliding_window") is False:
        return None
    types = config.strings("layer_types")
    if types is not None:
        return window if "sliding_attention" in types else None
    # Qwen's models begin to slide with this layer; Mistral's have neither key and slide everywhere.
    first = config.count("max_window_layers")
    slides = first is None or first < config.need("num_hidden_layers")
    return window if slides and (values.get("use_sliding_window") is True or config.model_type == "mistral") else None


def _feed_forward(architecture: Architecture, config: HfConfig) -> Iterator[str]:
    values, name = config.values, architecture.name
    for key in ("hidden_act", "hidden_activation"):
        said = values.get(key)
        if said is not None and said not in _ACTIVATIONS:
            yield f"{key} is {shorten(said)}: the feed-forward layers of {name} have silu"
    if not architecture.has_experts:
        return
    normalised = values.get("norm_topk_prob")
    # Where qwen3moe's files say nothing, its makers' code does not normalise; qwen35moe's always does.
    if normalised is not True and (normalised is not None or not architecture.is_linear):
        yield f"norm_topk_prob is {_word(normalised)}: {name} makes the chosen experts' weights sum to 1"
    step = config.count("decoder_sparse_step")
    if step not in (None, 1):
        yield f"decoder_sparse_step is {step}: every layer of {name} has experts"
    if values.get("mlp_only_layers"):
        yield f"mlp_only_layers is {shorten(values['mlp_only_layers'])}: every layer of {name} has experts"


def _word(value: Any) -> str:
    """A setting as JSON has it."""
    if value is None:
        return "not said"
    return str(value).lower() if isinstance(value, bool) else shorten(value)
