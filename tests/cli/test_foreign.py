"""Files that are given for a model and are none: said by name, with what to do; GGUFs of other kinds too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf_maker import tiny_llama, vector, write_gguf

from gpack.cli import main

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"
PICKLE = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."
FILES = {
    "m.gguf": (b"", "it is empty", "get it again"),
    "n.gguf": (POINTER, "a pointer of Git LFS", "git lfs pull"),
    "o.gguf": (b"\n<!DOCTYPE html><html>", "a web page", "log in"),
    "pytorch_model.bin": (PICKLE, "pickled tensors", "safetensors"),
    "model.pt": (b"PK\x03\x04" + bytes(60), "pickled tensors", "safetensors"),
    "model.zip": (b"PK\x03\x04" + bytes(60), "a ZIP archive", "unpack it"),
    "m.gguf.gz": (b"\x1f\x8b\x08" + bytes(60), "compressed by gzip", "unpack it"),
    "old.bin": (b"tjgg" + bytes(60), "the format before GGUF", ""),
    "big.gguf.part1of2": (b"GGUF" + bytes(60), "one part of big.gguf", "cat big.gguf.* > big.gguf"),
    "big.gguf.partaa": (b"GGUF" + bytes(60), "one part of big.gguf", "cat big.gguf.* > big.gguf"),
    "big.gguf.001": (b"GGUF" + bytes(60), "one part of big.gguf", "cat big.gguf.* > big.gguf"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_no_models(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    data, what, hint = FILES[name]
    path = tmp_path / name
    path.write_bytes(data)
    for command in (
        ["convert", str(path), "-o", str(tmp_path / "o.gpack")],
        ["inspect", str(path)],
        ["run", str(path), "-p", "x"],
        ["tokenize", str(path), "x"],
    ):
        assert main(command) == 1
        complaint = capsys.readouterr().err
        assert complaint.count("\n") == 1
        assert what in complaint
        assert hint in complaint


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_pointers_in_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Of the weights it is an error; of the small files it costs what they say."""
    header = json.dumps({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    (tmp_path / name).write_bytes(POINTER)
    assert main(["convert", str(tmp_path), "-o", str(tmp_path / "o.gpack")]) == (name == "model.safetensors")
    output = capsys.readouterr()
    assert "a pointer of Git LFS" in output.out + output.err


LORA = [vector("blk.0.attn_q.weight.lora_a", 4)]
KINDS: list[tuple[dict[str, Any], list[Any], str]] = [
    ({"general.type": "adapter", "adapter.type": "lora"}, LORA, "it is an adapter (lora)"),
    ({"general.architecture": "llama"}, LORA, "it is an adapter (LoRA)"),
    ({"general.type": "mmproj", "general.architecture": "clip"}, [vector("v.x", 4)], "it is the projector"),
    ({"general.type": "imatrix"}, [vector("blk.0.a.in_sum2", 4)], "it holds statistics for quantisation (an imatrix)"),
    ({"general.architecture": "llama", "tokenizer.ggml.tokens": ["a"]}, [], "it is a vocabulary without weights"),
    ({"general.architecture": "bert", "bert.pooling_type": 1}, [vector("a", 4)], "it is an embedding model"),
    ({"general.type": "novel"}, [vector("a", 4)], "its general.type is 'novel'"),
]


@pytest.mark.parametrize(("metadata", "tensors", "words"), KINDS)
def test_gguf_of_another_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], metadata: dict[str, Any], tensors: list[Any], words: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    assert main(["convert", str(path), "-o", str(tmp_path / "o.gpack")]) == 0
    assert f"cannot be run: {words}" in capsys.readouterr().out
    for file in (path, tmp_path / "o.gpack"):
        assert main(["inspect", str(file)]) == 0
        assert words in capsys.readouterr().out
        assert main(["run", str(file), "-p", "x"]) != 0
        assert words in capsys.readouterr().err


def test_a_model_is_no_other_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metadata, tensors = tiny_llama(layers=1)
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    assert main(["convert", str(path), "-o", str(tmp_path / "o.gpack")]) == 0
    assert "cannot be run" not in capsys.readouterr().out
