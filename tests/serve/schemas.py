"""JSON schemas of the kinds that people send: by hand, and made at random."""

from __future__ import annotations

import random
from typing import Any

_RECURSIVE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["value", "next"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
BY_HAND: list[Any] = [
    True,
    {},
    {"type": "null"},
    {"const": {"a": [1, "ü", None]}},
    {"enum": ["日本", "\u2028", '"', "\\", 1.5, None, {"x": []}]},
    {"type": ["string", "null"], "maxLength": 3},
    {"type": "string", "minLength": 2, "maxLength": 2},
    {"type": "string", "pattern": "^[A-Z]{2}-\\d{3}$"},
    {"type": "string", "pattern": "ab+c"},
    {"type": "string", "pattern": "^[à-ÿ]{1,3}$"},
    {"type": "string", "pattern": "^(?:é|ß|漢)+$", "maxLength": 5},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "email"},
    {"type": "string", "format": "ipv4"},
    {"type": "integer", "minimum": -5, "exclusiveMaximum": 5},
    {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 100},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": -1, "exclusiveMaximum": 0},
    {"type": "array", "items": {"type": "string", "maxLength": 4}, "minItems": 1, "maxItems": 3},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}], "items": False, "minItems": 2},
    {"type": "array", "items": {"type": "array", "items": {"enum": [0, 1]}, "maxItems": 2}, "maxItems": 2},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"type": "object", "properties": {"ключ": {"const": "значение"}}, "required": ["ключ"]},
    {"type": "object", "properties": {'quo"te\\': {"type": "boolean"}}, "required": ['quo"te\\']},
    {"type": "object", "additionalProperties": {"type": "integer", "maximum": 9, "minimum": 0}},
    {"type": "object", "properties": {}, "additionalProperties": False},
    {"type": "object", "patternProperties": {"^x_": {"type": "boolean"}}, "additionalProperties": False},
    {"type": "object", "minProperties": 1, "maxProperties": 2},
    {"type": "object", "required": ["b"], "properties": {"a": {"type": "null"}}},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 8}]},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}, {"required": ["b"]}]},
    {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "integer"}, {"type": "array", "maxItems": 1}]},
    {"oneOf": [{"type": "string", "maxLength": 2}, {"type": "boolean"}]},
    {"oneOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 5}]},
    {"oneOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}, {"type": "object"}]},
    {"not": {"type": "string"}},
    {"if": {"type": "string"}, "then": {"maxLength": 2}, "else": {"type": "integer"}},
    {"type": "array", "uniqueItems": True, "items": {"enum": [1, 2]}, "minItems": 2},
    {"type": "array", "contains": {"const": 1}, "items": {"enum": [1, 2]}},
    {"type": "object", "dependentRequired": {"a": ["b"]}, "properties": {"a": {"type": "null"}}},
    {"type": "object", "propertyNames": {"maxLength": 2}},
    {"type": "array", "unevaluatedItems": False},
    {"definitions": {"t": {"type": "string", "maxLength": 3}}, "type": "array", "items": {"$ref": "#/definitions/t"}},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "boolean"}}},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    {"$ref": "https://example.org/elsewhere.json"},
    {"$ref": "#/$defs/missing"},
    {"type": "nothing"},
    {"type": "string", "pattern": "("},
    {"type": "string", "pattern": "^(a)\\1$"},
    {"type": "string", "pattern": "^(?=a)a$"},
    {"type": "string", "minLength": 5, "maxLength": 2},
    {"type": "integer", "minimum": 5, "maximum": 2},
    {"type": "string", "format": "of-my-own"},
    {"enum": []},
    {"minLength": "x"},
    {"properties": []},
    {"anyOf": []},
    False,
    {"type": "object", "properties": {"a": False}, "required": ["a"]},
    {"type": "string", "maxLength": 100_000},
    {"type": "array", "items": {"type": "string", "maxLength": 50}, "maxItems": 50},
    _RECURSIVE,
]
_PATTERNS = ["^[a-c]{1,4}$", "^\\d+$", "x", "^(yes|no)$", "^[^\\s]{2}$", "^.{0,3}$", "^\\w{1,5}$", "é"]


def wild(draw: random.Random, depth: int = 3, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """A schema at random.

    Args:
        names: Of definitions that it may refer to.
    """
    kinds = ["string", "pattern", "integer", "number", "enum", "boolean", "union"]
    kinds += ["array", "object", "object", "anyOf", "tuple"] if depth else []
    kinds += ["ref"] if names else []
    kind = draw.choice(kinds)
    if kind == "string":
        low = draw.randint(0, 3)
        return draw.choice([{"type": "string"}, {"type": "string", "minLength": low, "maxLength": low + 4}])
    if kind == "pattern":
        return {"type": "string", "pattern": draw.choice(_PATTERNS)}
    if kind in ("integer", "number"):
        low = draw.randint(-50, 50)
        return {"type": kind, **draw.choice([{}, {"minimum": low, "maximum": low + draw.randint(0, 90)}])}
    if kind == "enum":
        return {"enum": draw.sample(["a", "ü", "日本", "🙂", "\n", 1, -2.5, None, True, ["x"]], draw.randint(1, 4))}
    if kind == "ref":
        return {"$ref": f"#/$defs/{draw.choice(names)}"}
    if kind == "union":
        return {"type": draw.sample(["string", "null", "boolean", "integer"], 2)}
    if kind == "array":
        return {"type": "array", "items": wild(draw, depth - 1, names), "maxItems": draw.randint(0, 3)}
    if kind == "tuple":
        items = [wild(draw, depth - 1, names) for _ in range(draw.randint(1, 2))]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    if kind == "anyOf":
        return {"anyOf": [wild(draw, depth - 1, names) for _ in range(draw.randint(1, 3))]}
    if kind == "object":
        keys = draw.sample(["a", "b c", "ключ", "名", "d", "e'", 'f"'], draw.randint(1, 4))
        made = {
            "type": "object",
            "properties": {key: wild(draw, depth - 1, names) for key in keys},
            "required": [key for key in keys if draw.random() < 0.7],
        }
        return {**made, "additionalProperties": False} if draw.random() < 0.7 else made
    return {"type": "boolean"}


def at_random(seed: int) -> dict[str, Any]:
    """A schema with definitions."""
    draw = random.Random(seed)
    names = ("n0", "n1")[: draw.randint(0, 2)]
    made = wild(draw, 3, names)
    if names:
        made = {"$defs": {name: wild(draw, 1, ()) for name in names}, **made}
    return made
