"""What `guild tokenize` and `guild detokenize` share: the tokeniser of a file, and the input from wherever it comes."""

from __future__ import annotations

import os
import sys

from .. import errors
from ..container.foreign import foreign
from ..container.structure import open_file, read_at
from ..generated.gguf.constants import GGUF_MAGIC
from ..tokenizer import Tokenizer


def is_gguf(path: str) -> bool:
    """Whether the file begins as a GGUF does.

    Raises:
        FormatError: `file.foreign`: it is something else than a model.
        PathError: It is missing or unreadable.
    """
    if found := foreign(path):
        raise errors.FormatError(found[0], code="file.foreign", path=path, hint=found[1])
    descriptor, size = open_file(path)
    with open(descriptor, "rb", buffering=0) as file:
        magic = GGUF_MAGIC.to_bytes(4, "little")
        return read_at(file.fileno(), 0, min(size, len(magic)), path) == magic


def gguf_kind(path: str) -> str | None:
    """What a GGUF is in the place of a model that writes text, as a sentence; None for a model.

    Raises:
        GpackError: The file is damaged or unreadable.
    """
    from ..sources.gguf import GgufSource
    from ..sources.gguf_kind import other_kind

    with GgufSource.open(path, allow_unknown_types=True) as source:
        return other_kind(source.get, [tensor.name for tensor in source.tensors])


def open_tokenizer(path: str) -> Tokenizer:
    """The tokeniser of a pack, a GGUF, or a directory of Hugging Face files.

    Raises:
        MissingError: `tokenizer.none` where the file has none.
        GpackError: As `Tokenizer.open`, `from_gguf` and `from_dir`.
    """
    if os.path.isdir(path):
        return Tokenizer.from_dir(path)
    if is_gguf(path):
        try:
            return Tokenizer.from_gguf(path)
        except errors.MissingError as error:
            if kind := gguf_kind(path):
                error.message = f"{error.message}: {kind}"
            raise
    try:
        return Tokenizer.open(path)
    except errors.MissingError as error:
        if error.code != "pack.no_section":
            raise
        raise errors.MissingError("there is no tokeniser", code="tokenizer.none", path=path) from error


def read_input(path: str | None) -> bytes:
    """The bytes of a file; of standard input where it is `-` or None.

    Raises:
        PathError: It is missing or unreadable.
    """
    if path in (None, "-"):
        if sys.stdin is None:
            raise errors.PathError("it is closed", code="io.read", path="standard input")
        return sys.stdin.buffer.read()
    descriptor, _ = open_file(path or "")
    with open(descriptor, "rb") as file:
        return file.read()


def as_text(data: bytes, source: str | None) -> str:
    """The text that bytes are in UTF-8.

    Raises:
        FormatError: `tokenizer.utf8`, with the place.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise errors.FormatError(
            f"the text is not UTF-8: {error.reason}", code="tokenizer.utf8", path=source, offset=error.start
        ) from error
