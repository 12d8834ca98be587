"""The fields of requests, as their protocols define them; what is not declared here is refused by its name.

`WITHOUT_EFFECT` lists fields that cannot change an answer: they are accepted, whatever they hold.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import msgspec

from .failures import bad

T = TypeVar("T")

# By protocol: fields that are accepted and ignored.
WITHOUT_EFFECT: dict[str, tuple[str, ...]] = {
    "chat": (
        "user",
        "metadata",
        "store",
        "service_tier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "prediction",
    ),
    "completions": ("user", "metadata", "store", "service_tier", "prompt_cache_key"),
    "responses": (
        "user",
        "metadata",
        "service_tier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
    ),
    "messages": ("metadata", "service_tier", "cache_control"),
    "embeddings": ("user",),
    "tokens": (),
}

_SAMPLING: list[tuple[str, Any, Any]] = [
    ("temperature", float | None, None),
    ("top_p", float | None, None),
    ("top_k", int | None, None),
    ("min_p", float | None, None),
    ("repeat_penalty", float | None, None),
    ("presence_penalty", float | None, None),
    ("frequency_penalty", float | None, None),
    ("seed", int | None, None),
]
_STREAM: list[tuple[str, Any, Any]] = [("stream", bool | None, None), ("stream_options", dict[str, Any] | None, None)]


def _struct(name: str, protocol: str, fields: list[tuple[str, Any] | tuple[str, Any, Any]]) -> Any:
    ignored: list[tuple[str, Any, Any]] = [(field, Any, None) for field in WITHOUT_EFFECT[protocol]]
    return msgspec.defstruct(name, [*fields, *ignored], kw_only=True, forbid_unknown_fields=True, module=__name__)


Chat = _struct(
    "Chat",
    "chat",
    [
        ("model", str),
        ("messages", list[dict[str, Any]]),
        *_SAMPLING,
        *_STREAM,
        ("max_tokens", int | None, None),
        ("max_completion_tokens", int | None, None),
        ("n", int | None, None),
        ("stop", str | list[str] | None, None),
        ("logprobs", bool | None, None),
        ("top_logprobs", int | None, None),
        ("logit_bias", dict[str, float] | None, None),
        ("response_format", dict[str, Any] | None, None),
        ("tools", list[dict[str, Any]] | None, None),
        ("tool_choice", str | dict[str, Any] | None, None),
        ("parallel_tool_calls", bool | None, None),
        ("modalities", list[str] | None, None),
        ("reasoning_effort", str | None, None),
        ("chat_template_kwargs", dict[str, Any] | None, None),
        ("ignore_eos", bool | None, None),
        ("verbosity", str | None, None),
    ],
)
Completions = _struct(
    "Completions",
    "completions",
    [
        ("model", str),
        ("prompt", str | list[Any]),
        *_SAMPLING,
        *_STREAM,
        ("max_tokens", int | None, None),
        ("n", int | None, None),
        ("best_of", int | None, None),
        ("echo", bool | None, None),
        ("suffix", str | None, None),
        ("stop", str | list[str] | None, None),
        ("logprobs", int | None, None),
        ("logit_bias", dict[str, float] | None, None),
        ("grammar", str | None, None),
        ("ignore_eos", bool | None, None),
    ],
)
Responses = _struct(
    "Responses",
    "responses",
    [
        ("model", str),
        ("input", str | list[dict[str, Any]]),
        *_SAMPLING,
        *_STREAM,
        ("instructions", str | None, None),
        ("max_output_tokens", int | None, None),
        ("tools", list[dict[str, Any]] | None, None),
        ("tool_choice", str | dict[str, Any] | None, None),
        ("parallel_tool_calls", bool | None, None),
        ("text", dict[str, Any] | None, None),
        ("reasoning", dict[str, Any] | None, None),
        ("previous_response_id", str | None, None),
        ("store", bool | None, None),
        ("truncation", str | None, None),
        ("top_logprobs", int | None, None),
        ("background", bool | None, None),
        ("include", list[str] | None, None),
        ("chat_template_kwargs", dict[str, Any] | None, None),
    ],
)
_MESSAGES: list[Any] = [
    ("system", str | list[dict[str, Any]] | None, None),
    ("tools", list[dict[str, Any]] | None, None),
    ("tool_choice", dict[str, Any] | None, None),
    ("thinking", dict[str, Any] | None, None),
    ("output_config", dict[str, Any] | None, None),
]
Messages = _struct(
    "Messages",
    "messages",
    [
        ("model", str),
        ("messages", list[dict[str, Any]]),
        ("max_tokens", int),
        *[field for field in _SAMPLING if field[0] in ("temperature", "top_p", "top_k")],
        ("stop_sequences", list[str] | None, None),
        ("stream", bool | None, None),
        *_MESSAGES,
    ],
)
Counted = _struct("Counted", "messages", [("model", str), ("messages", list[dict[str, Any]]), *_MESSAGES])
Embeddings = _struct(
    "Embeddings",
    "embeddings",
    [
        ("model", str),
        ("input", str | list[Any]),
        ("encoding_format", str | None, None),
        ("dimensions", int | None, None),
    ],
)
Tokenize = _struct(
    "Tokenize",
    "tokens",
    [("model", str | None, None), ("content", str), ("add_special", bool, False), ("parse_special", bool, False)],
)
Detokenize = _struct("Detokenize", "tokens", [("model", str | None, None), ("tokens", list[int])])


def read(body: bytes, kind: Any) -> Any:
    """A request from its JSON.

    Raises:
        Failure: 400, with the field that is at fault: it is not JSON, nested too deeply, has a field that there is not,
            or one of another type.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        field = place.rstrip("`").lstrip(".") or None
        if "unknown field" in what:
            field = ".".join(filter(None, [field, what.partition("`")[2].partition("`")[0]]))
            raise bad(f"there is no field {field!r} here", field, "unknown_parameter") from None
        if "missing required" in what:
            field = what.partition("`")[2].partition("`")[0]
            raise bad(f"the field {field!r} is missing", field, "missing_required_parameter") from None
        raise bad(what, field, "invalid_type") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad(f"the body is not JSON: {error}", None, "invalid_json") from None
    except RecursionError:
        raise bad("the body is nested too deeply", None, "invalid_json") from None


def only(given: Mapping[str, Any], known: Collection[str], place: str) -> None:
    """Refuses fields of an object that are not among those that are known.

    Raises:
        Failure: 400, with the first of them.
    """
    for name in given:
        if name not in known:
            raise bad(f"there is no field {name!r} here", f"{place}.{name}", "unknown_parameter")


def texts(given: str | list[Any], param: str) -> list[str | list[int]]:
    """Texts, or tokens: one of either, or a list of them.

    Raises:
        Failure: It is neither.
    """
    items = [given] if isinstance(given, str) or (given and all(type(item) is int for item in given)) else given
    for item in items:
        if not isinstance(item, str) and not (isinstance(item, list) and all(type(token) is int for token in item)):
            raise bad(f"{param} is neither text nor tokens, nor a list of either", param, "invalid_type")
    if not items or not all(items):
        raise bad(f"{param} is empty: it has no tokens", param)
    return list(items)
