"""Kernels: functions that numba compiles to machine code, each for one step of a program.

A kernel is `void kernel(int64 *args, int64 ith, int64 nth)`: `args` are the addresses and numbers of one step, `ith`
of `nth` threads runs it. Importing a module of this package imports numba, which takes a third of a second; machine
code that was compiled before is loaded without it (see `store`). So this module only says where each kernel is.
"""

from __future__ import annotations

# Types whose blocks are unpacked by compiled code (see `blocks`).
BLOCK_TYPES = (
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
    "IQ2_XXS",
    "IQ2_XS",
    "IQ2_S",
    "IQ3_XXS",
    "IQ3_S",
)
# Types that are floats already.
PLAIN_TYPES = ("F32", "F16", "BF16")

# Name to the module that builds it: `module.BUILDERS[name](variant)` gives the Python function to compile.
MODULES: dict[str, str] = {
    "execute": "executor",
    "quantize_q8": "q8",
    **{f"dot_{name}": "dot" for name in (*BLOCK_TYPES, *PLAIN_TYPES)},
    **{f"codes_{name}": "panels" for name in BLOCK_TYPES},
    **{f"floats_{name}": "panels" for name in (*BLOCK_TYPES, *PLAIN_TYPES)},
    **{f"multiply_{kind}": "multiply" for kind in ("floats", "32", "16", "bytes", "signed", "grid_32", "grid_16")},
    **dict.fromkeys(("matmul", "moe_matmul", "embed"), "drive"),
    **dict.fromkeys(("attention_f32", "attention_f16", "attention_q8_0"), "attention"),
    **dict.fromkeys(("heads_f32", "heads_f16", "heads_q8_0"), "heads"),
    **dict.fromkeys(("conv_silu", "delta_rule"), "recurrent"),
    **dict.fromkeys(("keep_rows", "take_rows"), "kept"),
    **dict.fromkeys(
        (
            "rms_norm",
            "silu_gate",
            "gelu_gate",
            "sigmoid_gate",
            "sigmoid_scale",
            "columns",
            "add",
            "add_vector",
            "soft_cap",
            "pick_rows",
            "check_finite",
        ),
        "elementwise",
    ),
    **dict.fromkeys(("route", "mix"), "routing"),
    **dict.fromkeys(
        ("activate_silu", "activate_sigmoid", "piece_norm", "mean_pieces", "add_to_pieces", "piece_gate"), "streams"
    ),
    **dict.fromkeys(("index_heads", "index_blocks", "index_choose"), "indexer"),
    **dict.fromkeys(("sparse_f32", "sparse_f16", "sparse_q8_0"), "sparse"),
    "find_not_finite": "finite",
}
