"""The manifest: canonical form, suspicious parsing, and the same verdict as the `jsonschema` package."""

from __future__ import annotations

import copy
import json
import struct
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from exhaustive import amount, grows
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


# RFC 8785, appendix B: the bits of a double, and how it is written.
NUMBERS = {
    0x0000000000000000: "0",
    0x8000000000000000: "0",
    0x0000000000000001: "5e-324",
    0x8000000000000001: "-5e-324",
    0x7FEFFFFFFFFFFFFF: "1.7976931348623157e+308",
    0xFFEFFFFFFFFFFFFF: "-1.7976931348623157e+308",
    0x4340000000000000: "9007199254740992",
    0xC340000000000000: "-9007199254740992",
    0x4430000000000000: "295147905179352830000",
    0x44B52D02C7E14AF5: "9.999999999999997e+22",
    0x44B52D02C7E14AF6: "1e+23",
    0x44B52D02C7E14AF7: "1.0000000000000001e+23",
    0x444B1AE4D6E2EF4E: "999999999999999700000",
    0x444B1AE4D6E2EF4F: "999999999999999900000",
    0x444B1AE4D6E2EF50: "1e+21",
    0x3EB0C6F7A0B5ED8C: "9.999999999999997e-7",
    0x3EB0C6F7A0B5ED8D: "0.000001",
    0x41B3DE4355555553: "333333333.3333332",
    0x41B3DE4355555554: "333333333.33333325",
    0x41B3DE4355555555: "333333333.3333333",
    0x41B3DE4355555556: "333333333.3333334",
    0x41B3DE4355555557: "333333333.33333343",
    0xBECBF647612F3696: "-0.0000033333333333333333",
    0x43143FF3C1CB0959: "1424953923781206.2",
}


@pytest.mark.parametrize(("bits", "expected"), NUMBERS.items())
def test_numbers_are_written_as_ecmascript_writes_them(bits: int, expected: str) -> None:
    value = struct.unpack("<d", struct.pack("<Q", bits))[0]
    assert canonical({"n": value}) == f'{{"n":{expected}}}'.encode()
    assert parse_json(f'{{"n":{expected}}}'.encode()) == {"n": value}


def test_keys_are_sorted_by_code_units() -> None:
    """RFC 8785, section 3.2.3: a letter of two code units stands before some of one."""
    value = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\x80": 6, "\xf6": 7}
    expected = '{"\\r":2,"1":4,"\x80":6,"\xf6":7,"\u20ac":1,"\U0001f600":5,"\ufb33":3}'.encode()
    assert canonical(value) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [("1.0", 1), ("-0", 0), ("-0.0", 0), ("1e2", 100), ("9007199254740993", 9007199254740992.0), ("1.5E-1", 0.15)],
)
def test_a_number_is_what_a_double_makes_of_it(text: str, value: float) -> None:
    found = parse_json(f'{{"n":{text}}}'.encode())["n"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("text", ["1e309", "-1e309", "9" * 65, "0." + "1" * 63])
def test_a_number_that_no_double_holds_or_that_has_no_end(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        parse_json(f'{{"n":{text}}}'.encode())


@pytest.mark.parametrize(
    "value", [float("nan"), float("-inf"), 1 << 53, -(1 << 53), {1: 1}, "\ud800", {"\ud800": 1}, {"a": [{0.5}]}]
)
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
    bad["model"]["bytes_by_type"] = {"F32": "x" * 1_000_000, "\ud800" * 1_000_000: 1, "\xe9": "x"}
    for where, message in schema_faults(bad):
        assert len(where) < 100
        assert len(message) < 200
        message.encode()


# ---------------------------------------------------------------- parity with jsonschema

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
        1.0,
        1e300,
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


@grows
@settings(max_examples=amount(200, 1500), deadline=None)
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
