"""Loading a model: from the pack, from the GGUF where the pack cannot be used, and the same tensors either way."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_maker import tiny_llama, write_gguf, write_split

import gpack
from gpack import errors
from gpack.conformance import vectors
from gpack.conformance.parts import Parts
from gpack.conformance.recipes.bases import everything_source
from gpack.convert.gguf import convert_gguf
from gpack.generated.rules import RULES
from gpack.model import GuildModel, ModelPaths, PleIo


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A split GGUF of everything, and its packs with experts inside and outside."""
    folder = tmp_path_factory.mktemp("model")
    shards = write_split(folder, "m", *everything_source())
    convert_gguf(shards[0], folder / "e.gpack")
    convert_gguf(shards[0], folder / "x.gpack", external_experts=True)
    return {"gguf": shards[1], "embedded": folder / "e.gpack", "external": folder / "x.gpack"}


def contents(model: GuildModel) -> dict[str, Any]:
    """All that a model holds, as bytes."""
    held: dict[str, Any] = {name: (t.tobytes(), t.dims, t.ggml_type) for name, t in model.tensors.items()}
    held |= {f"metadata {key}": model.metadata[key] for key in model.metadata}
    assert model.ple is not None
    held["ple"] = model.ple.rows(range(model.ple.ne1)).tobytes()
    assert model.experts is not None
    for layer, found in model.experts.layers.items():
        for number in range(found.n_expert):
            held[f"expert {layer} {number}"] = [
                None if matrix is None else (matrix.tobytes(), matrix.dims)
                for matrix in model.experts.get(layer, number)
            ]
    return held


@pytest.mark.parametrize("io", ["auto", "mmap", "read", "direct"])
def test_loaded_either_way_all_is_equal(files: dict[str, Path], io: str) -> None:
    ways = [
        ModelPaths(gpack_path=files["embedded"]),
        ModelPaths(gpack_path=files["external"]),
        ModelPaths(primary_model_path=files["gguf"]),
    ]
    found = []
    for paths in ways:
        with GuildModel.load(paths, io=io) as model:
            found.append(contents(model))
            assert model.fallback is None
    assert list(found[0]) == list(found[1])
    assert found[0] == found[1]
    # A stub's empty text is no difference; order and values are the source's in both.
    assert found[0] == found[2]


def test_a_path_alone_is_a_pack_s(files: dict[str, Path]) -> None:
    with GuildModel.load(files["embedded"], ple_io=PleIo.Mmap) as model, gpack.open(files["embedded"]) as pack:
        assert model.path == str(files["embedded"])
        assert list(model.tensors) == list(pack)
        assert all(np.array_equal(model.tensors[name], pack[name], equal_nan=False) for name in ("blk.0.conv.weight",))
        assert len(model.tensors) == len(pack)
        assert "no such" not in model.tensors
        with pytest.raises(errors.MissingError):
            model.tensors["no such"]


def damage(parts: Parts) -> bytes:
    """A pack with a row that points outside of its section; header, directory and digests are right."""
    parts.set_row(1, "rope_freqs.weight", offset=1 << 40)
    return parts.seal()


FAULTS: dict[str, tuple[Callable[[Path, bytes], object], str]] = {
    "missing": (lambda path, data: None, "io.not_found"),
    "a folder": (lambda path, data: path.mkdir(), "io.not_a_file"),
    "truncated": (lambda path, data: path.write_bytes(data[:-1]), "header.total_file_size"),
    "empty": (lambda path, data: path.write_bytes(b""), "header.complete"),
    "another file": (lambda path, data: path.write_bytes(b"x" * len(data)), "header.magic"),
    "manifest": (lambda path, data: path.write_bytes(_flip(data)), "manifest.sha256"),
    "metadata": (lambda path, data: path.write_bytes(_flip(data, b"general.architecture")), "section.sha256"),
    "a tensor's name": (lambda path, data: path.write_bytes(_flip(data, b"blk.0.attn_q")), "section.sha256"),
    "a token": (lambda path, data: path.write_bytes(_flip(data, b"<|im_end|>")), "section.sha256"),
    "a row": (lambda path, data: path.write_bytes(damage(Parts.parse(data))), "tensor.bounds"),
    "a value": (lambda path, data: path.write_bytes(_hostile_value(Parts.parse(data))), "metadata.type"),
    "a vocabulary": (lambda path, data: path.write_bytes(_hostile_tokens(Parts.parse(data))), "tokenizer.offsets"),
    "a manifest": (lambda path, data: path.write_bytes(_hostile_manifest(Parts.parse(data))), "manifest.summary"),
}


def _hostile_value(parts: Parts) -> bytes:
    """A key of a type that there is not; all digests are right, and nothing asks for the key when a model is loaded."""
    parts.set_row(0, "general.architecture", value_type=13, element_type=13)
    return parts.seal()


def _hostile_tokens(parts: Parts) -> bytes:
    """The first token ends before it begins."""
    parts.poke(11, 64, (5).to_bytes(4, "little"))
    return parts.seal()


def _hostile_manifest(parts: Parts) -> bytes:
    parts.manifest["model"]["tensor_count"] += 1
    return parts.seal()


# What loading does not look for: it would have to read weights, to work the vocabulary out anew, or to be stricter than
# a quick open, which leaves room for later versions.
NOT_LOOKED_AT = {
    "section.sha256",
    "section.gap",
    "section.gap_zero",
    "section.order",
    "blob.padding",
    "expert.padding",
    "assets.placement",
    "tokenizer.merge_bytes",
    "tokenizer.metadata",
    "tokenizer.merge_index",
    "tokenizer.byte_tokens",
    "tokenizer.special_tokens",
    "tokenizer.token_order",
    "field.reserved",
    "field.flags",
}


def test_all_broken_vectors_but_those_are_refused(tmp_path: Path) -> None:
    """The conformance kit's files: each breaks one rule, and its digests are right."""
    loaded, judged = set(), 0
    for vector in vectors.load():
        if vector.large:
            continue
        path = vector.write(tmp_path)
        judged += 1
        code = ""
        try:
            GuildModel.load(path).close()
        except errors.GpackError as error:
            code = error.code
        if not code and vector.expect == "reject":
            loaded.add(vector.rules[0])
        elif code != "shard.missing":  # some files lack their shards, a valid one too
            assert code in (vector.rules if vector.expect == "reject" else ("",))
    assert judged > 500
    optional = {rule for rule in RULES if rule.startswith(("chunks.", "parity."))}
    assert loaded <= NOT_LOOKED_AT | optional


def test_a_later_version_s_file_is_loaded(files: dict[str, Path], tmp_path: Path) -> None:
    """Rows that are longer, and a reserved field that a reader of version 1 may do without."""
    parts = Parts.parse(files["embedded"].read_bytes())
    parts.set_row(1, "rope_freqs.weight", reserved=7)
    parts.rebuild(0, parts.entries(0), row_size=parts.get(0).row_size + 16, fill=b"\x07")
    path = tmp_path / "later.gpack"
    path.write_bytes(parts.seal())
    assert not gpack.verify(path).ok  # which is stricter
    with GuildModel.load(path) as model, GuildModel.load(files["embedded"]) as today:
        assert contents(model) == contents(today)


def _flip(data: bytes, text: bytes = b'"producer"') -> bytes:
    """One letter of a text that stands in the pack becomes another."""
    place = data.index(text) + len(text) // 2
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_pack_that_cannot_be_used_gives_way_to_the_gguf(
    fault: str, files: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change, code = FAULTS[fault]
    path = tmp_path / "bad.gpack"
    change(path, files["embedded"].read_bytes())
    with pytest.raises(errors.GpackError) as caught:
        GuildModel.load(path)
    assert caught.value.code == code
    assert not caplog.records  # without a GGUF nothing is logged: the error says it all

    with caplog.at_level(logging.DEBUG), GuildModel.load(ModelPaths(path, files["gguf"])) as model:
        assert model.pack is None
        assert model.path == str(files["gguf"])
        assert str(model.fallback) == str(caught.value)
        with GuildModel.load(files["embedded"]) as whole:
            assert contents(model) == contents(whole)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.records[0].message == f"{caught.value}; loading {files['gguf']} instead"


def test_shards_that_are_missing_count_too(
    files: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.gpack"
    path.write_bytes(files["external"].read_bytes())
    with pytest.raises(errors.PathError) as caught:
        GuildModel.load(path)
    assert caught.value.code == "shard.missing"
    with GuildModel.load(ModelPaths(path, expert_dir=files["gguf"].parent)) as model:
        assert model.fallback is None
    with GuildModel.load(ModelPaths(path, files["gguf"])) as model:
        assert model.fallback is not None
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "section",
    ["MetadataKvBin", "TensorIndexBin", "DenseIndexBin", "NativeDenseIndexBin", "ExpertLayoutBin", "TokenizerBin"],
)
def test_a_damaged_table_shows_at_once_and_names_the_section(
    section: str, files: dict[str, Path], tmp_path: Path
) -> None:
    data = bytearray(files["embedded"].read_bytes())
    with gpack.open(files["embedded"]) as pack:
        entry = pack.container.entry(section)
        data[entry.offset + entry.size - 1] ^= 1
        with pytest.raises(errors.MissingError):
            pack.container.entry("no such")
    path = tmp_path / "bad.gpack"
    path.write_bytes(data)
    with pytest.raises(errors.DigestError) as caught:
        GuildModel.load(path)
    assert (caught.value.code, caught.value.section, caught.value.offset) == ("section.sha256", section, entry.offset)
    assert sha256(data[entry.offset : entry.offset + entry.size]).hexdigest() in caught.value.message
    assert entry.sha256.hex() in caught.value.message


def test_a_wrong_option_is_no_fault_of_the_pack_s(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GUILD_EXPERT_MMAP", "yes")
    with pytest.raises(errors.UsageError, match="GUILD_EXPERT_MMAP is 'yes'"):
        GuildModel.load(ModelPaths(files["embedded"], files["gguf"]))
    assert not caplog.records
    GuildModel.load(files["embedded"], io="read").close()  # which does not ask for it


def test_damaged_bytes_show_where_all_digests_are_checked(files: dict[str, Path], tmp_path: Path) -> None:
    data = bytearray(files["embedded"].read_bytes())
    with gpack.open(files["embedded"]) as pack:
        data[pack.container.entry("NativeDenseBlob").offset] ^= 1
    path = tmp_path / "bad.gpack"
    path.write_bytes(data)
    with GuildModel.load(path) as model:
        assert model.pack is not None
    with pytest.raises(errors.DigestError) as caught:
        GuildModel.load(path, verify_all_hashes=True)
    assert caught.value.code == "section.sha256"
    with GuildModel.load(ModelPaths(path, files["gguf"]), verify_all_hashes=True) as model:
        assert model.pack is None


def test_when_neither_can_be_used_both_reasons_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(errors.PathError) as caught:
        GuildModel.load(ModelPaths(tmp_path / "a.gpack", tmp_path / "b.gguf"))
    assert caught.value.path == str(tmp_path / "b.gguf")
    assert "a.gpack: no such file" in caplog.text
    with pytest.raises(errors.UsageError):
        GuildModel.load(ModelPaths())
    with pytest.raises(errors.UsageError):
        GuildModel.load(ModelPaths(tmp_path / "a.gpack"), io="fast")


def test_a_model_without_experts_and_table(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", *tiny_llama())
    convert_gguf(source, tmp_path / "m.gpack")
    for paths in (ModelPaths(tmp_path / "m.gpack"), ModelPaths(None, source)):
        with GuildModel.load(paths) as model:
            assert (model.experts, model.ple) == (None, None)
            assert model.metadata["general.architecture"] == "llama"
            assert model.metadata.get("no such") is None


def test_a_file_system_without_maps_is_read(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import mmap

    with GuildModel.load(files["embedded"]) as whole:
        wanted = contents(whole)
    original = mmap.mmap

    def refuse(descriptor: int, *args: Any, **options: Any) -> Any:
        if descriptor >= 0:
            raise OSError(errno.ENODEV, "No such device")
        return original(descriptor, *args, **options)

    monkeypatch.setattr(mmap, "mmap", refuse)
    with caplog.at_level(logging.WARNING), GuildModel.load(ModelPaths(None, files["gguf"])) as model:
        assert contents(model) == wanted
    assert len([record for record in caplog.records if "reading tensors instead" in record.message]) == 1


def test_close_unmaps(files: dict[str, Path]) -> None:
    """While the model itself is still there, and what a user asked of it was used."""

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count(str(files["embedded"]))

    for io in ("auto", "mmap", "read", "direct"):
        model = GuildModel.load(files["embedded"], io=io, ple_io=PleIo.Mmap)
        assert model.metadata["general.architecture"]
        assert model.tokenizer.encode("a")
        assert model.experts is not None
        held = model.tensors["rope_freqs.weight"]
        model.experts.get(next(iter(model.experts.layers)), 0)
        assert mapped()
        model.close()
        values = held.tobytes()
        del held
        assert values
        assert not mapped()
        with pytest.raises(errors.ClosedError):
            _ = model.metadata


def test_nothing_stays_open(files: dict[str, Path], tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for paths in (ModelPaths(files["external"]), ModelPaths(None, files["gguf"]), ModelPaths(tmp_path, files["gguf"])):
        GuildModel.load(paths).close()
    bad = tmp_path / "bad.gpack"
    bad.write_bytes(damage(Parts.parse(files["embedded"].read_bytes())))
    with pytest.raises(errors.GpackError):
        GuildModel.load(bad)
    assert len(os.listdir("/proc/self/fd")) == before


def test_arrays_outlive_the_model(files: dict[str, Path]) -> None:
    with GuildModel.load(files["embedded"]) as model:
        held = model.tensors["blk.0.attn_norm.weight"]
        wanted = held.tobytes()
    assert held.tobytes() == wanted


@pytest.mark.parametrize("io", ["auto", "read"])
def test_a_closed_model(files: dict[str, Path], io: str) -> None:
    model = GuildModel.load(files["embedded"], io=io)
    held = model.tensors["rope_freqs.weight"]
    model.close()
    with pytest.raises(errors.ClosedError) as caught:
        _ = model.tensors["rope_freqs.weight"]
    assert caught.value.code == "pack.closed"
    assert held.tobytes()


@pytest.mark.parametrize("value", [7, [], b"x"])
@pytest.mark.parametrize("field", ["gpack_path", "primary_model_path", "expert_dir", "pack_dir", "mtp_dir"])
def test_paths_that_are_none(files: dict[str, Path], field: str, value: Any) -> None:
    """Said at once, also of a path that the pack makes needless."""
    paths: dict[str, Any] = {"gpack_path": files["embedded"], field: value}
    with pytest.raises(errors.UsageError, match=f"{type(value).__name__} is no path") as caught:
        GuildModel.load(ModelPaths(**paths))
    assert caught.value.field == field


@pytest.mark.parametrize(
    "options",
    [{"expert_budget_bytes": -1}, {"expert_budget_bytes": "1"}, {"ple_io": "fast"}, {"ple_io": None}, {"io": ["mmap"]}],
)
def test_options_that_are_none(options: dict[str, Any], tmp_path: Path) -> None:
    """Also where the model has no experts and no table."""
    source = write_gguf(tmp_path / "m.gguf", *tiny_llama())
    with pytest.raises(errors.UsageError):
        GuildModel.load(ModelPaths(None, source), **options)
    with pytest.raises(errors.UsageError, match="int is no path"):
        GuildModel.load(7)  # type: ignore[arg-type]
