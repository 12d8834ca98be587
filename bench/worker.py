"""One job in a process of its own, so that its time and memory are its own: `python -P worker.py JOB ARGUMENTS`.

Prints one JSON object: `seconds` (of the work alone, imports apart unless the job says otherwise) and, in bytes,
`startup` (resident as the interpreter came up) and `peak` (the highest ever, VmHWM).
"""

from __future__ import annotations

import sys


def resident(field: str) -> int:
    """VmRSS or VmHWM of this process, bytes."""
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith(field))
    return int(line.split()[1]) << 10


_STARTUP = resident("VmRSS")
_BARE_MODULES = frozenset(sys.modules)
BUFFER = 1 << 20  # bytes; the fastest of 64 KiB to 4 MiB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def hash_pass(path: str) -> dict[str, Any]:
    """One thread, `preadv` into one reused buffer, hashlib: what any reader that checks all bytes has to pay."""
    import os
    import time
    from hashlib import sha256

    buffer = memoryview(bytearray(BUFFER))
    started = time.perf_counter()
    descriptor = os.open(path, os.O_RDONLY)
    digest, at = sha256(), 0
    while count := os.preadv(descriptor, [buffer], at):
        digest.update(buffer[:count])
        at += count
    os.close(descriptor)
    text = digest.hexdigest()
    return {"seconds": time.perf_counter() - started, "sha256": text}


def copy_pass(source: str, output: str) -> dict[str, Any]:
    """One thread, `preadv` and `pwrite` through one buffer into a file of reserved blocks, nothing hashed."""
    import os
    import time

    buffer = memoryview(bytearray(BUFFER))
    started = time.perf_counter()
    descriptor = os.open(source, os.O_RDONLY)
    target = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.posix_fallocate(target, 0, os.fstat(descriptor).st_size)
    at = 0
    while count := os.preadv(descriptor, [buffer], at):
        os.pwrite(target, buffer[:count], at)
        at += count
    os.close(descriptor)
    os.close(target)
    return {"seconds": time.perf_counter() - started}


def verify(path: str) -> dict[str, Any]:
    """`gpack.verify`: every byte and every rule."""
    import time

    import numpy as np  # noqa: F401 - imported before the clock starts

    from gpack.sections.verify import verify

    started = time.perf_counter()
    result = verify(path)
    seconds = time.perf_counter() - started
    if not result.ok:
        raise SystemExit(f"the pack is not valid: {result.report.violations[:3]}")
    return {"seconds": seconds}


def verify_chunks(path: str, threads: str) -> dict[str, Any]:
    """`guild verify --chunks --threads N`: rules, and the digest of every chunk."""
    import time

    import numpy as np  # noqa: F401 - imported before the clock starts

    from gpack.sections.verify import verify

    started = time.perf_counter()
    result = verify(path, chunks=True, threads=int(threads))
    seconds = time.perf_counter() - started
    if not result.ok:
        raise SystemExit(f"the pack is not valid: {result.report.violations[:3]}")
    return {"seconds": seconds}


def repair(path: str, other: str) -> dict[str, Any]:
    """`guild repair --in-place --from`; `read` is what the system read for us from the other copy, bytes."""
    import os
    import time

    from gpack.generated.constants import SectionKind
    from gpack.repair.mend import repair

    inode, read = os.stat(other).st_ino, 0

    def counted(call: Any) -> Any:
        def reading(descriptor: int, *arguments: Any) -> Any:
            nonlocal read
            done = call(descriptor, *arguments)
            if os.fstat(descriptor).st_ino == inode:
                read += done if isinstance(done, int) else len(done)
            return done

        return reading

    os.preadv, os.pread = counted(os.preadv), counted(os.pread)
    started = time.perf_counter()
    done = repair(path, other=other, in_place=True)
    seconds = time.perf_counter() - started
    if not done.damages or not done.verification:
        raise SystemExit("nothing was mended")
    entries = done.verification.structure.entries
    digests = next(entry.size for entry in entries if entry.kind == SectionKind.CHUNK_DIGESTS)
    return {"seconds": seconds, "read": read, "digests": digests}


def convert(source: str, output: str) -> dict[str, Any]:
    """`gpack.convert_gguf`; `seconds` leaves out waiting for the disk, which `sync` holds."""
    import time

    from gpack.convert.gguf import convert_gguf

    started = time.perf_counter()
    conversion = convert_gguf(source, output)
    total = time.perf_counter() - started
    sync = conversion.seconds["sync"]
    return {"seconds": total - sync, "sync": sync, "plan": conversion.seconds["plan"]}


def convert_any(source: str, output: str) -> dict[str, Any]:
    """`gpack.convert` of any source; `seconds` leaves out waiting for the disk, which `sync` holds."""
    import time

    import numpy as np  # noqa: F401 - imported before the clock starts

    from gpack.convert.anything import convert

    started = time.perf_counter()
    conversion = convert(source, output)
    total = time.perf_counter() - started
    sync = conversion.seconds["sync"]
    return {"seconds": total - sync, "sync": sync, "plan": conversion.seconds["plan"]}


def copy_passes(output: str, *sources: str) -> dict[str, Any]:
    """Files one after the other into one of reserved blocks, nothing hashed."""
    import os
    import time

    buffer = memoryview(bytearray(BUFFER))
    started = time.perf_counter()
    target = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.posix_fallocate(target, 0, sum(os.stat(source).st_size for source in sources))
    at = 0
    for source in sources:
        descriptor, read = os.open(source, os.O_RDONLY), 0
        while count := os.preadv(descriptor, [buffer], read):
            os.pwrite(target, buffer[:count], at)
            read, at = read + count, at + count
        os.close(descriptor)
    os.close(target)
    return {"seconds": time.perf_counter() - started}


def export(source: str, output: str) -> dict[str, Any]:
    """`gpack.export_gguf`, waiting for the disk included."""
    import time

    from gpack.convert.export import export_gguf

    started = time.perf_counter()
    export_gguf(source, output)
    return {"seconds": time.perf_counter() - started}


def openings(pack: str, safetensors: str, rounds: str) -> dict[str, Any]:
    """Opening and closing, by turns: `gpack.open`, `Container.open`, `safetensors.safe_open`; seconds of each round."""
    import time

    from safetensors import safe_open

    import gpack
    from gpack.container.reader import Container

    def peer() -> None:
        with safe_open(safetensors, "np") as file:
            file.keys()

    ways: dict[str, Callable[[], object]] = {
        "gpack": lambda: gpack.open(pack).close(),
        "container": lambda: Container.open(pack).close(),
        "safetensors": peer,
    }
    times: dict[str, Any] = {name: [] for name in ways}
    for _ in range(int(rounds)):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - started)
    return times


def scan(path: str) -> dict[str, Any]:
    """`GgufSource.open`: the header parsed, every string of the vocabulary and the merges found."""
    import time

    from gpack.sources.gguf import GgufSource

    started = time.perf_counter()
    with GgufSource.open(path) as source:
        found = len(source.metadata["tokenizer.ggml.tokens"].strings())
    return {"seconds": time.perf_counter() - started, "strings": found}


def gguf_reader(path: str) -> dict[str, Any]:
    """`gguf.GGUFReader` of the PyPI package `gguf`."""
    import time

    from gguf import GGUFReader

    started = time.perf_counter()
    GGUFReader(path)
    return {"seconds": time.perf_counter() - started}


def modules_of_open(path: str) -> dict[str, Any]:
    """The modules that `import gpack; gpack.open(path)` brings beyond those of a bare interpreter."""
    import gpack

    gpack.open(path).close()
    return {"modules": sorted(set(sys.modules) - _BARE_MODULES)}


_JOBS = (
    hash_pass,
    copy_pass,
    copy_passes,
    verify,
    verify_chunks,
    repair,
    convert,
    convert_any,
    export,
    openings,
    scan,
    gguf_reader,
    modules_of_open,
)
JOBS: dict[str, Callable[..., dict[str, Any]]] = {job.__name__: job for job in _JOBS}

if __name__ == "__main__":
    outcome = JOBS[sys.argv[1]](*sys.argv[2:])
    outcome |= {"startup": _STARTUP, "peak": resident("VmHWM")}
    import json

    print(json.dumps(outcome))
