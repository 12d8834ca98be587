"""Valid packs: every section, every mode, and the edges of what the format allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..parts import Parts
from . import bases
from .broken_container import bound_header, private
from .case import Change

Base = Callable[[], bytes]


@dataclass(frozen=True)
class Valid:
    """A pack that every reader must accept.

    Attributes:
        name: The end of the vector's id.
        shards: Names of files that lie beside it.
    """

    name: str
    doc: str
    data: Base
    shards: tuple[str, ...] = ()


VALID: list[Valid] = []


def valid(name: str, doc: str, data: Base, *, shards: tuple[str, ...] = ()) -> None:
    """Enters a pack into the table."""
    VALID.append(Valid(name, doc, data, shards))


def changed(base: Base, *changes: Change) -> Base:
    """A base with changes, sealed anew."""

    def make() -> bytes:
        pack = Parts.parse(base())
        for change in changes:
            change(pack)
        return pack.seal()

    return make


def shards() -> dict[str, bytes]:
    """The files that lie beside vectors, by name."""
    return bases.shard_bytes()


def name_of(base: Base) -> str:
    """The name of a base pack's vector."""
    return next(item.name for item in VALID if item.data is base)


valid("plain", "The three mandatory sections, and nothing in the tables.", bases.plain)
valid("vocabulary", "A tokenizer and no tensors.", bases.vocabulary)
valid("small", "All fifteen kinds of sections in as few bytes as possible.", bases.small)
valid("everything", "All fifteen kinds of sections, all kinds of metadata, fused and plain experts.", bases.everything)
valid("external", "Routed experts in two shards beside the pack.", bases.external, shards=tuple(bases.shard_bytes()))
valid("newer-format", "A version 2 file that version 1 readers understand.",
      changed(bases.small, bound_header("format_version", 2)))  # fmt: skip
valid("private-section", "A section of a private kind, which readers skip.", changed(bases.small, private()))
valid("private-empty", "A private section of no bytes.", changed(bases.plain, private(b"")))
