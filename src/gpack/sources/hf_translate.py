"""Tensors of a known architecture: Hugging Face's names, shapes and values into those of the model's GGUF.

Names come from the `gguf` package's maps; what happens to rows, columns and values is listed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..container.payload import Block
from ..errors import FormatError
from ..generated.constants import GgmlType
from .hf_architectures import Architecture
from .hf_config import HfConfig, is_finite
from .hf_experts import EXPERT, ExpertStacks, split_fused
from .hf_metadata import key_value_heads
from .hf_orders import ValueHeads, neighbouring_pairs
from .hf_streams import StreamParts, stream_name, without_middle
from .hf_tensor import HfTensor, Order, minus_exp, plus_one
from .hf_towers import Draft
from .safetensors import StoredTensor

_LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,5})\.(.+)")
_ROTATED = re.compile(r".+\.self_attn\.([qk])_proj\.(?:weight|bias)")
_NORM = re.compile(r"(?:.*\.|)[a-z_]*norm[a-z_]*\.weight")
_GATED_NORM = "linear_attn.norm.weight"
_FLOATS = (GgmlType.F64, GgmlType.F32, GgmlType.BF16, GgmlType.F16)
# Small matrices that stay exact whatever the others are stored as, by the end of their names.
F32_NAMES = (
    "ffn_gate_inp.weight",
    "ffn_gate_inp_shexp.weight",
    "ssm_conv1d.weight",
    "ple_conv1d.weight",
    "_norm.weight",
)


class Translator:
    """Translates the tensors of one model.

    Attributes:
        tensors: What came of them, in the order of the source.
        unknown: Tensors of the text model that have no name in GGUF; they keep their own.
        streams: What was found of several streams; None where the architecture has one.
    """

    def __init__(self, architecture: Architecture, config: HfConfig, draft: Draft | None, tensor_count: int) -> None:
        """Prepares the maps.

        Raises:
            FormatError: `hf.config`: the configuration lacks what the translation needs, or speaks of more layers
                than there are tensors.
        """
        from gguf import MODEL_ARCH, get_tensor_name_map

        self.architecture, self.config, self.draft = architecture, config, draft
        self.layers = config.need("num_hidden_layers")
        if self.layers > tensor_count:
            raise config.fault("num_hidden_layers", f"it is {self.layers}, but the model has {tensor_count} tensors")
        blocks = self.layers + (1 if draft else 0)
        self._map = get_tensor_name_map(MODEL_ARCH[architecture.constant], blocks)
        self._heads = ValueHeads.of(config) if architecture.is_linear else None
        self.streams = StreamParts(config) if architecture.has_streams else None
        self.tensors: list[HfTensor] = []
        self.unknown: list[StoredTensor] = []

    def translate(self, tensors: Sequence[tuple[str, StoredTensor]]) -> None:
        """Fills `tensors` and `unknown` from tensors under their plain names (`model.layers.0. ...`).

        Raises:
            FormatError: `hf.tensor`: tensors are missing, or have other shapes than the configuration says.
        """
        stacks = ExpertStacks(name for name, _ in tensors)
        for name, tensor in tensors:
            if EXPERT.fullmatch(name):
                for stacked in stacks.take(name, tensor):
                    self._add(stacked)
                continue
            taken = split_fused(name, tensor)
            if taken is None and self.streams is not None:
                taken = self.streams.take(name, tensor)
            for made in taken if taken is not None else [self._plain(name, tensor)]:
                self._add(made)
        table = None if self.streams is None else self.streams.table()
        if table is not None:
            self._add(table)
        self._check_layers(name for name, _ in tensors)

    def _add(self, made: HfTensor) -> None:
        """Gives a tensor its name in GGUF and its type."""
        name = self._gguf_name(made.name)
        if name is None:
            self.unknown += made.sources
            return
        self.tensors.append(_typed(replace(made, name=name)))

    def _gguf_name(self, name: str) -> str | None:
        if self.draft and name in self.draft.others:
            return self.draft.others[name]
        if name.endswith("linear_attn.dt_bias"):
            name = name.removesuffix("dt_bias") + "dt_proj.bias"
        if self.streams is not None and (own := stream_name(name)) is not None:
            return own
        found: str | None = self._map.get_name(name, try_suffixes=(".weight", ".bias"))
        return found

    def _plain(self, name: str, tensor: StoredTensor) -> HfTensor:
        """One tensor, still under its plain name."""
        made = HfTensor(
            name, tensor.ggml_type, tuple(reversed(tensor.shape)), (tensor.data,), tensor.ggml_type, (tensor,)
        )
        # Packed values: their rows are not those of the matrix, and what scales them stays in the file's order.
        if tensor.ggml_type not in _FLOATS:
            return made
        if self.architecture.permutes_rope and (match := _ROTATED.fullmatch(name)):
            return self._permuted(made, tensor, match[1])
        if self.architecture.adds_one_to_norms and _NORM.fullmatch(name) and not name.endswith(_GATED_NORM):
            return _computed(made, plus_one, "1 added")
        if self.streams is not None and name.endswith(".ple.conv1d.weight"):
            return without_middle(made, tensor)
        if self._heads and ".linear_attn." in name:
            return self._linear(made, tensor, name.rsplit(".linear_attn.", 1)[1], self._heads)
        return made

    def _permuted(self, made: HfTensor, tensor: StoredTensor, which: str) -> HfTensor:
        heads = self.config.need("num_attention_heads")
        if which == "k":
            heads = key_value_heads(self.config)
        rows = tensor.shape[0] if tensor.shape else 0
        if not rows or rows % (2 * heads):
            raise _fault(tensor, f"its {rows} rows are no multiple of twice the {heads} heads")
        return _reordered(made, neighbouring_pairs(rows, heads), "rows reordered for neighbouring pairs")

    def _linear(self, made: HfTensor, tensor: StoredTensor, name: str, heads: ValueHeads) -> HfTensor:
        """Gated delta nets: value heads in another order, the decay computed, the convolution without a middle axis."""
        values, small = heads.value_heads * heads.value_size, heads.value_heads
        first = tensor.shape[0] if tensor.shape else 0
        expected = {
            "in_proj_qkv.weight": heads.mixed_rows,
            "in_proj_z.weight": values,
            "in_proj_a.weight": small,
            "in_proj_b.weight": small,
            "conv1d.weight": heads.mixed_rows,
            "A_log": small,
            "dt_bias": small,
        }.get(name)
        if name == "out_proj.weight":
            first, expected = tensor.shape[-1] if len(tensor.shape) == 2 else 0, values
        if expected is not None and first != expected:
            raise _fault(tensor, f"its shape is {list(tensor.shape)}, the configuration asks for {expected}")
        if name == "conv1d.weight":
            if len(tensor.shape) != 3 or tensor.shape[1] != 1:
                raise _fault(tensor, f"its shape is {list(tensor.shape)}, not [channels, 1, taps]")
            made = replace(made, dims=(tensor.shape[2], tensor.shape[0]), steps=("middle axis dropped",))
        if name == "A_log":
            made = _computed(made, minus_exp, "-exp")
        if heads.key_heads == heads.value_heads:
            return made
        order: Order | None = {
            "in_proj_qkv.weight": heads.mixed_order,
            "conv1d.weight": heads.mixed_order,
            "in_proj_z.weight": lambda: heads.order(heads.value_size),
            "in_proj_a.weight": lambda: heads.order(1),
            "in_proj_b.weight": lambda: heads.order(1),
            "A_log": lambda: heads.order(1),
            "dt_bias": lambda: heads.order(1),
            "out_proj.weight": lambda: heads.order(heads.value_size),
        }.get(name, lambda: None)()
        if order is None:
            return made
        if name == "out_proj.weight":
            return replace(made, column_order=order, steps=(*made.steps, "columns in the order of value heads"))
        return _reordered(made, order, "rows in the order of value heads")

    def _check_layers(self, names: Iterable[str]) -> None:
        """Each layer has tensors, and no layer is beyond the last."""
        layers = {int(match[1]) for name in names if (match := _LAYER.fullmatch(name))}
        wanted = set(range(self.layers + (1 if self.draft else 0)))
        if layers == wanted:
            return
        absent, beyond = sorted(wanted - layers), sorted(layers - wanted)
        gap = f"lacks the layers {absent[:10]}" if absent else f"has the layers {beyond[:10]}"
        raise FormatError(
            f"the model {gap}, the configuration speaks of {self.layers}",
            code="hf.tensor",
            path=self.config.path,
            field="num_hidden_layers",
            hint="are all files of the model there?",
        )


def rope_frequencies(config: HfConfig, head_size: int) -> HfTensor | None:
    """Llama 3's divisors of the rotary frequencies (`rope_freqs.weight`); None for other models.

    Raises:
        FormatError: `hf.config`: a parameter is missing or impossible.
    """
    if config.rope.get("rope_type") != "llama3":
        return None
    base = config.rope_number("rope_theta") or 10000.0
    named: dict[str, Any] = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192.0,
    }
    factor, low, high, length = (config.rope_number(name) or default for name, default in named.items())
    if min(factor, low, length, base) <= 0 or high <= low:
        raise config.fault("rope_parameters", "the scaling's factors are impossible")
    wavelength = 2 * np.pi * base ** (np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    smooth = (length / wavelength - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    divisors = np.where(wavelength < length / high, 1, np.where(wavelength > length / low, factor, between))
    data = divisors.astype("<f4").tobytes()
    return HfTensor(
        "rope_freqs.weight", GgmlType.F32, (len(divisors),), (Block(data),), GgmlType.F32, (), ("from config.json",)
    )


def long_rope_factors(architecture: Architecture, config: HfConfig, head_size: int) -> list[HfTensor]:
    """LongRoPE's divisors of the rotary frequencies, as tensors; none for other models.

    Raises:
        FormatError: `hf.config`: a list is missing, or has another length than a head has pairs that are rotated.
    """
    if architecture.name != "phi3" or config.rope.get("rope_type") != "longrope":
        return []
    part = config.rope_number("partial_rotary_factor")
    pairs, made = int(head_size * (1.0 if part is None else part)) // 2, []
    for name in ("long", "short"):
        factors = config.rope.get(f"{name}_factor")
        fits = (
            isinstance(factors, list) and len(factors) == pairs and all(is_finite(one) and one > 0 for one in factors)
        )
        if not fits:
            raise config.fault(f"rope_parameters.{name}_factor", f"it is no list of {pairs} numbers above 0")
        data = np.array(factors, "<f4").tobytes()
        kind, steps = GgmlType.F32, ("from config.json",)
        made.append(HfTensor(f"rope_factors_{name}.weight", kind, (pairs,), (Block(data),), kind, (), steps))
    return made


def _typed(made: HfTensor) -> HfTensor:
    """The tensor with the type that the pack stores: small tensors are F32, as the GGUF converter has them."""
    if made.stored_type not in _FLOATS:
        return made
    small = len(made.dims) <= 1 or not made.name.endswith(".weight") or made.name.endswith(F32_NAMES)
    if not small and made.value is None and made.stored_type != GgmlType.F64:
        return made
    return replace(made, ggml_type=GgmlType.F32)


def _reordered(made: HfTensor, order: Order, step: str) -> HfTensor:
    steps = (*made.steps, step)
    # A vector counts as one row here.
    if len(made.dims) == 1:
        return replace(made, column_order=order, steps=steps)
    return replace(made, row_order=order, steps=steps)


def _computed(made: HfTensor, value: Any, step: str) -> HfTensor:
    return replace(made, value=value, steps=(*made.steps, step))


def _fault(tensor: StoredTensor, message: str) -> FormatError:
    return FormatError(message, code="hf.tensor", path=tensor.file.path, field=tensor.name)


def copy_of(tensor: StoredTensor) -> HfTensor:
    """The tensor as it is, under its own name."""
    kind, dims = tensor.ggml_type, tuple(reversed(tensor.shape))
    return HfTensor(tensor.name, kind, dims, (tensor.data,), kind, (tensor,))
