"""Products and whole models of all types in memory between fences, in a process of its own, which a step beyond ends.

    python -m engine.fenced_trials VARIANT begin|end SEED SECONDS [all]

First every type once, then trials by chance until the time is over. A line is printed before each trial, so that the
last one names what ended the process; what comes out must be what comes out without fences, bit for bit.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tiny_models import TinyModel, text, tiny

from gpack.engine.backends.cpu import buffers, matmul, matrices
from gpack.generated.constants import GgmlType

from . import fenced
from .products import BLOCKS, NUMBERS, PLAIN, Bed, random_rows, tensor
from .toy_recurrent import qwen35, qwen35moe

CACHES = ("F32", "F16", "Q8_0")


@dataclass(frozen=True)
class Product:
    """One product, with all its sizes."""

    name: str
    compute: Any
    rows: int
    n_in: int
    tokens: int
    threads: int
    experts: int  # 0: a plain matrix
    seed: int

    def run(self, variant: str) -> list[NDArray[Any]]:
        """What comes out, and the last row as `embed` gives it."""
        bed = Bed(variant, self.compute, threads=self.threads, max_batch=self.tokens)
        used = min(2, self.experts)
        raw = random_rows(self.name, self.rows * max(self.experts, 1), self.n_in, self.seed)
        x = buffers.Activations(self.tokens, self.n_in)
        x.array[:] = np.random.default_rng(self.seed).standard_normal(x.array.shape)
        out = buffers.Buffer(self.tokens, self.rows, per_token=max(used, 1))
        row = buffers.Buffer(self.tokens, self.n_in)
        if self.experts:
            held = matrices.ExpertsView.of(tensor(self.name, raw, self.n_in, self.rows, self.experts))
            chosen = buffers.aligned((self.tokens, used), np.int32)
            chosen[:] = [[(token + at) % self.experts for at in range(used)] for token in range(self.tokens)]
            matmul.moe_matmul(bed.program, bed.work, held, chosen, x, out)
        else:
            matrix = matrices.MatrixView.of(tensor(self.name, raw, self.n_in))
            matmul.matmul(bed.program, bed.work, matrix, x, out)
            ids = buffers.aligned((self.tokens,), np.int32)
            ids[:] = self.rows - 1
            matmul.embed(bed.program, bed.work, matrix, ids, row)
        bed.run(1, self.tokens)
        return [out.array.copy(), row.array.copy()]


def every_product() -> Iterator[Product]:
    """Each type once with a plain matrix, and once with experts."""
    for name in (*BLOCKS, *PLAIN):
        n_in = GgmlType.BLOCK[NUMBERS[name]] if name in BLOCKS else 77
        for compute, rows in (("int8", 1), ("int8", 19), ("f32", 16)):
            yield Product(name, compute, rows, n_in, 9, 1, 0, 0)
        for compute in ("int8", "f32"):
            yield Product(name, compute, 5, n_in, 3, 2, 3, 0)


def any_product(rng: Random) -> Product:
    """One by chance."""
    name = rng.choice((*BLOCKS, *PLAIN))
    block = GgmlType.BLOCK[NUMBERS[name]] if name in BLOCKS else 1
    return Product(
        name,
        rng.choice(("int8", "f32")),
        rng.choice((1, 2, 7, 15, 16, 17, 31, 33, 64, 100)),
        block * rng.choice((1, 2, 3, 5) if block > 1 else (1, 3, 8, 15, 16, 31, 33, 64, 100, 257)),
        rng.choice((1, 2, 3, 4, 5, 8, 9, 16, 17, 33)),
        rng.choice((1, 2, 3)),
        rng.choice((0, 0, 0, 1, 4)),
        rng.randrange(1 << 16),
    )


@dataclass(frozen=True)
class Whole:
    """A model's steps on one text."""

    name: str
    model: TinyModel
    prompt: int
    options: tuple[tuple[str, Any], ...]

    def run(self, path: Path, variant: str) -> list[NDArray[Any]]:
        """Logits after the prompt and after each token then."""
        ids = text(self.prompt + 3)
        with self.model.open(path) as loaded, loaded.session(cpu=variant, **dict(self.options)) as session:
            return [session.decode(ids[: self.prompt]), *(session.decode([token]) for token in ids[self.prompt :])]


def every_model() -> Iterator[Whole]:
    """A few of each kind of layer."""
    kinds = {
        "llama": tiny(),
        "qwen2": tiny("qwen2", tied=True),
        "qwen3moe": tiny("qwen3moe", n_expert=7, n_used=3, width=40, n_head=3, n_kv=3),
        "gemma3": tiny("gemma3", n_layer=3, attention__sliding_window=3, attention__sliding_window_pattern=2),
        "qwen35": qwen35(),
        "qwen35moe": qwen35moe(),
    }
    for at, (name, model) in enumerate(kinds.items()):
        options = {"compute": ("f32", "int8")[at % 2], "cache_type": CACHES[at % 3], "threads": 2, "batch": 37}
        yield Whole(name, model, 41, tuple(options.items()))


def any_model(rng: Random) -> Whole:
    """One by chance."""
    name = rng.choice(("llama", "qwen2", "qwen3", "qwen3moe", "gemma3"))
    n_kv = rng.choice((1, 2, 3))
    keys: dict[str, Any] = {"n_expert": rng.choice((3, 4)), "n_used": 2} if name == "qwen3moe" else {}
    if name == "gemma3":
        keys |= {"attention__sliding_window": rng.choice((1, 3, 50)), "attention__sliding_window_pattern": 2}
    n_head, width = n_kv * rng.choice((1, 2, 3)), 2 * rng.choice((4, 5, 8, 16, 33))
    model = tiny(
        name,
        n_layer=2,
        n_embd=n_head * width if name == "qwen2" else rng.choice((32, 33, 40, 64)),
        n_kv=n_kv,
        n_head=n_head,
        width=width,
        n_ff=rng.choice((32, 48, 50, 96)),
        n_vocab=rng.choice((40, 41, 100)),
        seed=rng.randrange(99),
        **keys,
    )
    options = {
        "compute": rng.choice(("f32", "int8")),
        "cache_type": rng.choice(CACHES),
        "threads": rng.choice((1, 2, 3)),
        "batch": rng.choice((1, 5, 37, 64)),
    }
    return Whole(f"{name} {model.metadata}", model, rng.choice((1, 2, 31, 65, 130, 300)), tuple(options.items()))


def main() -> None:
    """Runs the trials; each is computed without fences first, in a run of this program for all of them."""
    variant, end, seed, seconds, *_ = sys.argv[1:]
    rng, stops = Random(int(seed)), time.monotonic() + float(seconds)
    plain_aligned, done = buffers.aligned, 0
    with tempfile.TemporaryDirectory(prefix="gpack-fuzz-") as folder:
        path = Path(folder) / "m.gguf"
        trials: list[Product | Whole] = [*every_product(), *every_model()]
        while True:
            wanted = [
                trial.run(variant) if isinstance(trial, Product) else trial.run(path, variant) for trial in trials
            ]
            with fenced.installed(at_end=end == "end"):
                assert buffers.aligned is not plain_aligned
                for trial, expected in zip(trials, wanted, strict=True):
                    print(
                        trial if isinstance(trial, Product) else (trial.name, trial.prompt, trial.options), flush=True
                    )
                    made = trial.run(variant) if isinstance(trial, Product) else trial.run(path, variant)
                    for one, other in zip(made, expected, strict=True):
                        if not np.array_equal(one, other, equal_nan=True):
                            sys.exit("another result than without fences")
            done += len(trials)
            if time.monotonic() >= stops:
                break
            trials = [any_product(rng) for _ in range(20)] + [any_model(rng)]
    print(f"trials {done}", flush=True)


if __name__ == "__main__":
    main()
