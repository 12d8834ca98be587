"""`guild run`: prompts from everywhere, what comes out and where, a conversation on a terminal, Ctrl-C."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import select
import signal
import stat
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from gguf_maker import tiny_llama, write_gguf
from markov import END, Model, Rule, Session, ids_of, script
from processes import running

import gpack
from gpack.cli import main, speaking
from gpack.model import GuildModel
from gpack.tokenizer.chat import ChatTemplate

TESTS = Path(__file__).parents[1]
TIMEOUT = 60  # seconds; slow machines
SILENCE = 10  # seconds


class Stdin(io.TextIOWrapper):
    def __init__(self, data: bytes, *, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(data))
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Model:
    """What `guild run made-up.gpack` loads; it says "hello there"."""
    return loaded(monkeypatch, tmp_path, script(ids_of("hello there")))


def loaded(monkeypatch: pytest.MonkeyPatch, folder: Path, rule: Rule, **options: Any) -> Model:
    made = Model(rule, **options)
    monkeypatch.chdir(folder)
    (folder / "made-up.gpack").write_bytes(b"made up")
    monkeypatch.setattr(GuildModel, "load", lambda *_, **__: made)
    return made


def prompt_of(model: Model) -> str:
    """The first prompt that the model got, special tokens written out."""
    return model.tokenizer.decode(model.sessions[0].decoded[0])


def run(*arguments: str) -> int:
    return main(["run", "made-up.gpack", *arguments])


# ---------------------------------------------------------------- prompts


def test_the_prompt_is_what_a_user_says(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-p", "Hi<|im_end|>") == 0
    assert capsys.readouterr() == ("hello there\n", "")
    assert prompt_of(model) == "<|im_start|>user\nHi<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    assert model.sessions[0].decoded[0].count(END) == 1  # the template's alone
    assert model.sessions[0].closed == 1


def test_a_system_speaks_first(model: Model) -> None:
    assert run("-p", "Hi", "--system", "Be brief") == 0
    assert prompt_of(model).startswith("<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nHi")


def test_bare_text(model: Model) -> None:
    assert run("-p", "Hi<|im_end|>", "--raw") == 0
    assert prompt_of(model) == "Hi<|im_end|>"
    assert model.sessions[0].decoded[0][-1] == END  # who writes the whole prompt writes control tokens too


def test_a_model_without_a_template_goes_on_with_the_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = loaded(monkeypatch, tmp_path, script(ids_of("x")), template=False)
    model.tokenizer.view.chat_template = memoryview(b"")
    assert run("-p", "Hi") == 0
    assert prompt_of(model) == "Hi"
    assert run("-p", "Hi", "--system", "Be brief") == 2
    assert run("-p", "Hi", "--template-var", "a=1") == 2


def test_variables_of_the_template(model: Model) -> None:
    model.chat_template = ChatTemplate("{{ messages[0].content }} {{ thinking is false }} {{ names[1] }} {{ count }}")
    variables = ("thinking=false", 'names=["a", "b=c"]', "count=3")
    assert run("-p", "Hi", *(word for text in variables for word in ("--template-var", text))) == 0
    assert prompt_of(model) == "Hi True b=c 3"


def test_nothing_to_say(model: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Empty input is mostly a mistake, and no question: nothing is loaded for it."""
    monkeypatch.setattr("sys.stdin", Stdin(b"\n"))
    assert run() == 2
    assert "the prompt is empty" in capsys.readouterr().err
    assert model.sessions == []


def test_messages(model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    (tmp_path / "m.json").write_text(json.dumps(messages))
    assert run("--messages", "-f", "m.json") == 0
    assert prompt_of(model).count("<|im_end|>") == 3
    assert run("--messages", "-p", "no JSON") == 2
    assert "[chat.input]" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["-f", "-"], ["-f", "text"]])
def test_a_file_and_standard_input(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    (tmp_path / "text").write_bytes("Grüße\n".encode())
    monkeypatch.setattr("sys.stdin", Stdin("Grüße\n".encode()))
    assert run(*options) == 0
    assert "user\nGrüße<|im_end|>" in prompt_of(model)  # without the file's last line feed
    monkeypatch.setattr("sys.stdin", Stdin("Grüße\n".encode()))
    assert run(*options, "--raw") == 0
    assert model.tokenizer.decode(model.sessions[1].decoded[0]) == "Grüße\n"


def test_text_that_is_no_utf_8(
    model: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Stdin(b"\xff"))
    assert run() == 1
    assert "[tokenizer.utf8]" in capsys.readouterr().err
    assert model.sessions == []  # before anything was loaded


# ---------------------------------------------------------------- options


def test_options_reach_the_engine(model: Model) -> None:
    options = ("--threads", "3", "--ctx", "99", "--cache-type", "q8_0", "--compute", "f32", "--cpu", "avx2")
    assert run("-p", "x", *options, "--check-weights") == 0
    assert model.options == [
        {
            "n_ctx": 99,
            "threads": 3,
            "cache_type": "Q8_0",
            "compute": "f32",
            "cpu": "avx2",
            "device": "cpu",
            "check_weights": True,
        }
    ]


def test_a_context_that_is_full_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded(monkeypatch, tmp_path, lambda _: {65: 1.0}, n_ctx=40)
    assert run("-p", "x") == 0
    out, err = capsys.readouterr()
    assert set(out) == {"A", "\n"}
    assert err == "(the context of 40 tokens is full; --ctx makes it larger)\n"
    assert run("-p", "x", "--json") == 0
    out, err = capsys.readouterr()
    assert (json.loads(out)["finish_reason"], err) == ("context", "")


def test_what_does_not_reach_the_model_is_warned_of(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    """The template prints what users say, and nothing else; a warning comes once."""
    model.chat_template = ChatTemplate(
        "{% for m in messages if m.role == 'user' %}{{ m.content }}{{ mood }}{% endfor %}"
    )
    assert run("-p", "Hi", "--system", "Be brief.\nVery.", "--template-var", "mood=1", "--template-var", "odd=1") == 0
    assert capsys.readouterr().err == (
        "guild: warning: the chat template leaves the system text out: the model does not see it\n"
        "guild: warning: the chat template knows no odd: --template-var odd=... changes nothing\n"
    )
    model.chat_template = ChatTemplate("{{ messages[0].content }}{{ messages[1].content }}")
    assert run("-p", "Hi", "--system", "  Be brief. ") == 0
    assert capsys.readouterr().err == ""


def test_edges_that_stand_twice_are_warned_of(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    model.chat_template = ChatTemplate("{{ messages[0].content }}<|im_end|><|im_end|>")
    assert run("-p", "Hi") == 0
    assert "the last token <|im_end|> stands twice" in capsys.readouterr().err


def test_where_the_text_ends(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    for options, text in {
        ("-n", "2"): "hell",
        ("--stop", "there"): "hello ",
        ("--stop", "z", "--stop", "l"): "he",
    }.items():
        assert run("-p", "x", *options) == 0
        assert capsys.readouterr().out == text + "\n"


def test_the_same_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded(monkeypatch, tmp_path, lambda _: {65: 0.3, 66: 0.3, 67: 0.4})
    texts = []
    for seed in ("1", "1", "2"):
        assert run("-p", "x", "--seed", seed, "-n", "40") == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    assert run("-p", "x", "--temp", "0", "-n", "4") == 0
    assert capsys.readouterr().out == "CCCC\n"  # the most probable


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["-p", "x", "-f", "y"], "usage"),
        (["-p", "x", "--raw", "--system", "y"], "usage"),
        (["-p", "x", "--raw", "--messages"], "usage"),
        (["-p", "x", "--threads", "0"], "usage"),
        (["-p", "x", "--ctx", "-1"], "usage"),
        (["-p", "x", "-n", "-1"], "usage"),
        (["-p", "x", "--temp", "-1"], "engine.sampling"),
        (["-p", "x", "--top-p", "0"], "engine.sampling"),
        (["-p", "x", "--expert-budget", "many"], "usage"),
        (["-p", "x", "--io", "fast"], "usage"),
        (["-p", "x", "--cache-type", "F8"], "usage"),
        (["-p", "", "--raw"], "engine.prompt"),
        (["-p", "x" * 600], "engine.context"),
        (["-p", "x", "--stop", ""], "usage"),
        (["-p", ""], "engine.prompt"),
        (["-p", "x", "--raw", "--template-var", "a=1"], "usage"),
        (["-p", "x", "--template-var", "a"], "usage"),
        (["-p", "x", "--template-var", "a=False"], "usage"),
        (["-p", "x", "--template-var", "now=1"], "usage"),
        (["-p", "x", "--template-var", "a b=1"], "usage"),
    ],
)
def test_what_makes_no_sense(model: Model, capsys: pytest.CaptureFixture[str], options: list[str], code: str) -> None:
    assert run(*options) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.endswith(f"[{code}]\n")
    assert run(*options, "--json") == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code


@pytest.mark.parametrize("name", ["folder", "model.safetensors"])
def test_what_has_to_be_converted_first(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (tmp_path / "folder").mkdir()
    assert main(["run", str(tmp_path / name), "-p", "x"]) == 2
    assert "guild convert FOLDER -o model.gpack" in capsys.readouterr().err


@pytest.mark.parametrize("io", [None, "auto", "mmap", "read", "direct"])
def test_how_weights_come(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, io: str | None) -> None:
    made, asked = loaded(monkeypatch, tmp_path, script(ids_of("a"))), []

    def load(*_: Any, io: str, **__: Any) -> Model:
        asked.append(io)
        return made

    monkeypatch.setattr(GuildModel, "load", load)
    assert run("-p", "x", *([] if io is None else ["--io", io])) == 0
    assert asked == [io or "auto"]


@pytest.mark.parametrize(
    ("text", "expected"), [("0", 0), ("4096", 4096), ("4k", 4096), ("3GiB", 3 << 30), ("2m", 2 << 20)]
)
def test_a_budget(text: str, expected: int) -> None:
    from gpack.cli.loading import number_of_bytes

    assert number_of_bytes(text) == expected


def test_what_json_needs_and_is_needed_for(
    model: Model, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("-p", "x", "--logprobs", "2") == 2
    assert "--logprobs needs --json" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", Stdin(b"", terminal=True))
    assert run("--json") == 2  # a conversation is no object
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "usage"
    assert model.sessions == []


# ---------------------------------------------------------------- output


def test_json(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-p", "Hi", "--json", "--logprobs", "2", "--seed", "9") == 0
    out, err = capsys.readouterr()
    info = json.loads(out)
    assert err == ""
    assert info["ok"] is True
    assert info["text"] == "hello there"
    assert info["ids"] == ids_of("hello there")
    assert (info["finish_reason"], info["ended_by"], info["seed"]) == ("eos", "<|im_end|>", 9)
    assert info["prompt_tokens"] == len(model.sessions[0].decoded[0])
    assert info["fallback"] is None
    first = info["logprobs"][0]
    assert (first["text"], first["logprob"], first["top"]) == ("he", 0.0, [{"token": info["ids"][0], "logprob": 0.0}])
    assert len(info["logprobs"]) == len(info["ids"])
    assert {"load_seconds", "prompt_rate", "decode_rate", "first_token_seconds", "peak_memory_bytes"} <= set(
        info["statistics"]
    )


def test_json_of_an_answer_that_is_stopped(
    model: Model, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What there is of it, at any moment from the prompt on."""
    begin = Session.decode

    def stop_at(count: int) -> None:
        def decode(self: Session, ids: Sequence[int]) -> Any:
            if len(self.decoded) == count:
                raise KeyboardInterrupt
            return begin(self, ids)

        monkeypatch.setattr(Session, "decode", decode)

    for count, text in ((0, ""), (1, "he"), (3, "hello")):
        stop_at(count)
        assert run("-p", "Hi", "--json", "--stats") == 130
        out, err = capsys.readouterr()
        info = json.loads(out)
        assert (info["ok"], info["text"], info["finish_reason"]) == (False, text, "interrupted")
        assert info["ids"] == ids_of("hello there")[:count]
        assert "ended by interrupted" in err
        assert err.count("\n") == 1


def test_statistics(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-p", "Hi", "--stats", "--seed", "9") == 0
    out, err = capsys.readouterr()
    assert out == "hello there\n"
    assert err.count("\n") == 1
    assert all(
        part in err for part in ("load ", "tokens/s", "first token after", "peak memory", "ended by eos", "seed 9")
    )


def test_drafts_change_no_text_and_are_told_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "to be or not to be or not to be or not to be or not"
    texts = []
    for draft in ("off", "4", "auto"):
        made = loaded(monkeypatch, tmp_path, script(ids_of(said)))
        assert run("-p", "Hi", "--draft", draft, "--stats") == 0
        out, told = capsys.readouterr()
        texts.append(out)
        assert ("drafts (ngram) in" in told) == bool(made.sessions[0].proposed)
        if draft == "4":
            assert "right by place 100% 100% 100% 100%" in told
            assert run("-p", "Hi", "--draft", draft, "--json") == 0
            stats = json.loads(capsys.readouterr().out)["statistics"]["drafts"]
            assert stats["by"] == "ngram"
            assert stats["accepted"][0] == stats["tried"][0] == stats["windows"] > 0
    assert texts == [said + "\n"] * 3


@pytest.mark.parametrize("draft", ["32", "-1", "on", "1.5", ""])
def test_drafts_that_make_no_sense(model: Model, capsys: pytest.CaptureFixture[str], draft: str) -> None:
    assert run("-p", "Hi", f"--draft={draft}") == 2
    assert "not auto, off, or a number up to 31" in capsys.readouterr().err


def test_what_would_command_a_terminal_is_written_out() -> None:
    assert speaking.harmless("a\x1b[2Jb\x07\x9b\x7f") == "a\\x1b[2Jb\\x07\\x9b\\x7f"
    assert speaking.harmless("line\r\nnext\tcolumn") == "line\nnext\tcolumn"
    assert speaking.harmless("over\rwritten") == "overwritten"
    assert speaking.harmless("\u202etxt.exe\u2066") == "\\u202etxt.exe\\u2066"
    family = "👩\u200d👩\u200d👧 é ünïcödé 你好 \u00a0"
    assert speaking.harmless(family) == family


def test_a_pipe_gets_the_text_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded(monkeypatch, tmp_path, script(ids_of("\x1b[1mbold\n")))
    assert run("-p", "x") == 0
    assert capsys.readouterr().out == "\x1b[1mbold\n"  # and no second line feed


def test_compiling_is_told_once(
    model: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import logging

    original = model.session

    def compiling(**options: Any) -> Any:
        for name in ("one", "two"):
            logging.getLogger("gpack.compiling").info("compiling the kernel %s", name)
        return original(**options)

    monkeypatch.setattr(model, "session", compiling)
    assert run("-p", "x") == 0
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("hello there\n", 1)
    assert "compiling kernels for this machine, once" in err


# ---------------------------------------------------------------- the model's files


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("run")
    source = write_gguf(folder / "m.gguf", *tiny_llama(layers=1))
    gpack.convert_gguf(source, folder / "m.gpack")
    (folder / "bad.gpack").write_bytes((folder / "m.gpack").read_bytes()[:-1])
    return {path.name: str(path) for path in folder.iterdir()} | {"none.gpack": str(folder / "none.gpack")}


def test_a_pack_that_cannot_be_used(
    files: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GGUF its own error; with one, one warning with that error, and the model of the GGUF."""
    made = Model(script(ids_of("ok")))
    monkeypatch.setattr(GuildModel, "session", lambda _, **options: made.session(**options))
    for name, code, status in (("bad.gpack", "header.total_file_size", 1), ("none.gpack", "io.not_found", 3)):
        assert main(["run", files[name], "-p", "x"]) == status
        error = capsys.readouterr().err
        assert error.endswith(f"[{code}]\n")
        assert main(["run", files[name], "-p", "x", "--gguf", files["m.gguf"]]) == 0
        out, warning = capsys.readouterr()
        assert out == "ok\n"
        reason = error.removeprefix("guild: error: ").rstrip("\n")
        assert warning == f"guild: warning: {reason}; loading {files['m.gguf']} instead\n"
        assert main(["run", files[name], "-p", "x", "--gguf", files["m.gguf"], "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["fallback"]["code"] == code


def test_a_pack_and_a_gguf(
    files: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Model(script(ids_of("ok")))
    monkeypatch.setattr(GuildModel, "session", lambda _, **options: made.session(**options))
    for name in ("m.gpack", "m.gguf"):
        assert main(["run", files[name], "-p", "x", "--json"]) == 0
        info = json.loads(capsys.readouterr().out)
        assert (info["text"], info["model"], info["fallback"]) == ("ok", files[name], None)


# ---------------------------------------------------------------- as a process

# A `guild run` whose model says what it is told to, one token in 20 ms.
PROGRAM = """
import fcntl, sys, termios, time
if sys.stdin.isatty():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C there reaches this program
sys.path.insert(0, {tests!r})
from markov import Model, ids_of, script
from gpack.cli import main
from gpack.model import GuildModel
made = Model(script(*map(ids_of, {texts!r})))
original = made.session
def slow(**options):
    session = original(**options)
    session.before = lambda: time.sleep(0.02)
    return session
made.session = slow
GuildModel.load = lambda *_, **__: made
sys.exit(main(["run", *sys.argv[1:]]))
"""


def command(texts: list[str], *arguments: object) -> list[str]:
    program = PROGRAM.format(tests=str(TESTS), texts=texts)
    return [sys.executable, "-c", program, "made-up.gpack", *map(str, arguments)]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "made-up.gpack").write_bytes(b"made up")
    return tmp_path


class Terminal:
    """A program on a pseudo-terminal; `close` ends it."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self.ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (40, 200))
        environment = {**os.environ, "TERM": "xterm", "GUILD_HISTORY": str(folder / "history")}
        self.process = subprocess.Popen(
            words, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment, start_new_session=True
        )
        os.close(theirs)
        self.seen = ""

    def wait_for(self, text: str, again: Callable[[], object] = lambda: None) -> None:
        """Reads until the text comes; where nothing comes for a while, something is done again.

        A signal that arrives just before Python waits for a key is only noticed with the next one.
        """
        end = time.monotonic() + TIMEOUT
        while text not in self.seen:
            if time.monotonic() > end:
                raise AssertionError(f"{text!r} does not come: {self.seen!r}")
            if not select.select([self.ours], [], [], SILENCE)[0]:
                again()
                continue
            try:
                self.seen += os.read(self.ours, 4096).decode(errors="replace")
            except OSError:
                raise AssertionError(f"it ended: {self.seen!r}") from None
        self.seen = self.seen.partition(text)[2]

    def interrupt(self, text: str) -> None:
        """Ctrl-C, until the text comes."""
        self.write("\x03")
        self.wait_for(text, lambda: self.write("\x03"))

    def write(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def end(self, again: Callable[[], object] = lambda: None) -> int:
        """Waits until it ends; its exit status."""
        end = time.monotonic() + TIMEOUT
        while self.process.poll() is None and time.monotonic() < end:
            if not select.select([self.ours], [], [], SILENCE)[0]:
                again()
                continue
            try:
                os.read(self.ours, 4096)
            except OSError:  # it has ended
                break
        return self.process.wait(TIMEOUT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)


Talk = Callable[..., Terminal]


@pytest.fixture
def talk(place: Path) -> Iterator[Talk]:
    """Starts a program on a terminal: what the model says, and arguments."""
    with contextlib.ExitStack() as stack:
        yield lambda texts, *arguments: stack.enter_context(
            contextlib.closing(Terminal(command(texts, *arguments), place))
        )


def test_a_conversation(talk: Talk, place: Path) -> None:
    terminal = talk(["one fish", "two birds"], "--temp", 0)
    terminal.wait_for(">>> ")
    terminal.write("hello\n")
    terminal.wait_for("one fish")
    terminal.wait_for(">>> ")
    terminal.write("and?\n")
    terminal.wait_for("two birds")  # it saw its first answer: the history is in the prompt
    terminal.wait_for(">>> ")
    terminal.write("/save talk.json\n")
    terminal.wait_for("talk.json: 4 messages")
    terminal.wait_for(">>> ")
    terminal.write("/nonsense\n")
    terminal.wait_for("there is no /nonsense")
    terminal.wait_for(">>> ")
    terminal.write("/reset\n")
    terminal.wait_for(">>> ")
    terminal.write("hello\n")
    terminal.wait_for("one fish")  # from the beginning again
    terminal.wait_for(">>> ")
    terminal.write("/exit\n")
    assert terminal.end() == 0
    saved = json.loads((place / "talk.json").read_text())
    assert [(message["role"], message["content"]) for message in saved] == [
        ("user", "hello"),
        ("assistant", "one fish"),
        ("user", "and?"),
        ("assistant", "two birds"),
    ]


def test_answers_again_and_settings(talk: Talk, place: Path) -> None:
    terminal = talk(["one fish", "two birds"], "--temp", 0)
    terminal.wait_for(">>> ")

    def say(line: str, wanted: str) -> None:
        terminal.write(f"{line}\n")
        if wanted:
            terminal.wait_for(wanted)
        terminal.wait_for(">>> ")

    say("/regen", "nothing was said")
    say("hello", "one fish")
    say("/regen", "one fish")  # the conversation is as it was before the answer
    say("and?", "two birds")
    say("/show", "turns")
    say("/set temp 0.5", "")
    say("/show", "temp      0.5")
    say("/set temp default", "")
    say("/show", "temp      0")
    say("/set temp warm", "'warm' is no number")
    say("/set top-p 7", "top_p is 7.0")
    say("/set colour red", "names: temp")
    say("/rgen", "did you mean /regen?")
    say("/set max-tokens 3", "")
    say("/compact", "1 of 2 turns are forgotten")
    say("/save talk.json", "talk.json: 2 messages")
    terminal.write("/bye\n")
    assert terminal.end() == 0
    assert [message["content"] for message in json.loads((place / "talk.json").read_text())] == ["and?", "two birds"]
    assert "/set temp warm" in (place / "history").read_text()
    assert stat.S_IMODE((place / "history").stat().st_mode) == 0o600


def test_what_was_typed_comes_back_in_the_next_run(talk: Talk, place: Path) -> None:
    (place / "history").write_text("an older line\n")
    terminal = talk(["fine"], "--temp", 0)
    terminal.wait_for(">>> ")
    terminal.write("\x1b[A")
    terminal.wait_for("an older line")
    terminal.write("\n")
    terminal.wait_for("fine")
    terminal.wait_for(">>> ")
    terminal.write("\x04")
    assert terminal.end(lambda: terminal.write("\x04")) == 0


def test_ctrl_c_stops_the_answer_and_not_the_program(talk: Talk, place: Path) -> None:
    terminal = talk(["abcdefghijklmnopqrstuvwxyz" * 16], "--temp", 0)
    terminal.wait_for(">>> ")
    terminal.write("go\n")
    terminal.wait_for("abcdef")
    terminal.interrupt("(stopped)")
    terminal.wait_for(">>> ")
    terminal.write("/save talk.json\n")
    terminal.wait_for("2 messages")  # what was said stays said
    terminal.wait_for(">>> ")
    terminal.interrupt("once more")
    terminal.wait_for(">>> ")
    terminal.write("\x03")
    assert terminal.end(lambda: terminal.write("\x03")) == 0
    assert json.loads((place / "talk.json").read_text())[1]["content"].startswith("abcdef")


def test_the_end_of_the_input_ends_the_conversation(talk: Talk) -> None:
    terminal = talk(["x"])
    terminal.wait_for(">>> ")
    terminal.write("\x04")
    assert terminal.end() == 0


def test_a_termination_ends_the_conversation(talk: Talk) -> None:
    terminal = talk(["x"])
    terminal.wait_for(">>> ")
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.end(lambda: terminal.process.send_signal(signal.SIGTERM)) == 130


@pytest.mark.parametrize("text", ['"""first\nsecond"""\n', "\x1b[200~first\nsecond\x1b[201~\n"])
def test_several_lines_are_one_message(talk: Talk, place: Path, text: str) -> None:
    """Between quotes, and pasted, as terminals mark it."""
    terminal = talk(["fine"], "--temp", 0)
    terminal.wait_for(">>> ")
    terminal.write(text)
    terminal.wait_for("fine")
    terminal.wait_for(">>> ")
    terminal.write("/save talk.json\n")
    terminal.wait_for("2 messages")
    terminal.wait_for(">>> ")
    terminal.write("\x04")
    assert terminal.end(lambda: terminal.write("\x04")) == 0
    content = json.loads((place / "talk.json").read_text())[0]["content"]
    assert content == "first\nsecond"


def test_a_terminal_is_not_commanded(talk: Talk) -> None:
    terminal = talk(["a\x1b[2Jb"], "-p", "x", "--temp", 0)
    terminal.wait_for("a\\x1b[2Jb")
    assert terminal.end() == 0


def test_an_answer_that_is_stopped(place: Path) -> None:
    words = command(["abcdefghijklmnopqrstuvwxyz" * 16], "-p", "x", "--temp", 0, "--stats")
    with running(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=place) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(3) == "abc"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read().endswith("\n")
        said = process.stderr.read()
        assert process.wait(TIMEOUT) == 130
    assert "ended by interrupted" in said
    assert said.endswith("guild: error: the answer was stopped [interrupted]\n")


def test_a_reader_that_leaves(place: Path) -> None:
    words = command(["abcdefghijklmnopqrstuvwxyz" * 16], "-p", "x", "--temp", 0)
    with running(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=place) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(3) == b"abc"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(TIMEOUT) == 0


def test_text_comes_token_by_token(place: Path) -> None:
    text = "abcdefghijklmnopqrstuvwxyz" * 4  # two seconds
    words = command([text], "-p", "x", "--temp", 0)
    with running(words, stdout=subprocess.PIPE, cwd=place, bufsize=0) as process:
        assert process.stdout is not None
        parts = []
        while part := process.stdout.read(100):
            parts.append(part)
    assert b"".join(parts) == text.encode() + b"\n"
    assert len(parts) > 3
