"""The prompt cache of a model in a file, from one run of a server to the next."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np
from blake3 import blake3

from .. import __version__
from ..engine.engine import Engine
from ..engine.state.saved import read_states, write_states
from ..engine.state.sequence import Checkpoint
from ..errors import GpackError, PathError
from ..generate.guild_model import GuildModel
from ..generate.prefixes import PrefixStore

LOG = logging.getLogger("gpack.serve")


class KeptPrompts:
    """The file of one model, with one set of options, in a folder."""

    def __init__(self, folder: str, model: GuildModel, engine: Engine, *, compute: str, cache_type: str) -> None:
        """Finds out what the states of texts depend on. A model without a manifest is read as a whole for that.

        Args:
            compute, cache_type: How the engine computes, and how it keeps states.

        Raises:
            PathError: The folder cannot be made.
        """
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as error:
            raise PathError(f"the folder cannot be made: {error}", code="io.write", path=folder) from error
        self._engine = engine
        with engine.sequence(n_ctx=1, cache_type=cache_type) as text:
            self._layouts = text.state.layouts
        self._model = model_digest(model)
        kernels = getattr(engine.backend, "variant", type(engine.backend).__name__)
        options = repr((__version__, _sources(), compute, kernels, cache_type, engine.batch, self._layouts))
        self._options = hashlib.sha256(options.encode()).digest()
        self.path = Path(folder) / f"{self._model.hex()[:16]}-{self._options.hex()[:16]}.prompts"

    def load(self, prefixes: PrefixStore) -> int:
        """Keeps the states of the file, if there is one that can be used; how many they are. What cannot is logged."""
        started = time.perf_counter()
        try:
            states = read_states(
                self.path,
                self._layouts,
                self._engine.pool,
                n_vocab=self._engine.n_vocab,
                model=self._model,
                options=self._options,
                most_bytes=prefixes.budget,
            )
        except GpackError as error:
            if error.code != "io.not_found":
                LOG.warning("%s is not used: %s", self.path, error.message)
            return 0
        for state in states:
            prefixes.keep(state)
        LOG.info("%d prompts of %s in %.2f s", len(states), self.path, time.perf_counter() - started)
        return len(states)

    def save(self, prefixes: PrefixStore) -> None:
        """Writes what is kept. What prevents it is logged: a server ends all the same."""
        states = [state for state in prefixes.states() if isinstance(state, Checkpoint)]
        if not states:
            return
        try:
            size = write_states(self.path, states, model=self._model, options=self._options)
        except GpackError as error:
            LOG.warning("the prompts were not kept: %s", error)
        else:
            LOG.info("%d prompts are kept in %s, %d bytes", len(states), self.path, size)


def model_digest(model: GuildModel) -> bytes:
    """What a model is known by: its manifest's SHA-256, or where it has none the BLAKE3 of all its tensors."""
    if model.pack is not None:
        return bytes(model.pack.container.footer.manifest_sha256)
    made = blake3(max_threads=blake3.AUTO)
    made.update(repr(sorted((key, model.metadata.get(key)) for key in model.metadata)).encode())
    for name, tensor in model.tensors.items():
        made.update(repr((name, tensor.ggml_type, tensor.dims)).encode())
        made.update(np.ascontiguousarray(tensor).view(np.uint8).reshape(-1).data)
    return bytes(made.digest())


def _sources() -> str:
    """A digest of the engine's code: states of other code are others, whatever the version says."""
    made = hashlib.sha256()

    def add(folder: Traversable, place: str) -> None:
        for item in sorted(folder.iterdir(), key=lambda item: item.name):
            if item.is_dir() and item.name != "__pycache__":
                add(item, f"{place}/{item.name}")
            elif item.name.endswith(".py"):
                made.update(f"{place}/{item.name}\n".encode() + item.read_bytes())

    add(resources.files("gpack.engine"), "engine")
    return made.hexdigest()
