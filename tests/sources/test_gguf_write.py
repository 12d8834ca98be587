"""The writer is the reader's mirror, and writes the very bytes that llama.cpp writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gguf_maker import Entry, Tensor, make_gguf, tiny_llama, tiny_moe, write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st

from gpack.errors import FormatError, UnsupportedError
from gpack.sources.gguf import GgufSource, Value
from gpack.sources.gguf_write import build_header

ORACLE = Path(os.environ.get("GPACK_ORACLE", Path(__file__).parents[2].parent / "shared" / "oracle"))


def rebuild(source: GgufSource) -> tuple[bytes, list[int], int]:
    return build_header(
        version=source.version,
        alignment=source.alignment,
        metadata=source.metadata.values(),
        tensors=[(info.name, info.ggml_type, info.dims, info.byte_size) for info in source.tensors],
    )


def check_rebuilt(path: Path) -> None:
    with GgufSource.open(path) as source:
        header, offsets, size = rebuild(source)
        assert header == source.read_at(0, 0, source.shards[0].header_size)
        assert offsets == [info.offset for info in source.tensors]
        assert size == source.shards[0].file_size


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [32, 64])
def test_tiny_models_are_rebuilt(tmp_path: Path, version: int, alignment: int) -> None:
    metadata, tensors = tiny_llama(alignment=alignment)
    check_rebuilt(write_gguf(tmp_path / "m.gguf", metadata, tensors, version=version, alignment=alignment))
    check_rebuilt(write_gguf(tmp_path / "moe.gguf", *tiny_moe(fused=True), version=version))


@pytest.mark.skipif(not ORACLE.is_dir(), reason=f"the reference files are not at {ORACLE}")
@pytest.mark.parametrize("folder", ["models", "quant", "hf/*"])
def test_the_headers_of_llama_cpp_are_rebuilt(folder: str) -> None:
    paths = sorted(ORACLE.glob(f"{folder}/*.gguf"))
    assert paths
    for path in paths:
        check_rebuilt(path)


SCALARS = {
    "u8": st.integers(0, 255),
    "i64": st.integers(-(2**63), 2**63 - 1),
    "f32": st.floats(width=32, allow_nan=False),
    "bool": st.booleans(),
    "str": st.text(max_size=20),
}
KINDS = st.recursive(st.sampled_from(sorted(SCALARS)), lambda inner: inner.map(lambda kind: f"[{kind}]"))


def values(kind: str) -> st.SearchStrategy[object]:
    return st.lists(values(kind[1:-1]), max_size=4) if kind.startswith("[") else SCALARS[kind]


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    keys = draw(st.lists(st.text(min_size=1, max_size=12), unique=True, max_size=6))
    kinds = [draw(KINDS.filter(lambda kind: kind.count("[") <= 8)) for _ in keys]
    return [(key, kind, draw(values(kind))) for key, kind in zip(keys, kinds, strict=True)]


@given(entries(), st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=5), st.sampled_from([2, 3]))
@settings(deadline=None)
def test_parse_of_build_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, metadata: list[Entry], shapes: list[list[int]], version: int
) -> None:
    tensors: list[Tensor] = []
    for index, dims in enumerate(shapes):
        size = 4
        for dim in dims:
            size *= dim
        tensors.append((f"t{index}", 0, tuple(dims), bytes([index]) * size))
    path = tmp_path_factory.getbasetemp() / "property.gguf"
    content = make_gguf(metadata, tensors, version=version)
    path.write_bytes(content)
    with GgufSource.open(path) as source:
        header, offsets, size = rebuild(source)
        assert content.startswith(header)
        assert size == len(content)
        for offset, (*_, data) in zip(offsets, tensors, strict=True):
            assert content[offset : offset + len(data)] == data
        for key, _, value in metadata:
            assert source.get(key) == value


def test_metadata_made_by_hand(tmp_path: Path) -> None:
    made = [Value("k", 8, 8, 1, b"text"), Value("l", 9, 8, 2, b"\1" + bytes(7) + b"a" + bytes(8))]
    header, offsets, size = build_header(
        version=3, alignment=32, metadata=made, tensors=[("t", 0, (3,), 12), ("u", 0, (1,), 4)]
    )
    assert offsets == [len(header), len(header) + 32]
    assert size == len(header) + 64
    path = tmp_path / "m.gguf"
    path.write_bytes(header + bytes(64))
    with GgufSource.open(path) as source:
        assert [*source.metadata.values()] == made
        assert source.get("l") == made[1].python() == ["a", ""]
        assert [info.offset for info in source.tensors] == offsets


@pytest.mark.parametrize("alignment", [0, 3, -32, 1 << 21])
def test_impossible_alignments(alignment: int) -> None:
    with pytest.raises(FormatError, match=str(alignment)) as caught:
        build_header(version=3, alignment=alignment, metadata=[], tensors=[])
    assert caught.value.code == "gguf.alignment"


def test_an_alignment_that_the_metadata_denies() -> None:
    with pytest.raises(FormatError, match="32, not 64"):
        build_header(version=3, alignment=64, metadata=[], tensors=[])
    entry = Value("general.alignment", 4, 4, 1, (64).to_bytes(4, "little"))
    with pytest.raises(FormatError, match="64, not 32") as caught:
        build_header(version=3, alignment=32, metadata=[entry], tensors=[])
    assert caught.value.code == "gguf.alignment"


@pytest.mark.parametrize("version", [1, 4])
def test_other_versions(version: int) -> None:
    with pytest.raises(UnsupportedError, match=str(version)) as caught:
        build_header(version=version, alignment=32, metadata=[], tensors=[])
    assert caught.value.code == "gguf.version"
