"""ImHex: a pattern that shows the file's structure in the hex editor. Nothing here can run it."""

from __future__ import annotations

import re

from codegen.model import Field, FilePart, Flags, Part, Schema, Section, Struct
from codegen.render import render

SCALARS = {f"{sign}{bits}": f"{kind}{bits}" for sign, kind in (("u", "u"), ("i", "s")) for bits in (8, 16, 32, 64)}
SCALARS |= {"f32": "float", "f64": "double"}


def emit(schema: Schema) -> str:
    """The text of the `.hexpat` file."""
    return render(
        "imhex.j2",
        schema=schema,
        rows={table.rows for item in schema.structs for table in item.tables},
        declaration=declaration,
        text=text,
        bits=bits,
        refs=refs,
        part=part_declaration,
        bodies=[section for section in schema.sections if section.body.shape in ("table", "sequence", "json")],
        parts=parts,
        walk=walk,
        entry=entry_kind,
        body_type=body_type,
        magic=_magic(schema),
    )


def text(words: str) -> str:
    """The words as a string literal."""
    return '"' + " ".join(words.split()).replace("\\", "\\\\").replace('"', '\\"') + '"'


def declaration(f: Field) -> str:
    """The field as a member, with its meaning as a comment."""
    base = {"bytes": "u8", "ascii": "char"}.get(f.type.base) or f.flags or f.enum or SCALARS[f.type.base]
    size = "" if f.type.count is None else f"[{f.type.count}]"
    return f"{base} {f.name}{size} [[comment({text(f.doc)})]];"


def bits(flags: Flags) -> list[str]:
    """Members of the bitfield, gaps and the unused rest included."""
    made, position = [], 0
    for bit in sorted(flags.bits, key=lambda bit: bit.bit):
        if bit.bit > position:
            made.append(f"padding : {bit.bit - position};")
        made.append(f"{bit.name.lower()} : 1 [[comment({text(bit.doc)})]];")
        position = bit.bit + 1
    rest = int(flags.repr[1:]) - position
    return [*made, f"padding : {rest};"] if rest else made


def refs(item: Struct) -> list[str]:
    """Members of a row that lie in the heap; `Heap` is its place in the file."""
    return [
        f"{'char' if f.ref_unit == 'text' else 'u8'} {f.ref}[row.{f.ref}_length] @ Heap + row.{f.ref}_offset;"
        for f in item.fields
        if f.ref and f.name == f"{f.ref}_offset"
    ]


def parts(schema: Schema, section: Section) -> list[Part]:
    """Arrays of a sequence section."""
    return list(schema.sequence(section.body.target).parts)


def part_declaration(part: Part) -> str:
    """One array; several numbers to an element become one longer array."""
    base = {"bytes": "u8", "ascii": "char"}.get(part.type.base) or SCALARS[part.type.base]
    count = re.sub(r"[A-Za-z_]\w*", lambda match: f"header.{match[0]}", part.count)
    size = count if part.type.count is None else f"({count}) * {part.type.count}"
    return f"{base} {part.name}[{size}] [[comment({text(part.doc)})]];"


def walk(part: FilePart) -> str:
    """A struct of the file at its place."""
    repeat = f"[{part.repeat}]" if part.repeat else ""
    return f"{part.type} {part.id}{repeat} @ {part.at} [[comment({text(part.doc)})]];"


def entry_kind(schema: Schema, item: Struct) -> str | None:
    """Name of the field that says a directory entry's kind; None where the struct is no directory entry."""
    if not schema.sections or item.name not in {part.type for part in schema.file}:
        return None
    return next((f.name for f in item.fields if f.enum == "SectionKind"), None)


def body_type(section: Section) -> str | None:
    """Type of a section's payload; None for a blob."""
    if section.body.shape == "blob":
        return None
    return section.body.target if section.body.shape == "single" else f"{section.name}<offset, size>"


def _magic(schema: Schema) -> str | None:
    """The file's first bytes, where it begins with a magic number."""
    first = next((part for part in schema.file if str(part.at) == "0"), None)
    item = schema.struct(first.type) if first else None
    if item is None or item.magic is None or item.fields[0].name != "magic":
        return None
    return item.magic.to_bytes(item.fields[0].type.size, "little").hex(" ").upper()
