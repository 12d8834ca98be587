"""Qwen 3.5 models of random weights whose draft layer is right as often as one likes.

Layers cost what they cost in real models and add nothing: the last matrix of each part is zeros. So the hidden state is
the token's embedding, and each token is followed by one that is certain. The draft layer hands on the embedding of its
token, and its head is the model's, but for some of the tokens, drawn at random, after which it says another.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpack.generated.constants import GgmlType, MetadataType
from gpack.quants.encode import encoder
from gpack.sections.values import Value
from gpack.sources.gguf_write import build_header

from .random_weights import _blocks

LAYERS, WIDTH, VOCABULARY, HIDDEN = 24, 1024, 32_000, 9216
HEADS, KV_HEADS, HEAD_DIM = 8, 2, 256
STATE, GROUPS = 128, 16  # of the delta nets: elements of a head, and heads
EXPERTS, USED, EXPERT_HIDDEN = 64, 8, 128


@dataclass(frozen=True)
class Kind:
    """A model: dense or with experts, and how its matrices are stored."""

    experts: bool
    type: int = GgmlType.Q8_0


def follows(right: float, seed: int = 1) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """What follows each token in the model, and by its draft layer, which is right with this probability."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(VOCABULARY)
    following = np.empty(VOCABULARY, np.int64)
    following[order] = np.roll(order, -1)  # one cycle of all tokens, so that none comes twice
    # Every wrong token swaps what the layer says with another wrong one.
    wrong = rng.permutation(VOCABULARY)[: round((1 - right) * VOCABULARY)]
    drafted = following.copy()
    drafted[wrong] = following[np.roll(wrong, 1)]
    return following, drafted


def write(path: Path, kind: Kind, right: float) -> None:
    """A GGUF."""
    specs = list(_tensors(kind))
    sized = [(name, of, dims, prod(dims) // GgmlType.BLOCK[of] * GgmlType.BYTES[of]) for name, of, dims in specs]
    header, offsets, size = build_header(version=3, alignment=32, metadata=_metadata(kind), tensors=sized)
    rng = np.random.default_rng(1)
    known = _known(right, rng)
    with path.open("wb") as file:
        file.write(header)
        for (name, of, dims, n_bytes), offset in zip(sized, offsets, strict=True):
            file.seek(offset)
            if name in known:
                values = known[name].astype("<f4")
                file.write(
                    values.tobytes() if of == GgmlType.F32 else encoder(of)(values.reshape(-1, dims[0])).tobytes()
                )
            elif not any(part in name for part in ("ssm_out", "attn_output", "ffn_down")):
                blocks = _blocks(of, rng)
                for first in range(0, n_bytes, len(blocks)):
                    file.write(blocks[: n_bytes - first])
        file.truncate(size)  # what was not written is zeros


def _known(right: float, rng: np.random.Generator) -> dict[str, Any]:
    following, drafted = follows(right)
    embeddings = rng.standard_normal((VOCABULARY, WIDTH), np.float32)
    head, draft_head = np.empty_like(embeddings), np.empty_like(embeddings)
    head[following], draft_head[drafted] = embeddings, embeddings
    layer = f"blk.{LAYERS}.nextn."
    return {
        "token_embd.weight": embeddings,
        "output.weight": head,
        f"{layer}shared_head_head.weight": draft_head,
        f"{layer}eh_proj.weight": np.eye(WIDTH, 2 * WIDTH, dtype=np.float32),
        **{f"blk.{number}.ssm_a": -np.ones(GROUPS, np.float32) for number in range(LAYERS)},
    }


def _tensors(kind: Kind) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    big, plain = kind.type, GgmlType.F32
    yield "token_embd.weight", big, (WIDTH, VOCABULARY)
    for number in range(LAYERS + 1):
        block = f"blk.{number}."
        yield f"{block}attn_norm.weight", plain, (WIDTH,)
        yield f"{block}post_attention_norm.weight", plain, (WIDTH,)
        if number == LAYERS or number % 4 == 3:
            yield f"{block}attn_q.weight", big, (WIDTH, 2 * HEADS * HEAD_DIM)
            yield f"{block}attn_k.weight", big, (WIDTH, KV_HEADS * HEAD_DIM)
            yield f"{block}attn_v.weight", big, (WIDTH, KV_HEADS * HEAD_DIM)
            yield f"{block}attn_output.weight", big, (HEADS * HEAD_DIM, WIDTH)
            yield f"{block}attn_q_norm.weight", plain, (HEAD_DIM,)
            yield f"{block}attn_k_norm.weight", plain, (HEAD_DIM,)
        else:
            inner = GROUPS * STATE
            yield f"{block}attn_qkv.weight", big, (WIDTH, 3 * inner)
            yield f"{block}attn_gate.weight", big, (WIDTH, inner)
            yield f"{block}ssm_conv1d.weight", plain, (4, 3 * inner)
            yield f"{block}ssm_dt.bias", plain, (GROUPS,)
            yield f"{block}ssm_a", plain, (GROUPS,)
            yield f"{block}ssm_alpha.weight", big, (WIDTH, GROUPS)
            yield f"{block}ssm_beta.weight", big, (WIDTH, GROUPS)
            yield f"{block}ssm_norm.weight", plain, (STATE,)
            yield f"{block}ssm_out.weight", big, (inner, WIDTH)
        yield from _feed_forward(kind, block)
    block = f"blk.{LAYERS}.nextn."
    yield f"{block}enorm.weight", plain, (WIDTH,)
    yield f"{block}hnorm.weight", plain, (WIDTH,)
    yield f"{block}eh_proj.weight", big, (2 * WIDTH, WIDTH)
    yield f"{block}shared_head_norm.weight", plain, (WIDTH,)
    yield f"{block}shared_head_head.weight", big, (WIDTH, VOCABULARY)
    yield "output_norm.weight", plain, (WIDTH,)
    yield "output.weight", big, (WIDTH, VOCABULARY)


def _feed_forward(kind: Kind, block: str) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    if not kind.experts:
        yield f"{block}ffn_gate.weight", kind.type, (WIDTH, HIDDEN)
        yield f"{block}ffn_up.weight", kind.type, (WIDTH, HIDDEN)
        yield f"{block}ffn_down.weight", kind.type, (HIDDEN, WIDTH)
        return
    yield f"{block}ffn_gate_inp.weight", GgmlType.F32, (WIDTH, EXPERTS)
    yield f"{block}ffn_gate_exps.weight", kind.type, (WIDTH, EXPERT_HIDDEN, EXPERTS)
    yield f"{block}ffn_up_exps.weight", kind.type, (WIDTH, EXPERT_HIDDEN, EXPERTS)
    yield f"{block}ffn_down_exps.weight", kind.type, (EXPERT_HIDDEN, WIDTH, EXPERTS)
    yield f"{block}ffn_gate_inp_shexp.weight", GgmlType.F32, (WIDTH,)
    yield f"{block}ffn_gate_shexp.weight", kind.type, (WIDTH, EXPERT_HIDDEN)
    yield f"{block}ffn_up_shexp.weight", kind.type, (WIDTH, EXPERT_HIDDEN)
    yield f"{block}ffn_down_shexp.weight", kind.type, (EXPERT_HIDDEN, WIDTH)


def _metadata(kind: Kind) -> list[Value]:
    name = "qwen35moe" if kind.experts else "qwen35"
    numbers = {
        "block_count": LAYERS + 1,
        "nextn_predict_layers": 1,
        "context_length": 4096,
        "embedding_length": WIDTH,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "rope.dimension_count": 64,
        "ssm.conv_kernel": 4,
        "ssm.state_size": STATE,
        "ssm.group_count": GROUPS,
        "ssm.time_step_rank": GROUPS,
        "ssm.inner_size": GROUPS * STATE,
    }
    if kind.experts:
        numbers |= {"expert_count": EXPERTS, "expert_used_count": USED}
        numbers |= {"expert_feed_forward_length": EXPERT_HIDDEN, "expert_shared_feed_forward_length": EXPERT_HIDDEN}
    else:
        numbers["feed_forward_length"] = HIDDEN
    text = MetadataType.STRING
    return [
        Value("general.architecture", text, text, 1, name.encode()),
        *(
            Value(f"{name}.{key}", MetadataType.UINT32, MetadataType.UINT32, 1, struct.pack("<I", number))
            for key, number in numbers.items()
        ),
        *(
            Value(f"{name}.{key}", MetadataType.FLOAT32, MetadataType.FLOAT32, 1, struct.pack("<f", number))
            for key, number in (("attention.layer_norm_rms_epsilon", 1e-6), ("rope.freq_base", 1e7))
        ),
        Value("tokenizer.ggml.model", text, text, 1, b"no_vocab"),
    ]
