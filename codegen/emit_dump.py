"""Dump functions: what a reader in another language read, as the JSON that the conformance runner compares.

One template per language walks the same picture of the schema: structs, their fields and how each shows. The readers
of `conformance/readers` render theirs when they are built, so no list of fields is typed by hand anywhere. A dump holds
every field that is not reserved: numbers up to 32 bits as numbers, 64-bit ones as decimal text, bytes as hexadecimal
text, ASCII up to its NUL, and what a heap reference points at. Beside them stands which checks of the grammar mean that
a file needs a newer reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from codegen import c_rules, kaitai_rules
from codegen.emit_c import member
from codegen.model import Field, Schema, Section, Struct, Table, snake
from codegen.render import render

TEMPLATES = {name: f"{name}.j2" for name in ("c", "cpp", "csharp", "go", "java", "rust")}


@dataclass(frozen=True)
class Shown:
    """One entry of a dumped struct.

    Attributes:
        name: Key in the dump; also the name in the grammar.
        form: `number`, `unsigned` or `signed` (64 bits, as decimal text), `float`, `flags`, `hex`, `text`, or a heap
            reference to `heap_bytes` or `heap_text`.
        count: Elements of an array of numbers; None for all else.
        field: The field; of a heap reference, its offset.
    """

    name: str
    form: str
    count: int | None
    field: Field


@dataclass(frozen=True)
class Dumped:
    """A struct with what is shown of it."""

    struct: Struct
    shown: tuple[Shown, ...]

    @property
    def name(self) -> str:
        """Name in the grammar: `tensor_index_row_v1`."""
        return snake(self.struct.name)


@dataclass(frozen=True)
class DumpedSection:
    """A section whose header, and rows, are in the dump.

    Attributes:
        body: Type of the payload in the grammar; of a single tensor that of its header, which three sections share.
        header: Its header's struct.
        tables: Tables after the header, with the structs of their rows.
    """

    section: Section
    body: str
    header: Struct
    tables: tuple[tuple[Table, Struct], ...] = ()

    @property
    def bare(self) -> bool:
        """Whether the payload is the header itself to the grammar, for the rest is a blob."""
        return self.section.body.shape == "single"


def emit(schema: Schema, target: str) -> str:
    """The text of the dump functions in one of the languages of `TEMPLATES`."""
    return render(
        f"dump/{TEMPLATES[target]}",
        schema=schema,
        structs=list(structs(schema)),
        sections=list(sections(schema)),
        entries=_entries(schema),
        newer=newer(schema),
        checks=lambda item: list(c_rules.checks(schema, item)),
        sequence_steps=lambda sequence: list(c_rules.sequence_steps(schema, sequence)),
        member=member,
        snake=snake,
        camel=camel,
        pascal=pascal,
    )


def camel(name: str) -> str:
    """`key_offset` -> `keyOffset`, as Kaitai writes methods of Java."""
    words = pascal(name)
    return words[:1].lower() + words[1:]


def pascal(name: str) -> str:
    """`key_offset` -> `KeyOffset`, `GPackHeaderV1` -> `GpackHeaderV1`, as Kaitai writes types."""
    return "".join(word.capitalize() for word in snake(name).split("_"))


def sections(schema: Schema) -> Iterator[DumpedSection]:
    """Sections that begin with a header of the schema."""
    for section in schema.sections:
        body = f"{snake(section.name)}_body"
        if section.body.shape == "table":
            header = schema.struct(section.body.target)
            tables = tuple((table, schema.struct(table.rows)) for table in header.tables)
            yield DumpedSection(section, body, header, tables)
        elif section.body.shape == "sequence":
            yield DumpedSection(section, body, schema.struct(schema.sequence(section.body.target).header))
        elif section.body.shape == "single":
            yield DumpedSection(section, snake(section.body.target), schema.struct(section.body.target))


def structs(schema: Schema) -> Iterator[Dumped]:
    """Every struct that a dump can hold, once."""
    wanted = [part.type for part in schema.file]
    for section in sections(schema):
        wanted += [section.header.name, *(row.name for _, row in section.tables)]
    for name in dict.fromkeys(wanted):
        item = schema.struct(name)
        yield Dumped(item, tuple(_shown(f) for f in item.fields if not (f.reserved or _is_length(f))))


def _is_length(f: Field) -> bool:
    return f.ref is not None and f.name == f"{f.ref}_length"


def _shown(f: Field) -> Shown:
    if f.ref:
        return Shown(f.ref, "heap_text" if f.ref_unit == "text" else "heap_bytes", None, f)
    if f.flags:
        return Shown(f.name, "flags", None, f)
    if f.type.is_blob:
        return Shown(f.name, "text" if f.type.base == "ascii" else "hex", None, f)
    forms = {"u64": "unsigned", "i64": "signed", "f32": "float", "f64": "float"}
    return Shown(f.name, forms.get(f.type.base, "number"), f.type.count, f)


def newer(schema: Schema) -> dict[str, str]:
    """Places of the grammar whose check says that a file needs a newer reader, with the rule that says so."""
    return {
        f"/types/{snake(item.name)}/seq/{index}": rule.id
        for item in schema.structs
        for rule in schema.rules_of(item.name)
        for index, f in enumerate(item.fields)
        if rule.error == kaitai_rules.NEWER and f.name == rule.field
    }


def _entries(schema: Schema) -> str:
    """Id of the part of the file that is the section directory."""
    kinds = {item.name for item in schema.structs if any(f.enum == "SectionKind" for f in item.fields)}
    return next(part.id for part in schema.file if part.type in kinds and part.repeat)
