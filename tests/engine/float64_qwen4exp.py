"""qwen4exp in numpy float64, from its equations, one position at a time: a second opinion that shares no code.

Everything is recomputed from the whole text at each position that needs it; nothing is cached but what a recurrence is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from float64_model import Reference, rms, rotate, silu

Array = npt.NDArray[np.float64]


def sigmoid(x: Array) -> Array:
    out: Array = 1 / (1 + np.exp(-x))
    return out


class Qwen4Exp(Reference):
    """A model given by its metadata and its tensors."""

    def __init__(self, metadata: Any, tensors: Any) -> None:
        super().__init__(metadata, tensors)
        self.count = int(self.key("hyper_connection.count"))
        self.omega, _ = self.angles(local=False)

    def weight(self, name: str) -> Array:
        return self.tensors[f"{name}.weight"]

    def turn(self, head: Array, position: int) -> Array:
        return rotate(head, position, self.omega, 1.0, neighbours=False)

    # ---------------------------------------------------------------- streams: x is [position, stream, width]

    def streams_norm(self, x: Array, name: str) -> Array:
        gamma = self.weight(name).reshape(self.count, -1)
        return np.stack([rms(x[:, c], gamma[c], self.epsilon) for c in range(self.count)], axis=1)

    def mixed(self, normed: Array, name: str) -> Array:
        flat = normed.reshape(len(normed), -1)
        inner = silu(flat @ self.weight(f"{name}_down").T / self.count)
        gates = sigmoid(inner @ self.weight(f"{name}_up").T).reshape(normed.shape)
        out: Array = np.mean([gates[:, c] * normed[:, c] for c in range(self.count)], axis=0)
        return out

    def block(self, x: Array, name: str, compute: Any) -> Array:
        normed = self.streams_norm(x, f"{name}_norm")
        flat = normed.reshape(len(normed), -1)
        weights = 2 * sigmoid(flat @ self.weight(f"{name}_inject").T / self.count)
        made = compute(self.mixed(normed, name))
        out: Array = np.stack([x[:, c] + weights[:, c, None] * made for c in range(self.count)], axis=1)
        return out

    # ---------------------------------------------------------------- layers

    def delta_net(self, block: str, n: Array) -> Array:
        size, n_key, n_value = (int(self.key(f"ssm.{key}")) for key in ("state_size", "group_count", "time_step_rank"))
        taps = self.weight(f"{block}.ssm_conv1d")
        u = n @ self.weight(f"{block}.attn_qkv").T
        c = np.zeros_like(u)
        for t in range(len(u)):
            for j in range(taps.shape[1]):
                before = t - (taps.shape[1] - 1 - j)
                if before >= 0:
                    c[t] += taps[:, j] * u[before]
        c = silu(c)
        keys = n_key * size
        beta = sigmoid(n @ self.weight(f"{block}.ssm_beta").T)
        steps = n @ self.weight(f"{block}.ssm_alpha").T + self.tensors[f"{block}.ssm_dt.bias"]
        decay = np.exp(self.tensors[f"{block}.ssm_a"] * np.log1p(np.exp(steps)))
        gate = sigmoid(n @ self.weight(f"{block}.attn_gate").T).reshape(len(n), n_value, size)
        out = np.zeros((len(n), n_value, size))
        for h in range(n_value):
            m = np.zeros((size, size))
            own = slice((h % n_key) * size, (h % n_key + 1) * size)
            for t in range(len(n)):
                q, k = c[t, :keys][own], c[t, keys : 2 * keys][own]
                q, k = (x / math.sqrt(float(x @ x) + self.epsilon) for x in (q, k))
                v = c[t, 2 * keys + h * size : 2 * keys + (h + 1) * size]
                m = decay[t, h] * m
                m = m + np.outer(k, beta[t, h] * (v - m.T @ k))
                out[t, h] = m.T @ q / math.sqrt(size)
        normed = rms(out, self.weight(f"{block}.ssm_norm"), self.epsilon) * gate
        made: Array = normed.reshape(len(n), -1) @ self.weight(f"{block}.ssm_out").T
        return made

    def seen(self, block: str, n: Array, ratio: int) -> list[list[int]]:
        """The positions that each position attends to."""
        if not ratio:
            return [list(range(t + 1)) for t in range(len(n))]
        heads, dim = int(self.key("attention.indexer.head_count")), int(self.key("attention.indexer.key_length"))
        q = (n @ self.weight(f"{block}.indexer.q_proj").T).reshape(len(n), heads, dim)
        k = n @ self.weight(f"{block}.indexer.k_proj").T
        q_norm, k_norm = (self.weight(f"{block}.indexer.{name}_norm") for name in "qk")
        found = []
        for t in range(len(n)):
            whole, scores = (t + 1) // ratio, []
            for b in range(whole):
                key = self.turn(rms(k[b * ratio : (b + 1) * ratio].mean(axis=0), k_norm, self.epsilon), b * ratio)
                asked = [self.turn(rms(head, q_norm, self.epsilon), t) for head in q[t]]
                scores.append(sum(max(0.0, float(head @ key)) for head in asked))
            best = sorted(range(whole), key=lambda b: (-scores[b], b))[
                : int(self.key("attention.indexer.top_k")) // ratio
            ]
            found.append([b * ratio + i for b in sorted(best) for i in range(ratio)] + [*range(whole * ratio, t + 1)])
        return found

    def gated_attention(self, block: str, n: Array, ratio: int) -> Array:
        width = self.width
        both = (n @ self.weight(f"{block}.attn_q").T).reshape(len(n), self.n_head, 2, width)
        k, v = ((n @ self.weight(f"{block}.attn_{name}").T).reshape(len(n), self.n_kv, width) for name in "kv")
        q_norm, k_norm = (self.weight(f"{block}.attn_{name}_norm") for name in "qk")
        turned = np.array([[self.turn(rms(head, k_norm, self.epsilon), t) for head in k[t]] for t in range(len(n))])
        out = np.zeros((len(n), self.n_head, width))
        for t, seen in enumerate(self.seen(block, n, ratio)):
            for h in range(self.n_head):
                kv = h // (self.n_head // self.n_kv)
                query = self.turn(rms(both[t, h, 0], q_norm, self.epsilon), t)
                scores = turned[seen, kv] @ query / math.sqrt(width)
                weights = np.exp(scores - scores.max())
                out[t, h] = weights @ v[seen, kv] / weights.sum() * sigmoid(both[t, h, 1])
        made: Array = out.reshape(len(n), -1) @ self.weight(f"{block}.attn_output").T
        return made

    def experts(self, layer: int, n: Array) -> Array:
        block = f"blk.{layer}"
        inner = silu(n @ self.weight(f"{block}.ffn_gate_shexp").T) * (n @ self.weight(f"{block}.ffn_up_shexp").T)
        gate = sigmoid(n @ self.weight(f"{block}.ffn_gate_inp_shexp"))
        shared = gate[:, None] * (inner @ self.weight(f"{block}.ffn_down_shexp").T)
        made: Array = np.array([self.mixture(layer, row) for row in n]) + shared
        return made

    # ---------------------------------------------------------------- n-grams

    def rows(self, ids: Sequence[int]) -> Array:
        size, per, eos = (int(self.key(f"ple.{key}")) for key in ("ngram_size", "heads_per_ngram", "eos_token_id"))
        factors, offsets, sizes = (
            self.key(f"ple.{key}") for key in ("layer_multipliers", "head_offsets", "head_vocab_sizes")
        )
        table, made = self.weight("per_layer_token_embd"), []
        for p in range(len(ids)):
            context, is_cut = [int(ids[p])], False
            for back in range(1, size):
                is_cut = is_cut or p - back < 0 or ids[p - back] == eos
                context.append(eos if is_cut else int(ids[p - back]))
            row = []
            for n in range(2, size + 1):
                mix = 0
                for token, factor in zip(context[:n], factors, strict=False):
                    mix ^= token * factor
                row += [table[mix % sizes[h] + offsets[h]] for h in range((n - 2) * per, (n - 1) * per)]
            made.append(np.concatenate(row))
        return np.array(made)

    def with_ngrams(self, layer: int, x: Array, ids: Sequence[int]) -> Array:
        block, rows = f"blk.{layer}", self.rows(ids)
        k = self.streams_norm((rows @ self.weight(f"{block}.ple_key").T).reshape(x.shape), f"{block}.ple_norm_key")
        q, v = self.streams_norm(x, f"{block}.ple_norm_query"), rows @ self.weight(f"{block}.ple_value").T
        s = (k * q).sum(axis=-1) / math.sqrt(self.n_embd)
        u = sigmoid(np.sign(s) * np.sqrt(np.maximum(np.abs(s), 1e-6)))[..., None] * v[:, None]
        w = self.streams_norm(u, f"{block}.ple_norm_conv").reshape(len(x), -1)
        taps, step = self.weight(f"{block}.ple_conv1d"), int(self.key("ple.ngram_size"))
        y = np.zeros_like(w)
        for t in range(len(w)):
            for j in range(taps.shape[1]):
                before = t - (taps.shape[1] - 1 - j) * step
                if before >= 0:
                    y[t] += taps[:, j] * w[before]
        made: Array = x + u + silu(y).reshape(x.shape)
        return made

    # ---------------------------------------------------------------- the whole

    def hidden(self, ids: Sequence[int]) -> Array:
        return self.mixed(self.streams_norm(self.streams(ids), "output_hc_norm"), "output_hc")

    def streams(self, ids: Sequence[int]) -> Array:
        """After the last layer: [position, stream, width]."""
        x = np.repeat(self.weight("token_embd")[list(ids)][:, None], self.count, axis=1)
        for layer in range(int(self.key("block_count")) - int(self.key("nextn_predict_layers", 0))):
            if layer in self.key("ple.layers", []):
                x = self.with_ngrams(layer, x, ids)
            x = self.through(layer, x, is_recurrent=self.key("attention.recurrent_layers")[layer])
        return x

    def through(self, layer: int, x: Array, *, is_recurrent: bool) -> Array:
        block = f"blk.{layer}"

        def mix(n: Array) -> Array:
            if is_recurrent:
                return self.delta_net(block, n)
            return self.gated_attention(block, n, self.key("attention.compress_ratios")[layer])

        x = self.block(x, f"{block}.hc_attn", mix)
        return self.block(x, f"{block}.hc_ffn", lambda n: self.experts(layer, n))

    def drafted(self, ids: Sequence[int]) -> Array:
        """The draft layer's logits: its row p is of the streams after token p, and of token p + 1."""
        layer = int(self.key("block_count")) - 1
        part, x = f"blk.{layer}.nextn", self.streams(ids[:-1])
        e = rms(self.weight("token_embd")[list(ids[1:])], self.weight(f"{part}.enorm"), self.epsilon)
        h = self.streams_norm(x, f"{part}.hnorm")
        both = np.concatenate([np.repeat(e[:, None], self.count, axis=1), h], axis=-1)
        x = self.through(layer, both @ self.weight(f"{part}.eh_proj").T, is_recurrent=False)
        read = self.mixed(self.streams_norm(x, f"{part}.hc_head_norm"), f"{part}.hc_head")
        made: Array = read @ self.weight("output").T
        return made
