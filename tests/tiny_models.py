"""Tiny random models of every architecture and of each of their options, as GGUF files and as arrays."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf_maker import Tensor, write_gguf

from gpack.model import GuildModel, ModelPaths

ORACLE = Path(os.environ.get("GPACK_ORACLE", Path(__file__).parents[1].parent / "shared" / "oracle"))
DATA = Path(__file__).parent / "engine" / "data"


@dataclass
class TinyModel:
    """Metadata and float32 tensors, in numpy's order of axes; made by `tiny`, and changed as a test likes."""

    metadata: dict[str, Any]
    tensors: dict[str, npt.NDArray[np.float32]]
    types: dict[str, tuple[int, bytes]] = field(default_factory=dict)  # what is not stored as F32: type, bytes

    def write(self, path: Path) -> Path:
        """As a GGUF."""
        stored: list[Tensor] = []
        for name, values in self.tensors.items():
            kind, data = self.types.get(name, (0, values.astype("<f4").tobytes()))
            stored.append((name, kind, tuple(reversed(values.shape)), data))
        return write_gguf(path, self.metadata, stored)

    def open(self, path: Path) -> GuildModel:
        """Written and loaded."""
        return GuildModel.load(ModelPaths(primary_model_path=self.write(path)))


def tiny(
    name: str = "llama",
    *,
    n_layer: int = 2,
    n_embd: int = 32,
    n_head: int = 4,
    n_kv: int = 2,
    width: int = 8,
    n_ff: int = 48,
    n_vocab: int = 40,
    n_expert: int = 0,
    n_used: int = 2,
    seed: int = 0,
    tied: bool = False,
    **keys: Any,
) -> TinyModel:
    """A model of an architecture.

    Args:
        keys: More metadata keys, without the architecture; dots are written as two underscores.
    """
    rng = np.random.default_rng(seed)
    tensors: dict[str, npt.NDArray[np.float32]] = {}

    def add(tensor: str, *shape: int) -> None:
        values = rng.standard_normal(shape) / np.sqrt(shape[-1])
        if len(shape) == 1:
            values = 1 + 0.3 * rng.standard_normal(shape) if tensor.endswith("weight") else 0.2 * values
        tensors[tensor] = values.astype(np.float32)

    metadata: dict[str, Any] = {
        "general.architecture": name,
        f"{name}.block_count": n_layer,
        f"{name}.context_length": 600,
        f"{name}.embedding_length": n_embd,
        f"{name}.feed_forward_length": n_ff,
        f"{name}.attention.head_count": n_head,
        f"{name}.attention.head_count_kv": n_kv,
        f"{name}.attention.key_length": width,
        f"{name}.attention.value_length": width,
        f"{name}.attention.layer_norm_rms_epsilon": 1e-5,
    }
    if n_expert:
        metadata[f"{name}.expert_count"], metadata[f"{name}.expert_used_count"] = n_expert, n_used
        metadata[f"{name}.expert_feed_forward_length"] = n_ff
    metadata |= {f"{name}.{key.replace('__', '.')}": value for key, value in keys.items()}
    add("token_embd.weight", n_vocab, n_embd)
    add("output_norm.weight", n_embd)
    if not tied:
        add("output.weight", n_vocab, n_embd)
    for layer in range(n_layer):
        block = f"blk.{layer}"
        for part in ("attn_norm", "ffn_norm", *(("post_attention_norm", "post_ffw_norm") if name == "gemma3" else ())):
            add(f"{block}.{part}.weight", n_embd)
        for part, heads in (("q", n_head), ("k", n_kv), ("v", n_kv)):
            add(f"{block}.attn_{part}.weight", heads * width, n_embd)
            if name == "qwen2":
                add(f"{block}.attn_{part}.bias", heads * width)
        add(f"{block}.attn_output.weight", n_embd, n_head * width)
        if name in ("qwen3", "qwen3moe", "gemma3"):
            add(f"{block}.attn_q_norm.weight", width)
            add(f"{block}.attn_k_norm.weight", width)
        if n_expert:
            add(f"{block}.ffn_gate_inp.weight", n_expert, n_embd)
            add(f"{block}.ffn_gate_exps.weight", n_expert, n_ff, n_embd)
            add(f"{block}.ffn_up_exps.weight", n_expert, n_ff, n_embd)
            add(f"{block}.ffn_down_exps.weight", n_expert, n_embd, n_ff)
        else:
            add(f"{block}.ffn_gate.weight", n_ff, n_embd)
            add(f"{block}.ffn_up.weight", n_ff, n_embd)
            add(f"{block}.ffn_down.weight", n_embd, n_ff)
    return TinyModel(metadata, tensors)


def text(length: int, n_vocab: int = 40, seed: int = 1) -> list[int]:
    """Random ids."""
    made: list[int] = np.random.default_rng(seed).integers(0, n_vocab, length).tolist()
    return made
