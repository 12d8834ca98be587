"""Sparse files of tens of gigabytes: what they claim is never allocated."""

from __future__ import annotations

import resource
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from exhaustive import amount, grows

from gpack.conformance.parts import MANIFEST, Parts
from gpack.conformance.recipes import bases as packs
from gpack.container.reader import Container
from gpack.generated import structs as s

MIB = 1 << 20
GIB = 1 << 30
SECONDS = 600  # far more than any of these takes, even on a busy machine


def giant(path: Path, size: int, kinds: list[int], heads: dict[int, bytes]) -> Path:
    """A sparse file in which each of these sections has `size` bytes of zeros after its first bytes."""
    pack = Parts.parse(packs.plain())
    for kind in kinds:
        if pack.has(kind):
            pack.section(kind).data[:] = heads.get(kind, b"")
        else:
            pack.add(kind, heads.get(kind, b""), 0)
    end = 64
    places = {}
    for section in pack.sections:
        kind = section.entry.kind
        length = size if kind in kinds else len(section.data)
        end = (end + section.entry.alignment - 1) // section.entry.alignment * section.entry.alignment
        section.bound |= {"offset": end, "size": length}
        places[kind] = end
        end += length
    manifest = pack.seal() and bytes(pack.section(MANIFEST).data)
    table = (places[MANIFEST] + len(manifest) + 63) // 64 * 64
    try:
        with path.open("wb") as file:
            for section in pack.sections:
                entry = section.entry
                entry.size = len(manifest) if entry.kind == MANIFEST else entry.size
                file.seek(places[entry.kind])
                file.write(manifest if entry.kind == MANIFEST else section.data)
            file.seek(table)
            file.write(b"".join(section.entry.encode() for section in pack.sections))
            total = (table + 96 * len(pack.sections) + 63) // 64 * 64 + 64
            header = s.GPackHeaderV1(
                format_version=1,
                min_reader_version=1,
                flags=pack.flags(),
                section_count=len(pack.sections),
                section_table_offset=table,
                manifest_offset=places[MANIFEST],
                manifest_size=len(manifest),
                total_file_size=total,
            )
            payload = sum(section.entry.size for section in pack.sections)
            footer = s.GPackFooterV1(
                manifest_offset=places[MANIFEST],
                section_table_offset=table,
                total_payload_bytes=payload,
                manifest_sha256=sha256(manifest).digest(),
            )
            file.seek(total - 64)
            file.write(footer.encode())
            file.seek(0)
            file.write(header.encode())
    except OSError as error:
        pytest.skip(f"the file system refuses: {error}")
    if path.stat().st_blocks * 512 > 64 * MIB:
        pytest.skip("the file system has no sparse files")
    return path


def run_bounded(path: Path, address_space: int) -> str:
    """The rules that a verification in a process of its own, with limited memory, reports; digests are not hashed."""
    program = (
        "import sys, resource\n"
        "import gpack.sections.verify as v\n"
        # A digest of zeros takes minutes and says nothing here: what is checked is the memory of all other checks.
        "v.check_digests = lambda *_: None\n"
        f"resource.setrlimit(resource.RLIMIT_DATA, ({address_space}, {address_space}))\n"
        "print(*sorted(v.verify(sys.argv[1]).report.counts))\n"
    )
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


HUGE = 20 * GIB


def test_a_giant_of_empty_sections(tmp_path: Path) -> None:
    path = giant(tmp_path / "a", HUGE, [0, 1], {})
    assert Container.open(path).file_size > 2 * HUGE
    assert "index.magic" in run_bounded(path, GIB)


def test_giant_tables(tmp_path: Path) -> None:
    """Tables of one row too many, and of billions of shards, in sections that could hold them."""
    rows = 1 << 20
    heads = {
        0: s.MetadataKvHeaderV1(
            version=1, row_size=40, num_rows=rows + 1, ofs_rows=64, ofs_heap=64 + 40 * (rows + 1)
        ).encode(),
        9: s.ExpertLayoutHeaderV1(
            version=1,
            row_size=184,
            ofs_rows=64,
            ofs_heap=74,
            ofs_shards=64,
            num_shards=0xFFFFFFFF,
            shard_row_size=0xFFF8,
        ).encode(),
    }
    found = run_bounded(giant(tmp_path / "a", HUGE, [0, 9], heads), GIB)
    assert "index.num_rows" in found
    assert "expert.shard_table" in found


@grows
def test_the_most_rows(tmp_path: Path) -> None:
    """Rows of zeros, a million where it is exhaustive, with a heap of 4 GiB: each is checked, the heap is not read."""
    rows = amount(1 << 17, 1 << 20)
    end = 64 + 120 * rows
    header = s.TensorIndexHeaderV1(
        version=1, row_size=120, num_rows=rows, ofs_rows=64, ofs_heap=end, len_heap=(1 << 32) - 1
    )
    path = giant(tmp_path / "a", end + (1 << 32) - 1, [1], {1: header.encode()})
    assert "tensor.name" in run_bounded(path, 2 * GIB)


def test_a_giant_tokenizer(tmp_path: Path) -> None:
    """All arrays have almost 4 Gi entries, of zeros: offsets that end in the wrong place, an endless chat template."""
    header = s.GbtHeaderV1(
        vocab_size=1 << 28, n_merges=1 << 27, eos_token_id=-1, vocab_blob_bytes=1 << 30, chat_template_bytes=1 << 30
    )
    path = giant(tmp_path / "a", s.gbt_v1_size(header), [11], {11: header.encode()})
    found = run_bounded(path, GIB)
    assert "tokenizer.offsets" in found
    assert "tokenizer.layout" not in found


def test_the_memory_limit_works() -> None:
    """That `run_bounded` would see a check that takes all the memory."""
    program = f"import resource; resource.setrlimit(resource.RLIMIT_DATA, ({GIB}, {GIB})); bytearray(2 << 30)"
    assert b"MemoryError" in subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).stderr
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] != GIB
