#!/usr/bin/env python3
"""The example writer with four mistakes that are easily made. spec/conformance.md shows the report that it gets.

gpack-conformance writer --level container -- python3 conformance/examples/broken_writer.py
"""

import json

import writer


def canonical(value):
    """Mistake 1: json.dumps escapes what is not ASCII, RFC 8785 does not."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def place(sections, end):
    """Mistake 2: everything at multiples of 64, though blobs need whole pages."""
    for section in sections:
        section["offset"] = writer.align(end, 64)
        end = section["offset"] + section["size"]
    return end


def write(recipe, folder, output, sound=writer.write):
    # Mistake 3: empty sections are left out. Mistake 4: the producer is always the same.
    kept = [section for section in recipe["sections"] if (folder / section["file"]).stat().st_size]
    sound(recipe | {"sections": kept, "producer": "gpack"}, folder, output)


writer.canonical, writer.place, writer.write = canonical, place, write
writer.main()
