"""The folder `tokenizer/` of a pack directory: raw files that the pack keeps, those with a known meaning checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..container.strict_json import parse_object, shorten
from ..errors import FormatError, PathError
from ..sections.assets import is_file_name
from .files import SourceFile

CODE = "hf.tokenizer"
VOCABULARY, MERGES, TYPES, TOKENIZER = "vocab.json", "merges.txt", "token_type.json", "tokenizer.json"
MAX_ASSETS = 1 << 30  # bytes of all files
MAX_FILE = 256 << 20
MAX_DEPTH = 100
_MAX_ID = 1 << 24


def read_assets(open_file: Callable[[Path], SourceFile], folder: Path) -> dict[str, bytes]:
    """The files of a tokenizer directory, by name; none where there is no such directory. Hidden ones are left out.

    Args:
        open_file: Opens a file, which stays open as long as the source.

    Raises:
        PathError: A file cannot be read, is no regular one, or all together are too large to be tokenizer files.
        FormatError: `hf.tokenizer`: a file is not what its name says, or contradicts another.
    """
    found: dict[str, bytes] = {}
    if not folder.is_dir():
        if folder.exists() or folder.is_symlink():
            raise PathError("this is no directory", code="io.not_a_file", path=folder)
        return found
    total = 0
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if not is_file_name(path.name):
            raise PathError(
                f"a pack cannot keep a file of the name {shorten(path.name)}",
                code="io.not_a_file",
                path=folder,
                hint="rename or remove it",
            )
        if path.is_dir():
            raise PathError(
                "this is a directory, and tokenizer files are kept",
                code="io.not_a_file",
                path=path,
                hint="remove it, or hide it with a leading dot",
            )
        file = open_file(path)
        total += file.size
        if total > MAX_ASSETS:
            raise PathError(f"the tokenizer files have over {MAX_ASSETS} bytes", code="io.read", path=folder)
        found[path.name] = file.read_at(0, file.size)
    _check(folder, found)
    return found


def _check(folder: Path, files: Mapping[str, bytes]) -> None:
    if TOKENIZER in files:
        _object(folder / TOKENIZER, files[TOKENIZER])
    size = _check_vocabulary(folder / VOCABULARY, files[VOCABULARY]) if VOCABULARY in files else None
    if MERGES in files:
        _check_merges(folder / MERGES, files[MERGES])
    if TYPES in files:
        _check_types(folder / TYPES, files[TYPES], size)


def _object(path: Path, data: bytes) -> dict[str, Any]:
    try:
        return parse_object(data, max_bytes=MAX_FILE, max_depth=MAX_DEPTH, plain=False)
    except ValueError as error:
        raise FormatError(f"it is no JSON object of its kind: {error}", code=CODE, path=path) from error


def _check_vocabulary(path: Path, data: bytes) -> int:
    """Tokens and their ids, each once; returns how many ids there must be."""
    tokens: dict[int, str] = {}
    for token, number in _object(path, data).items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < _MAX_ID:
            raise FormatError(f"the token {shorten(token)} has the id {shorten(number)}", code=CODE, path=path)
        if number in tokens:
            raise FormatError(
                f"the id {number} belongs to {shorten(tokens[number])} and {shorten(token)}", code=CODE, path=path
            )
        tokens[number] = token
    if not tokens:
        raise FormatError("it has no tokens", code=CODE, path=path)
    return max(tokens) + 1


def _check_merges(path: Path, data: bytes) -> None:
    for number, raw in enumerate(data.split(b"\n"), 1):
        line = raw.removesuffix(b"\r")
        if not line or (number == 1 and line.startswith(b"#version")):
            continue
        try:
            parts = line.decode("utf-8").split(" ")
        except UnicodeDecodeError as error:
            raise FormatError("the line is not UTF-8", code=CODE, path=path, section=f"line {number}") from error
        if len(parts) != 2 or not all(parts):
            raise FormatError("the line is no pair of tokens", code=CODE, path=path, section=f"line {number}")


def _check_types(path: Path, data: bytes, size: int | None) -> None:
    try:
        types = parse_object(b'{"types":' + data + b"}", max_bytes=MAX_FILE, max_depth=2, plain=True, as_written=True)[
            "types"
        ]
    except (ValueError, KeyError) as error:
        raise FormatError("it is no list of numbers", code=CODE, path=path) from error
    if not isinstance(types, list) or not all(type(entry) is int and 0 <= entry < 256 for entry in types):
        raise FormatError("it is no list of token types", code=CODE, path=path)
    if size is not None and len(types) < size:
        raise FormatError(f"it has {len(types)} entries, {VOCABULARY} has {size} ids", code=CODE, path=path)
