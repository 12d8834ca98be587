"""Kernels are compiled once, kept, and loaded only where they are what was kept."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("llvmlite", reason="numba is not installed")

from gpack.engine.backends.cpu import store
from gpack.engine.backends.cpu.kernels.program_layout import STOPPED_AT, SYNC_WORDS
from gpack.engine.backends.cpu.store import Kernels
from gpack.engine.backends.cpu.variants import VARIANTS, usable


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setattr(store, "_folder", lambda: tmp_path)
    return tmp_path


def run_empty(kernels: Kernels) -> int:
    """Runs a program of no steps; where it stopped is what the kernel wrote."""
    sync = np.full(SYNC_WORDS, -1, np.int64)
    arguments = np.array([sync.ctypes.data, 7, 7, sync.ctypes.data], np.int64)
    kernels.function("execute")(arguments.ctypes.data, 0, 1)
    return int(sync[STOPPED_AT])


def test_compiles_once(folder: Path) -> None:
    first, second = Kernels(), Kernels()
    assert run_empty(first) == 7
    assert first.compiled == ["execute"]
    assert run_empty(second) == 7
    assert second.compiled == []
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600]


@pytest.mark.parametrize("fault", ["flipped", "cut", "empty", "gone"])
def test_damaged_code_is_compiled_again(folder: Path, fault: str) -> None:
    Kernels().address("execute")
    (path,) = folder.iterdir()
    data = bytearray(path.read_bytes())
    if fault == "flipped":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    elif fault == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:100] if fault == "cut" else b"")
    again = Kernels()
    assert run_empty(again) == 7
    assert again.compiled == ["execute"]


def test_code_that_others_may_write_is_not_run(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    Kernels().address("execute")
    (path,) = folder.iterdir()
    path.chmod(0o622)
    again = Kernels()
    assert run_empty(again) == 7
    assert again.compiled == ["execute"]
    assert "others may write here" in caplog.text


def test_other_sources_are_other_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Kernels().address("execute")
    monkeypatch.setattr(store, "_sources", lambda _module: "changed")
    again = Kernels()
    again.address("execute")
    assert again.compiled == ["execute"]
    assert len(list(folder.iterdir())) == 2


def test_a_cache_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file is where its folder should be: root may write into any folder."""
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(store, "_folder", lambda: tmp_path / "file" / "kernels")
    for _ in range(2):
        kernels = Kernels()
        assert run_empty(kernels) == 7
        assert kernels.compiled == ["execute"]
    assert caplog.text.count("machine code is not kept") == 1
    assert "Not a directory" in caplog.text


def test_a_disk_that_is_full(folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", refuse)
    assert run_empty(Kernels()) == 7
    assert list(folder.iterdir()) == []
    assert "No space left on device" in caplog.text


def test_without_a_home_nothing_is_kept_and_no_folder_is_made(tmp_path: Path) -> None:
    """A user whom the system does not know, as containers have them."""
    code = (
        "import logging, os, pwd\n"
        "pwd.getpwuid = lambda _: (_ for _ in ()).throw(KeyError())\n"
        "assert os.path.expanduser('~/x') == '~/x'\n"
        "logging.basicConfig(format='%(message)s')\n"
        "from gpack.engine.backends.cpu.store import Kernels\n"
        "[Kernels().address('execute') for _ in range(2)]\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")}
    for given in ({}, {"XDG_CACHE_HOME": "caches"}):  # a relative path is none
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=environment | given,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr.splitlines() == [
            "there is no home folder: machine code is not kept, and is made again next time"
        ]
        assert list(tmp_path.iterdir()) == []


def test_warm_start_needs_no_numba(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom gpack.engine.backends.cpu.store import Kernels\nKernels().address('execute')\n"
        "print('numba' in sys.modules)"
    )
    answers = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for _ in range(2)
    ]
    assert answers == ["True", "False"]


@pytest.mark.parametrize("name", list(VARIANTS))
def test_every_variant_runs(name: str) -> None:
    if VARIANTS[name] not in usable():
        pytest.skip(f"this CPU cannot run {name}")
    assert run_empty(Kernels(name)) == 7
