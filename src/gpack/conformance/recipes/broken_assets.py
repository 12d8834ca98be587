"""Broken archives of tokenizer files."""

from __future__ import annotations

from collections.abc import Sequence

from ...generated.constants import CACHE_LINE
from ...generated.structs import TokenizerAssetRowV1
from ..parts import Parts
from .bases import plain
from .case import ASSETS, Change, case
from .edits import add, append, archive_header, set_row


def archive(files: Sequence[tuple[bytes, bytes]], *, extra: int = 0) -> Change:
    """Adds an archive of files that no builder would take."""

    def change(pack: Parts) -> None:
        rows, heap, data = b"", b"", bytearray()
        for name, octets in files:
            data += bytes(-len(data) % CACHE_LINE)
            row = TokenizerAssetRowV1(offset=len(data), byte_size=len(octets), name_length=len(name))
            row.name_offset = len(heap) if name else 0
            rows, heap = rows + row.encode(), heap + name
            data += octets
        data += bytes(extra)
        header = archive_header(len(files), len(heap))
        header.len_data = len(data)
        head = header.encode() + rows + heap
        pack.add(ASSETS, head.ljust(header.ofs_data, b"\0") + data, len(files))

    return change


case("assets.data", "TokenizerAssets", "ofs_data", add(ASSETS, "len_data", 1), placed=False, variant="len_data")
case("assets.data", "TokenizerAssets", "ofs_data", add(ASSETS, "ofs_data", 64), variant="ofs_data")
case("assets.data", "TokenizerAssets", "ofs_data", append(ASSETS, b"x"), placed=False, variant="byte-more")
case("assets.alignment", "TokenizerAssets", "rows[1].offset", set_row(ASSETS, 1, offset=1))
case(
    "assets.name",
    "TokenizerAssets",
    "rows[0].name_length",
    archive([(b"", b"x")]),
    base=plain,
    placed=False,
    variant="empty",
)
case(
    "assets.name",
    "TokenizerAssets",
    "rows[0].name_length",
    archive([(b"a" * 256, b"x")]),
    base=plain,
    placed=False,
    variant="256-bytes",
)
case("assets.placement", "TokenizerAssets", "rows[2].offset", set_row(ASSETS, 2, offset=0), variant="overlap")
case(
    "assets.placement",
    "TokenizerAssets",
    "rows[0].offset",
    set_row(ASSETS, 0, byte_size=1 << 40),
    placed=False,
    variant="endless",
)
case("assets.placement", "TokenizerAssets", "len_data", archive([(b"a", b"x")], extra=64), base=plain, placed=False)
case(
    "assets.placement",
    "TokenizerAssets",
    "padding",
    lambda p: p.poke(ASSETS, p.get(ASSETS).ofs_data - 1, b"\1"),
    variant="before-data",
)
case(
    "assets.placement",
    "TokenizerAssets",
    "padding",
    lambda p: p.poke(ASSETS, p.get(ASSETS).ofs_data + 63, b"\1"),
    variant="between-files",
)
for what, path in {
    "folder": b"a/b",
    "root": b"/a",
    "parent": b"..",
    "dot": b".",
    "backslash": b"a\\b",
    "drive": b"C:a",
    "line-feed": b"a\n",
    "nul": b"a\x00",
    "delete": b"\x7f",
}.items():
    case(
        "assets.path",
        "TokenizerAssets",
        "rows[0].name_offset",
        archive([(path, b"x")]),
        base=plain,
        placed=False,
        variant=what,
    )
case(
    "assets.gexec",
    "TokenizerAssets",
    "rows[0].offset",
    archive([(b"a", b"GEXC...")]),
    base=plain,
    placed=False,
    variant="first",
)
case(
    "assets.gexec",
    "TokenizerAssets",
    "rows[1].offset",
    archive([(b"a", b"x"), (b"b", b"GEXC")]),
    base=plain,
    placed=False,
    variant="second",
)
