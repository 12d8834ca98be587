"""The C header: strict C11 and C++17 accept it, and a program reads the vectors as the schema means them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from schemas import GGUF, GPACK

from codegen import emit_c
from codegen.model import Field, Schema, Struct, Vector

SCHEMAS = {"gpack": GPACK, "gguf": GGUF}
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
COMPILERS = {"c": ["cc", "-std=c11", "-x", "c"], "c++": ["c++", "-std=c++17", "-x", "c++"]}
CASES = [(name, language) for name in SCHEMAS for language in COMPILERS]


def compile_source(folder: Path, language: str, source: str) -> subprocess.CompletedProcess[str]:
    """Compiles and links; skips where the compiler is absent."""
    command = COMPILERS[language]
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    path = folder / "main.txt"
    path.write_text(source)
    full = [*command, *STRICT, str(path), "-o", str(folder / "program")]
    return subprocess.run(full, check=False, capture_output=True, text=True)


def program(schema: Schema, header: str) -> str:
    """Prints the fields of every struct's first valid vector as a line of JSON."""
    bodies = "\n".join(body(item, valid(item)) for item in schema.structs)
    includes = "#include <inttypes.h>\n#include <stdio.h>\n#include <string.h>\n"
    return f"{header}\n{includes}int main(void) {{\n{bodies}\nreturn 0;\n}}\n"


def valid(item: Struct) -> Vector:
    return next(vector for vector in item.vectors if not vector.breaks)


def body(item: Struct, vector: Vector) -> str:
    data = ", ".join(map(str, vector.data))
    lines = [
        f"{{ static const uint8_t bytes[{item.size}] = {{{data}}};",
        f"{item.name} v; memcpy(&v, bytes, sizeof v);",
    ]
    for index, name in enumerate(vector.values):
        lines.append(f'printf("%s\\"{name}\\": ", "{", " if index else "{"}");')
        lines.append(show(item.field(name)))
    return "\n".join([*lines, 'puts("}"); }'])


def show(f: Field) -> str:
    access = f"v.{emit_c.member(f)}"
    if f.type.base == "ascii":
        return f'printf("\\"%s\\"", {access});'
    if f.type.base == "bytes":
        loop = f"for (size_t i = 0; i < {f.type.size}; i++)"
        return f'printf("\\""); {loop} printf("%02x", (unsigned){access}[i]); printf("\\"");'
    sign = "d" if f.type.base.startswith("i") else "u"
    cast = f"({'int64_t' if sign == 'd' else 'uint64_t'})"
    if f.type.is_array:
        loop = f"for (size_t i = 0; i < {f.type.count}; i++)"
        return f'printf("["); {loop} printf("%s%" PRI{sign}64, i ? ", " : "", {cast}{access}[i]); printf("]");'
    return f'printf("%" PRI{sign}64, {cast}{access});'


@pytest.mark.parametrize(("name", "language"), CASES)
def test_program_reads_the_vectors(tmp_path: Path, name: str, language: str) -> None:
    schema = SCHEMAS[name]
    done = compile_source(tmp_path, language, program(schema, emit_c.emit(schema)))
    assert done.returncode == 0, done.stderr
    lines = subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=True).stdout.splitlines()
    printed: list[Any] = [json.loads(line) for line in lines]
    assert printed == [dict(valid(item).values) for item in schema.structs]


@pytest.mark.parametrize("language", COMPILERS)
def test_wrong_size_does_not_compile(tmp_path: Path, language: str) -> None:
    header = emit_c.emit(SCHEMAS["gpack"])
    wrong = header.replace("sizeof(GPackFooterV1) == 64", "sizeof(GPackFooterV1) == 72")
    assert wrong != header
    done = compile_source(tmp_path, language, wrong + "int main(void) { return 0; }\n")
    assert done.returncode != 0
    assert "GPackFooterV1 has 64 bytes" in done.stderr


@pytest.mark.parametrize("language", COMPILERS)
def test_columns_are_functions(tmp_path: Path, language: str) -> None:
    schema = SCHEMAS["gpack"]
    checks = " && ".join(
        f"gpack_ggml_type_bytes({value.value}u) == {value.columns['bytes']}u"
        for value in schema.enum("GgmlType").values
    )
    main = f"int main(void) {{ return {checks} && gpack_ggml_type_bytes(77u) == 0 ? 0 : 1; }}\n"
    done = compile_source(tmp_path, language, emit_c.emit(schema) + main)
    assert done.returncode == 0, done.stderr
    assert subprocess.run([tmp_path / "program"], check=False).returncode == 0


def test_every_field_is_asserted() -> None:
    for schema in SCHEMAS.values():
        header = emit_c.emit(schema)
        for item in schema.structs:
            assert f"static_assert(sizeof({item.name}) == {item.size}," in header
            for f in item.fields:
                assert f"static_assert(offsetof({item.name}, {emit_c.member(f)}) == {f.offset}," in header


def test_flags_are_the_mission_s() -> None:
    header = emit_c.emit(SCHEMAS["gpack"])
    assert "#define GUILD_GPACK_FLAG_LITTLE_ENDIAN (UINT32_C(1) << 0)" in header
    assert "#define GUILD_GPACK_FLAG_EXTERNAL_EXPERTS (UINT32_C(1) << 7)" in header
    assert "#define GPACK_HEADER_V1_MAGIC UINT32_C(0x4B435047)" in header


def test_packed_format_says_so() -> None:
    assert "#pragma pack(push, 1)" in emit_c.emit(SCHEMAS["gguf"])
    assert "#pragma pack" not in emit_c.emit(SCHEMAS["gpack"])
