"""`sbom.cdx.json`: what GPACK depends on, as CycloneDX, from `pyproject.toml` and `requirements-dev.lock`.

The command is `python -m codegen.sbom [--check]`, a step of `make codegen`; `make lock` renews the lock. Listed are
the packages that running GPACK takes, those of its extras as optional, each with the version of the lock file (which
has the hashes) and what it depends on itself. Tools for development are not: nothing of them is in the wheel.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PROJECT, LOCK, SBOM = "pyproject.toml", "requirements-dev.lock", "sbom.cdx.json"
# Extras for those who work on GPACK.
DEVELOPMENT = {"bench", "codegen", "dev"}
_PINNED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;\\]+)(?: ; (?P<marker>[^\\]+?))? ?\\?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass
class Locked:
    """A package of the lock file.

    Attributes:
        marker: Where it is installed; empty: everywhere.
        hashes: SHA-256 of its files, hexadecimal.
        wanted_by: Names of the packages that depend on it.
    """

    name: str
    version: str
    marker: str = ""
    hashes: list[str] = field(default_factory=list)
    wanted_by: list[str] = field(default_factory=list)


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(text: str) -> list[Locked]:
    """The packages of a lock file; one may be there more than once, with different markers.

    Raises:
        ValueError: A line says something else.
    """
    packages: list[Locked] = []
    for line in text.splitlines():
        if not line.startswith((" ", "#")) and line:
            match = _PINNED.fullmatch(line)
            if match is None:
                raise ValueError(f"no pinned package: {line!r}")
            packages.append(Locked(normal(match["name"]), match["version"], (match["marker"] or "").strip()))
        elif found := _HASH.search(line):
            packages[-1].hashes.append(found[1])
        elif line.startswith("    #"):
            named = _NAME.match(line.removeprefix("    #").strip().removeprefix("via").strip())
            if named:
                packages[-1].wanted_by.append(normal(named[0]))
    return packages


def requirements(project: dict[str, Any], extra: str | None = None) -> set[str]:
    """Names of the packages that the project, or one of its extras, asks for; extras of its own are followed."""
    listed = project["dependencies"] if extra is None else project["optional-dependencies"][extra]
    names: set[str] = set()
    for entry in listed:
        own = re.fullmatch(rf"{re.escape(project['name'])}\[(.+)\]", entry)
        if own:
            names |= {name for inner in own[1].split(",") for name in requirements(project, inner.strip())}
        else:
            named = _NAME.match(entry)
            if named is not None:
                names.add(normal(named[0]))
    return names


def make(project_text: str, lock_text: str) -> str:
    """The SBOM's text, the same for the same input.

    Raises:
        ValueError: The lock file lacks a package.
    """
    project = tomllib.loads(project_text)["project"]
    locked = read_lock(lock_text)
    needed = requirements(project)
    optional = {
        name
        for extra in project["optional-dependencies"]
        if extra not in DEVELOPMENT
        for name in requirements(project, extra)
    }
    missing = (needed | optional) - {package.name for package in locked}
    if missing:
        raise ValueError(f"{LOCK} lacks {', '.join(sorted(missing))}: `make lock` renews it")
    required, listed = _closure(needed, locked), _closure(needed | optional, locked)
    chosen = [package for package in locked if package.name in listed]
    own = f"pkg:pypi/{project['name']}@{project['version']}"
    components = [_component(package, "required" if package.name in required else "optional") for package in chosen]
    graph: list[dict[str, Any]] = [{"ref": own, "dependsOn": _references(needed | optional, chosen)}]
    graph += [
        {"ref": _reference(package), "dependsOn": _references(_children(package.name, chosen), chosen)}
        for package in chosen
    ]
    main = {"type": "library", "bom-ref": own, "name": project["name"], "version": project["version"]}
    main |= {"purl": own, "licenses": [{"license": {"id": project["license"]}}]}
    body = {"metadata": {"component": main}, "components": components, "dependencies": graph}
    number = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(body, sort_keys=True))
    head = {"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{number}", "version": 1}
    return json.dumps(head | body, indent=2) + "\n"


def _closure(names: Iterable[str], locked: Sequence[Locked]) -> set[str]:
    """These packages and all that they depend on."""
    found: set[str] = set()
    left = set(names)
    while left:
        found |= left
        left = {child for name in left for child in _children(name, locked)} - found
    return found


def _children(name: str, locked: Sequence[Locked]) -> set[str]:
    return {package.name for package in locked if name in package.wanted_by}


def _references(names: Iterable[str], chosen: Sequence[Locked]) -> list[str]:
    wanted = set(names)
    return [_reference(package) for package in chosen if package.name in wanted]


def _reference(package: Locked) -> str:
    return f"pkg:pypi/{package.name}@{package.version}"


def _component(package: Locked, scope: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": "library",
        "bom-ref": _reference(package),
        "name": package.name,
        "version": package.version,
        "scope": scope,
        "purl": _reference(package),
    }
    if package.marker:
        made["properties"] = [{"name": "gpack:marker", "value": package.marker}]
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the file, or checks it; the exit code is 1 where it differs."""
    parser = argparse.ArgumentParser(prog="python -m codegen.sbom", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail where the file differs")
    options = parser.parse_args(argv)
    text = make((ROOT / PROJECT).read_text(), (ROOT / LOCK).read_text())
    path = ROOT / SBOM
    if not options.check:
        path.write_text(text)
    elif not path.exists() or path.read_text() != text:
        print(f"{SBOM} differs from {LOCK}: run `make codegen`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
