"""The embeddable C reader: the verdict of the quick open on every vector, the same bytes, no step beyond them."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import gpack
from gpack.conformance import vectors
from gpack.container.reader import Container
from gpack.errors import GpackError

ROOT = Path(__file__).parents[2]
SOURCE, HEADER = ROOT / "embed" / "gpack_reader.c", ROOT / "embed" / "gpack_reader.h"
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]
SANITIZED = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
CC = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(CC is None, reason="there is no C compiler")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that walks files, with the sanitizers."""
    made = tmp_path_factory.mktemp("driver") / "driver"
    include = [f"-I{ROOT / 'schema'}", f"-I{ROOT / 'embed'}"]
    sources = [str(SOURCE), str(Path(__file__).parent / "driver.c")]
    subprocess.run([str(CC), "-std=c11", *STRICT, *SANITIZED, *include, *sources, "-o", str(made)], check=True)
    return made


def answers(driver: Path, paths: list[Path]) -> list[str]:
    """A line to a file; the sanitizers end the program at the first step beyond the bytes."""
    names = "".join(f"{path}\n" for path in paths)
    done = subprocess.run([str(driver)], input=names, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert len(lines) == len(paths)
    return lines


def quick_verdict(path: Path) -> str | None:
    """The rule under which gpack's quick open refuses a file."""
    try:
        Container.open(path).close()
    except GpackError as error:
        return error.code
    return None


@pytest.mark.parametrize("compiler", [["cc", "-std=c11"], ["c++", "-std=c++17", "-xc++"]], ids=["C11", "C++17"])
def test_it_compiles_without_a_warning(compiler: list[str], tmp_path: Path) -> None:
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"there is no {compiler[0]}")
    out = ["-c", str(SOURCE), "-o", str(tmp_path / "reader.o")]
    subprocess.run([*compiler, "-O2", *STRICT, f"-I{ROOT / 'schema'}", *out], check=True)


def test_it_is_small_and_has_no_offset_of_its_own() -> None:
    text = SOURCE.read_text() + HEADER.read_text()
    assert len(text.splitlines()) < 600
    for word in ("malloc", "calloc", "mmap", "fopen", "open(2)", "offsetof"):
        assert word not in text.replace("mapped", "")


def test_the_verdict_of_the_quick_open_on_every_vector(driver: Path, tmp_path: Path) -> None:
    chosen = [vector for vector in vectors.load() if not vector.large]
    paths = [vector.write(tmp_path) for vector in chosen]
    for vector, path, line in zip(chosen, paths, answers(driver, paths), strict=True):
        rule = quick_verdict(path)
        if rule is None:
            assert line.startswith("ok "), (vector.id, line)
        else:
            # Of several rules that are broken it may look at another first.
            assert line.startswith("refused "), (vector.id, line)
            assert line.split()[1] in {rule, *vector.rules}, (vector.id, line)
        if vector.expect == "accept":
            assert line.endswith(" -"), (vector.id, line)


def test_the_same_bytes(driver: Path, tmp_path: Path) -> None:
    """All names and tensors of a pack in one number, worked out here by gpack's other reader."""
    path = next(vector for vector in vectors.load() if vector.id == "valid/everything").write(tmp_path)
    known = 0xCBF29CE484222325

    def add(data: bytes) -> None:
        nonlocal known
        for byte in data:
            known = (known ^ byte) * 0x100000001B3 % (1 << 64)

    with gpack.open(path) as pack:
        names = sorted(pack, key=lambda name: name.encode())
        for name in names:
            add(name.encode())
            add(np.ascontiguousarray(pack[name].view(np.ndarray)).tobytes())
        table = pack.metadata.table.table
        for row in table:
            add(bytes(table.bytes_of(row, "key")))
            add(bytes(table.bytes_of(row, "value")))
        expected = f"ok {len(names)} {len(table)} {known:016x} -"
    assert answers(driver, [path]) == [expected]


def test_damaged_files_are_walked_inside_their_bytes(driver: Path, tmp_path: Path) -> None:
    """Bytes of the tables are changed; the digests that `gpack_open` looks at still fit, for only the manifest's do."""
    base = next(vector for vector in vectors.load() if vector.id == "valid/small").data()
    rng = random.Random(16)
    paths = []
    for number in range(400):
        data = bytearray(base)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            data[at : at + 4] = rng.choice([b"\xff" * 4, bytes(4), rng.randbytes(4), b"\x00\x00\x00\x80"])
        path = tmp_path / f"{number}.gpack"
        path.write_bytes(data[: rng.choice([len(data), len(base), rng.randrange(len(base))])])
        paths.append(path)
    lines = answers(driver, paths)
    assert any(line.startswith("ok ") for line in lines)
    assert any(line.startswith("refused ") for line in lines)
