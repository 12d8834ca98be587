"""Builds a reader of GPACK in another language: `python -m conformance.readers.build java` prints its command.

A reader is a folder beside this file with a `reader.toml`, a small driver, and what its toolchain needs. Nothing that
is generated is committed: the build copies the folder, compiles `schema/gpack.ksy` with the Kaitai compiler, renders
the dump functions from the schema, and runs the toolchain's own commands, all below `.venv/readers/LANGUAGE`. A build
whose inputs did not change is not repeated.

`reader.toml`; `{build}` is the folder of the build, `{root}` that of the repository, `{python}` this interpreter::

    language = "java"                 # as the reader names itself
    level    = "digest"               # the highest level that it knows: structure, digest, semantic
    needs    = ["java", "javac"]      # programs that must be installed
    runtime  = "..."                  # where Kaitai's runtime comes from, for people
    fetch    = [["mvn", ...]]         # commands that get the runtime, run in {build}: where one fails, it is absent
    build    = [["javac", ...]]       # commands that compile, run in {build}
    run      = ["java", ...]          # the command that speaks the reader protocol
    per_file = false                  # true: one process to a file
    [kaitai]                          # absent: the reader does without the grammar
    target = "java"
    into   = "src/main/java"          # folder of the generated sources, from {build}
    prefix = ""                       # a line that goes before the generated text
    grammar = "grammar.json"          # absent: the driver does not read the grammar itself
    [dump]                            # absent: the driver needs no generated dump functions
    target = "java"                   # template of codegen.emit_dump
    into   = "src/main/java/Dump.java"
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
READERS = Path(__file__).parent
COMPILER = "kaitai-struct-compiler"
COMPILER_VERSION = "0.11"


class MissingToolError(Exception):
    """A toolchain, a runtime or the Kaitai compiler is absent; the message names it."""


class BuildError(Exception):
    """A command of the build failed; the message ends with what it printed."""


@dataclass(frozen=True)
class Reader:
    """One `reader.toml`; the module's docstring says what the keys mean."""

    language: str
    level: str
    runtime: str
    run: Sequence[str]
    folder: Path
    needs: Sequence[str] = ()
    fetch: Sequence[Sequence[str]] = ()
    build: Sequence[Sequence[str]] = ()
    per_file: bool = False
    kaitai: Mapping[str, str] = field(default_factory=dict)
    dump: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> Path:
        """Where it is built."""
        return Path(os.environ.get("GPACK_READERS", ROOT / ".venv" / "readers")) / self.folder.name

    def command(self) -> list[str]:
        """The command that runs it, once it is built."""
        return [self._fill(word) for word in self.run]

    def missing(self) -> list[str]:
        """Programs that it needs and that are not installed."""
        wanted = [*self.needs, *(["node"] if self.kaitai else [])]
        return [name for name in wanted if not shutil.which(name)]

    def make(self) -> list[str]:
        """Builds it where its inputs changed.

        Returns:
            The command that runs it.

        Raises:
            MissingToolError: Something is not installed, or cannot be fetched.
            BuildError: A command failed.
        """
        if missing := self.missing():
            raise MissingToolError(f"{self.language}: not installed: {', '.join(missing)}")
        stamp, state = self.place / ".built", self._state()
        with _alone(self.place):
            if not stamp.exists() or stamp.read_text() != state:
                self._prepare()
                self._fetch()
                for command in self.build:
                    _call(self.language, [self._fill(word) for word in command], self.place)
                stamp.write_text(state)
        return self.command()

    def _fetch(self) -> None:
        for command in self.fetch:
            try:
                _call(self.language, [self._fill(word) for word in command], self.place)
            except BuildError as error:
                raise MissingToolError(f"{self.language}: no runtime ({self.runtime}): {error}") from error

    def _fill(self, word: str) -> str:
        known = {"{build}": str(self.place), "{root}": str(ROOT), "{python}": sys.executable}
        return re.sub(r"\{\w+\}", lambda match: known.get(match[0], match[0]), word)

    def _state(self) -> str:
        """A digest of everything that the build is made of."""
        digest = hashlib.sha256(COMPILER_VERSION.encode())
        inputs = [path for path in self.folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        inputs += [ROOT / "schema" / name for name in ("gpack.yaml", "gpack.ksy", "gpack.h")]
        if self.dump:
            inputs += [ROOT / "codegen" / "emit_dump.py", ROOT / "codegen" / "c_rules.py"]
            inputs += (ROOT / "codegen" / "templates" / "dump").glob(f"{self.dump['target']}.*")
        for path in sorted(inputs):
            if path.is_file():
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()

    def _prepare(self) -> None:
        """The folder's own files, the compiled grammar and the dump functions, in a clean place."""
        for generated in (self.place / ".built", self.place / self.kaitai.get("into", ".kaitai")):
            if generated.is_file():
                generated.unlink()
        ignore = shutil.ignore_patterns("__pycache__", "reader.toml")
        shutil.copytree(self.folder, self.place, dirs_exist_ok=True, ignore=ignore)
        if self.kaitai:
            compile_grammar(self.kaitai["target"], self.place / self.kaitai["into"], self.kaitai.get("prefix", ""))
        if "grammar" in self.kaitai:
            (self.place / self.kaitai["grammar"]).write_text(grammar_json())
        if self.dump:
            try:
                from codegen import emit_dump
                from codegen.loader import load
            except ModuleNotFoundError as error:
                raise MissingToolError(f"{self.language}: no {error.name}: pip install -e '.[codegen]'") from error
            target = self.place / self.dump["into"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(emit_dump.emit(load(ROOT / "schema" / "gpack.yaml"), self.dump["target"]))


def readers() -> dict[str, Reader]:
    """All readers by the name of their folder."""
    return {path.parent.name: _load(path) for path in sorted(READERS.glob("*/reader.toml"))}


def _load(path: Path) -> Reader:
    return Reader(folder=path.parent, **tomllib.loads(path.read_text()))


def compile_grammar(target: str, out: Path, prefix: str = "") -> None:
    """Compiles `schema/gpack.ksy` to one of Kaitai's targets, into the folder `out`.

    Raises:
        MissingToolError: Neither node nor npm, or no compiler to be had.
        BuildError: The compiler refused the grammar.
    """
    modules = node_modules()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        grammar = Path(folder) / "grammar.json"
        grammar.write_text(grammar_json())
        command = ["node", str(READERS / "kaitai_compile.cjs"), str(grammar), folder, target]
        _call(target, command, ROOT, {"NODE_PATH": str(modules)})
        for source in (path for path in (Path(folder) / target).rglob("*") if path.is_file()):
            text = source.read_text()
            (out / source.name).write_text(f"{prefix}\n{text}" if prefix else text)


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Keeps other processes, such as those of parallel tests, from building in the same place."""
    place.mkdir(parents=True, exist_ok=True)
    with (place / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def grammar_json() -> str:
    """`schema/gpack.ksy` as JSON, for those who have no YAML library."""
    return json.dumps(yaml.safe_load((ROOT / "schema" / "gpack.ksy").read_text()))


def node_modules() -> Path:
    """The folder that has the Kaitai compiler; npm installs it where it is nowhere.

    Raises:
        MissingToolError: It is nowhere, and npm is not installed or failed.
    """
    own = ROOT / ".venv" / "kaitai"
    places = [own / "node_modules", Path.home() / ".cache" / "gpack" / "node_modules"]
    if given := os.environ.get("GPACK_NODE_MODULES"):
        places.insert(0, Path(given))
    for place in places:
        if (place / COMPILER).is_dir():
            return place
    if not shutil.which("npm"):
        raise MissingToolError(f"npm is not installed, and {COMPILER} is in none of {', '.join(map(str, places))}")
    package = f"{COMPILER}@{COMPILER_VERSION}"
    options = ["--silent", "--no-audit", "--no-fund", "--fetch-timeout=60000"]  # milliseconds
    install = ["npm", "install", *options, "--prefix", str(own), package]
    try:
        with _alone(own):
            if not (own / "node_modules" / COMPILER).is_dir():
                _call("npm", install, own)
    except BuildError as error:
        raise MissingToolError(f"npm could not install {package}: {error}") from error
    return own / "node_modules"


def _call(name: str, command: Sequence[str], place: Path, environment: Mapping[str, str] | None = None) -> None:
    """Runs a command of the build; its output goes into the error where it fails."""
    done = subprocess.run(
        command,
        cwd=place,
        env={**os.environ, **(environment or {})},
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        raise BuildError(f"{name}: `{' '.join(command)}` failed with {done.returncode}:\n{done.stdout[-4000:]}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code: 0 built, 1 failed, 77 something is not installed."""
    known = readers()
    parser = argparse.ArgumentParser(prog="python -m conformance.readers.build", description=(__doc__ or "")[:100])
    parser.add_argument("language", nargs="*", help=f"which readers, of {', '.join(known)} (default: all)")
    parser.add_argument("--json", action="store_true", help="print what is known of each as JSON")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.language if name not in known]:
        parser.error(f"no reader {', '.join(unknown)}; there are {', '.join(known)}")
    status = 0
    for name in args.language or known:
        made: dict[str, Any] = {"language": name, "level": known[name].level, "per_file": known[name].per_file}
        try:
            made["command"] = known[name].make()
        except MissingToolError as error:
            made["missing"], status = str(error), status or 77
        except BuildError as error:
            made["error"], status = str(error), 1
        _show(made, as_json=args.json)
    return status


def _show(made: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(made) + "\n")
    elif "command" in made:
        sys.stdout.write(" ".join(made["command"]) + "\n")
    else:
        sys.stderr.write((made.get("missing") or made["error"]) + "\n")


if __name__ == "__main__":
    sys.exit(main())
