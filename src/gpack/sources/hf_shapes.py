"""What `config.json` says of the shape of every tensor of a known architecture, and which tensors there must be.

Both are checked once the tensors have their names in GGUF, so that no pack is made whose metadata contradict its
tensors. Shapes are in Hugging Face's order: rows before columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import prod

from ..container.strict_json import shorten
from ..errors import FormatError
from ..generated.constants import GgmlType
from ..sections.placement import PLE, layer_of
from .hf_architectures import Architecture
from .hf_config import HfConfig
from .hf_metadata import head_size, key_value_heads, recurrent_layers
from .hf_streams import CONNECTIONS, DRAFT_MIXER, INDEXER, NGRAMS, OUTPUT, ngram_layer, ngram_width
from .hf_tensor import HfTensor

_FLOATS = (GgmlType.F64, GgmlType.F32, GgmlType.F16, GgmlType.BF16)
# Sizes by the names that `_SHAPES` has for them: factors, each a number or alternative keys of the configuration.
_HEADS, _HEAD, _KV = "num_attention_heads", "head_dim", "num_key_value_heads"
_VALUE_HEADS, _VALUE_HEAD = "linear_num_value_heads", "linear_value_head_dim"
_EXPERTS = "num_experts"
_NGRAMS = "ple_embed_dim"
_FACTORS: dict[str, tuple[str | int, ...]] = {
    "one": (1,),
    "width": ("hidden_size",),
    "two widths": (2, "hidden_size"),
    "tokens": ("vocab_size",),
    "query": (_HEADS, _HEAD),
    "gated query": (2, _HEADS, _HEAD),
    "key": (_KV, _HEAD),
    "head": (_HEAD,),
    "inner": ("intermediate_size",),
    "two inners": (2, "intermediate_size"),
    "experts": (_EXPERTS,),
    "expert inner": ("moe_intermediate_size",),
    "shared inner": ("shared_expert_intermediate_size",),
    "values": (_VALUE_HEADS, _VALUE_HEAD),
    "value heads": (_VALUE_HEADS,),
    "value head": (_VALUE_HEAD,),
    "taps": ("linear_conv_kernel_dim",),
    "streams": ("hc_count",),
    "all streams": ("hc_count", "hidden_size"),
    "rank": ("hc_lowrank",),
    "index query": ("indexer_n_heads", "indexer_head_dim"),
    "index head": ("indexer_head_dim",),
    "n-grams": (_NGRAMS,),
    "n-gram taps": ("ple_conv_kernel_size",),
}
_SHAPES: dict[str, tuple[str, ...]] = {
    "token_embd.weight": ("tokens", "width"),
    "output.weight": ("tokens", "width"),
    "output_norm.weight": ("width",),
    "attn_norm.weight": ("width",),
    "ffn_norm.weight": ("width",),
    "post_attention_norm.weight": ("width",),
    "post_ffw_norm.weight": ("width",),
    "attn_q.weight": ("query", "width"),
    "attn_q.bias": ("query",),
    "attn_q_norm.weight": ("head",),
    "attn_k.weight": ("key", "width"),
    "attn_k.bias": ("key",),
    "attn_k_norm.weight": ("head",),
    "attn_v.weight": ("key", "width"),
    "attn_v.bias": ("key",),
    "attn_output.weight": ("width", "query"),
    "attn_output.bias": ("width",),
    "ffn_gate.weight": ("inner", "width"),
    "ffn_gate.bias": ("inner",),
    "ffn_up.weight": ("inner", "width"),
    "ffn_up.bias": ("inner",),
    "ffn_down.weight": ("width", "inner"),
    "ffn_down.bias": ("width",),
    "ffn_gate_inp.weight": ("experts", "width"),
    "ffn_gate_inp_shexp.weight": ("one", "width"),
    "ffn_gate_exps.weight": ("experts", "expert inner", "width"),
    "ffn_up_exps.weight": ("experts", "expert inner", "width"),
    "ffn_down_exps.weight": ("experts", "width", "expert inner"),
    "ffn_gate_shexp.weight": ("shared inner", "width"),
    "ffn_up_shexp.weight": ("shared inner", "width"),
    "ffn_down_shexp.weight": ("width", "shared inner"),
    "attn_qkv.weight": ("mixed", "width"),
    "attn_gate.weight": ("values", "width"),
    "ssm_alpha.weight": ("value heads", "width"),
    "ssm_beta.weight": ("value heads", "width"),
    "ssm_conv1d.weight": ("mixed", "taps"),
    "ssm_a": ("value heads",),
    "ssm_dt.bias": ("value heads",),
    "ssm_norm.weight": ("value head",),
    "ssm_out.weight": ("width", "values"),
    **{
        f"{place}_{name}.weight": shape
        for place in ("hc_attn", "hc_ffn", "output_hc", "nextn.hc_head")
        for name, shape in (
            ("norm", ("all streams",)),
            ("down", ("rank", "all streams")),
            ("up", ("all streams", "rank")),
            ("inject", ("streams", "all streams")),
        )
    },
    "indexer.q_proj.weight": ("index query", "width"),
    "indexer.k_proj.weight": ("index head", "width"),
    "indexer.q_norm.weight": ("index head",),
    "indexer.k_norm.weight": ("index head",),
    "ple_key.weight": ("all streams", "n-grams"),
    "ple_value.weight": ("width", "n-grams"),
    "ple_norm_key.weight": ("all streams",),
    "ple_norm_query.weight": ("all streams",),
    "ple_norm_conv.weight": ("all streams",),
    "ple_conv1d.weight": ("all streams", "n-gram taps"),
    "nextn.eh_proj.weight": ("width", "two widths"),
    "nextn.enorm.weight": ("width",),
    "nextn.hnorm.weight": ("width",),
    "nextn.shared_head_norm.weight": ("width",),
    "nextn.embed_tokens.weight": ("tokens", "width"),
    "nextn.shared_head_head.weight": ("tokens", "width"),
}

# Tensors that a layer must have, without their `.weight`.
_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
_FUSED_ATTENTION = ("attn_qkv", "attn_output")
_DELTA = ("attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta", "ssm_conv1d", "ssm_norm", "ssm_out")
_DENSE = ("ffn_gate", "ffn_up", "ffn_down")
_ROUTED = ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
_SHARED = ("ffn_gate_inp_shexp", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")
_DRAFT = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm")


@dataclass(frozen=True)
class _Extent:
    size: int
    said: str


class Shapes:
    """The shapes that a configuration asks for."""

    def __init__(self, architecture: Architecture, config: HfConfig) -> None:
        """Nothing is read before a tensor needs it."""
        self.architecture, self.config = architecture, config
        self._known: dict[str, _Extent] = {}

    def check(self, tensors: Iterable[HfTensor]) -> None:
        """Compares the tensors with the configuration; packed ones, whose shape is another's, are left out.

        Raises:
            FormatError: `hf.tensor`, naming tensor, axis and keys, where a shape is another one; `hf.config` where a
                key is missing.
        """
        for tensor in tensors:
            suffix = tensor.name.split(".", 2)[2] if layer_of(tensor.name) is not None else tensor.name
            wanted = _SHAPES.get(suffix)
            if wanted is not None and tensor.sources and tensor.stored_type in _FLOATS:
                self._check(tensor, suffix, wanted)

    def _check(self, tensor: HfTensor, suffix: str, wanted: tuple[str, ...]) -> None:
        shape = tuple(reversed(tensor.dims))
        if suffix == "attn_q.weight" and has_output_gate(self.architecture, self.config):
            wanted = ("gated query", *wanted[1:])
        if suffix == "nextn.hnorm.weight" and self.architecture.has_streams:
            wanted = ("all streams",)
        if self.architecture.fuses_gate and suffix == "ffn_up.weight":
            wanted = ("two inners", "width")
        if self.architecture.norms_rows and suffix in ("attn_q_norm.weight", "attn_k_norm.weight"):
            wanted = ("query",) if suffix == "attn_q_norm.weight" else ("key",)
        message = None
        extents = [self._extent(name, tensor) for name in wanted]
        if len(shape) != len(wanted):
            message = f"has {len(shape)} axes, not {len(wanted)}"
        else:
            for axis, (found, extent) in enumerate(zip(shape, extents, strict=True)):
                if found != extent.size:
                    message = f"has {found} on axis {axis}, but {extent.said} in {self.config.path.name}"
                    break
        if message is not None:
            raise FormatError(
                f"its shape {list(shape)} {message}; {[extent.size for extent in extents]} was expected",
                code="hf.tensor",
                path=tensor.sources[0].file.path,
                field=_named(tensor),
                hint="configuration and tensors are of different models",
            )

    def _extent(self, name: str, tensor: HfTensor) -> _Extent:
        if name not in self._known:
            try:
                self._known[name] = self._mixed() if name == "mixed" else self._product(_FACTORS[name])
            except FormatError as error:
                error.message = f"{error.message}: {_named(tensor)} has a size that it says"
                raise
        return self._known[name]

    def _product(self, factors: tuple[str | int, ...]) -> _Extent:
        values = [factor if isinstance(factor, int) else self._value(factor) for factor in factors]
        words = [
            str(factor) if isinstance(factor, int) else f"{self._spelling(factor)} {value}"
            for factor, value in zip(factors, values, strict=True)
        ]
        return _Extent(prod(values), " x ".join(words) + (" is said" if len(words) == 1 else " are said"))

    def _mixed(self) -> _Extent:
        """Rows of q, k and v together, of attention or of a gated delta net."""
        if not self.architecture.is_linear:
            query, key = self._product(_FACTORS["query"]), self._product(_FACTORS["key"])
            said = f"{query.said.removesuffix(' are said')} + 2 x {key.said}"
            return _Extent(query.size + 2 * key.size, said)
        keys = self._product(("linear_num_key_heads", "linear_key_head_dim"))
        values = self._product(_FACTORS["values"])
        said = f"2 x {keys.said.removesuffix(' are said')} + {values.said}"
        return _Extent(2 * keys.size + values.size, said)

    def _value(self, key: str) -> int:
        if key == _HEAD:
            return head_size(self.config)
        if key == _KV:
            return key_value_heads(self.config)
        if key == _NGRAMS:
            return ngram_width(self.config)
        return self.config.need(*_spellings(key))

    def _spelling(self, key: str) -> str:
        """What the configuration calls a value, or says in its place."""
        found = next((name for name in _spellings(key) if self.config.values.get(name) is not None), None)
        if found is not None:
            return found
        said = {_HEAD: "hidden_size / num_attention_heads =", _KV: _HEADS, _NGRAMS: "hidden_size"}
        return said.get(key, key)


def _spellings(key: str) -> tuple[str, ...]:
    return ("num_local_experts", _EXPERTS) if key == _EXPERTS else (key,)


def _named(tensor: HfTensor) -> str:
    """The source's name of a tensor; of several, the first and how many."""
    others = len(tensor.sources) - 1
    return f"{shorten(tensor.sources[0].name)[1:-1]}{f' and {others} others' if others else ''}"


def has_output_gate(architecture: Architecture, config: HfConfig) -> bool:
    """Whether attention has a gate, whose rows stand between those of q."""
    return architecture.is_linear and config.values.get("attn_output_gate") is not False


def is_sparse(architecture: Architecture, config: HfConfig, layer: int) -> bool:
    """Whether a layer has routed experts."""
    if not architecture.has_experts:
        return False
    dense = config.values.get("mlp_only_layers")
    step = config.count("decoder_sparse_step") or 1
    return not (isinstance(dense, list) and layer in dense) and (layer + 1) % step == 0


def missing_tensors(
    architecture: Architecture, config: HfConfig, names: Collection[str], draft_layer: int | None
) -> list[str]:
    """Names, as GGUF has them, of tensors that the model must have and has not.

    Raises:
        FormatError: `hf.config`: a value is impossible.
    """
    found = set(names)
    wanted = ["token_embd.weight", *(OUTPUT if architecture.has_streams else ("output_norm.weight",))]
    recurrent = recurrent_layers(config)[0] if architecture.is_linear else []
    for layer in range(config.need("num_hidden_layers")):
        linear = bool(recurrent) and recurrent[layer]
        parts = _layer(architecture, config, linear=linear, sparse=is_sparse(architecture, config, layer))
        wanted += [f"blk.{layer}.{part}" for part in parts]
    if architecture.has_streams and (ngrams := ngram_layer(config)) is not None:
        wanted += [PLE, *(f"blk.{ngrams}.{part}.weight" for part in NGRAMS)]
    if draft_layer is not None:
        parts = _layer(architecture, config, linear=False, sparse=architecture.has_experts)
        begins = (*_DRAFT, *(DRAFT_MIXER if architecture.has_streams else ()))
        wanted += [f"blk.{draft_layer}.{part}" for part in (*parts, *(f"{name}.weight" for name in begins))]
    return [name for name in wanted if name not in found]


def _layer(architecture: Architecture, config: HfConfig, *, linear: bool, sparse: bool) -> list[str]:
    """What a layer consists of."""
    norms = ("attn_norm", "post_attention_norm") if architecture.is_linear else architecture.norms
    matrices = [*(CONNECTIONS if architecture.has_streams else norms)]
    matrices += _DELTA if linear else (_FUSED_ATTENTION if architecture.fuses_qkv else _ATTENTION)
    if architecture.has_streams and not linear:
        matrices += INDEXER
    if architecture.norms_heads and not linear:
        matrices += ["attn_q_norm", "attn_k_norm"]
    if not sparse:
        # What a dense layer between layers of experts has, has no name there.
        dense = _DENSE[1:] if architecture.fuses_gate else _DENSE
        matrices += () if architecture.has_experts else dense
    elif architecture.is_linear:
        matrices += (*_ROUTED, *_SHARED)
    else:
        matrices += _ROUTED
    made = [f"{name}.weight" for name in matrices]
    if linear:
        return [*made, "ssm_a", "ssm_dt.bias"]
    return made + [f"{name}.bias" for name in biased(architecture, config)]


def biased(architecture: Architecture, config: HfConfig) -> tuple[str, ...]:
    """The matrices that have a bias, by what architecture and configuration say."""
    if architecture.name == "qwen2":
        return _ATTENTION[:3]
    named: tuple[str, ...] = ()
    if architecture.name == "glm4":
        return _ATTENTION[:3] if config.values.get("attention_bias") is True else ()
    if architecture.has_biases:
        named += _ATTENTION if config.values.get("attention_bias") is True else ()
        named += _DENSE if config.values.get("mlp_bias") is True else ()
    return named
