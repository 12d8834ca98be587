"""Hostile packs through everything that reads a pack, not only through the checks: the same answer, little memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exhaustive import each_value
from gguf_maker import make_gguf, vector

import gpack
from gpack import errors
from gpack.cli import main
from gpack.conformance.parts import Parts
from gpack.conformance.recipes import bases as packs
from gpack.conformance.recipes.case import ASSETS, GBT, INDEX, KV, LAYOUT
from gpack.convert.gguf import convert_gguf
from gpack.generated.constants import MetadataFlags
from gpack.generated.structs import MetadataKvRowV1
from gpack.model import GuildModel, ModelPaths, NgramHash, ngram_rows
from gpack.sections import check_metadata
from gpack.sections import verify as verify_module
from gpack.sections.assets import build_assets

MIB = 1 << 20
COMMANDS = (
    ["verify"],
    ["inspect", "--tensors", "--metadata"],
    ["export", "-o", "OUT"],
    ["tokenize", "hello"],
    ["diff", "OTHER"],
)


def write(path: Path, pack: Parts) -> Path:
    path.write_bytes(pack.seal())
    return path


def first_error(path: Path) -> str | None:
    """The rule of the first violation."""
    violation = gpack.verify(path).report.first_error()
    return None if violation is None else violation.rule


def consumers(path: Path) -> dict[str, Callable[[], object]]:
    """Everything that a program may do with a pack, by name."""

    def opened(use: Callable[[gpack.Pack], object]) -> Callable[[], object]:
        def call() -> object:
            with gpack.open(path) as pack:
                return use(pack)

        return call

    return {
        "names": opened(list),
        "tensors": opened(lambda pack: [pack[name].nbytes for name in pack]),
        "metadata": opened(lambda pack: dict(pack.metadata)),
        "assets": opened(lambda pack: [bytes(pack.asset(name)) for name in pack.assets()]),
        "shards": opened(lambda pack: pack.shards),
        "verify": lambda: first_error(path),
        "load": lambda: GuildModel.load(path).close(),
    }


def outcomes(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The code of the error of each consumer, `ok` where there was none; none takes much memory."""
    found: dict[str, str] = {}
    other = write(tmp_path / "other.gpack", Parts.parse(packs.small()))
    for name, call in consumers(path).items():
        tracemalloc.start()
        try:
            answer = call()
            found[name] = str(answer or "ok") if name == "verify" else "ok"
        except errors.GpackError as error:
            found[name] = error.code
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 64 * MIB, name
    for command in COMMANDS:
        names = {"OUT": str(tmp_path / "out.gguf"), "OTHER": str(other)}
        status = main([command[0], str(path), *(names.get(word, word) for word in command[1:])])
        told = capsys.readouterr()
        assert status in (0, 1, 2, 3, 4), (command, told.err)
        found[command[0] if command[0] != "verify" else "guild verify"] = str(status)
    return found


# ---------------------------------------------------------------- what is rejected is not decoded


def test_a_type_against_the_element_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The check said that u32 is no element type of u64, and then decoded the value as u64."""
    pack = Parts.parse(packs.everything())
    pack.set_row(KV, "tiny.block_count", value_type=10)
    path = write(tmp_path / "m.gpack", pack)
    found = outcomes(path, tmp_path, capsys)
    assert (found["verify"], found["guild verify"]) == ("metadata.element_type", "1")
    assert (found["metadata"], found["load"]) == ("metadata.element_type", "metadata.element_type")


@pytest.mark.parametrize("fields", [{"value_type": value} for value in range(14)])
def test_every_type_against_every_element_type(tmp_path: Path, fields: dict[str, int]) -> None:
    rules = set()
    for element_type in range(14):
        for count in (1, 2**64 - 1):
            for name in ("a.u8", "b.nostr"):
                pack = Parts.parse(packs.everything())
                row = pack.rows(KV)[pack.find(KV, name)]
                wanted = {**fields, "element_type": element_type, "count": count}
                pack.set_row(KV, name, **{key: to for key, to in wanted.items() if getattr(row, key) != to})
                report = gpack.verify(write(tmp_path / "m.gpack", pack)).report
                rules |= set(report.counts)
    assert "internal" not in rules
    assert rules & {"metadata.element_type", "metadata.type", "metadata.size"}


def damaged(tmp_path: Path) -> ModelPaths:
    (tmp_path / "m.gguf").write_bytes(make_gguf({"general.architecture": "llama"}, [vector("t")]))
    pack = Parts.parse(packs.everything())
    pack.set_row(KV, "tiny.block_count", value_type=10)
    return ModelPaths(write(tmp_path / "m.gpack", pack), tmp_path / "m.gguf")


def test_a_model_falls_back_to_its_gguf(tmp_path: Path) -> None:
    with GuildModel.load(damaged(tmp_path)) as model:
        assert model.fallback is not None
        assert model.fallback.code == "metadata.element_type"
        assert list(model.tensors) == ["t"]


def fails(*_: Any, **__: Any) -> None:
    raise ZeroDivisionError("a fault of ours")


def test_what_escapes_a_check_is_a_violation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "m.gpack", Parts.parse(packs.small()))
    monkeypatch.setattr(check_metadata, "check_positions", fails)
    found = gpack.verify(path)
    assert not found
    assert found.report.counts["internal"] == 1
    (violation,) = [each for each in found.report.violations if each.rule == "internal"]
    assert (violation.section, violation.severity) == ("MetadataKvBin", "error")
    assert "ZeroDivisionError: a fault of ours" in violation.message
    assert isinstance(violation.error(path), errors.InternalError)
    assert main(["verify", str(path)]) == 1
    assert "error: internal: MetadataKvBin: The check ended with ZeroDivisionError" in capsys.readouterr().out
    assert main(["verify", "--json", str(path)]) == 1
    assert '"rule": "internal"' in capsys.readouterr().out


def test_a_fault_of_ours_does_not_keep_a_model_from_its_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.gguf").write_bytes(make_gguf({"general.architecture": "llama"}, [vector("t")]))
    path = write(tmp_path / "m.gpack", Parts.parse(packs.small()))
    for where in ("gpack.sections.check_metadata.check_positions", "gpack.model.load.locate_in_pack"):
        with monkeypatch.context() as patch:
            patch.setattr(where, fails)
            with GuildModel.load(ModelPaths(path, tmp_path / "m.gguf")) as model:
                assert isinstance(model.fallback, errors.InternalError)


@pytest.mark.parametrize("error", [MemoryError(), errors.PathError("cut", code="io.short_read")])
def test_what_disk_and_memory_do_is_no_violation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    path = write(tmp_path / "m.gpack", Parts.parse(packs.small()))

    def raises(*_: Any) -> None:
        raise error

    monkeypatch.setattr(verify_module, "check_metadata", raises)
    with pytest.raises(type(error)):
        gpack.verify(path)


# ---------------------------------------------------------------- listing and searching agree


def unsorted(kind: int) -> Parts:
    pack = Parts.parse(packs.everything())
    header = pack.get(kind)
    data, size = pack.section(kind).data, header.row_size
    one, two = header.ofs_rows, header.ofs_rows + size
    data[one:two], data[two : two + size] = bytes(data[two : two + size]), bytes(data[one:two])
    return pack


@pytest.mark.parametrize(("kind", "listed"), [(ASSETS, "assets"), (INDEX, "names"), (KV, "metadata")])
def test_an_unsorted_table_is_refused_by_listing_and_by_a_search_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: int, listed: str
) -> None:
    path = write(tmp_path / "m.gpack", unsorted(kind))
    found = outcomes(path, tmp_path, capsys)
    assert found[listed] == "index.sorted"
    assert found["load"] in ("index.sorted", "index.heap_order")  # the rows moved, and their names did not
    assert found["inspect"] == "1"
    with gpack.open(path) as pack:
        absent = {ASSETS: pack.asset, INDEX: pack.info, KV: pack.metadata.__getitem__}[kind]
        with pytest.raises(errors.FormatError) as caught:
            absent("zzz")  # nobody can say that it is not there
    assert caught.value.code == "index.sorted"


def test_names_that_are_asked_for_alone_cost_no_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "m.gpack", Parts.parse(packs.everything()))
    with gpack.open(path) as pack:
        monkeypatch.setattr(type(pack.tensors), "check_rows", fails)
        assert pack["rope_freqs.weight"].shape == (3,)


# ---------------------------------------------------------------- bytes that are shared


def shared(kind: int, ref: str, rows: int, length: int) -> Parts:
    """A table of many rows whose references are all the same bytes of the heap."""
    pack = Parts.parse(packs.everything())
    header = pack.get(kind)
    data = pack.section(kind).data
    row_class = type(pack.rows(kind)[0])
    made = row_class.decode(bytes(data[header.ofs_rows : header.ofs_rows + header.row_size]))
    setattr(made, f"{ref}_offset", 0)
    setattr(made, f"{ref}_length", length)
    data[:] = bytes(header.SIZE) + made.encode() * rows + b"k" * length
    pack.set(
        kind,
        magic=header.MAGIC,
        version=1,
        row_size=row_class.SIZE,
        num_rows=rows,
        ofs_rows=header.SIZE,
        ofs_heap=header.SIZE + rows * row_class.SIZE,
        len_heap=length,
    )
    return pack


@each_value
@pytest.mark.parametrize(("kind", "ref"), [(KV, "key"), (KV, "value"), (INDEX, "name")])
@pytest.mark.parametrize("length", [MIB, 65_535])
def test_rows_that_share_bytes_of_a_heap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: int, ref: str, length: int
) -> None:
    """10,000 names of a megabyte in a file of two: 10 GB, if each is copied."""
    path = write(tmp_path / "m.gpack", shared(kind, ref, 10_000, length))
    found = outcomes(path, tmp_path, capsys)
    assert gpack.verify(path).report.counts["index.heap_order"] >= 9_999
    assert found["guild verify"] == "1"
    assert found["metadata" if kind == KV else "names"] == "index.heap_order"
    assert found["inspect"] == "1"
    assert found["export"] == "1"


def test_shards_that_share_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = Parts.parse(packs.everything())
    header, data, count = pack.get(LAYOUT), pack.section(LAYOUT).data, 5000
    from gpack.generated.structs import ExpertShardRowV1

    shard = ExpertShardRowV1(name_offset=0, name_length=MIB, file_size=9, header_size=9)
    del data[header.ofs_shards :]
    data += shard.encode() * count + b"n" * MIB
    at = header.ofs_shards + count * ExpertShardRowV1.SIZE
    pack.set(LAYOUT, num_shards=count, ofs_heap=at, len_heap=MIB)
    found = outcomes(write(tmp_path / "m.gpack", pack), tmp_path, capsys)
    assert found["shards"] == "index.heap_order"
    assert found["guild verify"] == "1"


def test_tokens_that_run_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = Parts.parse(packs.vocabulary())
    view = pack.get(GBT)
    offsets = np.arange(view.vocab_size + 1, dtype="<u4") % 2 * view.vocab_blob_bytes
    offsets[-1] = view.vocab_blob_bytes
    pack.poke(GBT, view.SIZE, offsets.tobytes())
    found = outcomes(write(tmp_path / "m.gpack", pack), tmp_path, capsys)
    # A text whose bytes are tokens needs no offset; see tests/tokenizer/test_finding.py for those that do.
    assert (found["verify"], found["metadata"], found["load"]) == ("tokenizer.offsets",) * 3


def test_merges_that_spell_out_to_far_more_than_the_pack_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A merge of two long tokens, repeated: 24 bytes each in the pack, 40,000 each as strings."""
    left, right = "l" * 20_000, "r" * 20_000
    merges = [f"{left} {right}"] * 500
    metadata = [
        ("general.architecture", "str", "t"),
        ("tokenizer.ggml.tokens", "[str]", [left, right, left + right]),
        ("tokenizer.ggml.merges", "[str]", merges),
    ]
    (tmp_path / "m.gguf").write_bytes(make_gguf(metadata))
    convert_gguf(tmp_path / "m.gguf", tmp_path / "m.gpack")
    assert gpack.verify(tmp_path / "m.gpack")
    with gpack.open(tmp_path / "m.gpack") as whole:  # they stay strings, as they were
        assert whole.metadata["tokenizer.ggml.merges"] == merges
    gpack.export_gguf(tmp_path / "m.gpack", tmp_path / "back.gguf")
    assert (tmp_path / "back.gguf").read_bytes() == (tmp_path / "m.gguf").read_bytes()

    pack = Parts.parse((tmp_path / "m.gpack").read_bytes())
    entries = pack.entries(KV)
    row, refs = entries[pack.find(KV, "tokenizer.ggml.merges")]
    assert isinstance(row, MetadataKvRowV1)
    row.flags, refs[1] = MetadataFlags.IN_TOKENIZER_BIN, b""
    pack.rebuild(KV, entries)
    path = write(tmp_path / "small.gpack", pack)
    assert path.stat().st_size < 200_000
    found = outcomes(path, tmp_path, capsys)
    assert (found["verify"], found["metadata"], found["export"]) == ("metadata.stub", "metadata.stub", "1")


# ---------------------------------------------------------------- what verifies can be exported


@pytest.mark.parametrize("alignment", [0, 1, 8, 32, 64, 48, 1 << 20, 1 << 21, 1 << 31, 2**32 - 2])
@pytest.mark.parametrize("said", [None, 32, 64, "32"])
def test_the_alignment_of_the_source(tmp_path: Path, alignment: int, said: object) -> None:
    """A pack that verifies can be exported; 0 means that the source had none."""
    key = [] if said is None else [("general.alignment", "str" if isinstance(said, str) else "u32", said)]
    good = [*key] if not isinstance(said, str) else []
    (tmp_path / "m.gguf").write_bytes(make_gguf(good, alignment=said if isinstance(said, int) else 32))
    convert_gguf(tmp_path / "m.gguf", tmp_path / "m.gpack")
    pack = Parts.parse((tmp_path / "m.gpack").read_bytes())
    if isinstance(said, str):
        row = MetadataKvRowV1(value_type=8, element_type=8, count=1)
        pack.rebuild(KV, [(row, [b"general.alignment", said.encode()])])
    if pack.get(KV).source_alignment != alignment:
        pack.set(KV, source_alignment=alignment)
    path = write(tmp_path / "m.gpack", pack)
    expected = not isinstance(said, str) and (alignment or 32) == (said or 32)
    assert bool(gpack.verify(path)) == expected
    status = main(["export", str(path), "-o", str(tmp_path / "out.gguf")])
    assert status == (0 if expected else 1)


# ---------------------------------------------------------------- constants beyond their range


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("head_offsets", (2**63 - 10, 0)),
        ("head_offsets", (2**64, 0)),
        ("head_vocab_sizes", (2**63, 1)),
        ("head_vocab_sizes", (2**70, 1)),
        ("multipliers", (2**64, 1, 1)),
        ("multipliers", (-1, 1, 1)),
        ("eos_token_id", 2**63),
        ("eos_token_id", -2),
    ],
)
def test_constants_of_an_n_gram_hash(field: str, value: Any) -> None:
    constants: dict[str, Any] = {
        "multipliers": (3, 5, 7),
        "head_offsets": (0, 10),
        "head_vocab_sizes": (10, 13),
        "heads_per_ngram": 1,
        "eos_token_id": 2,
    }
    assert ngram_rows([1, 2, 3], **constants).shape == (3, 2)
    assert ngram_rows([1], **{**constants, "head_offsets": (0, 2**63 - 14)}).max() < 2**63
    for call in (lambda c: NgramHash(ngram_size=3, **c), lambda c: ngram_rows([1], **c)):
        with pytest.raises(errors.FormatError) as caught:
            call({**constants, field: value})
        assert caught.value.code == "ple.hash"
    with pytest.raises(errors.UsageError):
        ngram_rows([2**63], **constants)


def test_an_asset_is_read_by_the_name_that_is_listed(tmp_path: Path) -> None:
    pack = Parts.parse(packs.plain())
    files = {"tokenizer.json": b"{}", "merges.txt": b"a b\n", "Ä": b"x"}
    pack.add(ASSETS, build_assets(files), len(files))
    with gpack.open(write(tmp_path / "m.gpack", pack)) as opened:
        assert {name: bytes(opened.asset(name)) for name in opened.assets()} == files


@pytest.mark.parametrize("key", ["tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.merges"])
@pytest.mark.parametrize("count", [2**53, 2**63 + 3, 2**64 - 1])
def test_a_row_that_is_rejected_is_not_read_for_the_vocabulary(tmp_path: Path, key: str, count: int) -> None:
    """Found by fuzzing: what the check of the row had rejected was decoded again, to compare it with TokenizerBin."""
    pack = Parts.parse(packs.everything())
    pack.set_row(KV, key, flags=0, count=count)
    counts = gpack.verify(write(tmp_path / "m.gpack", pack)).report.counts
    assert "internal" not in counts
    assert "field.range" in counts
