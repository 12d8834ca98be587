"""Folders that somebody's program works in: what is in them, how much, what changed, and how to be rid of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_BLOCK = 512  # unit of st_blocks, whatever the file system
_MAX_ENTRIES = 20_000  # a folder with more is as full as one with too many bytes


class Stamp(NamedTuple):
    """What cannot stay as it is when a file is changed: not even its owner can set the time of change back."""

    inode: int
    mode: int
    size: int
    modified: int
    changed: int


def snapshot(folder: Path) -> dict[str, Stamp]:
    """Everything in a folder by its relative path, the folder itself as `.`; nothing where there is none."""
    try:
        found = {".": _stamp(folder.stat(follow_symlinks=False))}
    except OSError:
        return {}
    for entry in _walk(folder):
        with contextlib.suppress(OSError):
            found[os.path.relpath(entry.path, folder)] = _stamp(entry.stat(follow_symlinks=False))
    return found


def changes(before: dict[str, Stamp], after: dict[str, Stamp]) -> list[str]:
    """What happened between two snapshots, in words, by path; of folders only what no file in them tells."""
    lines: list[str] = []
    folders: list[str] = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old is None:
            lines.append(f"{path} was added")
        elif new is None:
            lines.append(f"{path} was removed")
        elif old != new:
            (folders if stat.S_ISDIR(old.mode & new.mode) else lines).append(f"{path} was changed")
    return lines or folders


def contents(folder: Path, *, most: int = 10) -> list[str]:
    """Relative paths of the files in a folder, links and all else included; at most so many."""
    found = []
    for entry in _walk(folder):
        if not entry.is_dir(follow_symlinks=False):
            found.append(os.path.relpath(entry.path, folder))
            if len(found) == most:
                break
    return sorted(found)


def used_bytes(folders: Iterable[Path], *, enough: int) -> int:
    """Bytes on disk of everything in the folders; counting stops once there are more than `enough`.

    A folder with very many entries counts as more than enough.
    """
    total = entries = 0
    for folder in folders:
        for entry in _walk(folder):
            with contextlib.suppress(OSError):
                total += entry.stat(follow_symlinks=False).st_blocks * _BLOCK
            entries += 1
            if total > enough or entries > _MAX_ENTRIES:
                return max(total, enough + 1)
    return total


def remove(folder: Path) -> bool:
    """Removes a folder whatever is in it: files without permissions, very deep trees. False where it is still there."""
    if folder.is_symlink():
        folder.unlink()  # somebody put it there; what it leads to is none of ours
        return True
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        for command in (["chmod", "-R", "u+rwx", "--", str(folder)], ["rm", "-rf", "--", str(folder)]):
            with contextlib.suppress(OSError):
                subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return not folder.exists()


def is_regular(path: Path) -> bool:
    """Whether the path is a regular file itself, no link to one."""
    try:
        return stat.S_ISREG(path.stat(follow_symlinks=False).st_mode)
    except OSError:
        return False


def _stamp(status: os.stat_result) -> Stamp:
    return Stamp(status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _walk(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Every entry below a folder; links are not followed, what vanishes or cannot be read is left out."""
    waiting = [os.fspath(folder)]
    while waiting:
        try:
            scanner = os.scandir(waiting.pop())
        except OSError:
            continue
        with scanner:
            for entry in scanner:
                yield entry
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
