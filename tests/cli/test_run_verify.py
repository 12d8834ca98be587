"""`guild run --verify`: nothing runs that a full verify refuses."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from convert.packs import Parts
from gguf_maker import tiny_llama, write_gguf

import gpack
from gpack.cli import main
from gpack.convert.gguf import convert_gguf
from gpack.generated.constants import SectionKind
from gpack.sections import verify as verify_module

OPTIONS = ["-p", "hello", "--raw", "-n", "1", "--temp", "0", "--threads", "1"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("numba")
    folder = tmp_path_factory.mktemp("sound")
    metadata, tensors = tiny_llama(layers=1)
    convert_gguf(write_gguf(folder / "m.gguf", metadata, tensors), folder / "m.gpack")
    return folder / "m.gpack"


@pytest.fixture
def damaged(sound: Path, tmp_path: Path) -> Path:
    """One bit of a weight is another one; all that is checked when a model is loaded is as it was."""
    path = tmp_path / "damaged.gpack"
    data = bytearray(sound.read_bytes())
    entry = Parts(sound).entries[SectionKind.NATIVE_DENSE_BLOB]
    data[entry.offset + 5] ^= 1
    path.write_bytes(data)
    return path


def test_a_sound_pack_runs(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(sound), *OPTIONS]) == 0
    plain = capsys.readouterr().out
    assert main(["run", str(sound), *OPTIONS, "--verify"]) == 0
    assert capsys.readouterr().out == plain


def test_a_damaged_weight(damaged: Path, sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(damaged), *OPTIONS]) == 0  # nothing looks at the bytes of weights
    capsys.readouterr()
    assert main(["run", str(damaged), *OPTIONS, "--verify"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.endswith("[section.sha256]\n")
    assert main(["run", str(damaged), *OPTIONS, "--verify", "--gguf", str(sound.with_suffix(".gguf"))]) == 0
    assert "section.sha256" in capsys.readouterr().err


def test_a_gguf_has_no_digests(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(sound.with_suffix(".gguf")), *OPTIONS, "--verify"]) == 2
    assert "a GGUF has no digests" in capsys.readouterr().err


def test_a_file_that_is_exchanged_after_the_check(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, other = tmp_path / "m.gpack", tmp_path / "other.gpack"
    shutil.copy(sound, path)
    metadata, tensors = tiny_llama(layers=1, seed=2)
    convert_gguf(write_gguf(tmp_path / "other.gguf", metadata, tensors), other)
    real = gpack.verify

    def verify(*args: Any, **named: Any) -> Any:
        found = real(*args, **named)
        other.replace(path)
        return found

    monkeypatch.setattr(verify_module, "verify", verify)
    assert main(["run", str(path), *OPTIONS, "--verify"]) == 1
    assert capsys.readouterr().err.endswith("[pack.changed]\n")
