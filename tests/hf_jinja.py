"""The reference for chat templates: Jinja's own sandbox, set up as Hugging Face's `apply_chat_template` sets it up."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime(2026, 2, 3, 4, 5, 6)


class GenerationTag(jinja2.ext.Extension):
    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        inner = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_written"), [], [], inner).set_lineno(line)

    def _written(self, caller: Any) -> Any:
        return caller()


def tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class RaisedError(Exception):
    pass


def raise_exception(message: str) -> None:
    raise RaisedError(message)


def reference(source: str, **context: Any) -> str:
    """The text that Jinja gives."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = NOW.strftime
    defaults: dict[str, Any] = {"tools": None, "documents": None, "add_generation_prompt": False}
    return environment.from_string(source).render(**(defaults | context))
