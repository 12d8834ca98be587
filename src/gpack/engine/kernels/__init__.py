"""Kernels: functions that numba compiles to machine code, each for one step of a program.

A kernel is `void kernel(int64 *args, int64 ith, int64 nth)`: `args` are the addresses and numbers of one step, `ith`
of `nth` threads runs it. Importing a module of this package imports numba, which takes a third of a second; machine
code that was compiled before is loaded without it (see `store`). So this module only says where each kernel is.
"""

from __future__ import annotations

# Name to the module that builds it: `module.BUILDERS[name](variant)` gives the Python function to compile.
MODULES: dict[str, str] = {
    "execute": "executor",
    **dict.fromkeys(("attention_f32", "attention_f16", "attention_q8_0"), "attention"),
    **dict.fromkeys(("heads_f32", "heads_f16", "heads_q8_0"), "heads"),
    **dict.fromkeys(
        ("rms_norm", "silu_gate", "gelu_gate", "add", "add_vector", "soft_cap", "pick_rows"), "elementwise"
    ),
    **dict.fromkeys(("route", "mix"), "routing"),
}
