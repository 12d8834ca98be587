#!/usr/bin/env python3
"""An example writer of GPACK without the package: puts given sections together. Not the sections themselves.

gpack-conformance writer --level container -- python3 conformance/examples/writer.py
"""

import hashlib
import json
import struct
import sys
from decimal import Decimal
from pathlib import Path

# Layouts of spec/GPACK.md; x is reserved and zero.
HEADER, ENTRY, FOOTER = "<IHHIIQQQQ16x", "<IIQQI4xQ32s24s", "<QQQ32sI4x"
GPCK, GPKE, MANIFEST = 0x4B435047, 0x454B5047, 14


def align(value, alignment):
    return -(-value // alignment) * alignment


def record(section):
    """What the directory and the manifest repeat of a section."""
    return {"flags": 0, **{name: section[name] for name in ("kind", "name", "alignment", "item_count")}}


def place(sections, end):
    """Gives every section the least offset that its alignment allows; returns where the last one ends."""
    for section in sections:
        section["offset"] = align(end, section["alignment"])
        end = section["offset"] + section["size"]
    return end


def number(value):
    """A double as ECMAScript writes it: its shortest digits, with an exponent below 1e-6 and from 1e21 on."""
    if value == 0:
        return "0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    digits, point = "".join(map(str, digits)), len(digits) + exponent
    if not -6 < point <= 21:
        text = f"{digits[0]}.{digits[1:]}".rstrip(".") + f"e{point - 1:+}"
    elif point <= 0:
        text = f"0.{'0' * -point}{digits}"
    else:
        text = f"{digits[:point]:0<{point}}.{digits[point:]}".rstrip(".")
    return "-" * sign + text


def canonical(value):
    """RFC 8785: no blanks, keys sorted by UTF-16 code units, UTF-8. The package `rfc8785` does it too."""
    if isinstance(value, dict):
        items = sorted(value.items(), key=lambda item: item[0].encode("utf-16-be"))
        return b"{" + b",".join(canonical(key) + b":" + canonical(item) for key, item in items) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(canonical, value)) + b"]"
    return (number(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)).encode()


def entry(section):
    fields = [section[name] for name in ("kind", "flags", "offset", "size", "alignment", "item_count")]
    return struct.pack(ENTRY, *fields, bytes.fromhex(section["sha256"]), section["name"].encode())


def write(recipe, folder, output):
    sections, data = [], []
    for given in sorted(recipe["sections"], key=lambda section: section["kind"]):
        data.append((folder / given["file"]).read_bytes())
        sections.append(record(given) | {"size": len(data[-1]), "sha256": hashlib.sha256(data[-1]).hexdigest()})
    end = place(sections, 64)
    versions = {name: recipe[name] for name in ("format_version", "min_reader_version", "flags")}
    manifest = canonical(
        recipe["manifest"]
        | versions
        | {"schema": "guild.gpack.v1", "producer": recipe["producer"], "sections": sections}
    )
    own = record({"kind": MANIFEST, "name": "ManifestJson", "alignment": 64, "item_count": 1})
    own |= {"size": len(manifest), "sha256": hashlib.sha256(manifest).hexdigest()}
    table = align(place([own], end), 64)
    sections, data = [*sections, own], [*data, manifest]
    footer_at = align(table + 96 * len(sections), 64)
    header = struct.pack(
        HEADER, GPCK, *versions.values(), len(sections), table, own["offset"], own["size"], footer_at + 64
    )
    payload = sum(section["size"] for section in sections)
    footer = struct.pack(FOOTER, own["offset"], table, payload, bytes.fromhex(own["sha256"]), GPKE)
    parts = {0: header, table: b"".join(map(entry, sections)), footer_at: footer}
    parts |= {section["offset"]: part for section, part in zip(sections, data, strict=True) if part}
    with output.open("wb") as file:
        for at, part in parts.items():
            file.seek(at)  # what is skipped reads as zeros
            file.write(part)


def main():
    recipe_path, output = map(Path, sys.argv[1:])
    recipe = json.loads(recipe_path.read_text())
    if recipe["level"] != "container":
        print("only the container's level")
        sys.exit(77)
    write(recipe, recipe_path.parent, output)


if __name__ == "__main__":
    main()
