"""The tokenizer of a Hugging Face folder for `Tokenizer.from_dir`: what cannot be tokenized is an error here.

Beside `tokenizer.json`, as the import has it, folders with `vocab.json`, `merges.txt` and `token_type.json` are read.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..errors import FormatError, PathError, UnsupportedError, UsageError
from ..generated.constants import MetadataType
from ..sections.tokenizer import TYPES
from . import hf_files
from .files import SourceFile
from .hf_config import HfConfig
from .hf_files import HfFiles
from .hf_tokenizer import TokenizerImport, import_lists, import_tokenizer
from .metadata_build import MetadataBuilder

VOCABULARY, MERGES, TOKEN_TYPES = hf_files.VOCABULARY, hf_files.MERGES, "token_type.json"

# Files that tell all of a tokenizer.
_WHOLE = (hf_files.TOKENIZER, hf_files.TEKKEN, hf_files.SENTENCE_PIECE)


def read_tokenizer(path: str | os.PathLike[str], *, pre: str | None = None) -> MetadataBuilder:
    """The metadata that the tokenizer files of a directory, or of its folder `tokenizer`, amount to.

    Args:
        pre: Name of the pre-tokeniser; needed where there is no `tokenizer.json` to tell it.

    Raises:
        PathError: The directory has no such files, or one is unreadable.
        FormatError: `hf.tokenizer` or `hf.config`: the files are damaged or contradict one another.
        UnsupportedError: `tokenizer.json` where it asks for what is not known.
        UsageError: `pre` is needed and missing.
    """
    folder = Path(path)
    for place in (folder, folder / "tokenizer"):
        if any((place / name).is_file() for name in _WHOLE):
            return _from_files(place)
        if (place / VOCABULARY).is_file():
            if pre is None:
                raise UsageError(
                    "vocab.json does not tell the pre-tokeniser", code="usage", path=place, hint="name it: pre=..."
                )
            return _from_lists(place, pre)
    raise PathError("there is no tokenizer.json and no vocab.json", code="io.not_found", path=folder)


def _from_files(folder: Path) -> MetadataBuilder:
    files = HfFiles(folder)
    try:
        config = HfConfig(files.json(hf_files.CONFIG), folder / hf_files.CONFIG)
        made = import_tokenizer(files, config.count("vocab_size"), config)
    finally:
        files.close()
    return _sound(made, folder)


def _sound(made: TokenizerImport, path: Path) -> MetadataBuilder:
    for message, place in zip(made.faults, made.places, strict=True):
        raise UnsupportedError(message, code="tokenizer.json", path=path, field=place or None)
    return made.metadata


def _from_lists(folder: Path, pre: str) -> MetadataBuilder:
    files = HfFiles(folder)
    try:
        config = HfConfig(files.json(hf_files.CONFIG), folder / hf_files.CONFIG)
        lines = (files.text(MERGES) or "").split("\n")
        merges = [
            line.removesuffix("\r")
            for number, line in enumerate(lines)
            if line and not (number == 0 and line.startswith("#version"))
        ]
        model = {"type": "BPE", "vocab": files.json(VOCABULARY, code="hf.tokenizer"), "merges": merges}
        made = import_lists(files, model, folder / VOCABULARY, config, pre)
    finally:
        files.close()
    _add_types(made, folder / TOKEN_TYPES)
    return _sound(made, folder / VOCABULARY)


def _add_types(made: TokenizerImport, path: Path) -> None:
    """Puts the types of `token_type.json` in the place of those that were guessed, where there is such a file."""
    if not path.is_file():
        return
    file = SourceFile(path)
    try:
        if file.size > hf_files.MAX_BYTES:
            raise FormatError(f"it has {file.size} bytes", code="hf.tokenizer", path=path)
        types: Any = json.loads(file.read_at(0, file.size))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"it is no JSON: {error}", code="hf.tokenizer", path=path) from error
    finally:
        file.close()
    count = made.metadata[TYPES].count
    if not isinstance(types, list) or len(types) != count or not all(type(n) is int and 0 <= n < 256 for n in types):
        raise FormatError(f"it is no list of {count} token types", code="hf.tokenizer", path=path)
    made.metadata.numbers(TYPES, MetadataType.INT32, types)
