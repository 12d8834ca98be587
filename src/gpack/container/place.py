"""Places in open files: the one way to say where bytes lie.

Standard library only, and light: a quick open uses it.
"""

from __future__ import annotations

from .. import errors
from .held import HoldsFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike


class Place(HoldsFile):
    """A place in an open file: one run of bytes, or several of one length at equal distances.

    A tensor of routed experts has one run to an expert; everything else is one run. A place is a `Range` too: a section
    can be made of it.

    Attributes:
        path, descriptor: The file, open for reading; the path is for messages.
        offset: First byte in that file.
        runs, length, stride: So many runs of so many bytes, so far apart.
    """

    __slots__ = ("descriptor", "length", "offset", "path", "runs", "stride")

    def __init__(
        self,
        path: str | PathLike[str],
        descriptor: int,
        offset: int,
        length: int,
        *,
        runs: int = 1,
        stride: int | None = None,
    ) -> None:
        self.path, self.descriptor, self.offset = path, descriptor, offset
        self.runs, self.length, self.stride = runs, length, length if stride is None else stride

    def __repr__(self) -> str:
        runs = f", {self.runs} times, {self.stride} apart" if self.runs > 1 else ""
        return f"<Place {self.length} bytes from {self.offset} of {str(self.path)!r}{runs}>"

    @property
    def size(self) -> int:
        """Bytes of all runs."""
        return self.runs * self.length

    @property
    def span(self) -> int:
        """Bytes from the first to the last."""
        return (self.runs - 1) * self.stride + self.length

    def part(self, offset: int, length: int) -> Iterator[Place]:
        """The places of `length` bytes from byte `offset` of the runs on: one for each run that the part touches.

        Raises:
            InternalError: The part does not lie inside.
        """
        check_part(self.size, offset, length)
        while length:
            run, inside = divmod(offset, self.length)
            count = min(length, self.length - inside)
            yield Place(self.path, self.descriptor, self.offset + run * self.stride + inside, count)
            offset += count
            length -= count

    def cut(self, runs: int) -> Place | None:
        """The same bytes as so many runs; None where the place has another number of them already."""
        if self.runs == runs:
            return self
        if self.runs != 1:
            return None
        return Place(self.path, self.descriptor, self.offset, self.length // runs, runs=runs)


def check_part(size: int, offset: int, length: int) -> None:
    """Makes sure that a part lies inside of what it is a part of.

    Raises:
        InternalError: It does not.
    """
    if offset < 0 or length < 0 or offset + length > size:
        raise errors.InternalError(f"{length} bytes from {offset} on, of {size}", code="internal")
