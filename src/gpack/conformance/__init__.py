"""Conformance of other people's readers and writers, and of files that they wrote.

`dump` says what a file holds, as a reader in any language should; `vectors` are files that readers must accept or
reject. The base installation is enough.
"""

from . import vectors
from .dumping import dump
from .vectors import Vector

__all__ = ["Vector", "dump", "vectors"]
