"""Forward passes in numpy float64, written from the papers' equations: a second opinion on the engine's kernels.

One position at a time and no cache: each position attends to all before it, in loops that are easy to check by eye.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def rms(x: Array, weight: Array, epsilon: float) -> Array:
    out: Array = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon) * weight
    return out


def silu(x: Array) -> Array:
    out: Array = x / (1 + np.exp(-x))
    return out


def gelu(x: Array) -> Array:
    out: Array = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)))
    return out


def rotate(x: Array, position: int, angles: Array, magnitude: float, *, neighbours: bool) -> Array:
    """One head; `angles` are those of position 1."""
    out = x.copy()
    half = len(angles)
    for j, angle in enumerate(angles):
        a, b = (2 * j, 2 * j + 1) if neighbours else (j, j + half)
        cosine, sine = math.cos(position * angle) * magnitude, math.sin(position * angle) * magnitude
        out[a] = x[a] * cosine - x[b] * sine
        out[b] = x[a] * sine + x[b] * cosine
    return out


class Reference:
    """A model given by its metadata and its dequantised tensors."""

    def __init__(self, metadata: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[Any]]) -> None:
        self.name = str(metadata["general.architecture"])
        self.metadata = metadata
        self.tensors = {name: np.asarray(values, np.float64) for name, values in tensors.items()}
        self.epsilon = float(self.key("attention.layer_norm_rms_epsilon"))
        self.n_embd = int(self.key("embedding_length"))
        self.n_head = int(self.key("attention.head_count"))
        self.n_kv = int(self.key("attention.head_count_kv", self.n_head))
        self.width = int(self.key("attention.key_length", self.n_embd // self.n_head))
        self.n_rotated = int(self.key("rope.dimension_count", self.width))

    def key(self, name: str, default: Any = None) -> Any:
        return self.metadata.get(f"{self.name}.{name}", default)

    def product(self, name: str, x: Array) -> Array:
        out: Array = x @ self.tensors[f"{name}.weight"].T
        if f"{name}.bias" in self.tensors:
            out = out + self.tensors[f"{name}.bias"]
        return out

    def angles(self, *, local: bool) -> tuple[Array, float]:
        base = float(self.key("rope.freq_base", 10000.0))
        if local:
            base = float(self.key("rope.freq_base_swa", 10000.0))
        j = np.arange(self.n_rotated // 2)
        omega: Array = base ** (-2.0 * j / self.n_rotated)
        if "rope_freqs.weight" in self.tensors:
            omega = omega / self.tensors["rope_freqs.weight"]
        kind, factor = self.key("rope.scaling.type", "none"), float(self.key("rope.scaling.factor", 1.0))
        if local or kind == "none":
            return omega, 1.0
        if kind == "linear":
            return omega / factor, 1.0
        length = float(self.key("rope.scaling.original_context_length"))

        def corner(turns: float) -> float:
            return self.n_rotated * math.log(length / (2 * math.pi * turns)) / (2 * math.log(base))

        low = max(0, math.floor(corner(float(self.key("rope.scaling.yarn_beta_fast", 32.0)))))
        high = min(self.n_rotated - 1, math.ceil(corner(float(self.key("rope.scaling.yarn_beta_slow", 1.0)))))
        ramp = 1 - np.clip((j - low) / max(0.001, high - low), 0, 1)
        magnitude = (1 + 0.1 * math.log(factor)) * float(self.key("rope.scaling.attn_factor", 1.0))
        return omega * ((1 - ramp) / factor + ramp), magnitude

    def attention(self, layer: int, n: Array, *, window: int, local: bool) -> Array:
        prefix, steps = f"blk.{layer}", len(n)
        if f"{prefix}.attn_qkv.weight" in self.tensors:
            whole = self.product(f"{prefix}.attn_qkv", n)
            q, k, v = np.split(whole, [self.n_head * self.width, (self.n_head + self.n_kv) * self.width], axis=1)
        else:
            q, k, v = (self.product(f"{prefix}.attn_{name}", n) for name in "qkv")
        q, k, v = (x.reshape(steps, -1, self.width) for x in (q, k, v))
        if f"{prefix}.attn_q_norm.weight" in self.tensors:
            q = rms(q, self.tensors[f"{prefix}.attn_q_norm.weight"], self.epsilon)
            k = rms(k, self.tensors[f"{prefix}.attn_k_norm.weight"], self.epsilon)
        angles, magnitude = self.angles(local=local)
        q, k = (
            np.array(
                [
                    [rotate(head, t, angles, magnitude, neighbours=self.name == "llama") for head in x[t]]
                    for t in range(steps)
                ]
            )
            for x in (q, k)
        )
        scale = float(self.key("attention.scale", 0.0)) or 1 / math.sqrt(self.width)
        out = np.zeros((steps, self.n_head, self.width))
        for t in range(steps):
            first = max(0, t - window + 1) if window else 0
            for head in range(self.n_head):
                kv = head // (self.n_head // self.n_kv)
                scores = k[first : t + 1, kv] @ q[t, head] * scale
                weights = np.exp(scores - scores.max())
                out[t, head] = weights @ v[first : t + 1, kv] / weights.sum()
        return self.product(f"{prefix}.attn_output", out.reshape(steps, -1))

    def feed_forward(self, layer: int, n: Array) -> Array:
        prefix = f"blk.{layer}"
        if f"{prefix}.ffn_gate_inp.weight" in self.tensors:
            return np.array([self.mixture(layer, row) for row in n])
        act = gelu if self.name == "gemma3" else silu
        return self.product(
            f"{prefix}.ffn_down", act(self.product(f"{prefix}.ffn_gate", n)) * self.product(f"{prefix}.ffn_up", n)
        )

    def mixture(self, layer: int, n: Array) -> Array:
        prefix = f"blk.{layer}"
        scores = self.product(f"{prefix}.ffn_gate_inp", n)
        p = np.exp(scores - scores.max())
        p /= p.sum()
        top = sorted(range(len(p)), key=lambda e: (-p[e], e))[: int(self.key("expert_used_count"))]
        weights = p[top] / max(p[top].sum(), 2.0**-14) * (float(self.key("expert_weights_scale", 1.0)) or 1.0)
        out = np.zeros(self.n_embd)
        if f"{prefix}.ffn_gate_up_exps.weight" in self.tensors:
            gates, ups = np.split(self.tensors[f"{prefix}.ffn_gate_up_exps.weight"], 2, axis=1)
        else:
            gates, ups = (self.tensors[f"{prefix}.ffn_{part}_exps.weight"] for part in ("gate", "up"))
        for weight, e in zip(weights, top, strict=True):
            hidden = silu(gates[e] @ n) * (ups[e] @ n)
            out += weight * (self.tensors[f"{prefix}.ffn_down_exps.weight"][e] @ hidden)
        return out

    def hidden(self, ids: Sequence[int]) -> Array:
        x = self.tensors["token_embd.weight"][list(ids)]
        gemma = self.name == "gemma3"
        if gemma:
            x = x * math.sqrt(self.n_embd)
        for layer in range(int(self.key("block_count"))):
            prefix = f"blk.{layer}"
            window = int(self.key("attention.sliding_window", 0)) if gemma else 0
            pattern = self.key("attention.sliding_window_pattern", 6)
            local = bool(window) and (
                bool(pattern[layer]) if isinstance(pattern, list) else layer % pattern < pattern - 1
            )
            out = self.attention(
                layer,
                rms(x, self.tensors[f"{prefix}.attn_norm.weight"], self.epsilon),
                window=window if local else 0,
                local=local,
            )
            if gemma:
                out = rms(out, self.tensors[f"{prefix}.post_attention_norm.weight"], self.epsilon)
            x = x + out
            out = self.feed_forward(layer, rms(x, self.tensors[f"{prefix}.ffn_norm.weight"], self.epsilon))
            if gemma:
                out = rms(out, self.tensors[f"{prefix}.post_ffw_norm.weight"], self.epsilon)
            x = x + out
        return rms(x, self.tensors["output_norm.weight"], self.epsilon)

    def logits(self, ids: Sequence[int]) -> Array:
        output = "output" if "output.weight" in self.tensors else "token_embd"
        made = self.hidden(ids) @ self.tensors[f"{output}.weight"].T
        if "output.bias" in self.tensors:
            made = made + self.tensors["output.bias"]
        cap = float(self.key("final_logit_softcapping", 0.0))
        out: Array = cap * np.tanh(made / cap) if cap else made
        return out
