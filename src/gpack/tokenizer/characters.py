"""Classes of characters: a generated table of Unicode 16.0.0, read when the first text asks for it."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

UNICODE_VERSION = "16.0.0"
_SHIFT, _BLOCK = 7, 128  # code points to a block: codegen/unicode_classes.py writes the same
_INDEX_BYTES = 2 * (0x110000 >> _SHIFT)


class Table:
    """The two stages: `blocks[index[point >> 7] * 128 + point % 128]` is a code point's class.

    Attributes:
        index: u16 [8704].
        blocks: u8, 128 to a block.
        latin: u8 [256], the classes of U+0000 to U+00FF, for `bytes.translate`.
    """

    __slots__ = ("blocks", "index", "latin")

    def __init__(self) -> None:
        path = os.path.join(os.path.dirname(__file__), "unicode_classes.bin")
        with open(path, "rb") as file:
            data = file.read()
        self.index = memoryview(data)[:_INDEX_BYTES].cast("H")
        self.blocks = data[_INDEX_BYTES:]
        first, second = self.index[0] * _BLOCK, self.index[1] * _BLOCK
        self.latin = self.blocks[first : first + _BLOCK] + self.blocks[second : second + _BLOCK]

    def points(self, text: str) -> tuple[Sequence[int], bytes]:
        """Code points of a text, and their classes."""
        if text.isascii():
            data = text.encode("ascii")
            return data, data.translate(self.latin)
        points = memoryview(text.encode("utf-32-le", "surrogatepass")).cast("I")
        index, blocks = self.index, self.blocks
        return points, bytes([blocks[index[point >> _SHIFT] << _SHIFT | point & 127] for point in points])


_table: Table | None = None


def table() -> Table:
    """The table, read once."""
    global _table  # noqa: PLW0603 - read once per process
    if _table is None:
        _table = Table()
    return _table
