"""`guild serve` as a process, with the clients that people have."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpack.cli import main

from .serving import write_model

pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], str]]:
    path = write_model(tmp_path_factory.mktemp("served"))
    words = [sys.executable, "-m", "gpack", "serve", str(path), "--port", "0", "--threads", "1", "--cpu", "portable"]
    environment = {**os.environ, "GPACK_API_KEY": "geheim"}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        found = None
        for line in process.stderr:
            if found := re.search(r"at (http://\S+)", line):
                break
        assert found is not None
        yield process, found[1]
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(60) == 0, rest
        assert "Traceback" not in rest


def test_the_client_of_openai(server: tuple[subprocess.Popen[str], str]) -> None:
    openai = pytest.importorskip("openai", reason="the package openai is not installed")
    client = openai.OpenAI(base_url=f"{server[1]}/v1", api_key="geheim", max_retries=5)
    assert [model.id for model in client.models.list()] == ["tiny"]
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 6, "seed": 1}
    whole = client.chat.completions.create(**asked)
    text = "".join(
        chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**asked, stream=True)
    )
    assert text == whole.choices[0].message.content
    assert whole.usage.completion_tokens == 6
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**asked, extra_body={"temprature": 1})
    assert caught.value.param == "temprature"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{server[1]}/v1", api_key="falsch", max_retries=0).models.list()
    response = client.responses.create(model="tiny", input="hello", max_output_tokens=6, extra_body={"seed": 1})
    assert response.output_text == whole.choices[0].message.content
    assert len(client.embeddings.create(model="tiny", input="hello").data[0].embedding) == 64


def test_the_client_of_anthropic(server: tuple[subprocess.Popen[str], str]) -> None:
    anthropic = pytest.importorskip("anthropic", reason="the package anthropic is not installed")
    client = anthropic.Anthropic(base_url=server[1], api_key="geheim", max_retries=5)
    asked = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 6,
        "extra_body": {"temperature": 0},
    }
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
    assert whole.stop_reason == "max_tokens"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**asked, "model": "another"})


def test_a_stream_is_told_that_the_server_ends(tmp_path: Path) -> None:
    httpx = pytest.importorskip("httpx", reason="the package httpx is not installed")
    words = [sys.executable, "-m", "gpack", "serve", str(write_model(tmp_path)), "--port", "0", "--finish", "0"]
    with subprocess.Popen([*words, "--threads", "1"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = next(filter(None, (re.search(r"at (http://\S+)", line) for line in process.stderr)))
        body = {"model": "tiny", "prompt": "a", "max_tokens": 4000, "ignore_eos": True, "stream": True, "n": 8}
        text = ""
        with httpx.stream("POST", f"{found[1]}/v1/completions", json=body, timeout=60) as response:
            for line in response.iter_lines():
                if not text:
                    process.terminate()
                text += line
        rest = process.stderr.read()
        assert process.wait(60) == 0, rest
    assert "server_shutting_down" in text or "[DONE]" in text
    assert "Traceback" not in rest


def test_a_model_that_cannot_be_served_ends_the_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_model(tmp_path)
    assert main(["serve", str(path), "--port", "0", "--ctx", "1000000", "--state-budget", "1"]) == 2
    assert "[io.memory]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--port", "70000"], "usage"),
        (["--parallel", "0"], "usage"),
        (["--tls-cert", "x"], "usage"),
        (["--api-key-file", "/nothing/there"], "io.read"),
        (["--host", "256.0.0.1"], "serve.address"),
        (["--model-alias", "a", "--model-alias", "b"], "usage"),
    ],
)
def test_what_makes_no_sense(options: list[str], code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_model(tmp_path)
    assert main(["serve", str(path), "--port", "0", *options]) in (2, 3)
    assert f"[{code}]" in capsys.readouterr().err


def test_a_file_that_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.gpack"
    path.write_bytes(b"nothing" * 100)
    assert main(["serve", str(path), "--port", "0"]) == 1
    assert "Traceback" not in capsys.readouterr().err
