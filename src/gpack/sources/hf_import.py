"""A Hugging Face model (safetensors and the small files beside them) as a source of a conversion.

Of an architecture that is known the result has the names, shapes, values and metadata of the model's GGUF; any other
is taken as it is, under its own names. A model that is whole is never refused: what cannot be translated costs only
that, and its reason is reported. Configuration is read as data; code that lies in the folder is never run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from ..container.payload import Range
from ..container.strict_json import shorten
from ..errors import FormatError
from ..generated.constants import GgmlType
from ..sections.values import Value
from . import hf_files, hf_metadata
from .files import SourceFile
from .hf_architectures import class_reasons, find_architecture
from .hf_config import HfConfig
from .hf_files import HfFiles
from .hf_model import HfModel, called, keep_model, translate_model
from .hf_scales import unfold_scales
from .hf_tensor import HfTensor
from .hf_tokenizer import import_tokenizer, no_tokenizer
from .hf_towers import Sorted
from .metadata_build import MetadataBuilder
from .model import IMPORT_EXTENSION
from .safetensors import METADATA
from .safetensors_set import SafetensorsSet

HEADER_METADATA = "__metadata__.json"  # the asset that has what the headers say beside the tensors


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

    def __init__(self, path: Path, *, name: str | None = None, text_only: bool = False, wide: bool = False) -> None:
        """Opens the files and plans every tensor; `open` says more."""
        self._set = SafetensorsSet(path)
        try:
            self._files = HfFiles(self._set.folder, companions=True)
        except BaseException:
            self._set.close()
            raise
        try:
            self._text_only, self._wide = text_only, wide
            self.reasons: list[str] = list(self._set.reasons)
            self._tokenizer_notes: list[str] = []
            self._file_notes: list[str] = []
            self.config = HfConfig(self._read(hf_files.CONFIG), self._set.folder / hf_files.CONFIG)
            self.assets: Mapping[str, bytes] = self._files.kept | self._header_metadata()
            self._import(name)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, name: str | None = None, text_only: bool = False, wide: bool = False
    ) -> Self:
        """Opens a model: its folder, its one file, any of its shards, or its index.

        Args:
            name: What `general.name` shall be; default the architecture.
            text_only: Leave out towers that the text model does not need.
            wide: Products of narrow floats and scales stay F32, for they will become another type; else BF16.

        Raises:
            FormatError: The model is not whole; codes `safetensors.*`.
            UnsupportedError: A tensor's type is not known.
            PathError: A file is missing or cannot be read.
        """
        return cls(Path(path), name=name, text_only=text_only, wide=wide)

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
        """What was not read, where files contradict one another, what the tokenizer asks for that is left aside."""
        ignored = self._set.ignored
        listed = ", ".join(shorten(name)[1:-1] for name in ignored[:10])
        unread = (f"not read: {listed}{' and others' if len(ignored) > 10 else ''}",) if ignored else ()
        left = (f"not kept: {shorten(name)[1:-1]}: {reason}" for name, reason in self._files.left_out.items())
        return (*unread, *left, *self._set.notes, *self._file_notes, *self._tokenizer_notes)

    @property
    def shards(self) -> tuple[SourceFile, ...]:
        """The files with tensors."""
        return tuple(self._set.shards)

    def get(self, key: str, default: Any = None) -> Any:
        """The decoded metadata value of a key; `default` if there is none."""
        value = self.metadata.get(key)
        return default if value is None else value.python()

    def range_of(self, tensor: HfTensor) -> Range:
        """The tensor's bytes."""
        return tensor.range()

    def describe_files(self) -> list[dict[str, Any]]:
        """The files, for a report."""
        return [{"file": file.path.name, "size": file.size} for file in self.files]

    def origin(self, tensor: HfTensor) -> dict[str, Any]:
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
        model = self._translated() or keep_model(self._set.tensors, self.config, text_only=self._text_only)
        self.tensors = model.tensors
        self.reasons += model.reasons
        self._file_notes += model.notes
        self.metadata = self._build_metadata(name, model)
        self.reasons += self.config.problems
        self.extensions = self._tell(model.parts)

    def _translated(self) -> HfModel | None:
        """The model as its GGUF has it; None, with the reason noted, where it cannot be translated."""
        architecture = find_architecture(self.config)
        if architecture is None:
            self.reasons.append(f"the architecture {shorten(called(self.config))} is none that is translated")
            return None
        try:
            config = self.config.strict()
            tensors, notes = unfold_scales(self._set.tensors, config, wide=self._wide)
            model = translate_model(tensors, config, architecture, text_only=self._text_only)
        except FormatError as error:
            self.reasons += class_reasons(architecture, self.config)
            self.reasons.append(f"it cannot be translated as {architecture.name}: {_sentence(error)}")
            return None
        self._file_notes += notes
        return model

    def _build_metadata(self, name: str | None, model: HfModel) -> dict[str, Value]:
        metadata = MetadataBuilder()
        generation = self._read(hf_files.GENERATION)
        hf_metadata.build_general(metadata, model.name, name, generation, model.size_label)
        metadata |= model.parameters
        try:
            tokenizer = import_tokenizer(self._files, self.config.count("vocab_size"), self.config)
        except FormatError as error:
            tokenizer = no_tokenizer(self._files, f"the tokenizer cannot be translated: {_sentence(error)}")
        self.reasons += tokenizer.faults
        self._tokenizer_notes = tokenizer.notes
        return {**metadata, **tokenizer.metadata}

    def _header_metadata(self) -> dict[str, bytes]:
        """What the shards say under `__metadata__`, as a file: the object itself where all say the same, else a list.

        A pack depends on no names of shards, so that those that say nothing have null.
        """
        said = [self._set.metadata.get(file.path.name) for file in self._set.shards]
        if not self._set.metadata:
            return {}
        value = said[0] if all(one == said[0] for one in said) else said
        if not all(map(_holds_strings, self._set.metadata.values())):
            self._file_notes.append(f"{METADATA} of the tensors is no object of strings; it is kept as it is")
        return {HEADER_METADATA: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")}

    def _read(self, name: str) -> dict[str, Any]:
        """The object that a small file holds; an empty one, with a note, where it is damaged."""
        try:
            return self._files.json(name)
        except FormatError as error:
            self._file_notes.append(f"{_sentence(error)}; it is left aside")
            return {}

    def _tell(self, parts: Sorted) -> dict[str, Any]:
        info: dict[str, Any] = {}
        if self.reasons:
            info = {"runnable": False, "reasons": list(dict.fromkeys(self.reasons))}
        if parts.towers:
            info["left_out" if self._text_only else "parts"] = {
                shorten(tower)[1:-1]: {"tensors": len(tensors), "bytes": sum(t.byte_size for t in tensors)}
                for tower, tensors in parts.towers.items()
            }
        if parts.buffers:
            info["computed"] = [shorten(tensor.name)[1:-1] for tensor in parts.buffers[:100]]
        return {IMPORT_EXTENSION: info} if info else {}


def _holds_strings(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _sentence(error: FormatError) -> str:
    """An error as part of a sentence: the file's name, the place in it, what is wrong."""
    place = ": ".join(part for part in (Path(error.path).name if error.path else "", error.field) if part)
    return f"{place}: {error.message}" if place else error.message
