"""Pages of a mapped file that are lost because somebody cut the file: an error of ours instead of the process's end.

Touching such a page raises SIGBUS, which ends a process without a word. Here the signal puts zeros in the place of the
lost pages, so that whoever reads them goes on, and notes that what was read is worth nothing: `lost` then tells, and
the command or the step ends with `io.short_read`. The handler is installed where a program asks for it (`guard`), and
leaves every other SIGBUS to whoever handled it before.

Linux on 64-bit machines; elsewhere `guard` does nothing.
"""

from __future__ import annotations

import os
import sys

from .. import errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Numbers of Linux, the same on all its 64-bit machines that GPACK runs on.
_SIGBUS, _SA_SIGINFO, _SA_ONSTACK = 7, 4, 0x08000000
_PROT_READ, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS = 1, 2, 0x10, 0x20
_MASK_BYTES = 128  # of glibc's and musl's sigset_t
_ADDRESS_AT = 16  # of si_addr in siginfo_t
_MACHINES = ("x86_64", "aarch64")

_mapped: dict[tuple[int, int], object] = {}  # files that are mapped, by device and inode: their paths
_lost: list[object] = []  # paths of files that lost pages
_kept: list[Any] = []  # what the handler needs as long as the process lives; empty where there is none


def note(descriptor: int, path: object) -> None:
    """Makes a file known that is about to be mapped."""
    status = os.fstat(descriptor)
    _mapped[status.st_dev, status.st_ino] = path


def lost() -> errors.PathError | None:
    """The error of the first file that lost pages; None where none did."""
    if not _lost:
        return None
    return errors.PathError(
        "the file was cut while it was in use, and what was read of it is lost",
        code="io.short_read",
        path=_lost[0],
        hint="do not change a file while it is used",
    )


def forget() -> None:
    """Begins anew, for a program that goes on after the error with other files."""
    _lost.clear()


def guard() -> bool:
    """Installs the handler, once; returns whether there is one.

    Programs call it that map files and give no arrays of them away: the commands, and whoever loads a model to run it.
    """
    if _kept:
        return True
    if sys.platform != "linux" or os.uname().machine not in _MACHINES:
        return False
    import ctypes
    import mmap

    class Action(ctypes.Structure):
        """`struct sigaction` of the C library."""

        _fields_ = (
            ("handler", ctypes.c_void_p),
            ("mask", ctypes.c_ubyte * _MASK_BYTES),
            ("flags", ctypes.c_int),
            ("restorer", ctypes.c_void_p),
        )

    libc = ctypes.CDLL(None, use_errno=True)
    map_pages = libc.mmap
    map_pages.restype = ctypes.c_void_p
    map_pages.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    before = Action()
    page = mmap.PAGESIZE

    def handle(_number: int, info: int, _context: int) -> None:
        address = ctypes.c_size_t.from_address(info + _ADDRESS_AT).value
        found = _find(address)
        if found is not None:
            start, (end, path) = address // page * page, found
            flags = _MAP_PRIVATE | _MAP_FIXED | _MAP_ANONYMOUS
            if map_pages(start, end - start, _PROT_READ, flags, -1, 0) == start:
                _lost.append(path)
                return
        # Not ours: it is raised again as soon as this returns, for whoever handled it before.
        libc.sigaction(_SIGBUS, ctypes.byref(before), None)

    callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(handle)
    action = Action(ctypes.cast(callback, ctypes.c_void_p), flags=_SA_SIGINFO | _SA_ONSTACK)
    if libc.sigaction(_SIGBUS, ctypes.byref(action), ctypes.byref(before)):
        return False
    _kept.extend((libc, callback, action, before))
    return True


def _find(address: int) -> tuple[int, object] | None:
    """Where the map ends that an address lies in, and the path of its file; None where it is no map of ours."""
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            fields = line.split(None, 5)
            start, _, end = fields[0].partition(b"-")
            if int(start, 16) <= address < int(end, 16):
                major, _, minor = fields[3].partition(b":")
                key = os.makedev(int(major, 16), int(minor, 16)), int(fields[4])
                return (int(end, 16), _mapped[key]) if key in _mapped else None
    return None
