"""What a file is that is given for a model and is none: found from its first bytes and its name."""

from __future__ import annotations

import os
import re

from .structure import close_read, open_file, read_at

_LOOKED_AT = 512
_PART = re.compile(
    r"(?P<stem>.+)\.(?:part[-_]?[0-9]+(?:[-_]?of[-_]?[0-9]+)?|part[a-z]{2}|split-?[a-z0-9]+|[0-9]{3})", re.IGNORECASE
)
PART_OF_PACK = re.compile(
    r"(?P<name>.+)\.part-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})"
)  # as `guild split` names it
_PAGES = (b"<!doctype html", b"<html", b"<?xml")
_HINTS = {
    "pickle": "pickled tensors are programs, and are not read: get the safetensors of the model, or save it as such",
    "archive": "unpack it, and give the model that is inside",
}
# First bytes of archives and of other tools' files.
_STARTS = (
    (b"PK\x03\x04", "a ZIP archive", "archive"),
    (b"PK\x05\x06", "an empty ZIP archive", "archive"),
    (b"\x1f\x8b", "compressed by gzip", "archive"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "archive"),
    (b"\xfd7zXZ", "compressed by xz", "archive"),
    (b"7z\xbc\xaf", "a 7z archive", "archive"),
    (b"Rar!", "a RAR archive", "archive"),
    (b"BZh", "compressed by bzip2", "archive"),
    (b"\x93NUMPY", "a numpy array", ""),
    (b"\x89HDF\r\n", "an HDF5 file", ""),
    (b"tjgg", "a model in the format before GGUF (ggjt), which is no longer read", ""),
    (b"lmgg", "a model in the format before GGUF (ggml), which is no longer read", ""),
)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def foreign(path: str | os.PathLike[str]) -> tuple[str, str | None] | None:
    """What a file is in the place of a model, and what to do; None where nothing speaks against its being one.

    Raises:
        PathError: It is missing or unreadable.
    """
    descriptor, size = open_file(path)
    try:
        start = read_at(descriptor, 0, min(size, _LOOKED_AT), path)
    finally:
        close_read(descriptor)
    name = os.path.basename(os.fspath(path))
    if part := _PART.fullmatch(name):
        whole = part["stem"]
        if PART_OF_PACK.fullmatch(name):
            return f"it is one part of {whole}, which was cut up", f"put it together: guild join {name}"
        return f"it is one part of {whole}, which was cut up", f"join all parts in their order: cat {whole}.* > {whole}"
    return foreign_bytes(start, name)


def foreign_bytes(start: bytes, name: str) -> tuple[str, str | None] | None:
    """As `foreign`, from a file's first bytes."""
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if not start:
        return "it is empty", "its download failed: get it again"
    if text.startswith(b"version https://git-lfs"):
        return "it is a pointer of Git LFS, not the file", "fetch the file itself: git lfs pull"
    if text.startswith(_PAGES):
        return "it is a web page", "get the file itself: the link led to a page about it, or asked to log in"
    if name.lower().endswith(_PICKLES) and (start.startswith((b"\x80", b"PK\x03\x04")) or b"\x8a\nl\xfc\x9c" in start):
        return "it holds pickled tensors", _HINTS["pickle"]
    for known, what, hint in _STARTS:
        if start.startswith(known):
            return f"it is {what}", _HINTS.get(hint)
    if start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "it holds pickled tensors", _HINTS["pickle"]
    return None
