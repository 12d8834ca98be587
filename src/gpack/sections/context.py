"""What the section checks share: the open file, the report, and the tables as they become known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..container.pieces import Handle, Pieces
from ..container.report import Report
from ..container.structure import Structure, entry_fault, read_at
from ..generated.constants import SECTION_NAMES
from ..generated.structs import GPackSectionEntryV1, TensorIndexRowV1
from .check_table import CheckedTable
from .chunks import ChunkDigests
from .tokenizer import TokenizerTable

# Sections up to this size are read at once, larger ones piece by piece. Either survives a file that shrinks meanwhile.
READ_LIMIT = 4 << 20
_ZERO_CHUNK = 1 << 20


@dataclass
class Context:
    """The state of one verification.

    Attributes:
        tensors: Rows of TensorIndexBin by name, empty where the index is not sound.
        names: Names of those rows, by row.
        doubled: Whether a token of the tokenizer is there twice; None where that is not known.
        metadata: Decoded metadata that placement depends on.
        chunks: ChunkDigests, where it is there and can be used.
        notes: What was not checked, and why, one sentence each.
        held: Keeps the file open as long as something is read of it, where the caller may go away before.
        thorough: Also look at the bytes between tensors, and work out anew what is derived from the vocabulary.
    """

    descriptor: int
    path: object
    structure: Structure
    report: Report
    manifest: dict[str, Any] | None = None
    tables: dict[int, CheckedTable] = field(default_factory=dict)
    tensors: dict[str, TensorIndexRowV1] = field(default_factory=dict)
    tensor_rows: dict[str, int] = field(default_factory=dict)
    tokenizer: TokenizerTable | None = None
    doubled: bool | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    chunks: ChunkDigests | None = None
    notes: list[str] = field(default_factory=list)
    held: Handle | None = None
    thorough: bool = True

    def entry(self, kind: int) -> GPackSectionEntryV1 | None:
        """The directory entry of a kind whose bytes lie inside the file, else None."""
        found = self.structure.find(kind)
        size = self.structure.file_size
        if found is None or found.offset > size or found.size > size - found.offset:
            return None
        return found

    def load(self, kind: int) -> tuple[memoryview | Pieces, int] | None:
        """A section's bytes, of a large one to be read, and its offset in the file.

        None where it is absent or out of bounds.
        """
        entry = self.entry(kind)
        if entry is None:
            return None
        pieces = Pieces(self.descriptor, self.path, entry.offset, entry.size, self.held)
        return pieces if entry.size > READ_LIMIT else pieces[:], entry.offset

    def check_items(self, kind: int, count: int) -> None:
        """Compares `item_count` of the directory with what the section holds."""
        self.report.check("section.item_count")
        for index, entry in enumerate(self.structure.entries):
            if entry.kind == kind and entry.item_count != count:
                message = f"Found {entry.item_count}, {SECTION_NAMES[kind]} holds {count}."
                entry_fault(self.structure, self.report, "section.item_count", index, "item_count", message)

    def check_zero(self, rule: str, section: str, start: int, end: int) -> None:
        """Records a violation where the bytes from file offset `start` to `end` are not all zero."""
        while self.thorough and start < end:
            length = min(end - start, _ZERO_CHUNK)
            data = read_at(self.descriptor, start, length, self.path)
            if data.count(0) != length:
                place = start + next(index for index, byte in enumerate(data) if byte)
                self.report.add(rule, section, "padding", place, f"Byte {place} is 0x{data[place - start]:02x}.")
                return
            start += length
