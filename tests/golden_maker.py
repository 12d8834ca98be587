"""Makes the golden files of a release, once: `PYTHONPATH=.:tests python tests/golden_maker.py 1.0`.

A folder that exists is refused: golden files are never made again, see spec/compatibility.md. Every later version has
to open them, find them valid, and `describe` them as this version did.
"""

from __future__ import annotations

import json
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from gguf_maker import tiny_llama, tiny_moe, write_gguf, write_split
from hf_maker import Maker, attention_layer, bf16, mlp, qwen3_folder, write_by_hand
from pack_dir_maker import PackDir

import gpack
from gpack.conformance.recipes.bases import everything, plain
from gpack.convert.anything import convert
from gpack.errors import GpackError
from gpack.generated.constants import GgmlType
from gpack.tokenizer import Tokenizer

FOLDER = Path(__file__).parent / "data" / "golden"
EXPECTED = "expected.json"
TEXT = "the cat, 42 <|im_start|> the"


def make(folder: Path) -> None:
    """Writes the files and what this version reads in them."""
    if folder.exists():
        raise SystemExit(f"{folder} exists: golden files are never made again")
    folder.mkdir(parents=True)
    (folder / "plain.gpack").write_bytes(plain())
    (folder / "everything.gpack").write_bytes(everything())
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for path in write_split(folder, "external", *tiny_moe(layers=2)):
            shard = path
        convert(shard, folder / "external.gpack", external_experts=True, hash_shards=True, name="external")
        convert(_imported(scratch / "imported"), folder / "imported.gpack", name="imported")
        convert(_foreign(scratch / "foreign.safetensors"), folder / "foreign.gpack", name="foreign")
        source, directory = _planes(scratch)
        convert(source, folder / "planes.gpack", pack_dir=directory, name="planes")
    info = {path.name: describe(path) for path in sorted(folder.glob("*.gpack"))}
    (folder / EXPECTED).write_text(json.dumps(info, indent=1, sort_keys=True) + "\n")


def _imported(folder: Path) -> Path:
    """A Hugging Face model in BF16, with its raw files."""
    make_values = Maker(11)
    tensors = {"model.embed_tokens.weight": make_values(288, 32), "model.norm.weight": make_values(32)}
    layer = {**attention_layer(make_values, "model.layers.0", 32), **mlp(make_values, "model.layers.0.mlp", 32, 64)}
    stored = {name: bf16(values) for name, values in tensors.items()}
    stored |= {name: bf16(np.frombuffer(data, "<f4").reshape(shape)) for name, (_, shape, data) in layer.items()}
    return qwen3_folder(folder, tensors=stored, layers=1, hidden=32)


def _foreign(path: Path) -> Path:
    """Every type that ggml lacks, ranks from 0 to 8, an empty tensor."""
    header: dict[str, Any] = {}
    data = b""
    foreign = [number for number in GgmlType.NAMES if number >= 0x10000]
    for number in foreign:
        shape = [3, 4, 2, 1, 1, 1, 1, 8][-1 - number % 8 :]
        size = int(np.prod(shape)) * GgmlType.BYTES[number] // GgmlType.BLOCK[number]
        header[f"t.{GgmlType.NAMES[number]}"] = _entry(GgmlType.NAMES[number], shape, len(data), size)
        data += bytes((number + at) % 251 for at in range(size))
    for name, shape, size in (("scalar", [], 4), ("empty", [0, 3], 0)):
        header[name] = _entry("F32", shape, len(data), size)
        data += bytes(range(1, size + 1))
    return write_by_hand(path, header, data)


def _entry(dtype: str, shape: list[int], begin: int, size: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + size]}


def _planes(scratch: Path) -> tuple[Path, Path]:
    """A GGUF and a pack directory with code planes and a widened norm."""
    metadata, tensors = tiny_llama(layers=1)
    source = write_gguf(scratch / "m.gguf", metadata, tensors)
    dims = {tensor[0]: tensor[2] for tensor in tensors}
    made = PackDir(files={"tokenizer/merges.txt": b"t h\n"})
    ne0, ne1 = dims["blk.0.attn_q.weight"]
    codes, groups = ne0 * ne1 // 2, ne0 * ne1 // 32
    made.add(
        "blk.0.attn_q.weight",
        0,
        bytes(at % 253 for at in range(codes + 4 * groups)),
        ne0,
        ne1,
        codes + 8 * groups,
        code_bits=4,
        code_bias=8,
        group_elems=32,
        codebook=1,
        has_offset=1,
        codes_bytes=codes,
        scales_bytes=2 * groups,
        offset_bytes=2 * groups,
        scales_fp16=1,
        act_kind=5,
    )
    width = dims["output_norm.weight"][0]
    made.add("output_norm.weight", 1, bytes(range(2 * width)), width, 1, 4 * width)
    return source, made.write(scratch / "pack")


# ---------------------------------------------------------------- what a version reads


def describe(path: Path) -> dict[str, Any]:
    """All values of a pack by the public interface; long ones as digests."""
    with gpack.open(path) as pack:
        sections = [
            [entry.kind, entry.name.rstrip(b"\0").decode(), entry.size, entry.item_count, entry.sha256.hex()]
            for entry in pack.container.entries
        ]
        metadata = [[key, _short(pack.metadata[key])] for key in pack.metadata]
        tensors = {name: _tensor(pack, name) for name in pack}
        info = {
            "manifest_sha256": pack.container.footer.manifest_sha256.hex(),
            "manifest": _short(pack.manifest),
            "versions": [pack.container.header.format_version, pack.container.header.min_reader_version],
            "sections": sections,
            "metadata": metadata,
            "tensors": tensors,
            "assets": {name: _digest(bytes(pack.asset(name))) for name in pack.assets()},
        }
    return info | {"tokens": _tokens(path)}


def _tensor(pack: gpack.Pack, name: str) -> list[Any]:
    tensor = pack[name]
    try:
        values = np.array(tensor.dequantize())
        values[np.isnan(values)] = np.nan  # the bits of NaNs are the machine's
        digest = _digest(values.astype("<f4").tobytes())
    except GpackError as error:
        digest = error.code
    return [tensor.type_name, list(tensor.dims), _digest(tensor.tobytes()), digest]


def _tokens(path: Path) -> list[int] | str:
    try:
        return [int(token) for token in Tokenizer.open(path).encode(TEXT)]
    except GpackError as error:
        return error.code


def _short(value: Any) -> Any:
    """The value where it is small, else the digest of its JSON."""
    text = json.dumps(value, sort_keys=True)
    return value if len(text) <= 200 else _digest(text.encode())


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()


if __name__ == "__main__":
    make(FOLDER / sys.argv[1])
    for entry in sorted((FOLDER / sys.argv[1]).iterdir()):
        sys.stdout.write(f'    "{sys.argv[1]}/{entry.name}": "{_digest(entry.read_bytes())}",\n')
