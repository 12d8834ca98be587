"""The browser page: its modules over every vector, and the page itself in Chromium, opened from disk.

Chromium is Debian's package `chromium` (or the program that GPACK_CHROMIUM names); npm's `playwright-core` drives it:
`npm install --prefix .venv/kaitai playwright-core`, or a `node_modules` folder named by GPACK_NODE_MODULES.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf_maker import write_gguf

from conformance.browser import build
from conformance.readers.build import ROOT, MissingToolError
from gpack.conformance import vectors
from gpack.conformance.parts import Parts
from gpack.conformance.recipes import bases
from gpack.conformance.vectors import Vector
from gpack.convert.gguf import convert_gguf
from gpack.generated.constants import PRIVATE_KIND, SectionKind
from gpack.generated.structs import GPackHeaderV1, GPackSectionEntryV1

HERE = Path(__file__).parent
Answers = list[dict[str, Any]]


@pytest.fixture(scope="module")
def known() -> dict[str, Vector]:
    return {vector.id: vector for vector in vectors.load()}


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's modules as files that Node can load."""
    folder = tmp_path_factory.mktemp("modules")
    try:
        made = build.modules()
    except MissingToolError as error:
        pytest.skip(str(error))
    for name, text in made.items():
        path = folder / ("node_modules" if "/" in name else "") / f"{name}.js"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


# ---------------------------------------------------------------- without a browser


@pytest.fixture(scope="module")
def over_vectors(modules: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("vectors")
    vectors.write_all(vectors.load(), folder)
    command = ["node", str(HERE / "browser_modules.cjs"), str(modules), str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    info: dict[str, Any] = json.loads(done.stdout)
    return info


def test_valid_vectors_have_no_problem(over_vectors: dict[str, Any], known: dict[str, Vector]) -> None:
    accepted = [vector for vector in known.values() if vector.expect == "accept"]
    assert len(accepted) > 100
    wrong = {v.id: over_vectors["found"][v.id] for v in accepted if over_vectors["found"][v.id]["rules"]}
    assert not wrong
    assert {over_vectors["found"][vector.id]["kaitai"] for vector in accepted} == {"accept"}


def test_every_rule_that_the_page_claims_is_seen(over_vectors: dict[str, Any], known: dict[str, Vector]) -> None:
    """Each invalid vector breaks its rule on the page, where the page says that it checks that rule."""
    checked = set(over_vectors["checked"])
    assert len(checked) > 100
    rejected = [vector for vector in known.values() if vector.expect == "reject" and vector.rules[0] in checked]
    assert checked - {"expert.uncovered"} <= {vector.rules[0] for vector in rejected}
    missed = {v.id: over_vectors["found"][v.id]["rules"] for v in rejected if v.rules[0] not in _rules(over_vectors, v)}
    assert not missed


def first_of(known: dict[str, Vector], rule: str) -> Vector:
    """The first vector that breaks a rule."""
    return next(vector for name, vector in known.items() if name.startswith(f"invalid/{rule}/"))


def test_problems_name_the_field_and_its_place(over_vectors: dict[str, Any], known: dict[str, Vector]) -> None:
    """The paths of the vectors, and bytes inside the fields, so that the page and `gpack-conformance` say the same.

    Elsewhere: digests are shown where they stand in the file, and sums may be told by another of their fields.
    """
    elsewhere = {"section.sha256", "manifest.sha256", "tensor.position", "tensor.totals"}
    wrong, compared = [], 0
    for vector in known.values():
        info = [p for p in over_vectors["found"][vector.id]["problems"] if p["rule"] == vector.rules[0]]
        comparable = info and vector.expect == "reject" and vector.path and vector.range
        if not comparable or vector.rules[0] in elsewhere:
            continue
        compared += 1
        if vector.path not in [problem["path"] for problem in info]:
            wrong.append((vector.id, vector.path, info))
    assert not wrong
    assert compared > 250
    for rule in ("header.section_count", "tensor.dims", "assets.alignment", "footer.magic", "index.num_rows"):
        vector = first_of(known, rule)
        info = [p for p in over_vectors["found"][vector.id]["problems"] if p["rule"] == vector.rules[0]]
        assert vector.range
        assert vector.range[0] <= info[0]["offset"] < sum(vector.range), rule


def test_sha256_is_that_of_node(over_vectors: dict[str, Any]) -> None:
    assert over_vectors["hashed"] == 261


def _rules(info: dict[str, Any], vector: Vector) -> list[str]:
    rules: list[str] = info["found"][vector.id]["rules"]
    return rules


def test_colours_have_contrast() -> None:
    """WCAG 2.1, 1.4.3: text has a contrast of 4.5 to its ground, in the light and in the dark colours."""
    style = (ROOT / "conformance" / "browser" / "style.css").read_text()
    themes = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part)) for part in style.split("@media (prefers")[:2]]
    pairs = [(ink, ground) for ink in ("ink", "quiet", "accent", "bad", "good") for ground in ("paper", "page", "row")]
    pairs += [(name, f"{name}-paper") for name in ("good", "bad", "fair")] + [("paper", "accent")]
    assert len(themes) == 2
    for theme in themes:
        for ink, ground in pairs:
            assert _contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground, theme)


def _contrast(one: str, other: str) -> float:
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


# ---------------------------------------------------------------- in Chromium


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Answers], Answers]:
    """Opens the page and does what it is told; skips where a program is absent."""
    browser = os.environ.get("GPACK_CHROMIUM") or shutil.which("chromium")
    if not browser:
        pytest.skip("chromium is not installed")
    places = [ROOT / ".venv" / "kaitai" / "node_modules", Path.home() / ".cache" / "gpack" / "node_modules"]
    places += [Path(given)] if (given := os.environ.get("GPACK_NODE_MODULES")) else []
    modules = next((place for place in places if (place / "playwright-core").is_dir()), None)
    if not modules:
        pytest.skip(f"playwright-core is in none of {', '.join(map(str, places))}")
    folder = tmp_path_factory.mktemp("browser")
    page = folder / "page.html"
    try:
        page.write_text(build.page(), "utf-8")
    except MissingToolError as error:
        pytest.skip(str(error))

    def run(orders: Answers) -> Answers:
        command = ["node", str(HERE / "browser_drive.cjs"), str(page), browser, str(folder / "page.png")]
        environment = {**os.environ, "NODE_PATH": str(modules)}
        done = subprocess.run(
            command, check=False, input=json.dumps(orders), env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        answers: Answers = json.loads(done.stdout)
        return answers

    return run


Drive = Callable[[Answers], Answers]


def test_a_pack_is_shown_and_its_digests_checked(drive: Drive, known: dict[str, Vector], tmp_path: Path) -> None:
    path = known["valid/everything"].write(tmp_path)
    tensors, sections, tokens, assets = drive(
        [
            {"open": str(path), "hash": 1, "tab": "Tensors", "filter": "attn"},
            {"open": str(path), "tab": "Sections", "click": "DenseIndexBin"},
            {"open": str(path), "tab": "Tokenizer"},
            {"open": str(path), "tab": "Assets"},
        ]
    )
    assert tensors["verdict"] == "The structure is right; all digests are right"
    assert tensors["digests"] == ["✓ right"] * 15
    assert tensors["facts"]["Tensors"] == "23"
    assert tensors["problems"] == []
    assert tensors["tabs"][2:7] == ["Metadata (40)", "Tensors (23)", "Experts (2)", "Tokenizer (272)", "Assets (3)"]
    assert [row[0] for row in tensors["rows"]] == [
        "blk.0.attn_k.weight",
        "blk.0.attn_norm.weight",
        "blk.0.attn_q.weight",
        "blk.0.attn_v.weight",
        "blk.3.attn_norm.weight",
    ]
    assert tensors["rows"][2][1:5] == ["Q4_0", "32 \u00d7 32", "1,024", "576 bytes"]
    assert tensors["unlabelled"] == 0
    assert "Directory entry 2" in sections["text"]
    assert "blk.0.attn_k.weight" in [row[0] for row in sections["rows"]]
    assert "Chat template" in tokens["text"] or len(tokens["rows"]) == 200
    assert [row[0] for row in assets["rows"]] == ["empty", "merges.txt", "tokenizer.json"]


def test_damage_is_shown_with_its_place(drive: Drive, known: dict[str, Vector], tmp_path: Path) -> None:
    ids = ("section.overlap", "header.min_reader_version", "manifest.json", "header.complete", "header.magic")
    paths = [first_of(known, name).write(tmp_path) for name in ids]
    for name, answer in zip(ids, drive([{"open": str(path)} for path in paths]), strict=True):
        assert answer["kind"] == "verdict bad"
        first = next(lines for lines in answer["problems"] if lines[0].startswith(name))
        assert first[2].startswith("Must hold: ")
        assert re.search(r"[Bb]ytes? [\d,]+", first[2])


def test_a_changed_byte_is_found_by_its_digest(drive: Drive, known: dict[str, Vector], tmp_path: Path) -> None:
    data = bytearray(known["valid/everything"].data())
    path = tmp_path / "changed.gpack"
    data[_expert_bytes(data)] ^= 1  # of a weight, which no rule of structure speaks of
    path.write_bytes(data)
    answer = drive([{"open": str(path), "hash": 2}])[0]
    assert [lines[0].split()[0] for lines in answer["problems"]] == ["section.sha256"]
    assert sorted(answer["digests"]) == ["✓ right"] * 14 + ["✗ wrong"]


def test_sections_too_long_for_webcrypto_are_hashed_in_pieces(drive: Drive, tmp_path: Path) -> None:
    """One byte more than the 64 MiB that worker.js hands to WebCrypto."""
    pack = Parts.parse(bases.plain())
    pack.add(PRIVATE_KIND + 1, b"\x5a" * (64 << 20) + b"\xa5", 0, name="long")
    (tmp_path / "long.gpack").write_bytes(pack.seal())
    answer = drive([{"open": str(tmp_path / "long.gpack"), "hash": 1}])[0]
    assert answer["digests"] == ["✓ right"] * 4
    assert answer["kind"] == "verdict good"


def _expert_bytes(data: bytes | bytearray) -> int:
    """Where ExpertBlobs begins."""
    header = GPackHeaderV1.decode(data)
    places = [header.section_table_offset + GPackSectionEntryV1.SIZE * index for index in range(header.section_count)]
    entries = [GPackSectionEntryV1.decode(data, place) for place in places]
    return int(next(entry.offset for entry in entries if entry.kind == SectionKind.EXPERT_BLOBS))


def test_20_gib_open(drive: Drive, known: dict[str, Vector], tmp_path: Path) -> None:
    path = known["valid/giant"].write(tmp_path)
    if path.stat().st_blocks * 512 > 64 << 20:
        pytest.skip("this file system has no sparse files")
    answer = drive([{"open": str(path)}])[0]
    assert answer["verdict"] == "The structure is right; digests are not checked yet"
    assert answer["facts"]["Size"].startswith("20.0 GiB")


def test_other_files(drive: Drive, tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "model.gguf", [("general.architecture", "str", "t")], [])
    (tmp_path / "empty.gpack").write_bytes(b"")
    (tmp_path / "text.gpack").write_bytes(b"hello, " * 100)
    other, empty, text = drive([{"open": str(tmp_path / name)} for name in (gguf.name, "empty.gpack", "text.gpack")])
    assert "guild convert" in other["problems"][0][1]
    assert empty["problems"][0][0].startswith("header.complete")
    assert 'Found "hell". This is no GPACK file.' in text["problems"][0][1]


def test_text_of_a_file_is_never_markup(drive: Drive, tmp_path: Path) -> None:
    evil = "<img src=x onerror='document.title=1'><script>alert(1)</script>"
    source = write_gguf(
        tmp_path / "evil.gguf",
        [("general.name", "str", evil), (f"{evil}.key", "str", evil)],
        [(evil, 0, (1,), bytes(4))],
    )
    convert_gguf(source, tmp_path / "evil.gpack")
    answer = drive([{"open": str(tmp_path / "evil.gpack"), "tab": "Metadata"}])[0]
    assert answer["foreign"] == 0
    assert f"{evil}.key" in [row[0] for row in answer["rows"]]


def test_dropped_files_keys_and_no_connection(drive: Drive, known: dict[str, Vector]) -> None:
    data = base64.b64encode(known["valid/everything"].data()).decode()
    dropped, keys, before, connect = drive(
        [{"drop": {"name": "dropped.gpack", "base64": data}}, {"keys": True}, {"connect": True}]
    )
    assert dropped["facts"]["File"] == "dropped.gpack"
    assert keys["seen"][:3] == ["Sections", "Metadata (40)", "Header and footer"]
    assert keys["seen"][3:] == ["Checks", "Header and footer", "Checks"]
    assert keys["outline"] == "solid"
    assert before == {"faults": [], "requests": ["file", "blob"]}
    assert connect["fetched"] == "refused"
    assert connect["refused"] == ["connect-src", "img-src", "script-src-elem"]
    assert not connect["injected"]
