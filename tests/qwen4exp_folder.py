"""The tiny qwen4exp as its makers store it: the same model under Hugging Face's names, orders and values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from engine.toy_qwen4exp import (
    BLOCK,
    BUDGET,
    EXPERTS,
    FF,
    HEAD_DIM,
    HEADS,
    INDEX_DIM,
    INDEX_HEADS,
    KV,
    LAYERS,
    MULTIPLIERS,
    N_HEAD_K,
    N_HEAD_V,
    NGRAM,
    NGRAM_LAYER,
    NGRAM_TAPS,
    PER_NGRAM,
    RANK,
    RECURRENT,
    ROTATED,
    ROW,
    SEPARATOR,
    SHARED,
    SIZES,
    STATE,
    STREAMS,
    TAPS,
    USED,
    WIDTH,
    qwen4exp,
    with_draft_layer,
)
from hf_maker import VOCAB, Tensors, f32, write_json, write_safetensors, write_sharded, write_tokenizer
from tiny_models import TinyModel

BASE = 11  # the hash's sizes are the primes from here on
NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "attn_qkv.weight": "linear_attn.in_proj_qkv.weight",
    "attn_gate.weight": "linear_attn.in_proj_z.weight",
    "ssm_alpha.weight": "linear_attn.in_proj_a.weight",
    "ssm_beta.weight": "linear_attn.in_proj_b.weight",
    "ssm_conv1d.weight": "linear_attn.conv1d.weight",
    "ssm_norm.weight": "linear_attn.norm.weight",
    "ssm_out.weight": "linear_attn.out_proj.weight",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "indexer.q_norm.weight": "self_attn.indexer.q_layernorm.weight",
    "indexer.k_norm.weight": "self_attn.indexer.k_layernorm.weight",
    "ffn_gate_inp.weight": "mlp.gate.weight",
    "ffn_gate_inp_shexp.weight": "mlp.shared_expert_gate.weight",
    **{f"ffn_{part}_shexp.weight": f"mlp.shared_expert.{part}_proj.weight" for part in ("gate", "up", "down")},
    **{f"ple_{part}.weight": f"ple.{part}_proj.weight" for part in ("key", "value")},
    **{f"ple_norm_{part}.weight": f"ple.norm_{part}.weight" for part in ("key", "query", "conv")},
    "ple_conv1d.weight": "ple.conv1d.weight",
}
DRAFT = {
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "hc_head_norm": "hyper_connection_mixer.hc_norm",
    "hc_head_down": "hyper_connection_mixer.input_mix_weight_down",
    "hc_head_up": "hyper_connection_mixer.input_mix_weight_up",
}
for ours, theirs in (("norm", "hc_norm"), ("down", "input_mix_weight_down"), ("up", "input_mix_weight_up")):
    NAMES[f"output_hc_{ours}.weight"] = f"model.hyper_connection_mixer.{theirs}.weight"
for place, short in (("attn", "attn"), ("mlp", "ffn")):
    for theirs, ours in (
        ("hc_norm", "norm"),
        ("input_mix_weight_down", "down"),
        ("input_mix_weight_up", "up"),
        ("block_inject_weight", "inject"),
    ):
        NAMES[f"hc_{short}_{ours}.weight"] = f"{place}_hyper_connection.{theirs}.weight"


def config(**others: Any) -> dict[str, Any]:
    """Of the text model."""
    return {
        "model_type": "qwen4_exp_text",
        "architectures": ["Qwen4ExpForCausalLM"],
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 600,
        "rms_norm_eps": 1e-6,
        "layer_types": ["linear_attention" if linear else "full_attention" for linear in RECURRENT],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": ROTATED / HEAD_DIM},
        "linear_conv_kernel_dim": TAPS,
        "linear_key_head_dim": STATE,
        "linear_value_head_dim": STATE,
        "linear_num_key_heads": N_HEAD_K,
        "linear_num_value_heads": N_HEAD_V,
        "num_experts": EXPERTS,
        "num_experts_per_tok": USED,
        "moe_intermediate_size": FF,
        "shared_expert_intermediate_size": SHARED,
        "hc_count": STREAMS,
        "hc_lowrank": RANK,
        "indexer_n_heads": INDEX_HEADS,
        "indexer_kv_heads": 1,
        "indexer_head_dim": INDEX_DIM,
        "indexer_budget": BUDGET,
        "indexer_compress_ratio": BLOCK,
        "ple_layer_ids": [NGRAM_LAYER + 1],
        "ple_embed_dim": ROW * len(SIZES),
        "ple_conv_kernel_size": NGRAM_TAPS,
        "ngram_size": NGRAM,
        "heads_per_ngram": PER_NGRAM,
        "ngram_vocab_size_base": BASE,
        "eos_token_id": [SEPARATOR, 7],
        "output_gate_type": "sigmoid",
        "norm_topk_prob": True,
        "tie_word_embeddings": False,
        **others,
    }


def pair(*, table_parts: int = 12, drafts: bool = False) -> tuple[TinyModel, Tensors]:
    """The model as GGUF has it, and as its makers do."""
    options: dict[str, Any] = {"n_vocab": VOCAB, "attention__layer_norm_rms_epsilon": 1e-6}
    model = with_draft_layer(**options) if drafts else qwen4exp(ratios=(0, 0, BLOCK, BLOCK), **options)
    tensors: Tensors = {}
    for name, values in model.tensors.items():
        layer = int(name.split(".")[1]) if name.startswith("blk.") else None
        own = name if layer is None else name.split(".", 2)[2]
        prefix = "" if layer is None else "mtp.layers.0." if layer == LAYERS else f"model.layers.{layer}."
        stored = values
        if "norm" in own and own != "ssm_norm.weight":
            stored = values - np.float32(1)
            model.tensors[name] = stored + np.float32(1)
        elif own == "ssm_a":
            stored = np.log(-values)
            model.tensors[name] = -np.exp(stored)
        stored = _grouped(own, stored)
        if own.endswith("conv1d.weight"):
            stored = stored[:, None]
        if own == "ffn_gate_inp_shexp.weight":
            stored = stored[None]
        if own.startswith("nextn."):
            part = own.split(".")[1]
            halves = (
                {f"mtp.{DRAFT[part]}.weight": stored}
                if part in DRAFT
                else {"mtp.fc_embedding.weight": stored[:, :WIDTH], "mtp.fc_hidden.weight": stored[:, WIDTH:]}
            )
            tensors |= {name: f32(np.ascontiguousarray(half)) for name, half in halves.items()}
        elif own in NAMES:
            tensors[prefix + NAMES[own]] = f32(np.ascontiguousarray(stored))
        elif "_exps." in own:
            part = own.split("_")[1]
            tensors |= {
                f"{prefix}mlp.experts.{number}.{part}_proj.weight": f32(expert) for number, expert in enumerate(stored)
            }
        elif own == "indexer.q_proj.weight":
            both = np.concatenate([stored, model.tensors[f"blk.{layer}.indexer.k_proj.weight"]])
            tensors[f"{prefix}self_attn.indexer.index_qk_proj.weight"] = f32(both)
        elif own == "per_layer_token_embd.weight":
            tensors |= _table(stored, table_parts)
        else:
            assert own == "indexer.k_proj.weight", own
    place = f"model.layers.{NGRAM_LAYER}.ple.ple_embedding"
    offsets = [sum(SIZES[:number]) for number in range(len(SIZES))]
    for name, constants in (
        ("layer_multipliers", MULTIPLIERS),
        ("ngram_heads_offsets", offsets),
        ("ngram_heads_vocab_sizes", SIZES),
    ):
        tensors[f"{place}.{name}"] = "int64", (len(constants),), np.array(constants, "<i8").tobytes()
    return model, tensors


def _table(values: Any, parts: int) -> Tensors:
    """As many pieces, of which the last is shorter; or one."""
    place = f"model.layers.{NGRAM_LAYER}.ple.ple_embedding.ngram_embedding"
    if parts == 1:
        return {f"{place}.weight": f32(values)}
    size = -(-len(values) // parts)
    pieces = [values[first : first + size] for first in range(0, len(values), size)]
    return {f"{place}.shard_{number}.weight": f32(piece) for number, piece in enumerate(pieces)}


def _grouped(own: str, values: Any) -> Any:
    """Value heads of a key head together: head g · r + j is GGUF's head j · n_key + g."""
    per_key = N_HEAD_V // N_HEAD_K
    heads = np.array([j * N_HEAD_K + g for g in range(N_HEAD_K) for j in range(per_key)])
    rows = (heads[:, None] * STATE + np.arange(STATE)).ravel()
    before = 2 * N_HEAD_K * STATE
    if own in ("attn_qkv.weight", "ssm_conv1d.weight"):
        return np.concatenate([values[:before], values[before:][rows]])
    if own == "attn_gate.weight":
        return values[rows]
    if own in ("ssm_alpha.weight", "ssm_beta.weight", "ssm_a", "ssm_dt.bias"):
        return values[heads]
    return values[:, rows] if own == "ssm_out.weight" else values


def wrapped(tensors: Tensors) -> Tensors:
    """Inside of a model that sees, with fused experts and a draft layer of which most is missing."""
    made: Tensors = {}
    for name, stored in tensors.items():
        if ".experts." not in name:
            made[name.replace("model.", "model.language_model.", 1)] = stored
    for layer in range(LAYERS):
        stem = f"model.layers.{layer}.mlp.experts"

        def part(role: str, expert: int, stem: str = stem) -> Any:
            _, shape, data = tensors[f"{stem}.{expert}.{role}_proj.weight"]
            return np.frombuffer(data, "<f4").reshape(shape)

        fused = [np.concatenate([part("gate", number), part("up", number)]) for number in range(EXPERTS)]
        place = stem.replace("model.", "model.language_model.", 1)
        made[f"{place}.gate_up_proj"] = f32(np.stack(fused))
        made[f"{place}.down_proj"] = f32(np.stack([part("down", number) for number in range(EXPERTS)]))
    made["model.visual.merger.norm.weight"] = f32(np.ones(4, np.float32))
    made["mtp.fc_embedding.weight"] = f32(np.ones((WIDTH, WIDTH), np.float32))
    made["mtp.layers.0.self_attn.q_proj.weight"] = f32(np.ones((8, WIDTH), np.float32))
    return made


def write(folder: Path, tensors: Tensors, *, shards: int = 1, is_wrapped: bool = False, **others: Any) -> Path:
    """A whole folder; `others` are values of its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
    else:
        items = list(tensors.items())
        write_sharded(folder, [dict(items[start::shards]) for start in range(shards)])
    said = {key: value for key, value in config(**others).items() if value is not None}
    if is_wrapped:
        said = {
            "model_type": "qwen4_exp",
            "architectures": ["Qwen4ExpForConditionalGeneration"],
            "vision_config": {"depth": 1},
            "mtp_num_hidden_layers": 1,
            "text_config": {key: value for key, value in said.items() if key != "architectures"},
        }
    write_json(folder / "config.json", said)
    write_tokenizer(folder)
    return folder
