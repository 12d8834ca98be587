"""One target under atheris, in a process of its own: `python -m fuzz.child TARGET COUNTS [libFuzzer's arguments]`."""

from __future__ import annotations

import mmap
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from random import Random

# Modules whose functions numba compiles, from bytecode that must be as it was written.
_COMPILED = [f"gpack.tokenizer.{name}" for name in ("kernels", "spm_kernels", "split", "jitting", "finding")]
COUNTS = struct.Struct("<3Q")  # executions, headers that held, inputs that were taken


def main(argv: Sequence[str]) -> None:
    """Runs until libFuzzer ends the process."""
    import atheris

    name, counts_path, *arguments = argv
    with atheris.instrument_imports(include=["gpack"], exclude=_COMPILED):
        from gpack.errors import GpackError, InternalError

        from .registry import targets

        target = targets()[name]
        seeds = target.seeds()
        # What is imported only when it is used is used here, or nobody would see what it covers.
        for data in seeds:
            with suppress(GpackError):
                target.run(data)
    with open(counts_path, "r+b") as file:
        shared = mmap.mmap(file.fileno(), COUNTS.size)
    executions = passed = taken = 0

    def one(data: bytes) -> None:
        nonlocal executions, passed, taken
        executions += 1
        passed += target.header(data)
        COUNTS.pack_into(shared, 0, executions, passed, taken)
        try:
            taken += target.run(data)
        except InternalError:
            raise
        except GpackError:
            return

    def anyhow(data: bytes) -> bytes:
        return bytes(atheris.Mutate(data or b"\0", max(target.limit, len(data) + 1)))

    def mutated(data: bytes, max_size: int, seed: int) -> bytes:
        rng = Random(seed)
        made = target.mutate(data, rng, anyhow)[:max_size]
        # Where it is not even looked at, it is mostly made once more, of a seed.
        if target.header(made) or not rng.randrange(4):
            return made
        return target.mutate(rng.choice(seeds), rng, anyhow)[:max_size]

    atheris.Setup([sys.argv[0], *arguments], one, custom_mutator=mutated)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
