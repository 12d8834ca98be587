"""Repair: what is damaged is found and mended, of the other copy no more is read than that, nothing else changes."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gguf_maker import F32, write_gguf
from sealed_packs import MIB, flip, place_of, sealed

import gpack
from gpack import errors
from gpack.cli import main
from gpack.container.reader import Container
from gpack.convert.seal import seal
from gpack.generated.constants import SectionKind
from gpack.generated.structs import GPackHeaderV1
from gpack.repair.journal import Patch, finish, journal_of, write_journal
from gpack.repair.mend import find_damage, repair
from gpack.repair.target import Target
from gpack.sections.verify import verify


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path, bytes]:
    """A pack, a second copy of it, and its bytes."""
    path, copy = sealed(tmp_path / "a.gpack"), tmp_path / "copy.gpack"
    copy.write_bytes(path.read_bytes())
    return path, copy, path.read_bytes()


def test_a_bit_is_mended_from_a_copy_by_reading_one_chunk(pair: tuple[Path, Path, bytes]) -> None:
    path, copy, good = pair
    at = place_of(path, "Data") + MIB + 77
    flip(path, at)
    done = repair(path, path.with_name("new.gpack"), other=copy)
    assert path.with_name("new.gpack").read_bytes() == good
    assert [(d.section, d.offset, d.length) for d in done.damages] == [("Data", place_of(path, "Data") + MIB, MIB)]
    assert (done.bytes_read, done.taken) == (MIB, {str(copy): MIB})
    assert path.read_bytes() != good


def test_in_place(pair: tuple[Path, Path, bytes]) -> None:
    path, copy, good = pair
    start = place_of(path, "Data")
    for at in (start, start + 3 * MIB + 99):
        flip(path, at)
    done = repair(path, other=copy, in_place=True)
    assert path.read_bytes() == good
    assert done.bytes_read == MIB + 100
    assert sorted(os.listdir(path.parent)) == ["a.gpack", "copy.gpack"]


def test_sections_count_and_not_where_they_lie(pair: tuple[Path, Path, bytes]) -> None:
    """A pack without parity mends one with, whose sections lie elsewhere."""
    pytest.importorskip("pyeclib")
    path, copy, _ = pair
    other = path.with_name("parity.gpack")
    seal(path, other, parity=10)
    good = other.read_bytes()
    flip(other, place_of(other, "Data") + 5)
    repair(other, in_place=True, other=copy)
    assert other.read_bytes() == good


def test_a_pack_without_digests_is_mended_with_those_of_another(pair: tuple[Path, Path, bytes]) -> None:
    path, copy, _ = pair
    sealed(path, algorithm=None)
    good = path.read_bytes()
    flip(path, place_of(path, "Data") + 2 * MIB)
    done = repair(path, in_place=True, other=copy)
    assert (path.read_bytes(), done.bytes_read) == (good, MIB)


def test_two_packs_without_digests_are_compared(pair: tuple[Path, Path, bytes]) -> None:
    path, copy, _ = pair
    sealed(path, algorithm=None)
    good = path.read_bytes()
    copy.write_bytes(good)
    flip(path, place_of(path, "Data") + 2 * MIB)
    with pytest.raises(errors.FormatError) as caught:
        find_damage(path, None)
    assert caught.value.code == "repair.place"
    assert [d.offset for d in find_damage(path, copy)] == [place_of(path, "Data") + 2 * MIB]
    repair(path, in_place=True, other=copy)
    assert path.read_bytes() == good


def test_a_copy_that_is_damaged_at_the_same_place_mends_nothing(pair: tuple[Path, Path, bytes]) -> None:
    path, copy, _ = pair
    for damaged, at in ((path, 3), (copy, 9)):
        flip(damaged, place_of(damaged, "Data") + at)
    before = path.read_bytes()
    with pytest.raises(errors.FormatError) as caught:
        repair(path, in_place=True, other=copy)
    assert caught.value.code == "repair.donor"
    assert path.read_bytes() == before
    assert sorted(os.listdir(path.parent)) == ["a.gpack", "copy.gpack"]


def test_another_model_mends_nothing(tmp_path: Path, pair: tuple[Path, Path, bytes]) -> None:
    path, copy, _ = pair
    flip(path, place_of(path, "Data"))
    gguf = tmp_path / "other.gguf"
    write_gguf(gguf, [("general.architecture", "str", "t")], [("a", F32, (4,), bytes(16))])
    gpack.convert(gguf, copy)
    for other in (copy, gguf):
        with pytest.raises(errors.FormatError) as caught:
            repair(path, in_place=True, other=other)
        assert caught.value.code == "repair.donor"


def test_another_model_is_no_copy_where_the_directory_is_damaged(
    tmp_path: Path, pair: tuple[Path, Path, bytes]
) -> None:
    """Nothing but the bytes themselves says then which model it was."""
    path, _, _ = pair
    tensors = [("t", F32, (1 << 20,), random.Random(5).randbytes(4 * MIB))]
    write_gguf(tmp_path / "b.gguf", [("general.architecture", "str", "t")], tensors)
    gpack.convert(tmp_path / "b.gguf", tmp_path / "b.gpack", chunk_digests="sha256")
    flip(path, GPackHeaderV1.SIZE + 3)
    damaged = path.read_bytes()
    with pytest.raises(errors.FormatError) as caught:
        repair(path, tmp_path / "new.gpack", other=tmp_path / "b.gpack")
    assert caught.value.code == "repair.donor"
    assert path.read_bytes() == damaged
    assert not (tmp_path / "new.gpack").exists()


@pytest.mark.parametrize("length", [3 * MIB, 100, 0])
def test_a_cut_file_is_completed(pair: tuple[Path, Path, bytes], length: int) -> None:
    path, copy, good = pair
    with path.open("r+b") as file:
        file.truncate(length)
    if not length:
        path.write_bytes(b"")
    repair(path, in_place=True, other=copy)
    assert path.read_bytes() == good


@pytest.mark.parametrize("part", ["header", "directory", "manifest", "footer"])
def test_the_frame_is_mended_from_a_copy(pair: tuple[Path, Path, bytes], part: str) -> None:
    path, copy, good = pair
    header = GPackHeaderV1.decode(good)
    at = {
        "header": 0,
        "directory": header.section_table_offset + 8,
        "manifest": header.manifest_offset + 20,
        "footer": len(good) - 64,
    }[part]
    flip(path, at)
    with pytest.raises(errors.FormatError):
        repair(path, in_place=True)  # alone it cannot tell what is right
    done = repair(path, path.with_name("new.gpack"), other=copy)
    assert path.with_name("new.gpack").read_bytes() == good
    assert {damage.section for damage in done.damages} == {"frame"}


def test_a_gap_is_zeros_again(tmp_path: Path) -> None:
    pytest.importorskip("pyeclib")
    path = sealed(tmp_path / "a.gpack", percent=10)
    good = path.read_bytes()
    flip(path, place_of(path, SectionKind.PARITY) - 1)
    done = repair(path, in_place=True)
    assert (path.read_bytes(), done.taken) == (good, {"zeros": done.damages[0].length})


def test_digests_are_made_again_where_all_else_is_sound(pair: tuple[Path, Path, bytes]) -> None:
    path, _, good = pair
    flip(path, place_of(path, SectionKind.CHUNK_DIGESTS) + 70)
    repair(path, in_place=True)
    assert path.read_bytes() == good


def test_nothing_is_damaged(pair: tuple[Path, Path, bytes], capsys: pytest.CaptureFixture[str]) -> None:
    path, copy, _ = pair
    assert main(["repair", str(path), "--from", str(copy), "-o", str(path.with_name("new.gpack"))]) == 0
    assert "nothing is damaged, and nothing was written" in capsys.readouterr().out
    assert not path.with_name("new.gpack").exists()


# ---------------------------------------------------------------- the source


def test_the_source_mends(tmp_path: Path) -> None:
    gguf, path = tmp_path / "m.gguf", tmp_path / "m.gpack"
    values = random.Random(3).randbytes(3 * MIB)
    write_gguf(gguf, [("general.architecture", "str", "t")], [("a.weight", F32, (3 * MIB // 4,), values)])
    gpack.convert(gguf, path, chunk_digests="blake3")
    good = path.read_bytes()
    start = place_of(path, "DensePackBlob")
    for at in (start + 2 * MIB + 1, place_of(path, "TensorIndexBin") + 70):
        flip(path, at)
    done = repair(path, in_place=True, other=gguf)
    assert path.read_bytes() == good
    assert [damage.section for damage in done.damages] == ["TensorIndexBin", "DensePackBlob"]


# ---------------------------------------------------------------- parity


@pytest.mark.parametrize("places", [[0], [0, 1], [3 * MIB], [MIB, 2 * MIB]])
def test_parity_mends_without_a_copy(tmp_path: Path, places: list[int]) -> None:
    """Six chunks in one stripe, with two blocks of parity."""
    pytest.importorskip("pyeclib")
    path = sealed(tmp_path / "a.gpack", percent=30)
    good = path.read_bytes()
    start = place_of(path, "Data")
    for place in places:
        flip(path, start + place)
    done = repair(path, in_place=True)
    assert path.read_bytes() == good
    assert list(done.taken) == ["parity"]


def test_parity_that_is_damaged_itself(tmp_path: Path) -> None:
    pytest.importorskip("pyeclib")
    path = sealed(tmp_path / "a.gpack", percent=30)
    good = path.read_bytes()
    data, parity = place_of(path, "Data"), place_of(path, SectionKind.PARITY)
    flip(path, parity + MIB + 100)  # in the second block, and the second chunk
    flip(path, data + 8)
    repair(path, in_place=True)
    assert path.read_bytes() == good
    for at in (data, data + MIB, data + 2 * MIB):
        flip(path, at)
    with pytest.raises(errors.FormatError) as caught:
        repair(path, in_place=True)
    assert caught.value.code == "repair.parity"


# ---------------------------------------------------------------- the journal


def _damage(path: Path) -> None:
    start = place_of(path, "Data")
    for at in (start + 1, start + MIB + 1, start + 2 * MIB + 1):
        flip(path, at)


CALLS = ("pwrite", "ftruncate", "fsync", "unlink", "rename", "posix_fallocate", "open")


class Stop(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("call", CALLS)
def test_a_repair_that_is_killed_is_finished_or_undone(
    pair: tuple[Path, Path, bytes], call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every call of each kind: the next command finds the pack as it was, or finishes it; then it can be mended."""
    path, copy, good = pair
    _damage(path)
    broken = path.read_bytes()
    real = getattr(os, call)
    number = 0
    while True:
        path.write_bytes(broken)
        left = number

        def counted(*args: object, **named: object) -> object:
            nonlocal left
            if left == 0:
                raise Stop
            left -= 1
            return real(*args, **named)

        with monkeypatch.context() as patched:
            patched.setattr(os, call, counted)
            try:
                repair(path, in_place=True, other=copy)
                break
            except Stop:
                pass
        had = journal_of(path).exists()
        assert had or path.read_bytes() in (broken, good)
        assert finish(path) is had
        assert path.read_bytes() == (good if had else path.read_bytes())
        repair(path, in_place=True, other=copy)
        assert path.read_bytes() == good
        assert sorted(os.listdir(path.parent)) == ["a.gpack", "copy.gpack"]
        number += 1
    assert number or call == "ftruncate"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("call", ["pwrite", "fsync", "rename", "posix_fallocate", "ftruncate", "unlink"])
def test_a_disk_that_fails(
    pair: tuple[Path, Path, bytes], call: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first three calls of each kind: an error of ours, and a pack as it was, or one that the next finishes."""
    path, copy, good = pair
    _damage(path)
    broken = path.read_bytes()
    for skipped in range(3):
        path.write_bytes(broken)
        real, left = getattr(os, call), skipped

        def failing(*args: object, _real: object = real, **named: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(number, os.strerror(number))
            return _real(*args, **named)  # type: ignore[operator]

        with monkeypatch.context() as patched:
            patched.setattr(os, call, failing)
            try:
                repair(path, in_place=True, other=copy)
            except errors.PathError as error:
                assert error.exit_code == errors.EXIT_IO  # noqa: PT017
        repair(path, in_place=True, other=copy)
        assert path.read_bytes() == good
        assert not journal_of(path).exists()


def test_short_writes(pair: tuple[Path, Path, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    path, copy, good = pair
    _damage(path)
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, memoryview(data)[: 1 + len(data) // 2], at))
    repair(path, in_place=True, other=copy)
    assert path.read_bytes() == good


def test_the_journal_is_synced_before_the_pack_is_written_over(
    pair: tuple[Path, Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the recorded calls: journal synced, renamed, its folder synced; pack written, synced; journal removed."""
    path, copy, _ = pair
    _damage(path)
    calls = list(_recorded(path, copy, monkeypatch))
    journal = journal_of(path).name
    first_write = calls.index("pwrite a.gpack")
    assert calls.index("fsync journal") < calls.index(f"rename {journal}") < calls.index("fsync folder") < first_write
    last_write = len(calls) - 1 - calls[::-1].index("pwrite a.gpack")
    assert calls[last_write + 1 :] == ["fsync a.gpack", f"unlink {journal}", "fsync folder"]


def _recorded(path: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    made: list[str] = []
    real = {name: getattr(os, name) for name in ("pwrite", "fsync", "rename", "unlink")}

    def name_of(descriptor: int) -> str:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
        return "folder" if name == path.parent.name else name if name == path.name else "journal"

    def pwrite(descriptor: int, data: bytes, at: int) -> int:
        made.append(f"pwrite {name_of(descriptor)}")
        return int(real["pwrite"](descriptor, data, at))

    def fsync(descriptor: int) -> None:
        made.append(f"fsync {name_of(descriptor)}")
        real["fsync"](descriptor)

    def rename(old: str, new: str) -> None:
        made.append(f"rename {os.path.basename(new)}")
        real["rename"](old, new)

    def unlink(name: str, **named: object) -> None:
        made.append(f"unlink {os.path.basename(name)}")
        real["unlink"](name, **named)

    with monkeypatch.context() as patched:
        for name, call in (("pwrite", pwrite), ("fsync", fsync), ("rename", rename), ("unlink", unlink)):
            patched.setattr(os, name, call)
        repair(path, in_place=True, other=copy)
    yield from made


@pytest.mark.parametrize("quick", [True, False])
def test_the_next_command_finishes_a_repair(pair: tuple[Path, Path, bytes], quick: bool) -> None:
    path, _, good = pair
    start = place_of(path, "Data")
    _journal(path, [(start, b"new bytes")])
    command = [sys.executable, "-m", "gpack", "verify", *(["--quick"] if quick else ["--json"]), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "a repair that was interrupted was finished" in done.stderr
    assert path.read_bytes() == good[:start] + b"new bytes" + good[start + 9 :]
    assert not journal_of(path).exists()


def _journal(path: Path, patches: list[tuple[int, bytes]]) -> Path:
    with Target(path) as target:
        places = [(offset, len(data)) for offset, data in patches]
        write_journal(path, places, (Patch(*patch) for patch in patches), target.footer_digest, target.total_size)
    return journal_of(path)


@pytest.mark.parametrize("at", [0, 20, 90, -1])
def test_a_damaged_journal_changes_nothing(pair: tuple[Path, Path, bytes], at: int) -> None:
    path, _, good = pair
    journal = _journal(path, [(200, b"new bytes")])
    flip(journal, at % journal.stat().st_size)
    with pytest.raises(errors.DigestError) as caught:
        finish(path)
    assert caught.value.code == "repair.journal"
    assert path.read_bytes() == good


def test_a_journal_of_another_file_changes_nothing(pair: tuple[Path, Path, bytes]) -> None:
    path, copy, _ = pair
    _journal(path, [(200, b"new bytes")])
    copy.rename(path.with_name("kept"))
    other = sealed(path.with_name("b.gpack"), algorithm="sha256")
    os.replace(other, path)
    before = path.read_bytes()
    with pytest.raises(errors.DigestError):
        finish(path)
    assert path.read_bytes() == before


# ---------------------------------------------------------------- the commands


def test_commands(pair: tuple[Path, Path, bytes], capsys: pytest.CaptureFixture[str]) -> None:
    path, copy, good = pair
    start = place_of(path, "Data")
    assert main(["verify", str(path), "--against", str(copy)]) == 0
    flip(path, start)
    capsys.readouterr()
    assert main(["verify", str(path), "--against", str(copy), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["damages"] == [{"section": "Data", "offset": start, "length": MIB}]
    assert main(["verify", str(path), "--chunks", "--threads", "2"]) == 1
    assert "not the sections' SHA-256" in capsys.readouterr().out
    assert main(["repair", str(path), "--from", str(copy), "--in-place", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["ok"], said["bytes_read"]) == (True, MIB)
    assert path.read_bytes() == good
    assert verify(path).ok


@pytest.mark.parametrize(
    "arguments",
    [
        ["repair", "x.gpack"],
        ["repair", "x.gpack", "-o", "y.gpack", "--in-place"],
        ["verify", "x.gpack", "--quick", "--chunks"],
        ["verify", "x.gpack", "--chunks", "--threads", "0"],
        ["verify", "x.gpack", "--threads", "2"],
        ["verify", "x.gpack", "--against", "y.gpack", "--chunks"],
    ],
)
def test_wrong_usage(arguments: list[str]) -> None:
    assert main(arguments) == 2


def test_the_output_is_no_input(pair: tuple[Path, Path, bytes]) -> None:
    path, copy, _ = pair
    flip(path, place_of(path, "Data"))
    for output in (path, copy):
        with pytest.raises(errors.UsageError):
            repair(path, output, other=copy)


def test_a_pack_that_is_mended_by_another_program_is_left_alone(pair: tuple[Path, Path, bytes]) -> None:
    import fcntl

    path, copy, _ = pair
    _damage(path)
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(errors.PathError):
            repair(path, in_place=True, other=copy)
    finish(path)
    with Container.open(path, verify_all_hashes=True):
        pass
