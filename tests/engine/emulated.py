"""The kernels for AVX-512 with VNNI on a CPU that has AVX2 only: all but two instructions is LLVM's own vector code."""

from __future__ import annotations

import hashlib
from typing import Any

from gpack.engine.backends.cpu.store import Kernels
from gpack.engine.backends.cpu.variants import VARIANTS, Variant

# The two instructions, by the manual's description: sums of four products u8 x s8 in each lane, without saturation;
# bytes of a table within 128 bits, 0 where an index is negative.
_INSTRUCTIONS = {
    "llvm.x86.avx512.vpdpbusd.512": """
define internal <16 x i32> @emulated_vpdpbusd(<16 x i32> %sum, <16 x i32> %unsigned, <16 x i32> %signed) {
  %a = bitcast <16 x i32> %unsigned to <64 x i8>
  %b = bitcast <16 x i32> %signed to <64 x i8>
  %wide_a = zext <64 x i8> %a to <64 x i32>
  %wide_b = sext <64 x i8> %b to <64 x i32>
  %products = mul <64 x i32> %wide_a, %wide_b
PARTS
  ret <16 x i32> %total3
}
""".replace(
        "PARTS",
        "\n".join(
            f"  %part{k} = shufflevector <64 x i32> %products, <64 x i32> undef, <16 x i32> <"
            + ", ".join(f"i32 {4 * lane + k}" for lane in range(16))
            + f">\n  %total{k} = add <16 x i32> {f'%total{k - 1}' if k else '%sum'}, %part{k}"
            for k in range(4)
        ),
    ),
    "llvm.x86.avx512.pshuf.b.512": """
declare <32 x i8> @llvm.x86.avx2.pshuf.b(<32 x i8>, <32 x i8>)
define internal <64 x i8> @emulated_pshufb(<64 x i8> %table, <64 x i8> %index) {
  %table0 = shufflevector <64 x i8> %table, <64 x i8> undef, <32 x i32> <LOW>
  %table1 = shufflevector <64 x i8> %table, <64 x i8> undef, <32 x i32> <HIGH>
  %index0 = shufflevector <64 x i8> %index, <64 x i8> undef, <32 x i32> <LOW>
  %index1 = shufflevector <64 x i8> %index, <64 x i8> undef, <32 x i32> <HIGH>
  %found0 = call <32 x i8> @llvm.x86.avx2.pshuf.b(<32 x i8> %table0, <32 x i8> %index0)
  %found1 = call <32 x i8> @llvm.x86.avx2.pshuf.b(<32 x i8> %table1, <32 x i8> %index1)
  %found = shufflevector <32 x i8> %found0, <32 x i8> %found1, <64 x i32> <LOW, HIGH>
  ret <64 x i8> %found
}
""".replace("LOW", ", ".join(f"i32 {place}" for place in range(32))).replace(
        "HIGH", ", ".join(f"i32 {place}" for place in range(32, 64))
    ),
}
_NAMES = {"llvm.x86.avx512.vpdpbusd.512": "emulated_vpdpbusd", "llvm.x86.avx512.pshuf.b.512": "emulated_pshufb"}


class EmulatedKernels(Kernels):
    """As `Kernels("vnni")`, with the same code of ours."""

    def __init__(self) -> None:
        super().__init__(Variant("vnni", VARIANTS["avx2"].needs, VARIANTS["avx2"].target))

    def _key(self, name: str) -> str:
        return f"emulated-{hashlib.sha256(repr(_INSTRUCTIONS).encode()).hexdigest()[:8]}-{super()._key(name)}"

    def _optimised(self, assembly: str) -> Any:
        for name, definition in _INSTRUCTIONS.items():
            quoted = f'@"{name}"'
            if quoted not in assembly:
                continue
            lines = [line for line in assembly.splitlines() if not (line.startswith("declare") and quoted in line)]
            assembly = "\n".join(lines).replace(quoted, f"@{_NAMES[name]}") + definition
        return super()._optimised(assembly)
