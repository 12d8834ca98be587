"""Whole models through the backend in the simulator: the CPU's logits, and its tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine import toy_recurrent
from exhaustive import thinned
from tiny_models import TinyModel, text, tiny

from gpack.engine.backends.cuda import devices
from gpack.engine.backends.cuda.simulator import Simulator
from gpack.engine.engine import Chunk
from gpack.generated.constants import GgmlType
from gpack.quants.encode import encoder

from .simulated import MEMORY, needs_simulator

pytestmark = needs_simulator

SIZES: dict[str, Any] = {"n_vocab": 64, "n_ff": 64}
PLAIN: dict[str, Callable[[], TinyModel]] = {
    "llama": lambda: tiny("llama", **SIZES),
    "qwen2": lambda: tiny("qwen2", **SIZES),
    "qwen3": lambda: tiny("qwen3", **SIZES),
    "qwen3moe": lambda: tiny("qwen3moe", n_expert=4, **SIZES),
    "gemma3": lambda: tiny("gemma3", attention__sliding_window=3, attention__sliding_window_pattern=2, **SIZES),
    "qwen35": toy_recurrent.qwen35,
    "qwen35moe": toy_recurrent.qwen35moe,
}
MODELS = {name: build() for name, build in PLAIN.items()}


def quantised(model: TinyModel, type_name: str = "Q8_0") -> TinyModel:
    """With all matrices whose rows are made of whole blocks in blocks."""
    number = getattr(GgmlType, type_name)
    for name, values in model.tensors.items():
        if values.ndim > 1 and values.shape[-1] % GgmlType.BLOCK[number] == 0 and "conv" not in name:
            rows = np.ascontiguousarray(values.reshape(-1, values.shape[-1]))
            model.types[name] = number, encoder(number)(rows).tobytes()
    return model


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> list[Simulator]:
    """`cuda:0` is a simulator; gives those that were opened."""
    opened: list[Simulator] = []

    def open_driver(number: int) -> Simulator:
        assert number == 0
        opened.append(Simulator(MEMORY))
        return opened[-1]

    monkeypatch.setattr(devices, "open_driver", open_driver)
    return opened


def answered(model: Any, device: str, prompt: list[int], compute: str = "int8") -> tuple[Any, list[int]]:
    """The logits of a prompt and of two tokens after it, each the best one."""
    with (
        model.engine(device=device, batch=16, check_weights=False, compute=compute) as engine,
        engine.sequence(n_ctx=64) as sequence,
    ):
        logits = [engine.step([Chunk(sequence, prompt, "all")]).logits]
        tokens = []
        for _ in range(2):
            tokens.append(int(logits[-1][-1].argmax()))
            logits.append(engine.step([Chunk(sequence, tokens[-1:], "all")]).logits)
        return np.concatenate(logits), tokens


@pytest.mark.parametrize("name", thinned(MODELS, 7))
def test_the_cpu_s_logits_and_tokens(name: str, tmp_path: Path, device: list[Simulator]) -> None:
    with quantised(MODELS[name]).open(tmp_path / "m.gguf") as model:
        made, tokens = answered(model, "cuda", text(4, n_vocab=40))
        wanted, right = answered(model, "cpu", text(4, n_vocab=40))
        exact, _ = answered(model, "cpu", text(4, n_vocab=40), "f32")
    assert len(device) == 1
    assert tokens == right
    # A value between two codes of 8 bits may become the other one, which moves all that follow by as much as rounding
    # does. Without rounding the test below is strict.
    assert np.abs(made - wanted).max() <= np.abs(wanted - exact).max() + 1e-4 * wanted.std()


@pytest.mark.parametrize("name", thinned(MODELS, 7))
def test_the_cpu_s_logits_where_nothing_is_rounded(name: str, tmp_path: Path, device: list[Simulator]) -> None:
    with PLAIN[name]().open(tmp_path / "m.gguf") as model:
        made, tokens = answered(model, "cuda", text(4, n_vocab=40), "f32")
        wanted, right = answered(model, "cpu", text(4, n_vocab=40), "f32")
    assert tokens == right
    assert np.abs(made - wanted).max() < 1e-4 * wanted.std()
