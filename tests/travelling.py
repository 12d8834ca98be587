"""What tests send to other processes: as a DataLoader does, a data set that holds an open pack."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np

import gpack

TIMEOUT = 120


class PackSet:
    """Items of a pack, by number."""

    def __init__(self, pack: gpack.Pack) -> None:
        self.pack = pack
        self.names = list(pack)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[str, int, bytes]:
        """Name, type and bytes of a tensor."""
        tensor = self.pack[self.names[index]]
        return self.names[index], int(tensor.ggml_type or 0), np.ascontiguousarray(tensor).tobytes()


def serve(items: Any, folder: str | None, wanted: Any, answers: Any) -> None:
    """A worker: numbers come, items go, until None comes."""
    if folder is not None:
        os.chdir(folder)
    while (index := wanted.get(timeout=TIMEOUT)) is not None:
        answers.put((index, items[index]))


def through_workers(items: Any, method: str, *, workers: int = 2, folder: str | None = None) -> dict[int, Any]:
    """All items, each made by one of several processes that are started by `spawn`, `forkserver` or `fork`."""
    context: BaseContext = multiprocessing.get_context(method)
    wanted, answers = context.Queue(), context.Queue()
    processes = [context.Process(target=serve, args=(items, folder, wanted, answers)) for _ in range(workers)]  # type: ignore[attr-defined]
    try:
        for process in processes:
            process.start()
        for index in range(len(items)):
            wanted.put(index)
        found = dict(answers.get(timeout=TIMEOUT) for _ in range(len(items)))
        for _ in processes:
            wanted.put(None)
        for process in processes:
            process.join(TIMEOUT)
        assert [process.exitcode for process in processes] == [0] * workers
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
    return found
