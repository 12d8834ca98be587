"""Compiles the kernels of the CUDA backend to PTX, which the package carries, with a manifest of digests.

    python -m codegen.cuda_kernels            writes what has changed
    python -m codegen.cuda_kernels --check    fails where a kernel's source is newer than its PTX

Needs the extra `cuda-build`, and no device. PTX is for the oldest devices that have all instructions; drivers translate
it for theirs.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = "gpack.engine.backends.cuda"
FOLDER = ROOT / "src" / Path(*PACKAGE.split("."))
PTX = FOLDER / "ptx"
MANIFEST = PTX / "manifest.json"
OLDEST = (7, 5)
PTX_VERSION = "6.3"  # the first that knows them


def sources_digest() -> str:
    """SHA-256 over everything that kernels are made of."""
    digest = hashlib.sha256()
    for path in sorted([*(FOLDER / "kernels").glob("*.py"), FOLDER / "layout.py", Path(__file__)]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def compile_all(only: str = "") -> dict[str, tuple[str, str, int]]:
    """Name to PTX, signature and most threads of a block."""
    os.environ["GPACK_KERNEL_DIALECT"] = "ptx"
    os.environ.pop("NUMBA_ENABLE_CUDASIM", None)
    sys.path.insert(0, str(ROOT / "src"))
    from numba import cuda, types
    from numba.cuda import compiler

    _never_contract(compiler)
    dialect = importlib.import_module(f"{PACKAGE}.kernels.dialect")
    for module in importlib.import_module(f"{PACKAGE}.kernels").MODULES:
        importlib.import_module(f"{PACKAGE}.kernels.{module}")
    made = {}
    for name, kernel in sorted(dialect.KERNELS.items()):
        if only and not re.search(only, name):
            continue
        parameters = [dialect.numba_type(word) for word in kernel.signature.split()]
        ptx, _ = cuda.compile(
            kernel.function,
            types.void(*parameters),
            device=False,
            cc=OLDEST,
            abi="numba",
            launch_bounds=kernel.most_threads,
        )
        made[name] = (_tidy(ptx, name), kernel.signature, kernel.most_threads)
    return made


def _never_contract(compiler: Any) -> None:
    """A product and a sum stay two instructions: else the bits of a sum would hang on the compiler's choice."""
    compile_cuda = compiler.compile_cuda

    def without(*args: Any, **options: Any) -> Any:
        options["nvvm_options"] = {**options["nvvm_options"], "fma": 0}
        return compile_cuda(*args, **options)

    compiler.compile_cuda = without


def _written_version(ptx: str) -> str:
    return str(re.findall(r"^\.version (\S+)", ptx, re.MULTILINE)[0])


def _tidy(ptx: str, name: str) -> str:
    """Named as the kernel is, and without comments, which name the compiler's build."""
    (mangled,) = re.findall(r"\.entry ([\w$]+)\(", ptx)
    ptx = "\n".join(line for line in ptx.splitlines() if "NumbaEnv" not in line)
    # Nothing in it is newer than that version, which older drivers read too; ptxas is asked by the tests.
    ptx = ptx.replace(mangled, name).replace(f".version {_written_version(ptx)}", f".version {PTX_VERSION}")
    lines = [line.rstrip() for line in ptx.splitlines() if not line.lstrip().startswith("//")]
    return re.sub(r"\n{2,}", "\n", "\n".join(lines)).strip() + "\n"


def write(only: str) -> None:
    """All PTX and the manifest; files of kernels that there are no more are removed.

    Args:
        only: Kernels whose names match this; of the others the PTX is taken as it is.
    """
    made = compile_all(only)
    PTX.mkdir(exist_ok=True)
    for path in [] if only else PTX.glob("*.ptx"):
        if path.stem not in made:
            path.unlink()
    kernels: dict[str, Any] = json.loads(MANIFEST.read_text())["kernels"] if only else {}
    for name, (ptx, signature, most_threads) in made.items():
        (PTX / f"{name}.ptx").write_text(ptx)
        kernels[name] = {
            "signature": signature,
            "most_threads": most_threads,
            "sha256": hashlib.sha256(ptx.encode()).hexdigest(),
        }
    manifest = {
        "about": "Made by `make kernels`; do not edit.",
        "sources": sources_digest(),
        "kernels": dict(sorted(kernels.items())),
    }
    MANIFEST.write_text(json.dumps(manifest, indent=1) + "\n")
    print(f"{len(made)} kernels, {sum(len(ptx) for ptx, _, _ in made.values())} bytes of PTX")


def stale() -> list[str]:
    """What is wrong with the files: nothing, or a line each. Needs no compiler."""
    if not MANIFEST.exists():
        return ["there is no PTX"]
    manifest = json.loads(MANIFEST.read_text())
    found = []
    if manifest["sources"] != sources_digest():
        found.append("the kernels' source has changed since their PTX was made")
    for name, of in manifest["kernels"].items():
        path = PTX / f"{name}.ptx"
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != of["sha256"]:
            found.append(f"{path.name} is missing or not what was written")
    found += [f"{path.name} is no kernel's" for path in PTX.glob("*.ptx") if path.stem not in manifest["kernels"]]
    return found


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail where PTX is not current; writes nothing")
    parser.add_argument("--only", default="", metavar="REGEX", help="compile these; the others did not change")
    options = parser.parse_args()
    if not options.check:
        write(options.only)
        return 0
    problems = stale()
    for line in problems:
        print(f"{line}; `make kernels` writes it anew", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
