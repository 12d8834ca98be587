"""A Hugging Face model (safetensors and the small files beside them) as a source of a conversion.

Of an architecture that is known the result has the names, shapes, values and metadata of the model's GGUF; any other
is taken as it is, under its own names. Configuration is read as data; code that lies in the folder is never run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from ..container.pieces import Range
from ..container.strict_json import shorten
from ..errors import FormatError
from ..generated.constants import GgmlType
from ..sections.homes import EMBEDDING, HEAD
from ..sections.values import Value
from . import hf_files, hf_metadata
from .files import SourceFile
from .hf_architectures import Architecture, find_architecture
from .hf_config import HfConfig
from .hf_files import HfFiles
from .hf_names import Sorted, find_draft, sort_tensors
from .hf_recipe import Recipe
from .hf_settings import check_values, untranslated
from .hf_shapes import Shapes, missing_tensors
from .hf_tokenizer import import_tokenizer
from .hf_translate import Translator, copy_of, rope_frequencies
from .metadata_build import MetadataBuilder
from .model import IMPORT_EXTENSION
from .safetensors import StoredTensor
from .safetensors_set import SafetensorsSet

_FLOATS = (GgmlType.F32, GgmlType.F16, GgmlType.BF16)


class HfSource:
    """A model, open for reading. Use it as a context manager, or call `close`.

    Attributes:
        version, alignment: 0: the source is no GGUF.
        metadata: What a GGUF of the model says.
        tensors: The tensors of the pack.
        assets: The small files, by name.
        extensions: Where there is something to tell: whether the model can be run, and its parts beside the text model.
    """

    version = 0
    alignment = 0

    def __init__(self, path: Path, *, name: str | None = None, text_only: bool = False) -> None:
        """Opens the files and plans every tensor; `open` says more."""
        self._set = SafetensorsSet(path)
        try:
            self._files = HfFiles(self._set.folder)
        except BaseException:
            self._set.close()
            raise
        try:
            self._text_only = text_only
            self.faults: list[str] = []
            self._tokenizer_notes: list[str] = []
            self.metadata: dict[str, Value] = {}
            self.config = HfConfig(self._files.json(hf_files.CONFIG), self._set.folder / hf_files.CONFIG)
            self.assets: Mapping[str, bytes] = dict(self._files)
            self._import(name)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, name: str | None = None, text_only: bool = False) -> Self:
        """Opens a model: its folder, its one file, any of its shards, or its index.

        Args:
            name: What `general.name` shall be; default the architecture.
            text_only: Leave out towers that the text model does not need.

        Raises:
            FormatError: The files are damaged or contradict one another; codes `safetensors.*`, `hf.*`.
            UnsupportedError: A tensor's type is not known.
            PathError: A file is missing or cannot be read.
        """
        return cls(Path(path), name=name, text_only=text_only)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files; a second call does nothing."""
        self._set.close()
        self._files.close()

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """Every file that is read."""
        return (*self._set.files, *self._files.opened)

    @property
    def notes(self) -> tuple[str, ...]:
        """Files of the folder that hold tensors and were not read; what the tokenizer asks for that is left aside."""
        ignored = self._set.ignored
        listed = ", ".join(shorten(name)[1:-1] for name in ignored[:10])
        unread = (f"not read: {listed}{' and others' if len(ignored) > 10 else ''}",) if ignored else ()
        return (*unread, *self._tokenizer_notes)

    @property
    def shards(self) -> tuple[SourceFile, ...]:
        """The files with tensors."""
        return tuple(self._set.shards)

    def get(self, key: str, default: Any = None) -> Any:
        """The decoded metadata value of a key; `default` if there is none."""
        value = self.metadata.get(key)
        return default if value is None else value.python()

    def range_of(self, tensor: Recipe) -> Range:
        """The tensor's bytes."""
        return tensor.range()

    def describe_files(self) -> list[dict[str, Any]]:
        """The files, for a report."""
        return [{"file": file.path.name, "size": file.size} for file in self.files]

    def origin(self, tensor: Recipe) -> dict[str, Any]:
        """The source's tensors that a tensor is made of, and how, for a report."""
        files = list(dict.fromkeys(source.file.path.name for source in tensor.sources))
        steps = list(tensor.steps)
        if tensor.ggml_type != tensor.stored_type:
            steps.append(f"{GgmlType.NAMES[tensor.stored_type]} to {GgmlType.NAMES[tensor.ggml_type]}")
        origin: dict[str, Any] = {"source": files, "source_tensors": [source.name for source in tensor.sources]}
        if len(tensor.sources) == 1 and not steps:
            origin["source_offset"] = tensor.sources[0].begin
        return origin | ({"steps": steps} if steps else {})

    # ------------------------------------------------------------ import

    def _import(self, name: str | None) -> None:
        architecture = find_architecture(self.config)
        draft = find_draft(self._set.tensors, self.config) if architecture and architecture.is_linear else None
        parts = sort_tensors(self._set.tensors, known=architecture is not None, draft=draft)
        if architecture is None:
            recipes = [copy_of(tensor) for _, tensor in parts.text]
            self.faults.append(f"the architecture {shorten(self._called())} is none that is translated")
        else:
            check_values(architecture, self.config)
            translator = Translator(architecture, self.config, draft, len(parts.text))
            translator.translate(parts.text)
            recipes = self._translated(translator, architecture)
        towers = [] if self._text_only else [copy_of(tensor) for tower in parts.towers.values() for tensor in tower]
        self.tensors = _numbered([*recipes, *towers])
        self._build_metadata(name, architecture, recipes, 1 if draft else 0)
        self.extensions = self._tell(parts)

    def _translated(self, translator: Translator, architecture: Architecture) -> list[Recipe]:
        frequencies = rope_frequencies(self.config, hf_metadata.head_size(self.config))
        recipes = [*([frequencies] if frequencies else []), *translator.recipes]
        recipes += [copy_of(tensor) for tensor in translator.unknown]
        names = {recipe.name for recipe in recipes}
        tied = any(values.get("tie_word_embeddings") for values in (self.config.outer, self.config.values))
        untied = self.config.values.get("tie_word_embeddings") is False and not tied
        if EMBEDDING not in names or (untied and HEAD not in names):
            raise FormatError(
                f"the model has no {'lm_head' if EMBEDDING in names else 'embed_tokens'}.weight",
                code="hf.tensor",
                path=self._set.folder,
                hint="are all files of the model there?",
            )
        if translator.unknown:
            first = translator.unknown[0].name
            self.faults.append(
                f"{len(translator.unknown)} tensors have no name in {architecture.name}, the first is {shorten(first)}"
            )
        self._check(translator, architecture)
        strange = [recipe for recipe in translator.recipes if recipe.stored_type not in (*_FLOATS, GgmlType.F64)]
        if strange:
            kind = GgmlType.NAMES[strange[0].stored_type]
            self.faults.append(f"{len(strange)} tensors are {kind} or the like, whose values other tensors scale")
        return recipes

    def _check(self, translator: Translator, architecture: Architecture) -> None:
        """Tensors and configuration say the same; what they ask for that has no translation is a reason.

        Raises:
            FormatError: `hf.tensor` or `hf.config`: they do not.
        """
        Shapes(architecture, self.config).check(translator.recipes)
        names = [recipe.name for recipe in translator.recipes]
        draft = translator.draft.layer if translator.draft else None
        missing = missing_tensors(architecture, self.config, names, draft)
        if missing:
            listed = f"{len(missing)} tensors that {architecture.name} needs are missing, the first is {missing[0]}"
            # Packed weights come under other names: the model is whole, but not in a form that can be run.
            if not translator.unknown:
                raise FormatError(
                    listed,
                    code="hf.tensor",
                    path=self._set.folder,
                    field=missing[0],
                    hint="are all files of the model there?",
                )
            self.faults.append(listed)
        self.faults += untranslated(architecture, self.config, names)

    def _build_metadata(
        self, name: str | None, architecture: Architecture | None, recipes: list[Recipe], drafts: int
    ) -> None:
        metadata, config = MetadataBuilder(), self.config
        called = architecture.name if architecture else _key_part(self._called())
        generation = self._files.json(hf_files.GENERATION)
        label = hf_metadata.size_label((recipe.name, recipe.dims) for recipe in recipes)
        hf_metadata.build_general(metadata, called, name, generation, label)
        file_type = _file_type(recipes) if architecture else None
        self.faults += hf_metadata.build_parameters(metadata, called, config, file_type, drafts)
        if architecture:
            hf_metadata.build_specific(metadata, architecture, config, drafts)
            metadata.u32("general.quantization_version", hf_metadata.QUANTIZATION_VERSION)
        tokenizer = import_tokenizer(self._files, config.count("vocab_size"), config)
        self.faults += tokenizer.faults
        self._tokenizer_notes = tokenizer.notes
        self.metadata = {**metadata, **tokenizer.metadata}

    def _called(self) -> str:
        """What the files call the architecture."""
        return self.config.model_type or (self.config.class_names[0] if self.config.class_names else "unknown")

    def _tell(self, parts: Sorted) -> dict[str, Any]:
        told: dict[str, Any] = {}
        if self.faults:
            told = {"runnable": False, "reasons": list(self.faults)}
        if parts.towers:
            told["left_out" if self._text_only else "parts"] = {
                shorten(tower)[1:-1]: {"tensors": len(tensors), "bytes": sum(t.byte_size for t in tensors)}
                for tower, tensors in parts.towers.items()
            }
        if parts.buffers:
            told["computed"] = [shorten(tensor.name)[1:-1] for tensor in parts.buffers[:100]]
        return {IMPORT_EXTENSION: told} if told else {}


def _numbered(recipes: Iterable[Recipe]) -> list[Recipe]:
    found: dict[str, Recipe] = {}
    for recipe in recipes:
        if recipe.name in found:
            sources: Iterable[StoredTensor] = (*found[recipe.name].sources, *recipe.sources)
            names = ", ".join(source.name for source in sources)
            raise FormatError(f"the tensors {names} become one", code="hf.tensor", field=recipe.name)
        found[recipe.name] = replace(recipe, position=len(found))
    return list(found.values())


def _file_type(recipes: Iterable[Recipe]) -> int:
    """GGUF's number for what the first large matrix is stored as."""
    kinds = (recipe.ggml_type for recipe in recipes if len(recipe.dims) > 1 and recipe.ggml_type in _FLOATS)
    return hf_metadata.FILE_TYPES[next(kinds, GgmlType.F32)]


def _key_part(name: str) -> str:
    """A name that can begin metadata keys."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "unknown"
