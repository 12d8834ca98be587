"""Recipes of the vectors: base packs, valid variants, and for every rule the changes that break it.

For the generator of `spec/vectors` and for tests; those who read vectors need `gpack.conformance.vectors` only.
"""
