"""The small files of a Hugging Face folder: configuration, tokenizer, template. Read as data; nothing is run."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..container.foreign import foreign_bytes
from ..container.strict_json import parse_object
from ..errors import FormatError, PathError
from ..generated.constants import GEXC_MAGIC
from ..sections.assets import is_file_name
from .files import SourceFile

CONFIG, GENERATION = "config.json", "generation_config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TEMPLATE, TEMPLATE_JSON = "chat_template.jinja", "chat_template.json"
SPECIAL_TOKENS, ADDED_TOKENS = "special_tokens_map.json", "added_tokens.json"
VOCABULARY, MERGES = "vocab.json", "merges.txt"
SENTENCE_PIECE, TEKKEN = "tokenizer.model", "tekken.json"
# What an import reads.
NAMES = (
    CONFIG,
    GENERATION,
    TOKENIZER,
    TOKENIZER_CONFIG,
    SPECIAL_TOKENS,
    ADDED_TOKENS,
    TEMPLATE,
    TEMPLATE_JSON,
    VOCABULARY,
    MERGES,
    SENTENCE_PIECE,
    "spiece.model",
    "sentencepiece.bpe.model",
    TEKKEN,
)
# What else belongs to a model, by patterns of names. A closed list: a folder may hold other people's papers too.
_COMPANIONS = (
    "params.json",
    "vocab.txt",
    "tokenizer.model.*",
    "*.tiktoken",
    "*.spm",
    "token_type.json",
    "adapter_config.json",
    "*processor_config.json",
    "*quant*_config.json",
    "quantize_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
)
# Papers of a model, kept where it has a configuration: without one the folder may be anything.
_PAPERS = ("license*", "licence*", "copying*", "notice*", "use_policy*", "readme*")
MAX_BYTES = 256 << 20  # of a file that is read
MAX_KEPT = 64 << 20  # of one that is kept
MAX_DEPTH = 100


class HfFiles(Mapping[str, bytes]):
    """The files of a folder that belong to a model beside its tensors, by name, read whole.

    Attributes:
        folder: Where they are.
        opened: The files, open until `close`.
        left_out: Names of files that were found and are not kept, and why.
    """

    def __init__(self, folder: Path, *, companions: bool = False) -> None:
        """Reads those that an import looks into.

        Args:
            companions: Read those that are only kept, too.

        Raises:
            PathError: A file is no regular file or cannot be read.
        """
        self.folder = folder
        self.opened: list[SourceFile] = []
        self.left_out: dict[str, str] = {}
        self._data: dict[str, bytes] = {}
        try:
            for name in NAMES:
                self._read(name)
            if companions:
                self._read_companions()
        except BaseException:
            self.close()
            raise

    @property
    def kept(self) -> dict[str, bytes]:
        """What a pack keeps byte for byte."""
        return {name: data for name, data in self._data.items() if name not in self.left_out}

    def _read_companions(self) -> None:
        patterns = (*_COMPANIONS, *(_PAPERS if CONFIG in self else ()))
        for entry in sorted(self.folder.iterdir()):
            name = entry.name
            if name in self or not any(fnmatchcase(name.lower(), pattern) for pattern in patterns):
                continue
            if not entry.is_file() or not is_file_name(name):
                self.left_out[name] = "it is no plain file"
                continue
            try:
                self._read(name)
            except PathError as error:
                self.left_out[name] = error.message

    def close(self) -> None:
        """Closes the files; what was read stays."""
        for file in self.opened:
            file.close()

    def __getitem__(self, name: str) -> bytes:
        return self._data[name]

    def __iter__(self) -> Any:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def json(self, name: str, *, code: str = "hf.config") -> dict[str, Any]:
        """The object that a file holds; an empty one where there is no such file.

        Raises:
            FormatError: The file is no JSON object, holds a key twice, or is nested too deeply.
        """
        data = self._data.get(name)
        if data is None:
            return {}
        try:
            # Configurations hold Infinity at times, which Python writes.
            return parse_object(data, max_bytes=MAX_BYTES, max_depth=MAX_DEPTH, plain=False)
        except ValueError as error:
            found = foreign_bytes(data[:512], name)
            raise FormatError(
                found[0] if found else f"it is no JSON object of its kind: {error}",
                code=code,
                path=self.folder / name,
                hint=found[1] if found else None,
            ) from error

    def text(self, name: str, *, code: str = "hf.tokenizer") -> str | None:
        """A file as text; None where there is no such file.

        Raises:
            FormatError: The file is not UTF-8.
        """
        data = self._data.get(name)
        if data is None:
            return None
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise FormatError(f"it is not UTF-8: {error}", code=code, path=self.folder / name) from error

    def _read(self, name: str) -> None:
        try:
            file = SourceFile(self.folder / name)
        except PathError as error:
            # A link to nowhere is a fault; a file that is not there is none.
            if error.code == "io.not_found" and not (self.folder / name).is_symlink():
                return
            raise
        self.opened.append(file)
        if file.size > MAX_KEPT:
            self.left_out[name] = f"it has {file.size} bytes, and {MAX_KEPT} are kept"
        if file.size > MAX_BYTES:
            return
        data = file.read_at(0, file.size)
        if data.startswith(GEXC_MAGIC.to_bytes(4, "little")):
            self.left_out[name] = "it is hardware-specific"
        self._data[name] = data
