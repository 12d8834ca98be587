"""The manifest: canonical form, suspicious parsing, and the same verdict as the `jsonschema` package."""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpack.conformance.parts import Parts
from gpack.conformance.recipes import bases as packs
from gpack.container.manifest import canonical, parse_json, parse_manifest, schema_faults
from gpack.errors import FormatError

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "schema" / "manifest.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
GOOD: dict[str, Any] = parse_json(bytes(Parts.parse(packs.everything()).section(14).data))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, b"{}"),
        ({"b": 1, "a": 2}, b'{"a":2,"b":1}'),
        ({"1": 0, "10": 1, "2": 2}, b'{"1":0,"10":1,"2":2}'),  # keys are text, not numbers
        ({"a": [], "A": {}, "_": None}, b'{"A":{},"_":null,"a":[]}'),  # by code unit: capitals, underscore, small
        ([True, False, None, -1, 9007199254740991], b"[true,false,null,-1,9007199254740991]"),
        # RFC 8785, section 3.2.2.2: the escapes that it uses, and no others.
        ('\u20ac$\u000f\nA\'B"\\\\"/', '"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'.encode()),
        ("\b\t\n\f\r\x00\x1f\x7f\u2028", '"\\b\\t\\n\\f\\r\\u0000\\u001f\x7f\u2028"'.encode()),
        ({"a": "\U0001f600"}, b'{"a":"\xf0\x9f\x98\x80"}'),
    ],
)
def test_canonical_form(value: Any, expected: bytes) -> None:
    assert canonical(value) == expected


@pytest.mark.parametrize("value", [1.0, float("nan"), 1 << 53, -(1 << 53), {"\xe9": 1}, {1: 1}, "\ud800", {"a": [0.5]}])
def test_what_has_no_canonical_form(value: Any) -> None:
    with pytest.raises(FormatError) as caught:
        canonical(value)
    assert caught.value.code == "manifest.json"


def test_canonical_refuses_deep_nesting() -> None:
    value: Any = 0
    for _ in range(100_000):
        value = [value]
    with pytest.raises(FormatError):
        canonical(value)
    while value:  # or the interpreter frees it recursively
        value = value[0]


def test_depth_is_counted_outside_strings() -> None:
    assert parse_json(b'{"a":"[[[[[[[[[[[[[[[[[[[[[[[","b":"\\"[[[[[[[[[[[[[[[[[[[["}')
    assert parse_json(b'{"a":' + b"[" * 15 + b"]" * 15 + b"}")
    with pytest.raises(ValueError, match="nested"):
        parse_json(b'{"a":' + b"[" * 16 + b"]" * 16 + b"}")


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":"' + b'\\"' * 4_000_000,  # a string without an end, with millions of places to begin again
        b'{"' + b'":1,"'.join(b"%d" % i for i in range(400_000)) + b'":1,"7":1}',  # the last of many keys is doubled
        b"[" * 8_000_000,
        b'{"a":' + b"1" * 8_000_000 + b"}",
        b'{"a":' + b"-" + b"9" * 8_000_000 + b"}",
        bytes(100 << 20),
    ],
    ids=["endless string", "doubled key", "depth", "number", "negative number", "100 MB"],
)
def test_hostile_json_ends_soon(data: bytes) -> None:
    started = time.process_time()
    with pytest.raises(ValueError):  # noqa: PT011  whichever comes first
        parse_json(data)
    assert time.process_time() - started < 60


def test_parse_manifest_names_the_rule() -> None:
    with pytest.raises(FormatError) as caught:
        parse_manifest(b"[]", path="x")
    assert (caught.value.code, caught.value.path) == ("manifest.json", "x")
    with pytest.raises(FormatError) as caught:
        parse_manifest(b'{"schema":"guild.gpack.v1"}')
    assert caught.value.code == "manifest.schema"


def test_messages_stay_short() -> None:
    bad = copy.deepcopy(GOOD)
    bad["schema"] = "\ud800" * 1_000_000
    bad["model"]["bytes_by_type"] = {"F32": "x" * 1_000_000}
    for where, message in schema_faults(bad):
        assert len(where) < 100
        assert len(message) < 200
        message.encode()


# ---------------------------------------------------------------- parity with jsonschema

# Numbers that JSON Schema takes for integers and canonical form refuses (1.0) are left out.
JUNK = st.sampled_from(
    [
        None,
        True,
        False,
        0,
        1,
        -1,
        64,
        4096,
        65536,
        1 << 32,
        1 << 53,
        "",
        "x",
        "a" * 24,
        "a" * 256,
        "0" * 64,
        "G" * 64,
        [],
        {},
        [0],
        {"a": 1},
        "guild.gpack.v1",
        "embedded",
        0.5,
    ]
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values inside."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


PLACES = places(GOOD)[1:]


def test_the_good_one_is_good() -> None:
    VALIDATOR.validate(GOOD)
    assert list(schema_faults(GOOD)) == []


@settings(max_examples=1500, deadline=None)
@given(
    place=st.sampled_from(PLACES), junk=JUNK, drop=st.booleans(), extra=st.sampled_from(["shards", "pre", "new", None])
)
def test_the_same_verdict_as_jsonschema(place: tuple[Any, ...], junk: Any, drop: bool, extra: str | None) -> None:
    value = copy.deepcopy(GOOD)
    holder: Any = value
    for key in place[:-1]:
        holder = holder[key]
    if drop:
        del holder[place[-1]]
    else:
        holder[place[-1]] = junk
    if extra and isinstance(holder, dict):
        holder[extra] = junk
    ours = list(schema_faults(value))
    theirs = list(VALIDATOR.iter_errors(value))
    assert bool(ours) == bool(theirs), (ours, theirs)


@pytest.mark.parametrize("value", [0, "x", [], None, {}])
def test_anything_but_a_manifest(value: Any) -> None:
    assert list(schema_faults(value))
    assert not VALIDATOR.is_valid(value)


def test_a_line_feed_is_no_end_of_a_digest() -> None:
    """Python's `$` matches before a last line feed; JSON Schema's does not."""
    value = copy.deepcopy(GOOD)
    value["sections"][0]["sha256"] = "0" * 64 + "\n"
    assert [where for where, _ in schema_faults(value)] == ["$.sections[0].sha256"]


def test_keywords_of_the_schema_are_all_understood() -> None:
    understood = {
        "type",
        "const",
        "enum",
        "required",
        "properties",
        "additionalProperties",
        "items",
        "maxItems",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "pattern",
        "description",
        "title",
        "$schema",
        "$id",
        "$comment",
    }

    def walk(schema: dict[str, Any]) -> set[str]:
        used = set(schema)
        for child in schema.get("properties", {}).values():
            used |= walk(child)
        for key in ("items", "additionalProperties"):
            if isinstance(schema.get(key), dict):
                used |= walk(schema[key])
        return used

    assert walk(SCHEMA) <= understood
