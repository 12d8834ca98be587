"""What this machine's CPU can do, and the kernel variant that goes with it.

The choice is made before anything is compiled: an instruction that the CPU lacks ends the process.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from typing import Any

from ....errors import UnsupportedError, UsageError, install

VARIABLE = "GPACK_CPU"
FEATURES_VARIABLE = "NUMBA_CPU_FEATURES"


@dataclass(frozen=True)
class Variant:
    """A set of kernels.

    Attributes:
        name: What `GPACK_CPU` calls it.
        needs: The CPU features it uses, in LLVM's names; each alternative is enough.
        target: The CPU that LLVM compiles for; empty for this machine's own, with all its features.
    """

    name: str
    needs: tuple[frozenset[str], ...]
    target: str


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("vnni", (frozenset({"avx512vnni", "avx512vl", "avx512bw", "avx512f", "f16c", "fma"}),), ""),
        Variant("avx2", (frozenset({"avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe", "popcnt"}),), "x86-64-v3"),
        Variant("portable", (frozenset(),), "generic"),
    )
}


def llvm_binding() -> Any:
    """Llvmlite's module of LLVM.

    Raises:
        UnsupportedError: `engine.numba`: it is not installed.
    """
    try:
        import llvmlite.binding as llvm
    except ImportError as error:
        raise UnsupportedError(
            "running a model needs numba, which is not installed", code="engine.numba", hint=install("run")
        ) from error
    return llvm


@cache
def features() -> frozenset[str]:
    """The features of this CPU in LLVM's names; where `NUMBA_CPU_FEATURES` is set, those that it leaves.

    Raises:
        UnsupportedError: `engine.numba`.
        UsageError: `engine.cpu`: the variable is no list of features. What the CPU lacks is never taken from it.
    """
    host = llvm_binding().get_host_cpu_features()
    present = frozenset(name for name, is_there in host.items() if is_there)
    forced = os.environ.get(FEATURES_VARIABLE)
    if not forced:
        return present
    items = [item.strip() for item in forced.split(",")]
    unknown = [item for item in items if item[:1] not in {"+", "-"} or (host and item[1:] not in host)]
    if unknown:
        raise UsageError(
            f"{FEATURES_VARIABLE} names no feature of a CPU: {unknown[0]!r}",
            code="engine.cpu",
            field=FEATURES_VARIABLE,
            hint="for instance +avx2,+fma,+f16c,-avx512f",
        )
    return present & frozenset(item[1:] for item in items if item[0] == "+")


def usable() -> list[Variant]:
    """The variants that this CPU can run, best first."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return [VARIANTS["portable"]]
    have = features()
    return [variant for variant in VARIANTS.values() if any(need <= have for need in variant.needs)]


def choose(name: str | None = None) -> Variant:
    """The variant of that name; without one what `GPACK_CPU` says, else the best.

    Raises:
        UsageError: There is no such variant, or this CPU cannot run it.
    """
    field = "cpu" if name else VARIABLE
    wanted = name or os.environ.get(VARIABLE) or "auto"
    able = usable()
    if wanted == "auto":
        return able[0]
    found = VARIANTS.get(wanted)
    if found is None:
        raise UsageError(
            f"there are no kernels {wanted!r}", code="engine.cpu", field=field, hint=f"auto, {', '.join(VARIANTS)}"
        )
    if found not in able:
        lacking = [need - features() for need in found.needs]
        fewest = min(lacking, key=len)
        raise UsageError(
            f"this CPU cannot run the kernels {wanted!r}: it lacks {', '.join(sorted(fewest))}",
            code="engine.cpu",
            field=field,
            hint=f"it can run {', '.join(variant.name for variant in able)}",
        )
    return found
