"""The typed picture of a schema: what the YAML says, with every size and offset worked out.

`codegen.loader.load` reads, validates and resolves a schema. Emitters see only these frozen dataclasses.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

SCALARS = {
    "u8": ("B", 1),
    "u16": ("H", 2),
    "u32": ("I", 4),
    "u64": ("Q", 8),
    "i8": ("b", 1),
    "i16": ("h", 2),
    "i32": ("i", 4),
    "i64": ("q", 8),
    "f32": ("f", 4),
    "f64": ("d", 8),
}
TYPE_PATTERN = re.compile(r"(?P<base>[uif]\d+|bytes|ascii)(?:\[(?P<count>\d+)\])?")


class SchemaError(Exception):
    """The YAML contradicts itself; the message names the place."""


@dataclass(frozen=True)
class Type:
    """A field's type: a scalar, an array of scalars, raw bytes, or NUL-padded ASCII.

    Attributes:
        base: `u8` ... `f64`, `bytes` or `ascii`.
        count: Elements of an array, bytes of `bytes` and `ascii`; None for a scalar.
    """

    base: str
    count: int | None

    @classmethod
    def parse(cls, text: str, where: str) -> Type:
        """Reads `u32`, `u64[8]`, `bytes[32]` or `ascii[24]`."""
        match = TYPE_PATTERN.fullmatch(text)
        if not match or match["base"] not in (*SCALARS, "bytes", "ascii"):
            raise SchemaError(f"{where}: unknown type {text!r}")
        count = int(match["count"]) if match["count"] else None
        if count is None and match["base"] in ("bytes", "ascii"):
            raise SchemaError(f"{where}: {match['base']} needs a length")
        return cls(match["base"], count)

    @property
    def is_blob(self) -> bool:
        """Raw bytes or text, as opposed to numbers."""
        return self.base in ("bytes", "ascii")

    @property
    def is_array(self) -> bool:
        """Several numbers."""
        return self.count is not None and not self.is_blob

    @property
    def element_size(self) -> int:
        """Bytes of one element; also its natural alignment."""
        return 1 if self.is_blob else SCALARS[self.base][1]

    @property
    def size(self) -> int:
        """Bytes of the whole field."""
        return self.element_size * (1 if self.count is None else self.count)

    @property
    def struct_code(self) -> str:
        """The field in the notation of Python's `struct`."""
        if self.is_blob:
            return f"{self.count}s"
        return f"{'' if self.count is None else self.count}{SCALARS[self.base][0]}"

    def __str__(self) -> str:
        return self.base if self.count is None else f"{self.base}[{self.count}]"


@dataclass(frozen=True)
class Constant:
    """A named number of the format."""

    name: str
    value: int
    doc: str
    unit: str | None = None


@dataclass(frozen=True)
class Bit:
    """One bit of a set of flags."""

    name: str
    bit: int
    doc: str

    @property
    def mask(self) -> int:
        """The bit's value."""
        return 1 << self.bit


@dataclass(frozen=True)
class Flags:
    """A set of flags; `prefix` goes before the names in C."""

    name: str
    prefix: str
    repr: str
    doc: str
    bits: tuple[Bit, ...]

    @property
    def mask(self) -> int:
        """All bits that have a meaning."""
        return sum(bit.mask for bit in self.bits)


@dataclass(frozen=True)
class EnumValue:
    """One value of an enumeration, with the numbers of its extra columns."""

    name: str
    value: int
    doc: str
    columns: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Enum:
    """An enumeration. Readers meet unknown values, so every enumeration is open."""

    name: str
    repr: str
    doc: str
    values: tuple[EnumValue, ...]
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Field:
    """One field of a struct.

    Attributes:
        offset: Bytes from the start of the struct.
        unit: What a number counts; None for reserved fields.
        ref: Name of the heap reference that this is the `_offset` or `_length` of.
        ref_align: Alignment of the referenced bytes in the heap.
        ref_unit: What the referenced bytes are, `text` or else.
        ref_doc: Meaning of the referenced bytes.
    """

    name: str
    type: Type
    offset: int
    doc: str
    unit: str | None = None
    reserved: bool = False
    enum: str | None = None
    flags: str | None = None
    ref: str | None = None
    ref_align: int = 1
    ref_unit: str | None = None
    ref_doc: str = ""


@dataclass(frozen=True)
class Vector:
    """A worked example: bytes, what they mean, and the rules that they break.

    Attributes:
        data: The bytes of the struct.
        values: Every field that is not reserved; bytes as hex, ASCII as text.
        given: Values of the struct's outside facts, such as the file's size.
        breaks: Ids of rules that these bytes break; empty for a valid vector.
    """

    name: str
    data: bytes
    values: Mapping[str, Any]
    given: Mapping[str, int]
    breaks: tuple[str, ...] = ()
    doc: str = ""


@dataclass(frozen=True)
class Table:
    """Rows after a header; offset, count and stride are names of the header's fields."""

    id: str
    rows: str
    offset: str
    count: str
    stride: str


@dataclass(frozen=True)
class Struct:
    """A fixed-size record.

    Attributes:
        given: Outside facts that the struct's rules use, name to meaning.
        rows: Name of the row struct, where this is the header of a table.
        also: A second table of the same section.
        include: Name of the abstract struct that this one begins with; `include_doc` says what holds for all of those.
    """

    name: str
    size: int
    doc: str
    fields: tuple[Field, ...]
    magic: int | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    rows: str | None = None
    also: Table | None = None
    include: str | None = None
    include_doc: str = ""
    vectors: tuple[Vector, ...] = ()

    @property
    def struct_format(self) -> str:
        """Format for Python's `struct`, little-endian and without implied padding."""
        return "<" + "".join(item.type.struct_code for item in self.fields)

    @property
    def refs(self) -> tuple[tuple[str, int], ...]:
        """Heap references in field order: name and alignment of the bytes."""
        return tuple((item.ref, item.ref_align) for item in self.fields if item.ref and item.name.endswith("_offset"))

    @property
    def tables(self) -> tuple[Table, ...]:
        """Tables after this header: the main one, whose columns have fixed names, then the second."""
        main = (Table("rows", self.rows, "ofs_rows", "num_rows", "row_size"),) if self.rows else ()
        return (*main, self.also) if self.also else main

    def field(self, name: str) -> Field:
        """The field of that name; KeyError where there is none."""
        for item in self.fields:
            if item.name == name:
                return item
        raise KeyError(name)


@dataclass(frozen=True)
class Part:
    """One array of a sequence; `count` is an expression over the header's fields.

    `when` names a bit of the header's flags: without it the array takes no bytes at all, alignment included.
    """

    name: str
    type: Type
    count: str
    unit: str
    doc: str
    when: str | None = None


@dataclass(frozen=True)
class Sequence:
    """Arrays after a header, each at the next multiple of `alignment`."""

    name: str
    header: str
    alignment: int
    doc: str
    parts: tuple[Part, ...]

    def condition(self, schema: Schema, part: Part) -> tuple[Field, Bit] | None:
        """The header's flags field and the bit that announces an optional part; None where it is always there.

        Raises:
            SchemaError: The header has no flags with such a bit.
        """
        if part.when is None:
            return None
        for item in schema.struct(self.header).fields:
            for bit in schema.flag_set(item.flags).bits if item.flags else ():
                if bit.name == part.when:
                    return item, bit
        raise SchemaError(f"sequence {self.name}: {part.name} is announced by {part.when!r}, which no flag is")


@dataclass(frozen=True)
class Body:
    """What a section holds: a table, a single tensor, a sequence, JSON, or a blob (`target` is empty)."""

    shape: Literal["table", "single", "sequence", "json", "blob"]
    target: str


@dataclass(frozen=True)
class Section:
    """One kind of section."""

    kind: int
    id: str
    name: str
    alignment: int
    items: str
    doc: str
    body: Body
    mandatory: bool = False
    needs: tuple[int, ...] = ()
    flag: str | None = None


@dataclass(frozen=True)
class FilePart:
    """A struct at a computed place of the file (expressions in Kaitai's language)."""

    id: str
    type: str
    at: str
    doc: str
    repeat: str | None = None


@dataclass(frozen=True)
class Rule:
    """A constraint with a stable id.

    Attributes:
        struct: The struct whose fields `check` speaks of.
        structs: The same, an abstract struct replaced by those that include it.
        sweep: `u64`, `reserved` or `flags`: the rule holds for every such field of every struct.
        where: Package that checks a rule which spans several structures.
        recommended: It binds writers; a reader may pass over it.
    """

    id: str
    level: str
    doc: str
    severity: str = "error"
    quick: bool = False
    recommended: bool = False
    error: str = "FormatError"
    struct: str | None = None
    structs: tuple[str, ...] = ()
    field: str | None = None
    check: str | None = None
    sweep: str | None = None
    where: str | None = None
    implies: tuple[str, ...] = ()


@dataclass(frozen=True)
class JsonSchema:
    """A JSON Schema that the format publishes."""

    name: str
    title: str
    schema: Mapping[str, Any]


@dataclass(frozen=True)
class Schema:
    """A whole format."""

    id: str
    title: str
    version: int
    license: str
    extension: str
    doc: str
    packed: bool
    source: str
    digest: str
    outputs: Mapping[str, Any]
    constants: tuple[Constant, ...] = ()
    flags: tuple[Flags, ...] = ()
    enums: tuple[Enum, ...] = ()
    structs: tuple[Struct, ...] = ()
    sequences: tuple[Sequence, ...] = ()
    sections: tuple[Section, ...] = ()
    file: tuple[FilePart, ...] = ()
    rules: tuple[Rule, ...] = ()
    json_schemas: tuple[JsonSchema, ...] = ()

    def struct(self, name: str) -> Struct:
        """The struct of that name; KeyError where there is none."""
        return {item.name: item for item in self.structs}[name]

    def enum(self, name: str) -> Enum:
        """The enumeration of that name; KeyError where there is none."""
        return {item.name: item for item in self.enums}[name]

    def flag_set(self, name: str) -> Flags:
        """The flags of that name; KeyError where there are none."""
        return {item.name: item for item in self.flags}[name]

    def sequence(self, name: str) -> Sequence:
        """The sequence of that name; KeyError where there is none."""
        return {item.name: item for item in self.sequences}[name]

    def rules_of(self, struct: str) -> tuple[Rule, ...]:
        """Rules whose check speaks of that struct."""
        return tuple(rule for rule in self.rules if struct in rule.structs)

    def table_of_rows(self, row: str) -> Struct | None:
        """The header of the table whose rows are of that struct."""
        return next((item for item in self.structs if row in {table.rows for table in item.tables}), None)


def snake(name: str) -> str:
    """`GPackHeaderV1` -> `gpack_header_v1`, `MetadataKvBin` -> `metadata_kv_bin`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def digest_of(text: bytes) -> str:
    """SHA-256 of a schema's text, which generated files carry."""
    return hashlib.sha256(text).hexdigest()
