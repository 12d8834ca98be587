"""`guild inspect --extract`: raw tokenizer files out of a pack."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpack.cli import main
from gpack.conformance.parts import Parts
from gpack.conformance.recipes.bases import ASSETS, everything, plain


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    path = tmp_path / "e.gpack"
    path.write_bytes(everything())
    return path


@pytest.mark.parametrize("name", ASSETS)
def test_every_file_comes_back(
    name: str, pack: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["inspect", str(pack), "--extract", name]) == 0
    assert capfdbinary.readouterr().out == ASSETS[name]
    out = tmp_path / "out"
    assert main(["inspect", str(pack), "--extract", name, "-o", str(out), "--json"]) == 0
    info = json.loads(capfdbinary.readouterr().out)
    assert info == {"ok": True, "name": name, "output": str(out), "size": len(ASSETS[name])}
    assert out.read_bytes() == ASSETS[name]


def test_inspect_lists_the_files(pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(pack), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["assets"] == [{"name": name, "bytes": len(ASSETS[name])} for name in sorted(ASSETS)]
    assert main(["inspect", str(pack)]) == 0
    assert "file beside the weights" in capsys.readouterr().out


def test_names_that_there_are_not(pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(pack), "--extract", "vocab.json"]) == 2
    info = capsys.readouterr().err
    assert "[pack.no_asset]" in info
    assert "tokenizer.json" in info  # what there is
    bare = tmp_path / "p.gpack"
    bare.write_bytes(plain())
    assert main(["inspect", str(bare), "--extract", "vocab.json"]) == 2
    assert "the pack has none" in capsys.readouterr().err


def test_a_name_that_is_a_path_writes_only_where_it_is_told(
    pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = Parts.parse(pack.read_bytes())
    data = parts.section(12).data
    place = bytes(data).index(b"tokenizer.json")
    data[place : place + 14] = b"../../evil.jsn"
    bad = tmp_path / "sub" / "bad.gpack"
    bad.parent.mkdir()
    bad.write_bytes(parts.seal())
    before = sorted(tmp_path.rglob("*"))
    main(["inspect", str(bad), "--extract", "../../evil.jsn"])
    assert sorted(tmp_path.rglob("*")) == before
    capsys.readouterr()


def test_outputs_that_are_refused(pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = pack.read_bytes()
    extract = ["inspect", str(pack), "--extract", "merges.txt"]
    assert main([*extract, "-o", str(pack)]) == 2
    assert pack.read_bytes() == data
    assert main([*extract, "-o", str(tmp_path / "no" / "out")]) == 3
    assert main([*extract, "--json"]) == 2
    assert main(["inspect", str(pack), "-o", str(tmp_path / "out")]) == 2
    assert os.listdir(tmp_path) == ["e.gpack"]
    capsys.readouterr()
