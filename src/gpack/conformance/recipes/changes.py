"""Changes to a pack's container: header, footer, directory, private sections, manifest, single bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...generated import structs as s
from ..parts import MANIFEST, Parts

PRIVATE = 0x80000001


def header(name: str, value: int, **others: int) -> Callable[[Parts], None]:
    """Sets header fields without the manifest's knowledge."""

    def change(pack: Parts) -> None:
        pack.header |= {name: value, **others}
        _mark(pack, "header", name)

    return change


def bound_header(name: str, value: int, **others: int) -> Callable[[Parts], None]:
    """Sets header fields; the manifest says the same."""

    def change(pack: Parts) -> None:
        pack.bound_header |= {name: value, **others}
        _mark(pack, "header", name)

    return change


def footer(name: str, value: Any) -> Callable[[Parts], None]:
    """Sets a field of the footer."""

    def change(pack: Parts) -> None:
        pack.footer[name] = value
        _mark(pack, "footer", name)

    return change


def _mark(pack: Parts, place: str, name: str, index: int = 0) -> None:
    record: Any = {"header": s.GPackHeaderV1, "footer": s.GPackFooterV1, "directory": s.GPackSectionEntryV1}[place]
    start = record.OFFSETS[name]
    pack.mark(place, index * record.SIZE + start, 1)


def entry(kind: int, name: str, value: Any, *, late: bool = False) -> Callable[[Parts], None]:
    """Sets a field of a directory entry; the manifest says the same unless `late`."""

    def change(pack: Parts) -> None:
        section = pack.section(kind)
        (section.late if late else section.bound)[name] = value
        _mark(pack, "directory", name, pack.sections.index(section))

    return change


def private(
    data: bytes = b"private", *, kind: int = PRIVATE, name: str = "private", **place: int
) -> Callable[[Parts], None]:
    """Adds a section of a private kind, which no reader minds."""

    def change(pack: Parts) -> None:
        section = pack.add(kind, data, 0, name=name, alignment=place.get("alignment"))
        section.gap, section.at = place.get("gap", 0), place.get("at")

    return change


def manifest(edit: Callable[[dict[str, Any]], object]) -> Callable[[Parts], None]:
    """Edits the manifest; it stays canonical and sealed."""
    return lambda pack: pack.manifest_edits.append(lambda said: _ignore(edit(said)))


def raw(transform: Callable[[bytes], bytes]) -> Callable[[Parts], None]:
    """Rewrites the manifest's bytes; they stay sealed."""

    def change(pack: Parts) -> None:
        pack.manifest_bytes = transform
        pack.mark(MANIFEST, 0, 1 << 20)

    return change


def final(edit: Callable[[bytearray], object]) -> Callable[[Parts], None]:
    """Edits the sealed file."""
    return lambda pack: pack.final.append(lambda data: _ignore(edit(data)))


def _ignore(_: object) -> None:
    """Edits are called for what they do, not for what they return."""


def flip(kind: int | str, at: int) -> Callable[[Parts], None]:
    """Changes one byte of a section, header, directory or footer of the sealed file."""

    def change(pack: Parts) -> None:
        pack.mark(kind, at, 1)

        def edit(data: bytearray) -> None:
            data[pack.places[kind] + at] ^= 0x55

        pack.final.append(edit)

    return change


def toggled(bit: int) -> Callable[[Parts], None]:
    """Flips one flag of the header, and of the manifest."""
    return lambda pack: bound_header("flags", pack.flags() ^ 1 << bit)(pack)


def one_more_item(kind: int) -> Callable[[Parts], None]:
    """Says that a section holds one item more than it does."""
    return lambda pack: entry(kind, "item_count", pack.section(kind).entry.item_count + 1)(pack)


def instead(data: bytes) -> Callable[[bytes], bytes]:
    """Other bytes in place of the manifest's."""
    return lambda _: data


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    """Replaces the first occurrence."""
    return lambda data: data.replace(old, new, 1)


def without(part: str) -> Callable[[dict[str, Any]], object]:
    """Drops a key of the manifest."""
    return lambda said: said.pop(part)
