"""External shards: what is found, what is refused, and what `verify` says of them."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from gguf_maker import tiny_moe, write_split

import gpack
from gpack import errors
from gpack.cli import main
from gpack.conformance.parts import Parts
from gpack.conformance.recipes.bases import external
from gpack.convert.gguf import convert_gguf
from gpack.sections.verify import verify

GATE, DOWN = "blk.1.ffn_gate_exps.weight", "blk.2.ffn_down_exps.weight"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A pack with experts in the second and third of three shards, beside it."""
    metadata, tensors = tiny_moe()
    shards = write_split(tmp_path, "m", metadata, tensors)
    convert_gguf(shards[0], tmp_path / "x.gpack", external_experts=True)
    return tmp_path / "x.gpack"


def shard_of(pack: Path) -> Path:
    return pack.with_name("m-00003-of-00003.gguf")


def fault_of(pack: Path, expert_dir: Path | None = None) -> errors.GpackError:
    """What reading an expert of the last shard raises."""
    with gpack.open(pack, expert_dir=expert_dir) as opened, pytest.raises(errors.GpackError) as caught:
        opened[DOWN]
    return caught.value


def test_a_shard_that_is_removed_shortened_or_swapped_gives_three_errors(model: Path) -> None:
    shard = shard_of(model)
    whole = shard.read_bytes()

    shard.unlink()
    fault = fault_of(model)
    assert (type(fault), fault.code, fault.exit_code) == (errors.PathError, "shard.missing", 3)
    assert fault.path == str(shard)
    assert "--expert-dir" in str(fault)

    shard.write_bytes(whole[:-1])
    fault = fault_of(model)
    assert (type(fault), fault.code, fault.exit_code) == (errors.BoundsError, "shard.size", 1)
    assert str(len(whole)) in str(fault)
    assert str(len(whole) - 1) in str(fault)

    shard.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    fault = fault_of(model)
    assert (type(fault), fault.code, fault.exit_code) == (errors.DigestError, "shard.header", 1)
    assert fault.message.count("SHA-256") == 1


def test_other_shards_stay_usable(model: Path) -> None:
    shard_of(model).unlink()
    with gpack.open(model) as pack:
        assert pack[GATE].shape == (4, 32, 36)


def test_a_longer_shard_is_another_file(model: Path) -> None:
    with shard_of(model).open("ab") as file:
        file.write(b"\0")
    assert fault_of(model).code == "shard.size"


def test_a_folder_or_a_pipe_in_the_place_of_a_shard(model: Path) -> None:
    shard = shard_of(model)
    shard.unlink()
    shard.mkdir()
    assert fault_of(model).code == "io.not_a_file"
    shard.rmdir()
    os.mkfifo(shard)
    assert fault_of(model).code == "io.not_a_file"


def test_links_are_followed_to_regular_files(model: Path, tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    shard = shard_of(model)
    shard.rename(blobs / "0123abc")
    shard.symlink_to(Path("blobs") / "0123abc")
    with gpack.open(model) as pack:
        assert pack[DOWN].dims == (32, 64, 4)
    (blobs / "0123abc").unlink()
    assert fault_of(model).code == "shard.missing"


def test_shards_are_looked_for_in_one_folder_only(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    assert fault_of(model, expert_dir=folder).code == "shard.missing"
    for shard in model.parent.glob("*.gguf"):
        shutil.move(shard, folder / shard.name)
    assert fault_of(model).code == "shard.missing"
    with gpack.open(model, expert_dir=folder) as pack:
        assert pack[DOWN].type_name == "F16"


@pytest.mark.parametrize(
    "name", [b"../m-00003-of-00003.gguf", b"/etc/passwd", b"..", b"a/b.gguf", b"c:x.gguf", b"\\\\h\\x"]
)
def test_a_name_that_is_a_path_is_never_opened(name: bytes, tmp_path: Path) -> None:
    parts = Parts.parse(external())
    section = parts.section(9).data
    old = b"model-00001-of-00002.gguf"
    padded = name.ljust(len(old), b"x") if name != b".." else name
    start = bytes(section).index(old)
    if len(padded) == len(old):
        section[start : start + len(old)] = padded
    else:
        section[start : start + len(old)] = b"/".rjust(len(old), b"x")
    path = tmp_path / "bad.gpack"
    path.write_bytes(parts.seal())
    with gpack.open(path) as pack, pytest.raises(errors.FormatError) as caught:
        pack["blk.1.ffn_gate_exps.weight"]
    assert caught.value.code == "expert.shard_path"
    assert "expert.shard_path" in verify(path, shards=True).report.counts


def test_a_shard_that_is_cut_while_it_is_mapped_does_not_end_the_process(model: Path) -> None:
    with gpack.open(model) as pack:
        assert pack[DOWN].size
        os.truncate(shard_of(model), 100)
        with pytest.raises(errors.PathError) as caught:
            pack[DOWN]
    assert caught.value.code == "io.short_read"


def test_a_file_system_without_maps_is_read(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import mmap

    def refuse(*_: object, **__: object) -> None:
        raise OSError(19, "No such device")

    with gpack.open(model) as pack:
        wanted = {name: pack[name].tobytes() for name in pack}
    with monkeypatch.context() as patch:
        patch.setattr(mmap, "mmap", refuse)
        with gpack.open(model) as pack:
            assert {name: pack[name].tobytes() for name in pack} == wanted
            assert pack.metadata["general.architecture"] == "dots1"
        with gpack.open(model, io="mmap") as pack, pytest.raises(errors.PathError) as caught:
            pack[DOWN]
        assert verify(model, shards=True).ok
    assert caught.value.code == "io.mmap"
    # One line to a file: the pack and its two shards.
    assert [record.message.partition(" (")[0].rpartition(": ")[0] for record in caplog.records] == [
        f"{model.with_name(name)}: the file cannot be mapped: [Errno 19] No such device".rpartition(": ")[0]
        for name in ("x.gpack", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf")
    ]
    with gpack.open(model, io="read") as pack:
        assert pack[DOWN].tobytes() == wanted[DOWN]
    with pytest.raises(errors.UsageError):
        gpack.open(model, io="fast")


def test_closing_the_pack_closes_its_shards(model: Path) -> None:
    def open_shards() -> int:
        held = 0
        for number in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # the listing's own
                held += os.readlink(f"/proc/self/fd/{number}") == str(shard_of(model))
        return held

    with gpack.open(model) as pack:
        values = pack[DOWN]
        assert open_shards() == 2  # the file, and its map
    assert values.nbytes == 16384  # the array keeps its map
    assert open_shards() == 1
    del values
    assert open_shards() == 0


# ---------------------------------------------------------------- verify


def test_verify_says_which_bytes_no_digest_covers(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = verify(model, shards=True)
    assert result.ok
    assert result.report.counts == {"expert.uncovered": 2}
    for shard in result.shards:
        size = model.with_name(shard.name).stat().st_size
        with gpack.open(model) as pack:
            header = pack.shards.rows[pack.shards.names.index(shard.name)].header_size
        assert (shard.error, shard.covered, shard.uncovered_bytes) == (None, False, size - header)
    assert main(["verify", str(model)]) == 0
    printed = capsys.readouterr().out
    assert (
        f"{result.shards[0].uncovered_bytes} of its {result.shards[0].size} bytes are covered by no digest" in printed
    )


def test_without_full_digests_a_changed_expert_passes_and_with_them_it_does_not(model: Path, tmp_path: Path) -> None:
    hashed = tmp_path / "h.gpack"
    convert_gguf(tmp_path / "m-00001-of-00003.gguf", hashed, external_experts=True, hash_shards=True)
    result = verify(hashed, shards=True)
    assert result.ok
    assert not result.report.counts
    assert [shard.uncovered_bytes for shard in result.shards] == [0, 0]
    shard = shard_of(model)
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert verify(model, shards=True).ok
    faults = [check.error for check in verify(hashed, shards=True).shards]
    assert faults[0] is None
    assert isinstance(faults[1], errors.DigestError)
    assert faults[1].code == "shard.sha256"


@pytest.mark.parametrize(
    ("change", "code", "status"),
    [
        (lambda path: path.unlink(), "shard.missing", 3),
        (lambda path: os.truncate(path, 9999), "shard.size", 1),
        (lambda path: path.write_bytes(bytes(path.stat().st_size)), "shard.header", 1),
        (lambda path: path.write_bytes(bytes(50_000)), "shard.header", 1),  # another file, of another size
    ],
)
def test_the_command_tells_the_faults_apart(
    change: object, code: str, status: int, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(change)
    change(shard_of(model))
    assert main(["verify", str(model), "--json"]) == status
    info = json.loads(capsys.readouterr().out)
    assert info["ok"] is False
    assert [shard["error"] and shard["error"]["code"] for shard in info["shards"]] == [None, code]
    assert main(["verify", str(model)]) == status
    printed = capsys.readouterr().out
    assert f"[{code}]" in printed
    assert "the pack is OK, 1 of 2 shards are not" in printed


def test_the_pack_alone_can_be_verified_without_its_shards(model: Path) -> None:
    for shard in model.parent.glob("*.gguf"):
        shard.unlink()
    assert verify(model).ok
    assert not verify(model, shards=True).ok


def test_verify_takes_an_expert_dir(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "experts"
    folder.mkdir()
    for shard in model.parent.glob("*.gguf"):
        shutil.move(shard, folder / shard.name)
    assert main(["verify", str(model)]) == 3
    assert main(["verify", str(model), "--expert-dir", str(folder)]) == 0
    capsys.readouterr()
