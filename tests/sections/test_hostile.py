"""Hostile files: whatever they claim, checking them ends soon, in little memory, with an error of ours."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gpack import errors
from gpack.conformance.parts import Parts
from gpack.conformance.recipes import bases as packs
from gpack.conformance.recipes.case import u64
from gpack.container.reader import Container
from gpack.container.report import KEPT_PER_RULE
from gpack.generated import structs as s
from gpack.sections.verify import Verification, verify

MIB = 1 << 20
GIB = 1 << 30
SECONDS = 90  # of the CPU: far more than any of these takes, even on a slow machine


@contextmanager
def bounded(memory: int = 256 * MIB) -> Iterator[None]:
    """Neither time nor Python's memory run away."""
    started = time.process_time()
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < SECONDS
    assert peak < memory


def check(path: Path, memory: int = 256 * MIB) -> Verification:
    """Both ways of opening; only errors of ours may come out of the quick one."""
    with bounded(memory):
        with suppress(errors.GpackError):
            Container.open(path).close()
        found = verify(path)
    assert not found.ok
    return found


def write(path: Path, pack: Parts) -> Path:
    path.write_bytes(pack.seal())
    return path


# ---------------------------------------------------------------- things that are no files


@pytest.mark.parametrize("call", [Container.open, verify])
def test_what_is_no_regular_file(tmp_path: Path, call: Callable[[Any], object]) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    for path, code in (
        (tmp_path, "io.not_a_file"),
        (tmp_path / "fifo", "io.not_a_file"),
        ("/dev/zero", "io.not_a_file"),
        ("/dev/null", "io.not_a_file"),
        (tmp_path / "none", "io.not_found"),
        (tmp_path / "one", "io.read"),
        (tmp_path / "fifo" / "x", "io.read"),
        (tmp_path / ("n" * 300), "io.read"),
    ):
        with pytest.raises(errors.PathError) as caught:
            call(path)
        assert caught.value.code == code, path
        assert caught.value.exit_code == errors.EXIT_IO


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0)
    with pytest.raises(errors.PathError):
        Container.open(path)


def test_a_read_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "good"
    path.write_bytes(packs.small())

    def broken(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", broken)
    for call in (Container.open, verify):
        with pytest.raises(errors.PathError) as caught:
            call(path)
        assert caught.value.code == "io.read"


def test_a_link_to_a_pack_opens(tmp_path: Path) -> None:
    (tmp_path / "good").write_bytes(packs.small())
    (tmp_path / "link").symlink_to("good")
    assert verify(tmp_path / "link").ok


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"G",
        b"GPCK",
        b"GGUF" + bytes(1000),
        bytes(128),
        b"\xff" * 4096,
        b"GPCK" + b"\xff" * 4092,
        b"PK\x03\x04" * 99,
    ],
)
def test_what_is_no_pack(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "junk"
    path.write_bytes(data)
    report = check(path).report
    with pytest.raises(errors.GpackError) as caught:
        Container.open(path)
    assert caught.value.code in report.counts
    if len(data) >= 4 and not data.startswith(b"GPCK"):
        assert caught.value.code == "header.magic"


# ---------------------------------------------------------------- directories


def crowd(count: int, **fields: Any) -> Parts:
    """The plain pack with many private sections, each with these fields in the directory."""
    pack = Parts.parse(packs.plain())
    for index in range(count):
        pack.add(0x80000000 + index, b"", 0, name=f"p{index}").bound.update(fields)
    return pack


def test_sections_that_lie_on_top_of_each_other(tmp_path: Path) -> None:
    """Each claims the same 16 MiB: hashing them all would read 64 GiB."""
    pack = crowd(4000, offset=64, size=16 * MIB)
    pack.add(0x90000000, bytes(16 * MIB), 0, name="last")
    found = check(write(tmp_path / "a", pack))
    assert found.report.counts["section.overlap"] >= 4000
    assert found.bytes_hashed == 0


@pytest.mark.parametrize("kind", [0x80000000, 2])
def test_thousands_of_equal_entries(tmp_path: Path, kind: int) -> None:
    """Entries are compared with one another nowhere: a quick open stays quick."""
    pack = crowd(4093, kind=kind, name=b"DenseIndexBin".ljust(24, b"\0"))
    path = write(tmp_path / "a", pack)
    started = time.process_time()
    with pytest.raises(errors.FormatError):
        Container.open(path)
    assert time.process_time() - started < 5
    assert check(path).report.counts["section.duplicate"] == 4092


@pytest.mark.parametrize(
    "field", ["section_count", "section_table_offset", "manifest_offset", "manifest_size", "total_file_size"]
)
@pytest.mark.parametrize("value", [0, 1, 63, 1 << 20, (1 << 32) - 1, 1 << 53, (1 << 64) - 1])
def test_extreme_header_fields(tmp_path: Path, field: str, value: int) -> None:
    pack = Parts.parse(packs.small())
    pack.header[field] = min(value, (1 << 32) - 1) if field == "section_count" else value
    check(write(tmp_path / "a", pack))


@pytest.mark.parametrize("kind", range(15))
@pytest.mark.parametrize("field", ["offset", "size", "item_count"])
def test_extreme_entries(tmp_path: Path, kind: int, field: str) -> None:
    for value in (0, 1, (1 << 32) - 1, 1 << 53, (1 << 64) - 1):
        pack = Parts.parse(packs.small())
        section = pack.section(kind)
        if getattr(section.entry, field) != value:
            section.late[field] = value
            check(write(tmp_path / "a", pack))


@pytest.mark.parametrize("kind", [0, 1, 2, 4, 6, 9, 11, 12, 13])
def test_extreme_fields_of_every_record(tmp_path: Path, kind: int) -> None:
    """Every number of every header and of a first row, at its extremes: never an exception, always an error."""
    base = Parts.parse(packs.everything())
    records = [(base.get(kind), 0)]
    if kind not in (6, 11):
        records.append((base.rows(kind)[0], base.get(kind).ofs_rows))
    for record, at in records:
        for name in record.FIELDS:
            value = getattr(record, name)
            if not isinstance(value, int):
                continue
            width = {"B": 8, "H": 16, "I": 32, "Q": 64}[_codes(type(record))[name].upper()]
            for extreme in {0, 1, value + 1, (1 << width - 1) - 1}:
                if extreme != value:
                    setattr(record, name, extreme)
                    pack = base.copy()
                    pack.section(kind).data[at : at + record.SIZE] = record.encode()
                    path = write(tmp_path / "a", pack)
                    report = verify(path).report
                    assert not report.ok or name in ("source_version", "source_alignment", "codebook", "act_kind"), (
                        name,
                        extreme,
                    )
                    Container.open(path).close()
            setattr(record, name, value)


def _codes(record: type[Any]) -> dict[str, str]:
    """The `struct` letter of each field of numbers."""
    from gpack.generated import dtypes

    dtype: Any = next(
        d for n, d in vars(dtypes).items() if n.isupper() and n.replace("_", "").lower() == record.__name__.lower()
    )
    return {name: dtype.fields[name][0].char.replace("L", "Q").replace("l", "q") for name in dtype.names}


# ---------------------------------------------------------------- values and text


def with_value(key: str, value: bytes, **fields: int) -> Parts:
    """A pack with one more metadata entry."""
    pack = Parts.parse(packs.plain())
    row = s.MetadataKvRowV1(value_type=9, element_type=8, count=1, position=0)
    for name, item in fields.items():
        setattr(row, name, item)
    pack.rebuild(0, [(row, [key.encode(), value])])
    return pack


def test_millions_of_empty_strings(tmp_path: Path) -> None:
    """A good value and two bad ones: one string too many, one byte too many."""
    count = 1_000_000
    value = bytes(8 * count)
    path = write(tmp_path / "a", with_value("a", value, count=count))
    with bounded(400 * MIB):
        assert verify(path).ok
    for lie in (count + 1, (1 << 53) - 1):
        found = check(write(tmp_path / "b", with_value("a", value, count=lie)), 400 * MIB)
        assert set(found.report.counts) == {"metadata.value"}


def test_deep_arrays(tmp_path: Path) -> None:
    for depth in (9, 100_000):
        value = (b"\x09\0\0\0" + u64(1)) * depth
        found = check(write(tmp_path / "a", with_value("a", value, element_type=9)))
        assert set(found.report.counts) == {"metadata.value"}


def test_a_long_token_in_many_merges(tmp_path: Path) -> None:
    """A merge of a megabyte, a hundred thousand times: compared once, not 100 GB."""
    size, merges = MIB, 100_000
    left, right = b"a" * size, b"b"
    tokens = [left, right, left + right, left + b"c"]
    pack = Parts.parse(packs.vocabulary())
    header = s.GbtHeaderV1(
        vocab_size=4, n_merges=merges, eos_token_id=-1, vocab_blob_bytes=sum(map(len, tokens)), chat_template_bytes=0
    )
    places = s.gbt_v1_layout(header)
    data = bytearray(s.gbt_v1_size(header))
    data[:64] = header.encode()
    offsets = [sum(map(len, tokens[:index])) for index in range(5)]
    triples = b"".join(x.to_bytes(4, "little") for x in (0, 1, 2)) * (merges - 1) + b"".join(
        x.to_bytes(4, "little") for x in (0, 1, 3)
    )
    for name, part in (
        ("offsets", b"".join(x.to_bytes(4, "little") for x in offsets)),
        ("token_types", b"\1" * 4),
        ("vocab_blob", b"".join(tokens)),
        ("triples", triples),
    ):
        data[places[name][0] : places[name][0] + len(part)] = part
    pack.section(11).data[:] = data
    found = check(write(tmp_path / "a", pack)).report
    assert found.counts["tokenizer.merge_bytes"] == 1
    assert [v.field for v in found.violations if v.rule == "tokenizer.merge_bytes"] == [f"triples[{merges - 1}]"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: b'{"a":"' + b"x" * (100 * MIB) + b'"}',
        lambda: b'{"sections":[' + b"{}," * 500_000 + b"{}]}",
        lambda: b'{"model":{"bytes_by_type":{' + b",".join(b'"%d":"x"' % i for i in range(100_000)) + b"}}}",
        lambda: b'{"a":"' + b'\\"' * 8_000_000,
        lambda: b"[" * (16 * MIB),
    ],
    ids=["100 MB", "sections", "keys", "quotes", "brackets"],
)
def test_hostile_manifests(tmp_path: Path, make: Callable[[], bytes]) -> None:
    data = make()
    pack = Parts.parse(packs.plain())
    pack.manifest_bytes = lambda _: data
    path = write(tmp_path / "a", pack)
    assert check(path, GIB).report.counts.keys() & {"manifest.json", "manifest.schema"}
    with Container.open(path) as opened, pytest.raises(errors.FormatError):
        _ = opened.manifest


# ---------------------------------------------------------------- reports


def test_a_report_keeps_some_and_counts_all(tmp_path: Path) -> None:
    pack = Parts.parse(packs.plain())
    rows = [
        (s.MetadataKvRowV1(value_type=0, element_type=0, count=1, position=index, flags=2), [b"%04d" % index, b"\0"])
        for index in range(1000)
    ]
    pack.rebuild(0, rows)
    report = verify(write(tmp_path / "a", pack)).report
    assert report.counts == {"field.flags": 1000}
    assert len(report.violations) == KEPT_PER_RULE == 100
    assert [v.field for v in report.violations[:2]] == ["rows[0].flags", "rows[1].flags"]
