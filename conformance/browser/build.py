"""Builds the browser page: `python -m conformance.browser.build [OUT.html]` writes one file that needs nothing else.

The page is the JavaScript reader of conformance/readers/javascript, the schema's rules translated by `schema_js`, and
what lies in this folder, bundled as CommonJS modules into two scripts: one for the page, one for its workers. The
content security policy names both by digest and forbids every connection.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path

try:
    from codegen.loader import load
except ModuleNotFoundError as missing:
    sys.exit(f"no {missing.name}: pip install -e '.[codegen]'")
from conformance.browser import schema_js
from conformance.readers import build as readers

HERE = Path(__file__).parent
OUT = readers.ROOT / "build" / "gpack-browser.html"
PAGE = ("app", "session", "view", "summary", "elements")
WORKER = ("expressions", "records", "values", "checks", "inspect", "sha256", "worker")
SHARED = ("range_stream", "grammar", "dump", "parse")
# In a browser every module asks for the runtime and the parser by these names.
RUNTIME = "kaitai-struct/KaitaiStream"


def modules() -> dict[str, str]:
    """The worker's modules by name: the reader's own, the compiled grammar, the runtime, and those of this folder.

    Raises:
        MissingToolError: Node, npm or the Kaitai compiler is absent.
        BuildError: A command of the reader's build failed.
    """
    reader = readers.readers()["javascript"]
    reader.make()
    found = {RUNTIME: (reader.place / "node_modules" / f"{RUNTIME}.js").read_text("utf-8")}
    found["Gpack"] = (reader.place / "Gpack.js").read_text("utf-8")
    found["ksy"] = f"module.exports = {readers.grammar_json()};"
    found["schema"] = schema_js.emit(load(readers.ROOT / "schema" / "gpack.yaml"))
    found |= {name: (reader.place / f"{name}.js").read_text("utf-8") for name in SHARED}
    return found | {name: (HERE / f"{name}.js").read_text("utf-8") for name in WORKER}


def bundle(sources: Mapping[str, str], start: str) -> str:
    """One script that defines all modules and runs one of them."""
    parts = [
        f"define({json.dumps(name)}, function (require, module, exports) {{\n{text}\n}});"
        for name, text in sources.items()
    ]
    loader = (HERE / "loader.js").read_text("utf-8")
    return "\n".join((loader, *parts, f"load({json.dumps(start)});\n"))


def page() -> str:
    """The whole page."""
    worker = bundle(modules(), "worker").replace("</script", "<\\/script")
    script = bundle({name: (HERE / f"{name}.js").read_text("utf-8") for name in PAGE}, PAGE[0])
    style = (HERE / "style.css").read_text("utf-8")
    policy = (
        f"default-src 'none'; script-src {_source(script)} blob:; style-src {_source(style)}; worker-src blob:; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    text = (HERE / "page.html").read_text("utf-8")
    for name, value in {"policy": policy, "style": style, "worker": worker, "script": script}.items():
        text = text.replace(f"{{{{ {name} }}}}", value)
    return text


def _source(text: str) -> str:
    """How a policy names an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def main(argv: list[str] | None = None) -> int:
    """Writes the page; returns the exit code: 0 written, 1 failed, 77 something is not installed."""
    parser = argparse.ArgumentParser(prog="python -m conformance.browser.build", description="Builds the browser page.")
    parser.add_argument("out", nargs="?", type=Path, default=OUT, help="default: %(default)s")
    out = parser.parse_args(argv).out
    try:
        text = page()
    except (readers.MissingToolError, readers.BuildError) as error:
        sys.stderr.write(f"{error}\n")
        return 77 if isinstance(error, readers.MissingToolError) else 1
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, "utf-8")
    sys.stdout.write(f"{out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
