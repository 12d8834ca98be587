"""Routed experts: one tensor for each, or all of a layer fused, into one stack for each role, as GGUF has them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from ..errors import FormatError
from .hf_tensor import HfTensor, Span
from .safetensors import StoredTensor

EXPERT = re.compile(r"(model\.layers\.[0-9]+\.mlp\.experts)\.(0|[1-9][0-9]{0,5})\.(gate|up|down)_proj\.weight")
_FUSED = re.compile(r"(model\.layers\.[0-9]+\.mlp\.experts)\.(gate_up|down)_proj(?:\.weight)?")
_ROLES = ("down", "gate", "up")  # in the order of the converter's output


class ExpertStacks:
    """Collects the experts of each layer until the last of them came."""

    def __init__(self, names: Iterable[str]) -> None:
        """Takes the names of all tensors, to know which expert is the last."""
        self._missing: dict[str, int] = defaultdict(int)
        self._found: dict[str, dict[str, dict[int, StoredTensor]]] = defaultdict(lambda: defaultdict(dict))
        for name in names:
            if match := EXPERT.fullmatch(name):
                self._missing[match[1]] += 1

    def take(self, name: str, tensor: StoredTensor) -> Iterator[HfTensor]:
        """Takes one expert's tensor; gives the stacks of its layer if it was the last.

        Raises:
            FormatError: `hf.tensor`: experts are missing or differ in shape or type.
        """
        match = EXPERT.fullmatch(name)
        if match is None:
            return
        layer, number, role = match[1], int(match[2]), match[3]
        self._found[layer][role][number] = tensor
        self._missing[layer] -= 1
        if self._missing[layer]:
            return
        roles = self._found.pop(layer)
        count = max(max(experts) for experts in roles.values()) + 1
        for role in _ROLES:
            experts = roles[role]
            absent = [number for number in range(count) if number not in experts]
            if absent:
                raise FormatError(
                    f"{len(absent)} of {count} experts have no {role}_proj, the first is {absent[0]}",
                    code="hf.tensor",
                    path=tensor.file.path,
                    field=layer,
                )
            yield _stack(f"{layer}.{role}_proj.weight", [experts[number] for number in range(count)])


def _stack(name: str, experts: list[StoredTensor]) -> HfTensor:
    first = experts[0]
    for number, expert in enumerate(experts):
        if (expert.shape, expert.ggml_type) != (first.shape, first.ggml_type) or len(expert.shape) != 2:
            raise FormatError(
                f"expert {number} has the shape {list(expert.shape)}, expert 0 {list(first.shape)}, or another type",
                code="hf.tensor",
                path=expert.file.path,
                field=expert.name,
            )
    dims = (*reversed(first.shape), len(experts))
    parts = tuple(expert.data for expert in experts)
    return HfTensor(name, first.ggml_type, dims, parts, first.ggml_type, tuple(experts), ("experts stacked",))


def split_fused(name: str, tensor: StoredTensor) -> list[HfTensor] | None:
    """The stacks of a layer's fused experts, gate rows before up rows in each; None for any other tensor.

    Raises:
        FormatError: `hf.tensor`: the tensor has not the shape of fused experts.
    """
    match = _FUSED.fullmatch(name)
    if match is None:
        return None
    shape, kind = tensor.shape, tensor.ggml_type
    if len(shape) != 3 or not all(shape) or (match[2] == "gate_up" and shape[1] % 2):
        raise FormatError(
            f"its shape is {list(shape)}, not that of fused experts",
            code="hf.tensor",
            path=tensor.file.path,
            field=tensor.name,
        )
    data, layer = tensor.data, match[1]
    if match[2] == "down":
        whole = HfTensor(f"{layer}.down_proj.weight", kind, (shape[2], shape[1], shape[0]), (data,), kind, (tensor,))
        return [whole]
    dims = (shape[2], shape[1] // 2, shape[0])
    half = data.size // shape[0] // 2
    made = []
    for index, role in enumerate(("gate", "up")):
        parts = tuple(Span.of(data, (2 * expert + index) * half, half) for expert in range(shape[0]))
        steps = (f"the {role} half of fused experts",)
        made.append(HfTensor(f"{layer}.{role}_proj.weight", kind, dims, parts, kind, (tensor,), steps))
    return made
