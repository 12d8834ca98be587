"""The embeddable reader in C, under clang's libFuzzer with sanitizers; by gcc and a driver of our own where it is not.

What hashes is not watched by the sanitizers, for it takes most of the time: tests/embed watches it, over the vectors.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from .child import COUNTS
from .corpus import CORPUS_LIMIT, write_packs
from .fields import as_c
from .log import FuzzerLog
from .result import Result

ROOT = Path(__file__).parents[1]
_SOURCES = (ROOT / "embed" / "gpack_reader.c", Path(__file__).parent / "reader.c")
_CLANGS = ("clang", *(f"clang-{version}" for version in range(22, 11, -1)))
_SANITIZERS = "address,undefined"
_IGNORED = "fun:gpack_sha256\nfun:sha256_block\n"


def compiler() -> tuple[str, bool] | None:
    """The compiler, and whether it has libFuzzer; None where there is none."""
    for name in _CLANGS:
        if shutil.which(name) and _works(name):
            return name, True
    found = next((name for name in ("gcc", "cc") if shutil.which(name)), None)
    return None if found is None else (found, False)


def _works(name: str) -> bool:
    """Whether a clang brings libFuzzer and the sanitizers, which are packages of their own."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "empty.c"
        source.write_text("int LLVMFuzzerTestOneInput(const char *d, long s) { (void)d, (void)s; return 0; }\n")
        command = [name, f"-fsanitize=fuzzer,{_SANITIZERS}", str(source), "-o", str(Path(folder) / "empty")]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def build(folder: Path, name: str, *, fuzzer: bool) -> Path:
    """The program, in the folder.

    Raises:
        subprocess.CalledProcessError: It does not compile.
    """
    (folder / "fields.h").write_text(as_c())
    (folder / "ignored").write_text(_IGNORED)
    sanitizers = [f"-fsanitize={'fuzzer,' if fuzzer else ''}{_SANITIZERS}", "-fno-sanitize-recover=all"]
    if fuzzer:
        sanitizers.append(f"-fsanitize-ignorelist={folder / 'ignored'}")
    sources = [*map(str, _SOURCES), *([] if fuzzer else [str(Path(__file__).parent / "driver.c")])]
    include = [f"-I{place}" for place in (folder, ROOT / "schema", ROOT / "embed")]
    program = folder / "reader"
    subprocess.run(
        [name, "-std=c11", "-g", "-O3", "-march=native", *sanitizers, *include, *sources, "-o", str(program)],
        check=True,
    )
    return program


def run(*, seconds: int, runs: int, folder: Path) -> Result:
    """Fuzzes until a limit is reached (0: none), or something is found.

    Args:
        folder: For the program, the corpus, and the input that something was found with.
    """
    found = compiler()
    if found is None:
        return Result("c-reader", skipped="there is no C compiler")
    name, fuzzer = found
    folder.mkdir(parents=True, exist_ok=True)
    program = build(folder, name, fuzzer=fuzzer)
    seeds, corpus = folder / "seeds", folder / "corpus"
    corpus.mkdir(exist_ok=True)
    write_packs(seeds)
    counts = folder / "counts"
    counts.write_bytes(bytes(COUNTS.size))
    if fuzzer:
        limits = [f"-max_total_time={seconds}", f"-runs={runs or -1}", f"-max_len={CORPUS_LIMIT}", "-timeout=10"]
        arguments = [*limits, f"-artifact_prefix={folder}/", str(corpus), str(seeds)]
    else:
        arguments = [str(seconds), str(runs), *(str(path) for path in sorted(seeds.iterdir()))]
    log = FuzzerLog()
    with subprocess.Popen(
        [str(program), *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        errors="replace",
        env={**os.environ, "GPACK_FUZZ_COUNTS": str(counts), "ASAN_OPTIONS": "detect_leaks=0"},
    ) as process:
        for line in process.stderr or ():
            log.take(line)
    executions, passed, opened = COUNTS.unpack(counts.read_bytes())
    return Result(
        "c-reader",
        executions=executions,
        passed=passed,
        opened=opened,
        edges=log.edges if fuzzer else None,
        since_edge=executions - log.last_edge if fuzzer else None,
        finding=None if process.returncode == 0 else log.told(),
        by=f"{name}, libFuzzer" if fuzzer else f"{name}, a driver without coverage",
    )
