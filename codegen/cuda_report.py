"""What ptxas makes of the CUDA backend's kernels for each architecture: registers, spills, instructions.

    python -m codegen.cuda_report [NAME ...]        kernels whose names contain one of these; default: all

Needs ptxas, which numba-cuda's packages bring, or one on the PATH; no driver and no device.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from .cuda_kernels import PTX

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")


@dataclass(frozen=True)
class Assembled:
    """A kernel on an architecture; sizes are bytes.

    Attributes:
        instructions: Lines of PTX, which is the same for all architectures, and of these dp4a's and loads of 128 bits.
    """

    kernel: str
    architecture: str
    registers: int
    shared: int
    stack: int
    spills: int
    cubin: int
    instructions: int
    dp4a: int
    wide_loads: int


def find_ptxas() -> Path | None:
    """The assembler; None where there is none."""
    spec = find_spec("nvidia")
    for place in [] if spec is None else spec.submodule_search_locations or []:
        for found in sorted(Path(place).glob("*/bin/ptxas")):
            return found
    found_on_path = shutil.which("ptxas")
    return None if found_on_path is None else Path(found_on_path)


def assemble(ptxas: Path, kernel: str, architecture: str) -> Assembled:
    """One kernel for one architecture.

    Raises:
        subprocess.CalledProcessError: ptxas refuses it.
    """
    source = PTX / f"{kernel}.ptx"
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "kernel.cubin"
        command = [str(ptxas), f"-arch={architecture}", "-v", str(source), "-o", str(target)]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stderr
        size = target.stat().st_size

    def number(pattern: str) -> int:
        return sum(map(int, re.findall(pattern, told)))

    lines = [line.strip() for line in source.read_text().splitlines() if line.rstrip().endswith(";")]
    return Assembled(
        kernel=kernel,
        architecture=architecture,
        registers=number(r"Used (\d+) registers"),
        shared=number(r"(\d+) bytes smem"),
        stack=number(r"(\d+) bytes stack frame"),
        spills=number(r"(\d+) bytes spill stores"),
        cubin=size,
        instructions=sum(not line.startswith(".") for line in lines),
        dp4a=sum(line.startswith("dp4a.") for line in lines),
        wide_loads=sum(bool(re.match(r"ld\.\S*(v4\.[bfsu]32|v2\.[bfsu]64)", line)) for line in lines),
    )


def report(ptxas: Path, kernels: Sequence[str]) -> Iterator[Assembled]:
    """All of some kernels, for all architectures, in order."""
    pairs = [(kernel, architecture) for kernel in kernels for architecture in ARCHITECTURES]
    with ThreadPoolExecutor(2) as workers:
        yield from workers.map(lambda pair: assemble(ptxas, *pair), pairs)


def main(names: Sequence[str]) -> int:
    """The command."""
    ptxas = find_ptxas()
    if ptxas is None:
        print("ptxas is not installed: the extra cuda-build brings it", file=sys.stderr)
        return 1
    kernels = sorted(path.stem for path in PTX.glob("*.ptx"))
    chosen = [kernel for kernel in kernels if not names or any(name in kernel for name in names)]
    print("kernel                   arch    regs shared stack spills  cubin   ptx dp4a ld128")
    for of in report(ptxas, chosen):
        sizes = f"{of.registers:5} {of.shared:6} {of.stack:5} {of.spills:6} {of.cubin:6}"
        print(f"{of.kernel:24} {of.architecture:7}{sizes} {of.instructions:5} {of.dp4a:4} {of.wide_loads:5}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
