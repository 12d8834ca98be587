"""Mutations that know what they change: numbers of the schema's records, JSON, tables of text, Jinja; sealed again.

Each takes the bytes, a generator of chance, and `anyhow`, which changes bytes without knowing them (libFuzzer's own).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from random import Random
from typing import Any

from gpack.conformance.parts import MANIFEST, Parts
from gpack.generated.constants import SectionKind
from gpack.generated.sections import SECTIONS
from gpack.generated.structs import GbtHeaderV1, gbt_v1_size

from .fields import ENTRY, FOOTER, HEADER, ROW, SECTION, Field, fields

Anyhow = Callable[[bytes], bytes]
Mutate = Callable[[bytes, Random, Anyhow], bytes]

_NUMBERS = (0, 1, 2, 3, 4, 7, 8, 9, 16, 63, 64, 255, 256, 4095, 4096, 32767, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1)
_LARGE = (2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_ROWS = 6  # of a table, the first ones are changed
_KEPT = 5  # of ten sections get a header that holds
_LONGEST = 1 << 16  # bytes of a pack, and of a section that is made to fit what its header says


def number(old: int, size: int, rng: Random) -> int:
    """A number that a careless reader may stumble over, in place of another."""
    way = rng.randrange(7)
    if way < 2:
        return old + rng.choice((1, -1, 8, -8))
    if way == 2:
        return old ^ (1 << rng.randrange(64))
    if way == 3:
        return size + rng.randrange(-70, 3)
    if way == 4:
        return rng.randrange(size + 1)
    return rng.choice(_NUMBERS if way == 5 else _LARGE)


@cache
def _fields_of(place: str, kind: int = 0) -> tuple[Field, ...]:
    return tuple(field for field in fields() if field.place == place and field.kind == kind)


def change_field(data: bytearray, at: int, field: Field, rng: Random) -> None:
    """Changes a number of the record that begins at that byte, where it lies in the data."""
    start = at + field.offset
    if start + field.width > len(data):
        return
    old = int.from_bytes(data[start : start + field.width], "little")
    new = number(old, len(data), rng) % (1 << 8 * field.width)
    data[start : start + field.width] = new.to_bytes(field.width, "little")


def section_of(kind: int, sound: Callable[[], Sequence[bytes]] = tuple) -> Mutate:
    """What changes the payload of a section of that kind.

    Args:
        sound: Payloads whose headers hold: more than half of what is made gets the header and the length of one.
    """
    header = SECTIONS[kind].header
    head = 0 if header is None else header.SIZE

    def mutate(data: bytes, rng: Random, anyhow: Anyhow) -> bytes:
        made = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 3))):
            way = rng.randrange(10)
            rows = _fields_of(ROW, kind)
            if way < 2:
                change_field(made, 0, rng.choice(_fields_of(SECTION, kind)), rng)
            elif way < 6 and rows:
                field = rng.choice(rows)
                change_field(made, field.base + field.stride * rng.randrange(_ROWS), field, rng)
            elif way < 9 and len(made) > head:
                made[head:] = anyhow(bytes(made[head:]))
            else:
                made = bytearray(anyhow(bytes(made)))
        kept = sound()
        if kept and rng.randrange(10) < _KEPT:
            model = rng.choice(kept)
            return model[:head] + bytes(made[head : len(model)]).ljust(len(model) - head, b"\0")
        return _fitted(kind, made, rng)

    return mutate


def _fitted(kind: int, data: bytearray, rng: Random) -> bytes:
    """As long as its header says, for a tokeniser's arrays fill the section."""
    if kind == SectionKind.TOKENIZER_BIN and len(data) >= GbtHeaderV1.SIZE and rng.randrange(6):
        size = gbt_v1_size(GbtHeaderV1.decode(data))
        if size <= _LONGEST:
            return bytes(data[:size].ljust(size, b"\0"))
    return bytes(data)


def pack(data: bytes, rng: Random, anyhow: Anyhow) -> bytes:
    """Changes one to three things of a pack and seals it again; what cannot be taken apart is changed anyhow."""
    if not rng.randrange(12):
        return anyhow(data)
    try:
        parts = Parts.parse(data)
        for _ in range(rng.choice((1, 1, 2, 3))):
            _change(parts, rng, anyhow)
        size, runs = parts.seal_runs()
        if size > _LONGEST:  # for instance by an alignment of gigabytes
            return anyhow(data)
        made = bytearray(size)
        for start, run in runs:
            made[start : start + len(run)] = run
        return bytes(made)
    except Exception:  # it is no pack any more: whatever is wrong with it
        return anyhow(data)


def _change(parts: Parts, rng: Random, anyhow: Anyhow) -> None:
    way = rng.randrange(20)
    bodies = [section for section in parts.sections if section.entry.kind != MANIFEST]
    if way < 14 and bodies:
        section = rng.choice(bodies)
        kind = section.entry.kind
        if kind in SECTIONS and SECTIONS[kind].header is not None:
            section.data[:] = section_of(kind)(bytes(section.data), rng, anyhow)
        else:
            section.data[:] = anyhow(bytes(section.data))
        if SECTIONS.get(kind) and SECTIONS[kind].tables and rng.randrange(2):
            section.entry.item_count = int(getattr(parts.get(kind), "num_rows", section.entry.item_count))
    elif way < 16:
        field = rng.choice([field for field in _fields_of(ENTRY) if field.name not in ("offset", "size")])
        section = rng.choice(parts.sections)
        old = getattr(section.entry, field.name)
        target = section.bound if rng.randrange(2) else section.late
        target[field.name] = number(old, len(section.data), rng) % (1 << 8 * field.width)
    elif way < 17:
        place, holder = rng.choice(((HEADER, parts.header), (FOOTER, parts.footer)))
        field = rng.choice(_fields_of(place))
        holder[field.name] = number(1, 4096, rng) % (1 << 8 * field.width)
    else:
        parts.manifest = changed_json(parts.manifest, rng)


# ---------------------------------------------------------------- JSON

_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**40, 0.5, -0.0, 1e300, 1e-320),
    *("", "a", "\0", "\ud800", "../x", "/", "x" * 300, "<0x-1>", "<0xZZ>", "é" * 9, [], {}, [[]], [0], {"": None}),
)
_DEEP = 200


def changed_json(value: Any, rng: Random) -> Any:
    """The value with one node of it replaced, removed, doubled, swapped or nested."""
    root = {"": value}
    places = list(_nodes(root))
    holder, key = rng.choice(places)
    if holder is not root and not rng.randrange(4):
        if isinstance(holder, dict) and rng.randrange(2):
            holder[rng.choice(("", "a", str(rng.choice(places)[1])))] = holder.pop(key)
        else:
            del holder[key]
    else:
        other, where = rng.choice(places)
        holder[key] = _instead(holder[key], other[where], rng)
    return root[""]


def _nodes(holder: Any) -> Iterator[tuple[Any, Any]]:
    """All nodes, each by what holds it and its key or number there."""
    for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
        yield holder, key
        if isinstance(holder[key], dict | list):
            yield from _nodes(holder[key])


def _instead(old: Any, other: Any, rng: Random) -> Any:
    """What may stand in a node's place."""
    way = rng.randrange(6)
    if way == 0:
        return json.loads(json.dumps(other))
    if way == 1 and isinstance(old, list):
        return old * rng.choice((0, 2, 9))
    if way == 2 and isinstance(old, int):
        return number(int(old), 4096, rng) * rng.choice((1, 1, -1))
    if way == 3:
        return rng.choice(([old], {"a": old}, str(old)))
    if way == 4 and not rng.randrange(20):
        for _ in range(_DEEP):
            old = [old]
        return old
    return rng.choice(_VALUES)


def document(data: bytes, rng: Random, anyhow: Anyhow) -> bytes:
    """Changes a document of JSON."""
    if not rng.randrange(16):
        return anyhow(data)
    try:
        value = json.loads(data)
        for _ in range(rng.choice((1, 1, 2, 4))):
            value = changed_json(value, rng)
        return json.dumps(value).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return anyhow(data)


def safetensors(data: bytes, rng: Random, anyhow: Anyhow) -> bytes:
    """Changes the header of a safetensors file, and mostly keeps its length right."""
    if not rng.randrange(8) or len(data) < 8:
        return anyhow(data)
    size = int.from_bytes(data[:8], "little")
    head = document(data[8 : 8 + size], rng, anyhow)
    told = len(head) if rng.randrange(8) else number(len(head), len(data), rng) % 2**64
    return told.to_bytes(8, "little") + head + data[8 + size :]


# ---------------------------------------------------------------- text

_CELLS = (
    *("0", "1", "-1", "2", "3", "7", "8", "256", "4096", "2147483648", "4294967296", "9" * 18, "9" * 40, "x", "#", ""),
    *("1x1", "0x0", "64x64", "a,b,c", "../x", "blk.0.x", "blk.99999999999.x", "1e9", "\u0663"),
)


def cells(data: bytes, rng: Random, anyhow: Anyhow) -> bytes:
    """Changes cells and lines of a table of text."""
    if not rng.randrange(8):
        return anyhow(data)
    lines = [line.split(" ") for line in data.decode("utf-8", "surrogateescape").split("\n")]
    for _ in range(rng.choice((1, 1, 2, 4))):
        line = rng.choice(lines)
        way, at = rng.randrange(8), rng.randrange(len(line))
        if way < 3:
            line[at] = rng.choice(_CELLS)
        elif way == 3 and line[at].lstrip("-").isdecimal():
            line[at] = str(number(int(line[at][:30]), 4096, rng))
        elif way == 4:
            line[at] = rng.choice(rng.choice(lines))
        elif way == 5:
            del line[at:]
            line.append(rng.choice(_CELLS))
        elif way == 6:
            lines.append(list(line))
        else:
            line.insert(at, rng.choice(_CELLS))
    return "\n".join(" ".join(line) for line in lines).encode("utf-8", "surrogateescape")


def words(text: str) -> tuple[str, ...]:
    """The words between broken bars."""
    return tuple(word.strip() for word in text.split("\u00a6"))


def pieces_of(vocabulary: Sequence[str]) -> Mutate:
    """What puts words into a text, takes stretches out, moves and doubles them."""
    encoded = [word.encode() for word in vocabulary]

    def mutate(data: bytes, rng: Random, anyhow: Anyhow) -> bytes:
        if not rng.randrange(6):
            return anyhow(data)
        made = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 3))):
            start = rng.randrange(len(made) + 1)
            end = min(start + rng.choice((0, 0, 1, 4, 20)), len(made))
            if rng.randrange(4):
                made[start:end] = rng.choice(encoded)
            else:
                made[start:end] = made[(first := rng.randrange(len(made) + 1)) : first + rng.randrange(40)]
        return bytes(made)

    return mutate
