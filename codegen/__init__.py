"""Turns a declarative YAML description of a binary format into code, grammars, documents and test vectors.

`python -m codegen --schema FORMAT.yaml --out DIR` works for any format that the meta-schema accepts; GPACK is one.
"""
