"""The plan of a conversion: every section, its size and what it is copied from, before a byte is written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ..container.strict_json import shorten
from ..container.writer import GPackBuilder
from ..errors import FormatError, UnsupportedError, UsageError
from ..generated.constants import MAX_LAYERS, MAX_NUMBER, GgmlType, SectionKind, TensorFlags
from ..generated.structs import GbtHeaderV1, TensorIndexRowV1
from ..sections.assets import build_assets
from ..sections.dense import DenseColumns, DenseTensor, build_dense
from ..sections.experts import ExpertBlobs, ExpertLayer, ExpertMatrix, build_expert_layout, expert_summary
from ..sections.metadata import build_metadata
from ..sections.mtp import DraftTensor, MtpSection, build_mtp
from ..sections.placement import (
    ARCHITECTURE,
    EMBEDDING,
    HEAD,
    ROLE_SETS,
    UNKNOWN,
    Placement,
    Shape,
    assign_placements,
    draft_start,
    is_count,
)
from ..sections.single import SingleTensor
from ..sections.tensors import build_tensor_index, padded_dims
from ..sections.tokenizer import MODEL, BuiltTokenizer, build_tokenizer
from ..sources.gguf_kind import other_kind
from ..sources.model import IMPORT_EXTENSION, ModelSource, ModelTensor
from ..tokenizer.pretokenizers import DEFAULT, rules_of
from ..tokenizer.settings import BYTE_LEVEL, SENTENCE_PIECE
from .external import ExternalFiles

NAME, PRE = "general.name", "tokenizer.ggml.pre"


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor and where it goes.

    Attributes:
        offset: First byte, from the start of the section; of the shard where it is external.
        home_row: Row of the section's own table.
        flags: Of TensorFlags.
    """

    info: ModelTensor
    placement: Placement
    offset: int
    home_row: int
    flags: int = 0


class Plan:
    """What a model becomes.

    Attributes:
        builder: Holds all sections, ready to be written.
        placed: Every tensor and its place, in the source's order.
        name: Name of the model.
        notes: What the user should know, one sentence each.
        reasons: Why the model cannot be run, beside what the source tells, one sentence each.
    """

    def __init__(
        self,
        source: ModelSource,
        *,
        name: str | None = None,
        external: ExternalFiles | None = None,
        dense_columns: Mapping[str, DenseColumns] | None = None,
    ) -> None:
        """Plans the conversion; nothing of the tensors is read, unless external shards are to be hashed whole.

        Args:
            external: The files in which routed experts stay; None embeds them.
            dense_columns: What a pack directory says of dense tensors, by name.

        Raises:
            FormatError: The metadata cannot be stored.
            UsageError: The name is no text.
        """
        if name is not None and any("\ud800" <= char <= "\udfff" for char in name):
            raise UsageError(f"the name {name!r} is no UTF-8", code="usage")
        self.source = source
        self.external = external
        self.dense_columns = dense_columns or {}
        self.notes: list[str] = []
        self.reasons: list[str] = []
        if source.version and (kind := other_kind(source.get, [tensor.name for tensor in source.tensors])):
            self.reasons.append(kind)
        self.architecture = _text(source, ARCHITECTURE) or UNKNOWN
        self.name = name or self._called() or self.architecture
        self.draft_from = draft_start(source.get)
        shapes = [Shape(tensor.name, tensor.ggml_type, tensor.dims) for tensor in source.tensors]
        self.placements = assign_placements(shapes, self.draft_from)
        self.placed: list[PlannedTensor] = []
        self.builder = GPackBuilder(self._manifest())
        self._add_metadata()
        self._add_assets()
        self._add_tensors()
        self._add_reasons()

    def _called(self) -> str:
        """What the metadata call the model; a name that is no text is noted and left to the metadata."""
        try:
            return _text(self.source, NAME)
        except FormatError as error:
            self.notes.append(f"{NAME}: {error.message}, so that the model is called by its architecture")
            return ""

    # ------------------------------------------------------------ metadata

    def _add_metadata(self) -> None:
        tokenizer = self._build_tokenizer()
        stubs = tokenizer.stubs if tokenizer else frozenset[str]()
        section = build_metadata(
            self.source.metadata.values(),
            stubs=stubs,
            source_version=self.source.version,
            source_alignment=self.source.alignment,
        )
        self.builder.add(SectionKind.METADATA_KV_BIN, section, len(self.source.metadata))
        if tokenizer is None:
            return
        self.builder.add(SectionKind.TOKENIZER_BIN, tokenizer.data, tokenizer.header.vocab_size)
        model, pre = (_text(self.source, key) for key in (MODEL, PRE))
        self.manifest["tokenizer"] = tokenizer_facts(model, pre, tokenizer.header)

    def _build_tokenizer(self) -> BuiltTokenizer | None:
        """TokenizerBin; None where the metadata has no vocabulary that one can be made of, which then stays there."""
        try:
            kind, pre = _text(self.source, MODEL), _text(self.source, PRE)
            tokenizer = build_tokenizer(self.source.metadata)
        except FormatError as error:
            place = f"{error.field}: " if error.field else ""
            self.reasons.append(f"the tokenizer cannot be read: {place}{error.message}")
            return None
        if tokenizer and kind == BYTE_LEVEL:
            try:
                rules_of(pre or DEFAULT)
            except UnsupportedError as error:
                self.reasons.append(f"text cannot be tokenized: {error.message}")
        if kind not in ("", BYTE_LEVEL, SENTENCE_PIECE):
            self.reasons.append(f"the tokenizer's model is {shorten(kind)}: it is packed, but cannot be used here")
        return tokenizer

    def _add_reasons(self) -> None:
        """Tells in the manifest why the model cannot be run, beside what the source tells.

        Of a model in memory nothing is reported: it was imported from nowhere, and another writer that is given
        the same has to reach the same bytes.
        """
        if not self.reasons or not self.source.files:
            return
        extensions = self.manifest.setdefault("extensions", {})
        info = dict(extensions.get(IMPORT_EXTENSION, {}))
        info["runnable"] = False
        info["reasons"] = list(dict.fromkeys([*info.get("reasons", ()), *self.reasons]))
        extensions[IMPORT_EXTENSION] = info

    def _add_assets(self) -> None:
        if self.source.assets:
            section = build_assets(self.source.assets)
            self.builder.add(SectionKind.TOKENIZER_ASSETS, section, len(self.source.assets))

    def _manifest(self) -> dict[str, Any]:
        tensors = self.source.tensors
        by_type: dict[str, int] = defaultdict(int)
        for tensor in tensors:
            by_type[GgmlType.NAMES[tensor.ggml_type]] += tensor.byte_size
        model: dict[str, Any] = {
            "name": self.name,
            "architecture": self.architecture,
            "parameter_count": sum(prod(tensor.dims) for tensor in tensors),
            "tensor_count": len(tensors),
            "bytes_by_type": dict(by_type),
        }
        names = {tensor.name for tensor in tensors}
        model |= model_facts(self.source.get, self.architecture, names)
        self.manifest: dict[str, Any] = {"model": model}
        if self.source.extensions:
            self.manifest["extensions"] = dict(self.source.extensions)
        return self.manifest

    # ------------------------------------------------------------ tensors

    def _add_tensors(self) -> None:
        groups: dict[int, list[ModelTensor]] = defaultdict(list)
        for tensor in self.source.tensors:
            groups[self.placements[tensor.name].section].append(tensor)
        for kind in (SectionKind.EMBED_BLOB, SectionKind.HEAD_BLOB, SectionKind.PLE_BLOB):
            for tensor in groups[kind]:
                self._add_single(kind, tensor)
        self._add_dense(groups[SectionKind.DENSE_PACK_BLOB], groups[SectionKind.NATIVE_DENSE_BLOB])
        if groups[SectionKind.EXPERT_BLOBS]:
            self._add_experts(groups[SectionKind.EXPERT_BLOBS])
        if groups[SectionKind.MTP_BLOB]:
            self._add_mtp(groups[SectionKind.MTP_BLOB])
        self.placed.sort(key=lambda placed: placed.info.position)
        rows = [(placed.info.name, _index_row(placed)) for placed in self.placed]
        self.builder.add(SectionKind.TENSOR_INDEX_BIN, build_tensor_index(rows), len(rows))

    def _add_single(self, kind: int, tensor: ModelTensor) -> None:
        ne0, ne1 = tensor.dims
        payload = SingleTensor.plan(tensor.ggml_type, ne0, ne1, self.source.range_of(tensor))
        self.builder.add(kind, payload, 1)
        self._place(tensor, payload.header.data_offset, 0)

    def _add_dense(self, packed: Sequence[ModelTensor], native: Sequence[ModelTensor]) -> None:
        """The dense index lists the native matrices too, so it is there as soon as there is any dense tensor."""
        tensors = [
            DenseTensor(
                tensor.name,
                tensor.ggml_type,
                tensor.dims,
                self.source.range_of(tensor),
                is_native,
                self.dense_columns.get(tensor.name),
            )
            for group, is_native in ((packed, False), (native, True))
            for tensor in group
        ]
        if not tensors:
            return
        made = build_dense(tensors)
        self.builder.add(SectionKind.DENSE_INDEX_BIN, made.dense_index, len(tensors))
        self.builder.add(SectionKind.DENSE_PACK_BLOB, made.dense_blob, len(packed))
        if native:
            self.builder.add(SectionKind.NATIVE_DENSE_INDEX_BIN, made.native_index, len(native))
            self.builder.add(SectionKind.NATIVE_DENSE_BLOB, made.native_blob, len(native))
        for tensor in (*packed, *native):
            columns = self.dense_columns.get(tensor.name)
            flags = TensorFlags.CODE_PLANES if columns and columns.planes else 0
            self._place(tensor, made.offsets[tensor.name], made.rows[tensor.name], flags)

    def _add_experts(self, tensors: Sequence[ModelTensor]) -> None:
        layers = self._expert_layers(tensors)
        blobs = ExpertBlobs(layers)
        self.manifest["experts"] = expert_summary(layers, "external" if self.external else "embedded")
        if self.external:
            self._leave_outside(self.external, layers, tensors)
            return
        self.builder.add(SectionKind.EXPERT_LAYOUT_BIN, build_expert_layout(layers), len(layers))
        self.builder.add(SectionKind.EXPERT_BLOBS, blobs, self.manifest["experts"]["blob_count"])
        offsets = blobs.offsets()
        rows = {layer.layer: (row, layer) for row, layer in enumerate(layers)}
        for tensor in tensors:
            placement = self.placements[tensor.name]
            row, layer = rows[placement.layer]
            self._place(tensor, offsets[placement.layer] + layer.offset_of(placement.role), row)

    def _leave_outside(
        self, external: ExternalFiles, layers: Sequence[ExpertLayer], tensors: Sequence[ModelTensor]
    ) -> None:
        self.builder.add(SectionKind.EXPERT_LAYOUT_BIN, external.build(layers), len(layers))
        self.manifest["experts"]["shards"] = external.summary()
        rows = {matrix.name: (row, matrix) for row, layer in enumerate(layers) for matrix in layer.matrices}
        for tensor in tensors:
            row, matrix = rows[tensor.name]
            self._place(tensor, external.place(matrix)[1], row, TensorFlags.EXTERNAL)

    def _add_mtp(self, tensors: Sequence[ModelTensor]) -> None:
        experts = [tensor for tensor in tensors if self.placements[tensor.name].role]
        ordinary = [tensor for tensor in tensors if not self.placements[tensor.name].role]
        drafts = [DraftTensor(t.name, t.ggml_type, t.dims, self.source.range_of(t)) for t in ordinary]
        section: MtpSection = build_mtp(drafts, self._expert_layers(experts))
        self.builder.add(SectionKind.MTP_BLOB, section, 1)
        self.manifest["mtp"] = {"tensor_count": len(tensors), "bytes": sum(tensor.byte_size for tensor in tensors)}
        for tensor in tensors:
            self._place(tensor, section.offsets[tensor.name], section.rows[tensor.name])

    def _expert_layers(self, tensors: Sequence[ModelTensor]) -> list[ExpertLayer]:
        """The layers by number, each with its matrices in the order of a blob."""
        layers: dict[int, dict[int, ExpertMatrix]] = defaultdict(dict)
        for tensor in tensors:
            placement = self.placements[tensor.name]
            ne0, ne1, n_expert = tensor.dims
            layers[placement.layer][placement.role] = ExpertMatrix(
                tensor.name, placement.role, tensor.ggml_type, (ne0, ne1, n_expert), self.source.range_of(tensor)
            )
        made = []
        for number, matrices in sorted(layers.items()):
            roles = next(roles for roles in ROLE_SETS if set(roles) == set(matrices))
            made.append(ExpertLayer(number, tuple(matrices[role] for role in roles)))
        return made

    def _place(self, tensor: ModelTensor, offset: int, home_row: int, flags: int = 0) -> None:
        self.placed.append(PlannedTensor(tensor, self.placements[tensor.name], offset, home_row, flags))


def _index_row(placed: PlannedTensor) -> TensorIndexRowV1:
    info, placement = placed.info, placed.placement
    return TensorIndexRowV1(
        ggml_type=info.ggml_type,
        n_dims=len(info.dims),
        dims=padded_dims(info.dims),
        home=placement.section,
        role=placement.role,
        home_row=placed.home_row,
        flags=placed.flags,
        offset=placed.offset,
        byte_size=info.byte_size,
        position=info.position,
    )


def model_facts(get: Callable[[str], Any], architecture: str, names: Container[str]) -> dict[str, Any]:
    """What the manifest says of a model beside its name and its tensors.

    Args:
        get: Decoded metadata value of a key, or None.
        names: Of all tensors.

    Raises:
        FormatError: `convert.metadata`: a number is absurd.
    """
    tied = get(f"{architecture}.tie_word_embeddings")
    made: dict[str, Any] = {
        "tied_embeddings": tied if isinstance(tied, bool) else EMBEDDING in names and HEAD not in names
    }
    layers = _count(get, f"{architecture}.block_count", MAX_LAYERS)
    if layers is not None:
        drafts = draft_start(get)
        made["layer_count"] = layers if drafts is None else drafts
    context = _count(get, f"{architecture}.context_length", MAX_NUMBER)
    return made if context is None else {**made, "context_length": context}


def _count(get: Callable[[str], Any], key: str, most: int) -> int | None:
    value = get(key)
    if not is_count(value):
        return None
    if value > most:
        raise FormatError(f"{value} is too large", code="convert.metadata", section="metadata", field=key)
    return int(value)


def tokenizer_facts(model: str, pre: str, header: GbtHeaderV1) -> dict[str, Any]:
    """What the manifest says of a tokenizer."""
    made: dict[str, Any] = {
        "model": model or UNKNOWN,
        "vocab_size": header.vocab_size,
        "merge_count": header.n_merges,
        "has_chat_template": header.chat_template_bytes > 0,
    }
    if pre:
        made["pre"] = pre
    return made if header.eos_token_id < 0 else {**made, "eos_token_id": header.eos_token_id}


def _text(source: ModelSource, key: str) -> str:
    """A string of the metadata that names something: empty where it is absent or empty.

    Raises:
        FormatError: It is no string, or no UTF-8, so that the manifest cannot hold it.
    """
    value = source.get(key, "")
    if not isinstance(value, str) or any("\ud800" <= char <= "\udfff" for char in value):
        raise FormatError(
            "it is no UTF-8 string", code="convert.metadata", path=source.files[0].path, section="metadata", field=key
        )
    return value
