"""The CPU: kernels that LLVM compiles, threads that run them."""
