"""The engine: a model's forward pass over the mapped weights, in kernels that are compiled for this machine's CPU."""
