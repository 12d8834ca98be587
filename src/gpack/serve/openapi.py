"""The document of the server's paths, made of the very structs that requests are read with."""

from __future__ import annotations

from typing import Any

import msgspec

from .. import __version__
from . import fields

_TEXT = {"type": "string"}
# Path and method to what it does, and the struct of its request; streams where it has them.
_PATHS: dict[tuple[str, str], tuple[str, Any, bool]] = {
    ("/v1/chat/completions", "post"): ("Answers a chat, in OpenAI's form", fields.Chat, True),
    ("/v1/completions", "post"): ("Continues texts, in OpenAI's form", fields.Completions, True),
    ("/v1/responses", "post"): ("Answers, in OpenAI's newer form", fields.Responses, True),
    ("/v1/messages", "post"): ("Answers messages, in Anthropic's form", fields.Messages, True),
    ("/v1/messages/count_tokens", "post"): ("Counts the tokens of messages", fields.Counted, False),
    ("/v1/embeddings", "post"): ("Makes vectors of texts", fields.Embeddings, False),
    ("/tokenize", "post"): ("Makes tokens of a text", fields.Tokenize, False),
    ("/detokenize", "post"): ("Makes text of tokens", fields.Detokenize, False),
    ("/v1/models", "get"): ("Lists the models", None, False),
    ("/v1/models/{name}", "get"): ("Describes a model", None, False),
    ("/props", "get"): ("Describes the server and its models", None, False),
    ("/health", "get"): ("Says whether the server is loading, ready or draining", None, False),
    ("/metrics", "get"): ("Counts, for Prometheus", None, False),
    ("/openapi.json", "get"): ("This document", None, False),
    ("/", "get"): ("The page to chat", None, False),
}
_MEDIA = {"/metrics": "text/plain", "/": "text/html"}
_FAILS = {
    "400": "The request makes no sense; the error names the field",
    "401": "The key is missing or wrong",
    "404": "There is no such model",
    "413": "The request is too large",
    "429": "Too many requests wait already",
    "503": "There is no room now",
}


def document() -> dict[str, Any]:
    """The document, in OpenAPI 3.1."""
    structs = [struct for _, struct, _ in _PATHS.values() if struct is not None]
    _, schemas = msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")
    schemas["Error"] = {
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"type": "object", "required": ["message", "type"], "properties": {"message": _TEXT}}},
    }
    paths: dict[str, Any] = {}
    for (path, method), (summary, struct, streams) in _PATHS.items():
        paths.setdefault(path, {})[method] = _operation(path, summary, struct, streams=streams)
    return {
        "openapi": "3.1.0",
        "info": {"title": "guild serve", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _operation(path: str, summary: str, struct: Any, *, streams: bool) -> dict[str, Any]:
    content: dict[str, Any] = {_MEDIA.get(path, "application/json"): {}}
    if streams:
        content["text/event-stream"] = {}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    made: dict[str, Any] = {"summary": summary, "responses": {"200": {"description": "Done", "content": content}}}
    if "{name}" in path:
        made["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": _TEXT}]
        made["responses"]["404"] = {"description": _FAILS["404"], "content": error}
    if path == "/health":
        made["responses"]["503"] = {"description": "Not ready", "content": {"application/json": {}}}
    if struct is not None:
        reference = {"$ref": f"#/components/schemas/{struct.__name__}"}
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": reference}}}
        made["responses"] |= {status: {"description": text, "content": error} for status, text in _FAILS.items()}
    return made
