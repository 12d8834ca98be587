"""A Hugging Face folder of many shards into a pack: experts of one tensor each, spread over the files.

    python -m bench --only convert-shards

The peer is one hashlib pass over the pack that comes of it; copying the shards, with nothing hashed, is shown besides.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from gpack.terminal import units

from .bench import Bench
from .measure import Outcome, Row, Way, bound, by_turns, compare, job, samples, warm_up

CASE = "convert-shards"
SHARDS = 17
_HEAD, _VOCABULARY = 64, 32_768
_BLOCK = 16 << 20
_MEMORY = 256 << 20

# Name and shape of a BF16 tensor.
Shape = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Size:
    """How large the model is.

    Attributes:
        width: `hidden_size`.
        hidden: Rows of an expert's gate and up.
    """

    layers: int
    experts: int
    width: int
    hidden: int


FULL = Size(layers=16, experts=32, width=1024, hidden=512)  # 1.7 GiB
QUICK = Size(layers=4, experts=16, width=512, hidden=256)


def sharded(bench: Bench) -> list[Row]:
    """The folder by its index; the shards are in the page cache, and waiting for the disk is counted apart."""
    folder, output = bench.folder / "shards", bench.folder / "shards.gpack"
    write_model(folder, QUICK if bench.quick else FULL)
    index = folder / "model.safetensors.index.json"

    def convert() -> Outcome:
        bench.drop(output.name)
        return job("convert_any", index, output)

    def copy() -> Outcome:
        bench.drop(output.name)
        return job("copy_passes", output, *sorted(folder.glob("*.safetensors")))

    ways: dict[str, Way] = {"copy": copy, "convert": convert, "hash": lambda: job("hash_pass", output)}
    warm_up(ways)
    runs = by_turns(bench.rounds, ways)
    size = output.stat().st_size
    bench.drop(output.name, *(f"shards/{path.name}" for path in folder.iterdir()))
    ours, sync = samples(runs["convert"]), samples(runs["convert"], "sync")
    what = f"convert {SHARDS} shards of safetensors, {units.size(size)}"
    peak = max(run["peak"] for run in runs["convert"])
    return [
        compare(CASE, what, ours, samples(runs["hash"]), "hashlib pass over the output", bench.target(1.25)),
        compare(CASE, what, ours, samples(runs["copy"]), "copy, nothing hashed"),
        Row(CASE, "waiting for the disk, besides", str(sync), data=sync.to_dict()),
        bound(CASE, "convert shards, memory in all", peak, _MEMORY, units.size),
    ]


def write_model(folder: Path, size: Size) -> None:
    """A qwen3moe of random weights: configuration, index, shards of about equal numbers of tensors."""
    folder.mkdir(exist_ok=True)
    tensors = list(_tensors(size))
    runs = [tensors[len(tensors) * n // SHARDS : len(tensors) * (n + 1) // SHARDS] for n in range(SHARDS)]
    block = os.urandom(_BLOCK)
    mapped: dict[str, str] = {}
    for number, run in enumerate(runs, 1):
        name = f"model-{number:05}-of-{SHARDS:05}.safetensors"
        mapped |= {tensor: name for tensor, _ in run}
        _write_shard(folder / name, run, block)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": mapped}))
    (folder / "config.json").write_text(json.dumps(_config(size)))


def _tensors(size: Size) -> Iterator[Shape]:
    """The order of files that Hugging Face's library writes: layer by layer, experts by number."""
    width = size.width
    yield "model.embed_tokens.weight", (_VOCABULARY, width)
    for number in range(size.layers):
        layer = f"model.layers.{number}"
        for name in "qkvo":
            yield f"{layer}.self_attn.{name}_proj.weight", (width, width)
        for name in ("q_norm", "k_norm"):
            yield f"{layer}.self_attn.{name}.weight", (_HEAD,)
        yield f"{layer}.mlp.gate.weight", (size.experts, width)
        for expert in range(size.experts):
            for name, shape in (
                ("gate", (size.hidden, width)),
                ("up", (size.hidden, width)),
                ("down", (width, size.hidden)),
            ):
                yield f"{layer}.mlp.experts.{expert}.{name}_proj.weight", shape
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}.{name}.weight", (width,)
    yield "model.norm.weight", (width,)


def _write_shard(path: Path, tensors: list[Shape], block: bytes) -> None:
    header, end = {}, 0
    for name, shape in tensors:
        size = 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        while end:
            end -= file.write(block[: min(end, len(block))])


def _config(size: Size) -> dict[str, object]:
    heads = size.width // _HEAD
    return {
        "model_type": "qwen3_moe",
        "hidden_size": size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": _HEAD,
        "vocab_size": _VOCABULARY,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "num_experts": size.experts,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": size.hidden,
        "norm_topk_prob": True,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    }
