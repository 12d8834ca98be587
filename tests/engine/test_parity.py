"""The CPU computes what the reference computes: every kind of operation, every type of weights, every architecture.

Where the CPU rounds, activations to 8 bits or keys and values to the type of a cache, the reference rounds alike.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from exhaustive import each_value, thinned
from tiny_models import DATA, ORACLE, text

from gpack.engine.backends import make_backend
from gpack.engine.backends.base import Backend
from gpack.engine.backends.cpu.buffers import Activations
from gpack.engine.backends.cpu.layout import Q8_BYTES, Q8_CODES, Q8_SCALE
from gpack.engine.backends.cpu.variants import usable
from gpack.engine.backends.reference import ReferenceBackend
from gpack.engine.backends.reference.operations import OPERATIONS
from gpack.engine.backends.reference.rounding import as_8_bits
from gpack.engine.engine import Chunk
from gpack.engine.graph import NgramTable, Part, Value
from gpack.engine.graph.rope import Rope, Yarn
from gpack.errors import UnsupportedError
from gpack.generated.constants import GgmlType
from gpack.model import GuildModel, ModelPaths
from gpack.model.ngram import NgramHash

from .graph_runs import Bed, Doubles, Pair, Text, experts, matrix, quantised, random, vector
from .products import BLOCKS, NUMBERS, PLAIN, plain_rows, random_rows
from .products import Bed as ProductBed
from .test_architectures import MODELS
from .toy_qwen4exp import qwen4exp

VARIANTS = [variant.name for variant in usable()]
WITHOUT_KERNELS = ("F64", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0", "NVFP4")
N = 90  # rows of inputs

Build = Callable[[Pair, Value], Value]


@contextmanager
def backends(variant: str, compute: Any) -> Iterator[tuple[Backend, Backend]]:
    """The CPU's and the reference that rounds alike."""
    cpu = make_backend("cpu", threads=2, compute=compute, batch=N, cpu=variant)
    try:
        yield cpu, ReferenceBackend(compute=compute, batch=N, round_caches=True)
    finally:
        cpu.close()


def runs(backend: Backend, pair: Pair, cache_type: str = "F32", *, logits: bool = True) -> Doubles:
    """Hidden states, and logits, of two texts that take turns in steps of many rows and few."""
    bed = Bed(backend, pair, cache_types=(cache_type,))
    texts: list[Text] = [bed.text(cache_type), bed.text(cache_type)]
    made: list[Doubles] = []
    n = len(pair.inputs)
    for number, (first, end) in enumerate(((0, 1), (1, 40), (40, 42), (42, 43), (43, N))):
        parts = [(texts[0], [row % n for row in range(first, end)])]
        if number % 2:
            parts.insert(0, (texts[1], [(3 * row + 1) % n for row in range(14 * number, 28 * number)]))
        rows = sum(len(part) for _, part in parts)
        wanted = list(range(0, rows, 2)) if logits else []
        made += [values.reshape(-1) for values in bed.step(*parts, wanted=wanted)]
    return np.concatenate(made)


def check(variant: str, pair: Pair, *, compute: str = "f32", cache_type: str = "F32", tolerance: float = 1e-4) -> None:
    with backends(variant, compute) as (cpu, reference):
        made, wanted = (runs(backend, pair, cache_type) for backend in (cpu, reference))
    assert wanted.std() > 0.05
    np.testing.assert_allclose(made, wanted, rtol=0, atol=tolerance * wanted.std())


# ---------------------------------------------------------------- operations


def product(width: int, n_out: int, seed: int = 3) -> Any:
    """A matrix of floats."""
    return matrix(f"m {width} {n_out} {seed}", random(seed, n_out, width, size=width**-0.5))


def mixture(pair: Pair, x: Value) -> Value:
    """Experts behind a router; both ways in which an expert's product is taken."""
    g, width = pair.body, x.width
    routing = g.route(g.matmul(x, product(width, 6, 9)), 3, 1.5)
    up = g.expert_matmul(x, experts("up", random(4, 6, 40, width, size=width**-0.5)), routing)
    gate = g.expert_matmul(x, experts("gate", random(5, 6, 40, width, size=width**-0.5)), routing)
    down = experts("down", random(6, 6, width, 40, size=40**-0.5))
    return g.mix(g.expert_matmul(g.gate(gate, up, "silu"), down, routing), routing)


def attention(rope: Rope, *, window: int = 0, norms: bool = False, head_dim: int = 16) -> Build:
    def build(pair: Pair, x: Value) -> Value:
        n_head, n_head_kv = 6, 2
        whole = pair.body.matmul(x, product(x.width, (n_head + 2 * n_head_kv) * head_dim))
        ends = (0, n_head * head_dim, (n_head + n_head_kv) * head_dim, (n_head + 2 * n_head_kv) * head_dim)
        q, k, v = (Part(whole, ends[i], ends[i + 1] - ends[i]) for i in range(3))
        weights = [vector(f"{name}_norm", 1 + random(seed, head_dim) / 4) for seed, name in ((1, "q"), (2, "k"))]
        return pair.body.attention(
            q,
            k,
            v,
            layer=0,
            n_head=n_head,
            n_head_kv=n_head_kv,
            rope=rope,
            scale=head_dim**-0.5,
            window=window,
            q_norm=weights[0] if norms else None,
            k_norm=weights[1] if norms else None,
            epsilon=1e-5,
        )

    return build


def delta_rule(pair: Pair, x: Value) -> Value:
    g, n_head, n_head_k, size = pair.body, 4, 2, 16
    whole = g.matmul(x, product(x.width, (n_head + 2 * n_head_k) * size))
    q, k = Part(whole, 0, n_head_k * size), Part(whole, n_head_k * size, n_head_k * size)
    v = Part(whole, 2 * n_head_k * size, n_head * size)
    alpha, beta = (g.matmul(x, product(x.width, n_head, seed)) for seed in (7, 8))
    a, dt = vector("a", -np.exp(random(8, n_head))), vector("dt", random(9, n_head))
    return g.delta_rule(q, k, v, alpha, beta, layer=0, a=a, dt_bias=dt, n_head=n_head, n_head_k=n_head_k, epsilon=1e-6)


def x_norm(x: Value) -> Any:
    """Weights of a norm."""
    return random(2, x.width)


def sparse_attention(block: int, n_blocks: int, *, index_dim: int = 20) -> Build:
    """Chosen by an indexer of three heads; less than all is seen from the position (n_blocks + 1) · block - 1 on."""

    def build(pair: Pair, x: Value) -> Value:
        g, head_dim, n_index = pair.body, 20, 3
        q, k, v = (Part.of(g.matmul(x, product(x.width, count * head_dim, 30 + count))) for count in (6, 2, 3))
        v = Part(v.value, head_dim, 2 * head_dim)
        index_q = Part.of(g.matmul(x, product(x.width, n_index * index_dim, 41)))
        norms = {
            name: vector(name, 1 + random(seed, size) / 4)
            for seed, (name, size) in enumerate(
                (("q_norm", 20), ("k_norm", 20), ("index_q_norm", index_dim), ("index_k_norm", index_dim))
            )
        }
        return g.sparse_attention(
            q,
            k,
            v,
            index_q=index_q,
            index_k=Part.of(g.matmul(x, product(x.width, index_dim, 42))),
            layer=0,
            n_head=6,
            n_head_kv=2,
            n_index_head=n_index,
            rope=Rope(12, 1000.0, interleaved=False),
            scale=head_dim**-0.5,
            epsilon=1e-5,
            block=block,
            n_blocks=n_blocks,
            **norms,
        )

    return build


class Rows:
    """A table in memory."""

    def __init__(self, values: npt.NDArray[np.float32]) -> None:
        self.table = values

    def values(self, ids: Any) -> npt.NDArray[np.float32]:
        found: npt.NDArray[np.float32] = self.table[ids]
        return found


def ngram_rows(pair: Pair, _x: Value) -> Value:
    """Of the last three tokens, with a separator among them."""
    sizes = (11, 13, 17, 19)
    hash_ = NgramHash(3, 2, (123457, 76543, 998877), (0, 11, 24, 41), sizes, 7)
    return pair.body.ngram_rows(NgramTable("table", hash_, 10, Rows(random(8, sum(sizes), 10))))


def piece_gate(pair: Pair, x: Value) -> Value:
    """Also where a product is 0, and where it is nearly so."""
    g = pair.body
    k = g.matmul(x, product(x.width, 3 * 40, 1))
    none = g.scale(g.columns(k, 0, 40, 0, 3), 1e-5)
    value = g.matmul(x, product(x.width, 40, 2))
    return g.add(g.piece_gate(k, k, value, 3, 0.3), g.piece_gate(none, g.scale(k, 0.0), value, 3, 0.3))


# By kind; each function's last operation is of that kind, but for what only makes sense with others around it.
CASES: dict[str, dict[str, Build]] = {
    "Embed": {"rows": lambda pair, x: x},
    "Pick": {"rows": lambda pair, x: x},
    "Given": {"and kept": lambda pair, x: pair.body.add(pair.body.given(x.width), pair.body.scale(x, 2.0))},
    "Concat": {
        "two": lambda pair, x: pair.body.concat(pair.body.given(24), pair.body.rms(x, vector("w", x_norm(x)), 1e-3)),
        "itself, and kept": lambda pair, x: pair.body.matmul(pair.body.concat(x, x), product(2 * x.width, x.width)),
    },
    "RmsNorm": {
        "row": lambda pair, x: pair.body.rms(x, vector("w", random(2, x.width)), 1e-3),
        "pieces": lambda pair, x: pair.body.rms(x, vector("w", random(2, x.width // 4)), 1e-3),
    },
    "MatMul": {
        "plain": lambda pair, x: pair.body.matmul(x, product(x.width, 37)),
        "bias": lambda pair, x: pair.body.matmul(x, product(x.width, 64), vector("b", random(4, 64))),
    },
    "Add": {
        "kept": lambda pair, x: pair.body.add(x, pair.body.rms(x, vector("w", random(2, x.width)), 1e-3)),
        "product": lambda pair, x: pair.body.add(x, pair.body.matmul(x, product(x.width, x.width))),
        "itself": lambda pair, x: pair.body.add(x, x),
    },
    "Scale": {
        "row": lambda pair, x: pair.body.scale(x, -2.5),
        "and kept": lambda pair, x: pair.body.add(pair.body.scale(x, 3.0), x),
    },
    "Gate": {
        **{
            name: lambda pair, x, name=name: pair.body.gate(  # type: ignore[misc]
                pair.body.matmul(x, product(x.width, 96, 1)), pair.body.matmul(x, product(x.width, 96, 2)), name
            )
            for name in ("silu", "gelu", "sigmoid")
        },
        "itself": lambda pair, x: pair.body.gate(x, x, "gelu"),
        "one element": lambda pair, x: pair.body.gate(pair.body.matmul(x, product(x.width, 1)), x, "sigmoid"),
        "and kept": lambda pair, x: pair.body.add(pair.body.gate(x, pair.body.scale(x, 2.0), "silu"), x),
    },
    "Columns": {"pieces": lambda pair, x: pair.body.columns(x, 8, 16, 32, 2)},
    "Activate": {
        name: lambda pair, x, name=name: pair.body.activate(  # type: ignore[misc]
            pair.body.matmul(x, product(x.width, 45)), name, factor=0.5, scale=3.0
        )
        for name in ("silu", "sigmoid")
    },
    "PieceNorm": {
        "pieces": lambda pair, x: pair.body.piece_norm(
            pair.body.matmul(x, product(x.width, 3 * 23)), vector("w", random(2, 3 * 23)), 3, 1e-3
        )
    },
    "MeanPieces": {"pieces": lambda pair, x: pair.body.mean_pieces(pair.body.matmul(x, product(x.width, 3 * 23)), 3)},
    "AddToPieces": {
        "pieces": lambda pair, x: pair.body.add_to_pieces(
            pair.body.matmul(x, product(x.width, 3 * 23, 1)),
            pair.body.matmul(x, product(x.width, 23, 2)),
            pair.body.matmul(x, product(x.width, 3, 4)),
        ),
        "and kept": lambda pair, x: pair.body.add(
            pair.body.add_to_pieces(x, pair.body.mean_pieces(x, 2), pair.body.matmul(x, product(x.width, 2))), x
        ),
    },
    "PieceGate": {"pieces": piece_gate},
    "NgramRows": {"three tokens": ngram_rows},
    "SparseAttention": {
        "fours": sparse_attention(4, 5),
        "threes": sparse_attention(3, 2, index_dim=13),
        "larger than a tile": sparse_attention(24, 1),
        "all seen": sparse_attention(4, 30),
    },
    "SoftCap": {"row": lambda pair, x: pair.body.soft_cap(pair.body.scale(x, 4.0), 2.0)},
    "Attention": {
        "interleaved": attention(Rope(16, 1000.0, interleaved=True)),
        "neox, norms": attention(Rope(16, 1000.0, interleaved=False), norms=True),
        "partial": attention(Rope(8, 50.0, interleaved=False, factor=3.0), head_dim=24),
        "yarn": attention(Rope(16, 1000.0, interleaved=False, factor=4.0, yarn=Yarn(40))),
        "divisors": attention(Rope(16, 1000.0, interleaved=True, divisors=(1, 1, 1, 1.5, 2, 4, 8, 8))),
        "window": attention(Rope(16, 1000.0, interleaved=False), window=5),
        "window of a row": attention(Rope(16, 1000.0, interleaved=False), window=1, norms=True),
    },
    "Route": {"experts": mixture},
    "ExpertMatMul": {"experts": mixture},
    "Mix": {"experts": mixture, "and kept": lambda pair, x: pair.body.add(x, mixture(pair, x))},
    "CausalConvolution": {
        "four": lambda pair, x: pair.body.convolution(x, vector("w", random(6, 4 * x.width) / 2), 4, layer=0),
        "every third": lambda pair, x: pair.body.convolution(
            x, vector("w", random(6, 4 * x.width) / 2), 4, layer=0, dilation=3
        ),
    },
    "DeltaRule": {"heads": delta_rule},
}


def built(build: Build, width: int = 64) -> Pair:
    """The pair of a case."""
    pair = Pair(random(11, N, width))
    return pair.end(build(pair, pair.begin()))


def test_every_kind_of_operation_has_a_case() -> None:
    assert {kind.__name__ for kind in OPERATIONS} == set(CASES)
    for kind, cases in CASES.items():
        for build in cases.values():
            pair = built(build)
            assert pair.head is not None
            assert kind in {operation.kind for graph in (pair.body, pair.head) for operation in graph.operations}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_operations(variant: str, kind: str) -> None:
    for build in CASES[kind].values():
        check(variant, built(build))


@pytest.mark.parametrize("cache_type", ["F16", "Q8_0"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_attention_over_rounded_caches(variant: str, cache_type: str) -> None:
    """But for the few numbers that float32 and float64 round to different neighbours."""
    for build in (*CASES["Attention"].values(), *CASES["SparseAttention"].values()):
        with backends(variant, "f32") as (cpu, reference):
            made, wanted = (runs(backend, built(build), cache_type) for backend in (cpu, reference))
        differences = np.abs(made - wanted) / wanted.std()
        assert np.quantile(differences, 0.95) < 1e-4
        assert differences.max() < 0.05


# ---------------------------------------------------------------- types of weights


def rows_of_type(name: str, rows: int, n_in: int) -> Any:
    """Stored rows of any type, with values of about 1."""
    if name == "F64":
        return np.ascontiguousarray(random(5, rows, n_in).astype("<f8")).view(np.uint8)
    if name in PLAIN:
        return plain_rows(name, random(5, rows, n_in))
    if name in BLOCKS:
        return random_rows(name, rows, n_in)
    rng, number = np.random.default_rng(5), NUMBERS[name]
    raw = rng.integers(0, 256, (rows, n_in // GgmlType.BLOCK[number], GgmlType.BYTES[number]), np.uint8)
    scale = np.array([0.03], "<f2").view(np.uint8)
    if name in ("TQ1_0", "TQ2_0"):
        raw[..., -2:] = scale
    elif name == "IQ1_S":
        raw[..., :2] = scale
    elif name == "IQ1_M":
        raw[..., -7::2] = raw[..., -7::2] & 0x0F | 0x10  # the scale's bits are the upper ones of four words
    else:  # NVFP4: a byte for each 16
        raw[..., :4] = rng.integers(0x20, 0x30, raw[..., :4].shape)
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("compute", ["f32", "int8"])
@pytest.mark.parametrize("name", [*BLOCKS, *PLAIN, *WITHOUT_KERNELS])
@pytest.mark.parametrize("variant", VARIANTS)
def test_products(variant: str, name: str, compute: str) -> None:
    """Of the inputs, whose bits both see: only the sums differ."""
    n_in = max(64, 2 * GgmlType.BLOCK[NUMBERS[name]])
    weights = quantised("m", rows_of_type(name, 40, n_in), NUMBERS[name], n_in)

    pair = built(lambda pair, x: pair.body.matmul(x, weights), n_in)
    with backends(variant, compute) as (cpu, reference):
        made, wanted = (runs(backend, pair, logits=False) for backend in (cpu, reference))
    np.testing.assert_allclose(made, wanted, rtol=0, atol=1e-5 * wanted.std())


@pytest.mark.parametrize("variant", VARIANTS)
def test_activations_are_rounded_alike(variant: str) -> None:
    """Every code and every scale: of random groups, of halves, of equal values, of the smallest and the largest."""
    rng = np.random.default_rng(0)
    signs = rng.choice([-1, -0.5, 0, 0.5, 1], (300, 32))
    wide = [np.ldexp(rng.standard_normal((100, 32)), power) for power in (-140, -121, -120, 0, 120, 124)]
    halves = np.rint(40 * rng.standard_normal((1000, 32))) / 2
    x = np.concatenate([rng.standard_normal((1000, 32)), halves, signs, rng.standard_cauchy((300, 32)), *wide])
    x = x.astype(np.float32)
    x[-30:, 3], x[-20:, 7], x[-10:, 3] = np.nan, np.inf, -np.inf
    bed, source = ProductBed(variant, max_batch=len(x)), Activations(len(x), 32)
    source.array[:] = x
    bed.program.add("quantize_q8", bed.work.state.ctypes.data, source.address, 1, source.rounded_address)
    bed.run(len(x))
    raw = np.ctypeslib.as_array((ctypes.c_uint8 * (len(x) * Q8_BYTES)).from_address(source.rounded_address))
    groups = raw.reshape(-1, Q8_BYTES)
    scales = np.ascontiguousarray(groups[:, Q8_SCALE : Q8_SCALE + 4]).view("<f4").astype(np.float64)
    with np.errstate(invalid="ignore"):
        made = groups[:, Q8_CODES : Q8_CODES + 32].view(np.int8) * scales
    assert np.array_equal(made, as_8_bits(x.astype(np.float64)), equal_nan=True)


@pytest.mark.parametrize("name", [*BLOCKS, *PLAIN, *WITHOUT_KERNELS])
def test_rows_of_tokens(name: str) -> None:
    n_in = 2 * GgmlType.BLOCK[NUMBERS[name]]
    pair = Pair(np.zeros((9, n_in)))
    pair.end(pair.body.embed(quantised("m", rows_of_type(name, 9, n_in), NUMBERS[name], n_in)))
    with backends(VARIANTS[0], "f32") as (cpu, reference):
        assert np.array_equal(runs(cpu, pair, logits=False), runs(reference, pair, logits=False))


# ---------------------------------------------------------------- whole models


def compared(model: GuildModel, ids: list[int], variant: str, compute: str, cache_type: str) -> tuple[Doubles, Doubles]:
    """Logits of a text, which the CPU gets in three parts."""
    made = []
    for device, options in (("cpu", {"cpu": variant, "threads": 2}), ("reference", {})):
        with (
            model.engine(device=device, compute=compute, **options) as engine,
            engine.sequence(cache_type=cache_type, n_ctx=len(ids)) as sequence,
        ):
            if device == "reference":
                engine.backend.round_caches = True  # type: ignore[attr-defined]
            ends = [0, len(ids) - 7, len(ids) - 6, len(ids)]
            parts = [Chunk(sequence, ids[first:end], "all") for first, end in pairwise(ends)]
            made.append(np.concatenate([engine.step([part]).logits for part in parts]).astype(np.float64))
    return made[0], made[1]


@each_value
@pytest.mark.parametrize("name", [*MODELS, "qwen4exp"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_architectures(variant: str, name: str, tmp_path: Path) -> None:
    with (MODELS | {"qwen4exp": qwen4exp()})[name].open(tmp_path / "m.gguf") as model:
        made, wanted = compared(model, text(90), variant, "f32", "F32")
    np.testing.assert_allclose(made, wanted, rtol=0, atol=1e-4 * wanted.std())


def oracle(folder: str) -> list[str]:
    """Models beside the repository, and the two that are in it."""
    found = sorted(path.stem for path in (ORACLE / folder).glob("*.gguf")) if (ORACLE / folder).is_dir() else []
    return found or sorted(path.stem for path in DATA.glob("*.gguf") if folder == "models")


def opened(folder: str, name: str) -> tuple[GuildModel, list[int]]:
    """A golden model and its prompt."""
    place = next(place for place in (ORACLE / folder, DATA) if (place / f"{name}.gguf").exists())
    with np.load(place / f"{name}.npz") as stored:
        ids = stored["prompt"].tolist()
    return GuildModel.load(ModelPaths(primary_model_path=place / f"{name}.gguf")), ids


@pytest.mark.parametrize("name", oracle("models"))
def test_oracle_models(name: str) -> None:
    model, ids = opened("models", name)
    with model:
        try:
            made, wanted = compared(model, ids, VARIANTS[0], "f32", "F32")
        except UnsupportedError as error:
            if error.code != "engine.architecture":
                raise
            pytest.skip(f"not run yet: {error.message}")
    np.testing.assert_allclose(made, wanted, rtol=0, atol=1e-4 * wanted.std())


@pytest.mark.parametrize("name", thinned(oracle("quant"), 5))
def test_quantised_oracle_models(name: str) -> None:
    """Without rounded activations to 1e-4.

    With them, a value between two codes may become the other one, which moves all that follow by as much as rounding
    does. But the CPU is no further from exact values than the reference that rounds alike.
    """
    model, ids = opened("quant", name)
    with model:
        made, exact = compared(model, ids, VARIANTS[0], "f32", "F32")
        np.testing.assert_allclose(made, exact, rtol=0, atol=1e-4 * exact.std())
        made, wanted = compared(model, ids, VARIANTS[0], "int8", "F32")
    noise, difference, distance = (_size(x) for x in (wanted - exact, made - wanted, made - exact))
    assert difference <= 1.5 * noise + 1e-4 * exact.std()
    assert 0.6 * noise - 1e-4 * exact.std() <= distance <= 1.6 * noise + 1e-4 * exact.std()


def _size(differences: Doubles) -> float:
    """Of most rows: some rows of a mixture go to other experts, and are far away."""
    return float(np.median(np.sqrt(np.mean(differences**2, axis=-1))))
