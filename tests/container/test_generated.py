"""Generated code against the vectors of the schema: struct, numpy and construct give the same values and bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpack.generated import constructs, dtypes, rules, structs
from gpack.generated.rules import RULES

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "spec" / "vectors" / "structs").glob("*.json"))
GOOD: list[Any] = []
VECTORS: list[Any] = []
for _path in FILES:
    _file = json.loads(_path.read_text())
    for _vector in _file["vectors"]:
        _param = pytest.param(_file["struct"], _vector, id=f"{_file['struct']}-{_vector['name']}")
        VECTORS.append(_param)
        if _vector["valid"]:
            GOOD.append(_param)
RECORDS = {path.stem: getattr(structs, path.stem) for path in FILES}


def snake(name: str) -> str:
    """GPackHeaderV1 is gpack_header_v1 in names of functions and, in capitals, of dtypes."""
    return next(
        function.removeprefix("check_")
        for function in dir(rules)
        if function.startswith("check_") and function.removeprefix("check_").replace("_", "") == name.lower()
    )


def plain(value: Any) -> Any:
    """A value as JSON has it: bytes as hex, text without its NULs, arrays as lists."""
    if hasattr(value, "intvalue"):  # construct's name of an enum's number
        return int(value.intvalue)
    if isinstance(value, np.void):
        return value.tobytes().hex()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple | list):
        return list(value)
    return int(value) if isinstance(value, np.integer | int) else value


def text(value: bytes) -> str:
    return value.rstrip(b"\0").decode("ascii")


def test_there_is_a_vector_for_every_record() -> None:
    records = {
        name
        for name, item in vars(structs).items()
        if isinstance(item, type) and issubclass(item, structs.Record) and item.SIZE
    }
    assert records == set(RECORDS)


@pytest.mark.parametrize(("name", "vector"), VECTORS)
def test_struct(name: str, vector: dict[str, Any]) -> None:
    record, data = RECORDS[name], bytes.fromhex(vector["hex"])
    assert len(data) == record.SIZE
    decoded = record.decode(data)
    assert decoded.encode() == data
    assert record.decode(b"?" * 7 + data, 7) == decoded
    for field, value in vector["values"].items():
        found = getattr(decoded, field)
        assert (text(found) if field == "name" and isinstance(found, bytes) else plain(found)) == value


@pytest.mark.parametrize(("name", "vector"), GOOD)
def test_built_from_its_values(name: str, vector: dict[str, Any]) -> None:
    record = RECORDS[name]
    made = record()
    for field, value in vector["values"].items():
        item = tuple(value) if isinstance(value, list) else value
        if isinstance(getattr(made, field), bytes):
            item = value.encode().ljust(24, b"\0") if field == "name" else bytes.fromhex(value)
        setattr(made, field, item)
    assert made.encode().hex() == vector["hex"]


@pytest.mark.parametrize(("name", "vector"), VECTORS)
def test_numpy(name: str, vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    dtype = getattr(dtypes, snake(name).upper())
    assert dtype.itemsize == len(data)
    row = np.frombuffer(data, dtype)[0]
    for field, value in vector["values"].items():
        found = row[field]
        assert (text(bytes(found)) if isinstance(found, np.bytes_) else plain(found)) == value
    assert {field: dtype.fields[field][1] for field in dtype.names} == RECORDS[name].OFFSETS
    longer = dtypes.with_itemsize(dtype, len(data) + 8)
    first = dtype.names[0]
    assert [r[first] for r in np.frombuffer((data + b"\xee" * 8) * 2, longer)] == [row[first]] * 2


@pytest.mark.parametrize(("name", "vector"), GOOD)
def test_construct(name: str, vector: dict[str, Any]) -> None:
    kind = getattr(constructs, name)
    data = bytes.fromhex(vector["hex"])
    parsed = kind.parse(data)
    for field, value in vector["values"].items():
        assert plain(parsed[field]) == value
    assert kind.build(parsed) == data
    values = {
        field: bytes.fromhex(value) if isinstance(value, str) and field != "name" else value
        for field, value in vector["values"].items()
    }
    assert kind.build(values) == data


@pytest.mark.parametrize(("name", "vector"), VECTORS)
def test_checks(name: str, vector: dict[str, Any]) -> None:
    decoded = RECORDS[name].decode(bytes.fromhex(vector["hex"]))
    check = getattr(rules, f"check_{snake(name)}")
    found = {rule for rule, _ in check(decoded, **vector.get("given", {}))}
    expected = set(vector.get("breaks", ()))
    assert (not found) == vector["valid"]
    assert expected <= found
    assert found <= expected | {other for rule in expected for other in RULES[rule].implies}
    quick = getattr(rules, f"quick_{snake(name)}", None)
    if quick:
        assert {rule for rule, _ in quick(decoded, **vector.get("given", {}))} == {
            rule for rule in found if RULES[rule].quick
        }


def values_of(record: type[Any]) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=record.SIZE, max_size=record.SIZE)


@pytest.mark.parametrize("name", sorted(RECORDS))
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_any_bytes_come_back(name: str, data: st.DataObject) -> None:
    record = RECORDS[name]
    octets = data.draw(values_of(record))
    decoded = record.decode(octets)
    assert decoded.encode() == octets
    assert record.decode(decoded.encode()) == decoded
    assert hash(record.decode(octets)) == hash(decoded)
    assert list(decoded.to_dict()) == list(record.FIELDS)


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_short_buffers_are_refused(name: str) -> None:
    record = RECORDS[name]
    for length in (0, 1, record.SIZE - 1):
        with pytest.raises(Exception, match="buffer"):
            record.decode(bytes(length))
