"""The reference backend: each operation against values that were worked out by hand or by another formula."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from exhaustive import each_value
from float64_model import rotate as rotate_one

from gpack.engine.backends.base import StateGroups
from gpack.engine.backends.reference import ReferenceBackend
from gpack.engine.backends.reference.rounding import as_8_bits, as_cached
from gpack.engine.graph import Experts, Graph, Part
from gpack.engine.graph.operations import Activation, Operation
from gpack.engine.graph.rope import Rope, Yarn
from gpack.engine.graph.states import Convolution, DeltaMatrices, KeyValues, StateId
from gpack.engine.graph.weights import PagedExperts
from gpack.errors import UnsupportedError, UsageError
from gpack.generated.constants import GgmlType
from gpack.tensor import Tensor

from .graph_runs import Bed, Doubles, Pair, experts, matrix, quantised, random, stored, vector, whole

PLAIN_ROPE = Rope(4, 100.0, interleaved=False)


def close(made: Doubles, wanted: Any, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(made, wanted, atol=tolerance, rtol=tolerance)


def run(pair: Pair, tokens: list[int], **options: Any) -> Doubles:
    return whole(ReferenceBackend(**options), pair, tokens)


# ---------------------------------------------------------------- row by row


def test_rows_of_tokens() -> None:
    pair = Pair(np.array([[1, 2], [3, 4], [5, 6]]))
    close(run(pair.end(pair.begin()), [2, 0, 2]), [[5, 6], [1, 2], [5, 6]])


def test_rows_of_quantised_tokens() -> None:
    """Q8_0: a scale of 0.5 in 16 bits, and codes; the second row's is -2."""
    raw = np.zeros((2, 34), np.uint8)
    raw[:, :2] = np.array([[0.5], [-2]], "<f2").view(np.uint8)
    raw[:, 2:] = np.arange(-16, 16, dtype=np.int8).view(np.uint8)
    pair = Pair(np.zeros((0, 0)))
    pair.end(pair.body.embed(quantised("inputs", raw, GgmlType.Q8_0, 32)))
    codes = np.arange(-16, 16)
    close(run(pair, [1, 0]), [-2 * codes, codes / 2])


def test_logits_are_those_of_the_wanted_rows() -> None:
    pair = Pair(np.eye(3))
    pair.end(pair.begin())
    bed = Bed(ReferenceBackend(), pair)
    _, logits = bed.step((bed.text(), [0, 1]), (bed.text(), [2]), wanted=[2, 0])
    close(logits, pair.output.T[[2, 0]])
    assert bed.step((bed.text(), [0]))[1].shape == (0, 5)


def test_rms_norm() -> None:
    pair = Pair(np.array([[3.0, 4.0]]))
    pair.end(pair.body.rms(pair.begin(), vector("w", [2, 1]), 12.5))
    close(run(pair, [0]), [[6 / 5, 4 / 5]])  # mean of 9 and 16 and epsilon: 25


def test_rms_norm_of_pieces() -> None:
    pair = Pair(np.array([[3.0, 4.0, -6.0, 8.0]]))
    pair.end(pair.body.rms(pair.begin(), vector("w", [2, 1]), 0.0))
    close(run(pair, [0])[0] * math.sqrt(12.5), [6, 4, -6, 4])


def test_columns() -> None:
    """Two of each five, three times, from the second on."""
    pair = Pair(np.arange(30).reshape(2, 15))
    pair.end(pair.body.columns(pair.begin(), 1, 2, 5, 3))
    close(run(pair, [1, 0]), [[16, 17, 21, 22, 26, 27], [1, 2, 6, 7, 11, 12]])


def test_product_and_bias() -> None:
    pair = Pair(np.array([[1.0, 2.0, 3.0]]))
    pair.end(pair.body.matmul(pair.begin(), matrix("m", [[1, 0, -1], [2, 2, 2]]), vector("b", [10, 0.5])))
    close(run(pair, [0]), [[8, 12.5]])


def test_sum_and_factor() -> None:
    pair = Pair(np.array([[1.0, -2.0]]))
    x = pair.begin()
    pair.end(pair.body.add(x, pair.body.scale(x, 3.0)))
    close(run(pair, [0]), [[4, -8]])


@pytest.mark.parametrize(
    ("activation", "at_one"),
    # sigmoid(1); 1 · that; 0.5 (1 + tanh(sqrt(2/pi) 1.044715)).
    [("sigmoid", 0.7310585786300049), ("silu", 0.7310585786300049), ("gelu", 0.8411919906082768)],
)
def test_gates(activation: Activation, at_one: float) -> None:
    pair = Pair(np.array([[1.0], [0.0], [-800.0], [800.0]]))
    x = pair.begin()
    pair.end(pair.body.gate(x, pair.body.scale(x, 2.0), activation))
    at_800, at_zero = (1.0, 0.0) if activation == "sigmoid" else (800.0, 0.0)
    close(run(pair, [0, 1, 2, 3])[:, 0], [2 * at_one, at_zero, 0, 1600 * at_800])


def test_soft_cap() -> None:
    pair = Pair(np.array([[30.0, -0.5]]))
    pair.end(pair.body.soft_cap(pair.begin(), 2.0))
    close(run(pair, [0]), [[2 * math.tanh(15), -2 * math.tanh(0.25)]])


# ---------------------------------------------------------------- experts


def routed(scores: npt.ArrayLike, n_used: int, factor: float = 1.0) -> Doubles:
    """What a router gives to each expert: expert e gives the unit vector e."""
    rows = np.asarray(scores, np.float64)
    pair, n_expert = Pair(rows), rows.shape[1]
    x = pair.begin()
    routing = pair.body.route(x, n_used, factor)
    weights = np.zeros((n_expert, n_expert, n_expert))
    for expert in range(n_expert):
        weights[expert, expert, 0] = 1
    first = pair.body.add(pair.body.scale(x, 0.0), pair.body.embed(matrix("ones", np.ones(rows.shape))))
    pair.end(pair.body.mix(pair.body.expert_matmul(first, experts("e", weights), routing), routing))
    return run(pair, list(range(len(rows))))


def test_a_router_takes_the_most_probable_and_of_equals_the_first() -> None:
    wanted = [[0, 5 / 8, 0, 3 / 8], [1 / 2, 1 / 2, 0, 0]]
    close(routed(np.log([[1, 5, 2, 3], [4, 4, 4, 4]]), 2), wanted, 1e-7)  # logarithms are float32 there


def test_a_router_s_factor_and_least_sum() -> None:
    close(routed(np.log([[1, 3]]), 1, factor=2.5), [[0, 2.5]])
    # One expert of 2^15 that are alike has 2^-15; it is divided by 2^-14.
    pair = Pair(np.zeros((1, 1 << 15)))
    x = pair.begin()
    routing = pair.body.route(x, 1, 1.0)
    narrow = pair.body.matmul(x, matrix("none", np.zeros((1, 1 << 15))), vector("one", [1]))
    both = experts("e", np.full((1 << 15, 1, 1), 3))
    pair.end(pair.body.mix(pair.body.expert_matmul(narrow, both, routing), routing))
    close(run(pair, [0]), [[1.5]])


class Shelf:
    """A source of experts that notes which were asked for."""

    def __init__(self, parts: list[npt.NDArray[np.float32]]) -> None:
        self.parts, self.asked = parts, [(-1, -1)][:0]

    def get(self, layer: int, expert: int) -> tuple[Tensor, ...]:
        self.asked.append((layer, expert))
        return tuple(stored("e", part[expert], GgmlType.F32, *reversed(part.shape[1:])) for part in self.parts)


def test_experts_stacked_paged_and_as_halves_of_one_tensor() -> None:
    gate, up, down = random(1, 4, 6, 3), random(2, 4, 6, 3), random(3, 4, 3, 6)
    x = random(4, 5, 3)
    fused = np.concatenate([gate, up], axis=1)
    shelf = Shelf([gate, up, down])
    tensor = experts("gate_up", fused).stored

    def parts_of(kind: str) -> tuple[Experts, Experts, Experts]:
        if kind == "stacked":
            return experts("gate", gate), experts("up", up), experts("down", down)
        if kind == "fused":
            first, second = (Experts("gate_up", GgmlType.F32, 4, 6, 3, tensor, row) for row in (0, 6))
            return first, second, experts("down", down)
        sizes = ((6, 3), (6, 3), (3, 6))
        made = [
            Experts(name, GgmlType.F32, 4, *size, PagedExperts(shelf, 7, part))
            for part, (name, size) in enumerate(zip(("gate", "up", "down"), sizes, strict=True))
        ]
        return made[0], made[1], made[2]

    router = random(5, 4, 3)
    made = []
    for kind in ("stacked", "fused", "paged"):
        pair = Pair(x)
        n, g = pair.begin(), pair.body
        first, second, third = parts_of(kind)
        routing = g.route(g.matmul(n, matrix("router", router)), 2, 1.0)
        product = g.gate(g.expert_matmul(n, first, routing), g.expert_matmul(n, second, routing), "sigmoid")
        pair.end(g.mix(g.expert_matmul(product, third, routing), routing))
        made.append(run(pair, list(range(5))))
    p = np.exp(x.astype(float) @ router.T.astype(float))
    wanted = np.zeros((5, 3))
    for row in range(5):
        best = sorted(range(4), key=lambda e: -p[row, e])[:2]
        for e in best:
            hidden = 1 / (1 + np.exp(-(gate[e] @ x[row].astype(float)))) * (up[e] @ x[row].astype(float))
            wanted[row] += p[row, e] / p[row, best].sum() * (down[e] @ hidden)
    for each in made:
        close(each, wanted)
    chosen = {number for _, number in shelf.asked}
    assert {layer for layer, _ in shelf.asked} == {7}
    assert chosen == {int(e) for row in p for e in np.argsort(-row)[:2]}


# ---------------------------------------------------------------- attention


def test_attention_by_hand() -> None:
    """One head of two elements that are not turned at position 0; at position 1 both are turned alike."""
    pair = Pair(np.array([[0.0, 0.0, 1.0, 0.0, 5.0, 6.0], [0.0, 0.0, 1.0, 0.0, 7.0, 9.0]]))
    x = pair.begin()
    parts = [Part(x, first, 2) for first in (0, 2, 4)]
    rope = Rope(2, 10.0, interleaved=False)
    attention = {"layer": 0, "n_head": 1, "n_head_kv": 1, "rope": rope, "scale": 1.0}
    pair.end(pair.body.attention(*parts, **attention))  # type: ignore[arg-type]
    # Queries of zeros see all alike.
    close(run(pair, [0, 1, 0]), [[5, 6], [6, 7.5], [17 / 3, 7]])
    # With q = (1, 0) at position 1 the scores are cos(1) and 1.
    pair = Pair(np.array([[1.0, 0.0, 1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 1.0, 0.0, 1.0, 1.0]]))
    x = pair.begin()
    parts = [Part(x, first, 2) for first in (0, 2, 4)]
    pair.end(pair.body.attention(*parts, **attention))  # type: ignore[arg-type]
    share = math.e / (math.e + math.exp(math.cos(1)))
    close(run(pair, [0, 1]), [[0, 0], [share, share]])


ROPES = {
    "interleaved": Rope(8, 1000.0, interleaved=True),
    "neox": Rope(8, 1000.0, interleaved=False),
    "partial": Rope(4, 50.0, interleaved=False, factor=3.0),
    "yarn": Rope(8, 1000.0, interleaved=False, factor=4.0, yarn=Yarn(40)),
}


@each_value
@pytest.mark.parametrize("window", [0, 1, 5, 70])
@pytest.mark.parametrize("rope", ROPES)
def test_attention_in_any_cut_equals_loops_over_positions(rope: str, window: int) -> None:
    length, n_head, n_head_kv, head_dim = 150, 6, 2, 8
    inputs = random(3, length, (n_head + 2 * n_head_kv) * head_dim)
    pair = Pair(inputs)
    x = pair.begin()
    q = Part(x, 0, n_head * head_dim)
    k, v = (Part(x, (n_head + first) * head_dim, n_head_kv * head_dim) for first in (0, n_head_kv))
    norms = (vector("q_norm", random(1, 8)), vector("k_norm", random(2, 8)))
    pair.end(
        pair.body.attention(
            q,
            k,
            v,
            layer=0,
            n_head=n_head,
            n_head_kv=n_head_kv,
            rope=ROPES[rope],
            scale=0.4,
            window=window,
            q_norm=norms[0],
            k_norm=norms[1],
            epsilon=1e-3,
        )
    )
    wanted = loops(inputs, n_head, n_head_kv, head_dim, ROPES[rope], window, [norm.values for norm in norms])
    tokens = list(range(length))
    close(run(pair, tokens), wanted)
    bed = Bed(ReferenceBackend(), pair)
    one, other = bed.text("F16"), bed.text("F32")
    made: dict[str, list[Doubles]] = {"one": [], "other": []}
    for first, end in ((0, 1), (1, 63), (63, 66), (66, 67), (67, 140), (140, 150)):
        hidden, _ = bed.step((one, tokens[first:end]), (other, tokens[first:end]))
        made["one"].append(hidden[: end - first])
        made["other"].append(hidden[end - first :])
    for parts in made.values():
        close(np.concatenate(parts), wanted)


def loops(
    inputs: npt.NDArray[np.float32], n_head: int, n_head_kv: int, d: int, rope: Rope, window: int, norms: list[Any]
) -> Doubles:
    """Attention position by position and head by head."""
    heads = inputs.astype(np.float64).reshape(len(inputs), -1, d)
    q, k, v = np.split(heads, [n_head, n_head + n_head_kv], axis=1)
    for x, weight in ((q, norms[0]), (k, norms[1])):
        for row in x:
            for head in row:
                head[:] = head / math.sqrt(float(head @ head) / d + 1e-3) * weight
    out = np.zeros(q.shape)
    for t in range(len(inputs)):
        for x in (q, k):
            for h in range(x.shape[1]):
                x[t, h] = rotate_one(x[t, h], t, rope.frequencies(), rope.magnitude(), neighbours=rope.interleaved)
        for h in range(n_head):
            seen = range(max(0, t - window + 1) if window else 0, t + 1)
            powers = [math.exp(0.4 * float(q[t, h] @ k[s, h // (n_head // n_head_kv)])) for s in seen]
            for s, power in zip(seen, powers, strict=True):
                out[t, h] += power / sum(powers) * v[s, h // (n_head // n_head_kv)]
    return out.reshape(len(inputs), -1)


# ---------------------------------------------------------------- recurrent states


def test_convolution_by_hand() -> None:
    """Three taps: the last meets the row itself; before the text there are zeros."""
    pair = Pair(np.array([[1.0, 0.0], [2.0, 1.0], [4.0, 0.0]]))
    pair.end(pair.body.convolution(pair.begin(), vector("w", [100, 10, 1, 0, 1, -1]), 3, layer=0))
    sums = np.array([[1, 0], [12, -1], [124, 1], [244, 0]])
    wanted = sums / (1 + np.exp(-sums.astype(float)))
    close(run(pair, [0, 1, 2, 2]), wanted)
    bed = Bed(ReferenceBackend(), pair)
    text = bed.text()
    close(np.concatenate([bed.step((text, part))[0] for part in ([0], [1, 2], [2])]), wanted)


def delta_pair(inputs: npt.NDArray[Any], n_head: int, n_head_k: int, key_dim: int, value_dim: int) -> Pair:
    """The delta rule on rows of q, k, v, alpha and beta side by side."""
    pair = Pair(inputs)
    x = pair.begin()
    widths = [n_head_k * key_dim, n_head_k * key_dim, n_head * value_dim, n_head, n_head]
    at = [sum(widths[:number]) for number in range(6)]
    q, k, v = (Part(x, at[number], widths[number]) for number in range(3))

    def columns(first: int) -> Any:
        return pair.body.matmul(x, matrix(f"columns {first}", np.eye(inputs.shape[1])[first : first + n_head]))

    a, dt_bias = vector("a", -np.exp(random(8, n_head))), vector("dt", random(9, n_head))
    options: dict[str, Any] = {"layer": 0, "a": a, "dt_bias": dt_bias, "n_head": n_head, "n_head_k": n_head_k}
    return pair.end(pair.body.delta_rule(q, k, v, columns(at[3]), columns(at[4]), epsilon=1e-6, **options))


def test_delta_rule_by_hand() -> None:
    """One head, keys of two elements, values of one; alpha so that the decay is 1/2, beta 0 so that β is 1/2.

    softplus(alpha) = log 2 at alpha = 0, and a = -1: exp(-log 2) = 1/2. Keys are of length 1 but for epsilon 0.
    Position 0: k = (1, 0), v = 8: M = (4, 0); q = (1, 0): 4 / sqrt 2.
    Position 1: M = (2, 0); k = (0, 1), v = 6: M = (2, 3); q = (0.6, 0.8): 3.6 / sqrt 2.
    Position 2: M = (1, 1.5); k = (1, 0), v = 0: d = (0 - 1) / 2, M = (0.5, 1.5); q = (1, 0): 0.5 / sqrt 2.
    """
    rows = [[1, 0, 1, 0, 8, 0, 0], [3, 4, 0, 2, 6, 0, 0], [2, 0, 7, 0, 0, 0, 0]]
    pair = Pair(np.array(rows, np.float64))
    x = pair.begin()
    zero = pair.body.matmul(x, matrix("zero", np.zeros((1, 7))))
    pair.end(
        pair.body.delta_rule(
            Part(x, 0, 2),
            Part(x, 2, 2),
            Part(x, 4, 1),
            zero,
            zero,
            layer=0,
            a=vector("a", [-1]),
            dt_bias=vector("dt", [0]),
            n_head=1,
            n_head_k=1,
            epsilon=0.0,
        )
    )
    close(run(pair, [0, 1, 2])[:, 0] * math.sqrt(2), [4, 3.6, 0.5])


def test_delta_rule_equals_its_chunked_form() -> None:
    """The closed form over a chunk: a triangular system in place of the recurrence."""
    n_head, n_head_k, key_dim, value_dim, length = 4, 2, 6, 5, 40
    inputs = random(2, length, 2 * n_head_k * key_dim + n_head * value_dim + 2 * n_head)
    pair = delta_pair(inputs, n_head, n_head_k, key_dim, value_dim)
    wanted = np.concatenate(chunked(inputs, n_head, n_head_k, key_dim, value_dim, sizes=[16, 7, 17]))
    tokens = list(range(length))
    np.testing.assert_allclose(run(pair, tokens), wanted, atol=1e-12, rtol=0)
    bed = Bed(ReferenceBackend(), pair)
    one, other = bed.text(), bed.text()
    made = [bed.step((other, [3, 1]), (one, tokens[first:end]))[0][2:] for first, end in ((0, 1), (1, 30), (30, 40))]
    np.testing.assert_allclose(np.concatenate(made), wanted, atol=1e-12, rtol=0)


def chunked(
    inputs: npt.NDArray[np.float32], n_head: int, n_head_k: int, key_dim: int, value_dim: int, sizes: list[int]
) -> list[Doubles]:
    """(I + A) u = β (v - e^G M₀ᵀ k): A[t, s] = β_t k_t·k_s e^(G_t - G_s) for s < t, where G sums a chunk's decays."""
    widths = np.cumsum([n_head_k * key_dim, n_head_k * key_dim, n_head * value_dim, n_head])
    q, k, v, alpha, beta = np.split(inputs.astype(np.float64), widths, axis=1)
    q, k = (x.reshape(len(x), n_head_k, key_dim) for x in (q, k))
    q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    v, beta = v.reshape(len(v), n_head, value_dim), 1 / (1 + np.exp(-beta))
    a, dt = -np.exp(random(8, n_head)), random(9, n_head)
    decay = a.astype(np.float32) * np.log1p(np.exp(alpha + dt))
    states, made, first = np.zeros((n_head, key_dim, value_dim)), [], 0
    for size in sizes:
        rows = slice(first, first + size)
        out = np.zeros((size, n_head, value_dim))
        for h in range(n_head):
            keys, queries, b = k[rows, h % n_head_k], q[rows, h % n_head_k] / math.sqrt(key_dim), beta[rows, h]
            sums = np.cumsum(decay[rows, h])
            ratio = np.exp(sums[:, None] - sums[None, :])
            system = np.eye(size) + np.tril(b[:, None] * (keys @ keys.T) * ratio, -1)
            started = np.exp(sums)[:, None] * (keys @ states[h])
            u = np.linalg.solve(system, b[:, None] * (v[rows, h] - started))
            out[:, h] = np.exp(sums)[:, None] * (queries @ states[h]) + np.tril((queries @ keys.T) * ratio) @ u
            states[h] = math.exp(sums[-1]) * states[h] + (keys * np.exp(sums[-1] - sums)[:, None]).T @ u
        made.append(out.reshape(size, -1))
        first += size
    return made


# ---------------------------------------------------------------- roundings


def test_activations_in_8_bits_by_hand() -> None:
    """Whole numbers up to 127 are codes themselves, with a scale of 1; halves become the even code."""
    x = np.zeros((1, 32))
    x[0, :4] = (127, -3, 64, 1)
    close(as_8_bits(x), x)
    close(as_8_bits(x / 4), x / 4)
    # Whole numbers as before, so that no other scale lies closer, and two halves.
    tie = np.array([127, *range(4, 120, 4), 0.5, 1.5])
    codes = np.array([*tie[:-2], 0, 2])
    np.testing.assert_allclose(as_8_bits(tie), codes * (tie @ codes) / (codes @ codes), rtol=1e-6)
    assert not as_8_bits(np.full(32, 2.0**-122)).any()
    assert np.isnan(as_8_bits(np.array([np.nan] + [1.0] * 31))).all()
    assert np.isnan(as_8_bits(np.array([np.inf] + [1.0] * 31))).all()


def test_the_closest_of_four_scales() -> None:
    """No other of the four would lie closer, but for what float32 cannot tell; each of them is taken at times."""
    rng = np.random.default_rng(0)
    taken = set()
    for x in rng.standard_normal((200, 32)).astype(np.float32).astype(np.float64):
        errors = []
        for top in (127, 127.45, 126.5, 126):
            codes = np.rint(x * top / np.abs(x).max())
            errors.append(float(np.sum((x - codes * (x @ codes) / (codes @ codes)) ** 2)))
        assert np.sum((x - as_8_bits(x)) ** 2) <= min(errors) + 5e-7 * (x @ x)
        taken.add(int(np.argmin(errors)))
    assert taken == {0, 1, 2, 3}


def test_products_with_rounded_activations() -> None:
    """Weights in blocks see them rounded, floats do not."""
    rng = np.random.default_rng(1)
    raw = rng.integers(0, 256, (3, 2 * 34), np.uint8)
    for block in (0, 34):
        raw[:, block : block + 2] = np.array([0.01], "<f2").view(np.uint8)
    inputs = random(7, 4, 64)
    pair = Pair(inputs)
    weights = quantised("m", raw, GgmlType.Q8_0, 64)
    pair.end(pair.body.matmul(pair.begin(), weights))
    values = weights.tensor.dequantize().astype(np.float64)
    tokens = [0, 1, 2, 3]
    close(run(pair, tokens), inputs.astype(float) @ values.T)
    close(run(pair, tokens, compute="int8"), as_8_bits(inputs.astype(float)) @ values.T)
    plain = Pair(inputs)
    plain.end(plain.body.matmul(plain.begin(), matrix("m", values)))
    close(run(plain, tokens, compute="int8"), inputs.astype(float) @ values.T)
    with pytest.raises(UsageError, match="compute is 'int4'"):
        ReferenceBackend(compute="int4")  # type: ignore[arg-type]


def test_cached_values_by_hand() -> None:
    close(as_cached(np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, 1e-30]), "F16"), [1, 1 + 2.0**-9, 0])
    close(as_cached(np.array([1 + 2.0**-24, 0.1]), "F32"), [1, np.float32(0.1)])
    x = np.zeros(40)
    x[:3], x[32:34] = (127, 0.4, -0.6), (-1270, 14)  # the second scale is 10: 1.4 is 1
    wanted = np.zeros(40)
    wanted[:3], wanted[32:34] = (127, 0, -1), (-1270, 10)
    close(as_cached(x, "Q8_0"), wanted)
    assert not as_cached(np.full(32, 1e-9), "Q8_0").any()
    with pytest.raises(UsageError, match="no cache of type 'Q4_0'"):
        as_cached(x, "Q4_0")


def test_caches_are_rounded_only_when_asked() -> None:
    inputs = random(3, 4, 12)
    pair = Pair(inputs)
    x = pair.begin()
    q, k, v = (Part(x, first, 4) for first in (0, 4, 8))
    pair.end(pair.body.attention(q, k, v, layer=0, n_head=1, n_head_kv=1, rope=PLAIN_ROPE, scale=1.0))
    exact = run(pair, [0])
    close(exact, inputs[:1, 8:])  # one position: its value
    for cache_type in ("F32", "F16", "Q8_0"):
        made = whole(ReferenceBackend(), pair, [0], cache_type=cache_type)
        assert np.array_equal(made, exact)
        rounded = whole(ReferenceBackend(round_caches=True), pair, [0], cache_type=cache_type)
        close(rounded, as_cached(inputs[:1, 8:].astype(float), cache_type))
        assert np.array_equal(rounded, exact) == (cache_type == "F32")


# ---------------------------------------------------------------- memory and refusals


def test_layouts_count_their_bytes() -> None:
    backend = ReferenceBackend()
    two = [StateId(0, KeyValues(2, 8)), StateId(1, KeyValues(3, 4))]
    layout = backend.key_value_layout(two, "F16")
    assert layout.nbytes == 2 * 64 * (2 * 8 + 3 * 4) * 8
    recurrent = backend.recurrent_layout([StateId(0, Convolution(3, 10)), StateId(0, DeltaMatrices(2, 4, 5))])
    assert recurrent.nbytes == (3 * 10 + 2 * 4 * 5) * 8
    first, second = backend.allocate(recurrent), backend.allocate(recurrent)
    assert 0 not in (first.id, second.id)
    assert first.id != second.id
    assert first.nbytes == recurrent.nbytes == first.keep.nbytes


def test_copies_are_apart() -> None:
    backend, state = ReferenceBackend(), StateId(0, Convolution(1, 2))
    layout = backend.recurrent_layout([state])
    source, target = backend.allocate(layout), backend.allocate(layout)
    (one,), (other,) = layout.arrays(source.id, state), layout.arrays(target.id, state)
    one[:] = 7
    backend.copy(layout, source, target)
    one[:] = 8
    assert other.tolist() == [[7, 7]]
    assert one.tolist() == [[8, 8]]


class Unknown(Operation):
    """An operation that no backend knows."""


def test_what_is_not_known_is_refused() -> None:
    backend, none = ReferenceBackend(), StateGroups((), (), ())
    with pytest.raises(UsageError, match="no cache of type"):
        backend.key_value_layout([], "Q4_0")
    pair = Pair(np.eye(2))
    pair.end(pair.begin())
    assert pair.head is not None
    with pytest.raises(UsageError, match="no cache of type"):
        backend.lower(pair.body, pair.head, none, ("F32", "F8"))
    strange = Graph([Unknown(pair.body.results[0])], [], pair.body.results)
    with pytest.raises(UnsupportedError, match="Unknown"):
        backend.lower(strange, pair.head, none, ("F32",))
    with pytest.raises(UnsupportedError, match="Pick"):
        backend.lower(pair.head, pair.head, none, ("F32",))


def test_suspects() -> None:
    backend = ReferenceBackend()
    good, bad = matrix("good", [[1, 2]]), matrix("bad", [[1, np.inf]])
    stack, broken = experts("stack", np.ones((2, 2, 2))), experts("broken", [[[1.0]], [[np.nan]]])
    paged = Experts("paged", GgmlType.F32, 1, 1, 1, PagedExperts(Shelf([]), 0, 0))
    assert backend.suspects([good, bad, stack, broken, paged]) == [bad, broken, paged]


def test_values_that_are_not_finite_give_no_warning() -> None:
    pair = Pair(np.array([[np.inf, 1.0]]))
    x = pair.begin()
    pair.end(pair.body.add(x, pair.body.scale(x, -1.0)))
    assert np.isnan(run(pair, [0])[0, 0])
