"""Products with selected experts: the right ones for each pair, and none that nobody selected."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from gpack.engine.backends import COMPUTE, Compute
from gpack.engine.backends.cpu.buffers import Activations, Buffer
from gpack.engine.backends.cpu.matmul import ExpertsView, moe_matmul
from gpack.engine.backends.cpu.variants import VARIANTS
from gpack.errors import FormatError
from gpack.generated.constants import GgmlType

from .products import NUMBERS, ORACLE, Bed, random_rows, seen, tensor, values_of

N_EXPERT, N_OUT, USED = 7, 21, 3
UNUSED = 4  # no token selects it


def selection(tokens: int) -> NDArray[np.int32]:
    """Different experts for each token, never number 4; one of them for almost all tokens."""
    rng = np.random.default_rng(tokens)
    able = [number for number in range(N_EXPERT) if number not in (UNUSED, 0)]
    return np.array([[0, *rng.permutation(able)[: USED - 1]] for _ in range(tokens)], np.int32)


@pytest.mark.parametrize("per_token", [1, USED])
@pytest.mark.parametrize("compute", COMPUTE)
@pytest.mark.parametrize("name", ["Q4_0", "Q6_K", "F16"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_each_pair_gets_its_expert(variant: str, name: str, compute: Compute, per_token: int) -> None:
    n_in = 2 * GgmlType.BLOCK[NUMBERS[name]] if name != "F16" else 36
    raw = random_rows(name, N_EXPERT * N_OUT, n_in)
    weights = values_of(name, raw).reshape(N_EXPERT, N_OUT, n_in)
    bed = Bed(variant, compute)
    x, out = Activations(40, n_in, per_token=per_token), Buffer(40, N_OUT, per_token=USED)
    x.array[:] = np.random.default_rng(1).standard_normal(x.array.shape)
    experts = ExpertsView.of(tensor(name, raw, n_in, N_OUT, N_EXPERT))
    experts.addresses[UNUSED] = 0  # reading it would end the process
    selected = np.zeros((40, USED), np.int32)
    moe_matmul(bed.program, bed.work, experts, selected, x, out)
    source = np.repeat(seen(name, compute, x.array), USED // per_token, axis=0)
    for count in (1, 2, 3, 33):
        selected[:count] = selection(count)
        out.array[:] = 9
        bed.run(count)
        chosen = weights[selected[:count].reshape(-1)]
        pairs = source[: count * USED]
        expected = np.einsum("pi,poi->po", pairs, chosen)
        size = np.einsum("pi,poi->po", np.abs(pairs), np.abs(chosen))
        assert np.all(np.abs(out.array[: count * USED] - expected) <= 1e-6 * size)
        assert np.all(out.array[count * USED :] == 9)


@pytest.mark.skipif(not ORACLE.exists(), reason="blocks of llama.cpp: no ../shared/oracle here")
@pytest.mark.parametrize("per_token", [1, 2])
def test_a_type_without_kernels(per_token: int) -> None:
    with np.load(ORACLE) as oracle:
        raw, values = oracle["IQ1_M.raw"], oracle["IQ1_M.f32"].reshape(4, 2, 1024)
    bed = Bed("portable", max_batch=3)
    x, out = Activations(3, 1024, per_token=per_token), Buffer(3, 2, per_token=2)
    x.array[:] = np.random.default_rng(2).standard_normal(x.array.shape)
    selected = np.array([[3, 0], [0, 2], [3, 2]], np.int32)
    moe_matmul(bed.program, bed.work, ExpertsView.of(tensor("IQ1_M", raw, 1024, 2, 4)), selected, x, out)
    bed.run(3)
    source = np.repeat(x.array, 2 // per_token, axis=0).astype(np.float64)
    expected = np.einsum("pi,poi->po", source, values[selected.reshape(-1)])
    assert np.allclose(out.array, expected, rtol=1e-4, atol=1e-4)


def test_experts_that_lie_apart() -> None:
    """A pack may keep gaps between experts; slices may come from different files."""
    raw = random_rows("Q8_0", 6, 32).reshape(3, 2, 34)
    spread = np.full((3, 100), 0xFF, np.uint8)
    spread[:, :68] = raw.reshape(3, 68)
    from gpack.tensor import Tensor

    strided = Tensor.over(
        memoryview(spread.tobytes()), name="apart", ggml_type=NUMBERS["Q8_0"], dims=(32, 2, 3), stride=100
    )
    experts = ExpertsView.of(strided)
    assert (experts.n_expert, experts.n_out, experts.n_in) == (3, 2, 32)
    bed = Bed("portable", max_batch=1)
    x, out = Activations(1, 32), Buffer(1, 2, per_token=3)
    x.array[:] = np.linspace(-1, 1, 32)
    moe_matmul(bed.program, bed.work, experts, np.array([[2, 1, 0]], np.int32), x, out)
    bed.run(1)
    expected = values_of("Q8_0", raw.reshape(6, 34)).reshape(3, 2, 32)[::-1] @ seen("Q8_0", "int8", x.array)[0]
    assert np.allclose(out.array, expected, rtol=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    bed = Bed("portable")
    experts = ExpertsView.of(tensor("Q4_0", random_rows("Q4_0", 6, 64), 64, 2, 3))
    selected = np.zeros((40, 2), np.int32)
    wrong = [
        (selected, Activations(40, 32), Buffer(40, 2, per_token=2)),
        (selected, Activations(40, 64), Buffer(40, 2)),
        (selected, Activations(40, 64, per_token=3), Buffer(40, 2, per_token=2)),
        (selected[:, ::2], Activations(40, 64), Buffer(40, 2)),
    ]
    for chosen, x, out in wrong:
        with pytest.raises(FormatError) as caught:
            moe_matmul(bed.program, bed.work, experts, chosen, x, out)
        assert caught.value.code == "engine.shape"
    with pytest.raises(FormatError, match="not a stack"):
        ExpertsView.of(tensor("Q4_0", random_rows("Q4_0", 6, 64), 64))
