"""Golden files: what a release wrote, every later version opens, finds valid, and reads as that release did.

They are frozen: the digests here are those of the day of the release. A test that fails tells of a reader that broke
its promise (spec/compatibility.md); neither the files nor these digests may be changed to mend it.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from golden_maker import EXPECTED, FOLDER, describe, make

import gpack
from gpack.cli import main
from gpack.conformance.parts import Parts
from gpack.conformance.recipes.bases import everything
from gpack.convert.embed import pack_experts
from gpack.errors import UnsupportedError
from gpack.sections.verify import verify

DIGESTS = {
    "1.0/everything.gpack": "bbfb96b66e7f316f640b8b29485d424b5451cdd9492dc19bf0707f76a38bcad0",
    "1.0/expected.json": "89c1a4edb0c32ef4e77a4b9f1743ff35f09d13d324c2bd3bd2cbb85a00f3a65e",
    "1.0/external-00001-of-00003.gguf": "df297694fc934e0ace5bc461e9a90b742b9b4fc5152b771acba55d929789dc7a",
    "1.0/external-00002-of-00003.gguf": "38fa270b559b178edeb19a0fcc4de581c5a9811d5ef338058f85d3428d40f68e",
    "1.0/external-00003-of-00003.gguf": "bc430a9e619a5513cca27c6f3fd5958423c2dba9f4748179770e2df068509deb",
    "1.0/external.gpack": "a8b83273c999d9777008d6880857d8dcdd5cf9c4c6f014bb376f83226ca8bf41",
    "1.0/foreign.gpack": "b00a80ab327e86acaf0401ca103a0fffb04e3d24a118a1eed5bb6cf47ed09e86",
    "1.0/imported.gpack": "68bd380a937bca7abf96040047cdcc9dc0e4139390bbd57ce9b0ac6cad4a39d3",
    "1.0/plain.gpack": "d0774ea83e38571f85edfcc8e975dfe4488f0a59fe45504df2be7cf804256689",
    "1.0/planes.gpack": "6a47421b3cd5dd7efd9dc5ebf4180624ce9ca34bae3831f9b5db674447f35805",
}
PACKS = sorted(name for name in DIGESTS if name.endswith(".gpack"))
# Files with everything that they need for a GGUF: those of the foreign types and of code planes have none.
EXPORTED = ("everything", "external", "imported")


def expected(name: str) -> dict[str, Any]:
    path = FOLDER / name
    info: dict[str, Any] = json.loads((path.parent / EXPECTED).read_text())[path.name]
    return info


def test_the_files_are_the_frozen_ones() -> None:
    found = {
        str(path.relative_to(FOLDER)): sha256(path.read_bytes()).hexdigest()
        for path in FOLDER.rglob("*")
        if path.is_file()
    }
    assert found == DIGESTS


@pytest.mark.parametrize("name", PACKS)
def test_it_is_valid(name: str) -> None:
    report = verify(FOLDER / name, shards=True)
    assert report.ok
    assert report.report.counts == {}
    assert main(["verify", str(FOLDER / name)]) == 0


@pytest.mark.parametrize("name", PACKS)
def test_it_says_what_it_said(name: str) -> None:
    now = json.loads(json.dumps(describe(FOLDER / name)))
    then = expected(name)
    for tensor, (type_name, dims, octets, values) in then.pop("tensors").items():
        found = now["tensors"][tensor]
        assert found[:3] == [type_name, dims, octets], tensor
        # A type that had no dequantiser may have one by now.
        assert found[3] == values or "." in values, tensor
    # A version that knows more may say more, but nothing else.
    assert {key: now[key] for key in then} == then


@pytest.mark.parametrize("name", PACKS)
def test_its_experts_and_its_gguf(name: str, tmp_path: Path) -> None:
    if Path(name).stem not in EXPORTED:
        return
    gpack.export_gguf(FOLDER / name, tmp_path / "m.gguf")
    with gpack.open(FOLDER / name) as pack:
        mode = pack.manifest.get("experts", {}).get("mode")
    if mode == "external":
        pack_experts(FOLDER / name, tmp_path / "e.gpack")
        found = gpack.diff(FOLDER / name, tmp_path / "e.gpack")
        assert not found.not_compared
        assert not any(
            "bytes" in entry.changes or entry.detail.get("differing_bytes")
            for entry in found.differences
            if entry.part == "tensor"
        )


def test_golden_files_are_never_made_again() -> None:
    for release in sorted(path.name for path in FOLDER.iterdir()):
        with pytest.raises(SystemExit, match="never made again"):
            make(FOLDER / release)


# --- files of a later version that readers of version 1 may read ---


def test_a_later_version_s_file_opens(tmp_path: Path) -> None:
    """format_version 2, a kind of section and keys that are not known, and an asset: nothing is wrong with that."""
    later = Parts.parse(everything())
    later.bound_header["format_version"] = 2
    later.manifest["novel"] = {"a": 1}
    later.manifest["model"]["novel"] = 2
    later.add(1000, b"abc", 1, name="NewKind")
    (tmp_path / "m.gpack").write_bytes(later.seal())
    assert verify(tmp_path / "m.gpack").report.counts == {}
    found = gpack.diff(FOLDER / "1.0" / "everything.gpack", tmp_path / "m.gpack")
    assert found.counts.keys() == {"header", "directory", "footer", "manifest"}


def test_longer_rows_are_read(tmp_path: Path) -> None:
    """Fields after those that are known: rows are further apart, and say the same."""
    later = Parts.parse(everything())
    for kind in (0, 1, 2, 4):
        later.rebuild(kind, later.entries(kind), row_size=later.get(kind).row_size + 16)
    (tmp_path / "m.gpack").write_bytes(later.seal())
    assert verify(tmp_path / "m.gpack").report.counts == {}
    then, now = expected("1.0/everything.gpack"), describe(tmp_path / "m.gpack")
    assert json.loads(json.dumps([now["metadata"], now["tensors"]])) == [then["metadata"], then["tensors"]]


def test_a_file_for_later_readers_is_refused_by_name(tmp_path: Path) -> None:
    later = Parts.parse(everything())
    later.bound_header |= {"format_version": 2, "min_reader_version": 2}
    (tmp_path / "m.gpack").write_bytes(later.seal())
    with pytest.raises(UnsupportedError) as caught:
        gpack.open(tmp_path / "m.gpack")
    assert caught.value.code == "header.min_reader_version"
