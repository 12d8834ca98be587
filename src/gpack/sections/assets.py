"""TokenizerAssets: an archive of the named files that lay beside the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..errors import FormatError
from ..generated.constants import CACHE_LINE, GEXC_MAGIC, SectionKind
from ..generated.rules import align_up
from ..generated.structs import TokenizerAssetRowV1, TokenizerAssetsHeaderV1
from .blob import lay_out
from .table import Table, build_table

SECTION = "TokenizerAssets"


def is_file_name(name: str) -> bool:
    """Whether a name can only mean a file in the folder at hand: no path, drive, control character or dots alone."""
    return name not in ("", ".", "..") and not any(char in '/\\:\x7f"<>|*?' or char < " " for char in name)


class AssetTable:
    """The section, read."""

    def __init__(self, data: memoryview | bytes) -> None:
        self.table: Table[TokenizerAssetsHeaderV1, TokenizerAssetRowV1] = Table(SectionKind.TOKENIZER_ASSETS, data)

    def names(self) -> Iterator[str]:
        """Names of the files, sorted by their bytes."""
        return (self.table.text(row, "name") for row in self.table)

    def read(self, name: str) -> memoryview:
        """The bytes of a file.

        Raises:
            KeyError: There is no such file.
            FormatError: The file leaves the section.
        """
        index = self.table.find(name.encode("utf-8"))
        if index is None:
            raise KeyError(name)
        row, header = self.table.row(index), self.table.header
        if row.offset > header.len_data or row.byte_size > header.len_data - row.offset:
            raise FormatError("the file leaves the section", code="assets.placement", section=SECTION, field=name)
        start = header.ofs_data + row.offset
        return self.table.data[start : start + row.byte_size]


def build_assets(files: Mapping[str, bytes]) -> bytes:
    """The section's bytes.

    Raises:
        FormatError: A name is a path (`assets.path`), or a file is a GEXEC cache (`assets.gexec`).
    """
    magic = GEXC_MAGIC.to_bytes(4, "little")
    for name, data in files.items():
        if not is_file_name(name):
            raise FormatError(f"{name!r} is no plain file name", code="assets.path", section=SECTION, field=name)
        if data.startswith(magic):
            raise FormatError("the file is hardware-specific", code="assets.gexec", section=SECTION, field=name)
    named = sorted((name.encode("utf-8"), data) for name, data in files.items())
    places, end = lay_out((len(data) for _, data in named), CACHE_LINE)
    rows = [
        (TokenizerAssetRowV1(offset=place, byte_size=len(data)), [name])
        for (name, data), place in zip(named, places, strict=True)
    ]
    header = TokenizerAssetsHeaderV1(row_size=TokenizerAssetRowV1.SIZE, len_data=end)
    table_end = header.SIZE + len(rows) * header.row_size + sum(len(name) for name, _ in named)
    header.ofs_data = align_up(table_end, CACHE_LINE)
    made = bytearray(header.ofs_data + end)
    head = build_table(header, rows)
    made[: len(head)] = head
    for (_, data), place in zip(named, places, strict=True):
        start = header.ofs_data + place
        made[start : start + len(data)] = data
    return bytes(made)
