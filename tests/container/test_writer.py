"""The writer: the same bytes every time, and whatever goes wrong, the destination stays as it was."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from processes import running

from gpack import errors
from gpack.conformance.parts import Parts
from gpack.conformance.recipes import bases as packs
from gpack.container import atomic, temporary
from gpack.container.payload import Zeros
from gpack.container.place import Place
from gpack.container.reader import Container
from gpack.container.writer import GPackBuilder
from gpack.generated.constants import SectionKind

PRIVATE = 0x80000000
OLD = b"the old file"


class Segments:
    """A payload of given segments."""

    def __init__(self, size: int, *segments: Any) -> None:
        self.size = size
        self._segments = segments

    def segments(self) -> Iterator[Any]:
        yield from self._segments


def builder(**payloads: Any) -> GPackBuilder:
    """The smallest valid pack, with private sections."""
    base = Parts.parse(packs.plain())
    made = GPackBuilder({"model": base.manifest["model"]})
    made.add(SectionKind.METADATA_KV_BIN, bytes(base.section(0).data), 0)
    made.add(SectionKind.TENSOR_INDEX_BIN, bytes(base.section(1).data), 0)
    for index, (name, payload) in enumerate(payloads.items()):
        made.add(PRIVATE + index, payload, 0, name=name)
    return made


@pytest.fixture(params=["new", "replaced"])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A destination that is absent, or holds another file."""
    packs.plain()  # made now, before a test replaces what writes it
    path = tmp_path / "out" / "model.gpack"
    path.parent.mkdir()
    if request.param == "replaced":
        path.write_bytes(OLD)
    return path


def untouched(output: Path) -> bool:
    """Nothing is beside the destination, and the destination is as before."""
    names = {path.name for path in output.parent.iterdir()}
    return names == set() or (names == {output.name} and output.read_bytes() == OLD)


def source(tmp_path: Path, data: bytes) -> tuple[int, Path]:
    path = tmp_path / "source"
    path.write_bytes(data)
    return os.open(path, os.O_RDONLY), path


# ---------------------------------------------------------------- what is written


def test_the_smallest_pack_by_hand(tmp_path: Path) -> None:
    """Two empty tables of 64 bytes at 64 and 128, the manifest at 192; directory and footer follow from its length."""
    result = builder().build(tmp_path / "a.gpack")
    data = (tmp_path / "a.gpack").read_bytes()
    assert data[:4] == b"GPCK"
    assert data[-8:-4] == b"GPKE"
    size = int.from_bytes(data[32:40], "little")
    table = (192 + size + 63) // 64 * 64
    assert int.from_bytes(data[16:24], "little") == table
    assert int.from_bytes(data[24:32], "little") == 192
    assert len(data) == result.size == table + (96 * 3 + 63) // 64 * 64 + 64
    assert data == Parts.parse(data).seal()


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        builder(x=b"data", y=Segments(3, b"a", Zeros(1), memoryview(b"b"))).build(tmp_path / f"{name}.gpack")
        time.sleep(0.01)
    assert (tmp_path / "a.gpack").read_bytes() == (tmp_path / "b.gpack").read_bytes()


def test_pieces_of_all_kinds(tmp_path: Path) -> None:
    data = bytes(range(256)) * 20_000  # over one buffer of a megabyte, and no multiple of it
    descriptor, path = source(tmp_path, data)
    seen: list[int] = []
    payload = Segments(
        3 * len(data) + 100,
        data,
        Zeros(60),
        Place(path, descriptor, 0, len(data)),
        Place(path, descriptor, 256, 0),
        Zeros(40),
        memoryview(data),
        b"",
    )
    result = builder(x=payload).build(tmp_path / "a.gpack", progress=seen.append)
    with Container.open(tmp_path / "a.gpack", verify_all_hashes=True) as pack:
        assert pack.read("x") == data + bytes(60) + data + bytes(40) + data
        assert sum(seen) == 128 + 3 * len(data) + 100
        assert result.manifest_sha256 == pack.footer.manifest_sha256.hex()
    os.close(descriptor)


def test_usage(tmp_path: Path) -> None:
    made = builder(x=b"")
    for kind in (SectionKind.MANIFEST_JSON, SectionKind.METADATA_KV_BIN, PRIVATE):
        with pytest.raises(errors.UsageError):
            made.add(kind, b"", 0)
    unnamed = builder()
    unnamed.add(PRIVATE, b"", 0)
    with pytest.raises(errors.UsageError):
        unnamed.build(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_a_contradiction_is_not_committed(output: Path) -> None:
    """The re-check before the rename sees what a quick open would see."""
    made = builder()
    made.add(SectionKind.DENSE_INDEX_BIN, b"", 0)  # without DensePackBlob
    with pytest.raises(errors.FormatError) as caught:
        made.build(output)
    assert caught.value.code == "section.pair"
    assert untouched(output)


def test_memory_stays_small(tmp_path: Path) -> None:
    size = 300 << 20
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, size)
    descriptor = os.open(path, os.O_RDONLY)
    tracemalloc.start()
    try:
        builder(x=Segments(size, Place(path, descriptor, 0, size))).build(tmp_path / "a.gpack")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        os.close(descriptor)
    (tmp_path / "a.gpack").unlink()
    assert peak < 32 << 20


# ---------------------------------------------------------------- failures


def fails(code: int) -> Callable[..., int]:
    def raises(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return raises


def test_a_short_source(output: Path, tmp_path: Path) -> None:
    descriptor, path = source(tmp_path, b"short")
    with pytest.raises(errors.PathError) as caught:
        builder(x=Segments(6, Place(path, descriptor, 0, 6))).build(output)
    os.close(descriptor)
    assert (caught.value.code, caught.value.path) == ("io.short_read", str(path))
    assert untouched(output)


def test_a_source_that_cannot_be_read(output: Path, tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(errors.PathError) as caught:
        builder(x=Segments(6, Place(tmp_path, folder, 0, 6))).build(output)
    os.close(folder)
    assert caught.value.code in ("io.not_a_file", "io.read")
    assert untouched(output)


@pytest.mark.parametrize("size", [3, 5])
def test_a_payload_of_another_size_than_planned(output: Path, size: int) -> None:
    with pytest.raises(errors.GpackError) as caught:
        builder(x=Segments(size, b"four")).build(output)
    assert caught.value.code == "internal"
    assert untouched(output)


@pytest.mark.parametrize("calls", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    ("code", "expected"), [(errno.ENOSPC, "io.no_space"), (errno.EDQUOT, "io.no_space"), (errno.EIO, "io.write")]
)
def test_a_failing_write(output: Path, monkeypatch: pytest.MonkeyPatch, calls: int, code: int, expected: str) -> None:
    """Three sections, then manifest, directory, footer and header: any of the writes may fail."""
    real, done = os.pwrite, []

    def write(*args: Any) -> int:
        done.append(args)
        return fails(code)() if len(done) > calls else real(*args)

    monkeypatch.setattr(os, "pwrite", write)
    with pytest.raises(errors.PathError) as caught:
        builder(x=b"x" * 100).build(output)
    monkeypatch.undo()
    assert caught.value.code == expected
    assert caught.value.path == str(output)
    assert untouched(output)


def test_writes_that_are_cut_short_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:7], at))
    builder(x=b"x" * 100).build(tmp_path / "a.gpack")
    monkeypatch.undo()
    builder(x=b"x" * 100).build(tmp_path / "b.gpack")
    assert (tmp_path / "a.gpack").read_bytes() == (tmp_path / "b.gpack").read_bytes()


@pytest.mark.parametrize("name", ["fsync", "rename", "posix_fallocate"])
@pytest.mark.parametrize(("code", "expected"), [(errno.ENOSPC, "io.no_space"), (errno.EIO, "io.write")])
def test_a_failing_call(output: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int, expected: str) -> None:
    monkeypatch.setattr(os, name, fails(code))
    with pytest.raises(errors.PathError) as caught:
        builder().build(output)
    monkeypatch.undo()
    assert caught.value.code == expected
    assert untouched(output)


def test_a_file_system_without_reservations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", fails(errno.EOPNOTSUPP))
    builder(x=b"x").build(tmp_path / "a.gpack")
    Container.open(tmp_path / "a.gpack", verify_all_hashes=True).close()


def test_an_empty_path_is_the_folder_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.PathError, match="the output is a directory") as caught:
        builder(x=b"x").build("")
    assert (caught.value.code, caught.value.path) == ("io.not_a_file", ".")


def test_too_little_space(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "free_space", lambda _: 1000)
    with pytest.raises(errors.PathError) as caught:
        builder(x=b"x" * 10_000).build(output)
    assert caught.value.code == "io.no_space"
    assert "1000" in str(caught.value)
    assert untouched(output)


def test_a_disk_that_fills_meanwhile_tells_how_much_is_missing(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Space is claimed 8 MiB at a time; another program takes what is left behind the first of them."""
    real = os.posix_fallocate
    claimed: list[int] = []

    def claim(descriptor: int, offset: int, length: int) -> None:
        if claimed:
            monkeypatch.setattr(atomic, "free_space", lambda _: 1000)
            raise OSError(errno.ENOSPC, "No space left on device")
        claimed.append(offset + length)
        real(descriptor, offset, length)

    made = builder(x=bytes(20 << 20))
    size = made.layout().total_file_size
    monkeypatch.setattr(os, "posix_fallocate", claim)
    with pytest.raises(errors.PathError) as caught:
        made.build(output)
    monkeypatch.undo()
    assert claimed == [8 << 20]
    left = size - (8 << 20)
    assert caught.value.code == "io.no_space"
    assert f"{left} more bytes were to be written, and 1000 are free: {left - 1000} are missing" in caught.value.message
    assert untouched(output)


class Stop(BaseException):
    """Stands for KeyboardInterrupt, SystemExit and the like."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, Stop, ValueError])
@pytest.mark.parametrize("hook", ["progress", "before_commit"])
def test_an_exception_in_a_callback(output: Path, error: type[BaseException], hook: str) -> None:
    def raises(*_: object) -> None:
        raise error

    with pytest.raises(error):
        builder(x=b"x").build(output, **{hook: raises})
    assert untouched(output)


def test_an_interrupt_while_space_is_reserved(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "posix_fallocate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        builder().build(output)
    assert untouched(output)


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    for path, code in ((tmp_path / "missing" / "a.gpack", "io.not_found"), (tmp_path, "io.not_a_file")):
        with pytest.raises(errors.PathError) as caught:
            builder().build(path)
        assert caught.value.code == code
    assert list(tmp_path.iterdir()) == []


def test_the_order_of_syncs(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes, then fsync of the file, then the rename, then fsync of the folder: else a crash could lose either."""
    calls: list[str] = []
    real = {name: getattr(os, name) for name in ("pwrite", "fsync", "rename")}

    def watch(name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            target = os.readlink(f"/proc/self/fd/{args[0]}") if isinstance(args[0], int) else ""
            calls.append(f"{name} {'folder' if target == str(output.parent) else 'file'}")
            return real[name](*args)

        return call

    for name in real:
        monkeypatch.setattr(os, name, watch(name))
    builder(x=b"x").build(output)
    assert calls == ["pwrite file"] * 7 + ["fsync file", "rename file", "fsync folder"]


def test_a_manifest_that_breaks_its_schema_is_refused(output: Path) -> None:
    made = GPackBuilder({"model": {"name": ""}})
    with pytest.raises(errors.FormatError) as caught:
        made.build(output)
    assert caught.value.code == "manifest.schema"
    assert not list(output.parent.glob("*.tmp.*"))


# ---------------------------------------------------------------- killed and living writers


@contextmanager
def child_writing(output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A writer in another process that stops in the middle and waits."""
    program = (
        "import sys, time\n"
        "from gpack.container.writer import GPackBuilder\n"
        "model = dict(name='m', architecture='a', parameter_count=0, tensor_count=0)\n"
        "made = GPackBuilder({'model': {**model, 'tied_embeddings': False, 'bytes_by_type': {}}})\n"
        "made.add(0, b'x' * 100, 0)\n"
        "def wait(count):\n"
        "    print('writing', flush=True)\n"
        "    time.sleep(600)\n"
        "made.build(sys.argv[1], progress=wait)\n"
    )
    with running([sys.executable, "-c", program, str(output)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"writing\n"
        yield child


def test_a_killed_writer_leaves_the_destination_alone(output: Path) -> None:
    with child_writing(output) as child:
        left = output.with_name(f"{output.name}.tmp.{child.pid}")
        assert left.exists()
        builder(x=b"mine").build(output.with_name("other.gpack"))
        assert left.exists()
        assert temporary.remove_abandoned(output) == []  # it lives
        child.kill()
    assert left.exists()
    assert not output.exists() or output.read_bytes() == OLD
    builder(x=b"mine").build(output)
    assert not left.exists()
    Container.open(output, verify_all_hashes=True).close()


def test_a_living_writer_is_not_disturbed(output: Path) -> None:
    with child_writing(output) as child:
        left = output.with_name(f"{output.name}.tmp.{child.pid}")
        builder(x=b"mine").build(output)
        assert left.exists()
    Container.open(output, verify_all_hashes=True).close()


def test_only_abandoned_temporary_files_are_removed(tmp_path: Path) -> None:
    output = tmp_path / "[a]*.gpack"
    names = [f"{output.name}.tmp.1", f"{output.name}.tmp.x", "b.gpack.tmp.1", f"{output.name}.tmp.", "a.gpack.tmp.7"]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / f"{output.name}.tmp.2").symlink_to("b.gpack.tmp.1")
    (tmp_path / f"{output.name}.tmp.3").mkdir()
    with (tmp_path / f"{output.name}.tmp.4").open("w") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        assert temporary.remove_abandoned(output) == [tmp_path / f"{output.name}.tmp.1"]
    assert temporary.remove_abandoned(output) == [tmp_path / f"{output.name}.tmp.4"]


def test_a_link_in_the_place_of_the_temporary_file(tmp_path: Path) -> None:
    output, victim = tmp_path / "a.gpack", tmp_path / "victim"
    victim.write_bytes(OLD)
    output.with_name(f"a.gpack.tmp.{os.getpid()}").symlink_to(victim)
    builder().build(output)
    Container.open(output, verify_all_hashes=True).close()
    assert victim.read_bytes() == OLD
