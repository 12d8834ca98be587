"""What the cases share: the settings of a run, and files that are made when a case first asks for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gpack

from .models import FULL, QUICK, write_dense, write_moe, write_safetensors


@dataclass
class Bench:
    """The files that the cases share, made when a case first asks for them.

    Attributes:
        folder: Temporary.
        rounds: How often the long jobs run.
        quick: Small models, and no peers that take long.
        vocabularies: Directory of real vocabularies; None: `GPACK_VOCABULARIES` names one, or they are made.
        disk: For what must lie on a disk; None: the system's temporary folder.
        model: A part of the name of the only model to be run; empty: all.
    """

    folder: Path
    rounds: int
    quick: bool
    vocabularies: Path | None = None
    disk: Path | None = None
    model: str = ""

    def wants(self, name: str) -> bool:
        """Whether the model of that name is to be run."""
        return self.model.lower() in name.lower()

    def many_rounds(self) -> int:
        """Runs where a ratio near 1 has to be distinguished from noise: at least ten."""
        return self.rounds if self.quick else max(self.rounds, 10)

    def dense(self) -> Path:
        """A dense GGUF."""
        return self._made("dense.gguf", lambda path: write_dense(path, QUICK if self.quick else FULL))

    def moe(self) -> Path:
        """A GGUF of routed experts."""
        return self._made("moe.gguf", lambda path: write_moe(path, QUICK if self.quick else FULL))

    def pack(self) -> Path:
        """The dense model as a pack."""
        return self._made("dense.gpack", lambda path: gpack.convert_gguf(self.dense(), path))

    def safetensors(self) -> Path:
        """The same tensors as in the pack."""
        with gpack.open(self.pack()) as pack:
            sizes = [(name, pack.info(name).byte_size) for name in pack]
        return self._made("dense.safetensors", lambda path: write_safetensors(path, sizes))

    def target(self, most: float) -> float | None:
        """A target that was set for models of 2 GB and more: with small ones, fixed costs hide what is measured."""
        return None if self.quick else most

    def drop(self, *names: str) -> None:
        """Frees the space of files that no later case needs, or that will be made anew."""
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    def _made(self, name: str, make: Callable[[Path], object]) -> Path:
        path = self.folder / name
        if not path.exists():
            make(path)
        return path
