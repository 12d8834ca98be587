"""Whole files through the parser that Kaitai makes, against gpack's own readers: every value of every vector.

Single records are compared in test_parity; here the parser finds its own way through a file: directory, bodies, rows,
references into the heap, the tokenizer's arrays, assets and draft tensors.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from conformance.readers.build import MissingToolError, readers
from gpack.conformance import check, dump, vectors
from gpack.conformance.vectors import Vector
from gpack.errors import GpackError
from gpack.generated.constants import SectionKind
from gpack.sections.assets import AssetTable
from gpack.sections.gbt import GbtView
from gpack.sections.table import Table

ALL = [vector for vector in vectors.load() if not vector.large]
ACCEPTED = [vector for vector in ALL if vector.expect == "accept"]
ARRAYS = ("offsets", "token_types", "merge_keys", "merge_ranks", "token_order", "byte_tokens")


@pytest.fixture(scope="module")
def driver() -> Iterator[ModuleType]:
    """The module of the Python reader, as it is built."""
    reader = readers()["python"]
    try:
        reader.make()
    except MissingToolError as error:
        pytest.skip(str(error))
    spec = importlib.util.spec_from_file_location("kaitai_reader", reader.place / "reader.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["kaitai_reader"] = module
    spec.loader.exec_module(module)
    module.build = reader.place  # type: ignore[attr-defined]
    yield module
    del sys.modules["kaitai_reader"]


@pytest.fixture(scope="module")
def reader(driver: ModuleType) -> Any:
    return driver.Reader(driver.build, "structure")


def test_files_have_equal_values(reader: Any, driver: ModuleType, tmp_path: Path) -> None:
    """Of accepted vectors, and of those whose fault a parser does not see."""
    equal = 0
    for vector in ALL:
        path = vector.write(tmp_path)
        try:
            ours = dump(path)
        except GpackError:
            ours = None
        try:
            theirs = reader.read(str(path))
        except driver.Rejected:
            assert vector.expect == "reject", vector.id
            continue
        if ours is not None:
            assert theirs == ours, vector.id
            equal += 1
        else:
            assert vector.expect == "reject", vector.id
    assert equal > len(ACCEPTED) + 200  # those with semantic faults only are equal as well


def test_what_the_parser_rejects_our_check_rejects(reader: Any, driver: ModuleType, tmp_path: Path) -> None:
    classes: dict[str, str] = {}
    for vector in (vector for vector in ALL if vector.expect == "reject"):
        path = vector.write(tmp_path)
        try:
            reader.read(str(path))
        except driver.Rejected as error:
            classes[vector.id] = error.kind
            assert not check(path).ok, vector.id
    structural = {vector.id: vector.cls for vector in ALL if vector.id in classes and vector.cls != "semantic"}
    assert structural.items() <= classes.items()
    assert len(structural) > 130


def test_bodies_are_those_of_our_readers(reader: Any) -> None:
    """Arrays, files and draft tensors that hang on instances of the grammar."""
    kinds = set()
    for vector in ACCEPTED:
        data = vector.data()
        for entry in reader.parser.Gpack.from_bytes(data).sections:
            section = data[entry.offset : entry.offset + entry.size]
            compare = BODIES.get(entry.kind)
            if compare:
                compare(entry.body, section, vector)
                kinds.add(entry.kind)
    assert kinds == BODIES.keys()


def compare_tokenizer(body: Any, section: bytes, vector: Vector) -> None:
    ours = GbtView(section)
    for name in ARRAYS:
        assert list(getattr(body, name) or []) == list(getattr(ours, name)), (vector.id, name)
    assert [number for triple in body.triples for number in triple.values] == list(ours.triples)
    assert body.special_tokens == (None if ours.special_tokens is None else list(ours.special_tokens)), vector.id
    assert (body.vocab_blob, body.chat_template) == (bytes(ours.vocab_blob), bytes(ours.chat_template))


def compare_assets(body: Any, section: bytes, vector: Vector) -> None:
    ours = AssetTable(section)
    assert {row.name: row.data for row in body.rows} == {name: bytes(ours.read(name)) for name in ours.names()}


def compare_drafts(body: Any, section: bytes, vector: Vector) -> None:
    ours: Table[Any, Any] = Table(SectionKind.MTP_BLOB, section)
    assert [row.name for row in body.rows] == [ours.text(row, "name") for row in ours], vector.id
    for row in body.rows:
        start = body.header.ofs_data + row.offset
        assert section[start : start + len(row.data)] == row.data


def compare_manifest(body: Any, section: bytes, vector: Vector) -> None:
    assert body.text.encode() == section, vector.id


BODIES = {
    SectionKind.TOKENIZER_BIN: compare_tokenizer,
    SectionKind.TOKENIZER_ASSETS: compare_assets,
    SectionKind.MTP_BLOB: compare_drafts,
    SectionKind.MANIFEST_JSON: compare_manifest,
}
