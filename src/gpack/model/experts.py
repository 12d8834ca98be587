"""Routed experts at run time: from the pack or from external shards, read, cached in memory, or mapped."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from ..container import mapped
from ..errors import ClosedError, MissingError, PathError, UsageError
from ..generated.constants import PAGE, ExpertRole
from ..generated.rules import align_up
from ..machine import half_of_free_memory
from ..pack import Pack
from ..pack import open as open_pack
from ..tensor import Tensor
from .direct import RangeFile, pages_before
from .expert_layout import ExpertLayer, ExpertMatrix, find_layers
from .lazy import LazyCheck
from .located import Located, is_number, locate_in_pack
from .numa import Interleaver

LOG = logging.getLogger("gpack")
MMAP_VARIABLE = "GUILD_EXPERT_MMAP"
IO_MODES = (*mapped.IO_MODES, "direct")


class Expert(NamedTuple):
    """The matrices of one expert, read-only, rows of `ne0` elements; `gate` is None where the layer has none."""

    gate: Tensor | None
    up: Tensor
    down: Tensor


@dataclass
class CacheCounts:
    """What the cache did so far.

    Attributes:
        hits, misses: Calls that found their expert in memory, and that did not.
        evictions: Experts that made room for others.
        cached_bytes: Bytes held now.
        read_bytes: Bytes asked of the files.
    """

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    cached_bytes: int = 0
    read_bytes: int = 0


class FileExpertSource:
    """The routed experts of a pack, embedded or external, one at a time and from any thread.

    Attributes:
        io: How experts come: `mmap`, `read` or `direct`.
        layers: The layers that have routed experts, by number.
        budget_bytes: Most bytes that stay in memory; of no use with `mmap`, where the system decides.
        counts: What the cache did.
    """

    def __init__(
        self, located: Sequence[Located], path: object, *, io: str, budget_bytes: int | None, interleave: Interleaver
    ) -> None:
        """`open_gpack` is the way to make one."""
        self._path = path
        self._closed = False
        self._files: list[RangeFile] = []
        self._maps: list[memoryview] = []
        self._lock = threading.Lock()
        self._cache: OrderedDict[tuple[int, int], tuple[Expert, int]] = OrderedDict()
        self._turns: dict[tuple[int, int], threading.Lock] = {}
        self._interleave = interleave
        self.counts = CacheCounts()
        self.io = io
        try:
            self.layers = find_layers(located, self._files, direct=io == "direct")
            if io == "mmap":
                self._map_files()
            if self.io == "direct" and not all(file.direct for file in self._files):
                self.io = "read"  # the file has logged the reason
        except BaseException:
            self.close()
            raise
        self.budget_bytes = half_of_free_memory() if budget_bytes is None else budget_bytes

    @classmethod
    def open_gpack(
        cls,
        pack: Pack | str | os.PathLike[str],
        *,
        expert_dir: str | os.PathLike[str] | None = None,
        budget_bytes: int | None = None,
        mmap: bool | None = None,
        io: str = "auto",
        interleave: bool | Interleaver | None = None,
    ) -> Self:
        """The experts of a pack; shards of external experts are opened and checked now.

        Args:
            pack: An open pack, or a path; neither need stay open.
            expert_dir: Folder of the shards, where `pack` is a path; default the pack's own.
            budget_bytes: Most bytes of experts to keep in memory; 0 for none, default half of the free memory.
            mmap: Give out arrays over the mapped files, nothing copied; default what GUILD_EXPERT_MMAP says (1: yes).
            io: `mmap`, `read` (through the page cache), `direct` (past it), or `auto`: `mmap` where it is asked
                for, else `read`. Where `mmap` or `direct` is refused it is `read`, and the log says so.
            interleave: Spread what is kept in memory over NUMA nodes; default where there are several.

        Raises:
            GpackError: The pack or a shard cannot be used; codes as `gpack.open` and `shard.*`.
            UsageError: There is no such mode, or the budget is negative.
        """
        with ExitStack() as stack:
            if not isinstance(pack, Pack | str | os.PathLike):
                raise UsageError(f"{type(pack).__name__} is no pack and no path", code="usage", field="pack")
            if not isinstance(pack, Pack):
                # Its files are opened once more, so it need not stay open.
                pack = stack.enter_context(open_pack(pack, expert_dir=expert_dir))
            located = list(locate_in_pack(pack, experts_only=True).values())
            return cls.open_located(
                located, pack.container.path, budget_bytes=budget_bytes, mmap=mmap, io=io, interleave=interleave
            )

    @classmethod
    def open_located(
        cls,
        located: Sequence[Located],
        path: object,
        *,
        budget_bytes: int | None = None,
        mmap: bool | None = None,
        io: str = "auto",
        interleave: bool | Interleaver | None = None,
    ) -> Self:
        """Routed experts whose files are known; the arguments are those of `open_gpack`.

        Args:
            path: The model's file, for messages.
        """
        if io not in IO_MODES:
            raise UsageError(f"io is {io!r}, not one of {', '.join(IO_MODES)}", code="usage", field="io")
        check_budget(budget_bytes, "budget_bytes")
        for field, value in (("mmap", mmap), ("interleave", interleave)):
            if value is not None and not isinstance(value, bool | Interleaver):
                raise UsageError(f"{field} is {value!r}, neither true nor false", code="usage", field=field)
        if io == "auto":
            wanted = check_mmap_variable() if mmap is None else mmap
            io = "mmap" if wanted else "read"
        elif mmap is not None and mmap != (io == "mmap"):
            raise UsageError(f"mmap is {mmap}, io is {io!r}", code="usage", field="mmap")
        if isinstance(interleave, Interleaver):
            spreader = interleave
        else:
            spreader = Interleaver([] if interleave is False else None, asked=interleave is True)
        return cls(located, path, io=io, budget_bytes=budget_bytes, interleave=spreader)

    def get(self, layer: int | np.integer[Any], expert: int | np.integer[Any]) -> Expert:
        """The matrices of one expert; the arrays stay valid when it leaves the cache or the source is closed.

        Raises:
            MissingError: There is no such layer or expert.
            UsageError: One of them is not a number.
            ClosedError: The source was closed.
            PathError: The file was cut, or the disk failed.
        """
        if self._closed:
            raise ClosedError("the source of experts was closed", code="pack.closed", path=self._path)
        for field, value in (("layer", layer), ("expert", expert)):
            if not is_number(value):
                raise UsageError(f"{field} is {value!r}, not a number", code="usage", field=field)
        layer, expert = int(layer), int(expert)
        found = self.layers.get(layer)
        if found is None or not 0 <= expert < found.n_expert:
            raise MissingError(f"there is no expert {expert} in layer {layer}", code="experts.missing", path=self._path)
        if self.io == "mmap":
            return self._mapped(found, expert)
        return self._cached((layer, expert), found)

    def watch(self, check: LazyCheck) -> None:
        """Has the bytes of an expert checked before it is given out."""
        for file in self._files:
            file.watch(check)

    # ------------------------------------------------------------ mapped

    def _map_files(self) -> None:
        try:
            self._maps = [file.map(0, file.size) for file in self._files]
        except PathError as error:
            self.io = "read"
            LOG.warning("%s: reading experts instead", error)

    def _mapped(self, layer: ExpertLayer, expert: int) -> Expert:
        maps = self._maps
        for number in {matrix.file for run in layer.runs for matrix in run.matrices}:
            self._files[number].check_length()
        slices = {}
        for run in layer.runs:
            for matrix in run.matrices:
                start = matrix.offset + expert * matrix.stride
                self._files[matrix.file].look(start, matrix.length)
                slices[matrix.role] = _array(matrix, maps[matrix.file][start : start + matrix.length])
        return _expert(slices)

    # ------------------------------------------------------------ read and kept

    def _cached(self, key: tuple[int, int], layer: ExpertLayer) -> Expert:
        if (held := self._held(key)) is not None:
            return held
        if layer.expert_bytes > self.budget_bytes:
            return self._fetch(key, layer)  # it is not kept, so there is nothing to wait for
        with self._lock:
            turn = self._turns.setdefault(key, threading.Lock())
        # One thread reads it, others wait for what that one keeps. An interrupt gives the lock back, too.
        with turn:
            held = self._held(key)
            return self._fetch(key, layer) if held is None else held

    def _held(self, key: tuple[int, int]) -> Expert | None:
        with self._lock:
            held = self._cache.get(key)
            if held is None:
                return None
            self._cache.move_to_end(key)
            self.counts.hits += 1
            return held[0]

    def _fetch(self, key: tuple[int, int], layer: ExpertLayer) -> Expert:
        with self._lock:
            self.counts.misses += 1
        made, size = self._read(layer, key[1])
        with self._lock:
            if size <= self.budget_bytes and not self._closed:
                self._keep(key, made, size)
        return made

    def _keep(self, key: tuple[int, int], made: Expert, size: int) -> None:
        while self._cache and self.counts.cached_bytes + size > self.budget_bytes:
            _, (_, freed) = self._cache.popitem(last=False)
            self.counts.cached_bytes -= freed
            self.counts.evictions += 1
        self.counts.cached_bytes += size
        self._cache[key] = made, size

    def _read(self, layer: ExpertLayer, expert: int) -> tuple[Expert, int]:
        """An expert in buffers of its own, and how many bytes those take."""
        slices, taken = {}, 0
        for run in layer.runs:
            first = run.matrices[0]
            file = self._files[first.file]
            start = first.offset + expert * first.stride
            # Direct reads take whole pages; what is wanted lies somewhere inside.
            begin = pages_before(start) if file.direct else start
            end = align_up(start + run.length, PAGE) if file.direct else start + run.length
            buffer = self._allocate(end - begin, aligned=file.direct)
            file.read_into(buffer, begin)
            if self.io == "direct" and not file.direct:
                self.io = "read"  # refused only now; the file has logged the reason
            taken += end - begin
            at = start - begin
            for matrix in run.matrices:
                slices[matrix.role] = _array(matrix, buffer[at : at + matrix.length].toreadonly())
                at += matrix.length
        with self._lock:
            self.counts.read_bytes += taken
        return _expert(slices), taken

    def _allocate(self, length: int, *, aligned: bool) -> memoryview:
        """A buffer; page-aligned, and spread over the nodes, where that is wanted."""
        if not aligned and not self._interleave.active:
            return memoryview(bytearray(length))
        # Private maps of one policy merge into one; their number is limited.
        buffer = mmap.mmap(-1, align_up(max(length, 1), PAGE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if self._interleave.active:
            # Before the first touch: that is when a page gets its node.
            anchor = ctypes.c_char.from_buffer(buffer)
            self._interleave.spread(ctypes.addressof(anchor), len(buffer))
            del anchor
        return memoryview(buffer)[:length]

    def close(self) -> None:
        """Closes the files, and waits for no read that is under way; arrays that were given out stay valid."""
        self._closed = True
        for file in self._files:
            file.close()
        with self._lock:
            self._cache.clear()
            self.counts.cached_bytes = 0
        self._maps = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_budget(budget: object, field: str) -> None:
    """Makes sure that a budget is a number of bytes, or None.

    Raises:
        UsageError: It is not.
    """
    if budget is not None and not is_number(budget, least=0):
        raise UsageError(f"the budget is {budget!r}, not a number of bytes", code="usage", field=field)


def check_mmap_variable() -> bool:
    """What GUILD_EXPERT_MMAP says: whether experts are used where they are mapped.

    Raises:
        UsageError: It is neither 0 nor 1.
    """
    said = os.environ.get(MMAP_VARIABLE, "")
    if said not in ("", "0", "1"):
        raise UsageError(
            f"{MMAP_VARIABLE} is {said!r}, and may be 0 or 1",
            code="usage",
            hint="1: experts are used from the mapped file",
        )
    return said == "1"


def _expert(slices: dict[int, Tensor]) -> Expert:
    return Expert(slices.get(ExpertRole.GATE), slices[ExpertRole.UP], slices[ExpertRole.DOWN])


def _array(matrix: ExpertMatrix, data: memoryview) -> Tensor:
    return Tensor.over(data, name=matrix.name, ggml_type=matrix.ggml_type, dims=matrix.dims)
