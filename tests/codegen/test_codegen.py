"""The generator: which schemas it refuses and where, and what its outputs for a small second format can do."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import construct
import numpy as np
import pytest
from exhaustive import exhaustive

from codegen.__main__ import main
from codegen.loader import load
from codegen.model import SchemaError

ROOT = Path(__file__).parents[2]
TILE = ROOT / "tests" / "codegen" / "tile.yaml"
GPACK = ROOT / "schema" / "gpack.yaml"


def changed(folder: Path, *replacements: tuple[str, str], source: Path = TILE) -> Path:
    """A copy of a schema with pieces of its text replaced; each must stand in it once."""
    text = source.read_text()
    for old, new in replacements:
        assert text.count(old) == 1, (old, text.count(old))
        text = text.replace(old, new)
    path = folder / source.name
    path.write_text(text)
    return path


def test_the_example_of_the_guide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    guide = (ROOT / "spec" / "codegen.md").read_text()
    head = "format: {id: tile, title: Tile, version: 1, endian: le, license: MIT, extension: tile, doc: A tile.}\n"
    path = tmp_path / "tile.yaml"
    path.write_text(head + "".join(re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)))
    assert main(["--schema", str(path), "--out", str(tmp_path)]) == 0
    rules = (tmp_path / "tile" / "python" / "rules.py").read_text()
    assert "from .constants" not in rules  # its rules use none
    assert 'broken.append(("tile.width", "width"))' in rules
    capsys.readouterr()


# --- schemas that are wrong ---

COUNT = '- {name: count, type: u32, unit: tiles, doc: "Number of tiles."}'
KIND = '- {name: kind, type: "ascii[4]", unit: text, doc: "Four letters."}'
ORIGIN = '- {name: origin, hex: "0000ffff 61620000", values: {at: [0, -1], kind: ab}}'
ONE = "values: {magic: 0x454C4954, layers: 18, codec: 7, default: -1, count: 2, scale: 0.5}"
NO_TILES = "- {name: no tiles, from: one, set: {count: 0}, breaks: [head.count]}"
# What is wrong: the replacement, and words that the message must have.
WRONG: dict[str, tuple[str, str, list[str]]] = {
    "unknown key": (COUNT, COUNT.replace("unit", "units"), ["structs.0.fields.4", "units"]),
    "unknown key on top": ("file:", "files:", ["$", "files"]),
    "bad type": ("type: f32", "type: f16x", ["structs.0.fields.5.type", "f16x"]),
    "unknown size of a number": ("type: f32", "type: f16", ["Head.scale", "f16"]),
    "bytes without a length": ('"ascii[4]"', "ascii", ["Place.kind", "length"]),
    "big-endian": ("endian: le", "endian: be", ["format.endian"]),
    "no docs": (', doc: "Left and top."}', "}", ["structs.1.fields.0", "doc"]),
    "a keyword": ("name: default,", "name: class,", ["Head.class", "keyword"]),
    "a name that is no name": ("name: default,", "name: Default,", ["structs.0.fields.3.name", "Default"]),
    "misaligned": (
        '{name: layers, type: u16, unit: bits, flags: Layers, doc: "What the tiles show."}\n'
        '      - {name: codec, type: u8, unit: id, enum: Codec, doc: "How pixels are packed."}',
        '{name: codec, type: u8, unit: id, enum: Codec, doc: "How pixels are packed."}\n'
        '      - {name: layers, type: u16, unit: bits, flags: Layers, doc: "What the tiles show."}',
        ["struct Head.layers", "offset 5", "aligned"],
    ),
    "doubled key": ("size: 8\n", "size: 8\n    size: 8\n", ["line 4", "'size'", "twice"]),
    "doubled field": (KIND, KIND.replace("kind,", "at,"), ["struct Place.at", "twice"]),
    "doubled struct": ("- name: Place", "- name: Head", ["'Head'", "twice"]),
    "doubled enumeration": ("- name: Codec", "- name: Layers", ["'Layers'", "twice"]),
    "doubled value": ("value: 7", "value: 0", ["value of Codec", "0", "twice"]),
    "doubled rule": ("{id: head.count,", "{id: head.magic,", ["rule", "'head.magic'", "twice"]),
    "doubled vector": ("{name: no roads, from", "{name: no tiles, from", ["'no tiles'", "twice"]),
    "doubled section kind": ("{kind: 2, id: NOISE", "{kind: 1, id: NOISE", ["section kind 1", "twice"]),
    "doubled section": ("name: Noise,", "name: Pixels,", ["'Pixels'", "twice"]),
    "wrong size": ("size: 8", "size: 12", ["struct Place", "8 bytes", "12"]),
    "no unit": ("unit: metres, ", "", ["Head.scale", "unit"]),
    "unknown enumeration": ("enum: Codec", "enum: Codex", ["Head.codec", "Codex"]),
    "unknown flags": ("flags: Layers,", "flags: Lairs,", ["Head.layers", "Lairs"]),
    "unknown parent": ("size: 8\n", "size: 8\n    include: Nobody\n", ["struct Place", "include", "Nobody"]),
    "unknown rows": ("magic: 0x454C4954\n", "magic: 0x454C4954\n    rows: Place\n", ["Head", "ofs_rows"]),
    "unknown header": ("header: Head", "header: Heed", ["sequence Pixels", "Heed"]),
    "unknown body": ("body: {sequence: Pixels}", "body: {sequence: Voxels}", ["section Pixels", "Voxels"]),
    "two bodies": ("body: {blob: true}", "body: {blob: true, table: Head}", ["sections.1.body"]),
    "unknown need": ("needs: [1]", "needs: [3]", ["section Noise", "needs", "3"]),
    "unknown file part": ("type: Place, at: 16", "type: Palace, at: 16", ["places", "Palace"]),
    "vector of another meaning": (ONE, ONE.replace("layers: 18", "layers: 2"), ["Head", "'one'", "18", "2"]),
    "vector without a value": (ONE, ONE.replace("count: 2, ", ""), ["Head", "'one'", "count"]),
    "vector of another length": (ORIGIN, ORIGIN.replace("61620000", "616200"), ["'origin'", "7 bytes", "8"]),
    "vector of half a byte": (ORIGIN, ORIGIN.replace("61620000", "6162000"), ["'origin'", "hex"]),
    "vector that is no hex": (ORIGIN, ORIGIN.replace("61620000", "6162000g"), ["structs.1.vectors.0.hex"]),
    "vector from nowhere": ("{name: no roads, from: one,", "{name: no roads, from: two,", ["'no roads'", "'two'"]),
    "vector of an unknown field": ("set: {layers: 0}", "set: {lairs: 0}", ["'no roads'", "lairs"]),
    "vector of a value that does not fit": ("set: {layers: 0}", "set: {layers: 65536}", ["'no roads'", "65536"]),
    "vector of a value of another type": ("set: {layers: 0}", "set: {layers: all}", ["'no roads'", "all"]),
    "vector that breaks nothing": (NO_TILES, NO_TILES.replace("count: 0", "count: 1"), ["'no tiles'", "head.count"]),
    "vector that breaks more": ("set: {count: 0}", "set: {count: 0, layers: 0}", ["'no tiles'", "head.roads"]),
    "vector that says too little": (
        NO_TILES,
        NO_TILES.replace(", breaks: [head.count]", ""),
        ["'no tiles'", "head.count", "[]"],
    ),
    "rule without a rejecting vector": (NO_TILES + "\n", "\n", ["head.count", "without a rejecting vector"]),
    "struct without a vector": (ORIGIN, ORIGIN[:-1] + ", breaks: [head.count]}", ["Place"]),
    "rule of an unknown name": ("check: count > 0", "check: number > 0", ["rule head.count", "number"]),
    "rule of an unknown struct": ("struct: Head, field: count", "struct: Foot, field: count", ["head.count", "Foot"]),
    "rule of an unknown field": ("field: count, check", "field: counts, check", ["head.count", "counts"]),
    "rule of an unknown flag": ("Layers.ROADS,", "Layers.RIVERS,", ["RIVERS"]),
    "rule of every open that is only recommended": (
        "level: semantic",
        "level: semantic, quick: true, recommended: true",
        ["recommended"],
    ),
    "rule of another level": ("level: semantic", "level: serious", ["rules.2.level", "serious"]),
    "rule with a call": ("check: count > 0", "check: open(count)", ["head.count", "open"]),
    "rule that leaves the language": ("check: count > 0", 'check: "[c for c in [count]]"', ["head.count", "ListComp"]),
    "rule that reaches out": ("check: count > 0", "check: __import__ == count", ["head.count", "__import__"]),
    "rule of bad grammar": ("check: count > 0", "check: count >", ["head.count"]),
    "rule that fails": ("check: count > 0", "check: 1 % (count - 2)", ["Head", "'one'", "ZeroDivisionError"]),
    "no rule at all": (", struct: Head, field: count, check: count > 0", "", ["rules.1"]),
    "key that is no text": ("format:", "7: x\nformat:", ["line 2", "7"]),
    "no YAML": ("\nflags:", "\nflags: [", ["line"]),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_schemas_are_refused_at_their_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    old, new, words = WRONG[fault]
    path = changed(tmp_path, (old, new))
    with pytest.raises(SchemaError) as caught:
        load(path)
    for word in words:
        assert word in str(caught.value)
    out = tmp_path / "out"
    assert main(["--schema", str(path), "--out", str(out)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"{path}: ")
    assert words[-1] in captured.err
    assert captured.out == ""
    assert not out.exists()


@pytest.mark.parametrize(
    "content", ["", "7", "[]", "format: {}", "\0", "\xff\xfe", "&a [*a]", "!!python/name:os.system"]
)
def test_files_that_are_no_schema(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(SchemaError):
        load(path)


def test_a_missing_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--schema", str(tmp_path / "nope.yaml"), "--out", str(tmp_path)]) == 2
    assert "nope.yaml" in capsys.readouterr().err


# --- the command ---


@pytest.fixture(scope="module")
def tile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the small format's outputs, made from the command line."""
    out = tmp_path_factory.mktemp("tile")
    command = [sys.executable, "-m", "codegen", "--schema", str(TILE), "--out", str(out)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert len(done.stdout.splitlines()) == len(files(out)) > 10
    return out / "tile"


def files(folder: Path) -> dict[str, str]:
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): path.read_text() for path in found}


def without_digests(folder: Path) -> dict[str, str]:
    return {name: re.sub(r"\b[0-9a-f]{64}\b", "DIGEST", text) for name, text in files(folder).items()}


def test_every_target_is_there(tile: Path) -> None:
    modules = ("__init__", "constants", "enums", "structs", "dtypes", "constructs", "rules", "layout", "sections")
    assert set(files(tile)) == {
        *(f"python/{name}.py" for name in modules),
        "vectors/structs/Head.json",
        "vectors/structs/Place.json",
        "tile.ksy",
        "tile.h",
        "tile.hexpat",
        "tile.md",
    }


def test_generated_files_name_the_command_and_the_digest(tile: Path) -> None:
    digest = load(TILE).digest
    for text in files(tile).values():
        head = text[:400]
        assert "make codegen" in head
        assert "python -m codegen" in head
        assert "tile.yaml" in head
        assert "Do not edit" in head
        assert digest in head


def test_two_runs_give_the_same(tile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--schema", str(TILE), "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert files(tmp_path / "tile") == files(tile)
    capsys.readouterr()
    assert main(arguments) == 0  # nothing to do
    assert capsys.readouterr().out == ""


def test_check_finds_drift(tile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def check(status: int) -> str:
        assert main(["--schema", str(TILE), "--out", str(tmp_path), "--check"]) == status
        return capsys.readouterr().out

    copy = tmp_path / "tile"
    shutil.copytree(tile, copy)
    assert check(0) == ""
    clean = files(copy)
    for name, text in clean.items():
        (copy / name).write_text(text[:-2] + ("x" if text[-2] != "x" else "y") + text[-1])  # one byte
    output = check(1)
    assert all(f"--- tile/{name} (on disk)" in output for name in clean)
    for name in clean:
        (copy / name).unlink()
    output = check(1)
    assert all(f"+++ tile/{name} (generated)" in output for name in clean)
    assert files(copy) == {}  # a check writes nothing
    for name, text in clean.items():
        (copy / name).write_text(text)
    one = copy / "tile.md"
    one.write_text(one.read_text() + "\n")
    output = check(1)
    assert output.count("(on disk)") == 1
    one.write_text(clean["tile.md"])
    assert check(0) == ""
    stale = ("python/old.py", "vectors/structs/Gone.json")
    for name in stale:
        (copy / name).write_text("x")
    output = check(1)
    assert all(f"tile/{name} is no longer generated" in output for name in stale)
    assert main(["--schema", str(TILE), "--out", str(tmp_path)]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == [f"removed tile/{name}" for name in stale]
    assert files(copy) == clean


@exhaustive
def test_the_repository_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    schemas = ["--schema", str(GPACK), "--schema", str(ROOT / "schema" / "gguf.yaml")]
    assert main([*schemas, "--out", str(ROOT), "--check"]) == 0, capsys.readouterr().out


# --- the generated package ---


@pytest.fixture(scope="module")
def package(tile: Path) -> dict[str, ModuleType]:
    """The generated Python package, imported from where it was written."""
    place = tile / "python"
    modules = {}
    for name in ("__init__", *(path.stem for path in sorted(place.glob("[a-z]*.py")))):
        full = "generated_tile" if name == "__init__" else f"generated_tile.{name}"
        search = [str(place)] if name == "__init__" else None
        spec = importlib.util.spec_from_file_location(full, place / f"{name}.py", submodule_search_locations=search)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
        modules[name] = module
    return modules


# "TILE", flags 2 and 16, codec 7, level -1, two tiles, half a metre; worked out by hand.
HEAD = bytes.fromhex("54494c45 1200 07 ff 02000000 0000003f")
PLACE = bytes.fromhex("feff 0300 61620000")


def test_records(package: dict[str, ModuleType]) -> None:
    s = package["structs"]
    head = s.Head.decode(b"xx" + HEAD, 2)
    assert head.to_dict() == {"magic": 0x454C4954, "layers": 18, "codec": 7, "default": -1, "count": 2, "scale": 0.5}
    assert head.encode() == HEAD
    assert s.Head(layers=18, codec=7, default=-1, count=2, scale=0.5) == head
    assert (s.Head.SIZE, s.Head.FORMAT) == (16, "<IHBbIf")
    assert s.Head.OFFSETS == {"magic": 0, "layers": 4, "codec": 6, "default": 7, "count": 8, "scale": 12}
    place = s.Place.decode(PLACE)
    assert (place.at, place.kind) == ((-2, 3), b"ab\0\0")
    assert place.encode() == PLACE
    with pytest.raises(struct.error):
        s.Head.decode(HEAD[:-1])


def test_dtypes(package: dict[str, ModuleType]) -> None:
    d = package["dtypes"]
    (head,) = np.frombuffer(HEAD, d.HEAD)
    assert head.tolist() == (0x454C4954, 18, 7, -1, 2, 0.5)
    rows = np.frombuffer((PLACE + b"more") * 3, d.with_itemsize(d.PLACE, 12))
    assert rows["at"].tolist() == [[-2, 3]] * 3
    assert rows["kind"].tolist() == [b"ab"] * 3
    with pytest.raises(ValueError, match="itemsize"):
        d.with_itemsize(d.PLACE, 7)


def test_constructs(package: dict[str, ModuleType]) -> None:
    c = package["constructs"]
    head = c.Head.parse(HEAD)
    assert (head.layers, int(head.codec), head.default, head.count, head.scale) == (18, 7, -1, 2, 0.5)
    assert c.Head.build(head) == HEAD
    assert c.Place.build({"at": [-2, 3], "kind": "ab"}) == PLACE
    with pytest.raises(construct.ConstError):
        c.Head.parse(b"ELIT" + HEAD[4:])
    # The arrays after the header: 256 colours, then 2 * count lengths, at multiples of 4.
    lengths = struct.pack("<4H", 1, 2, 3, 4)
    pixels = c.Pixels.parse(HEAD + bytes(range(256)) + lengths)
    assert (pixels.palette, list(pixels.lengths)) == (bytes(range(256)), [1, 2, 3, 4])
    whole = c.TileFile.parse(HEAD + PLACE * 2)
    assert [list(place.at) for place in whole.places] == [[-2, 3]] * 2


def test_sequences(package: dict[str, ModuleType]) -> None:
    s = package["structs"]
    layout = s.pixels_layout(s.Head(count=3))
    assert layout == {"palette": (16, 256), "lengths": (272, 12)}
    assert s.pixels_size(s.Head(count=3)) == 284


def test_rules_and_vectors(package: dict[str, ModuleType], tile: Path) -> None:
    s, r = package["structs"], package["rules"]
    assert set(r.RULES) == {"head.magic", "head.count", "head.roads"}
    assert (r.RULES["head.roads"].level, r.RULES["head.magic"].doc) == ("semantic", "It is a tile archive.")
    seen: set[str] = set()
    for name, check in (("Head", r.check_head), ("Place", r.check_place)):
        info = json.loads((tile / "vectors" / "structs" / f"{name}.json").read_text())
        assert (info["format"], info["struct"], info["size"]) == ("tile", name, getattr(s, name).SIZE)
        for vector in info["vectors"]:
            broken = check(getattr(s, name).decode(bytes.fromhex(vector["hex"])))
            assert [rule for rule, _ in broken] == vector.get("breaks", [])
            assert vector["valid"] == (not broken)
            seen.update(rule for rule, _ in broken)
    assert seen == set(r.RULES)
    assert r.check_head(s.Head(magic=0, count=0, layers=16)) == [
        ("head.magic", "magic"),
        ("head.count", "count"),
        ("head.roads", "layers"),
    ]


def test_names(package: dict[str, ModuleType]) -> None:
    c, e = package["constants"], package["enums"]
    assert (c.Layers.ROADS, c.Layers.LABELS, c.Layers.MASK) == (2, 16, 18)
    assert c.Codec.NAMES == {0: "RAW", 7: "RUNS"}
    assert c.SECTION_NEEDS == {2: (1,)}
    assert e.Codec(7).name == "RUNS"
    assert e.Layers(18) == e.Layers.ROADS | e.Layers.LABELS
    assert load(TILE).digest == c.SCHEMA_DIGEST


# --- one change in the schema ---


def outputs(folder: Path, schema: Path) -> dict[str, str]:
    assert main(["--schema", str(schema), "--out", str(folder)]) == 0
    return without_digests(folder)


@pytest.fixture(scope="module")
def gpack(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """GPACK's own outputs."""
    return outputs(tmp_path_factory.mktemp("gpack"), GPACK)


def differences(tmp_path: Path, before: dict[str, str], *replacements: tuple[str, str]) -> set[str]:
    after = outputs(tmp_path / "out", changed(tmp_path, *replacements, source=GPACK))
    assert set(after) == set(before)
    return {name for name, text in after.items() if text != before[name]}


PYTHON = "src/gpack/generated"


@exhaustive
def test_a_fields_description(tmp_path: Path, gpack: dict[str, str]) -> None:
    """Documentation goes wherever a field is explained, and nowhere else."""
    old = 'unit: entries, doc: "Number of entries in the section directory."'
    assert differences(tmp_path, gpack, (old, old.replace("Number", "Count"))) == {
        f"{PYTHON}/structs.py",
        "schema/gpack.ksy",
        "schema/gpack.h",
        "schema/gpack.hexpat",
        "spec/GPACK.md",
    }


@exhaustive
def test_a_constants_value(tmp_path: Path, gpack: dict[str, str]) -> None:
    old = "{name: MAX_MANIFEST_DEPTH, value: 16,"
    found = differences(tmp_path, gpack, (old, old.replace("16", "17")))
    assert found == {f"{PYTHON}/constants.py", "schema/gpack.h", "spec/GPACK.md"}


# The end of MetadataKvHeaderV1's fields.
ALIGNMENT = """doc: "Alignment of the source's tensor data; 0 where the source was no GGUF."}\n"""
ZEROS = '      - {name: reserved2, type: "bytes[16]", reserved: true, doc: "Zeros."}'


def test_a_new_field(tmp_path: Path, gpack: dict[str, str]) -> None:
    """Carved out of reserved bytes: every target learns of it, and of the vectors only that struct's."""
    field = '      - {name: source_bytes, type: u64, unit: bytes, doc: "Size of the source."}\n'
    rest = '      - {name: reserved2, type: "bytes[8]", reserved: true, doc: "Zeros."}'
    edit = (ALIGNMENT + ZEROS, ALIGNMENT + field + rest)
    with pytest.raises(SchemaError, match=r"MetadataKvHeaderV1, vector 'one key': the bytes mean .*source_bytes"):
        load(changed(tmp_path, edit, source=GPACK))
    value = "source_version: 3, source_alignment: 32}"
    assert differences(tmp_path, gpack, edit, (value, value[:-1] + ", source_bytes: 0}")) == {
        f"{PYTHON}/structs.py",
        f"{PYTHON}/dtypes.py",
        f"{PYTHON}/constructs.py",
        f"{PYTHON}/rules.py",
        f"{PYTHON}/layout.py",
        "schema/gpack.ksy",
        "schema/gpack.h",
        "schema/gpack.hexpat",
        "spec/GPACK.md",
        "spec/vectors/structs/MetadataKvHeaderV1.json",
    }


@exhaustive
def test_a_comment_changes_only_digests(tmp_path: Path, gpack: dict[str, str]) -> None:
    assert differences(tmp_path, gpack, ("# ---- draft layers", "# ---- the draft layers")) == set()
