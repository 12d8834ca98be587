"""The words that people try: other programs' options and commands, misspelt ones, a prompt without an option."""

from __future__ import annotations

import argparse
import io
import json
import shutil
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gguf_maker import tiny_llama, write_gguf

from gpack.cli import COMMANDS, main
from gpack.cli import run as run_command
from gpack.cli.words import ALIASES, Parser
from gpack.convert.gguf import convert_gguf
from gpack.errors import UsageError


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    convert_gguf(write_gguf(folder / "m.gguf", *tiny_llama(layers=1)), folder / "m.gpack")
    return folder / "m.gpack"


def parser_of(command: str) -> Parser:
    made = Parser(prog=f"guild {command}")
    import_module(f"gpack.cli.{command.replace('-', '_')}").add_arguments(made)
    return made


def parsed(line: list[str]) -> argparse.Namespace:
    """What `guild run` makes of its words."""
    args = parser_of("run").parse(line)
    run_command._take_words(args)
    return args


def hint_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words, "--json"]) == 2
    error: dict[str, Any] = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "usage"
    return str(error["hint"])


@pytest.mark.parametrize(
    ("line", "model", "prompt"),
    [
        (["m.gpack", "Why?"], "m.gpack", "Why?"),
        (["--temp", "0", "m.gpack", "Why?"], "m.gpack", "Why?"),
        (["m.gpack", "--temp", "0", "Why?"], "m.gpack", "Why?"),
        (["-m", "m.gpack", "Why?"], "m.gpack", "Why?"),
        (["--model", "m.gpack", "-p", "Why?"], "m.gpack", "Why?"),
        (["m.gpack", "-p", "Why?"], "m.gpack", "Why?"),
        (["m.gpack"], "m.gpack", None),
        (["m.gpack", "--", "-5 degrees?"], "m.gpack", "-5 degrees?"),
    ],
)
def test_model_and_prompt(line: list[str], model: str, prompt: str | None) -> None:
    args = parsed(line)
    assert (args.model, args.prompt) == (model, prompt)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ([], "no model is named"),
        (["-p", "Why?"], "no model is named"),
        (["m.gpack", "Why", "is"], "the words 'is' are too many"),
        (["-m", "m.gpack", "Why", "is"], "the words 'is' are too many"),
        (["m.gpack", "Why?", "-p", "Why?"], "the words 'Why?' are too many"),
    ],
)
def test_words_too_few_or_too_many(line: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("?", r"\?")):
        parsed(line)


@pytest.mark.parametrize(
    ("option", "name", "value"),
    [
        ("--temperature=0.5", "temp", 0.5),
        ("--n-predict=7", "max_tokens", 7),
        ("--predict=7", "max_tokens", 7),
        ("-c=512", "ctx", 512),
        ("--ctx-size=512", "ctx", 512),
        ("-t=3", "threads", 3),
        ("-s=5", "seed", 5),
        ("--system-prompt=You", "system", "You"),
    ],
)
def test_options_by_the_names_that_llama_cpp_has(option: str, name: str, value: object) -> None:
    assert getattr(parsed(["m.gpack", *option.split("=")]), name) == value


def test_layers_for_a_gpu_change_nothing_and_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    parsed(["m.gpack", "-ngl", "99"])
    assert capsys.readouterr().err == "guild: note: -ngl has no effect: --device says where the model runs\n"
    parsed(["m.gpack", "-ngl", "0"])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("vrify x", "did you mean `guild verify`?"),
        ("chat x", "did you mean `guild run`?"),
        ("info x", "did you mean `guild inspect`?"),
        ("quantize x", "did you mean `guild convert --quantize`?"),
        ("hlep", "did you mean `guild help`?"),
        ("run m.gpack --temprature 0", "did you mean --temperature?"),
        ("run m.gpack --sytem x", "did you mean --system?"),
        ("convert m.gguf -o o --quantise=Q8_0", "did you mean --quantize?"),
        ("inspect m.gpack --tensor-s", "did you mean --tensors?"),
    ],
)
def test_what_was_meant(capsys: pytest.CaptureFixture[str], line: str, meant: str) -> None:
    assert meant in hint_of(capsys, *line.split())


def test_nothing_is_guessed_where_nothing_is_like_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean" not in hint_of(capsys, "xyzzy")
    assert "did you mean" not in hint_of(capsys, "verify", "m.gpack", "--zzzzzzzz")


def test_aliases_name_commands_that_there_are() -> None:
    assert {command.split()[0] for command in ALIASES.values()} <= set(COMMANDS)
    assert not set(ALIASES) & set(COMMANDS)


@pytest.mark.parametrize("line", [["help"], ["--help"], ["-h"]])
def test_help(capsys: pytest.CaptureFixture[str], line: list[str]) -> None:
    assert main(line) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {command} " in text for command in COMMANDS)


def test_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "verify"]) == 0
    assert capsys.readouterr().out.startswith("usage: guild verify ")
    assert "did you mean `guild verify`?" in hint_of(capsys, "help", "verfy")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_default_stands_in_the_help(command: str) -> None:
    for action in parser_of(command)._actions:
        if action.default in (None, False, [], argparse.SUPPRESS) or not action.option_strings:
            continue
        assert "default" in str(action.help), f"guild {command} {action.option_strings[0]}: {action.default!r}"


# ---------------------------------------------------------------- outputs


@pytest.mark.parametrize(
    "line",
    [
        "convert m.gguf -o -",
        "export m.gpack -o -",
        "seal m.gpack -o -",
        "repair m.gpack --from x -o -",
        "pack-experts m.gpack -o -",
        "convert m.gguf -o new.gguf",
        "convert m.gguf -o new.SafeTensors",
        "export m.gpack -o new.gpack",
        "seal m.gpack -o new.gguf",
    ],
)
def test_outputs_are_files_of_the_format_that_they_are_named_after(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    hint_of(capsys, *line.split())
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- many files


@pytest.fixture
def three(pack: Path, tmp_path: Path) -> list[Path]:
    """A sound pack, one with a byte that is wrong, one that is not there."""
    good, bad = tmp_path / "good.gpack", tmp_path / "bad.gpack"
    shutil.copy(pack, good)
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    bad.write_bytes(data)
    return [good, bad, tmp_path / "absent.gpack"]


def test_verify_takes_many_files(three: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    good, bad, absent = map(str, three)
    assert main(["verify", good, good]) == 0
    assert capsys.readouterr().out.endswith("2 of 2 files are sound\n")
    assert main(["verify", absent, good, bad]) == 3  # as the first that is not sound alone
    out, err = capsys.readouterr()
    assert f"{good}: OK" in out
    assert f"{bad}: INVALID" in out
    assert out.endswith("1 of 3 files are sound\n")
    assert "[io.not_found]" in err
    assert main(["verify", "--json", good, bad, absent]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], [each["ok"] for each in found["files"]]) == (False, [True, False, False])
    assert found["files"][2]["error"]["code"] == "io.not_found"
    assert main(["verify", "--quick", good, bad]) == 0  # whose weights are not read
    capsys.readouterr()
    assert main(["verify", good, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["file"] == good


def test_verify_takes_names_from_standard_input(
    three: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def given(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data), isatty=lambda: False))

    given(f"{three[0]}\n\n{three[1]}\n".encode())
    assert main(["verify", "-"]) == 1
    assert capsys.readouterr().out.endswith("1 of 2 files are sound\n")
    given(b"\n")
    assert "one name on each line" in hint_of(capsys, "verify", "-")
