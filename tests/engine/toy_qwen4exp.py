"""A tiny qwen4exp: two delta nets, layers of sparse and of dense attention, rows of n-grams, two streams."""

from __future__ import annotations

from typing import Any

import numpy as np
from tiny_models import TinyModel

NAME = "qwen4exp"
LAYERS, WIDTH, STREAMS, RANK, VOCAB = 4, 32, 2, 8, 40
HEADS, KV, HEAD_DIM, ROTATED = 4, 2, 8, 4
N_HEAD_K, N_HEAD_V, STATE, TAPS = 2, 4, 8, 3
EXPERTS, USED, FF, SHARED = 4, 2, 32, 32
INDEX_HEADS, INDEX_DIM, BLOCK, BUDGET = 3, 12, 4, 64
NGRAM, PER_NGRAM, ROW, NGRAM_LAYER, NGRAM_TAPS, SEPARATOR = 3, 2, 8, 1, 4, 5
SIZES, MULTIPLIERS = (11, 13, 17, 19), (1234567890123, 98765432109877, 55555555555555)
RECURRENT, RATIOS = (True, True, False, False), (0, 0, BLOCK, 0)


def qwen4exp(
    seed: int = 6,
    *,
    n_vocab: int = VOCAB,
    ratios: tuple[int, ...] = RATIOS,
    streams: int = STREAMS,
    ngram_layer: int = NGRAM_LAYER,
    row: int = ROW,
    **keys: Any,
) -> TinyModel:
    """The model; `keys` are more metadata, or other, without the architecture; dots are written as two underscores."""
    rng = np.random.default_rng(seed)
    metadata: dict[str, Any] = {
        "block_count": LAYERS,
        "context_length": 600,
        "embedding_length": WIDTH,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),  # as a file holds it
        "attention.recurrent_layers": list(RECURRENT),
        "attention.compress_ratios": list(ratios),
        "attention.indexer.head_count": INDEX_HEADS,
        "attention.indexer.key_length": INDEX_DIM,
        "attention.indexer.top_k": BUDGET,
        "rope.dimension_count": ROTATED,
        "rope.freq_base": 1000.0,
        "ssm.conv_kernel": TAPS,
        "ssm.state_size": STATE,
        "ssm.group_count": N_HEAD_K,
        "ssm.time_step_rank": N_HEAD_V,
        "ssm.inner_size": N_HEAD_V * STATE,
        "expert_count": EXPERTS,
        "expert_used_count": USED,
        "expert_feed_forward_length": FF,
        "expert_shared_feed_forward_length": SHARED,
        "hyper_connection.count": STREAMS,
        "hyper_connection.low_rank": RANK,
        "embedding_length_per_layer_input": row,
        "ple.layers": [NGRAM_LAYER],
        "ple.ngram_size": NGRAM,
        "ple.heads_per_ngram": PER_NGRAM,
        "ple.conv_kernel": NGRAM_TAPS,
        "ple.eos_token_id": SEPARATOR,
        "ple.layer_multipliers": list(MULTIPLIERS),
        "ple.head_offsets": [sum(SIZES[:number]) for number in range(len(SIZES))],
        "ple.head_vocab_sizes": list(SIZES),
    }
    metadata |= {key.replace("__", "."): value for key, value in keys.items()}
    tensors: dict[str, Any] = {}

    def matrix(name: str, *shape: int) -> None:
        tensors[f"{name}.weight"] = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    def norm(name: str, size: int) -> None:
        tensors[f"{name}.weight"] = (1 + 0.3 * rng.standard_normal(size)).astype(np.float32)

    wide = streams * WIDTH
    matrix("token_embd", n_vocab, WIDTH)
    matrix("output", n_vocab, WIDTH)
    matrix("per_layer_token_embd", sum(SIZES) + 4, row)
    for name in ("output_hc", *(f"blk.{number}.hc_{part}" for number in range(LAYERS) for part in ("attn", "ffn"))):
        norm(f"{name}_norm", wide)
        matrix(f"{name}_down", RANK, wide)
        matrix(f"{name}_up", wide, RANK)
        if name != "output_hc":
            matrix(f"{name}_inject", streams, wide)
    for number in range(LAYERS):
        block = f"blk.{number}"
        matrix(f"{block}.ffn_gate_inp", EXPERTS, WIDTH)
        matrix(f"{block}.ffn_gate_exps", EXPERTS, FF, WIDTH)
        matrix(f"{block}.ffn_up_exps", EXPERTS, FF, WIDTH)
        matrix(f"{block}.ffn_down_exps", EXPERTS, WIDTH, FF)
        matrix(f"{block}.ffn_gate_shexp", SHARED, WIDTH)
        matrix(f"{block}.ffn_up_shexp", SHARED, WIDTH)
        matrix(f"{block}.ffn_down_shexp", WIDTH, SHARED)
        matrix(f"{block}.ffn_gate_inp_shexp", WIDTH)
        if RECURRENT[number]:
            channels = (2 * N_HEAD_K + N_HEAD_V) * STATE
            matrix(f"{block}.attn_qkv", channels, WIDTH)
            matrix(f"{block}.attn_gate", N_HEAD_V * STATE, WIDTH)
            matrix(f"{block}.ssm_conv1d", channels, TAPS)
            matrix(f"{block}.ssm_alpha", N_HEAD_V, WIDTH)
            matrix(f"{block}.ssm_beta", N_HEAD_V, WIDTH)
            matrix(f"{block}.ssm_out", WIDTH, N_HEAD_V * STATE)
            norm(f"{block}.ssm_norm", STATE)
            tensors[f"{block}.ssm_a"] = -np.exp(rng.standard_normal(N_HEAD_V)).astype(np.float32)
            tensors[f"{block}.ssm_dt.bias"] = rng.standard_normal(N_HEAD_V).astype(np.float32)
        else:
            matrix(f"{block}.attn_q", 2 * HEADS * HEAD_DIM, WIDTH)
            matrix(f"{block}.attn_k", KV * HEAD_DIM, WIDTH)
            matrix(f"{block}.attn_v", KV * HEAD_DIM, WIDTH)
            matrix(f"{block}.attn_output", WIDTH, HEADS * HEAD_DIM)
            norm(f"{block}.attn_q_norm", HEAD_DIM)
            norm(f"{block}.attn_k_norm", HEAD_DIM)
        if ratios[number]:
            matrix(f"{block}.indexer.q_proj", INDEX_HEADS * INDEX_DIM, WIDTH)
            matrix(f"{block}.indexer.k_proj", INDEX_DIM, WIDTH)
            norm(f"{block}.indexer.q_norm", INDEX_DIM)
            norm(f"{block}.indexer.k_norm", INDEX_DIM)
    block = f"blk.{ngram_layer}"
    matrix(f"{block}.ple_key", wide, len(SIZES) * row)
    matrix(f"{block}.ple_value", WIDTH, len(SIZES) * row)
    matrix(f"{block}.ple_conv1d", wide, NGRAM_TAPS)
    for part in ("key", "query", "conv"):
        norm(f"{block}.ple_norm_{part}", wide)
    named = {f"{NAME}.{key}": value for key, value in metadata.items()}
    return TinyModel({"general.architecture": NAME, **named}, tensors)


def with_draft_layer(seed: int = 8, **options: Any) -> TinyModel:
    """The model, and a layer that drafts: of sparse attention like its third layer."""
    ratios = (0, 0, BLOCK, BLOCK)  # other engines want an indexer in each layer of attention
    model, rng, block = qwen4exp(ratios=ratios, **options), np.random.default_rng(seed), f"blk.{LAYERS}"
    for tensor in [name for name in model.tensors if name.startswith("blk.2.")]:
        values = model.tensors[tensor]
        model.tensors[tensor.replace("blk.2", block)] = rng.permutation(values.reshape(-1)).reshape(values.shape)
    wide = STREAMS * WIDTH
    for part, size in (("enorm", WIDTH), ("hnorm", wide), ("hc_head_norm", wide)):
        model.tensors[f"{block}.nextn.{part}.weight"] = (1 + 0.3 * rng.standard_normal(size)).astype(np.float32)
    for part, shape in (("eh_proj", (WIDTH, 2 * WIDTH)), ("hc_head_down", (RANK, wide)), ("hc_head_up", (wide, RANK))):
        values = rng.standard_normal(shape) / np.sqrt(shape[1])
        model.tensors[f"{block}.nextn.{part}.weight"] = values.astype(np.float32)
    keys = {
        "block_count": LAYERS + 1,
        "nextn_predict_layers": 1,
        "attention.compress_ratios": [*ratios, BLOCK],
        "attention.recurrent_layers": [*RECURRENT, False],
    }
    model.metadata |= {f"{NAME}.{key}": value for key, value in keys.items()}
    return model
