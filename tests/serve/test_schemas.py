"""Answers of a given form: over JSON schemas of wild kinds each answer validates, or the schema is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from exhaustive import amount, grows

pytest.importorskip("starlette", reason="the extra `serve` is not installed")
jsonschema = pytest.importorskip("jsonschema", reason="the package jsonschema is not installed")

from starlette.testclient import TestClient  # noqa: E402

from gpack.model import GuildModel, ModelPaths  # noqa: E402
from gpack.serve.app import Limits, build  # noqa: E402
from gpack.serve.grammar import Grammar  # noqa: E402
from gpack.serve.served import Settings  # noqa: E402
from gpack.serve.shelf import Slot  # noqa: E402

from .schemas import BY_HAND, at_random  # noqa: E402
from .serving import write_eager_model  # noqa: E402


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    path = write_eager_model(tmp_path_factory.mktemp("served"))
    slot = Slot("m", lambda: GuildModel.load(ModelPaths(primary_model_path=path)), 0)
    settings = Settings(threads=1, cpu="portable", n_ctx=1024)
    with TestClient(build([slot], settings, Limits())) as made:
        yield made


def outcome(client: TestClient, number: int, schema: Any) -> str:
    """`valid`, `cut` or `refused`; fails where an answer does not validate."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "seed": number, "response_format": form}
    response = client.post("/v1/chat/completions", json={**body, "max_tokens": 400})
    if response.status_code == 400:
        error = response.json()["error"]
        assert error["param"] == "response_format.json_schema.schema", error
        assert "cannot be compiled" in error["message"] or "matches" in error["message"], error
        return "refused"
    assert response.status_code == 200, (schema, response.text)
    (choice,) = response.json()["choices"]
    if choice["finish_reason"] == "length":
        return "cut"
    text = choice["message"]["content"]
    check = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    faults = [error.message for error in check.iter_errors(json.loads(text))]
    assert not faults, (schema, text, faults)
    return "valid"


@grows
def test_answers_validate_over_wild_schemas(client: TestClient) -> None:
    given = [*BY_HAND, *map(at_random, range(amount(30, 400)))]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda item: outcome(client, *item), enumerate(given)))
    assert found.count("valid") > 0.6 * len(given)
    assert found.count("cut") < 0.2 * len(given)
    refused = [schema for schema, what in zip(given, found, strict=True) if what == "refused"]
    for schema in ({"type": "nothing"}, {"type": "string", "pattern": "("}, {"$ref": "#/$defs/missing"}, False):
        assert schema in refused


def refused(client: TestClient, form: dict[str, Any]) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "response_format": form}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"].startswith("response_format")
    return str(error["message"])


def test_what_is_too_intricate_to_compile_is_refused(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    intersection = "start: A\nA: /(.*a.{20})/ & ~/(.*b.{22})/ & /(.*c.{21})/"
    assert "fuel exhausted" in refused(client, {"type": "grammar", "grammar": intersection})
    assert "most 262144" in refused(client, {"type": "regex", "regex": "a" * 300_000})
    itself = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    assert "empty text" in refused(client, {"type": "json_schema", "json_schema": {"schema": itself}})
    # A library that takes its time holds nobody up: the event loop answers, and the compiler is left to itself.
    library = pytest.importorskip("llguidance", reason="llguidance is not installed")
    slow, ended = threading.Event(), threading.Event()
    monkeypatch.setattr("gpack.serve.grammar._COMPILE_SECONDS", 0.2)

    class Slow:
        @staticmethod
        def grammar_from_regex(pattern: str) -> str:
            slow.wait(60)
            ended.set()
            return str(library.LLMatcher.grammar_from_regex(pattern))

    monkeypatch.setattr("gpack.serve.grammar._library", lambda: type("L", (), {"LLMatcher": Slow}))
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(refused, client, {"type": "regex", "regex": "a"})
        assert client.get("/health").status_code == 200
        assert "more than 0.2 seconds" in late.result()
    slow.set()
    assert ended.wait(60)


def test_a_form_that_becomes_too_intricate_fails_its_answer_alone(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "seed": 1}
    expected = client.post("/v1/chat/completions", json=body).json()["choices"]
    form = {"type": "regex", "regex": "[a-z]{9}"}
    taken = Grammar.take

    def slower(rules: Grammar, token: int) -> None:
        monkeypatch.setattr("gpack.serve.grammar._MASK_SECONDS", -1.0)
        taken(rules, token)

    monkeypatch.setattr(Grammar, "take", slower)
    response = client.post("/v1/chat/completions", json={**body, "response_format": form})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "serve.grammar")
    assert client.post("/v1/chat/completions", json=body).json()["choices"] == expected
