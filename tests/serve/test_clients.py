"""What others say that a server of these protocols does: conformance suites, descriptions, and a client of npm."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .serving import serving, write_eager_model

pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(write_eager_model(tmp_path_factory.mktemp("served")), "--ctx", "4096") as found:
        yield found


@pytest.mark.parametrize("form", ["openai-chat", "open-responses", "anthropic"])
def test_llm_comply(address: str, form: str) -> None:
    """All pass but what asks a text model for pictures; none warns but of a path that servers need not have."""
    pytest.importorskip("llm_comply", reason="the package llm-comply is not installed")
    words = ["--base-url", f"{address}/v1", "--api-key", "none", "--model", "m", "--format", form, "--json"]
    done = subprocess.run(
        [sys.executable, "-c", "from llm_comply.cli import main; main()", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    found = json.loads(done.stdout)
    failed = {result["id"]: result["errors"] for result in found["results"] if result["status"] == "failed"}
    assert len(failed) == 1, failed
    ((name, errors),) = failed.items()
    assert "image" in name
    assert "HTTP 400" in errors[0]
    assert found["summary"]["passed"] >= 7
    warned = {result["id"] for result in found["results"] if result.get("warnings")}
    assert all("compact" in each for each in warned), warned


def test_the_client_of_openai_from_npm(address: str) -> None:
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    places = [HERE.parents[1] / "node_modules", Path.home() / ".cache" / "gpack" / "node_modules"]
    places += [Path(given)] if (given := os.environ.get("GPACK_NODE_MODULES")) else []
    modules = next((place for place in places if (place / "openai").is_dir()), None)
    if modules is None:
        pytest.skip(f"the npm package openai is in none of {', '.join(map(str, places))}")
    # Modules (import) are looked for beside the script alone; what is required, in NODE_PATH too.
    command = ["node", str(HERE / "openai_drive.cjs"), address]
    environment = {**os.environ, "NODE_PATH": str(modules)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["models"] == ["m"]
    assert found["whole"] == found["streamed"] == found["responded"]
    assert found["usage"]["completion_tokens"] == 6
    assert found["refused"] == {"status": 400, "param": "temprature", "code": "unknown_parameter"}
    assert found["call"]["name"] == "weather"
    assert set(json.loads(found["call"]["arguments"])) == {"city"}
    assert found["called"] == found["call"]
    assert re.fullmatch(r"\d{4}", found["form"])
