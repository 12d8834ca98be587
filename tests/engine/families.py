"""Tiny models of many families, whose logits `transformers` computed: `python tests/engine/families.py` makes the data.

Weights are random numbers that follow from their names, so that the data hold no more than the configurations, the
shapes and the logits.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DATA = Path(__file__).parent / "data"
VOCAB, TOKENS, GREEDY = 288, 20, 6
PLAIN: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 269,
    "eos_token_id": 271,
    "pad_token_id": 269,
}
# Family: name of its classes, and what is said beside PLAIN.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 3.0,
            "logits_scaling": 4.0,
            "residual_multiplier": 0.7,
            "attention_multiplier": 0.3,
            "tie_word_embeddings": True,
        },
    ),
    "olmo2": ("Olmo2", {}),
    "smollm3": ("SmolLM3", {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4}, "attention_bias": True}),
    "phi3": ("Phi3", {"sliding_window": 7}),
    "phi3-longrope": (
        "Phi3",
        {
            "original_max_position_embeddings": 32,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "original_max_position_embeddings": 32,
                "long_factor": [1.5, 4.0],
                "short_factor": [1.1, 1.3],
            },
        },
    ),
    "glm4": ("Glm4", {"head_dim": 12, "attention_bias": True}),
    "ministral3": (
        "Ministral3",
        {
            "head_dim": 12,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "beta_fast": 4.0,
                "beta_slow": 0.5,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
    ),
}


def weight(name: str, shape: list[int]) -> NDArray[np.float32]:
    """The values of a tensor: norms and factors near 1, biases and the like near 0, matrices that keep lengths."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    drawn = rng.standard_normal(shape)
    if "norm" in name:
        drawn = 1 + 0.3 * drawn
    elif len(shape) > 1 and "bias" not in name and "embed" not in name:
        drawn = 1.5 * drawn / math.sqrt(shape[-1])
    return drawn.astype(np.float32)


def prompt(family: str) -> list[int]:
    """Ids of no meaning."""
    drawn = np.random.default_rng(zlib.crc32(family.encode())).integers(0, VOCAB, TOKENS)
    return [int(token) for token in drawn]


def stored(family: str) -> dict[str, Any]:
    """Configuration, shapes and logits of a family."""
    with np.load(DATA / "families.npz") as arrays:
        said: dict[str, Any] = json.loads(str(arrays["said"]))[family]
        return {**said, "logits": arrays[f"{family}.logits"], "greedy": arrays[f"{family}.greedy"].tolist()}


def make(only: list[str]) -> None:
    """Computes the logits anew; needs `transformers` and `torch`."""
    import torch
    import transformers

    arrays: dict[str, Any] = {}
    said: dict[str, Any] = {}
    for family, (name, others) in FAMILIES.items():
        if only and family not in only:
            continue
        config = getattr(transformers, f"{name}Config")(**{**PLAIN, **others})
        config._attn_implementation = "eager"
        config.architectures = [f"{name}ForCausalLM"]
        model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
        state = model.state_dict()
        tied = config.tie_word_embeddings
        shapes = {key: list(value.shape) for key, value in state.items() if not (tied and key == "lm_head.weight")}
        values = {key: torch.from_numpy(weight(key, shape)) for key, shape in shapes.items()}
        model.load_state_dict(values | ({"lm_head.weight": values["model.embed_tokens.weight"]} if tied else {}))
        ids = prompt(family)
        with torch.no_grad():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
            for _ in range(GREEDY):
                ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        arrays[f"{family}.logits"], arrays[f"{family}.greedy"] = logits[1::3], np.array(ids[TOKENS:])
        said[family] = {"config": json.loads(config.to_json_string(use_diff=False)), "shapes": shapes}
    np.savez_compressed(DATA / "families.npz", said=np.array(json.dumps(said)), **arrays)


if __name__ == "__main__":
    make(sys.argv[1:])
