"""Kernels for NVIDIA's devices, written once as plain Python functions and run three ways.

Plain, they run in numba-cuda's simulator, and their arithmetic of blocks is compiled by `numba.njit` for the CPU. With
the dialect `ptx`, which only `codegen.cuda_kernels` chooses, they are compiled to the PTX that the package carries. Who
runs a model on a device imports none of these modules.

Products and sums are never contracted, so a sum has the bits of its order whatever a kernel is compiled for.
"""

from __future__ import annotations

# Modules that hold kernels.
MODULES = ("products", "plain_products", "rows", "heads", "attention", "routing", "recurrent")
