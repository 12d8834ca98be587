"""Pack directories: how every kind of row is stored, and what is refused with which line and column."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_maker import Tensor, tiny_moe, write_gguf, write_split
from pack_dir_maker import PackDir, bf16_of, blobs

import gpack
from gpack import errors
from gpack.cli import main
from gpack.convert.export import export_gguf
from gpack.convert.gguf import convert_gguf
from gpack.generated.constants import DenseFlags, DenseKind, SectionKind, TensorFlags
from gpack.generated.structs import GPackDenseRowV1
from gpack.model import GuildModel, ModelPaths
from gpack.sections.table import Table
from gpack.sections.verify import verify

METADATA, TENSORS = tiny_moe()
BY_NAME: dict[str, Tensor] = {tensor[0]: tensor for tensor in TENSORS}
NORM, WIDE_NORM, HALF_NORM, SHORT_NORM = (
    "output_norm.weight",
    "blk.0.attn_norm.weight",
    "blk.1.attn_norm.weight",
    "blk.2.attn_norm.weight",
)
HALF, SERVED, PLANES, KEPT = (
    "blk.0.attn_v.weight",
    "blk.0.attn_q.weight",
    "blk.0.attn_k.weight",
    "blk.0.ffn_norm.weight",
)
FILES = {"tokenizer/vocab.json": b'{"a": 0}', "tokenizer/merges.txt": b"a b\n", "tokenizer/.hidden": b"x"}


def directory() -> PackDir:
    """One row of every kind."""
    made = PackDir(files=dict(FILES))
    elements = 64 * 32
    codes = np.random.default_rng(1).bytes(elements // 2 + elements // 32 * 2 * 2)
    made.add(NORM, 2, BY_NAME[NORM][3], 64, 1, 256)
    made.add(WIDE_NORM, 1, bf16_of(BY_NAME[WIDE_NORM][3]).tobytes(), 64, 1, 256)
    made.add(SHORT_NORM, 1, (bf16_of(BY_NAME[SHORT_NORM][3]) >> 16).astype("<u2").tobytes(), 64, 1, 256)
    made.add(HALF_NORM, 3, BY_NAME[HALF_NORM][3], 64, 1, 256)
    made.add(KEPT, 4, (bf16_of(BY_NAME[KEPT][3]) >> 16).astype("<u2").tobytes(), 64, 1, 128)
    made.add(HALF, 0, BY_NAME[HALF][3], 64, 32, elements * 2, act_kind=3)
    made.skip(SERVED, 64, 64, act_kind=2)
    made.add(
        PLANES,
        0,
        codes,
        64,
        32,
        elements // 2 + elements // 32 * 4 * 2,
        code_bits=4,
        code_bias=8,
        group_elems=32,
        codebook=1,
        has_offset=1,
        codes_bytes=elements // 2,
        scales_bytes=elements // 32 * 2,
        offset_bytes=elements // 32 * 2,
        scales_fp16=1,
        act_kind=5,
    )
    return made


def convert(tmp_path: Path, made: PackDir, **options: Any) -> Path:
    source = write_gguf(tmp_path / "m.gguf", METADATA, TENSORS)
    convert_gguf(source, tmp_path / "p.gpack", pack_dir=made.write(tmp_path / "pack"), **options)
    return tmp_path / "p.gpack"


def dense_rows(path: Path) -> dict[str, GPackDenseRowV1]:
    with gpack.open(path) as pack:
        table: Table[Any, Any] = Table(SectionKind.DENSE_INDEX_BIN, pack.section("DenseIndexBin"))
        return {table.text(row, "name"): row for row in table}


@pytest.mark.parametrize("act_kind", [True, False])
def test_every_kind_of_row_is_stored_and_verified(tmp_path: Path, act_kind: bool) -> None:
    made = directory()
    made.act_kind = act_kind
    path = convert(tmp_path, made)
    report = verify(path).report
    assert report.counts == {}
    rows = dense_rows(path)
    kinds = {name: (rows[name].kind, rows[name].ggml_type, rows[name].pool_type) for name in made.rows}
    f32, f16, q4_0, bf16 = 0, 1, 2, 30
    assert kinds == {
        NORM: (DenseKind.F32, f32, f32),
        WIDE_NORM: (DenseKind.BF16_TO_F32, bf16, f32),
        SHORT_NORM: (DenseKind.BF16_TO_F32, bf16, f32),
        HALF_NORM: (DenseKind.F16_TO_F32, f16, f32),
        KEPT: (DenseKind.BF16, bf16, bf16),
        HALF: (DenseKind.VERBATIM, f16, f16),
        SERVED: (DenseKind.VERBATIM, q4_0, q4_0),
        PLANES: (DenseKind.VERBATIM, f32, f32),
    }
    assert [rows[name].pool_bytes for name in made.rows] == [256, 256, 256, 256, 128, 4096, 2304, 1536]
    assert [rows[name].act_kind for name in (HALF, SERVED, PLANES)] == ([3, 2, 5] if act_kind else [0, 0, 0])
    assert rows[SERVED].flags == DenseFlags.SKIP_IN_NATIVE
    planes = rows[PLANES]
    assert planes.flags == DenseFlags.CODE_PLANES | DenseFlags.HAS_OFFSET | DenseFlags.SCALES_FP16
    assert (planes.code_bits, planes.code_bias, planes.group_elems, planes.codebook) == (4, 8, 32, 1)
    assert (planes.byte_size, planes.codes_bytes, planes.scales_bytes, planes.offset_bytes) == (1280, 1024, 128, 128)


def test_values_are_those_of_the_directory(tmp_path: Path) -> None:
    made = directory()
    with gpack.open(convert(tmp_path, made)) as pack:
        f32 = {name: np.frombuffer(BY_NAME[name][3], "<f4") for name in (NORM, WIDE_NORM, HALF_NORM, SHORT_NORM)}
        assert np.array_equal(pack[NORM].dequantize(), f32[NORM])
        assert np.array_equal(pack[WIDE_NORM].dequantize(), bf16_of(BY_NAME[WIDE_NORM][3]).view("<f4"))
        assert np.array_equal(pack[SHORT_NORM].dequantize(), bf16_of(BY_NAME[SHORT_NORM][3]).view("<f4"))
        assert np.array_equal(pack[HALF_NORM].dequantize(), f32[HALF_NORM].astype("<f2").astype("<f4"))
        assert pack[SERVED].tobytes() == BY_NAME[SERVED][3]
        start = int(made.rows[PLANES]["src_off"])
        planes = pack[PLANES]
        assert planes.tobytes() == bytes(made.dense[start : start + 1280])
        assert pack.info(PLANES).flags == TensorFlags.CODE_PLANES
        with pytest.raises(errors.UsageError):
            planes.dequantize()
        # What the directory does not name is the GGUF's.
        assert pack["token_embd.weight"].tobytes() == BY_NAME["token_embd.weight"][3]


def test_a_value_that_halves_cannot_hold_is_refused(tmp_path: Path) -> None:
    made = directory()
    start = int(made.rows[HALF_NORM]["src_off"])
    made.dense[start + 12 : start + 16] = np.float32(70000).tobytes()
    with pytest.raises(errors.FormatError) as caught:
        convert(tmp_path, made)
    assert (caught.value.code, caught.value.field) == ("quantize.value", HALF_NORM)
    assert "element 3 is 70000" in caught.value.message
    assert not (tmp_path / "p.gpack").exists()


def test_the_model_loads_the_same_from_pack_and_directory(tmp_path: Path) -> None:
    path = convert(tmp_path, directory())
    paths = ModelPaths(None, tmp_path / "m.gguf", pack_dir=tmp_path / "pack")
    with GuildModel.load(path) as packed, GuildModel.load(paths) as loose:
        assert list(packed.tensors) == list(loose.tensors)
        for name, tensor in packed.tensors.items():
            assert tensor.tobytes() == loose.tensors[name].tobytes()
            assert (tensor.ggml_type, tensor.dims) == (loose.tensors[name].ggml_type, loose.tensors[name].dims)


def test_tokenizer_files_become_assets(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    path = convert(tmp_path, directory())
    with gpack.open(path) as pack:
        assert pack.assets() == ["merges.txt", "vocab.json"]
        assert bytes(pack.asset("vocab.json")) == FILES["tokenizer/vocab.json"]
    assert main(["inspect", str(path), "--extract", "merges.txt"]) == 0
    assert capfdbinary.readouterr().out == b"a b\n"


def test_code_planes_have_no_gguf(tmp_path: Path) -> None:
    path = convert(tmp_path, directory())
    with pytest.raises(errors.UnsupportedError) as caught:
        export_gguf(path, tmp_path / "out.gguf")
    assert caught.value.code == "export.incomplete"
    made = directory()
    del made.dense[-int(made.rows.pop(PLANES)["src_bytes"]) :]
    export_gguf(convert(tmp_path, made), tmp_path / "out.gguf")


def test_the_same_directory_gives_the_same_pack(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert convert(tmp_path / "a", directory()).read_bytes() == convert(tmp_path / "b", directory()).read_bytes()


def test_the_report_tells_where_bytes_come_from(tmp_path: Path) -> None:
    import json

    source = write_gguf(tmp_path / "m.gguf", METADATA, TENSORS)
    folder = directory().write(tmp_path / "pack")
    command = ["convert", str(source), "-o", str(tmp_path / "p.gpack"), "--pack-dir", str(folder), "--report"]
    assert main(command) == 0
    info = json.loads((tmp_path / "p.gpack.report.json").read_text())
    origins = {tensor["name"]: (tensor["source"], tensor["source_offset"]) for tensor in info["tensors"]}
    assert origins[WIDE_NORM] == ("dense.bin", 256)
    assert origins[SERVED][0] == "m.gguf"
    assert {file["file"] for file in info["sources"]} >= {"m.gguf", "index.txt", "dense.bin", "vocab.json"}


# ---------------------------------------------------------------- experts


def expert_files(made: PackDir) -> list[str]:
    data, lines = blobs(BY_NAME, [1, 2])
    made.files["experts.bin"] = data
    made.files["native_experts.txt"] = "\n".join(["# layer gu d ...", *lines]).encode()
    return lines


@pytest.mark.parametrize("old", [False, True])
def test_experts_come_from_experts_bin(tmp_path: Path, old: bool) -> None:
    made = directory()
    lines = expert_files(made)
    if old:
        lines = [" ".join(line.split()[:5]) for line in lines]
    made.files["native_experts.txt"] = "\n".join(lines).encode()
    # Other bytes than the GGUF's, so that it shows whose they are.
    made.files["experts.bin"] = bytes(byte ^ 0x55 for byte in made.files["experts.bin"])
    path = convert(tmp_path, made)
    assert verify(path).report.counts == {}
    with gpack.open(path) as pack:
        for name in BY_NAME:
            if "_exps" in name:
                assert pack[name].tobytes() == bytes(byte ^ 0x55 for byte in BY_NAME[name][3])
    with GuildModel.load(ModelPaths(None, tmp_path / "m.gguf", pack_dir=tmp_path / "pack")) as loose:
        assert loose.experts is not None
        assert [len(layer.runs) for layer in loose.experts.layers.values()] == [1, 1]  # one read to an expert
        with GuildModel.load(path) as packed:
            assert packed.experts is not None
            for layer in (1, 2):
                assert [m.tobytes() for m in packed.experts.get(layer, 2) if m is not None] == [
                    m.tobytes() for m in loose.experts.get(layer, 2) if m is not None
                ]


def test_external_experts_stay_in_the_gguf_whatever_the_directory_has(tmp_path: Path) -> None:
    made = directory()
    expert_files(made)
    path = convert(tmp_path, made, external_experts=True)
    assert verify(path, shards=True).ok
    with gpack.open(path) as pack:
        assert pack.shards.names == ["m.gguf"]
        assert pack.container.find(SectionKind.EXPERT_BLOBS) is None


def _line(layer: int, folder: Path, *, shards: bool) -> str:
    """A line that points into the GGUF's shards."""
    from gpack.sources.gguf import GgufSource

    with GgufSource.open(folder / "m-00001-of-00003.gguf") as source:
        found = {t.name: t for t in source.tensors}
        parts = [found[f"blk.{layer}.ffn_{role}_exps.weight"] for role in ("gate", "up", "down")]
        names = [source.shards[part.shard].path.name for part in parts]
    size = sum(part.byte_size // 4 for part in parts)
    places = " ".join(str(part.offset) for part in parts)
    named = f" {','.join(names) if len(set(names)) > 1 else names[0]}" if shards else ""
    return f"{layer} 2 1 {parts[0].offset} {size} {places}{named}"


@pytest.mark.parametrize("shards", [True, False])
def test_lines_that_point_into_the_gguf_are_compared_with_it(tmp_path: Path, shards: bool) -> None:
    source = write_split(tmp_path, "m", METADATA, TENSORS)[0]
    made = directory()
    lines = [_line(layer, tmp_path, shards=shards) for layer in (1, 2)]
    made.files["native_experts.txt"] = "\n".join(lines).encode()
    folder = made.write(tmp_path / "pack")
    convert_gguf(source, tmp_path / "p.gpack", pack_dir=folder)
    assert verify(tmp_path / "p.gpack").ok
    cells = lines[1].split()
    for column, value, name in [
        (1, "8", "gu_type"),
        (2, "2", "d_type"),
        (4, "1", "blob_bytes"),
        (5, "64", "gate_off"),
        (7, "64", "down_off"),
        *([(8, "other.gguf", "shard")] if shards else []),
    ]:
        changed = [*cells[:column], value, *cells[column + 1 :]]
        (folder / "native_experts.txt").write_text("\n".join([lines[0], " ".join(changed)]))
        with pytest.raises(errors.FormatError) as caught:
            convert_gguf(source, tmp_path / "p.gpack", pack_dir=folder)
        assert caught.value.code == "packdir.table"
        assert caught.value.section == "line 2"
        assert caught.value.field == f"column {column + 1} ({name})"


# ---------------------------------------------------------------- refusals

Change = Callable[[PackDir], object]


def set_row(tensor: str, /, **columns: int | str) -> Change:
    return lambda made: made.rows[tensor].update(columns)


REFUSED: list[tuple[str, str, Change]] = [
    ("line 3", "column 1 (name)", set_row(NORM, name="no.such.weight")),
    ("line 5", "column 1 (name)", set_row(SHORT_NORM, name=NORM)),
    ("line 3", "column 2 (file)", set_row(NORM, file=1)),
    ("line 3", "column 3 (kind)", set_row(NORM, kind=6)),
    ("line 3", "column 3 (kind)", set_row(NORM, kind="two")),
    ("line 3", "column 4 (src_off)", set_row(NORM, src_off=-1)),
    ("line 3", "column 4 (src_off)", set_row(NORM, src_off=10**9)),
    ("line 4", "column 4 (src_off)", set_row(WIDE_NORM, src_off=100)),
    ("line 3", "column 5 (src_bytes)", set_row(NORM, src_bytes=252)),
    ("line 3", "column 5 (src_bytes)", set_row(NORM, src_bytes=0)),
    ("line 3", "column 6 (dst_off)", set_row(NORM, dst_off=128)),
    ("line 4", "column 6 (dst_off)", set_row(WIDE_NORM, dst_off=0)),
    ("line 3", "column 7 (dst_bytes)", set_row(NORM, dst_bytes=128)),
    ("line 4", "column 7 (dst_bytes)", set_row(WIDE_NORM, dst_bytes=128)),
    ("line 3", "column 8 (ne0)", set_row(NORM, ne0=32)),
    ("line 3", "column 8 (ne0)", set_row(NORM, ne0=0)),
    ("line 3", "column 9 (ne1)", set_row(NORM, ne1=2)),
    ("line 3", "column 9 (ne1)", set_row(NORM, ne1=1 << 60)),
    ("line 3", "column 15 (codes_bytes)", set_row(NORM, codes_bytes=1)),
    ("line 3", "column 14 (has_offset)", set_row(NORM, has_offset=2)),
    ("line 10", "column 3 (kind)", set_row(PLANES, kind=1)),
    ("line 10", "column 10 (code_bits)", set_row(PLANES, code_bits=17)),
    ("line 10", "column 11 (code_bias)", set_row(PLANES, code_bias=40000)),
    ("line 10", "column 12 (group_elems)", set_row(PLANES, group_elems=0)),
    ("line 10", "column 15 (codes_bytes)", set_row(PLANES, codes_bytes=1023)),
    ("line 10", "column 16 (scales_bytes)", set_row(PLANES, scales_bytes=126)),
    ("line 10", "column 17 (offset_bytes)", set_row(PLANES, has_offset=0)),
    ("line 10", "column 5 (src_bytes)", set_row(PLANES, codes_bytes=1025)),
    ("line 10", "column 7 (dst_bytes)", set_row(PLANES, dst_bytes=1280)),
    ("line 9", "column 5 (src_bytes)", set_row(SERVED, code_bits=0)),
    ("line 8", "column 1 (name)", set_row(HALF, name="blk.1.ffn_down_exps.weight", ne0=32, ne1=256)),
    ("line 1", "", lambda made: setattr(made, "comment", "# align 128 pool 999999 tensors 8")),
    ("line 1", "", lambda made: setattr(made, "comment", "# align 256 pool 100 tensors 8")),
    ("line 1", "", lambda made: setattr(made, "comment", f"# align 256 pool {made.pool + 256} tensors 8")),
    ("line 1", "", lambda made: setattr(made, "comment", f"# align 256 pool {made.pool - 512} tensors 8")),
    ("line 3", "column 3 (kind)", set_row(NORM, kind="9" * 5000)),
    ("line 1", "", lambda made: setattr(made, "comment", "# align 256 pool 999999 tensors 7")),
]


@pytest.mark.parametrize(("line", "column", "change"), REFUSED)
def test_contradictions_are_refused_with_line_and_column(
    line: str, column: str, change: Change, tmp_path: Path
) -> None:
    made = directory()
    change(made)
    with pytest.raises(errors.FormatError) as caught:
        convert(tmp_path, made)
    assert caught.value.code == "packdir.table"
    assert (caught.value.section, caught.value.field or "") == (line, column)
    assert len(caught.value.message) < 300
    assert caught.value.path == str(tmp_path / "pack" / "index.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "pack"]  # nothing is left behind


def test_a_row_that_is_served_natively_and_is_not_quantised(tmp_path: Path) -> None:
    made = directory()
    made.rows[HALF] |= {"src_bytes": 0, "code_bits": 8}
    with pytest.raises(errors.FormatError, match="served natively, and the GGUF holds it as F16"):
        convert(tmp_path, made)


def test_values_that_are_no_bf16_stop_the_conversion(tmp_path: Path) -> None:
    made = directory()
    made.dense[256] = 1  # a low bit of the first value of the second row
    with pytest.raises(errors.FormatError) as caught:
        convert(tmp_path, made)
    assert (caught.value.section, caught.value.field) == ("line 4", "column 3 (kind)")
    assert not list(tmp_path.glob("p.gpack*"))


@pytest.mark.parametrize(
    ("text", "section"),
    [
        (b"a b c\n", "line 1"),
        (b"# ok\n\nname 0 0\n", "line 3"),
        (b"\xff\xfe\n", "line 1"),
        (b"x " * 20 + b"\n", "line 1"),
        (b"x " * 18 + b"1\n" + b"\n", "line 1"),
    ],
)
def test_lines_that_are_none(text: bytes, section: str, tmp_path: Path) -> None:
    folder = directory().write(tmp_path / "pack")
    (folder / "index.txt").write_bytes(text)
    source = write_gguf(tmp_path / "m.gguf", METADATA, TENSORS)
    with pytest.raises(errors.FormatError) as caught:
        convert_gguf(source, tmp_path / "p.gpack", pack_dir=folder)
    assert (caught.value.code, caught.value.section) == ("packdir.table", section)


def test_files_that_are_missing(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", METADATA, TENSORS)
    for name, code in (("index.txt", "io.not_found"), ("dense.bin", "io.not_found")):
        folder = directory().write(tmp_path / name)
        (folder / name).unlink()
        with pytest.raises(errors.GpackError) as caught:
            convert_gguf(source, tmp_path / "p.gpack", pack_dir=folder)
        assert caught.value.code == code
        assert name in str(caught.value)
    with pytest.raises(errors.PathError) as missing:
        convert_gguf(source, tmp_path / "p.gpack", pack_dir=tmp_path / "none")
    assert missing.value.code == "io.not_found"
    made = directory()
    made.files["experts.bin"] = b"x"
    with pytest.raises(errors.FormatError, match="no native_experts"):
        convert_gguf(source, tmp_path / "p.gpack", pack_dir=made.write(tmp_path / "more"))


def refused(tmp_path: Path, folder: Path) -> errors.GpackError:
    source = write_gguf(tmp_path / "m.gguf", METADATA, TENSORS)
    with pytest.raises(errors.GpackError) as caught:
        convert_gguf(source, tmp_path / "p.gpack", pack_dir=folder)
    assert not list(tmp_path.glob("p.gpack*"))
    return caught.value


@pytest.mark.parametrize("text", ["", "\n\n", "# align 256 pool 0 tensors 0\n"])
def test_a_table_without_tensors(tmp_path: Path, text: str) -> None:
    folder = directory().write(tmp_path / "pack")
    (folder / "index.txt").write_text(text)
    error = refused(tmp_path, folder)
    assert (error.code, error.path) == ("packdir.table", str(folder / "index.txt"))
    assert "has no tensor" in error.message


@pytest.mark.parametrize(("tail", "holds"), [(b"", True), (bytes(255), True), (bytes(256), False), (b"x", False)])
def test_bytes_behind_the_last_tensor(tmp_path: Path, tail: bytes, holds: bool) -> None:
    """Padding to the arena's alignment is none of them."""
    made = directory()
    size = len(made.dense)
    made.dense += tail
    if holds:
        assert verify(convert(tmp_path, made)).ok
        return
    error = refused(tmp_path, made.write(tmp_path / "pack"))
    assert (error.code, error.path, error.offset) == ("packdir.table", str(tmp_path / "pack" / "dense.bin"), size)
    assert f"last {len(tail)} bytes" in error.message


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"vocab.json": b'{"a": 0'}, "no JSON object"),
        ({"vocab.json": b"[]"}, "no JSON object"),
        ({"vocab.json": b"{}"}, "no tokens"),
        ({"vocab.json": b'{"a": "0"}'}, "the token 'a' has the id '0'"),
        ({"vocab.json": b'{"a": 0, "b": 0}'}, "the id 0 belongs to 'a' and 'b'"),
        ({"tokenizer.json": b"\xff"}, "no JSON object"),
        ({"merges.txt": b"#version: 0.2\na b\nabc\n"}, "no pair"),
        ({"merges.txt": b"a b\n\xff b\n"}, "not UTF-8"),
        ({"token_type.json": b"[1, "}, "no list of numbers"),
        ({"token_type.json": b"[1, 256]"}, "no list of token types"),
        ({"vocab.json": b'{"a": 0, "b": 4}', "token_type.json": b"[1, 1]"}, "it has 2 entries, vocab.json has 5 ids"),
    ],
)
def test_tokenizer_files_that_are_broken(tmp_path: Path, files: dict[str, bytes], words: str) -> None:
    made = directory()
    made.files = {f"tokenizer/{name}": data for name, data in files.items()}
    error = refused(tmp_path, made.write(tmp_path / "pack"))
    assert error.code == "hf.tokenizer"
    assert list(files)[-1] in str(error.path)
    assert words in error.message


@pytest.mark.parametrize("kind", ["directory", "link", "dangling", "name", "no directory"])
def test_what_is_no_tokenizer_file(tmp_path: Path, kind: str) -> None:
    folder = directory().write(tmp_path / "pack")
    place = folder / "tokenizer" / "odd"
    if kind == "directory":
        place.mkdir()
    elif kind == "name":
        (folder / "tokenizer" / "a\\b").write_bytes(b"x")
    elif kind == "no directory":
        shutil.rmtree(folder / "tokenizer")
        (folder / "tokenizer").write_bytes(b"x")
    else:
        place.symlink_to(tmp_path if kind == "link" else tmp_path / "nowhere")
    error = refused(tmp_path, folder)
    assert error.code == ("io.not_found" if kind == "dangling" else "io.not_a_file")
    assert "tokenizer" in str(error.path)


def test_links_of_the_directory_are_followed(tmp_path: Path) -> None:
    made = directory()
    folder = made.write(tmp_path / "pack")
    (folder / "dense.bin").rename(tmp_path / "blob")
    (folder / "dense.bin").symlink_to(tmp_path / "blob")
    convert_gguf(write_gguf(tmp_path / "m.gguf", METADATA, TENSORS), tmp_path / "p.gpack", pack_dir=folder)
    assert verify(tmp_path / "p.gpack").ok
    (tmp_path / "blob").unlink()
    with pytest.raises(errors.PathError):
        convert_gguf(tmp_path / "m.gguf", tmp_path / "q.gpack", pack_dir=folder)


def test_a_pack_directory_goes_with_a_gguf(tmp_path: Path) -> None:
    assert main(["convert", str(tmp_path), "-o", str(tmp_path / "p.gpack"), "--pack-dir", str(tmp_path)]) == 2
