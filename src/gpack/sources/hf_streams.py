"""What qwen4_exp has beside the layers of qwen3_5_moe: hyper-connections, an indexer, and a table of n-gram rows.

Its names are not among the `gguf` package's maps; those of llama.cpp's own converter are used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ..container.payload import Computed, read_part
from ..container.strict_json import shorten
from ..errors import FormatError
from ..generated.constants import GgmlType, MetadataType
from ..sections.placement import PLE
from .hf_config import HfConfig
from .hf_tensor import HfTensor, Span
from .metadata_build import MetadataBuilder
from .ngram_constants import DEFAULT_SEED, derive_multipliers, derive_offsets, derive_vocab_sizes
from .safetensors import StoredTensor

_LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,5})\.(.+)")
_CONNECTION = {
    "hc_norm": "norm",
    "input_mix_weight_down": "down",
    "input_mix_weight_up": "up",
    "block_inject_weight": "inject",
}
_GLOBAL = {
    f"model.hyper_connection_mixer.{theirs}.weight": f"output_hc_{ours}.weight"
    for theirs, ours in _CONNECTION.items()
    if ours != "inject"
}
_OF_LAYER = {
    **{
        f"{place}_hyper_connection.{theirs}.weight": f"hc_{short}_{ours}.weight"
        for place, short in (("attn", "attn"), ("mlp", "ffn"))
        for theirs, ours in _CONNECTION.items()
    },
    "self_attn.indexer.q_proj.weight": "indexer.q_proj.weight",
    "self_attn.indexer.k_proj.weight": "indexer.k_proj.weight",
    "self_attn.indexer.q_layernorm.weight": "indexer.q_norm.weight",
    "self_attn.indexer.k_layernorm.weight": "indexer.k_norm.weight",
    "ple.key_proj.weight": "ple_key.weight",
    "ple.value_proj.weight": "ple_value.weight",
    "ple.norm_key.weight": "ple_norm_key.weight",
    "ple.norm_query.weight": "ple_norm_query.weight",
    "ple.norm_conv.weight": "ple_norm_conv.weight",
    "ple.conv1d.weight": "ple_conv1d.weight",
}
_BOTH = "self_attn.indexer.index_qk_proj.weight"
_TABLE = re.compile(r"ple\.ple_embedding\.ngram_embedding(?:\.shard_(0|[1-9][0-9]{0,5}))?\.weight")
_CONSTANTS = {
    "layer_multipliers": "layer_multipliers",
    "ngram_heads_offsets": "head_offsets",
    "ngram_heads_vocab_sizes": "head_vocab_sizes",
}
_INDEXER = ("indexer_n_heads", "indexer_kv_heads", "indexer_head_dim", "indexer_budget", "indexer_compress_ratio")
# Of the draft layer, under `mtp.`: its mixer, and the halves of one matrix.
DRAFT_OF_STREAMS = {
    **{
        f"hyper_connection_mixer.{theirs}": f"hc_head_{ours}"
        for theirs, ours in _CONNECTION.items()
        if ours != "inject"
    },
    "fc_embedding": "eh_proj",
    "fc_hidden": "eh_proj",
}
DRAFT_MIXER = tuple(f"nextn.{name}" for name in DRAFT_OF_STREAMS.values() if name.startswith("hc_head_"))
_HALVES = ("mtp.fc_embedding.weight", "mtp.fc_hidden.weight")
CONNECTIONS = tuple(name.removesuffix(".weight") for name in _OF_LAYER.values() if name.startswith("hc_"))
INDEXER = tuple(name.removesuffix(".weight") for name in _OF_LAYER.values() if name.startswith("indexer."))
NGRAMS = tuple(name.removesuffix(".weight") for name in _OF_LAYER.values() if name.startswith("ple_"))
OUTPUT = tuple(_GLOBAL.values())


def stream_name(name: str) -> str | None:
    """The name in GGUF of a tensor under its plain name; None where it is none of these."""
    match = _LAYER.fullmatch(name)
    if match is None:
        return PLE if name == PLE else _GLOBAL.get(name)
    found = _OF_LAYER.get(match[2])
    return f"blk.{match[1]}.{found}" if found else None


@dataclass
class StreamParts:
    """Collects what becomes one tensor, or metadata.

    Attributes:
        shards: Of the table, by number; the whole one is number 0.
        constants: Of the hash, by the name of their key.
        halves: Of the matrix with which the draft layer begins, by their names.
    """

    config: HfConfig
    shards: dict[int, StoredTensor] = field(default_factory=dict)
    constants: dict[str, tuple[int, ...]] = field(default_factory=dict)
    halves: dict[str, StoredTensor] = field(default_factory=dict)

    def take(self, name: str, tensor: StoredTensor) -> list[HfTensor] | None:
        """What comes of a tensor at once, under plain names; None where it is none of these.

        Raises:
            FormatError: `hf.tensor`: its shape or type is impossible.
        """
        if name in _HALVES:
            self.halves[name] = tensor
            return [_side_by_side(*(self.halves[half] for half in _HALVES))] if len(self.halves) == 2 else []
        match = _LAYER.fullmatch(name)
        if match is None:
            return None
        part, own = match[2], match[2].removeprefix("ple.ple_embedding.")
        if part == _BOTH:
            return list(self._split(name.removesuffix("index_qk_proj.weight"), tensor))
        if own != part and own in _CONSTANTS:
            self.constants[_CONSTANTS[own]] = _integers(tensor)
            return []
        if found := _TABLE.fullmatch(part):
            number = int(found[1] or 0)
            if number in self.shards:
                raise _fault(tensor, f"it is the table's part {number}, as {self.shards[number].name} is")
            self.shards[number] = tensor
            return []
        return None

    def _split(self, prefix: str, tensor: StoredTensor) -> Iterator[HfTensor]:
        """Index queries, then the index key."""
        width = self.config.need("indexer_head_dim")
        sizes = {"q_proj": width * self.config.need("indexer_n_heads"), "k_proj": width}
        if len(tensor.shape) != 2 or tensor.shape[0] != sum(sizes.values()):
            raise _fault(tensor, f"its shape is {list(tensor.shape)}, the configuration asks for {sum(sizes.values())}")
        kind, row, at = tensor.ggml_type, tensor.byte_size // tensor.shape[0], 0
        for name, rows in sizes.items():
            data = Span.of(tensor.data, at * row, rows * row)
            steps = (f"rows {at} to {at + rows - 1}",)
            yield HfTensor(f"{prefix}{name}.weight", kind, (tensor.shape[1], rows), (data,), kind, (tensor,), steps)
            at += rows

    def table(self) -> HfTensor | None:
        """The table of n-gram rows, its shards in the order of their numbers; None where there is none.

        Raises:
            FormatError: `hf.tensor`: a shard is missing, or they differ in width or type; the table has fewer rows than
                the hash, or rows of another width.
        """
        if not self.shards:
            return None
        found = [self.shards[number] for number in sorted(self.shards)]
        absent = [number for number in range(max(self.shards) + 1) if number not in self.shards]
        if absent:
            raise _fault(found[-1], f"it is the table's part {max(self.shards)}, but part {absent[0]} is missing")
        for shard in found:
            if len(shard.shape) != 2 or (shard.shape[1], shard.ggml_type) != (found[0].shape[1], found[0].ggml_type):
                raise _fault(shard, f"its shape is {list(shard.shape)}, that of part 0 {list(found[0].shape)}")
        rows, width, kind = sum(shard.shape[0] for shard in found), found[0].shape[1], found[0].ggml_type
        wanted = self._row_width()
        if width != wanted:
            raise _fault(found[0], f"its rows have {width} elements, the configuration asks for {wanted}")
        hashed = max(map(sum, zip(self._constants("head_offsets"), self._constants("head_vocab_sizes"), strict=True)))
        if rows < hashed:
            raise _fault(found[-1], f"the table ends after {rows} rows, the hash has {hashed}")
        steps = () if len(found) == 1 else (f"{len(found)} parts joined",)
        return HfTensor(PLE, kind, (width, rows), tuple(shard.data for shard in found), kind, tuple(found), steps)

    def add_parameters(self, metadata: MetadataBuilder, prefix: str, recurrent: list[bool]) -> None:
        """Adds the hyperparameters that only this architecture has.

        Raises:
            FormatError: `hf.config`: one is missing or impossible.
        """
        config = self.config
        layer = ngram_layer(config)
        if layer is not None:
            metadata.u32(f"{prefix}.embedding_length_per_layer_input", self._row_width())
            metadata.numbers(f"{prefix}.ple.layers", MetadataType.UINT32, [layer])
            metadata.u32(f"{prefix}.ple.ngram_size", config.need("ngram_size"))
            metadata.u32(f"{prefix}.ple.heads_per_ngram", config.need("heads_per_ngram"))
            metadata.u32(f"{prefix}.ple.conv_kernel", config.need("ple_conv_kernel_size"))
            metadata.u32(f"{prefix}.ple.eos_token_id", _separator(config))
            for key in _CONSTANTS.values():
                metadata.numbers(f"{prefix}.ple.{key}", MetadataType.UINT64, self._constants(key))
        metadata.u32(f"{prefix}.hyper_connection.count", config.need("hc_count"))
        metadata.u32(f"{prefix}.hyper_connection.low_rank", config.need("hc_lowrank"))
        if not all(recurrent):
            ratio = config.need("indexer_compress_ratio")
            metadata.u32(f"{prefix}.attention.indexer.head_count", config.need("indexer_n_heads"))
            metadata.u32(f"{prefix}.attention.indexer.key_length", config.need("indexer_head_dim"))
            metadata.u32(f"{prefix}.attention.indexer.top_k", config.need("indexer_budget"))
            ratios = [0 if is_recurrent else ratio for is_recurrent in recurrent]
            metadata.numbers(f"{prefix}.attention.compress_ratios", MetadataType.UINT32, ratios)

    def _row_width(self) -> int:
        heads, width = _heads(self.config), ngram_width(self.config)
        if width % heads:
            raise self.config.fault("ple_embed_dim", f"it is {width}, no multiple of the {heads} heads of n-grams")
        return width // heads

    def _constants(self, key: str) -> tuple[int, ...]:
        """As the model brings them, else as its makers' code derives them."""
        config, heads = self.config, _heads(self.config)
        found = self.constants.get(key)
        if found is None:
            sizes = derive_vocab_sizes(heads, config.need("ngram_vocab_size_base") - 1)
            seed = config.count("seed")
            derived = {
                "layer_multipliers": lambda: derive_multipliers(
                    config.need("vocab_size"), config.need("ngram_size"), seed=DEFAULT_SEED if seed is None else seed
                ),
                "head_vocab_sizes": lambda: sizes,
                "head_offsets": lambda: derive_offsets(sizes),
            }
            found = tuple(derived[key]())
        wanted = config.need("ngram_size") if key == "layer_multipliers" else heads
        if len(found) != wanted or min(found) < (1 if key == "head_vocab_sizes" else 0):
            raise config.fault("heads_per_ngram", f"the model has {len(found)} constants {key}, not {wanted} counts")
        return found


def _side_by_side(left: StoredTensor, right: StoredTensor) -> HfTensor:
    """One matrix of two, the columns of the first before those of the second; under the first one's name.

    Raises:
        FormatError: `hf.tensor`: they differ in rows or type.
    """
    if len(left.shape) != 2 or (left.shape, left.ggml_type) != (right.shape, right.ggml_type) or not all(left.shape):
        raise _fault(right, f"its shape is {list(right.shape)}, that of {left.name} {list(left.shape)}")
    rows, kind = left.shape[0], left.ggml_type
    row = left.byte_size // rows

    def make(first: int, count: int) -> bytes:
        read = [read_part(half.data, first * row, count * row) for half in (left, right)]
        return np.hstack([np.frombuffer(part, np.uint8).reshape(count, row) for part in read]).tobytes()

    whole = Computed(rows, 2 * row, make)
    steps = ("columns of two matrices joined",)
    return HfTensor(_HALVES[0], kind, (2 * left.shape[1], rows), (whole,), kind, (left, right), steps)


def check_streams(config: HfConfig, recurrent: list[bool]) -> None:
    """Refuses hyperparameters that no model can have.

    Raises:
        FormatError: `hf.config`, naming the key.
    """
    if config.need("hc_count") < 2:
        raise config.fault("hc_count", "it is 1: there are at least two streams")
    if not all(recurrent):
        values = {name: config.need(name) for name in _INDEXER}
        if values["indexer_kv_heads"] != 1:
            raise config.fault("indexer_kv_heads", f"it is {values['indexer_kv_heads']}: the indexer has one key head")
        if values["indexer_budget"] % values["indexer_compress_ratio"]:
            raise config.fault("indexer_budget", f"it is {values['indexer_budget']}, no multiple of a block")
    layer = ngram_layer(config)
    if layer is not None and not recurrent[layer]:
        raise config.fault("ple_layer_ids", f"it names layer {layer + 1}, which is no gated delta net")


def ngram_layer(config: HfConfig) -> int | None:
    """The layer whose streams get rows of n-grams, counted from 0; None where none does.

    Raises:
        FormatError: `hf.config`: it is no such layer, or there are several.
    """
    said = config.values.get("ple_layer_ids")
    if said is None or said == []:
        return None
    layers = config.need("num_hidden_layers")
    if not isinstance(said, list) or not all(type(item) is int and 1 <= item <= layers for item in said):
        raise config.fault("ple_layer_ids", f"it is {shorten(said)}, no list of layers from 1 to {layers}")
    if len(set(said)) > 1:
        raise config.fault("ple_layer_ids", f"it names {len(set(said))} layers; rows of n-grams in one are supported")
    return int(said[0]) - 1


def ngram_width(config: HfConfig) -> int:
    """Elements of all rows of a token together.

    Raises:
        FormatError: `hf.config`.
    """
    return config.count("ple_embed_dim") or config.need("hidden_size")


def stream_reasons(config: HfConfig) -> Iterator[str]:
    """Settings that GGUF has no keys for."""
    gate = config.values.get("output_gate_type") or config.values.get("hidden_act") or "silu"
    if gate != "sigmoid":
        yield f"output_gate_type is {shorten(gate)}: the delta nets of qwen4exp have a sigmoid gate"


def without_middle(made: HfTensor, tensor: StoredTensor) -> HfTensor:
    """A convolution's weights [channels, 1, taps] as a matrix.

    Raises:
        FormatError: `hf.tensor`: they have another shape.
    """
    if len(tensor.shape) != 3 or tensor.shape[1] != 1:
        raise _fault(tensor, f"its shape is {list(tensor.shape)}, not [channels, 1, taps]")
    return replace(made, dims=(tensor.shape[2], tensor.shape[0]), steps=(*made.steps, "middle axis dropped"))


def _heads(config: HfConfig) -> int:
    size = config.need("ngram_size")
    if size < 2:
        raise config.fault("ngram_size", f"it is {size}: n-grams have at least two tokens")
    return (size - 1) * config.need("heads_per_ngram")


def _separator(config: HfConfig) -> int:
    """The token that ends a context: of a list the first."""
    said = config.values.get("eos_token_id")
    first = said[0] if isinstance(said, list) and said else said
    if type(first) is not int or not 0 <= first < 1 << 31:
        raise config.fault("eos_token_id", f"it is {shorten(said)}, and n-grams need it")
    return first


def _integers(tensor: StoredTensor) -> tuple[int, ...]:
    """A vector of int64, exactly.

    Raises:
        FormatError: `hf.tensor`: it is something else.
    """
    if tensor.ggml_type != GgmlType.I64 or len(tensor.shape) != 1 or tensor.shape[0] > 1 << 16:
        raise _fault(tensor, "it is no vector of 64-bit integers")
    return tuple(np.frombuffer(read_part(tensor.data, 0, tensor.byte_size), "<i8").tolist())


def _fault(tensor: StoredTensor, message: str) -> FormatError:
    return FormatError(message, code="hf.tensor", path=tensor.file.path, field=tensor.name)
