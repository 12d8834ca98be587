"""The tensors of a loaded model by name: arrays over mapped files, or in memory where mapping is refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from ..container.lost_pages import lost
from ..container.payload import Range, gather_chunks, whole
from ..container.place import Place
from ..container.streaming import CHUNK
from ..errors import ClosedError, MissingError, PathError
from ..generated.constants import ExpertRole
from ..tensor import Tensor
from .direct import RangeFile
from .lazy import LazyCheck
from .located import Located

LOG = logging.getLogger("gpack")


class TensorMap(Mapping[str, Tensor]):
    """Tensors by name, made when they are asked for.

    Attributes:
        io: `mmap`: arrays over the mapped files, nothing copied. `read`: each access reads the tensor.
    """

    def __init__(self, located: Mapping[str, Located], *, io: str) -> None:
        """Opens and maps the files; where mapping is refused they are read, and the log says so."""
        self._located = located
        self._files: dict[int, RangeFile] = {}
        self._closed = False
        self._maps: dict[int, memoryview] = {}
        self.io = "read" if io in ("read", "direct") else "mmap"
        try:
            for tensor in located.values():
                if tensor.place is not None:
                    self._open(tensor.place)
        except BaseException:
            self.close()
            raise

    def _open(self, place: Place) -> None:
        if place.descriptor in self._files:
            return
        file = self._files[place.descriptor] = RangeFile(place.descriptor, place.path, direct=False)
        if self.io == "mmap" and file.size:
            try:
                self._maps[place.descriptor] = file.map(0, file.size)
            except PathError as error:
                self.io = "read"
                LOG.warning("%s: reading tensors instead", error)

    def __len__(self) -> int:
        return len(self._located)

    def __iter__(self) -> Iterator[str]:
        return iter(self._located)

    def __contains__(self, name: object) -> bool:
        return name in self._located

    def shapes(self) -> list[tuple[int, tuple[int, ...]]]:
        """Types (ggml's numbers) and extents (contiguous axis first) of all tensors; nothing is read."""
        return [(tensor.ggml_type, tuple(tensor.dims)) for tensor in self._located.values()]

    def __getitem__(self, name: str) -> Tensor:
        """The tensor, read-only.

        Raises:
            MissingError: There is none of that name.
            ClosedError: The files were closed.
            PathError: The file was cut, or the disk failed.
        """
        found = self._located.get(name)
        if found is None:
            raise MissingError(f"there is no tensor {name!r}", code="pack.no_tensor")
        if self._closed:
            raise ClosedError("the model was closed", code="pack.closed", field=name)
        stride = None
        if found.place is None:
            data = _computed(found.source)
        else:
            data = self._bytes(found.place)
            stride = found.place.stride if found.role != ExpertRole.NONE else None
        if found.code_planes:
            return Tensor.bytes_of(data, name=name)
        return Tensor.over(data, name=name, ggml_type=found.ggml_type, dims=found.dims, stride=stride)

    def _bytes(self, place: Place) -> memoryview:
        file, mapped = self._files[place.descriptor], self._maps.get(place.descriptor)
        if mapped is not None:
            file.check_length()
            file.look(place.offset, place.span)
            return mapped[place.offset : place.offset + place.span]
        buffer = memoryview(bytearray(place.span))
        file.read_into(buffer, place.offset)
        return buffer.toreadonly()

    def watch(self, check: LazyCheck) -> None:
        """Has the bytes of a tensor checked before it is given out."""
        for file in self._files.values():
            file.watch(check)

    def check_files(self) -> None:
        """Makes sure that no file was cut, where pages of some mapped file were lost; costs nothing where none were.

        Raises:
            PathError: `io.short_read`.
        """
        if lost() is not None:
            for file in self._files.values():
                file.check_length()

    def close(self) -> None:
        """Closes the files; arrays that were given out stay valid."""
        self._closed = True
        self._maps.clear()
        for file in self._files.values():
            file.close()


def _computed(source: Range | None) -> memoryview:
    """Bytes that no file holds as they are."""
    if source is None:
        return memoryview(b"")
    made = bytearray()
    for chunk, length in gather_chunks(whole(source), lambda: memoryview(bytearray(CHUNK))):
        made += chunk[:length]
    return memoryview(bytes(made))
