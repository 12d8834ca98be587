"""Cores and memory on made-up trees of /proc and /sys/fs/cgroup, in the kernel's own formats."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpack import machine

GIB = 1 << 30
V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
NO_LIMIT_V1 = 9223372036854771712


class Tree:
    """A made-up system of 8 cores with 16 GiB free and no groups."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal: {32 << 20} kB\nMemAvailable:   {16 << 20} kB\nSwapFree: 1 kB\n")

    def write(self, path: str, text: str | int) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{text}")

    def groups(self, memberships: str, *mounts: str) -> None:
        self.write("proc/self/cgroup", memberships)
        others = "22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/root rw\nnot a mount at all\n"
        self.write("proc/self/mountinfo", others + "\n".join(mounts) + "\n")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setattr(machine, "ROOT", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    return Tree(tmp_path)


def test_without_groups(tree: Tree) -> None:
    assert machine.usable_cores() == 8
    assert machine.free_memory() == 16 * GIB
    assert machine.half_of_free_memory() == 8 * GIB


def test_a_system_that_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ROOT", str(tmp_path / "nothing"))
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.usable_cores() == 1
    assert machine.free_memory() == 2 * GIB


@pytest.mark.parametrize(
    ("told", "cores"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("150000 100000", 2),  # one core and a half are two threads
        ("5000 100000", 1),
        ("300000", 3),  # the default period
        ("300000 0", 3),
        ("75000 25000", 3),
        ("1600000 100000", 8),  # affinity allows less
        ("", 8),
        ("many 100000", 8),
        ("-1 100000", 8),
        ("0 100000", 8),
        ("99999999999999999999999999999999999 100000", 8),
    ],
)
def test_a_quota_of_version_2(tree: Tree, told: str, cores: int) -> None:
    tree.groups("0::/work.slice/a\n", V2_MOUNT)
    tree.write("sys/fs/cgroup/work.slice/a/cpu.max", told + "\n")
    assert machine.usable_cores() == cores


@pytest.mark.parametrize(
    ("quota", "period", "cores"),
    [(-1, 100000, 8), (250000, 100000, 3), (100000, 50000, 2), (1000, 100000, 1), ("x", "y", 8), (400000, "", 4)],
)
def test_a_quota_of_version_1(tree: Tree, quota: object, period: object, cores: int) -> None:
    tree.groups(
        "5:memory:/a\n4:cpu,cpuacct:/a\n", "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
    )
    tree.write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", f"{quota}\n")
    tree.write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", f"{period}\n")
    assert machine.usable_cores() == cores


def test_the_narrowest_of_nested_groups_counts(tree: Tree) -> None:
    tree.groups("0::/a/b/c\n", V2_MOUNT)
    for group, quota, most, used in (
        ("a", "500000 100000", 10 * GIB, 9 * GIB),
        ("a/b", "200000 100000", "max", 5 * GIB),
        ("a/b/c", "max 100000", 6 * GIB, 3 * GIB),
    ):
        tree.write(f"sys/fs/cgroup/{group}/cpu.max", quota)
        tree.write(f"sys/fs/cgroup/{group}/memory.max", most)
        tree.write(f"sys/fs/cgroup/{group}/memory.current", used)
    assert machine.usable_cores() == 2
    assert machine.free_memory() == 1 * GIB  # of the outermost
    tree.write("sys/fs/cgroup/a/b/cpu.max", "max 100000")
    assert machine.usable_cores() == 5


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({"memory.max": "max", "memory.current": 3 * GIB}, 16 * GIB),
        ({"memory.max": 4 * GIB, "memory.current": 3 * GIB}, GIB),
        ({"memory.max": 64 * GIB, "memory.current": 3 * GIB}, 16 * GIB),  # the system has less
        ({"memory.max": 4 * GIB, "memory.current": 5 * GIB}, 0),
        ({"memory.max": 4 * GIB}, 4 * GIB),
        ({"memory.max": 9 * GIB, "memory.high": 4 * GIB, "memory.current": GIB}, 3 * GIB),
        ({"memory.max": "max", "memory.high": 4 * GIB, "memory.current": GIB}, 3 * GIB),
        ({"memory.max": "a lot", "memory.current": GIB}, 16 * GIB),
        (
            {
                "memory.max": 4 * GIB,
                "memory.current": 3 * GIB,
                "memory.stat": f"anon 7\nfile 9\ninactive_file {2 * GIB}\nactive_file 5\n",
            },
            3 * GIB,
        ),
        # Read at another moment: more can be freed than was in use.
        ({"memory.max": 4 * GIB, "memory.current": GIB, "memory.stat": f"inactive_file {2 * GIB}"}, 4 * GIB),
        ({"memory.max": 4 * GIB, "memory.current": 3 * GIB, "memory.stat": "inactive_file much"}, GIB),
    ],
)
def test_memory_of_version_2(tree: Tree, files: dict[str, object], free: int) -> None:
    tree.groups("0::/a\n", V2_MOUNT)
    for name, value in files.items():
        tree.write(f"sys/fs/cgroup/a/{name}", f"{value}\n")
    assert machine.free_memory() == free


def test_memory_of_version_1(tree: Tree) -> None:
    tree.groups(
        "9:memory:/lxc/a\n4:cpu:/other\n0::/\n", "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
    )
    for group, most, used in (
        ("lxc/a", 3 * GIB, GIB),
        ("lxc", NO_LIMIT_V1, 9 * GIB),
        ("", NO_LIMIT_V1, 9 * GIB),
        ("other", GIB, GIB),
    ):
        tree.write(f"sys/fs/cgroup/memory/{group}/memory.limit_in_bytes", most)
        tree.write(f"sys/fs/cgroup/memory/{group}/memory.usage_in_bytes", used)
    assert machine.free_memory() == 2 * GIB
    # The process's own pages alone are not the group's: version 1 tells both.
    tree.write("sys/fs/cgroup/memory/lxc/a/memory.stat", f"inactive_file 5\ntotal_inactive_file {GIB // 2}\n")
    assert machine.free_memory() == 2 * GIB + GIB // 2


def test_a_hybrid_system(tree: Tree) -> None:
    """CPU by version 1, memory by version 2, and the unified hierarchy mounted beside."""
    tree.groups(
        "4:cpu,cpuacct:/user\n1:name=systemd:/user\n0::/user/session\n",
        "33 31 0:30 / /sys/fs/cgroup/cpu rw shared:9 master:2 - cgroup cgroup rw,cpu,cpuacct",
        "37 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd",
        "38 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
    )
    tree.write("sys/fs/cgroup/cpu/user/cpu.cfs_quota_us", 300000)
    tree.write("sys/fs/cgroup/cpu/user/cpu.cfs_period_us", 100000)
    tree.write("sys/fs/cgroup/unified/user/session/memory.max", 2 * GIB)
    assert machine.usable_cores() == 3
    assert machine.free_memory() == 2 * GIB


def test_a_container_without_a_namespace_of_its_own(tree: Tree) -> None:
    """The path is the host's, and what is mounted begins at the container's group."""
    tree.groups(
        "4:cpu:/docker/abc\n9:memory:/docker/abc/inner\n",
        "33 31 0:30 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu",
        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory",
    )
    tree.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", 200000)
    tree.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", 100000)
    tree.write("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", 3 * GIB)
    assert machine.usable_cores() == 2
    assert machine.free_memory() == 3 * GIB


@pytest.mark.parametrize("path", ["/../../elsewhere", "/elsewhere", "/docker/abcdef"])
def test_a_group_outside_of_what_is_mounted(tree: Tree, path: str) -> None:
    tree.groups(f"0::{path}\n", "33 31 0:30 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw")
    tree.write("sys/fs/cgroup/cpu.max", "200000 100000")
    assert machine.usable_cores() == 2


def test_another_containers_mount_says_nothing(tree: Tree) -> None:
    tree.groups("0::/mine\n", "40 23 0:28 /other /mnt/other rw - cgroup2 cgroup2 rw", V2_MOUNT)
    tree.write("mnt/other/cpu.max", "100000 100000")
    tree.write("sys/fs/cgroup/mine/cpu.max", "300000 100000")
    assert machine.usable_cores() == 3


def test_names_with_colons_and_blanks(tree: Tree) -> None:
    tree.groups("0::/a b:c\n", r"31 23 0:28 / /sys/fs/my\040groups rw - cgroup2 cgroup2 rw")
    tree.write("sys/fs/my groups/a b:c/cpu.max", "200000 100000")
    assert machine.usable_cores() == 2


@pytest.mark.parametrize("memberships", ["", "\n\n", "0:", "::", "nonsense", "0::relative", "4:cpu", "\udcff"])
@pytest.mark.parametrize("mount", ["", "a b c - cgroup2", " - ", V2_MOUNT])
def test_damaged_lists_mean_no_limit(tree: Tree, memberships: str, mount: str) -> None:
    tree.groups("", mount)
    (tree.root / "proc/self/cgroup").write_bytes(memberships.encode(errors="surrogateescape"))
    tree.write("sys/fs/cgroup/cpu.max", "100000 100000")
    assert machine.usable_cores() == 8
    assert machine.free_memory() == 16 * GIB


def test_this_machine() -> None:
    assert 1 <= machine.usable_cores() <= machine.affine_cores()
    assert machine.free_memory() > 0
