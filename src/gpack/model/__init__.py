"""A loaded model's weights: tensors, routed experts, the table of per-layer embeddings; what an engine stands on."""
