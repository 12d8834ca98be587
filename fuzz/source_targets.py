"""Targets: other people's files that are converted: GGUF, safetensors, Hugging Face folders, pack and MTP folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gguf_maker import make_gguf, tiny_llama, tiny_moe, vector, write_gguf
from hf_maker import f16, qwen3_config, qwen3_tensors, tiny_tokenizer_json, write_safetensors
from pack_dir_maker import PackDir, blobs

from gpack.errors import GpackError, InternalError
from gpack.generated.gguf.constants import GGUF_MAGIC
from gpack.sources.composite import CompositeSource
from gpack.sources.files import SourceFile
from gpack.sources.gguf import GgufSource
from gpack.sources.hf_import import HfSource
from gpack.sources.mtp_dir import add_mtp
from gpack.sources.pack_dir import add_pack_dir
from gpack.sources.pack_index import read_dense_table, read_experts
from gpack.sources.safetensors import read_header
from gpack.sources.safetensors_set import SafetensorsSet
from gpack.tokenizer_files import Tokenizer

from . import mutate
from .target import Scratch, Target

_WORDS = [
    "GGUF",
    "general.alignment",
    "general.architecture",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.merges",
    "blk.0.",
]
_MAGIC = GGUF_MAGIC.to_bytes(4, "little")
_HEAD = 24  # bytes of a GGUF's magic, version and counts
_TEXTS = ("hello world", "<|im_start|>user\n", "\u0663 a  b\r\n", "\U0001f642")


def targets() -> list[Target]:
    """All of them."""
    return [_gguf(), _safetensors(), _index(), _config(), _tokenizer_json(), _pack_dir(), _mtp_dir()]


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


# ---------------------------------------------------------------- GGUF


def _gguf() -> Target:
    scratch = Scratch()

    def run(data: bytes) -> bool:
        with GgufSource.open(scratch.write("m.gguf", data)) as source:
            for value in source.metadata.values():
                value.head(50)
            for tensor in source.tensors:
                source.range_of(tensor)
                source.read(tensor)
            if "tokenizer.ggml.tokens" in source.metadata:
                with Tokenizer.from_metadata(dict(source.metadata)) as tokenizer:
                    for text in _TEXTS:
                        tokenizer.decode(tokenizer.encode(text))
        return True

    def header(data: bytes) -> bool:
        return len(data) >= _HEAD and data[:4] == _MAGIC and data[4:8] in (b"\2\0\0\0", b"\3\0\0\0")

    def seeds() -> list[bytes]:
        from gpack.conformance.recipes.material import EVERY_KIND, tiny_tokenizer

        return [
            make_gguf([("general.architecture", "str", "x")], []),
            make_gguf([*EVERY_KIND], [vector("a"), vector("b", 33)]),
            make_gguf(tiny_tokenizer(), [vector("a")]),
            make_gguf([("general.alignment", "u32", 64)], [vector("a"), vector("b")], alignment=64),
        ]

    return Target("gguf", seeds, run, header, _numbers_of_gguf, 1 << 14)


def _numbers_of_gguf(data: bytes, rng: Any, anyhow: mutate.Anyhow) -> bytes:
    """Changes a number, puts words in, or changes it anyhow, and mostly keeps the first bytes."""
    words = mutate.pieces_of(_WORDS)
    made = bytearray(data)
    way = rng.randrange(6)
    if way < 3 and len(made) > _HEAD:
        width = rng.choice((4, 8))
        at = rng.randrange(8, len(made) - 3)
        old = int.from_bytes(made[at : at + width], "little")
        made[at : at + width] = (mutate.number(old, len(made), rng) % (1 << 8 * width)).to_bytes(width, "little")
    elif way < 5:
        made = bytearray(anyhow(bytes(made)))
    else:
        made = bytearray(words(bytes(made), rng, anyhow))
    if rng.randrange(5):
        made[:8] = data[:8] if data[:4] == _MAGIC else _MAGIC + b"\3\0\0\0"
    return bytes(made)


# ---------------------------------------------------------------- safetensors


def _safetensors() -> Target:
    scratch = Scratch()

    def run(data: bytes) -> bool:
        with SourceFile(scratch.write("m.safetensors", data)) as file:
            for tensor in read_header(file).tensors:
                tensor.data  # noqa: B018 - a property that works out a place
        return True

    def header(data: bytes) -> bool:
        size = int.from_bytes(data[:8], "little")
        return len(data) >= 8 and size <= len(data) - 8 and _is_json(data[8 : 8 + size])

    return Target("safetensors", lambda: _stored(scratch), run, header, mutate.safetensors, 1 << 13)


def _stored(scratch: Scratch) -> list[bytes]:
    import numpy as np

    path = scratch.path / "seed.safetensors"
    values = np.zeros((4, 8), np.float32)
    write_safetensors(path, {"a.weight": f16(values), "b": f16(values[0]), "c": f16(values[:, :0])})
    one = path.read_bytes()
    write_safetensors(path, {})
    return [one, path.read_bytes()]


# ---------------------------------------------------------------- folders of Hugging Face


def _folder(scratch: Scratch, name: str) -> Path:
    folder = scratch.path / name
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", qwen3_tensors(layers=1))
    (folder / "config.json").write_text(json.dumps(qwen3_config(layers=1)))
    return folder


def _index() -> Target:
    scratch = Scratch()
    folder = scratch.path / "set"
    folder.mkdir()
    whole = qwen3_tensors(layers=1)
    names = [f"model-{number:05}-of-00002.safetensors" for number in (1, 2)]
    for name, tensors in zip(names, (dict(list(whole.items())[::2]), dict(list(whole.items())[1::2])), strict=True):
        write_safetensors(folder / name, tensors)
    index = folder / "model.safetensors.index.json"

    def run(data: bytes) -> bool:
        index.write_bytes(data)
        with SafetensorsSet(folder) as found:
            return bool(found.tensors)

    def seeds() -> list[bytes]:
        places = {tensor: names[number % 2] for number, tensor in enumerate(whole)}
        few = {"metadata": {"total_size": 1}, "weight_map": places}
        return [json.dumps(few).encode(), b"{}", b'{"weight_map": {}}']

    return Target("index", seeds, run, _is_json, mutate.document, 1 << 13)


def _config() -> Target:
    folder = _folder(Scratch(), "model")

    def run(data: bytes) -> bool:
        (folder / "config.json").write_bytes(data)
        with HfSource.open(folder) as source:
            return bool(source.tensors)

    def seeds() -> list[bytes]:
        scaled: dict[str, Any] = {
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
        }
        kinds = [qwen3_config(layers=1), qwen3_config(layers=1, **scaled)]
        for architecture, kind in _ARCHITECTURES:
            kinds.append(qwen3_config(layers=1, architectures=[architecture], model_type=kind))
        return [json.dumps(config).encode() for config in kinds]

    return Target("config", seeds, run, _is_json, mutate.document, 1 << 13)


_ARCHITECTURES = (
    ("LlamaForCausalLM", "llama"),
    ("Gemma3ForCausalLM", "gemma3_text"),
    ("Qwen3MoeForCausalLM", "qwen3_moe"),
    ("Qwen2ForCausalLM", "qwen2"),
)


def _tokenizer_json() -> Target:
    scratch = Scratch()
    folder = scratch.path / "tokenizer"
    folder.mkdir()

    def run(data: bytes) -> bool:
        (folder / "tokenizer.json").write_bytes(data)
        with Tokenizer.from_dir(folder) as tokenizer:
            for text in _TEXTS:
                tokenizer.decode(tokenizer.encode(text, parse_special=True))
        return True

    def seeds() -> list[bytes]:
        whole = tiny_tokenizer_json()
        small = json.loads(json.dumps(whole))
        kept = dict(list(whole["model"]["vocab"].items())[:20])
        small["model"] |= {"vocab": kept, "merges": []}
        spelled = {
            "type": "BPE",
            "byte_fallback": True,
            "unk_token": "<unk>",
            "merges": [["\u2581", "a"]],
            "vocab": {"<unk>": 0, "<s>": 1, "<0x00>": 2, "<0x41>": 3, "\u2581": 4, "a": 5, "\u2581a": 6},
        }
        character = {
            "added_tokens": [{"id": 1, "content": "<s>", "special": True}],
            "normalizer": {
                "type": "Sequence",
                "normalizers": [
                    {"type": "Prepend", "prepend": "\u2581"},
                    {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
                ],
            },
            "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
            "model": spelled,
        }
        return [json.dumps(one).encode() for one in (whole, small, character)]

    return Target("tokenizer.json", seeds, run, _is_json, mutate.document, 1 << 14)


# ---------------------------------------------------------------- folders of engines


def _is_table(data: bytes) -> bool:
    """There is a line that is no comment, and all of it is text."""
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        return False
    return any(line.strip() and not line.strip().startswith("#") for line in lines)


def _table_target(
    name: str, base: Path, folder: Path, table: str, seeds: list[bytes], use: Callable[[CompositeSource], object]
) -> Target:
    place = folder / table

    def run(data: bytes) -> bool:
        place.write_bytes(data)
        with SourceFile(place) as file:
            for read in (lambda: read_dense_table(file, 1 << 20), lambda: read_experts(file)):
                try:
                    read()
                except InternalError:
                    raise
                except GpackError:
                    continue
        with CompositeSource(GgufSource.open(base)) as source:
            use(source)
        return True

    return Target(name, lambda: seeds, run, _is_table, mutate.cells, 1 << 12)


def _pack_dir() -> Target:
    scratch = Scratch()
    metadata, tensors = tiny_llama(layers=1)
    base = write_gguf(scratch.path / "m.gguf", metadata, tensors)
    folder = scratch.path / "pack"
    made = PackDir()
    for name, _, dims, _ in tensors[:3]:
        made.skip(name, dims[0], dims[1] if len(dims) > 1 else 1)
    norm = next(tensor for tensor in tensors if tensor[0].endswith("attn_norm.weight"))
    made.add(norm[0], 2, norm[3], norm[2][0], 1, len(norm[3]))
    made.write(folder)
    seeds = [
        made.index().encode(),
        b"# name offset bytes shape\na 0 8 2x1\nb 8 8 2\n",
        b"0 2 1 0 864 0 288 576 a,b,c\n",
    ]
    return _table_target(
        "pack-dir",
        base,
        folder,
        "index.txt",
        seeds,
        lambda source: add_pack_dir(source, folder, external_experts=False),
    )


def _mtp_dir() -> Target:
    scratch = Scratch()
    metadata, tensors = tiny_moe()
    base = write_gguf(scratch.path / "m.gguf", metadata, tensors)
    folder = scratch.path / "mtp"
    made = PackDir()
    for name, ne0, ne1 in (("blk.3.attn_norm.weight", 64, 1), ("blk.3.nextn.eh_proj.weight", 128, 64)):
        made.add(name, 2, bytes(4 * ne0 * ne1), ne0, ne1, 4 * ne0 * ne1)
    experts = {tensor[0].replace("blk.1.", "blk.3."): tensor for tensor in tensors if "blk.1." in tensor[0]}
    if "blk.3.ffn_gate_exps.weight" in experts:
        data, lines = blobs(experts, [3])
        made.files |= {"experts.bin": data, "native_experts.txt": lines[0].encode()}
    made.write(folder, table="dense.txt")
    short = b"# name offset bytes shape\nblk.3.attn_norm.weight 0 256 64\nblk.3.nextn.eh_proj.weight 256 32768 128x64\n"
    seeds = [made.index().encode(), short]
    return _table_target("mtp-dir", base, folder, "dense.txt", seeds, lambda source: add_mtp(source, folder))
