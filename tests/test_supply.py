"""The lock file and the SBOM: they agree with `pyproject.toml`, every file has a hash, and the wheel holds the SBOM."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from codegen import sbom

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / sbom.PROJECT).read_text())["project"]
LOCK = (ROOT / sbom.LOCK).read_text()


def test_everything_that_is_asked_for_is_locked_as_it_is_asked_for() -> None:
    """Where this fails, pyproject.toml was changed: `make lock` renews the lock file."""
    locked: dict[str, list[str]] = {}
    for package in sbom.read_lock(LOCK):
        locked.setdefault(package.name, []).append(package.version)
    asked = [
        *PROJECT["dependencies"],
        *(entry for extra in PROJECT["optional-dependencies"].values() for entry in extra),
    ]
    compared = 0
    for wanted in map(Requirement, asked):
        if wanted.name == PROJECT["name"]:
            continue
        versions = locked[sbom.normal(wanted.name)]
        assert all(wanted.specifier.contains(version, prereleases=True) for version in versions), wanted
        compared += 1
    assert compared > 20


def test_every_locked_file_has_a_hash_and_nothing_names_a_host() -> None:
    packages = sbom.read_lock(LOCK)
    assert all(package.hashes for package in packages)
    assert not re.search(r"://|--(extra-)?index|--find-links|--trusted-host", LOCK)


def test_the_sbom_is_the_lock_files() -> None:
    assert (ROOT / sbom.SBOM).read_text() == sbom.make((ROOT / sbom.PROJECT).read_text(), LOCK)


SMALL = """
[project]
name = "p"
version = "2"
license = "MIT"
dependencies = ["A_b>=1"]
[project.optional-dependencies]
more = ["c"]
all = ["p[more]"]
dev = ["tool"]
"""
SMALL_LOCK = f"""a-b==1.5 \\
    --hash=sha256:{"1" * 64} \\
    --hash=sha256:{"2" * 64}
    # via p (pyproject.toml)
c==3 ; sys_platform == 'linux' \\
    --hash=sha256:{"3" * 64}
    # via p (pyproject.toml)
d==4 \\
    --hash=sha256:{"4" * 64}
    # via
    #   a-b
    #   c
    #   tool
tool==5 \\
    --hash=sha256:{"5" * 64}
    # via p (pyproject.toml)
"""


def test_an_sbom_by_hand() -> None:
    made = json.loads(sbom.make(SMALL, SMALL_LOCK))
    found = {item["name"]: (item["version"], item["scope"], item.get("properties")) for item in made["components"]}
    marker = [{"name": "gpack:marker", "value": "sys_platform == 'linux'"}]
    assert found == {"a-b": ("1.5", "required", None), "c": ("3", "optional", marker), "d": ("4", "required", None)}
    graph = {entry["ref"]: entry["dependsOn"] for entry in made["dependencies"]}
    assert graph == {
        "pkg:pypi/p@2": ["pkg:pypi/a-b@1.5", "pkg:pypi/c@3"],
        "pkg:pypi/a-b@1.5": ["pkg:pypi/d@4"],
        "pkg:pypi/c@3": ["pkg:pypi/d@4"],
        "pkg:pypi/d@4": [],
    }
    assert sbom.read_lock(SMALL_LOCK)[0].hashes == ["1" * 64, "2" * 64]
    with pytest.raises(ValueError, match="lacks c"):
        sbom.make(SMALL, SMALL_LOCK.partition("c==3")[0])
    with pytest.raises(ValueError, match="no pinned package"):
        sbom.read_lock("a>=1\n")


def test_the_wheel_holds_the_sbom(tmp_path: Path) -> None:
    """Built by hatchling itself, from what a wheel needs."""
    pytest.importorskip("hatchling")
    tree = tmp_path / "tree"
    for name in ("pyproject.toml", "README.md", "LICENSE", sbom.SBOM):
        tree.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    (tree / "src" / "gpack").mkdir(parents=True)
    (tree / "src" / "gpack" / "__init__.py").write_text("")
    (tree / "spec" / "vectors").mkdir(parents=True)
    (tree / "spec" / "vectors" / "index.json").write_text("{}")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next((tree / "dist").glob("*.whl"))) as wheel:
        inside = [name for name in wheel.namelist() if ".dist-info/sboms/" in name]
        assert [name.rpartition("/")[2] for name in inside] == [sbom.SBOM]
        assert wheel.read(inside[0]) == (ROOT / sbom.SBOM).read_bytes()
