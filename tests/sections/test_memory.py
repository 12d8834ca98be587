"""What a whole verification takes, in a process of its own: 96 MiB and five bytes a token, however large a section."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from gguf_maker import Entry, byte_alphabet, pack_string, vector, write_gguf

import gpack
from gpack.convert.gguf import convert_gguf
from gpack.sections import context
from gpack.sections.verify import verify

MIB = 1 << 20
TOKENS = 120_000
PROGRAM = """
import sys
from gpack.sections.verify import verify
found = verify(sys.argv[1])
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(found.ok, int(peak) << 10)
"""


def vocabulary(count: int) -> list[Entry]:
    """Tokens that merge to one another, none twice: each is another one and a character."""
    merges: list[str] = []
    tokens = list(byte_alphabet())
    alphabet = tokens[:64]
    while len(tokens) < count:
        number, character = divmod(len(merges), len(alphabet))
        merges.append(f"{tokens[number]} {alphabet[character]}")
        tokens.append(tokens[number] + alphabet[character])
    return [
        ("tokenizer.ggml.model", "str", "gpt2"),
        ("tokenizer.ggml.tokens", "[str]", tokens),
        ("tokenizer.ggml.token_type", "[i32]", [1] * count),
        ("tokenizer.ggml.merges", "[str]", merges),
    ]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A large vocabulary, 40 MiB of bools, and half a million strings."""
    folder = tmp_path_factory.mktemp("large")
    entries = [
        ("general.architecture", "str", "x"),
        *vocabulary(TOKENS),
        ("large.strings", "[str]", ["word"] * 500_000),
    ]
    bools = pack_string("large.bools") + struct.pack("<IIQ", 9, 7, 40 * MIB) + bytes(40 * MIB)
    write_gguf(folder / "m.gguf", entries, [vector("a")], raw_metadata=bools, raw_entries=1)
    convert_gguf(folder / "m.gguf", folder / "m.gpack")
    return folder / "m.gpack"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the peak is not told")
def test_the_peak_of_a_whole_verification(pack: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(pack)], capture_output=True, text=True, check=True)
    ok, peak = done.stdout.split()
    assert ok == "True"
    assert int(peak) < 96 * MIB + 5 * TOKENS


def test_what_is_read_in_pieces_is_judged_as_what_is_read_at_once(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same pack, sound and with one byte of each large array changed."""
    data = bytearray(pack.read_bytes())
    with gpack.open(pack) as opened:
        tokenizer = opened.container.entry("TokenizerBin")
        metadata = opened.container.entry("MetadataKvBin")
    told, changed = 0, [tokenizer.offset + tokenizer.size * part // 9 for part in range(1, 9)]
    for place in (*changed, metadata.offset + metadata.size // 2):
        data[place] ^= 2
        pack.with_name("changed.gpack").write_bytes(data)
        data[place] ^= 2
        found = []
        for limit in (0, 1 << 30):
            monkeypatch.setattr(context, "READ_LIMIT", limit)
            report = verify(pack.with_name("changed.gpack"), digests=False).report
            found.append([violation.to_dict() for violation in report.violations])
        assert found[0] == found[1]
        told += len(found[0])
    assert told > len(changed)
