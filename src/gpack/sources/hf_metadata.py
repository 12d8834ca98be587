"""`config.json` as the metadata that a GGUF of the model has: the same keys, types and order as its converter's.

Two values depend on what the converter's user types and where the folder lies, and are not taken from there:
`general.name` is the name that is given, else the architecture, for a pack does not depend on paths; and
`general.file_type` is that of the tensors as they are stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..container.strict_json import shorten
from ..generated.constants import MAX_LAYERS, GgmlType, MetadataType
from .hf_architectures import Architecture
from .hf_config import HfConfig, is_finite
from .metadata_build import MetadataBuilder

FILE_TYPE = "general.file_type"
NEXTN = "nextn_predict_layers"
MAX_HEAD = 1 << 16  # elements
QUANTIZATION_VERSION = 2  # of ggml's block formats; GGUF files say it
_SAMPLING = {
    "top_k": ("general.sampling.top_k", MetadataType.INT32),
    "top_p": ("general.sampling.top_p", MetadataType.FLOAT32),
    "min_p": ("general.sampling.min_p", MetadataType.FLOAT32),
    "temperature": ("general.sampling.temp", MetadataType.FLOAT32),
    "repetition_penalty": ("general.sampling.penalty_repeat", MetadataType.FLOAT32),
}
# GGUF's numbers of what most of a file's tensors are.
FILE_TYPES = {
    GgmlType.F32: 0,
    GgmlType.F16: 1,
    GgmlType.Q4_0: 2,
    GgmlType.Q4_1: 3,
    GgmlType.Q8_0: 7,
    GgmlType.Q5_0: 8,
    GgmlType.Q5_1: 9,
    GgmlType.Q4_K: 14,
    GgmlType.Q6_K: 18,
    GgmlType.BF16: 32,
    GgmlType.MXFP4: 38,
}


def build_general(
    metadata: MetadataBuilder, architecture: str, name: str | None, generation: Mapping[str, Any], size_label: str
) -> None:
    """Adds what every model says of itself, and how its makers sample from it."""
    metadata.text("general.architecture", architecture)
    metadata.text("general.type", "model")
    for key, (target, value_type) in _SAMPLING.items():
        value = generation.get(key)
        if not is_finite(value):
            continue
        if value_type == MetadataType.FLOAT32 or (isinstance(value, int) and 0 <= value < 1 << 31):
            metadata.scalar(target, value_type, value)
    metadata.text("general.name", name or architecture)
    metadata.text("general.size_label", size_label)


_COUNTS = {
    "context_length": ("max_position_embeddings", "n_ctx", "n_positions"),
    "embedding_length": ("hidden_size", "n_embd", "d_model"),
    "feed_forward_length": ("intermediate_size", "n_inner"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": ("num_key_value_heads",),
}


def build_parameters(
    metadata: MetadataBuilder, architecture: str, config: HfConfig, file_type: int | None, draft_layers: int
) -> list[str]:
    """Adds the hyperparameters that any architecture has, as far as the configuration tells them.

    Args:
        config: A strict one of a known architecture; one that is not leaves out what is of another kind than expected.
        draft_layers: Number of draft layers after the model's own.

    Returns:
        Why the model cannot be run, one sentence each.

    Raises:
        FormatError: `hf.config`: a value is impossible.
    """
    _add_counts(metadata, architecture, config, draft_layers)
    faults = _add_rope(metadata, architecture, config)
    epsilon = config.number("rms_norm_eps")
    if epsilon is not None:
        metadata.f32(f"{architecture}.attention.layer_norm_rms_epsilon", epsilon)
    experts = {"expert_count": ("num_local_experts", "num_experts"), "expert_used_count": ("num_experts_per_tok",)}
    for key, names in experts.items():
        if number := config.count(*names):
            metadata.u32(f"{architecture}.{key}", number)
    head = config.count("head_dim")
    if head:
        metadata.u32(f"{architecture}.attention.key_length", head)
        metadata.u32(f"{architecture}.attention.value_length", head)
    if file_type is not None:
        metadata.u32(FILE_TYPE, file_type)
    return faults


def _add_counts(metadata: MetadataBuilder, architecture: str, config: HfConfig, draft_layers: int) -> None:
    layers = config.count("num_hidden_layers", "n_layer", "n_layers")
    if layers is not None and layers > MAX_LAYERS:
        config.refuse("num_hidden_layers", f"no model has {layers} layers")
    elif layers is not None:
        metadata.u32(f"{architecture}.block_count", layers + draft_layers)
    for key, names in _COUNTS.items():
        value = config.count_or_list(*names)
        if isinstance(value, list):
            metadata.numbers(f"{architecture}.{key}", MetadataType.UINT32, value)
        elif value is not None:
            metadata.u32(f"{architecture}.{key}", value)


def _add_rope(metadata: MetadataBuilder, architecture: str, config: HfConfig) -> list[str]:
    sections = config.rope.get("mrope_section")
    fits = isinstance(sections, list) and 0 < len(sections) <= 4 and all(map(_is_small, sections))
    if sections is not None and not fits:
        config.refuse("rope_parameters.mrope_section", f"it is {shorten(sections)}, no list of up to 4 counts")
    elif sections is not None:
        padded = [*sections, 0, 0, 0][:4]
        metadata.numbers(f"{architecture}.rope.dimension_sections", MetadataType.INT32, padded)
    faults = _add_rope_scaling(metadata, architecture, config)
    theta = config.rope_number("rope_theta")
    if theta is not None:
        metadata.f32(f"{architecture}.rope.freq_base", theta)
    return faults


def _add_rope_scaling(metadata: MetadataBuilder, architecture: str, config: HfConfig) -> list[str]:
    kind = config.rope.get("rope_type")
    # llama3 becomes the tensor rope_freqs; mrope is default with sections.
    if kind in (None, "default", "llama3", "mrope"):
        return _unscaled(config)
    if kind == "longrope" and architecture == "phi3":
        return _unscaled(config)
    if kind not in ("linear", "yarn"):
        return [f"the rotary embedding is scaled by {shorten(kind)}, which has no translation"]
    prefix = f"{architecture}.rope.scaling"
    factor = config.rope_number("factor")
    if factor is None:
        config.refuse("rope_parameters.factor", f"it is missing, and {kind} needs it")
        return []
    metadata.text(f"{prefix}.type", str(kind))
    metadata.f32(f"{prefix}.factor", factor)
    if kind == "yarn":
        _add_yarn(metadata, prefix, config, factor)
    return [] if architecture == "mistral3" else _unscaled(config)


def _add_yarn(metadata: MetadataBuilder, prefix: str, config: HfConfig, factor: float) -> None:
    original: Any = config.rope.get("original_max_position_embeddings", config.count("max_position_embeddings"))
    if _is_small(original):
        metadata.u32(f"{prefix}.original_context_length", original)
    else:
        config.refuse("rope_parameters.original_max_position_embeddings", f"it is {shorten(original)}")
    names = {"extrapolation_factor": "yarn_ext_factor", "beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}
    for name, key in names.items():
        value = config.rope_number(name)
        if value is not None:
            metadata.f32(f"{prefix}.{key}", value)
    usual = _yarn_magnitude(factor, 1.0)
    said, (scale, scale_all) = (
        config.rope_number("attention_factor"),
        (config.rope_number("mscale"), config.rope_number("mscale_all_dim")),
    )
    if said is None and scale and scale_all:
        said = _yarn_magnitude(factor, scale) / _yarn_magnitude(factor, scale_all)
    if said is not None and not math.isclose(said, usual, rel_tol=1e-7):
        metadata.f32(f"{prefix}.attn_factor", said / (1 + 0.1 * math.log(factor)))
    if config.rope.get("truncate") is False:
        metadata.scalar(f"{prefix}.gpack_truncate", MetadataType.BOOL, False)


def _yarn_magnitude(factor: float, scale: float) -> float:
    """What `transformers` multiplies cosines and sines by, for a factor of positions and a parameter `mscale`."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _unscaled(config: HfConfig) -> list[str]:
    """Parameters of the rotary embedding that change its values and have no translation."""
    said = [key for key in ("llama_4_scaling_beta",) if config.rope.get(key)]
    return [f"rope_parameters.{key} is {shorten(config.rope[key])}, which has no translation" for key in said]


def build_specific(metadata: MetadataBuilder, architecture: Architecture, config: HfConfig, draft_layers: int) -> None:
    """Adds the hyperparameters that only a known architecture has.

    Raises:
        FormatError: `hf.config`: a value is missing or impossible.
    """
    prefix = architecture.name
    if architecture.permutes_rope:
        metadata.u32(f"{prefix}.vocab_size", config.need("vocab_size"))
        metadata.u32(f"{prefix}.rope.dimension_count", head_size(config))
    if architecture.rotates_parts:
        part = config.rope_number("partial_rotary_factor")
        metadata.u32(f"{prefix}.rope.dimension_count", int(head_size(config) * (1.0 if part is None else part)))
    _add_own(metadata, prefix, config)
    for key, name in (
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ):
        value = config.count(name)
        if value:
            metadata.u32(f"{prefix}.{key}", value)
    if architecture.is_linear:
        _add_linear(metadata, prefix, config, draft_layers)
    if draft_layers:
        metadata.u32(f"{prefix}.{NEXTN}", draft_layers)


def _add_own(metadata: MetadataBuilder, prefix: str, config: HfConfig) -> None:
    """Adds what one architecture alone has."""
    if prefix == "granite":
        for key, name in _GRANITE.items():
            value = config.number(name)
            metadata.f32(f"granite.{key}", 1.0 if value is None else value)
    if prefix == "phi3":
        window = config.count("sliding_window")
        if window:
            metadata.u32("phi3.attention.sliding_window", window)
        if config.rope.get("rope_type") == "longrope":
            original = original_length(config)
            metadata.u32("phi3.rope.scaling.original_context_length", original)
            metadata.f32("phi3.rope.scaling.attn_factor", _long_magnitude(config, original))
    beta = config.rope_number("llama_4_scaling_beta") if prefix == "mistral3" else None
    if beta:
        metadata.f32("mistral3.attention.temperature_scale", beta)


_GRANITE = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}


def original_length(config: HfConfig) -> int:
    """Positions that a model with scaled positions was first trained on.

    Raises:
        FormatError: `hf.config`.
    """
    said = config.rope.get("original_max_position_embeddings")
    return said if _is_small(said) and said else config.need("original_max_position_embeddings")


def _long_magnitude(config: HfConfig, original: int) -> float:
    """What LongRoPE multiplies cosines and sines by."""
    said = config.rope_number("attention_factor")
    if said is not None:
        return said
    factor = config.rope_number("factor") or config.need("max_position_embeddings") / original
    return 1.0 if factor <= 1 or original <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))


def _add_linear(metadata: MetadataBuilder, prefix: str, config: HfConfig, draft_layers: int) -> None:
    value_heads = config.need("linear_num_value_heads")
    metadata.u32(f"{prefix}.ssm.conv_kernel", config.need("linear_conv_kernel_dim"))
    metadata.u32(f"{prefix}.ssm.state_size", config.need("linear_key_head_dim"))
    metadata.u32(f"{prefix}.ssm.group_count", config.need("linear_num_key_heads"))
    metadata.u32(f"{prefix}.ssm.time_step_rank", value_heads)
    inner = config.need("linear_value_head_dim") * value_heads
    if inner >= 1 << 32:
        raise config.fault("linear_value_head_dim", f"all value heads together have {inner} elements")
    metadata.u32(f"{prefix}.ssm.inner_size", inner)
    recurrent, interval = recurrent_layers(config)
    metadata.numbers(f"{prefix}.attention.recurrent_layers", MetadataType.BOOL, recurrent + [False] * draft_layers)
    metadata.u32(f"{prefix}.full_attention_interval", interval)
    rotary = config.rope_number("partial_rotary_factor")
    rotary = default_rotary(config) if rotary is None else rotary
    if not 0 <= rotary <= 1:
        raise config.fault("rope_parameters.partial_rotary_factor", f"it is {rotary}, no part of a whole")
    metadata.u32(f"{prefix}.rope.dimension_count", int(head_size(config) * rotary))


def recurrent_layers(config: HfConfig) -> tuple[list[bool], int]:
    """Which layers are gated delta nets, and how often a layer of full attention comes.

    Raises:
        FormatError: `hf.config`: the types of the layers are not one for each layer, or are unknown.
    """
    layers = config.need("num_hidden_layers")
    interval = config.count("full_attention_interval")
    types = config.strings("layer_types")
    if types is None:
        every = interval or 4
        return [(layer + 1) % every != 0 for layer in range(layers)], every
    known = {"linear_attention", "full_attention"} | ({"indexed_attention"} if _has_streams(config) else set())
    if len(types) != layers or not set(types) <= known:
        raise config.fault("layer_types", f"it has {len(types)} entries of {shorten(sorted(set(types)))}")
    recurrent = [kind == "linear_attention" for kind in types]
    first = recurrent.index(False) + 1 if False in recurrent else 4
    return recurrent, interval or first


def default_rotary(config: HfConfig) -> float:
    """What part of a head is rotated in models with gated delta nets, where nothing is said."""
    return 1.0 if _has_streams(config) else 0.25


def _has_streams(config: HfConfig) -> bool:
    return config.model_type.startswith("qwen4_exp") or any("Qwen4Exp" in name for name in config.class_names)


def head_size(config: HfConfig) -> int:
    """Size of an attention head.

    Raises:
        FormatError: `hf.config`.
    """
    size = config.count("head_dim")
    if size is None:
        size = config.need("hidden_size") // config.need("num_attention_heads")
    if not 0 < size <= MAX_HEAD:
        raise config.fault("head_dim", f"a head of {size} elements is impossible")
    return size


def key_value_heads(config: HfConfig) -> int:
    """Number of heads of keys and values: where nothing is said, that of the queries.

    Raises:
        FormatError: `hf.config`.
    """
    if config.values.get("num_key_value_heads") is None:
        return config.need("num_attention_heads")
    return config.need("num_key_value_heads")


def size_label(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> str:
    """The size of a model in a word, from names and dims (contiguous axis first), as the `gguf` package writes it."""
    from gguf.utility import size_label as label

    total = shared = expert = counted = kinds = 0
    for name, dims in shapes:
        size = math.prod(dims)
        total += size
        if "_exps." in name and len(dims) == 3 and dims[2]:
            expert += size // dims[2]
            counted += dims[2]
            kinds += 1
        else:
            shared += size
    return str(label(total, shared, expert, counted // kinds if kinds else 0))


def _is_small(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31
