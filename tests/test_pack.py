"""`gpack.open`: what a pack shows of itself, against the source as the `gguf` package reads it."""

from __future__ import annotations

import gc
import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from convert.packs import Parts
from gguf import GGUFReader
from gguf_maker import EVERY_KIND, Tensor, TensorMaker, tiny_moe, vector, write_gguf

import gpack
from gpack import errors
from gpack.convert.gguf import convert_gguf


def make(tmp_path: Path, metadata: Any, tensors: Any) -> Path:
    convert_gguf(write_gguf(tmp_path / "m.gguf", metadata, tensors), tmp_path / "m.gpack")
    return tmp_path / "m.gpack"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experts, a draft layer with experts, a tokenizer, every kind of metadata."""
    metadata, tensors = tiny_moe(layers=2)
    draft = TensorMaker(9)
    tensors += [
        draft.f16("blk.2.ffn_gate_exps.weight", 4, 3, 2),
        draft.q4_0("blk.2.ffn_up_exps.weight", 32, 3, 2),
        draft.f32("blk.2.ffn_down_exps.weight", 3, 4, 2),
        draft.norm("blk.2.nextn.enorm.weight", 4),
    ]
    metadata = [entry for entry in metadata if not entry[0].endswith("block_count")]
    metadata += [("dots1.block_count", "u32", 3), ("dots1.nextn_predict_layers", "u32", 1), *EVERY_KIND]
    return make(tmp_path_factory.mktemp("model"), metadata, tensors)


@pytest.fixture
def pack(model: Path) -> Iterator[gpack.Pack]:
    with gpack.open(model) as opened:
        yield opened


def reader_of(model: Path) -> GGUFReader:
    return GGUFReader(model.with_suffix(".gguf"))


# --- tensors ---


def test_a_mapping_of_names_to_tensors(pack: gpack.Pack, model: Path) -> None:
    names = [tensor.name for tensor in reader_of(model).tensors]
    assert len(pack) == len(names)
    assert list(pack) == list(pack.keys()) == sorted(names)
    assert all(name in pack for name in names)
    for absent in ("", "nope", 7, None, "\udcff", "blk.0.attn_q.weigh"):
        assert absent not in pack


def test_every_tensor_is_the_sources(pack: gpack.Pack, model: Path) -> None:
    for theirs in reader_of(model).tensors:
        ours = pack[theirs.name]
        assert ours.tobytes() == theirs.data.tobytes()
        assert ours.ggml_type == int(theirs.tensor_type)
        assert ours.type_name == theirs.tensor_type.name
        assert ours.dims == tuple(int(extent) for extent in theirs.shape)
        assert ours.shape == theirs.data.shape
        assert ours.dtype == theirs.data.dtype


def test_tensors_are_zero_copy_and_read_only(pack: gpack.Pack) -> None:
    mapped = np.frombuffer(pack.container.mapping(), np.uint8)
    first, end = mapped.ctypes.data, mapped.ctypes.data + len(mapped)
    for name in pack:
        tensor = pack[name]
        assert np.shares_memory(tensor, mapped)
        assert first <= tensor.ctypes.data < end
        assert not tensor.flags.writeable
        assert not tensor.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            tensor[...] = 0
        with pytest.raises(ValueError, match="WRITEABLE"):
            tensor.flags.writeable = True
    del mapped, tensor


def test_the_place_of_a_tensor(pack: gpack.Pack, model: Path) -> None:
    """Runs of bytes in the file; an ordinary tensor is one, routed experts are one to an expert."""
    data = model.read_bytes()
    for theirs in reader_of(model).tensors:
        place = pack.place(theirs.name)
        assert place.path == str(model)
        assert place.runs == (int(theirs.shape[2]) if "_exps" in theirs.name else 1)
        held = b"".join(data[place.offset + run * place.stride :][: place.length] for run in range(place.runs))
        assert held == theirs.data.tobytes()
        assert place.span == (place.runs - 1) * place.stride + place.length
        if place.runs > 1:
            assert place.stride % 4096 == 0


def test_missing_things(pack: gpack.Pack, model: Path) -> None:
    names: tuple[Any, ...] = ("nope", "", "\udcff", 7, None)
    for name in names:
        for ask in (pack.__getitem__, pack.info, pack.place):
            with pytest.raises(KeyError) as caught:
                ask(name)
            assert isinstance(caught.value, errors.MissingError)
            assert caught.value.code == "pack.no_tensor"
            assert caught.value.path == str(model)
        assert name not in pack.metadata
        with pytest.raises(errors.MissingError) as missing:
            pack.metadata[name]
        assert missing.value.code == "pack.no_key"
    assert pack.metadata.get("nope", 5) == 5
    with pytest.raises(errors.MissingError) as absent:
        pack.section("PleBlob")
    assert absent.value.code == "pack.no_section"


def test_no_tokenizer(tmp_path: Path) -> None:
    with gpack.open(make(tmp_path, {}, [])) as pack:
        assert (len(pack), list(pack), len(pack.metadata)) == (0, [], 0)
        with pytest.raises(errors.MissingError):
            _ = pack.tokenizer_table


# --- metadata, manifest, sections ---


def test_metadata_as_the_gguf_package_reads_it(pack: gpack.Pack, model: Path) -> None:
    reader = reader_of(model)
    fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert list(pack.metadata) == list(pack.metadata.keys()) == list(fields)
    assert len(pack.metadata) == len(fields)
    nested = {"c.nested", "c.strings", "c.deep"}  # the package flattens these
    for key, field in fields.items():
        assert key in pack.metadata
        if key not in nested:
            assert pack.metadata[key] == field.contents()
    for key, _, value in EVERY_KIND:
        assert pack.metadata[key] == value
        assert pack.metadata.get(key) == value
    assert type(pack.metadata["a.true"]) is bool
    assert 5 not in pack.metadata  # type: ignore[comparison-overlap]


def test_sections_are_views(pack: gpack.Pack, model: Path) -> None:
    parts = Parts(model)
    for kind in parts.entries:
        view = pack.section(kind)
        assert view.readonly
        assert bytes(view) == parts.section(kind)
    assert bytes(pack.section("TokenizerBin")) == parts.section(11)
    assert pack.manifest == parts.manifest


def test_the_tokenizer(pack: gpack.Pack) -> None:
    table = pack.tokenizer_table
    assert table is pack.tokenizer_table
    tokens = pack.metadata["tokenizer.ggml.tokens"]
    assert len(table) == len(tokens) == 272
    assert [table.token(index).decode() for index in range(272)] == tokens
    for index in (-1, 272):
        with pytest.raises(IndexError):
            table.token(index)


def test_a_verification_is_true_where_the_pack_is_sound(model: Path, tmp_path: Path) -> None:
    found = gpack.verify(model)
    assert found
    assert found.report
    (tmp_path / "bad").write_bytes(model.read_bytes()[:-1] + b"x")
    found = gpack.verify(tmp_path / "bad")
    assert not found
    assert not found.report
    with pytest.raises(TypeError, match=r"ask for \.equal"):
        bool(gpack.diff(model, model))


def test_verify_all_hashes(model: Path, tmp_path: Path) -> None:
    gpack.open(model, verify_all_hashes=True).close()
    data = bytearray(model.read_bytes())
    data[Parts(model).entries[5].offset] ^= 1
    (tmp_path / "bad").write_bytes(data)
    gpack.open(tmp_path / "bad").close()
    with pytest.raises(errors.DigestError) as caught:
        gpack.open(tmp_path / "bad", verify_all_hashes=True)
    assert caught.value.code == "section.sha256"
    assert caught.value.section == "NativeDenseBlob"


# --- closing ---


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def test_close_unmaps(model: Path) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    pack = gpack.open(model)
    assert not is_mapped(model)  # nothing was asked for yet
    for name in pack:
        pack[name].sum()
    assert pack.metadata["tokenizer.ggml.tokens"]
    assert pack.tokenizer_table.token(0)
    assert pack.manifest
    assert is_mapped(model)
    pack.close()
    assert not is_mapped(model)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    pack.close()  # again: nothing


def test_arrays_outlive_the_pack(model: Path) -> None:
    source = {tensor.name: tensor.data.tobytes() for tensor in reader_of(model).tensors}
    with gpack.open(model) as pack:
        tensor = pack["blk.1.ffn_down_exps.weight"]
        row = pack["token_embd.weight"][3]
        tokens = pack.tokenizer_table
    assert is_mapped(model)
    assert tokens.token(5) == "ą".encode()  # GPT-2's letter for byte 5
    del tokens
    assert tensor.tobytes() == source["blk.1.ffn_down_exps.weight"]
    assert row.tobytes() == source["token_embd.weight"][3 * 36 : 4 * 36]
    del tensor
    assert is_mapped(model)
    del row
    gc.collect()
    assert not is_mapped(model)


def test_use_after_close(model: Path) -> None:
    pack = gpack.open(model)
    metadata = pack.metadata
    assert metadata["general.architecture"] == "dots1"
    pack.close()
    for use in (
        lambda: pack["token_embd.weight"],
        lambda: list(pack),
        lambda: len(pack),
        lambda: pack.metadata,
        lambda: pack.tokenizer_table,
        lambda: pack.section(0),
        lambda: "x" in pack,
        lambda: pack.place("x"),
        lambda: pack.tensors,
        lambda: pack.info("x"),
        lambda: pack.container.read(0),
        lambda: pack.container.descriptor,
        lambda: metadata["tokenizer.ggml.tokens"],
    ):
        with pytest.raises(errors.ClosedError) as caught:
            use()
        assert caught.value.code == "pack.closed"
        assert caught.value.path == str(model)


def test_opening_needs_the_standard_library_alone(model: Path) -> None:
    program = (
        "import sys, gpack; pack = gpack.open(sys.argv[1]); pack.info('token_embd.weight'); len(pack)\n"
        "sys.exit(sum(name in sys.modules for name in ('numpy', 'construct', 'gguf', 'tqdm')))"
    )
    assert subprocess.run([sys.executable, "-c", program, str(model)], check=False).returncode == 0


def test_what_the_package_offers() -> None:
    assert set(gpack.__all__) <= set(dir(gpack))
    assert all(getattr(gpack, name) is not None for name in gpack.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = gpack.nonsense


# --- a damaged index ---


def damaged(model: Path, kind: int, change: Any, target: Path) -> Path:
    """The pack with one section's bytes changed; a quick open looks at no digest but the manifest's."""
    whole = bytearray(model.read_bytes())
    entry = Parts(model).entries[kind]
    data = whole[entry.offset : entry.offset + entry.size]
    change(data)
    whole[entry.offset : entry.offset + entry.size] = data
    target.write_bytes(whole)
    return target


def read_all(path: Path) -> list[str]:
    """Reads everything that a pack has, however it can; returns the codes of what failed."""
    codes: list[str] = []

    def attempt(use: Any) -> Any:
        try:
            return use()
        except errors.GpackError as error:
            codes.append(error.code)
            return None

    with gpack.open(path) as pack:
        names = attempt(lambda: list(pack)) or ()
        for name in names:
            tensor = attempt(lambda name=name: pack[name])
            if tensor is not None:
                assert tensor.nbytes <= 64 << 20
                tensor.tobytes()
                attempt(tensor[:1].dequantize if tensor.ndim else tensor.dequantize)
            attempt(lambda name=name: pack.place(name))
        for key in attempt(lambda: list(pack.metadata)) or ():
            attempt(lambda key=key: pack.metadata[key])
        tensor = None
    return codes


def test_rows_that_point_outside(model: Path, tmp_path: Path) -> None:
    index = sorted(tensor.name for tensor in reader_of(model).tensors).index("output_norm.weight")
    start = 64 + 120 * index
    cases: list[tuple[int, str, int, type[errors.GpackError], str]] = [
        (8, "<I", 43, errors.FormatError, "tensor.type"),
        (12, "<I", 9, errors.FormatError, "tensor.rank"),
        (16, "<Q", 1 << 60, errors.FormatError, "tensor.byte_size"),
        (80, "<I", 2, errors.FormatError, "tensor.home"),
        (80, "<I", 8, errors.MissingError, "pack.no_section"),
        (84, "<I", 1, errors.FormatError, "tensor.role"),
        (92, "<I", 1, errors.FormatError, "tensor.external"),
        (96, "<Q", 1 << 40, errors.BoundsError, "tensor.bounds"),
        (96, "<Q", 2**64 - 1, errors.GpackError, ""),
        (104, "<Q", 1 << 40, errors.FormatError, "tensor.byte_size"),
    ]
    for offset, code, value, kind, rule in cases:
        path = damaged(
            model, 1, lambda data, o=offset, c=code, v=value: struct.pack_into(c, data, start + o, v), tmp_path / "bad"
        )
        with gpack.open(path) as pack, pytest.raises(kind) as caught:
            pack["output_norm.weight"]
        assert caught.value.code == rule or not rule
        assert caught.value.path == str(path)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        (
            "output_norm.weight",
            {12: ("<I", 3), 16: ("<Q", 0), 24: ("<Q", 1 << 62), 32: ("<Q", 1 << 62), 104: ("<Q", 0)},
        ),
        ("blk.1.ffn_up_exps.weight", {12: ("<I", 2), 32: ("<Q", 1), 104: ("<Q", 1152)}),
        ("blk.1.ffn_up_exps.weight", {88: ("<I", 1 << 31)}),
        ("blk.2.ffn_up_exps.weight", {88: ("<I", 77)}),
    ],
)
def test_shapes_that_only_a_liar_writes(
    model: Path, tmp_path: Path, name: str, fields: dict[int, tuple[str, int]]
) -> None:
    """Empty tensors with extents beyond numpy's; experts of another rank; rows of tables that are not there."""
    start = 64 + 120 * sorted(tensor.name for tensor in reader_of(model).tensors).index(name)

    def change(data: bytearray) -> None:
        for offset, (code, value) in fields.items():
            struct.pack_into(code, data, start + offset, value)

    with gpack.open(damaged(model, 1, change, tmp_path / "bad")) as pack, pytest.raises(errors.FormatError):
        pack[name]


@pytest.mark.parametrize(
    ("name", "kind", "offset"),
    [
        ("blk.1.ffn_down_exps.weight", 9, 64 + 112),  # the first row of ExpertLayoutBin
        ("blk.2.ffn_gate_exps.weight", 13, 64 + 120 + 96),  # the second row of MtpBlob
    ],
)
def test_experts_whose_stride_lies(model: Path, tmp_path: Path, name: str, kind: int, offset: int) -> None:
    for stride in (0, 1, 2**40, 2**63):
        path = damaged(model, kind, lambda data, s=stride: struct.pack_into("<Q", data, offset, s), tmp_path / "bad")
        with gpack.open(path) as pack, pytest.raises(errors.BoundsError) as caught:
            pack[name]
        assert caught.value.code == "tensor.bounds"


@pytest.mark.parametrize("kind", [0, 1, 9, 11, 13])
def test_random_damage_of_the_tables_is_read_or_refused(model: Path, tmp_path: Path, kind: int) -> None:
    rng = random.Random(kind)
    clean = Parts(model).section(kind)
    # The tables' headers and rows; of the tokenizer the header and the first offsets.
    reach = min(len(clean), 64 + 120 * 40)
    failed = 0
    for _ in range(120):

        def change(data: bytearray) -> None:
            for _ in range(rng.randrange(1, 4)):
                at = rng.randrange(64) if rng.random() < 0.3 else rng.randrange(reach)
                size = rng.choice([1, 4, 8])
                value = rng.choice([0, 1, 0xFF, rng.getrandbits(8 * size), (1 << 8 * size) - 1, 1 << (8 * size - 1)])
                data[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")[: len(data) - at]

        failed += bool(read_all(damaged(model, kind, change, tmp_path / "bad")))
    assert failed > 10


def test_random_damage_does_not_keep_the_pack_open(model: Path, tmp_path: Path) -> None:
    path = damaged(model, 1, lambda data: data.__setitem__(slice(0, 4), b"XXXX"), tmp_path / "bad")
    assert read_all(path) == ["index.magic"]
    gc.collect()
    assert not is_mapped(path)


def test_small_things(tmp_path: Path) -> None:
    scalar: Tensor = ("scalar", 0, (), struct.pack("<f", 2.5))
    with gpack.open(make(tmp_path, {}, [scalar, ("none", 0, (4, 0), b""), vector("three", 3)])) as pack:
        assert pack["scalar"].shape == ()
        assert pack["scalar"].dequantize() == np.float32(2.5)
        assert pack["none"].shape == (0, 4)
        assert pack["none"].dequantize().shape == (0, 4)
        assert pack["three"].tolist() == [0.0, 1.0, 2.0]
