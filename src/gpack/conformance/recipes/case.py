"""The table of broken packs: for every rule of the schema, changes that break it and (almost) nothing else."""

from __future__ import annotations

import re
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
        variant: Tells cases of one rule at one place apart; part of the vector's id, so it never changes.
        published: It becomes a vector; the longest are for tests alone, for their bytes would weigh too much in git.
    """

    rule: str
    section: str
    field: str
    change: Change
    base: Base
    placed: bool
    variant: str = ""
    published: bool = True

    @property
    def id(self) -> str:
        """Name of the vector: the rule and the place, rows without their numbers, for another row may come first."""
        place = "" if self.section in ("directory", "") else self.section
        field = re.sub(r"\[\d+\]", "", self.field).removeprefix("$").removeprefix(".")
        return "/".join(part for part in (self.rule, ".".join(filter(None, (place, field))), self.variant) if part)

    def sealed(self) -> tuple[bytes, list[tuple[int, int]]]:
        """The broken file, and the byte ranges that were changed."""
        pack = Parts.parse(self.base())
        self.change(pack)
        return pack.seal(), pack.changed()

    def __str__(self) -> str:
        return self.id


CASES: list[Case] = []


def case(
    rule: str,
    section: str,
    field: str,
    change: Change,
    *,
    base: Base = bases.everything,
    placed: bool = True,
    variant: str = "",
    published: bool = True,
) -> None:
    """Enters a case into the table. Its id is its own: where it stands in the table says nothing.

    Raises:
        ValueError: A published case has that id: give the new one a `variant`.
    """
    made = Case(rule, section, field, change, base, placed, variant, published)
    if published and any(other.published and other.id == made.id for other in CASES):
        raise ValueError(f"{made.id} stands twice: name a variant")
    CASES.append(made)


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
