"""Walks through a GGUF header with suspicion: nothing is read or allocated before it is known to fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol, Self, TypeVar

import numpy as np

from gpack.errors import BoundsError, FormatError, GpackError, UnsupportedError
from gpack.generated.gguf.structs import GgufStringLength
from gpack.sections.strings import LENGTH_SIZE, Bytes, Positions, StringOverrunError, string_bounds

if TYPE_CHECKING:
    from gpack.sources.files import SourceFile

# A vocabulary of 250,000 strings makes a header of 12 MB. A header is held in memory, so there is a limit.
MAX_HEADER_BYTES = 1 << 26
_FIRST_READ_BYTES = 1 << 20


class Struct(Protocol):
    """What the generated structs have in common."""

    SIZE: ClassVar[int]

    @classmethod
    def decode(cls, buffer: bytes | memoryview, offset: int = 0) -> Self:
        """Decodes the struct at byte `offset` of the buffer."""


StructT = TypeVar("StructT", bound=Struct)


class HeaderBuffer:
    """The first bytes of a file, read as far as they are asked for and never past the file's end."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._octets: Bytes = np.empty(0, np.uint8)

    def span(self, start: int, end: int) -> Bytes:
        """uint8 [end - start]: the bytes from `start` to `end`, which must lie inside the file."""
        if end > len(self._octets):
            self._grow(end)
        return self._octets[start:end]

    def view(self) -> memoryview:
        """All that was read so far, read-only."""
        return self._octets.data.toreadonly()

    def _grow(self, end: int) -> None:
        """Doubles what is held, at least; arrays given out before keep the memory that they look at."""
        held = len(self._octets)
        grown = np.empty(min(self._file.size, max(end, 2 * held, _FIRST_READ_BYTES)), np.uint8)
        grown[:held] = self._octets
        self._file.read_into(grown.data[held:], held)
        self._octets = grown


class Cursor:
    """A position in a header, and the name of the thing there, for errors.

    Attributes:
        position: The next byte to read.
        section: Part of the header (`header`, `metadata`, `tensor info`).
        field: Key or tensor name that is being read, as far as it is known.
        nested_arrays: Number of arrays in arrays met so far.
    """

    def __init__(self, file: SourceFile) -> None:
        self.file = file
        self.buffer = HeaderBuffer(file)
        self.position = 0
        self.section = "header"
        self.field: str | None = None
        self.nested_arrays = 0

    def error(
        self, kind: type[GpackError], code: str, message: str, *, offset: int | None = None, hint: str | None = None
    ) -> GpackError:
        """An error about the thing that is being read; `offset` is the cursor's position unless given."""
        return kind(
            message,
            code=code,
            path=self.file.path,
            section=self.section,
            field=self.field,
            offset=self.position if offset is None else offset,
            hint=hint,
        )

    def claim(self, length: int, what: str) -> None:
        """Makes sure that `length` bytes can follow.

        Raises:
            BoundsError: `gguf.truncated` if the file ends before.
            UnsupportedError: `gguf.value` if the header would be larger than `MAX_HEADER_BYTES`.
        """
        left = self.file.size - self.position
        if length > left:
            raise self.error(
                BoundsError,
                "gguf.truncated",
                f"{what} takes {length} bytes, but only {left} are left of the file's {self.file.size}",
                hint="the file is damaged or its download was cut off",
            )
        if self.position + length > MAX_HEADER_BYTES:
            raise self.error(
                UnsupportedError,
                "gguf.value",
                f"{what} takes {length} bytes; a header of more than {MAX_HEADER_BYTES} bytes is not read",
            )

    def take(self, length: int, what: str) -> Bytes:
        """uint8 [length]: the next bytes; the cursor moves after them."""
        self.claim(length, what)
        start = self.position
        self.position += length
        return self.buffer.span(start, self.position)

    def struct(self, layout: type[StructT], what: str) -> StructT:
        """The next bytes as one of the generated structs."""
        return layout.decode(self.take(layout.SIZE, what).data)

    def string_length(self, what: str) -> int:
        """The bytes of the string that comes next; the cursor moves to its text."""
        return self.struct(GgufStringLength, f"the length of {what}").length

    def name(self, what: str, code: str, max_bytes: int) -> str:
        """The next string as a name; it is the field of later errors.

        Raises:
            FormatError: `code` if it is empty, longer than `max_bytes`, or not UTF-8.
        """
        self.field = None
        start = self.position
        length = self.string_length(what)
        if not 0 < length <= max_bytes:
            raise self.error(
                FormatError, code, f"{what} has {length} bytes; 1 to {max_bytes} are allowed", offset=start
            )
        octets = self.take(length, what).tobytes()
        try:
            self.field = octets.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(FormatError, code, f"{what} is not UTF-8: {octets!r}", offset=start) from error
        return self.field

    def strings(self, count: int) -> Positions:
        """Moves after `count` strings.

        Returns:
            int64 [count + 1]: positions of their lengths, then that of the byte after the last string.
        """
        self.claim(count * LENGTH_SIZE, f"an array of {count} strings")
        end = min(self.file.size, MAX_HEADER_BYTES)
        try:
            bounds = string_bounds(
                lambda start, size: self.buffer.span(start, min(start + size, end)), self.position, count, end
            )
        except StringOverrunError as error:
            self.position = error.position
            self.claim(LENGTH_SIZE + (error.length or 0), f"string {error.index} of {count}")
            raise  # not reached: a string that overruns cannot be claimed
        self.position = int(bounds[-1])
        return bounds
