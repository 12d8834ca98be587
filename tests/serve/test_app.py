"""The server's paths, with a tiny model: shapes, streams, and what is refused."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

starlette = pytest.importorskip("starlette", reason="the extra `serve` is not installed")

from starlette.testclient import TestClient  # noqa: E402

from gpack.model import GuildModel, ModelPaths  # noqa: E402
from gpack.serve.app import Limits, build  # noqa: E402
from gpack.serve.fields import WITHOUT_EFFECT  # noqa: E402
from gpack.serve.markup import either_grammar  # noqa: E402
from gpack.serve.served import Settings  # noqa: E402
from gpack.serve.shelf import Slot  # noqa: E402

from .serving import write_eager_model, write_model  # noqa: E402

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "hello"}]
BASE: dict[str, Any] = {"model": "tiny", "messages": USER, "max_tokens": 8, "seed": 3}


def slot(path: Path, name: str = "tiny") -> Slot:
    return Slot(name, lambda: GuildModel.load(ModelPaths(primary_model_path=path)), path.stat().st_size)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("served"))


SETTINGS = Settings(threads=1, cpu="portable", n_ctx=200)


@pytest.fixture(scope="module")
def client(model_path: Path) -> Iterator[TestClient]:
    with TestClient(build([slot(model_path)], SETTINGS, Limits(body=1 << 16))) as made:
        yield made


def post(client: TestClient, path: str, **body: Any) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def events(client: TestClient, path: str, **body: Any) -> list[Any]:
    """The data of a stream's events; `[DONE]` as it is."""
    response = client.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


# ---------------------------------------------------------------- chats


def test_a_chat_whole_and_streamed_is_one_text(client: TestClient) -> None:
    whole = post(client, CHAT, **BASE, logprobs=True, top_logprobs=2)
    (choice,) = whole["choices"]
    assert (whole["object"], choice["message"]["role"], choice["finish_reason"]) == (
        "chat.completion",
        "assistant",
        "length",
    )
    assert whole["usage"]["completion_tokens"] == 8
    assert len(choice["logprobs"]["content"]) == 8
    assert all(len(token["top_logprobs"]) == 2 for token in choice["logprobs"]["content"])
    *chunks, usage, done = events(client, CHAT, **BASE, stream_options={"include_usage": True})
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == whole["usage"]["total_tokens"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk["choices"][0] for chunk in chunks]
    assert deltas[0]["delta"]["role"] == "assistant"
    assert "".join(delta["delta"].get("content", "") for delta in deltas) == choice["message"]["content"]
    assert [delta["finish_reason"] for delta in deltas if delta["finish_reason"]] == ["length"]


def test_several_answers_have_seeds_of_their_own(client: TestClient) -> None:
    found = post(client, CHAT, **BASE, n=3, temperature=1.5)["choices"]
    texts = [choice["message"]["content"] for choice in found]
    assert [choice["index"] for choice in found] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts[1] == post(client, CHAT, **{**BASE, "seed": 4}, temperature=1.5)["choices"][0]["message"]["content"]
    streamed: dict[int, str] = {}
    for chunk in events(client, CHAT, **BASE, n=3, temperature=1.5)[:-1]:
        for choice in chunk["choices"]:
            streamed[choice["index"]] = streamed.get(choice["index"], "") + choice["delta"].get("content", "")
    assert [streamed[number] for number in range(3)] == texts


def test_stop_strings_and_bias(client: TestClient) -> None:
    text = post(client, CHAT, **BASE)["choices"][0]["message"]["content"]
    end = next(letter for letter in text[1:] if letter.isascii() and letter.isprintable())
    stopped = post(client, CHAT, **BASE, stop=end)["choices"][0]
    assert stopped["message"]["content"] == text[: text.index(end)]
    assert stopped["finish_reason"] == "stop"
    (token,) = post(client, "/tokenize", content="z")["tokens"]
    biased = post(client, CHAT, **BASE, logit_bias={str(token): 100})["choices"][0]["message"]["content"]
    assert biased == "z" * 8


def test_an_answer_of_a_schema_validates(client: TestClient) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"type": "boolean"}},
        "required": ["n", "b"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for seed in range(4):
        body = {**BASE, "max_tokens": 60, "seed": seed, "response_format": form}
        found = json.loads(post(client, CHAT, **body)["choices"][0]["message"]["content"])
        assert set(found) == {"n", "b"}
        assert 0 <= found["n"] <= 9
        assert isinstance(found["b"], bool)
    pattern = {"type": "regex", "regex": "(ab){2}c"}
    assert post(client, CHAT, **BASE, response_format=pattern)["choices"][0]["message"]["content"] == "ababc"
    grammar = 'root ::= "x" | "yy"'
    assert post(client, TEXT, model="tiny", prompt="a", grammar=grammar)["choices"][0]["text"] in ("x", "yy")


# ---------------------------------------------------------------- other shapes


def test_texts_are_continued(client: TestClient) -> None:
    found = post(client, TEXT, model="tiny", prompt=["ab", "cd"], max_tokens=4, temperature=0, logprobs=1, echo=True)
    assert [choice["text"][:2] for choice in found["choices"]] == ["ab", "cd"]
    assert found["usage"]["completion_tokens"] == 8
    assert len(found["choices"][0]["logprobs"]["tokens"]) == 4
    ids = post(client, "/tokenize", content="ab")["tokens"]
    assert post(client, "/detokenize", tokens=ids) == {"content": "ab"}
    by_ids = post(client, TEXT, model="tiny", prompt=ids, max_tokens=4, temperature=0)["choices"][0]["text"]
    assert found["choices"][0]["text"] == "ab" + by_ids
    *chunks, _ = events(client, TEXT, model="tiny", prompt="ab", max_tokens=4, temperature=0)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == by_ids


def test_messages_of_anthropic(client: TestClient) -> None:
    body = {"model": "tiny", "messages": USER, "max_tokens": 6, "temperature": 0, "system": "be kind"}
    whole = post(client, "/v1/messages", **body)
    assert (whole["type"], whole["role"], whole["stop_reason"]) == ("message", "assistant", "max_tokens")
    found = events(client, "/v1/messages", **body)
    assert [event["type"] for event in found[:3]] == ["message_start", "ping", "content_block_start"]
    assert [event["type"] for event in found[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
    text = "".join(event["delta"]["text"] for event in found if event["type"] == "content_block_delta")
    assert [{"type": "text", "text": text, "citations": None}] == whole["content"]
    counted = client.post("/v1/messages/count_tokens", json={k: body[k] for k in ("model", "messages", "system")})
    usage = whole["usage"]
    assert counted.json()["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
    refused = client.post("/v1/messages", json={**body, "max_token": 3})
    assert (refused.status_code, refused.json()["type"]) == (400, "error")
    assert refused.json()["error"]["type"] == "invalid_request_error"


def test_responses_and_the_one_before(client: TestClient) -> None:
    body = {"model": "tiny", "input": "hello", "max_output_tokens": 6, "temperature": 0}
    whole = post(client, "/v1/responses", **body)
    assert (whole["object"], whole["status"], whole["incomplete_details"]) == (
        "response",
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    text = whole["output"][0]["content"][0]["text"]
    assert (
        text
        == post(client, CHAT, model="tiny", messages=USER, max_tokens=6, temperature=0)["choices"][0]["message"][
            "content"
        ]
    )
    found = events(client, "/v1/responses", **body)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert found[0]["type"] == "response.created"
    assert found[-1]["type"] == "response.incomplete"
    assert "".join(event["delta"] for event in found if event["type"] == "response.output_text.delta") == text
    again = post(client, "/v1/responses", **{**body, "input": "more"}, previous_response_id=whole["id"])
    turns = [*USER, {"role": "assistant", "content": text}, {"role": "user", "content": "more"}]
    expected = post(client, CHAT, model="tiny", messages=turns, max_tokens=6, temperature=0)
    assert again["output"][0]["content"][0]["text"] == expected["choices"][0]["message"]["content"]
    unknown = client.post("/v1/responses", json={**body, "previous_response_id": "resp_0"})
    assert unknown.json()["error"]["code"] == "previous_response_not_found"


def test_embeddings(client: TestClient, model_path: Path) -> None:
    found = post(client, "/v1/embeddings", model="tiny", input=["ab", "cd"])
    with GuildModel.load(ModelPaths(primary_model_path=model_path)) as model:
        vector = model.embed("ab", threads=1, cpu="portable")
    length = float((vector.astype("f8") ** 2).sum() ** 0.5)
    assert found["data"][0]["embedding"] == pytest.approx((vector / length).tolist(), abs=1e-5)
    assert found["data"][1]["embedding"] != found["data"][0]["embedding"]


# ---------------------------------------------------------------- what is refused

IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
NO_SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}
REFUSED: list[tuple[dict[str, Any], str, int]] = [
    ({"temprature": 0}, "temprature", 400),
    ({"temperature": -1}, "temperature", 400),
    ({"temperature": "hot"}, "temperature", 400),
    ({"max_tokens": -3}, "max_tokens", 400),
    ({"max_tokens": 1e300}, "max_tokens", 400),
    ({"n": 0}, "n", 400),
    ({"top_logprobs": 3}, "top_logprobs", 400),
    ({"stop": [""]}, "stop", 400),
    ({"logit_bias": {"x": 1}}, "logit_bias", 400),
    ({"model": "another"}, "model", 404),
    ({"messages": []}, "messages", 400),
    ({"messages": [{"role": "<|im_end|>", "content": "x"}]}, "messages.0.role", 400),
    ({"messages": IMAGE}, "messages.0.content.0.type", 400),
    ({"messages": [{"role": "user", "content": "x" * 4000}]}, "messages", 400),
    ({"response_format": {"type": "xml"}}, "response_format.type", 400),
    ({"response_format": NO_SCHEMA}, "response_format.json_schema.schema", 400),
    ({"response_format": {"type": "regex", "regex": "("}}, "response_format", 400),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", 400),
    ({"modalities": ["audio"]}, "modalities", 400),
    ({"tools": [{"type": "retrieval"}]}, "tools.0.type", 400),
    ({"tool_choice": "sometimes"}, "tool_choice", 400),
    *(
        ({"chat_template_kwargs": {name: value}}, f"chat_template_kwargs.{name}", 400)
        for name, value in (("special_tokens", {"x": "<|im_end|>"}), ("add_generation_prompt", False), ("messages", []))
    ),
]


@pytest.mark.parametrize(("changes", "param", "status"), REFUSED, ids=[param for _, param, _ in REFUSED])
def test_what_makes_no_sense_is_refused_by_name(
    client: TestClient, changes: dict[str, Any], param: str, status: int
) -> None:
    response = client.post(CHAT, json={**BASE, **changes})
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["message"]
    assert "Traceback" not in response.text


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b'"x"', b"\xff\xfe", b"[" * 50_000, b'{"model": "tiny"}', b'{"a": NaN}']
)
def test_bodies_that_are_none(client: TestClient, body: bytes) -> None:
    response = client.post(CHAT, content=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_what_is_refused_leaves_nothing_running(client: TestClient) -> None:
    body = {**BASE, "max_tokens": 150, "ignore_eos": True, "stream": True, "stream_options": {"x": 1}}
    assert client.post(CHAT, json=body).status_code == 400
    scheduler = client.app.state.server.shelf.slot("tiny").served.scheduler  # type: ignore[attr-defined]
    assert (scheduler.running, scheduler.waiting) == (0, 0)


def test_a_fault_of_the_server_is_counted_as_one(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TestClient(build([slot(model_path)], SETTINGS, Limits()), raise_server_exceptions=False) as client:
        monkeypatch.setattr("gpack.serve.app.document", lambda: 1 / 0)
        assert client.get("/openapi.json").json()["error"]["code"] == "internal_error"
        assert 'path="/openapi.json",status="500"} 1' in client.get("/metrics").text


def test_a_first_model_that_cannot_be_served_is_no_ready_server(model_path: Path) -> None:
    settings = Settings(threads=1, cpu="portable", n_ctx=1 << 20, state_bytes=1)
    app = build([slot(model_path)], settings, Limits())
    with TestClient(app) as client:
        assert client.post(CHAT, json=BASE).status_code == 503
        assert client.get("/health").status_code == 503
    assert app.state.server.failure.code == "io.memory"


def test_too_long_a_prompt_says_both_numbers(client: TestClient) -> None:
    error = client.post(CHAT, json={**BASE, "messages": [{"role": "user", "content": "x" * 4000}]}).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "200" in error["message"]
    assert int(re.findall(r"\d+", error["message"])[-1]) > 200


def test_limits_paths_and_methods(client: TestClient) -> None:
    assert client.post(CHAT, content=b" " * 70_000).status_code == 413
    assert client.get(CHAT).status_code == 405
    assert client.get("/nothing").json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("field", WITHOUT_EFFECT["chat"])
def test_fields_without_effect_change_nothing(client: TestClient, field: str) -> None:
    expected = post(client, CHAT, **BASE)["choices"]
    assert post(client, CHAT, **BASE, **{field: {"anything": [1]}})["choices"] == expected


def test_the_document_lists_the_fields_without_effect() -> None:
    text = (Path(__file__).parents[2] / "spec" / "serving.md").read_text(encoding="utf-8")
    for protocol, names in WITHOUT_EFFECT.items():
        row = re.search(rf"^\| {protocol} \| (.*) \|$", text, re.MULTILINE)
        assert row is not None, protocol
        assert tuple(re.findall(r"`([^`]+)`", row[1])) == names


def test_keys_and_origins(model_path: Path) -> None:
    app = build([slot(model_path)], SETTINGS, Limits(key="geheim", origins=("https://a.example",)))
    with TestClient(app) as client:
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers={"Authorization": "Bearer falsch"}).status_code == 401
        assert client.get("/v1/models", headers={"Authorization": "Bearer geheim"}).status_code == 200
        assert client.get("/v1/models", headers={"x-api-key": "geheim"}).status_code == 200
        assert client.get("/health").status_code in (200, 503)
        ask = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
        assert client.options(CHAT, headers=ask).headers["access-control-allow-origin"] == "https://a.example"


def test_several_models_and_their_budget(model_path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(model_path.read_bytes())
    size = model_path.stat().st_size
    app = build([slot(model_path), slot(other, "other")], SETTINGS, Limits(), budget=size)
    with TestClient(app) as client:
        text = post(client, CHAT, **BASE)["choices"][0]["message"]["content"]
        same = post(client, CHAT, **{**BASE, "model": "other"})["choices"][0]["message"]["content"]
        assert same == text
        listed = client.get("/v1/models").json()["data"]
        assert [model["id"] for model in listed if "context_length" in model] == ["other"]


def test_the_document_of_the_paths_is_true(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    served = client.app.state.server.app.routes  # type: ignore[attr-defined]
    routes = {(route.path.replace(":path", ""), method.lower()) for route in served for method in route.methods}
    listed = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert listed == {(path, method) for path, method in routes if method != "head"}
    jsonschema = pytest.importorskip("jsonschema", reason="the package jsonschema is not installed")
    schema = {"$ref": "#/components/schemas/Chat", "components": document["components"]}
    check = jsonschema.Draft202012Validator(schema)
    assert check.is_valid(BASE)
    for changes, param, _ in REFUSED:
        if client.post(CHAT, json={**BASE, **changes}).json()["error"]["code"] in ("unknown_parameter", "invalid_type"):
            # To JSON Schema 1e300 is an integer.
            assert not check.is_valid({**BASE, **changes}) or "." in param or param == "max_tokens", param


def test_an_answer_that_takes_too_long_ends(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpack.serve.answer._ALIVE_SECONDS", 0.05)
    settings = Settings(threads=1, cpu="portable", n_ctx=200, timeout=0.4)
    with TestClient(build([slot(model_path)], settings, Limits())) as client:
        post(client, CHAT, **{**BASE, "max_tokens": 1})
        scheduler = client.app.state.server.shelf.slot("tiny").served.scheduler  # type: ignore[attr-defined]
        step = scheduler._step

        def slow() -> None:
            time.sleep(0.2)
            step()

        monkeypatch.setattr(scheduler, "_step", slow)
        late = client.post(CHAT, json={**BASE, "max_tokens": 150})
        assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
        text = client.post(CHAT, json={**BASE, "max_tokens": 150, "stream": True}).text
        assert ": keep-alive" in text
        assert '"code":"timeout"' in text
        while scheduler.running:
            time.sleep(0.01)


def test_metrics_and_health(client: TestClient) -> None:
    post(client, CHAT, **BASE)
    assert client.get("/health").json() == {"status": "ready"}
    text = client.get("/metrics").text
    assert re.search(r'^gpack_tokens_generated_total\{model="tiny"\} [1-9]', text, re.MULTILINE)
    assert re.search(r"^gpack_time_to_first_token_seconds_count [1-9]", text, re.MULTILINE)
    assert re.search(r'^gpack_requests_total\{path="/v1/chat/completions",status="200"\} [1-9]', text, re.MULTILINE)


# ---------------------------------------------------------------- tools

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 5}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def with_tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    path = write_eager_model(tmp_path_factory.mktemp("served"))
    settings = Settings(threads=1, cpu="portable", n_ctx=1500)
    with TestClient(build([slot(path, "m")], settings, Limits())) as made:
        yield made


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        ("hello", True),
        ("1 < 2, and <tool_call has no end", True),
        (call("weather", '{"city": "Rome"}'), True),
        ("I ask: " + call("weather", '{"city": "Rome"}') + " and " + call("other", '{"a": [1]}') + ".", True),
        (call("weather", '{"city": "Romance"}'), False),
        (call("weather", '{"town": "Rome"}'), False),
        (call("nothing", "{}"), False),
        ("<tool_call>hello", False),
        ("a <tool_call>\nhello", False),
    ],
)
def test_calls_of_strict_tools_are_as_their_parameters_say(
    with_tools: TestClient, text: str, *, is_allowed: bool
) -> None:
    post(with_tools, "/tokenize", model="m", content="x")  # when it is loaded
    served = with_tools.app.state.server.shelf.slot("m").served  # type: ignore[attr-defined]
    other = {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}
    written = either_grammar(served.style, [WEATHER, other], {"weather"}, None)
    matcher = served.grammars.lark(written, field="tools")._matcher
    ids = served.model.tokenizer.encode(text, add_special=False)
    taken = matcher.try_consume_tokens(ids)
    assert (taken == len(ids) and matcher.is_accepting()) == is_allowed


def test_a_form_and_tools_give_either(with_tools: TestClient) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    body = {"model": "m", "messages": USER, "tools": [WEATHER], "max_tokens": 300, "response_format": form}
    for seed in range(6):
        message = post(with_tools, CHAT, **body, seed=seed)["choices"][0]["message"]
        if "tool_calls" in message:
            assert set(json.loads(message["tool_calls"][0]["function"]["arguments"])) == {"city"}
        else:
            assert json.loads(message["content"])["n"] in (1, 2)
    refused = with_tools.post(CHAT, json={**body, "response_format": {"type": "regex", "regex": "a"}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "response_format")


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"enable_thinkin": True}}, "chat_template_kwargs.enable_thinkin"),
        ({"verbosity": "low"}, "verbosity"),
        ({"tools": [{**WEATHER, "name": "x"}]}, "tools.0.name"),
        ({"tool_choice": {"type": "function", "function": {"name": "x", "y": 1}}}, "tool_choice.function.y"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
    ],
)
def test_what_would_be_dropped_is_refused(client: TestClient, changes: dict[str, Any], param: str) -> None:
    response = client.post(CHAT, json={**BASE, **changes})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_no_reasoning_is_what_a_model_that_does_not_reason_gives(client: TestClient) -> None:
    expected = post(client, CHAT, **BASE)["choices"]
    for changes in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}):
        assert post(client, CHAT, **BASE, **changes)["choices"] == expected


def test_responses_have_logprobs_where_they_are_asked_for(client: TestClient) -> None:
    body = {"model": "tiny", "input": "hello", "max_output_tokens": 5, "seed": 3, "top_logprobs": 2}
    text = post(client, "/v1/responses", **body)["output"][0]["content"][0]
    assert len(text["logprobs"]) == 5
    assert all(len(token["top_logprobs"]) == 2 for token in text["logprobs"])
    found = events(client, "/v1/responses", **body)
    deltas = [event["logprobs"] for event in found if event["type"] == "response.output_text.delta"]
    done = next(event["logprobs"] for event in found if event["type"] == "response.output_text.done")
    assert [token for delta in deltas for token in delta] == done == text["logprobs"]
