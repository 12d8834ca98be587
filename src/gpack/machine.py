"""What this process may use of the machine: cores, memory, and a folder for what it keeps from run to run.

The system's own numbers are not enough: a container sees all cores and all memory of its host, and is throttled or
killed once it uses more than its control group allows. Groups are nested, and every level may have a limit.
Formats: cgroups(7), proc_pid_mountinfo(5), and Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst of Linux.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

ROOT = "/"  # where `proc` and `sys` are looked for; tests put a made-up tree in its place
_UNKNOWN = 2 << 30  # bytes; what counts as free where the system does not tell
_PERIOD = 100_000  # microseconds; the kernel's default


def usable_cores() -> int:
    """Cores that the process may keep busy: by its affinity, and by the CPU quota of its groups, rounded up.

    At least 1. A file that is missing or that nobody can read means no limit.
    """
    quota = core_quota()
    return affine_cores() if quota is None else min(affine_cores(), quota)


def core_quota() -> int | None:
    """Cores that the CPU quota of the process's groups is enough for, rounded up; None where there is none."""
    return min((quota for group in _groups("cpu") if (quota := _quota(group)) is not None), default=None)


def affine_cores() -> int:
    """Cores that the calling thread may run on, whatever its quota; a system call, and no file is read."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory() -> int:
    """Bytes that the process may still take: those available in the system, and those that its groups have left.

    Pages of files that have not been used for some time count as free in both. Where the system tells nothing: 2 GiB.
    """
    known = [_available(), *(_left(group) for group in _groups("memory"))]
    found = [left for left in known if left is not None]
    return max(0, min(found)) if found else _UNKNOWN


def half_of_free_memory() -> int:
    """What a cache or a check takes of the memory where nobody says how much, in bytes."""
    return free_memory() // 2


def cache_folder() -> str | None:
    """The folder of the user's caches, as the XDG base directories say; None where the user has no home.

    A path that is not absolute is none: `~` stays as it is where no home is known, and would be made as a folder.
    """
    for folder in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(folder):
            return folder
    return None


# ---------------------------------------------------------------- limits of one group


@dataclass(frozen=True)
class _Group:
    """The directory of a control group.

    Attributes:
        path: Where it is.
        version: Of its hierarchy: 1 or 2.
    """

    path: str
    version: int

    def text(self, name: str) -> str:
        """A file of the group; empty where it has none."""
        return _text(os.path.join(self.path, name))

    def number(self, name: str) -> int | None:
        """The number in a file; None where there is none, which is how `max` means no limit."""
        return _number(self.text(name).strip())


def _quota(group: _Group) -> int | None:
    """Whole cores; None where the group has no quota."""
    if group.version == 1:
        quota, period = group.number("cpu.cfs_quota_us"), group.number("cpu.cfs_period_us")
    else:
        words = [*group.text("cpu.max").split(), "", ""]
        quota, period = _number(words[0]), _number(words[1])
    if quota is None or quota <= 0:  # -1 is no quota in version 1
        return None
    return -(-quota // (period if period is not None and period > 0 else _PERIOD))


def _left(group: _Group) -> int | None:
    """Bytes; None where the group has no limit."""
    if group.version == 1:
        limits, used = [group.number("memory.limit_in_bytes")], group.number("memory.usage_in_bytes")
        idle = "total_inactive_file"
    else:
        # Over `high` a group is slowed down until it is of no use.
        limits, used = [group.number("memory.max"), group.number("memory.high")], group.number("memory.current")
        idle = "inactive_file"
    known = [limit for limit in limits if limit is not None]
    if not known:
        return None
    reclaimable = re.search(rf"^{idle} (\d+)$", group.text("memory.stat"), re.MULTILINE)
    return min(known) - max(0, (used or 0) - (int(reclaimable[1]) if reclaimable else 0))


def _available() -> int | None:
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", _text(_under_root("/proc/meminfo")), re.MULTILINE)
    return int(found[1]) << 10 if found else None


# ---------------------------------------------------------------- where the groups are


def _groups(controller: str) -> Iterator[_Group]:
    """The groups of the process that may limit something, from its own to the outermost that it can see.

    In a hybrid system a controller is in one hierarchy only; the other's directories lack its files.
    """
    mounts = list(_mounts(controller))
    for version, path in _memberships(controller):
        places = [(point, _inside(path, root)) for number, root, point in mounts if number == version]
        within = [(point, inside) for point, inside in places if inside is not None]
        # A group outside of all that is mounted: the process was moved, or its container shows another part.
        for point, inside in within or [(point, "") for point, _ in places[:1]]:
            names = inside.split("/") if inside else []
            for depth in range(len(names), -1, -1):
                yield _Group(os.path.join(_under_root(point), *names[:depth]), version)


def _inside(path: str, root: str) -> str | None:
    """A group's path from the group that is mounted; None where it is not below that."""
    base = root.rstrip("/") + "/"
    if ".." in path.split("/") or not (path + "/").startswith(base):
        return None
    return path[len(base) :].strip("/")


def _memberships(controller: str) -> Iterator[tuple[int, str]]:
    """Version of a hierarchy and the path of the process in it: lines such as `4:cpu,cpuacct:/a` and `0::/a`."""
    for line in _text(_under_root("/proc/self/cgroup")).splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon or not path.startswith("/"):
            continue
        if controller in controllers.split(","):
            yield 1, path
        elif number == "0" and not controllers:
            yield 2, path


def _mounts(controller: str) -> Iterator[tuple[int, str, str]]:
    """Version, the group that is mounted, and where: of every mounted hierarchy that may have the controller.

    A line: `36 35 0:30 ROOT POINT OPTIONS [...] - TYPE SOURCE SUPER_OPTIONS`.
    """
    for line in _text(_under_root("/proc/self/mountinfo")).splitlines():
        before, _, after = line.partition(" - ")
        mount, system = before.split(" "), after.split(" ")
        if len(mount) < 5 or len(system) < 3:
            continue
        root, point = (_unescaped(word) for word in mount[3:5])
        if system[0] == "cgroup2":
            yield 2, root, point
        elif system[0] == "cgroup" and controller in system[2].split(","):
            yield 1, root, point


def _unescaped(word: str) -> str:
    r"""A path of mountinfo, where blanks are written as `\040`."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)


def _under_root(path: str) -> str:
    return os.path.join(ROOT, path.lstrip("/"))


def _text(path: str) -> str:
    """A small file of the system; empty where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def _number(word: str) -> int | None:
    return int(word) if re.fullmatch(r"-?[0-9]{1,30}", word) else None
