"""Builds the wheel and the sdist, and tries both as a user has them: installed, and outside of the checkout.

`make wheels` runs it as `python .ci/wheels.py MODEL.gguf`, with the model of `make demo`. Every Python from 3.11 on
tries the wheel with the extra `run`, where it is found; the first one also tries the sdist without extras.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
PROMPT, ANSWER = "The capital of France is", "Paris"
WITHOUT_EXTRA = "pip install 'guild-gpack[run]'"


def main() -> int:
    """Everything; 0 where all of it went well."""
    model = Path(sys.argv[1]).resolve()
    with TemporaryDirectory(prefix="guild-gpack-") as folder:
        place = Path(folder)
        run(sys.executable, "-m", "hatchling", "build", "--directory", place / "dist", cwd=ROOT)
        (wheel,), (sdist,) = (place / "dist").glob("*.whl"), (place / "dist").glob("*.tar.gz")
        found = [name for name in PYTHONS if works(name)]
        print(f"tried with {', '.join(found)}; absent: {', '.join(set(PYTHONS) - set(found)) or 'none'}", flush=True)
        for name in found:
            try_runs(install(name, place / name, f"{wheel}[run]"), model, place)
        try_plain(install(found[0], place / "plain", str(sdist)), place / "m.gpack", place)
    return 0


def works(python: str) -> bool:
    """Whether there is such a Python; a shim may stand for none."""
    if shutil.which(python) is None:
        return False
    done = subprocess.run([python, "-c", "import venv, ensurepip"], check=False, capture_output=True)
    return done.returncode == 0


def install(python: str, place: Path, what: str) -> Path:
    """A fresh environment with nothing but that; the folder of its commands."""
    run(python, "-m", "venv", place, cwd=place.parent)
    words = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", what)
    run(place / "bin" / "python", *words, cwd=place.parent)
    return place / "bin"


def try_runs(commands: Path, model: Path, place: Path) -> None:
    """The README's order: a model becomes a pack, which is checked and answers."""
    pack = place / "m.gpack"
    pack.unlink(missing_ok=True)
    run(commands / "guild", "--version", cwd=place)
    run(commands / "guild", "convert", model, "-o", pack, cwd=place)
    run(commands / "gpack", "verify", pack, cwd=place)
    run(commands / "gpack-conformance", "--help", cwd=place, quiet=True)
    answer = run(commands / "guild", "run", pack, "--raw", "-p", PROMPT, "--temp", 0, "-n", 8, cwd=place)
    if ANSWER not in answer:
        raise SystemExit(f"wheels: the model did not say {ANSWER}: {answer!r}")


def try_plain(commands: Path, pack: Path, place: Path) -> None:
    """Without extras everything but running works, and that says what it needs."""
    run(commands / "guild", "inspect", pack, cwd=place, quiet=True)
    words = [str(commands / "guild"), "run", str(pack), "-p", PROMPT]
    done = subprocess.run(words, check=False, cwd=place, capture_output=True, text=True)
    print(done.stderr, end="", flush=True)
    if done.returncode != 4 or WITHOUT_EXTRA not in done.stderr:
        raise SystemExit(f"wheels: `guild run` without the extra ended with {done.returncode}")


def run(*words: object, cwd: Path, quiet: bool = False) -> str:
    """What a command printed; it is shown too."""
    command = [str(word) for word in words]
    print("$", *command, flush=True)
    done = subprocess.run(command, check=False, cwd=cwd, stdout=subprocess.PIPE, text=True)
    if not quiet:
        print(done.stdout, end="", flush=True)
    if done.returncode:
        raise SystemExit(f"wheels: this command failed with status {done.returncode}: {' '.join(command)}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
