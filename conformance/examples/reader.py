#!/usr/bin/env python3
"""An example reader of GPACK without the package: header, directory, footer, manifest and digests, but no tables.

gpack-conformance reader -- python3 conformance/examples/reader.py
"""

import hashlib
import json
import os
import re
import struct
import sys

# Records as spec/GPACK.md has them: names, and the layout in the same order; x skips what is reserved.
HEADER = (
    "magic format_version min_reader_version flags section_count "
    "section_table_offset manifest_offset manifest_size total_file_size",
    "<IHHIIQQQQ16x",
)
ENTRY = "kind flags offset size alignment item_count sha256 name", "<IIQQI4xQ32s24s"
FOOTER = "manifest_offset section_table_offset total_payload_bytes manifest_sha256 footer_magic", "<QQQ32sI4x"
WIDE = re.compile("_?(offset|size|bytes|item_count)$")  # the fields of 64 bits
MANIFEST, LITTLE_ENDIAN, READER_VERSION, CHUNK = 14, 1, 1, 1 << 20


class Rejected(Exception):
    """Why the file is no good: class and message."""


def check(condition, message, kind="structure"):
    if not condition:
        raise Rejected(kind, message)


def read(file, offset, size, total):
    check(offset <= total and size <= total - offset, f"{size} bytes from {offset} on leave the file")
    file.seek(offset)
    return file.read(size)


def decode(form, data):
    return dict(zip(form[0].split(), struct.unpack(form[1], data), strict=True))


def check_header(header, total):
    check(header["magic"] == 0x4B435047, "the magic is not GPCK")
    check(header["min_reader_version"] <= READER_VERSION, "a newer reader is needed", "unsupported")
    check(1 <= header["min_reader_version"] <= header["format_version"], "the versions are impossible")
    check(header["flags"] & LITTLE_ENDIAN, "not little-endian")
    check(header["total_file_size"] == total, f"the file has {total} bytes, not {header['total_file_size']}")
    check(3 <= header["section_count"] <= 4096, f"{header['section_count']} sections")
    check(
        header["section_table_offset"] >= 64 and not header["section_table_offset"] % 64, "the directory is misplaced"
    )


def digest(file, entry, total):
    """SHA-256 of a section, which may be larger than memory."""
    made, end = hashlib.sha256(), entry["offset"] + entry["size"]
    for at in range(entry["offset"], end, CHUNK):
        made.update(read(file, at, min(CHUNK, end - at), total))
    return made.digest()


def check_section(entry, file, total):
    check(entry["alignment"] in (64, 4096), f"the alignment is {entry['alignment']}")
    check(entry["offset"] >= 64 and not entry["offset"] % entry["alignment"], f"section {entry['kind']} is misplaced")
    check(entry["offset"] + entry["size"] <= total, f"section {entry['kind']} leaves the file")
    check(digest(file, entry, total) == entry["sha256"], f"section {entry['kind']} has another digest", "digest")


def read_pack(path):
    total = os.path.getsize(path)
    with open(path, "rb") as file:
        header = decode(HEADER, read(file, 0, 64, total))
        check_header(header, total)
        table = read(file, header["section_table_offset"], 96 * header["section_count"], total)
        table_end = header["section_table_offset"] + len(table)
        check(total == -(-table_end // 64) * 64 + 64, "the footer does not follow the directory")
        entries = [decode(ENTRY, table[at : at + 96]) for at in range(0, len(table), 96)]
        check(total >= 128, "there is no room for a footer")
        footer = decode(FOOTER, read(file, total - 64, 64, total))
        check(footer["footer_magic"] == 0x454B5047, "the footer's magic is not GPKE")
        check({0, 1, MANIFEST} <= {entry["kind"] for entry in entries}, "a mandatory section is missing")
        for name in ("manifest_offset", "section_table_offset"):
            check(footer[name] == header[name], f"header and footer have another {name}")
        manifest = read(file, header["manifest_offset"], header["manifest_size"], total)
        same = hashlib.sha256(manifest).digest() == footer["manifest_sha256"]
        check(same, "the manifest has another digest", "digest")
        check(json.loads(manifest)["schema"] == "guild.gpack.v1", "the manifest has another schema")
        for entry in entries:
            check_section(entry, file, total)
    sections = [{"entry": dump(entry)} for entry in entries]
    return {"header": dump(header), "footer": dump(footer), "sections": sections}


def dump(record):
    """A record as the runner wants it: 64-bit numbers are text, so are names; digests are hex."""
    return {name: dump_field(name, value) for name, value in record.items()}


def dump_field(name, value):
    if isinstance(value, bytes):
        return value.split(b"\0")[0].decode("ascii") if name == "name" else value.hex()
    return str(value) if WIDE.search(name) else value


def say(**message):
    print(json.dumps(message), flush=True)


def main():
    about = {"name": "example-reader", "language": "python", "version": "1"}
    say(type="start", protocol=1, **about, level="digest", depth="container")
    for line in sys.stdin:
        request = json.loads(line)
        if request["type"] == "stop":
            break
        answer = {"type": "result", "seq": request["seq"]}
        try:
            answer |= {"verdict": "accept", "dump": read_pack(request["path"])}
        except Rejected as error:
            answer |= {"verdict": "reject", "class": error.args[0], "message": error.args[1]}
        except (ValueError, KeyError) as error:  # the manifest is no JSON, a name is no ASCII
            answer |= {"verdict": "reject", "class": "structure", "message": repr(error)}
        say(**answer)


main()
