"""`check`: every rule with what became of it, its places, the levels, the renderings, and what it survives."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import xml.etree.ElementTree as ET
from contextlib import suppress
from pathlib import Path

import pytest
from exhaustive import amount, grows

from gpack.conformance import check, dump, render_json, render_junit, render_text, vectors
from gpack.conformance.parts import Parts
from gpack.conformance.recipes import bases
from gpack.conformance.recipes.valid import longer_rows
from gpack.errors import GpackError, PathError, UsageError
from gpack.generated.constants import SectionKind
from gpack.generated.rules import RULES

VECTORS = {vector.id: vector for vector in vectors.load()}


def written(folder: Path, vector_id: str) -> Path:
    return VECTORS[vector_id].write(folder)


# ---------------------------------------------------------------- results


def test_each_rule_has_one_result_in_the_order_of_the_schema(tmp_path: Path) -> None:
    for vector_id in (
        "valid/plain",
        "valid/everything",
        "invalid/header.magic/header.magic",
        "invalid/header.complete/header/empty",
    ):
        report = check(written(tmp_path, vector_id))
        assert [result.rule for result in report.results] == [*RULES]
        assert report.count("passed") + report.count("failed") + report.count("not applicable") == len(RULES)
        for result in report.results:
            assert bool(result.reason) == (result.status == "not applicable")
            assert bool(result.findings) == (result.status == "failed") == (result.count > 0)


def test_plain_pack(tmp_path: Path) -> None:
    """Of a file with empty tables, rules about rows do not apply, and the report says so."""
    report = check(written(tmp_path, "valid/plain"))
    assert report.ok
    assert report.size == 1216
    status = {result.rule: (result.status, result.reason) for result in report.results}
    assert status["header.magic"] == status["section.sha256"] == status["tensor.totals"] == ("passed", "")
    assert status["tensor.type"] == ("not applicable", "TensorIndexBin has no rows")
    assert status["dense.kind"] == ("not applicable", "there is no DenseIndexBin")
    assert status["single.type"] == ("not applicable", "there is no EmbedBlob, HeadBlob or PleBlob")
    assert status["section.pair"] == ("not applicable", "no section needs another")
    assert status["expert.uncovered"] == ("not applicable", "there is no ExpertLayoutBin")


def test_everything_applies_to_everything_but_what_it_cannot_hold(tmp_path: Path) -> None:
    """Embedded experts have no shards, and digests of chunks are optional; all else is there."""
    report = check(written(tmp_path, "valid/everything"))
    shards = {f"expert.shard_{end}" for end in ("ref", "name", "path", "header", "digest")} | {"expert.uncovered"}
    optional = {rule for rule in RULES if rule.startswith(("chunks.", "parity."))}
    assert {result.rule for result in report.results if result.status == "not applicable"} == shards | optional
    assert report.result("chunks.digest").reason == "there is no ChunkDigests"
    assert report.result("expert.shard_name").reason == "there are no shards"
    assert report.result("expert.shard_ref").reason == "no experts are external"


@pytest.mark.parametrize(
    ("vector_id", "path", "place"),
    [
        # Header fields: magic 0, flags 8, section_count 12, section_table_offset 16, total_file_size 40.
        ("invalid/header.magic/header.magic", "$.header.magic", (0, 4)),
        ("invalid/header.min_reader_version/header.min_reader_version", "$.header.min_reader_version", (6, 2)),
        ("invalid/header.endian/header.flags", "$.header.flags", (8, 4)),
        ("invalid/header.total_file_size/header.total_file_size/64-more", "$.header.total_file_size", (40, 8)),
        # The first section lies at 64; its header has version at 4 and row_size at 6.
        ("invalid/index.version/MetadataKvBin.version", "$.MetadataKvBin.version", (68, 2)),
        ("invalid/index.row_size/MetadataKvBin.row_size/short", "$.MetadataKvBin.row_size", (70, 2)),
        # Rows of 40 bytes begin at 64 of the section; position is at 32 of a row.
        (
            "invalid/metadata.position/MetadataKvBin.rows.position/doubled",
            "$.MetadataKvBin.rows[1].position",
            (64 + 64 + 40 + 32, 4),
        ),
    ],
)
def test_places(vector_id: str, path: str, place: tuple[int, int], tmp_path: Path) -> None:
    report = check(written(tmp_path, vector_id))
    (found,) = report.result(VECTORS[vector_id].rules[0]).findings
    assert (found.path, found.range) == (path, place)


def test_directory_and_manifest_places(tmp_path: Path) -> None:
    """Entries are 96 bytes, `name` at 72; the manifest is named by its key, with the bytes of the section."""
    path = written(tmp_path, "invalid/section.name/sections.name")
    table = int.from_bytes(path.read_bytes()[16:24], "little")
    (found,) = check(path).result("section.name").findings
    assert (found.path, found.range) == ("$.sections[12].name", (table + 12 * 96 + 72, 24))
    path = written(tmp_path, "invalid/manifest.summary/ManifestJson.model.parameter_count/other")
    data = path.read_bytes()
    (found,) = check(path).result("manifest.summary").findings
    assert found.path == "$.ManifestJson.model.parameter_count"
    assert found.range == (int.from_bytes(data[24:32], "little"), int.from_bytes(data[32:40], "little"))


def test_a_foreign_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(300))
    report = check(path)
    assert [result.rule for result in report.failed] == ["header.magic"]
    assert report.result("tensor.type").reason == "the header could not be read (header.magic)"
    assert report.hint is not None
    assert "guild convert" in report.hint


def test_what_could_not_be_read_is_not_called_passed(tmp_path: Path) -> None:
    """After a wrong magic nothing of the table is known; rules about other sections were checked all the same."""
    report = check(written(tmp_path, "invalid/index.magic/MetadataKvBin.magic"))
    assert [result.rule for result in report.failed] == ["index.magic"]
    for rule in ("metadata.key", "metadata.type", "metadata.position", "metadata.value", "metadata.stub"):
        result = report.result(rule)
        assert result.status == "not applicable"
        assert result.reason == "what it speaks of could not be read: MetadataKvBin breaks index.magic"
    # Without the metadata nobody knows which layers are drafts.
    assert report.result("tensor.home_rule").status == "not applicable"
    assert report.result("tensor.totals").status == report.result("tokenizer.offsets").status == "passed"
    truncated = check(written(tmp_path, "invalid/header.total_file_size/header.total_file_size/one-less"))
    assert truncated.result("section.overlap").reason == (
        "the section directory or the footer could not be read (header.total_file_size)"
    )


def test_warnings_leave_the_file_conforming(tmp_path: Path) -> None:
    report = check(written(tmp_path, "valid/expert.uncovered/ExpertLayoutBin.shards.sha256"))
    assert report.ok
    assert [(result.rule, result.severity) for result in report.failed] == [("expert.uncovered", "warning")]


def test_many_violations_are_counted_and_the_first_are_kept(tmp_path: Path) -> None:
    kind = SectionKind.TOKENIZER_ASSETS
    pack = Parts.parse(VECTORS["valid/assets-sizes"].data())
    pack.rebuild(kind, [(row, refs) for row, refs in pack.entries(kind)] * 150)
    path = tmp_path / "many.gpack"
    path.write_bytes(pack.seal())
    result = check(path).result("index.sorted")
    assert len(result.findings) == 100 < result.count
    assert f"{result.count - 100} more like these" in render_text(check(path))


# ---------------------------------------------------------------- levels


def test_levels(tmp_path: Path) -> None:
    """Each level sees the faults of the lower ones, and says of the others that they were not asked for."""
    faults = {
        "structure": "invalid/footer.magic/footer.footer_magic",
        "digest": "invalid/section.sha256/MetadataKvBin.sha256",
        "semantic": "invalid/tensor.totals/TensorIndexBin.parameter_count/elements",
    }
    for depth, level in enumerate(faults):
        for height, (fault, vector_id) in enumerate(faults.items()):
            report = check(written(tmp_path, vector_id), level=level)
            assert report.ok == (height > depth), (level, fault)
    report = check(written(tmp_path, "valid/small"), level="structure")
    assert report.result("section.sha256").reason == "it is of level digest; structure was asked for"
    assert report.result("tensor.totals").reason == "it is of level semantic; structure was asked for"


def test_a_structure_check_hashes_nothing(tmp_path: Path) -> None:
    seen: list[int] = []
    check(written(tmp_path, "valid/small"), level="structure", progress=lambda count, _: seen.append(count))
    assert seen == []
    check(written(tmp_path, "valid/small"), progress=lambda count, _: seen.append(count))
    assert sum(seen) > 0


@pytest.mark.parametrize("level", ["all", ""])
def test_no_such_level(level: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        check(written(tmp_path, "valid/plain"), level=level)


@pytest.mark.parametrize("name", ["absent", "."])
def test_no_file(name: str, tmp_path: Path) -> None:
    for call in (check, dump):
        with pytest.raises(PathError):
            call(tmp_path / name)


# ---------------------------------------------------------------- renderings


def test_text(tmp_path: Path) -> None:
    text = render_text(check(written(tmp_path, "invalid/header.magic/header.magic")))
    first, second, last = text.splitlines()
    assert first == "FAILED header.magic"
    assert second.startswith("  $.header.magic at bytes 0 to 3: Found magic = 1262702664")
    assert (
        last.endswith("does not conform (0 passed, 1 failed, 147 not applicable; level semantic)") or "passed" in last
    )
    whole = render_text(check(written(tmp_path, "valid/plain")), verbose=True)
    assert "passed header.magic\n" in whole
    assert "not applicable tensor.type: TensorIndexBin has no rows\n" in whole
    assert whole.count("\n") == len(RULES) + 1


def test_json(tmp_path: Path) -> None:
    said = json.loads(
        render_json(check(written(tmp_path, "invalid/tensor.totals/TensorIndexBin.parameter_count/elements")))
    )
    assert (said["format"], said["version"], said["ok"]) == ("gpack-check", 1, False)
    assert sum(said["counts"].values()) == len(said["rules"]) == len(RULES)
    (failed,) = [rule for rule in said["rules"] if rule["status"] == "failed"]
    assert (failed["id"], failed["level"], failed["severity"], failed["count"]) == (
        "tensor.totals",
        "semantic",
        "error",
        1,
    )
    assert failed["findings"][0]["path"] == "$.TensorIndexBin.parameter_count"


def test_junit(tmp_path: Path) -> None:
    path = written(tmp_path, "invalid/tensor.totals/TensorIndexBin.parameter_count/elements")
    (suite,) = ET.fromstring(render_junit(check(path)))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == (str(len(RULES)), "1", "0")
    assert int(suite.get("skipped", "")) == len(suite.findall("testcase/skipped"))
    (case,) = [case for case in suite if case.find("failure") is not None]
    assert (case.get("classname"), case.get("name")) == ("gpack.tensor", "tensor.totals")
    assert "$.TensorIndexBin.parameter_count at bytes " in (case.findtext("failure") or "")
    (suite,) = ET.fromstring(
        render_junit(check(written(tmp_path, "valid/expert.uncovered/ExpertLayoutBin.shards.sha256")))
    )
    assert suite.get("failures") == "0"
    assert len(suite.findall("testcase/system-out")) == 1


@pytest.mark.parametrize("name", [b"a\x1b[2J\nb", b"<&\"'>/", b"\xff\xfe\0/", "\u202e/".encode()])
def test_hostile_names_steer_no_terminal_and_break_no_xml(name: bytes, tmp_path: Path) -> None:
    pack = Parts.parse(VECTORS["valid/assets-names"].data())
    rows = pack.entries(SectionKind.TOKENIZER_ASSETS)
    rows[0][1][0] = name
    pack.rebuild(SectionKind.TOKENIZER_ASSETS, sorted(rows, key=lambda row: row[1][0]))
    path = tmp_path / "hostile.gpack"
    path.write_bytes(pack.seal())
    report = check(path)
    assert not report.ok
    assert all(char.isprintable() or char == "\n" for char in render_text(report))
    ET.fromstring(render_junit(report))
    json.loads(render_json(report))


# ---------------------------------------------------------------- what it survives


@grows
def test_flipped_cut_and_spliced_vectors(tmp_path: Path) -> None:
    """Nothing but our own errors comes out, whatever the bytes are; the seed makes a failure repeatable."""
    rng = random.Random(20240607)
    pool = [v for v in VECTORS.values() if v.expect == "accept" and not v.large]
    path = tmp_path / "fuzzed.gpack"
    for _ in range(amount(60, 400)):
        data = bytearray(rng.choice(pool).data())
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(data))
            data[at] = rng.choice((0, 1, 0x7F, 0xFF, data[at] ^ 1 << rng.randrange(8)))
        if rng.random() < 0.1:
            del data[rng.randrange(len(data)) :]
        if rng.random() < 0.1:
            data[rng.randrange(len(data) + 1) :] = rng.choice(pool).data()[:5000]
        path.write_bytes(data)
        report = check(path)
        render_text(report, verbose=True)
        ET.fromstring(render_junit(report))
        json.loads(render_json(report))
        with suppress(GpackError):
            dump(path)


@grows
def test_a_resealed_flip_reaches_the_sections(tmp_path: Path) -> None:
    """The same with right digests, so that the tables themselves are hostile."""
    rng = random.Random(7)
    base = bases.everything()
    path = tmp_path / "fuzzed.gpack"
    for _ in range(amount(25, 150)):
        pack = Parts.parse(base)
        section = rng.choice([section for section in pack.sections if section.data])
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(min(len(section.data), 600))
            section.data[at] = rng.choice((0, 0x7F, 0xFF, section.data[at] ^ 1 << rng.randrange(8)))
        path.write_bytes(pack.seal())
        report = check(path)
        assert report.result("section.sha256").status == "passed"
        with suppress(GpackError):
            dump(path)


def test_longer_rows_are_checked_like_others(tmp_path: Path) -> None:
    pack = Parts.parse(bases.small())
    longer_rows(SectionKind.TENSOR_INDEX_BIN, 16)(pack)
    pack.set_row(SectionKind.TENSOR_INDEX_BIN, "a.weight", ggml_type=4)
    path = tmp_path / "longer.gpack"
    path.write_bytes(pack.seal())
    assert "tensor.type" in {result.rule for result in check(path).failed}


def test_the_base_installation_is_enough(tmp_path: Path) -> None:
    """Nothing of an extra is imported: of other people's packages numpy and the canonical form."""
    path = written(tmp_path, "valid/small")
    program = (
        "import sys; before = set(sys.modules); import gpack.conformance as kit\n"
        f"assert kit.check({str(path)!r}).ok; kit.dump({str(path)!r}); kit.vectors.load()\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names) - {'gpack', 'numpy', 'rfc8785'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert [name for name in json.loads(done.stdout.replace("'", '"')) if not name.startswith("_")] == []
