"""MetadataKvBin: every key of the source with its value, sorted by key, in GGUF's own encoding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..errors import FormatError
from ..generated.constants import MetadataFlags, SectionKind
from ..generated.rules import check_metadata_kv_row_v1
from ..generated.structs import MetadataKvHeaderV1, MetadataKvRowV1
from .check_values import ValueFaultError, check_value
from .table import Table, build_table
from .values import Value

SECTION = "MetadataKvBin"
ALIGNMENT_KEY = b"general.alignment"
FORBIDDEN_PREFIX = "gexec."  # hardware-specific: belongs to the GEXEC cache


class MetadataTable:
    """The section, read: a mapping of keys to values in the order of the source.

    Attributes:
        source_version, source_alignment: Of the GGUF that was converted; 0 where it was none.
    """

    def __init__(self, data: memoryview | bytes) -> None:
        self.table: Table[MetadataKvHeaderV1, MetadataKvRowV1] = Table(SectionKind.METADATA_KV_BIN, data)
        self.source_version = self.table.header.source_version
        self.source_alignment = self.table.header.source_alignment

    def __len__(self) -> int:
        return len(self.table)

    def find(self, key: str) -> MetadataKvRowV1 | None:
        """The row of a key, or None."""
        index = self.table.find(key.encode("utf-8", "surrogatepass"), ref="key")
        return None if index is None else self.table.row(index)

    def value(self, row: MetadataKvRowV1) -> Value:
        """The value of a row that is no stub.

        Raises:
            FormatError: The row breaks a rule, or its bytes are no value of its type.
        """
        key, raw = self.table.text(row, "key"), self.table.bytes_of(row, "value")
        for rule, field in check_metadata_kv_row_v1(row):
            raise FormatError(f"{key}: {field} is {getattr(row, field)}", code=rule, section=SECTION, field=key)
        try:
            check_value(row.value_type, row.element_type, row.count, raw)
        except ValueFaultError as error:
            raise FormatError(f"{key}: {error}", code="metadata.value", section=SECTION, field=key) from error
        return Value(key, row.value_type, row.element_type, row.count, raw)

    def rows(self) -> Iterator[MetadataKvRowV1]:
        """The rows in the order of the source."""
        return iter(sorted(self.table, key=lambda row: row.position))

    def keys(self) -> Iterator[str]:
        """The keys in the order of the source."""
        return (self.table.text(row, "key") for row in self.rows())


def is_stub(row: MetadataKvRowV1) -> bool:
    """Whether TokenizerBin holds the value."""
    return bool(row.flags & MetadataFlags.IN_TOKENIZER_BIN)


def build_metadata(
    values: Iterable[Value], *, stubs: frozenset[str], source_version: int, source_alignment: int
) -> bytes:
    """The section's bytes.

    Args:
        values: The entries in the order of the source.
        stubs: Keys whose values TokenizerBin holds.

    Raises:
        FormatError: A key is hardware-specific (`metadata.forbidden`), or the values take over 4 GiB.
    """
    rows = []
    for position, value in enumerate(values):
        if value.key.startswith(FORBIDDEN_PREFIX):
            raise FormatError(
                f"the key {value.key!r} is hardware-specific",
                code="metadata.forbidden",
                section="metadata",
                field=value.key,
                hint="a pack is independent of hardware; remove the key from the source",
            )
        stub = value.key in stubs
        row = MetadataKvRowV1(
            value_type=value.value_type,
            element_type=value.element_type,
            count=value.count,
            position=position,
            flags=MetadataFlags.IN_TOKENIZER_BIN if stub else 0,
        )
        rows.append((row, [value.key.encode("utf-8"), b"" if stub else value.raw]))
    rows.sort(key=lambda item: bytes(item[1][0]))
    header = MetadataKvHeaderV1(
        row_size=MetadataKvRowV1.SIZE, source_version=source_version, source_alignment=source_alignment
    )
    return build_table(header, rows)
