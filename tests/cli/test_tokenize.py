"""`guild tokenize` and `guild detokenize`: input from everywhere, output in every form, exit codes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from gguf_maker import TINY_CHAT_TEMPLATE, TINY_TOKENS, tiny_llama, tiny_tokenizer, vector, write_gguf

import gpack
from gpack.cli import main

# Two merges: "in", and "a" with the space before it.
IN, SPACE_A = TINY_TOKENS.index("in"), TINY_TOKENS.index("Ġa")
END = TINY_TOKENS.index("<|im_end|>")
START = TINY_TOKENS.index("<|im_start|>")


def byte(character: str) -> list[int]:
    """The ids of a text that no merge touches."""
    return [TINY_TOKENS.index({" ": "Ġ", "\n": "Ċ"}.get(letter, letter)) for letter in character]


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    metadata, tensors = tiny_llama()
    return write_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf", metadata, tensors)


@pytest.fixture(scope="module")
def pack(gguf: Path) -> Path:
    path = gguf.with_suffix(".gpack")
    gpack.convert_gguf(gguf, path)
    return path


@pytest.fixture(params=["gguf", "pack"])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


class Stdin(io.TextIOWrapper):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))


def info(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_the_argument(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenize", model, "in a"]) == 0
    assert capsys.readouterr().out == f"{IN} {SPACE_A}\n"


def test_a_file_and_standard_input(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_bytes(b"in\n")
    expected = f"{IN} {byte(chr(10))[0]}\n"
    assert main(["tokenize", model, "-f", str(tmp_path / "text")]) == 0
    assert capsys.readouterr().out == expected
    for more in ([], ["-f", "-"]):
        monkeypatch.setattr("sys.stdin", Stdin(b"in\n"))
        assert main(["tokenize", model, *more]) == 0
        assert capsys.readouterr().out == expected


def test_nothing_is_no_token(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenize", model, "", "--json"]) == 0
    assert info(capsys) == {"ok": True, "count": 0, "ids": [], "pieces": [], "bytes": []}


def test_options_may_stand_before_the_text(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenize", "--no-special", model, "--json", "in"]) == 0
    assert info(capsys)["ids"] == [IN]
    assert main(["tokenize", "--json", "--", model, "-x"]) == 0
    assert info(capsys)["ids"] == byte("-x")


def test_pieces(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenize", model, "in é\n", "--pieces"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        [str(IN), "in"],
        [str(TINY_TOKENS.index("Ġ"))],
        [str(TINY_TOKENS.index("Ã")), "\\xc3"],
        [str(TINY_TOKENS.index("©")), "\\xa9"],
        [str(TINY_TOKENS.index("Ċ")), "\\n"],
    ]


def test_json_has_the_bytes(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenize", model, "iné", "--json"]) == 0
    assert info(capsys)["bytes"] == ["696e", "c3", "a9"]


def test_control_tokens_are_parsed_when_asked_for(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenize", model, "in<|im_end|>", "--parse-special"]) == 0
    assert capsys.readouterr().out == f"{IN} {END}\n"
    assert main(["tokenize", model, "in<|im_end|>"]) == 0
    assert END not in map(int, capsys.readouterr().out.split())


def test_first_and_last_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [entry for entry in tiny_tokenizer() if entry[0] != "tokenizer.ggml.add_bos_token"]
    entries += [("general.architecture", "str", "llama"), ("tokenizer.ggml.add_bos_token", "bool", True)]
    path = str(write_gguf(tmp_path / "bos.gguf", entries))
    bos = TINY_TOKENS.index("<|endoftext|>")
    assert main(["tokenize", path, "in"]) == 0
    assert capsys.readouterr().out == f"{bos} {IN}\n"
    assert main(["tokenize", path, "in", "--no-special"]) == 0
    assert capsys.readouterr().out == f"{IN}\n"


def test_chat(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "assistant" in TINY_CHAT_TEMPLATE
    assert main(["tokenize", model, "--chat", "in<|im_end|>", "--json"]) == 0
    found = info(capsys)
    assert "".join(found["pieces"]) == ("<|im_start|>user\nin<|im_end|><|im_end|>\n<|im_start|>assistant\n")
    assert [token for token in found["ids"] if token in (START, END)] == [START, END, START]
    messages = json.dumps([{"role": "user", "content": "in"}, {"role": "assistant", "content": "<|im_start|>"}])
    assert main(["tokenize", model, "--messages", messages, "--json"]) == 0
    assert [token for token in info(capsys)["ids"] if token in (START, END)] == [START, END] * 2 + [START]


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (["tokenize", "MODEL", "a", "-f", "b"], 2, "usage"),
        (["tokenize", "MODEL", "-f", "no such file"], 3, "io.not_found"),
        (["tokenize", "no such model", "a"], 3, "io.not_found"),
        (["tokenize", "MODEL", "a\udcff"], 1, "tokenizer.utf8"),
        (["tokenize", "MODEL", "--chat", "a", "--parse-special"], 2, "usage"),
        (["tokenize", "MODEL", "--messages", "{"], 2, "chat.input"),
        (["tokenize", "MODEL", "--messages", "[1]"], 2, "chat.input"),
        (["tokenize", "MODEL", "--messages", "[" * 100_000], 2, "chat.input"),
        (["detokenize", "MODEL", "1", "-f", "b"], 2, "usage"),
        (["detokenize", "MODEL", "x"], 2, "usage"),
        (["detokenize", "MODEL", "1.5"], 2, "usage"),
        (["detokenize", "MODEL", "--", "-1"], 2, "usage"),
        (["detokenize", "MODEL", "٣"], 2, "usage"),
        (["detokenize", "MODEL", "9" * 5000], 2, "usage"),
        (["detokenize", "MODEL", "272"], 2, "tokenizer.no_token"),
        (["detokenize", "MODEL", "4294967296"], 2, "tokenizer.no_token"),
    ],
)
def test_errors(arguments: list[str], status: int, code: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = [model if argument == "MODEL" else argument for argument in arguments]
    assert main([line[0], "--json", *line[1:]]) == status
    assert info(capsys)["error"]["code"] == code


def test_bad_utf_8_tells_the_place(
    gguf: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Stdin(b"in \xff"))
    assert main(["tokenize", str(gguf), "--json"]) == 1
    error = info(capsys)["error"]
    assert (error["code"], error["offset"]) == ("tokenizer.utf8", 3)


@pytest.mark.parametrize("command", [["tokenize", "--json", "MODEL", "a"], ["detokenize", "--json", "MODEL", "1"]])
def test_no_tokenizer(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_gguf(tmp_path / "none.gguf", [("general.architecture", "str", "llama")], [vector("w.weight")])
    gpack.convert_gguf(path, tmp_path / "none.gpack", name="none")
    for each in (path, tmp_path / "none.gpack"):
        assert main([str(each) if part == "MODEL" else part for part in command]) == 2
        assert info(capsys)["error"]["code"] == "tokenizer.none"


def test_no_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [entry for entry in tiny_tokenizer() if entry[0] != "tokenizer.chat_template"]
    path = write_gguf(tmp_path / "plain.gguf", [("general.architecture", "str", "llama"), *entries])
    assert main(["tokenize", str(path), "--chat", "a", "--json"]) == 2
    assert info(capsys)["error"]["code"] == "chat.no_template"


# ------------------------------------------------------------ detokenize


def test_ids_from_everywhere(
    model: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["detokenize", model, str(IN), str(SPACE_A)]) == 0
    assert capsysbinary.readouterr().out == b"in a"
    (tmp_path / "ids").write_text(f"[{IN},\n {SPACE_A}]\n")
    assert main(["detokenize", model, "-f", str(tmp_path / "ids")]) == 0
    assert capsysbinary.readouterr().out == b"in a"
    monkeypatch.setattr("sys.stdin", Stdin(f"{IN}\n{END}\n".encode()))
    assert main(["detokenize", model]) == 0
    assert capsysbinary.readouterr().out == b"in<|im_end|>"
    assert main(["detokenize", model, str(IN), str(END), "--skip-special"]) == 0
    assert capsysbinary.readouterr().out == b"in"


def test_bytes_come_out_as_they_are(model: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["detokenize", model, str(TINY_TOKENS.index("Ã"))]) == 0
    assert capsysbinary.readouterr().out == b"\xc3"
    assert main(["detokenize", model, str(TINY_TOKENS.index("Ã")), "--json"]) == 0
    assert json.loads(capsysbinary.readouterr().out) == {"ok": True, "count": 1, "text": "\ufffd", "bytes": "c3"}


def test_there_and_back(
    model: str, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "Thé the\r\n\t 😀 <|im_start|> \x00 end".encode()
    monkeypatch.setattr("sys.stdin", Stdin(text))
    assert main(["tokenize", model]) == 0
    ids = capsysbinary.readouterr().out
    monkeypatch.setattr("sys.stdin", Stdin(ids))
    assert main(["detokenize", model]) == 0
    assert capsysbinary.readouterr().out == text
