"""What a third party's writer is asked to write: JSON and raw files, on two levels.

`container`: the sections are given as they are, and the writer makes header, directory, footer, manifest and digests.
`model`: metadata, tensors and tokenizer files are given, and the writer makes the sections too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..container.manifest import parse_json
from ..container.writer import GPackBuilder
from ..convert.external import external_files
from ..convert.plan import Plan
from ..generated.constants import GgmlType, MetadataType, SectionKind
from ..generated.structs import GPackHeaderV1, GPackSectionEntryV1
from ..sources.gguf import GgufSource
from ..sources.gguf_write import build_header
from .memory_model import GGUF_ALIGNMENT, GGUF_VERSION, Entry, MemoryModel, value_of
from .recipes.material import Tensor, in_memory

WRITER_LEVELS = ("container", "model")
PROFILES = ("canonical", "free")
RECIPE_FILE, OUTPUT_FILE = "RECIPE.json", "OUTPUT.gpack"
_SHARD = "experts.gguf"
# What the manifest says that follows from the rest.
_DERIVED = ("schema", "format_version", "min_reader_version", "flags", "sections")


@dataclass(frozen=True)
class Private:
    """A section of a private kind."""

    kind: int
    name: str
    data: bytes
    alignment: int = 64
    item_count: int = 1


@dataclass(frozen=True)
class Model:
    """A model that is to be packed.

    Attributes:
        name: Of the model, where it is not to follow from the metadata.
        producer: Of the pack, where it is not `gpack`.
        external: Its routed experts stay in a file of their own.
    """

    metadata: list[Entry] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    assets: Mapping[str, bytes] = field(default_factory=dict)
    extensions: Mapping[str, Any] = field(default_factory=dict)
    private: tuple[Private, ...] = ()
    name: str | None = None
    producer: str = "gpack"
    external: bool = False


@dataclass(frozen=True)
class WriterRecipe:
    """One task for a writer.

    Attributes:
        id: For instance `model/experts/fused`.
        doc: What it is about, in a sentence.
        level: One of `WRITER_LEVELS`.
        document: RECIPE.json; spec/conformance/writer-recipe.schema.json.
        files: The files beside it, by name.
        write: Writes the pack with gpack's own writer; the folder holds the files.
    """

    id: str
    doc: str
    level: str
    document: dict[str, Any]
    files: Mapping[str, bytes]
    write: Callable[[Path, Path], None]

    @property
    def required(self) -> bool:
        """All are."""
        return True

    def materialise(self, folder: Path, *, profile: str) -> Path:
        """Writes RECIPE.json and its files into a folder; the path of RECIPE.json."""
        for name, data in self.files.items():
            (folder / name).write_bytes(data)
        path = folder / RECIPE_FILE
        path.write_text(json.dumps({**self.document, "profile": profile}, indent=1) + "\n", encoding="ascii")
        return path


# ---------------------------------------------------------------- model level


def model_recipe(recipe_id: str, doc: str, model: Model) -> WriterRecipe:
    """The task to pack a model."""
    files: dict[str, bytes] = {}
    outside = _external_names(model)
    shard, header_size, offsets = _shard(model) if model.external else (b"", 0, {})
    tensors = []
    for index, (name, ggml_type, dims, data) in enumerate(model.tensors):
        info: dict[str, Any] = {
            "name": name,
            "ggml_type": GgmlType.NAMES[ggml_type],
            "type_id": ggml_type,
            "dims": list(dims),
        }
        if name in outside:
            info |= {"shard": 0, "offset": offsets[name]}
        else:
            files[f"t{index}.bin"] = data
            info |= {"file": f"t{index}.bin"}
        tensors.append(info)
    document: dict[str, Any] = {
        "type": "write",
        "protocol": 1,
        "id": recipe_id,
        "doc": doc,
        "level": "model",
        "profile": PROFILES[0],
        "format_version": 1,
        "min_reader_version": 1,
        "producer": model.producer,
        "source": {"gguf_version": GGUF_VERSION, "alignment": GGUF_ALIGNMENT},
        "metadata": [{"key": key, "type": kind, "value": to_json(kind, value)} for key, kind, value in model.metadata],
        "tensors": tensors,
        "assets": _asset_files(model, files),
        "experts": "external" if model.external else "embedded",
        "shards": [],
        "private_sections": _private_files(model, files),
        "extensions": dict(model.extensions),
    }
    if model.name is not None:
        document["name"] = model.name
    if model.external:
        files[_SHARD] = shard
        document["shards"] = [{"name": _SHARD, "file": _SHARD, "header_size": header_size}]
    return WriterRecipe(
        recipe_id, doc, "model", document, files, lambda folder, path: _write_model(model, folder, path)
    )


def _write_model(model: Model, folder: Path, path: Path) -> None:
    if model.external:
        with GgufSource.open(folder / _SHARD) as source:
            _build(model, Plan(source, name=model.name, external=external_files(source, hash_shards=False)), path)
    else:
        held = MemoryModel(model.metadata, in_memory(model.tensors), model.assets, model.extensions)
        _build(model, Plan(held, name=model.name), path)


def _build(model: Model, plan: Plan, path: Path) -> None:
    for section in model.private:
        plan.builder.add(section.kind, section.data, section.item_count, name=section.name, alignment=section.alignment)
    plan.builder.producer = model.producer
    plan.builder.build(path)


def _external_names(model: Model) -> set[str]:
    return {name for name, *_ in model.tensors if "_exps." in name} if model.external else set()


def _shard(model: Model) -> tuple[bytes, int, dict[str, int]]:
    """The whole model as a GGUF, the size of its header, and the place of each tensor in it."""
    values = [value_of(*entry) for entry in model.metadata]
    specs = [(name, kind, dims, len(data)) for name, kind, dims, data in model.tensors]
    header, places, size = build_header(version=GGUF_VERSION, alignment=GGUF_ALIGNMENT, metadata=values, tensors=specs)
    made = bytearray(size)
    made[: len(header)] = header
    for (*_, data), place in zip(model.tensors, places, strict=True):
        made[place : place + len(data)] = data
    names = (name for name, *_ in model.tensors)
    return bytes(made), len(header), dict(zip(names, places, strict=True))


def _asset_files(model: Model, files: dict[str, bytes]) -> list[dict[str, str]]:
    entries = []
    for index, (name, data) in enumerate(model.assets.items()):
        files[f"a{index}.bin"] = data
        entries.append({"name": name, "file": f"a{index}.bin"})
    return entries


def _private_files(model: Model, files: dict[str, bytes]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for index, section in enumerate(model.private):
        files[f"p{index}.bin"] = section.data
        entries.append(
            {
                "kind": section.kind,
                "name": section.name,
                "alignment": section.alignment,
                "item_count": section.item_count,
                "file": f"p{index}.bin",
            }
        )
    return entries


# ---------------------------------------------------------------- container level


def container_recipe(recipe_id: str, doc: str, pack: bytes) -> WriterRecipe:
    """The task to put the sections of a valid pack together again."""
    header = GPackHeaderV1.decode(pack)
    files: dict[str, bytes] = {}
    sections: list[dict[str, Any]] = []
    manifest: dict[str, Any] = {}
    for index in range(header.section_count):
        entry = GPackSectionEntryV1.decode(pack, header.section_table_offset + index * GPackSectionEntryV1.SIZE)
        data = pack[entry.offset : entry.offset + entry.size]
        if entry.kind == SectionKind.MANIFEST_JSON:
            manifest = {key: value for key, value in parse_json(data).items() if key not in _DERIVED}
            continue
        files[f"s{index}.bin"] = data
        sections.append(
            {
                "kind": entry.kind,
                "name": entry.name.rstrip(b"\0").decode("ascii"),
                "alignment": entry.alignment,
                "item_count": entry.item_count,
                "file": f"s{index}.bin",
            }
        )
    producer = manifest.pop("producer")
    document = {
        "type": "write",
        "protocol": 1,
        "id": recipe_id,
        "doc": doc,
        "level": "container",
        "profile": PROFILES[0],
        "format_version": header.format_version,
        "min_reader_version": header.min_reader_version,
        "producer": producer,
        "flags": header.flags,
        "manifest": manifest,
        "sections": sections,
    }

    def write(_folder: Path, path: Path) -> None:
        builder = GPackBuilder(manifest, producer, header.format_version, header.min_reader_version)
        for section in sections:
            builder.add(
                section["kind"],
                files[section["file"]],
                section["item_count"],
                name=section["name"],
                alignment=section["alignment"],
            )
        builder.build(path)

    return WriterRecipe(recipe_id, doc, "container", document, files, write)


# ---------------------------------------------------------------- values as JSON


def to_json(kind: str, value: Any) -> Any:
    """A metadata value as a recipe has it.

    Numbers of 64 bits are decimal text, floats that JSON lacks are `NaN`, `Infinity`, `-Infinity` as text, text that is
    no UTF-8 is `{"hex": ...}`.
    """
    if kind.startswith("["):
        return [to_json(kind[1:-1], item) for item in value]
    if kind in ("u64", "i64"):
        return str(int(value))
    if kind in ("f32", "f64"):
        number = float(value)
        if math.isfinite(number):
            return number
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    if kind == "str":
        return text_to_json(value)
    return bool(value) if kind == "bool" else int(value)


def text_to_json(value: str | bytes) -> Any:
    """Text, or `{"hex": ...}` where it is no UTF-8."""
    octets = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError:
        return {"hex": octets.hex()}


# GGUF's types by the names that recipes have for them.
KIND_NAMES = {
    MetadataType.UINT8: "u8",
    MetadataType.INT8: "i8",
    MetadataType.UINT16: "u16",
    MetadataType.INT16: "i16",
    MetadataType.UINT32: "u32",
    MetadataType.INT32: "i32",
    MetadataType.FLOAT32: "f32",
    MetadataType.BOOL: "bool",
    MetadataType.STRING: "str",
    MetadataType.UINT64: "u64",
    MetadataType.INT64: "i64",
    MetadataType.FLOAT64: "f64",
    MetadataType.ARRAY: "array",
}
