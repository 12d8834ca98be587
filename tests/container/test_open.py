"""The container opened: what a quick open promises, access to bytes, closing, and errors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest

from gpack import errors
from gpack.conformance.parts import Parts
from gpack.conformance.recipes import bases as packs
from gpack.container.reader import Container
from gpack.sections.verify import verify

# As the mission text lists them.
NAMES = (
    "MetadataKvBin",
    "TensorIndexBin",
    "DenseIndexBin",
    "DensePackBlob",
    "NativeDenseIndexBin",
    "NativeDenseBlob",
    "EmbedBlob",
    "HeadBlob",
    "PleBlob",
    "ExpertLayoutBin",
    "ExpertBlobs",
    "TokenizerBin",
    "TokenizerAssets",
    "MtpBlob",
    "ManifestJson",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "good.gpack"
    place.write_bytes(packs.everything())
    return place


def test_the_sealer_and_the_writer_agree() -> None:
    """Two implementations of the layout, written apart, give the same bytes."""
    for make in (packs.plain, packs.vocabulary):
        assert Parts.parse(make()).seal() == make()
    metadata, tensors = packs.everything_source()
    made = packs.convert(metadata, tensors)
    assert Parts.parse(made).seal() == made


def test_records(path: Path) -> None:
    data = path.read_bytes()
    with Container.open(path) as pack:
        assert pack.path == str(path)
        assert pack.file_size == len(data) == pack.header.total_file_size
        assert [(entry.kind, entry.name.rstrip(b"\0").decode()) for entry in pack.entries] == [*enumerate(NAMES)]
        assert pack.manifest["schema"] == "guild.gpack.v1"
        assert pack.footer.manifest_sha256 == sha256(pack.read("ManifestJson")).digest()


def test_sections_by_number_and_name(path: Path) -> None:
    data = path.read_bytes()
    with Container.open(path) as pack:
        for kind, name in enumerate(NAMES):
            entry = pack.entry(kind)
            assert pack.entry(name) is entry is pack.find(name)
            expected = data[entry.offset : entry.offset + entry.size]
            assert pack.read(kind) == pack.read(name) == expected == bytes(pack.view(kind))
            assert sha256(expected).digest() == entry.sha256
        assert pack.read(0, 0, 4) == b"GPKV"
        assert pack.read(0, 4, 0) == b""
        assert pack.read(3, pack.entry(3).size) == b""
        assert pack.view(3).readonly


def test_sections_that_are_not_there(tmp_path: Path) -> None:
    place = tmp_path / "plain.gpack"
    place.write_bytes(packs.plain())
    with Container.open(place) as pack:
        assert pack.find(3) is None
        assert pack.find("x" * 40) is None
        for call in (pack.entry, pack.read, pack.view):
            with pytest.raises(errors.MissingError) as caught:
                call("DensePackBlob")
            assert caught.value.code == "pack.no_section"
            assert isinstance(caught.value, KeyError)


@pytest.mark.parametrize(("offset", "length"), [(0, 10**9), (10**9, None), (-1, 1), (0, -1), (10**9, 0), (5, 2**64)])
def test_ranges_outside(path: Path, offset: int, length: int | None) -> None:
    with Container.open(path) as pack, pytest.raises(errors.BoundsError) as caught:
        pack.read(0, offset, length)
    assert caught.value.section == "MetadataKvBin"


def test_a_changed_payload_opens_quickly_and_not_fully(path: Path) -> None:
    with Container.open(path) as pack:
        place = pack.entry("HeadBlob").offset + 100
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"\x00\xff")
    Container.open(path).close()
    with pytest.raises(errors.DigestError) as caught:
        Container.open(path, verify_all_hashes=True)
    assert (caught.value.code, caught.value.section) == ("section.sha256", "HeadBlob")


def test_newer_versions(tmp_path: Path) -> None:
    """Version 2 that asks for reader 1 opens; version 2 that asks for reader 2 fails closed."""
    for reader in (1, 2):
        pack = Parts.parse(packs.small())
        pack.bound_header |= {"format_version": 2, "min_reader_version": reader}
        (tmp_path / f"{reader}").write_bytes(pack.seal())
    Container.open(tmp_path / "1", verify_all_hashes=True).close()
    assert verify(tmp_path / "1").report.violations == []
    with pytest.raises(errors.UnsupportedError) as caught:
        Container.open(tmp_path / "2")
    assert (caught.value.code, caught.value.field, caught.value.offset) == (
        "header.min_reader_version",
        "min_reader_version",
        6,
    )
    assert caught.value.exit_code == errors.EXIT_UNSUPPORTED


def test_longer_rows_of_a_later_version(tmp_path: Path) -> None:
    """Readers step by `row_size`: rows that carry more than this version knows are read, and pass."""
    pack = Parts.parse(packs.everything())
    for kind, size in ((0, 48), (1, 128), (2, 184), (4, 56)):
        pack.rebuild(kind, pack.entries(kind), row_size=size)
    place = tmp_path / "longer.gpack"
    place.write_bytes(pack.seal())
    assert verify(place).report.violations == []


def test_private_sections_are_skipped(tmp_path: Path) -> None:
    pack = Parts.parse(packs.everything())
    pack.add(0x80000000, b"mine", 7, name="Mine")
    pack.add(77, b"later", 7, name="SomethingNew", alignment=4096)
    place = tmp_path / "private.gpack"
    place.write_bytes(pack.seal())
    assert verify(place).report.violations == []
    with Container.open(place, verify_all_hashes=True) as opened:
        assert opened.read("Mine") == b"mine"
        assert opened.read(77) == b"later"


# ---------------------------------------------------------------- closing


def mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_close_unmaps(path: Path) -> None:
    pack = Container.open(path)
    assert not mapped(path)
    view = pack.view(0)
    assert mapped(path)
    view.release()
    pack.close()
    assert not mapped(path)
    assert pack.closed


def test_a_living_view_keeps_its_bytes(path: Path) -> None:
    with Container.open(path) as pack:
        view = pack.view(0)
    assert pack.closed
    assert bytes(view[:4]) == b"GPKV"
    assert mapped(path)
    del view
    assert not mapped(path)


@pytest.mark.parametrize(
    "call",
    [lambda p: p.read(0), lambda p: p.view(0), lambda p: p.mapping(), lambda p: p.manifest, lambda p: p.descriptor],
)
def test_after_closing(path: Path, call: Callable[[Container], object]) -> None:
    pack = Container.open(path)
    pack.close()
    pack.close()
    with pytest.raises(errors.ClosedError) as caught:
        call(pack)
    assert caught.value.code == "pack.closed"


def test_no_descriptor_is_lost(path: Path) -> None:
    before = descriptors()
    Container.open(path)  # dropped at once
    Container.open(path, verify_all_hashes=True).close()
    verify(path)
    path.write_bytes(path.read_bytes()[:-1])
    for call in (Container.open, verify):
        with suppress(errors.GpackError):
            call(path)
    assert descriptors() == before


def test_a_file_that_shrinks_while_open(path: Path) -> None:
    with Container.open(path) as pack:
        os.truncate(path, 200)
        with pytest.raises(errors.PathError) as caught:
            pack.read("HeadBlob")
    assert caught.value.code == "io.short_read"


# ---------------------------------------------------------------- imports


def test_a_quick_open_is_light(path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from gpack.container.reader import Container\n"
        "Container.open(sys.argv[2]).close()\n"
        "heavy = {'numpy', 'construct', 'dataclasses', 'pathlib', 'enum', 'json', 're', 'typing', 'gguf'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    source = Path(__file__).parents[2] / "src"
    command = [sys.executable, "-S", "-c", program, str(source), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_digest_of_nothing_is_called_that(tmp_path: Path) -> None:
    """e3b0c442... is the SHA-256 of no bytes: a writer that hashed before it read."""
    parts = Parts.parse(packs.everything())
    parts.section(3).bound["sha256"] = sha256(b"").digest()
    (tmp_path / "m.gpack").write_bytes(parts.seal())
    with pytest.raises(
        errors.DigestError, match=r"records e3b0c442[0-9a-f]+, which is the digest of nothing"
    ) as caught:
        Container.open(tmp_path / "m.gpack", verify_all_hashes=True)
    assert caught.value.code == "section.sha256"
