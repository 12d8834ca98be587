"""Reads GPACK with the parser that the Kaitai compiler makes of schema/gpack.ksy, and speaks the reader protocol.

    python reader.py BUILD [--level structure]

BUILD holds `gpack.py` (the compiled grammar) and `grammar.json` (the grammar itself, which names and types every
field). Needs the `kaitaistruct` runtime and nothing of the `gpack` package. Level: digest; `--level structure` leaves
the digests out.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import kaitaistruct

CHUNK = 1 << 20
Json = dict[str, Any]


class Rejected(Exception):
    """The file is not valid: the class of the fault, what is wrong, and where."""

    def __init__(self, kind: str, message: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.offset = offset


class Grammar:
    """What the .ksy says of types and fields: the compiled classes have values, but no list of them."""

    def __init__(self, text: str) -> None:
        root: Json = json.loads(text)
        self.types: dict[str, Json] = root["types"]
        self.parts = {name: part["type"] for name, part in root["instances"].items()}
        kinds = {item["id"]: int(number) for number, item in root["enums"]["section_kind"].items()}
        cases = self.types[self.parts["sections"]]["instances"]["body"]["type"]["cases"]
        self.bodies = {kinds[case.split("::")[1]]: _type_name(name) for case, name in cases.items()}

    def refs(self, name: str) -> dict[str, str]:
        """Heap references of a row: the field with the offset, and what it refers to."""
        instances = self.types[name].get("instances", {})
        found = {key: re.match(r"ofs_heap \+ (\w+)_offset\b", str(item.get("pos"))) for key, item in instances.items()}
        return {f"{match[1]}_offset": key for key, match in found.items() if match}

    def tables(self, name: str) -> dict[str, str]:
        """Tables of rows in a section's body: the instance, and the type of a row."""
        instances = self.types[name].get("instances", {})
        return {key: _type_name(item["type"]) for key, item in instances.items() if "repeat" in item and "size" in item}

    def header(self, name: str) -> str | None:
        """The type of the header of a section's body: the body itself, where only a blob follows; None without one."""
        fields = self.types[name].get("seq", [])
        return next((_type_name(item["type"]) for item in fields if item["id"] == "header"), name if fields else None)

    def field(self, path: str) -> tuple[str, int]:
        """The field that a path like /types/gpack_header_v1/seq/2 means, and its bytes."""
        match = re.match(r"/types/(\w+)/seq/(\d+)", path)
        if not match:
            return path, 0
        item = self.types[match[1]]["seq"][int(match[2])]
        width = re.fullmatch(r"[usf]([1248])", str(item.get("type")))
        return f"{match[1]}.{item['id']}", int(width[1]) if width else 0


def _type_name(text: str) -> str:
    """`row(ofs_heap)` without its arguments."""
    return text.partition("(")[0]


class Dumper:
    """Turns parsed objects into the protocol's dump."""

    def __init__(self, grammar: Grammar, stream: Any) -> None:
        self.grammar = grammar
        self.stream = stream

    def record(self, value: Any, name: str) -> Json:
        """All fields of a record but reserved ones; what lies in the heap stands in place of its reference."""
        refs = self.grammar.refs(name)
        lengths = {offset.replace("_offset", "_length") for offset in refs}
        made: Json = {}
        for item in self.grammar.types[name]["seq"]:
            key = item["id"]
            if key in refs:
                start, length = getattr(value, key), getattr(value, key.replace("_offset", "_length"))
                made[refs[key]] = {"hex": self.bytes_at(value.ofs_heap + start, length).hex()}
            elif key not in lengths and not item.get("-reserved"):
                made[key] = self.value(getattr(value, key), item)
        return made

    def bytes_at(self, start: int, length: int) -> bytes:
        """Raw bytes of a reference; names that are not UTF-8 are shown too."""
        self.stream.seek(start)
        data: bytes = self.stream.read_bytes(length)
        return data

    def value(self, value: Any, item: Json) -> Any:
        """A field's value as JSON: 64-bit numbers as text, flags as a number, bytes as hex."""
        if isinstance(value, list):
            return [self.value(element, item) for element in value]
        if isinstance(value, bytes):
            return value.hex()
        if item.get("type") in ("u8", "s8"):
            return str(value)
        return getattr(value, "as_int", value)

    def section(self, entry: Any) -> Json:
        """An entry of the directory with its section's header and rows, where the grammar knows them."""
        made: Json = {"entry": self.record(entry, self.grammar.parts["sections"])}
        name = self.grammar.bodies.get(entry.kind)
        body: Any = getattr(entry, "body", None)
        header = name and self.grammar.header(name)
        if not name or not header:
            return made
        made["header"] = self.record(body if header == name else body.header, header)
        for table, row in self.grammar.tables(name).items():
            made[table] = [self.record(value, row) for value in getattr(body, table)]
        return made


class Reader:
    """One file after the other."""

    def __init__(self, build: Path, level: str) -> None:
        self.level = level
        spec = importlib.util.spec_from_file_location("kaitai_gpack", build / "gpack.py")
        if not spec or not spec.loader:
            raise SystemExit(f"no compiled grammar in {build}")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.parser: Any = module
        self.grammar = Grammar((build / "grammar.json").read_text("utf-8"))

    def read(self, path: str) -> Json:
        """The dump of a valid file.

        Raises:
            Rejected: The file is not valid.
        """
        with open(path, "rb") as file:
            stream = kaitaistruct.KaitaiStream(file)
            try:
                root = self.parser.Gpack(stream)
                dump = self._parse(root, stream)
            except kaitaistruct.ValidationFailedError as error:
                raise self._invalid(error, stream) from error
            except (EOFError, kaitaistruct.KaitaiStructError) as error:
                raise Rejected("structure", f"the file ends early: {error}", stream.pos()) from error
            except UnicodeDecodeError as error:
                raise Rejected("structure", f"a text is not {error.encoding}: {error.reason}", stream.pos()) from error
            if self.level == "digest":
                self._check_digests(root, file)
            return dump

    def _parse(self, root: Any, stream: Any) -> Json:
        dumper = Dumper(self.grammar, stream)
        header = dumper.record(root.header, self.grammar.parts["header"])
        size, stated = stream.size(), root.header.total_file_size
        if size != stated:
            raise Rejected("structure", f"the header says {stated} bytes, the file has {size}", size)
        footer = dumper.record(root.footer, self.grammar.parts["footer"])
        for entry in root.sections:
            if entry.offset + entry.size > size:
                raise Rejected("structure", f"{entry.name} ends at {entry.offset + entry.size}, the file at {size}")
        return {"header": header, "footer": footer, "sections": [dumper.section(entry) for entry in root.sections]}

    def _invalid(self, error: Any, stream: Any) -> Rejected:
        """What a failed `valid:` means: a version that is not known is no damage, all else is."""
        field, width = self.grammar.field(error.src_path)
        base = 0 if error.io is stream else stream.pos() - error.io.size()  # a row has a stream of its own
        newer = field.endswith(("_header_v1.min_reader_version", "_header_v1.version")) and error.actual > 1
        message = f"{field}: {str(error).partition(': ')[2]}"
        return Rejected("unsupported" if newer else "structure", message, base + error.io.pos() - width)

    def _check_digests(self, root: Any, file: BinaryIO) -> None:
        for entry in root.sections:
            if _sha256(file, entry.offset, entry.size) != entry.sha256:
                raise Rejected("digest", f"{entry.name}: the SHA-256 is not that of the directory", entry.offset)
        header = root.header
        if _sha256(file, header.manifest_offset, header.manifest_size) != root.footer.manifest_sha256:
            raise Rejected("digest", "the manifest's SHA-256 is not that of the footer", header.manifest_offset)


def _sha256(file: BinaryIO, start: int, length: int) -> bytes:
    """Hashes a range piece by piece."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(CHUNK))
    file.seek(start)
    while length:
        count = file.readinto(buffer[: min(length, CHUNK)])  # type: ignore[attr-defined]
        if not count:
            raise Rejected("structure", "the file ends early", start)
        digest.update(buffer[:count])
        length -= count
    return digest.digest()


def answers(reader: Reader, lines: Iterator[str]) -> Iterator[Json]:
    """The protocol: one start, then a result to every run, until stop."""
    name = {"name": "gpack-kaitai-python", "language": "python", "version": kaitaistruct.__version__}
    yield {"type": "start", "protocol": 1, **name, "level": reader.level}
    for line in lines:
        order = json.loads(line)
        if order["type"] == "stop":
            return
        result = {"type": "result", "seq": order["seq"]}
        try:
            yield result | {"verdict": "accept", "dump": reader.read(order["path"])}
        except Rejected as error:
            where = {} if error.offset is None else {"offset": error.offset}
            yield result | {"verdict": "reject", "class": error.kind, "message": str(error)} | where


def main() -> None:
    """Answers on standard output what is asked on standard input."""
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    level = "structure" if sys.argv[2:] == ["--level", "structure"] else "digest"
    for answer in answers(Reader(Path(sys.argv[1]), level), iter(sys.stdin)):
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
