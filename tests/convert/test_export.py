"""Export gives the source back; converting the export gives the pack back."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from convert.packs import ORACLE, Parts
from gguf import GGUFReader
from gguf_maker import (
    EVERY_KIND,
    F16,
    F32,
    Q4_0,
    Entry,
    Tensor,
    make_gguf,
    tiny_llama,
    tiny_moe,
    vector,
    write_gguf,
    write_split,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpack
from gpack.convert.export import export_gguf
from gpack.convert.gguf import convert_gguf
from gpack.errors import FormatError, GpackError, PathError, UnsupportedError, UsageError
from gpack.sources.gguf import GgufSource


def round_trip(source: Path, folder: Path) -> Path:
    """Converts, exports, converts again; the two packs must be the same bytes. Returns the export."""
    first, second, exported = folder / "1.gpack", folder / "2.gpack", folder / "exported.gguf"
    convert_gguf(source, first)
    export_gguf(first, exported)
    convert_gguf(exported, second)
    assert second.read_bytes() == first.read_bytes()
    return exported


def content(path: Path) -> tuple[Any, ...]:
    """All that an export promises: version, alignment, keys with types and raw bytes, tensors with their bytes."""
    with GgufSource.open(path) as source:
        keys = [(v.key, v.value_type, v.element_type, v.count, bytes(v.raw)) for v in source.metadata.values()]
        tensors = [(t.name, t.ggml_type, t.dims, source.read(t)) for t in source.tensors]
        return source.version, source.alignment, keys, tensors


MODELS = {
    "llama": tiny_llama(layers=1),
    "tied": tiny_llama(layers=1, tied=True),
    "moe": tiny_moe(layers=2),
    "fused": tiny_moe(layers=2, fused=True, dense_first=False),
    "draft": (
        [
            ("general.architecture", "str", "x"),
            ("x.block_count", "u32", 3),
            ("x.nextn_predict_layers", "u32", 2),
            *tiny_moe(layers=3)[0][1:],
        ],
        tiny_moe(layers=3)[1],
    ),
    "kinds": (EVERY_KIND, [vector("t")]),
    "none": ([], []),
}


@pytest.mark.parametrize("model", MODELS)
def test_a_plainly_written_file_comes_back_byte_for_byte(tmp_path: Path, model: str) -> None:
    source = write_gguf(tmp_path / "m.gguf", *MODELS[model])
    assert round_trip(source, tmp_path).read_bytes() == source.read_bytes()


@pytest.mark.parametrize(("version", "alignment"), [(2, 32), (3, 8), (3, 64), (3, 8192)])
def test_version_and_alignment_come_back(tmp_path: Path, version: int, alignment: int) -> None:
    entries, tensors = tiny_llama(layers=1, alignment=alignment)
    source = write_gguf(tmp_path / "m.gguf", entries, tensors, version=version, alignment=alignment)
    exported = round_trip(source, tmp_path)
    assert exported.read_bytes() == source.read_bytes()
    assert struct.unpack_from("<I", exported.read_bytes(), 4) == (version,)


def test_an_oddly_laid_out_file_comes_back_in_content(tmp_path: Path) -> None:
    """Tensors in another order than their names, a hole between them, bytes after the last."""
    tensors = [vector("b"), vector("a"), ("none", F32, (0,), b"")]
    options: dict[str, Any] = {"offsets": {"b": 96, "a": 32, "none": 64}, "trailing": b"x" * 64}
    source = write_gguf(tmp_path / "m.gguf", {"z": 1, "a": 2}, tensors, **options)
    exported = round_trip(source, tmp_path)
    assert content(exported) == content(source)
    assert exported.stat().st_size < source.stat().st_size


@pytest.mark.parametrize(
    "extra",
    [
        ("tokenizer.ggml.merges", "[str]", ["a b", "b a", "ab", "", "x"]),
        ("tokenizer.ggml.token_type", "[i32]", [1, 256, -7]),
        ("tokenizer.ggml.token_type", "[u32]", [1, 3, 255]),
        ("tokenizer.ggml.scores", "[f32]", [0.5, -1.0, 0.0]),
        ("tokenizer.chat_template", "str", ""),
        ("tokenizer.chat_template", "str", "é\0{{ x }}"),
        ("tokenizer.ggml.eos_token_id", "u32", 7),
    ],
)
def test_tokenizers_come_back(tmp_path: Path, extra: Entry) -> None:
    for tokens in (["a", "b", "ab"], ["ab", "ab", b"\xff"], ["", "", ""]):
        source = write_gguf(tmp_path / "m.gguf", [("tokenizer.ggml.tokens", "[str]", tokens), extra])
        assert round_trip(source, tmp_path).read_bytes() == source.read_bytes()


@pytest.mark.parametrize("metadata_first", [False, True])
def test_a_split_source_comes_back_whole(tmp_path: Path, *, metadata_first: bool) -> None:
    metadata, tensors = tiny_moe(layers=2)
    shards = write_split(tmp_path, "part", metadata, tensors, metadata_first=metadata_first)
    assert round_trip(shards[-1], tmp_path).read_bytes() == make_gguf(metadata, tensors)


def test_the_gguf_package_reads_the_export(tmp_path: Path) -> None:
    metadata, tensors = tiny_moe(layers=2)
    reader = GGUFReader(round_trip(write_gguf(tmp_path / "m.gguf", metadata, tensors), tmp_path))
    assert [key for key in reader.fields if not key.startswith("GGUF.")] == [key for key, _, _ in metadata]
    assert [(t.name, t.data.tobytes()) for t in reader.tensors] == [(name, data) for name, _, _, data in tensors]


# --- random small models ---

SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "u8": st.integers(0, 2**8 - 1),
    "i8": st.integers(-(2**7), 2**7 - 1),
    "u16": st.integers(0, 2**16 - 1),
    "i16": st.integers(-(2**15), 2**15 - 1),
    "u32": st.integers(0, 2**32 - 1),
    "i32": st.integers(-(2**31), 2**31 - 1),
    "u64": st.integers(0, 2**64 - 1),
    "i64": st.integers(-(2**63), 2**63 - 1),
    "f32": st.floats(width=32),
    "f64": st.floats(),
    "bool": st.booleans(),
    "str": st.binary(max_size=12),
}


def values(depth: int) -> st.SearchStrategy[tuple[str, Any]]:
    """A kind and a value of it, arrays nested up to that depth."""
    plain = st.sampled_from(sorted(SCALARS)).flatmap(lambda kind: st.tuples(st.just(kind), SCALARS[kind]))
    if not depth:
        return plain
    # Elements of one array are of one kind only where they are scalars, so nested arrays repeat one value.
    inner = values(depth - 1)
    scalars = st.sampled_from(sorted(SCALARS)).flatmap(
        lambda kind: st.tuples(st.just(f"[{kind}]"), st.lists(SCALARS[kind], max_size=4))
    )
    nested = st.tuples(inner, st.integers(0, 3)).map(lambda drawn: (f"[{drawn[0][0]}]", [drawn[0][1]] * drawn[1]))
    return st.one_of(plain, scalars, nested)


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
FREE_KEYS = NAMES.filter(lambda key: not key.startswith(("general.", "split.", "tokenizer.", "gexec.", ".")))
# Type id: elements to a block, bytes to a block.
BLOCKS = {F32: (1, 4), F16: (1, 2), Q4_0: (32, 18), 8: (32, 34), 24: (1, 1), 30: (1, 2), 12: (256, 144)}
SPECIAL = ["token_embd.weight", "output.weight", "per_layer_token_embd.weight"]
SPECIAL += [f"blk.{layer}.ffn_{role}_exps.weight" for layer in (0, 1) for role in ("gate", "up", "down", "gate_up")]


@st.composite
def tensor_lists(draw: st.DrawFn) -> list[Tensor]:
    made: list[Tensor] = []
    for name in draw(st.lists(st.one_of(NAMES, st.sampled_from(SPECIAL)), max_size=6, unique=True)):
        ggml_type = draw(st.sampled_from(sorted(BLOCKS)))
        block, size = BLOCKS[ggml_type]
        dims = (
            draw(st.lists(st.integers(0, 3), max_size=4).map(tuple)) if block == 1 else (block, draw(st.integers(0, 3)))
        )
        count = 1
        for extent in dims:
            count *= extent
        seed = draw(st.integers(0, 255))
        made.append((name, ggml_type, dims, bytes((seed + i) % 256 for i in range(count // block * size))))
    return made


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    entries=st.lists(st.tuples(FREE_KEYS, values(2)), max_size=6, unique_by=lambda item: item[0]),
    tensors=tensor_lists(),
    version=st.sampled_from([2, 3]),
    drafts=st.sampled_from([None, 1, 2]),
)
def test_any_small_model(
    tmp_path: Path, entries: list[Any], tensors: list[Tensor], version: int, drafts: int | None
) -> None:
    metadata: list[Entry] = [(key, kind, value) for key, (kind, value) in entries]
    if drafts:
        metadata += [("general.architecture", "str", "x"), ("x.block_count", "u32", 2)]
        metadata.append(("x.nextn_predict_layers", "u32", drafts))
    source = write_gguf(tmp_path / "m.gguf", metadata, tensors, version=version)
    assert round_trip(source, tmp_path).read_bytes() == source.read_bytes()
    assert gpack.verify(tmp_path / "1.gpack").ok


# --- real models ---


def oracle() -> Iterator[Any]:
    for folder in ("models", "quant", "split", "vocab"):
        found = sorted((ORACLE / folder).glob("*.gguf"))
        first = [path for path in found if "-of-" not in path.name or "-00002-of-" in path.name]
        for path in first:
            yield pytest.param(path, id=f"{folder}/{path.stem}")
    for path in sorted(ORACLE.glob("hf/*/m.gguf")):
        yield pytest.param(path, id=f"hf/{path.parent.name}")


REAL = list(oracle()) or [pytest.param(None, marks=pytest.mark.skip(reason=f"{ORACLE} is absent: no real models"))]


@pytest.mark.parametrize("source", REAL)
def test_real_models(tmp_path: Path, source: Path) -> None:
    exported = round_trip(source, tmp_path)
    ours, theirs = content(exported), content(source)
    assert ours == theirs
    if theirs[3] and "-of-" not in source.name:
        # The data section as a whole: the same order and padding.
        assert exported.read_bytes()[-1000:] == source.read_bytes()[-1000:]
        assert exported.stat().st_size == source.stat().st_size


SPLITS = {
    "split/qwen35moe_mtp-00001-of-00003": "models/qwen35moe_mtp",
    "split/qwen35moe-128-Q8_0-00002-of-00003": "quant/qwen35moe-128-Q8_0",
    "split/qwen35moe-256-Q8_0-meta_first-00003-of-00003": "quant/qwen35moe-256-Q8_0",
}


@pytest.mark.skipif(not ORACLE.is_dir(), reason=f"{ORACLE} is absent: no real models")
@pytest.mark.parametrize("shard", SPLITS)
def test_real_splits_give_the_pack_of_the_whole(tmp_path: Path, shard: str) -> None:
    convert_gguf(ORACLE / f"{shard}.gguf", tmp_path / "split.gpack")
    convert_gguf(ORACLE / f"{SPLITS[shard]}.gguf", tmp_path / "whole.gpack")
    assert (tmp_path / "split.gpack").read_bytes() == (tmp_path / "whole.gpack").read_bytes()


# --- what cannot be exported ---


def refused(source: Path, output: Path, kind: type[GpackError], code: str, **options: Any) -> GpackError:
    before = {path.name for path in output.parent.iterdir()}
    with pytest.raises(GpackError) as caught:
        export_gguf(source, output, **options)
    assert type(caught.value) is kind
    assert caught.value.code == code
    assert {path.name for path in output.parent.iterdir()} == before
    return caught.value


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    convert_gguf(write_gguf(tmp_path / "m.gguf", *tiny_llama(layers=1)), tmp_path / "m.gpack")
    return tmp_path / "m.gpack"


def test_over_the_pack_itself(pack: Path, tmp_path: Path) -> None:
    before = pack.read_bytes()
    refused(pack, pack, UsageError, "convert.same_file")
    (tmp_path / "link").symlink_to(pack)
    refused(pack, tmp_path / "link", UsageError, "convert.same_file")
    assert pack.read_bytes() == before


def test_no_pack(tmp_path: Path) -> None:
    refused(tmp_path / "none.gpack", tmp_path / "x.gguf", PathError, "io.not_found")
    write_gguf(tmp_path / "m.gguf", {})
    refused(tmp_path / "m.gguf", tmp_path / "x.gguf", FormatError, "header.magic")
    # One that ends too early is found before anything is written.
    (tmp_path / "x.gguf").write_bytes(b"old")


def changed(pack: Path, name: str, **fields: int) -> Path:
    """Writes fields of a tensor's row in TensorIndexBin; no open but a full verify sees it."""
    at = {"ggml_type": (8, "<I"), "dims0": (16, "<Q"), "offset": (96, "<Q"), "n_dims": (12, "<I"), "home": (80, "<I")}
    parts = Parts(pack)
    entry = parts.entries[1]
    index = list(parts.tensors()).index(name)
    data = bytearray(parts.data)
    for field, value in fields.items():
        offset, code = at[field]
        struct.pack_into(code, data, entry.offset + 64 + 120 * index + offset, value)
    pack.write_bytes(data)
    return pack


def test_a_damaged_index_is_refused(pack: Path, tmp_path: Path) -> None:
    clean = pack.read_bytes()
    output = tmp_path / "x.gguf"
    for fields, code in [
        ({"offset": 1 << 40}, "tensor.bounds"),
        ({"dims0": 1 << 50}, "tensor.byte_size"),
        ({"home": 2}, "tensor.home"),
        ({"n_dims": 9}, "tensor.rank"),
        ({"ggml_type": 43}, "tensor.type"),
    ]:
        pack.write_bytes(clean)
        changed(pack, "output_norm.weight", **fields)
        with pytest.raises(GpackError) as caught:
            export_gguf(pack, output)
        assert caught.value.code in (code, "export.incomplete")
        assert not output.exists()
        assert len(list(tmp_path.iterdir())) == 2


def test_a_type_that_gguf_lacks(pack: Path, tmp_path: Path) -> None:
    changed(pack, "output_norm.weight", ggml_type=0x10004)  # U32, of the same size as F32
    error = refused(pack, tmp_path / "x.gguf", UnsupportedError, "export.incomplete")
    assert "output_norm.weight" in str(error)
    assert "U32" in str(error)


def test_progress_adds_up(pack: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    done = export_gguf(pack, tmp_path / "x.gguf", progress=lambda n, total: calls.append((n, total)))
    assert sum(n for n, _ in calls) == done.size == (tmp_path / "x.gguf").stat().st_size
    assert {total for _, total in calls} == {done.size}
    assert (done.tensor_count, done.metadata_count) == (12, 23)
