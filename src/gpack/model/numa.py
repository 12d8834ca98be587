"""Memory interleaved over NUMA nodes, so that every core finds its share of the experts near."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

LOG = logging.getLogger("gpack")
SYSTEM = Path("/sys/devices/system/node")
MPOL_INTERLEAVE = 3  # include/uapi/linux/mempolicy.h
_NUMBERS = {"x86_64": 237, "aarch64": 235}  # of the system call mbind
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)

# (address, length, mode, node mask, bits of the mask, flags) to 0, or an error number.
Mbind = Callable[[int, int, int, Sequence[int], int, int], int]


def memory_nodes(system: Path = SYSTEM) -> list[int]:
    """Numbers of the nodes that have memory; empty where the system tells nothing."""
    for name in ("has_memory", "online"):
        try:
            return parse_list((system / name).read_text())
        except (OSError, ValueError):
            continue
    return []


def parse_list(text: str) -> list[int]:
    """The numbers of a kernel list such as `0-2,5`.

    Raises:
        ValueError: It is none.
    """
    numbers: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if part:
            numbers += range(int(first), int(last or first) + 1)
    return numbers


def node_mask(nodes: Sequence[int]) -> list[int]:
    """The nodes as a bit mask in machine words, lowest first."""
    words = [0] * (max(nodes) // _WORD_BITS + 1)
    for node in nodes:
        words[node // _WORD_BITS] |= 1 << node % _WORD_BITS
    return words


def system_mbind(address: int, length: int, mode: int, mask: Sequence[int], bits: int, flags: int) -> int:
    """The system call; 0, or the error number."""
    number = _NUMBERS.get(platform.machine())
    if number is None:
        return 38  # ENOSYS
    libc = ctypes.CDLL(None, use_errno=True)
    words = (ctypes.c_ulong * len(mask))(*mask)
    result = libc.syscall(
        ctypes.c_long(number),
        ctypes.c_void_p(address),
        ctypes.c_ulong(length),
        ctypes.c_int(mode),
        ctypes.byref(words),
        ctypes.c_ulong(bits),
        ctypes.c_uint(flags),
    )
    return 0 if result == 0 else ctypes.get_errno()


class Interleaver:
    """Spreads the pages of buffers over the nodes, round robin. Where that cannot be, it says so once and does nothing.

    Attributes:
        nodes: The nodes.
        active: Buffers are interleaved.
    """

    def __init__(self, nodes: Sequence[int] | None = None, *, mbind: Mbind = system_mbind, asked: bool = False) -> None:
        """Args:
        nodes: Default: those that have memory.
        mbind: The system call.
        asked: The user asked for it, so a machine of one node is worth a line in the log.
        """
        self.nodes = memory_nodes() if nodes is None else list(nodes)
        self._mbind = mbind
        self.active = len(self.nodes) > 1
        if not self.active and asked:
            LOG.info("memory is not interleaved: this machine has %d NUMA node(s)", len(self.nodes))

    def spread(self, address: int, length: int) -> bool:
        """Interleaves the pages of a buffer that nothing has touched yet; returns whether that was done.

        Args:
            address: A multiple of the page size.
        """
        if not self.active:
            return False
        mask = node_mask(self.nodes)
        # The kernel takes one bit off the number it is given.
        fault = self._mbind(address, length, MPOL_INTERLEAVE, mask, len(mask) * _WORD_BITS + 1, 0)
        if fault:
            self.active = False
            LOG.warning("memory is not interleaved: mbind is refused (%s)", os.strerror(fault))
        return not fault
