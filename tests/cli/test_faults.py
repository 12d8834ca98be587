"""Every fault of a GGUF through `guild convert`: exit code, code, and nothing written or left behind."""

from __future__ import annotations

import os
import random
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from convert.packs import Parts
from gguf_maker import EVERY_KIND, F32, Q4_0, make_gguf, pack_string, shard_name, tiny_moe, vector, write_split

from gpack.cli import main


def entry(key: bytes, value_type: int, payload: bytes) -> dict[str, Any]:
    """An entry that cannot be expressed otherwise."""
    return {"raw_metadata": pack_string(key) + struct.pack("<I", value_type) + payload, "raw_entries": 1}


def nested(depth: int) -> bytes:
    return struct.pack("<IQ", 9, 1) * (depth - 1) + struct.pack("<IQ", 0, 0)


def array(element_type: int, count: int, payload: bytes = b"") -> bytes:
    return struct.pack("<IQ", element_type, count) + payload


V = [vector("t")]
# What is wrong: the file, the exit code, the error's code.
FAULTS: dict[str, tuple[bytes, int, str]] = {
    "empty": (b"", 1, "convert.source"),
    "other": (b"PK\3\4" + bytes(60), 1, "convert.source"),
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\n", 1, "convert.source"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), 4, "gguf.big_endian"),
    "version 1": (make_gguf(version=1), 4, "gguf.version"),
    "version 4": (make_gguf(version=4), 4, "gguf.version"),
    "entries": (make_gguf({"a": 1}, kv_count=3), 1, "gguf.truncated"),
    "endless entries": (make_gguf({"a": 1}, kv_count=2**64 - 1), 1, "gguf.truncated"),
    "endless tensors": (make_gguf({}, V, tensor_count=2**63), 1, "gguf.truncated"),
    "alignment 0": (make_gguf({"general.alignment": 0}, V), 1, "gguf.alignment"),
    "alignment 24": (make_gguf({"general.alignment": 24}, V), 1, "gguf.alignment"),
    "alignment 2^31": (make_gguf({"general.alignment": 1 << 31}, V), 1, "gguf.alignment"),
    "alignment's type": (make_gguf([("general.alignment", "u16", 32)], V), 1, "gguf.alignment"),
    "value type": (make_gguf(**entry(b"k", 13, bytes(32))), 1, "gguf.value_type"),
    "element type": (make_gguf(**entry(b"k", 9, array(77, 1, bytes(32)))), 1, "gguf.value_type"),
    "nesting": (make_gguf(**entry(b"k", 9, nested(5000))), 1, "gguf.nesting"),
    "bool": (make_gguf(**entry(b"k", 7, b"\2")), 1, "gguf.value"),
    "array count": (make_gguf(**entry(b"k", 9, array(4, 2**62))), 1, "gguf.truncated"),
    "string length": (make_gguf(**entry(b"k", 8, struct.pack("<Q", 2**64 - 1))), 1, "gguf.truncated"),
    "doubled key": (make_gguf([("k", "u8", 1), ("k", "u8", 1)]), 1, "gguf.key"),
    "empty key": (make_gguf([("", "u8", 1)]), 1, "gguf.key"),
    "key's bytes": (make_gguf(**entry(b"\xff", 0, b"a")), 1, "gguf.key"),
    "doubled tensor": (make_gguf({}, V * 2), 1, "gguf.tensor_name"),
    "empty tensor name": (make_gguf({}, [vector("")]), 1, "gguf.tensor_name"),
    "tensor type": (make_gguf({}, [("t", 43, (32,), bytes(32))]), 4, "gguf.tensor_type"),
    "removed tensor type": (make_gguf({}, [("t", 4, (32,), bytes(32))]), 4, "gguf.tensor_type"),
    "five dims": (make_gguf({}, [("t", F32, (1,) * 5, bytes(4))]), 1, "gguf.tensor_dims"),
    "dims wrap around": (make_gguf({}, [("t", F32, (1 << 32, 1 << 32), bytes(4))]), 1, "gguf.tensor_dims"),
    "half a block": (make_gguf({}, [("t", Q4_0, (48,), bytes(36))]), 1, "gguf.tensor_dims"),
    "beyond the file": (make_gguf({}, V, offsets={"t": 1 << 20}), 1, "gguf.tensor_bounds"),
    "offset wraps around": (make_gguf({}, V, offsets={"t": 2**64 - 32}), 1, "gguf.tensor_bounds"),
    "misaligned": (make_gguf({}, V, offsets={"t": 4}, trailing=bytes(32)), 1, "gguf.tensor_bounds"),
    "overlap": (make_gguf({}, [vector("a"), vector("b")], offsets={"b": 0}), 1, "gguf.tensor_bounds"),
    "hardware": (make_gguf({"gexec.arch": "sm_90"}), 1, "metadata.forbidden"),
    "architecture": (make_gguf({"general.architecture": b"\xff"}), 1, "convert.metadata"),
}


def converted(source: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Runs `guild convert` over an existing file and beside it; returns exit code and complaint."""
    old = folder / "old.gpack"
    old.write_bytes(b"the one before")
    before = sorted(path.name for path in folder.iterdir())
    status = main(["convert", str(source), "-o", str(folder / "new.gpack")])
    info = capsys.readouterr()
    assert info.out == ""
    assert main(["convert", str(source), "-o", str(old)]) == status
    assert capsys.readouterr().err == info.err
    assert old.read_bytes() == b"the one before"
    assert sorted(path.name for path in folder.iterdir()) == before
    return status, info.err


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str) -> None:
    content, status, code = FAULTS[fault]
    source = tmp_path / "m.gguf"
    source.write_bytes(content)
    found, complaint = converted(source, tmp_path, capsys)
    assert found == status
    assert complaint.startswith("guild: error: ")
    assert complaint.endswith(f"[{code}]\n")
    assert str(source) in complaint or code in ("metadata.forbidden", "gguf.value")
    assert complaint.count("\n") == 1


def rename(paths: list[Path]) -> None:
    paths[2].rename(paths[2].with_name("elsewhere.gguf"))


def double(paths: list[Path]) -> None:
    paths[1].write_bytes(paths[2].read_bytes())


def foreign(paths: list[Path]) -> None:
    write_split(paths[0].parent, "other", {}, [vector(name) for name in "abc"])
    (paths[0].parent / shard_name("other", 1, 3)).replace(paths[1])


def wrong_name(paths: list[Path]) -> None:
    for path in paths:
        path.rename(path.with_name(path.name.replace("of-00003", "of-00004")))


def cut(paths: list[Path]) -> None:
    paths[1].write_bytes(paths[1].read_bytes()[:-64])


SPLITS = {"missing": rename, "doubled": double, "foreign": foreign, "misnamed": wrong_name, "cut": cut}


@pytest.mark.parametrize("fault", SPLITS)
def test_faults_of_split_models(tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str) -> None:
    damage: Callable[[list[Path]], None] = SPLITS[fault]
    damage(write_split(tmp_path, "m", *tiny_moe(layers=1)))
    first = next(path for path in sorted(tmp_path.glob("m-*.gguf")))
    status, complaint = converted(first, tmp_path, capsys)
    assert status in (1, 3)
    assert complaint.endswith(("[gguf.split]\n", "[gguf.tensor_bounds]\n", "[gguf.tensor_name]\n"))
    assert ".gguf" in complaint


def test_truncation_at_every_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = make_gguf(EVERY_KIND[:12], [vector("t", 4), ("u", Q4_0, (32,), bytes(18))])
    source, output = tmp_path / "m.gguf", tmp_path / "m.gpack"
    output.write_bytes(b"old")
    end = len(content) - (32 - 18)  # what follows is padding, which need not be there
    for size in range(end):
        source.write_bytes(content[:size])
        assert main(["convert", str(source), "-o", str(output)]) == 1
        assert capsys.readouterr().err.endswith(("[gguf.truncated]\n", "[gguf.tensor_bounds]\n", "[convert.source]\n"))
    assert output.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "m.gpack"]
    source.write_bytes(content[:end])
    assert main(["convert", str(source), "-o", str(output)]) == 0


@pytest.mark.parametrize(
    ("source", "code"), [("nothing.gguf", "io.not_found"), (".", "io.not_a_file"), ("/dev/zero", "io.not_a_file")]
)
def test_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, code: str) -> None:
    path, output = str(tmp_path / source), ["-o", str(tmp_path / "out")]
    for command in (["convert", path, *output], ["verify", path], ["inspect", path], ["export", path, *output]):
        if source == "." and command[0] == "convert":
            continue  # a folder may hold safetensors
        assert main(command) == 3
        assert capsys.readouterr().err.endswith(f"[{code}]\n")
    assert list(tmp_path.iterdir()) == []


def test_outputs_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "m.gguf"
    source.write_bytes(make_gguf({}, V))
    for output, code in [
        (tmp_path, "io.not_a_file"),
        (tmp_path / "no" / "o", "io.not_found"),
        (Path("/proc/o"), "io."),
    ]:
        assert main(["convert", str(source), "-o", str(output)]) == 3
        assert f"[{code}" in capsys.readouterr().err
    (tmp_path / "link.gpack").symlink_to(source)
    assert main(["convert", str(source), "-o", str(tmp_path / "link.gpack")]) == 2
    assert "[convert.same_file]" in capsys.readouterr().err
    assert source.read_bytes() == make_gguf({}, V)


def test_a_pipe_or_a_device_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, pipe = tmp_path / "m.gguf", tmp_path / "pipe"
    source.write_bytes(make_gguf({}, V))
    os.mkfifo(pipe)
    for output in (pipe, Path("/dev/null"), Path("")):
        assert main(["convert", str(source), "-o", "" if output == Path() else str(output)]) == 3
        assert "[io.not_a_file]" in capsys.readouterr().err
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_of_a_link_the_file_that_it_leads_to_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, real, link = tmp_path / "m.gguf", tmp_path / "real" / "old.gpack", tmp_path / "link.gpack"
    source.write_bytes(make_gguf({}, V))
    real.parent.mkdir()
    real.write_bytes(b"old")
    link.symlink_to(real)
    assert main(["convert", str(source), "-o", str(link)]) == 0
    assert link.is_symlink()
    assert real.read_bytes()[:4] == b"GPCK"
    assert [path.name for path in real.parent.iterdir()] == ["old.gpack"]
    capsys.readouterr()


def test_a_gguf_where_a_pack_is_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "m.gguf"
    source.write_bytes(make_gguf({}, V) + bytes(200))
    for command in (["verify", str(source), "--quick"], ["export", str(source), "-o", str(tmp_path / "o")]):
        assert main(command) == 1
        assert "this is a GGUF: `guild convert` makes a pack of it" in capsys.readouterr().err
    assert main(["verify", str(source)]) == 1
    assert "this is a GGUF: `guild convert` makes a pack of it" in capsys.readouterr().out
    assert main(["inspect", str(source), "--section", "ManifestJson"]) == 2


def test_a_damaged_pack_never_ends_in_a_fault_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Random bytes anywhere but in the payloads, through every command that reads a pack."""
    source, pack, output = tmp_path / "m.gguf", tmp_path / "m.gpack", tmp_path / "out.gguf"
    metadata, tensors = tiny_moe(layers=2)
    source.write_bytes(make_gguf([*metadata, *EVERY_KIND], tensors))
    assert main(["convert", str(source), "-o", str(pack)]) == 0
    parts = Parts(pack)
    # Tables, tokenizer, manifest, directory and footer; a quick open looks at no digest but the manifest's.
    places = [(e.offset, e.size) for e in parts.entries.values() if e.alignment == 64 or e.kind == 6]
    places += [(0, 64), (len(parts.data) - 64 - 96 * len(parts.entries), 96 * len(parts.entries) + 64)]
    rng = random.Random(11)
    statuses = set()
    for _ in range(80):
        data = bytearray(parts.data)
        for _ in range(rng.randrange(1, 4)):
            offset, size = rng.choice(places)
            at = offset + rng.randrange(min(size, 3000))
            value = rng.choice([b"\0", b"\xff", b"\xff" * 4, b"\xff" * 8, rng.randbytes(1), rng.randbytes(8)])
            data[at : at + len(value)] = value
        pack.write_bytes(data[: len(parts.data)])
        section = rng.choice([str(kind) for kind in parts.entries])
        for command in (
            ["inspect", str(pack), "--tensors", "--metadata"],
            ["inspect", str(pack), "--section", section],
            ["verify", str(pack)],
            ["verify", str(pack), "--quick"],
            ["export", str(pack), "-o", str(output)],
        ):
            status = main(command)
            info = capsys.readouterr()
            assert status in (0, 1, 2, 3, 4), (command, info.err)
            assert "[internal]" not in info.err
            statuses.add((command[0], status))
        assert {path.name for path in tmp_path.iterdir()} <= {"m.gguf", "m.gpack", "out.gguf"}
    assert {("inspect", 0), ("inspect", 1), ("verify", 1), ("export", 1)} <= statuses
