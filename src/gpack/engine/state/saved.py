"""States of texts in a file, to be gone on from by another run: the layout is that of schema/prompt_cache.yaml.

A file is used as a whole or not at all: it must belong to the model and the options, each of its bytes that is used
must have the digest that is written for it, and every number in it must lie within its bounds.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from blake3 import blake3

from ...container.atomic import AtomicFile
from ...errors import FormatError, PathError, UnsupportedError, UsageError
from ...generated.prompt_cache import constants as c
from ...generated.prompt_cache.dtypes import PROMPT_CACHE_REFERENCE, PROMPT_CACHE_TOKEN
from ...generated.prompt_cache.structs import (
    PromptCacheBlock,
    PromptCacheHeader,
    PromptCacheReference,
    PromptCacheState,
    PromptCacheTable,
    PromptCacheToken,
)
from ..backends.base import BLOCK, Memory
from .pool import Block, Pool
from .sequence import Checkpoint
from .states import Layouts, Table, TextState

R = TypeVar("R", PromptCacheState, PromptCacheTable, PromptCacheBlock)
_DIGEST = 32


def write_states(path: str | os.PathLike[str], states: Sequence[Checkpoint], *, model: bytes, options: bytes) -> int:
    """Writes states of one kind, that others of this user alone can read; the file appears whole or not at all.

    Args:
        path: The file.
        states: The one that was used last comes last. What a draft layer keeps of them is left out.
        model, options: Digests of 32 bytes: what the states depend on.

    Returns:
        Bytes of the file.

    Raises:
        PathError: It cannot be written.
        UnsupportedError: `cache.device`: the states are not in memory that can be read.
    """
    blocks: dict[int, tuple[Block, int]] = {}  # by identity: the block, and its group
    rows: list[bytes] = []
    tables: list[bytes] = []
    references = array("I")
    tokens = array("I")
    numbers: dict[int, int] = {}

    def number_of(block: Block | None, group: int) -> int:
        if block is None:
            return c.PROMPT_CACHE_NONE
        blocks.setdefault(id(block), (block, group))
        return numbers.setdefault(id(block), len(numbers))

    for state in states:
        recurrent = number_of(state.state.recurrent, c.PROMPT_CACHE_NONE)
        rows.append(PromptCacheState(first_token=len(tokens), position=state.position, recurrent=recurrent).encode())
        tokens.extend(state.tokens.tolist())
        for group, table in enumerate(state.state.tables):
            tables.append(PromptCacheTable(first_reference=len(references), reference_count=len(table.blocks)).encode())
            references.extend(number_of(block, group) for block in table.blocks)
    counts = len(rows), len(references), len(tokens), len(blocks)
    groups = len(states[0].state.tables) if states else 0
    fixed = b"".join(
        [
            *rows,
            *tables,
            np.array(references).astype(PROMPT_CACHE_REFERENCE).tobytes(),
            np.array(tokens).astype(PROMPT_CACHE_TOKEN).tobytes(),
        ]
    )
    head = PromptCacheHeader.SIZE + len(fixed) + PromptCacheBlock.SIZE * len(blocks)
    offset = first = _aligned(head)
    written: list[bytes] = []
    for block, group in blocks.values():
        data = _bytes_of(block.memory)
        written.append(
            PromptCacheBlock(offset=offset, length=len(data), group=group, digest=blake3(data).digest()).encode()
        )
        offset = _aligned(offset + len(data))
    middle = fixed + b"".join(written) + bytes(first - head)
    made = PromptCacheHeader(
        magic=c.PROMPT_CACHE_MAGIC,
        version=c.PROMPT_CACHE_VERSION,
        group_count=groups,
        state_count=counts[0],
        reference_count=counts[1],
        token_count=counts[2],
        block_count=counts[3],
        blocks_offset=first,
        file_size=offset,
        model=model,
        options=options,
        tables_digest=blake3(middle).digest(),
        created=int(time.time()),
        digest=bytes(_DIGEST),
    )
    made.digest = _own_digest(made.encode())
    with AtomicFile(path, offset) as file:
        os.fchmod(file.descriptor, 0o600)  # texts of users are in it
        file.write_at(made.encode() + middle, 0)
        place = first
        for block, _ in blocks.values():
            data = _bytes_of(block.memory)
            file.write_at(data, place)
            place = _aligned(place + len(data))
        file.sync()
        file.commit()
    return offset


def read_states(
    path: str | os.PathLike[str],
    layouts: Layouts,
    pool: Pool,
    *,
    n_vocab: int,
    model: bytes,
    options: bytes,
    most_bytes: int,
) -> list[Checkpoint]:
    """The states of a file, the one that was used last at the end; where memory ends, those that were used last.

    Raises:
        PathError: `io.not_found`, or it cannot be read.
        FormatError: `cache.foreign`: it belongs to another model, other options or another version; `cache.damaged`: it
            is not what was written.
    """
    try:
        with open(path, "rb") as file:
            return _Saved(path, file, layouts, n_vocab, model, options).states(pool, most_bytes)
    except FileNotFoundError as error:
        raise PathError("there is no such file", code="io.not_found", path=path) from error
    except OSError as error:
        raise PathError(f"it cannot be read: {error}", code="io.read", path=path) from error


@dataclass(frozen=True)
class _Row:
    """A state as the file has it."""

    position: int
    tokens: array[int]
    tables: list[list[int]]
    recurrent: int


class _Saved:
    """An open file whose tables were checked."""

    def __init__(self, path: Any, file: Any, layouts: Layouts, n_vocab: int, model: bytes, options: bytes) -> None:
        self._path, self._file, self._layouts = path, file, layouts
        head = self._head = self._header(model, options)
        tables = head.state_count * head.group_count
        sizes = (
            head.state_count * PromptCacheState.SIZE,
            tables * PromptCacheTable.SIZE,
            head.reference_count * PromptCacheReference.SIZE,
            head.token_count * PromptCacheToken.SIZE,
            head.block_count * PromptCacheBlock.SIZE,
        )
        if PromptCacheHeader.SIZE + sum(sizes) > head.blocks_offset or head.blocks_offset > head.file_size:
            raise self._damaged("its tables lie outside of it")
        middle = file.read(head.blocks_offset - PromptCacheHeader.SIZE)
        if blake3(middle).digest() != head.tables_digest:
            raise self._damaged("its tables have not the digest that is written for them")
        ends = np.cumsum(sizes).tolist()
        parts = [middle[end - length : end] for end, length in zip(ends, sizes, strict=True)]
        self._tables = _records(PromptCacheTable, parts[1])
        self._references = np.frombuffer(parts[2], PROMPT_CACHE_REFERENCE)["block"].tolist()
        self._tokens = np.frombuffer(parts[3], PROMPT_CACHE_TOKEN)["token"]
        self._blocks = _records(PromptCacheBlock, parts[4])
        for number, block in enumerate(self._blocks):
            self._check_block(number, block)
        if self._tokens.size and int(self._tokens.max()) >= n_vocab:
            raise self._damaged("a token is not one of the model's")
        self._rows = [self._row(number, row) for number, row in enumerate(_records(PromptCacheState, parts[0]))]

    def _header(self, model: bytes, options: bytes) -> PromptCacheHeader:
        raw = self._file.read(PromptCacheHeader.SIZE)
        if len(raw) < PromptCacheHeader.SIZE:
            raise self._damaged("it is shorter than a header")
        head = PromptCacheHeader.decode(raw)
        if (head.magic, head.version) != (c.PROMPT_CACHE_MAGIC, c.PROMPT_CACHE_VERSION):
            raise self._foreign("it is no prompt cache of this version")
        if _own_digest(raw) != head.digest:
            raise self._damaged("its header has not the digest that is written in it")
        if head.model != model:
            raise self._foreign("it belongs to another model")
        if head.options != options or head.group_count != len(self._layouts.blocks):
            raise self._foreign("it belongs to other options, or another version")
        size = os.fstat(self._file.fileno()).st_size
        if size != head.file_size:
            raise self._damaged(f"it has {size} bytes, not {head.file_size}")
        return head

    def _check_block(self, number: int, block: PromptCacheBlock) -> None:
        layouts = self._layouts
        layout = (
            layouts.recurrent
            if block.group == c.PROMPT_CACHE_NONE
            else layouts.blocks[block.group]
            if block.group < len(layouts.blocks)
            else None
        )
        inside = self._head.blocks_offset <= block.offset <= self._head.file_size - block.length
        if layout is None or block.length != layout.nbytes or not inside:
            raise self._damaged(f"block {number} is not as it must be")

    def _row(self, number: int, row: PromptCacheState) -> _Row:
        head, windows = self._head, self._layouts.windows
        is_right = 0 < row.position <= head.token_count and row.first_token <= head.token_count - row.position
        has_recurrent = row.recurrent != c.PROMPT_CACHE_NONE
        is_right &= has_recurrent == (self._layouts.recurrent is not None)
        is_right &= not has_recurrent or self._is_of(row.recurrent, c.PROMPT_CACHE_NONE)
        tables = []
        for group, window in enumerate(windows):
            table = self._tables[number * head.group_count + group]
            first, count = table.first_reference, table.reference_count
            found = self._references[first : first + count]
            # As many as the positions take; in a window those may be missing of which nothing is seen any more.
            begins = next((n for n, block in enumerate(found) if block != c.PROMPT_CACHE_NONE), 0)
            is_right &= len(found) == count == -(-row.position // BLOCK)
            is_right &= begins * BLOCK <= (max(0, row.position - window + 1) if window else 0)
            is_right &= all(self._is_of(block, group) for block in found[begins:])
            tables.append(found)
        if not is_right:
            raise self._damaged(f"state {number} is not as it must be")
        tokens = array("i", self._tokens[row.first_token : row.first_token + row.position].astype(np.int32).tobytes())
        return _Row(row.position, tokens, tables, row.recurrent)

    def _is_of(self, number: int, group: int) -> bool:
        return number < len(self._blocks) and self._blocks[number].group == group

    def states(self, pool: Pool, most_bytes: int) -> list[Checkpoint]:
        """The states, read from the last on as long as there is memory."""
        read: dict[int, Block] = {}
        made: list[Checkpoint] = []
        total = 0
        for row in reversed(self._rows):
            missing = [number for number in dict.fromkeys(_numbers(row)) if number not in read]
            total += sum(self._blocks[number].length for number in missing)
            if total > most_bytes:
                break
            try:
                for number in missing:
                    read[number] = self._read(number, pool)
            except UsageError as error:
                if error.code != "engine.budget":
                    raise
                break
            tables = tuple(Table.of([read.get(number) for number in table]) for table in row.tables)
            state = TextState(self._layouts, row.position, tables, read.get(row.recurrent))
            made.append(Checkpoint(state.shared(), row.tokens))
        return made[::-1]

    def _read(self, number: int, pool: Pool) -> Block:
        row = self._blocks[number]
        layout = self._layouts.recurrent if row.group == c.PROMPT_CACHE_NONE else self._layouts.blocks[row.group]
        assert layout is not None
        block = pool.take(layout, object())  # of nobody: whoever goes on from it writes to a copy
        target = _bytes_of(block.memory)
        self._file.seek(row.offset)
        if self._file.readinto(target) != row.length or blake3(target).digest() != row.digest:
            raise self._damaged(f"block {number} has not the digest that is written for it")
        return block

    def _damaged(self, what: str) -> FormatError:
        return FormatError(what, code="cache.damaged", path=self._path)

    def _foreign(self, what: str) -> FormatError:
        return FormatError(what, code="cache.foreign", path=self._path)


def _numbers(row: _Row) -> Iterator[int]:
    for table in row.tables:
        yield from (number for number in table if number != c.PROMPT_CACHE_NONE)
    if row.recurrent != c.PROMPT_CACHE_NONE:
        yield row.recurrent


def _records(kind: type[R], data: bytes) -> list[R]:
    return [kind.decode(data, at) for at in range(0, len(data), kind.SIZE)]


def _own_digest(header: bytes) -> bytes:
    return bytes(blake3(header[: PromptCacheHeader.OFFSETS["digest"]]).digest())


def _aligned(offset: int) -> int:
    return -(-offset // c.PROMPT_CACHE_ALIGNMENT) * c.PROMPT_CACHE_ALIGNMENT


def _bytes_of(memory: Memory) -> memoryview:
    kept = memory.keep
    if not isinstance(kept, np.ndarray) or kept.nbytes != memory.nbytes or not kept.flags.c_contiguous:
        raise UnsupportedError("states of this device cannot be written to a file", code="cache.device")
    return kept.reshape(-1).view(np.uint8).data
