"""C: constants, flags, enumerations and structs with their sizes and offsets asserted; C++ takes it too."""

from __future__ import annotations

from collections.abc import Callable

from codegen.model import EnumValue, Field, Flags, Schema, Section, Struct, snake
from codegen.prose import wrap
from codegen.render import render

SCALARS = {
    f"{sign}{bits}": f"{word}{bits}_t" for sign, word in (("u", "uint"), ("i", "int")) for bits in (8, 16, 32, 64)
}
SCALARS |= {"f32": "float", "f64": "double"}
KEYWORDS = frozenset(
    {
        "alignas",
        "alignof",
        "and",
        "asm",
        "auto",
        "bool",
        "break",
        "case",
        "catch",
        "char",
        "class",
        "const",
        "continue",
        "default",
        "delete",
        "do",
        "double",
        "else",
        "enum",
        "explicit",
        "export",
        "extern",
        "false",
        "float",
        "for",
        "friend",
        "goto",
        "if",
        "inline",
        "int",
        "long",
        "mutable",
        "namespace",
        "new",
        "not",
        "operator",
        "or",
        "private",
        "protected",
        "public",
        "register",
        "restrict",
        "return",
        "short",
        "signed",
        "sizeof",
        "static",
        "struct",
        "switch",
        "template",
        "this",
        "throw",
        "true",
        "try",
        "typedef",
        "typename",
        "union",
        "unsigned",
        "using",
        "virtual",
        "void",
        "volatile",
        "while",
        "xor",
    }
)


def emit(schema: Schema) -> str:
    """The text of the header file."""
    return render(
        "c.j2",
        schema=schema,
        prefix=schema.id.upper(),
        guard=f"{schema.id.upper()}_H",
        macro=lambda name: macro(schema, name),
        function=lambda name: macro(schema, name).lower(),
        number=number,
        member=member,
        declaration=declaration,
        comment=comment,
        bit=bit,
        column=column,
        struct_doc=_struct_doc,
        section_facts=_section_facts,
    )


def _section_facts(schema: Schema) -> list[tuple[str, str, str, Callable[[Section], str]]]:
    """Name, type, meaning and value of what is known of each kind of section; an empty value is 0."""

    def flag(item: Section) -> str:
        names = (f"{flags.prefix}{bit.name}" for flags in schema.flags for bit in flags.bits if bit.name == item.flag)
        return next(names, "")

    return [
        ("name", "const char *", "The fixed name; NULL of a kind that is not known.", lambda item: f'"{item.name}"'),
        ("alignment", "uint32_t", "The fixed alignment.", lambda item: number(item.alignment)),
        ("mandatory", "uint32_t", "1 where every file has one.", lambda item: "1" if item.mandatory else ""),
        ("flag", "uint32_t", "The header's flag that is set exactly where there is one.", flag),
        (
            "needs",
            "uint64_t",
            "The kinds that must be there too, a bit for each.",
            lambda item: " | ".join(f"UINT64_C(1) << {kind}" for kind in item.needs),
        ),
    ]


def macro(schema: Schema, name: str) -> str:
    """`GgmlType` -> `GPACK_GGML_TYPE`; a name that begins with the format's keeps it once."""
    words, prefix = snake(name).upper(), schema.id.upper()
    return words if words == prefix or words.startswith(f"{prefix}_") else f"{prefix}_{words}"


def number(value: int) -> str:
    """A constant that both languages give a fixed width."""
    if value < 0:
        return f"INT64_C({value})"
    width = 32 if value < 1 << 32 else 64
    return f"UINT{width}_C({value if value < 1 << 16 else f'0x{value:X}'})"


def bit(flags: Flags, position: int) -> str:
    """A bit as a mask."""
    return f"(UINT32_C(1) << {position})" if flags.repr == "u32" else f"(1u << {position})"


def member(f: Field) -> str:
    """The field's name, made harmless where C or C++ reserves it."""
    return f"{f.name}_" if f.name in KEYWORDS else f.name


def declaration(f: Field) -> str:
    """The field as a member: `uint64_t dims[8];`."""
    base = {"bytes": "uint8_t", "ascii": "char"}.get(f.type.base) or SCALARS[f.type.base]
    return f"{base} {member(f)}{'' if f.type.count is None else f'[{f.type.count}]'};"


def column(value: EnumValue, name: str) -> str:
    """A column's number for one value of an enumeration."""
    return number(value.columns[name])


def comment(text: str, indent: int = 0) -> str:
    """A doc comment, on one line where it fits."""
    text = " ".join(text.split()).replace("*/", "* /")
    space = " " * indent
    if len(text) + indent <= 110:
        return f"{space}/** {text} */"
    return f"{space}/**\n{wrap(text, 116, f'{space} * ')}\n{space} */"


def _struct_doc(schema: Schema, item: Struct) -> str:
    parts = [item.doc]
    for sequence in schema.sequences:
        if sequence.header == item.name:
            arrays = "; ".join(
                f"{part.type} {part.name}[{part.count}]" + (f" with {part.when}" if part.when else "")
                for part in sequence.parts
            )
            parts.append(f"After it, each at the next multiple of {sequence.alignment}: {arrays}.")
    parts += [f"Rows: {table.rows}, `{table.stride}` apart from `{table.offset}` on." for table in item.tables]
    return " ".join(parts)
