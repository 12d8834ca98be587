"""The small files of a Hugging Face folder: configuration, tokenizer, template. Read as data; nothing is run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..container.strict_json import parse_object
from ..errors import FormatError, PathError
from .files import SourceFile

CONFIG, GENERATION = "config.json", "generation_config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TEMPLATE, TEMPLATE_JSON = "chat_template.jinja", "chat_template.json"
SPECIAL_TOKENS = "special_tokens_map.json"
# What is kept byte for byte in TokenizerAssets.
NAMES = (
    CONFIG,
    GENERATION,
    TOKENIZER,
    TOKENIZER_CONFIG,
    SPECIAL_TOKENS,
    "added_tokens.json",
    TEMPLATE,
    TEMPLATE_JSON,
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "preprocessor_config.json",
)
MAX_BYTES = 256 << 20
MAX_DEPTH = 100


class HfFiles(Mapping[str, bytes]):
    """The files of a folder that belong to a model beside its tensors, by name, read whole.

    Attributes:
        folder: Where they are.
        opened: The files, open until `close`.
    """

    def __init__(self, folder: Path) -> None:
        """Reads those of `NAMES` that exist.

        Raises:
            FormatError: `hf.config`: a file is too large to be what its name says.
            PathError: A file is no regular file or cannot be read.
        """
        self.folder = folder
        self.opened: list[SourceFile] = []
        self._data: dict[str, bytes] = {}
        try:
            for name in NAMES:
                self._read(name)
        except BaseException:
            self.close()
            raise

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
            raise FormatError(
                f"it is no JSON object of its kind: {error}", code=code, path=self.folder / name
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
        if file.size > MAX_BYTES:
            raise FormatError(f"it has {file.size} bytes, and may have {MAX_BYTES}", code="hf.config", path=file.path)
        self._data[name] = file.read_at(0, file.size)
