"""NVIDIA's devices as a backend: kernels that were compiled to PTX beforehand, launched through the driver."""
