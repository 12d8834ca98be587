"""The table of broken packs: for every rule of the schema, changes that break it and (almost) nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...generated.constants import SectionKind
from ..parts import Parts
from . import bases

# The kinds of sections, in short, for the tables of cases.
K = SectionKind
KV, INDEX, DENSE, PACK = K.METADATA_KV_BIN, K.TENSOR_INDEX_BIN, K.DENSE_INDEX_BIN, K.DENSE_PACK_BLOB
NATIVE, ARENA, EMBED_BLOB = K.NATIVE_DENSE_INDEX_BIN, K.NATIVE_DENSE_BLOB, K.EMBED_BLOB
HEAD_BLOB, PLE_BLOB, LAYOUT, BLOBS = K.HEAD_BLOB, K.PLE_BLOB, K.EXPERT_LAYOUT_BIN, K.EXPERT_BLOBS
GBT, ASSETS, MTP = K.TOKENIZER_BIN, K.TOKENIZER_ASSETS, K.MTP_BLOB

Change = Callable[[Parts], object]
Base = Callable[[], bytes]


@dataclass(frozen=True)
class Case:
    """One way to break a rule.

    Attributes:
        section, field: Where the report must place it.
        change: Made to a copy of the base pack.
        placed: The violation names a byte of the changed range.
        published: It becomes a vector; the longest are for tests alone, for their bytes would weigh too much in git.
    """

    rule: str
    section: str
    field: str
    change: Change
    base: Base
    placed: bool
    published: bool = True

    def sealed(self) -> tuple[bytes, list[tuple[int, int]]]:
        """The broken file, and the byte ranges that were changed."""
        pack = Parts.parse(self.base())
        self.change(pack)
        return pack.seal(), pack.changed()

    def __str__(self) -> str:
        return f"{self.rule}-{self.section}.{self.field}"


CASES: list[Case] = []


def case(
    rule: str,
    section: str,
    field: str,
    change: Change,
    *,
    base: Base = bases.everything,
    placed: bool = True,
    published: bool = True,
) -> None:
    """Enters a case into the table; new ones come after the others of their rule, for ids are numbered."""
    CASES.append(Case(rule, section, field, change, base, placed, published))


def steps(*changes: Change) -> Change:
    """Several changes as one."""

    def all_of_them(pack: Parts) -> None:
        for change in changes:
            change(pack)

    return all_of_them


def u32(value: int) -> bytes:
    """Four bytes, little-endian."""
    return value.to_bytes(4, "little")


def u64(value: int) -> bytes:
    """Eight bytes, little-endian."""
    return value.to_bytes(8, "little")
