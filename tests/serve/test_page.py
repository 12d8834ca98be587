"""The page of `guild serve` in Chromium, as a person uses it.

Chromium is Debian's package `chromium` (or the program that GPACK_CHROMIUM names); npm's `playwright-core` drives it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from .serving import write_model

pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def tools() -> tuple[str, Path]:
    browser = os.environ.get("GPACK_CHROMIUM") or shutil.which("chromium")
    if not browser or not shutil.which("node"):
        pytest.skip("chromium or node is not installed")
    root = HERE.parents[1]
    places = [root / ".venv" / "kaitai" / "node_modules", Path.home() / ".cache" / "gpack" / "node_modules"]
    places += [Path(given)] if (given := os.environ.get("GPACK_NODE_MODULES")) else []
    modules = next((place for place in places if (place / "playwright-core").is_dir()), None)
    if not modules:
        pytest.skip(f"playwright-core is in none of {', '.join(map(str, places))}")
    return browser, modules


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, tools: tuple[str, Path]) -> Iterator[str]:
    path = write_model(tmp_path_factory.mktemp("served"))
    words = [sys.executable, "-m", "gpack", "serve", str(path), "--port", "0", "--threads", "1", "--cpu", "portable"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = next(filter(None, (re.search(r"at (http://\S+)", line) for line in process.stderr)))
        yield found[1]
        process.terminate()
        process.communicate()


def test_a_person_talks_to_the_model(address: str, tools: tuple[str, Path], tmp_path: Path) -> None:
    browser, modules = tools
    command = ["node", str(HERE / "page_drive.cjs"), address, browser, str(tmp_path / "page.png")]
    environment = {**os.environ, "NODE_PATH": str(modules)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["errors"] == []
    assert "llama" in found["about"]
    assert found["first"][0] == "hello <img src=x onerror=alert(1)>"
    assert found["first"] == found["again"]  # the same seed
    assert "tokens/s" in found["note"]
    assert "cut" in found["note"]
    assert found["edited"] == found["first"][0]
    assert re.search("stopped|tokens/s", found["stopped"])
    assert (found["foreign"], found["unlabelled"]) == (0, 0)
    assert {urlsplit(url).netloc for url in found["asked"] if url.startswith("http")} == {urlsplit(address).netloc}
    assert found["marked"] == (
        "<h3>A</h3><ul><li><em>b</em> <code>c&#60;d</code></li></ul><pre><code>&#60;x&#62;</code></pre>"
        "<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td><strong>2</strong></td></tr></table>"
        '<p><a rel="noreferrer noopener" target="_blank" href="https://e.x/?a=&#34;b">n</a></p>'
    )
    assert (tmp_path / "page.png").stat().st_size > 5000
