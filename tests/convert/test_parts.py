"""Packs in parts: plain ranges of bytes, put together byte for byte; and everything that can be missing."""

from __future__ import annotations

import errno
import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from gguf_maker import tiny_llama, write_gguf

import gpack
from gpack.cli import main
from gpack.container.reader import Container
from gpack.convert.gguf import convert_gguf
from gpack.convert.parts import PartName, join, split
from gpack.errors import GpackError


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    convert_gguf(write_gguf(tmp_path / "m.gguf", *tiny_llama(layers=1)), tmp_path / "m.gpack")
    return tmp_path / "m.gpack"


@pytest.fixture(params=["by the kernel", "across file systems", "where the kernel cannot"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(errno.EXDEV if "across" in request.param else errno.ENOSYS, "no")

    if request.param != "by the kernel":
        monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("size", [4096, 12_345])
def test_parts_are_ranges_and_make_the_pack_again(pack: Path, size: int) -> None:
    data = pack.read_bytes()
    parts = [part.path for part in split(pack, size)]
    count = -(-len(data) // size)
    assert [part.name for part in parts] == [f"m.gpack.part-{n:05}-of-{count:05}" for n in range(1, count + 1)]
    assert [part.read_bytes() for part in parts] == [data[at : at + size] for at in range(0, len(data), size)]
    pack.unlink()
    done = join(parts[-1])
    assert (done.path, done.size) == (pack, len(data))
    with Container.open(pack) as whole:  # the identity is the digest of the manifest's bytes
        manifest = data[whole.header.manifest_offset :][: whole.header.manifest_size]
    assert done.manifest_sha256 == sha256(manifest).hexdigest()
    assert pack.read_bytes() == data
    assert gpack.verify(pack).report.ok


def test_the_commands(pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "parts").mkdir()
    assert main(["split", str(pack), "--size", "16K", "-o", str(tmp_path / "parts"), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)["parts"]
    assert sum(part["size"] for part in made) == pack.stat().st_size
    assert main(["join", made[1]["file"], "-o", str(tmp_path / "again.gpack")]) == 0
    assert str(tmp_path / "again.gpack") in capsys.readouterr().out
    assert (tmp_path / "again.gpack").read_bytes() == pack.read_bytes()


@pytest.mark.parametrize("command", ["verify", "inspect", "run", "tokenize", "diff", "export", "seal", "convert"])
def test_every_command_that_meets_a_part_names_it(pack: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    more = {
        "diff": [str(pack)],
        "export": ["-o", str(pack.with_suffix(".gguf"))],
        "seal": ["-o", str(pack.with_name("n.gpack"))],
        "convert": ["-o", str(pack.with_name("n.gpack"))],
        "tokenize": ["a"],
        "run": ["-p", "a"],
    }.get(command, [])
    for part in [part.path for part in split(pack, 20_000)[:2]]:
        assert main([command, str(part), *more]) != 0
        out, err = capsys.readouterr()
        assert f"guild join {part.name}" in out + err, (command, out, err)


def test_what_is_missing_or_cut(pack: Path, tmp_path: Path) -> None:
    parts = [part.path for part in split(pack, 10_000)]
    pack.unlink()
    before = {path.name for path in tmp_path.iterdir()}

    def code(part: Path) -> str:
        with pytest.raises(GpackError) as caught:
            join(part)
        return caught.value.code

    data = parts[1].read_bytes()
    parts[1].write_bytes(data[:-1])
    assert code(parts[0]) == "split.size"
    parts[1].write_bytes(data)
    last = parts[-1].read_bytes()
    for wrong in (b"", last + bytes(10_000)):
        parts[-1].write_bytes(wrong)
        assert code(parts[0]) == "split.size"
    parts[-1].write_bytes(last[:-1])  # no part's size tells, but the pack's own does
    assert code(parts[0]) != "split.size"
    parts[-1].write_bytes(last)
    first = parts[0].read_bytes()
    parts[0].write_bytes(b"x" + first[1:])
    assert code(parts[0]) == "header.magic"
    parts[0].write_bytes(first)
    assert {path.name for path in tmp_path.iterdir()} == before  # nothing was written, nothing is left
    parts[2].unlink()
    assert code(parts[0]) == "split.missing"
    assert code(tmp_path / "m.gguf") == "usage"


@pytest.mark.parametrize("size", [0, -1, 1000, 1 << 40])
def test_sizes_that_make_no_sense(pack: Path, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpack.convert.parts.MOST", 3)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(GpackError) as caught:
        split(pack, size)
    assert caught.value.code == "usage"
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("m.gpack.part-00002-of-00003", PartName("m.gpack", 2, 3)),
        ("/a/b.gpack.part-00001-of-00001", PartName("b.gpack", 1, 1)),
        ("m.gpack.part-00004-of-00003", None),
        ("m.gpack.part-00000-of-00003", None),
        ("m.gpack.part-2-of-3", None),
        ("m.gpack", None),
    ],
)
def test_names_of_parts(name: str, found: PartName | None) -> None:
    assert PartName.of(name) == found
    assert found is None or str(found) == os.path.basename(name)
