"""The Kaitai compiler, a development tool that runs under node: found, or fetched by npm, as for the readers."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from schemas import GPACK

from codegen import emit_ksy
from codegen.model import Schema
from conformance.readers.build import MissingToolError, node_modules

DRIVER = Path(__file__).parents[1] / "conformance" / "readers" / "kaitai_compile.cjs"


def compile_grammar(schema: Schema, out: Path, *targets: str) -> Path:
    """Compiles a schema's grammar to OUT/TARGET; skips the test where node or the compiler is absent."""
    if not shutil.which("node"):
        pytest.skip("node is not installed: the Kaitai compiler needs it")
    try:
        modules = node_modules()
    except MissingToolError as error:
        pytest.skip(str(error))
    grammar = out / "grammar.json"
    grammar.write_text(json.dumps(yaml.safe_load(emit_ksy.emit(schema))))
    command = ["node", str(DRIVER), str(grammar), str(out), *targets]
    environment = {**os.environ, "NODE_PATH": str(modules)}
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


@cache
def gpack_parser() -> ModuleType:
    """The Python parser that Kaitai makes of GPACK's grammar; compiling it takes seconds, so once in a process."""
    with tempfile.TemporaryDirectory() as folder:
        path = compile_grammar(GPACK, Path(folder), "python") / "python" / "gpack.py"
        spec = importlib.util.spec_from_file_location("kaitai_gpack", path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module
