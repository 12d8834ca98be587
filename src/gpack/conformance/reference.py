"""gpack itself under its own protocols: `python -m gpack.conformance.reference reader`, or `writer RECIPE OUTPUT`.

What every other program is compared with has to pass its own examination; and these are working examples.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import GpackError
from ..generated.rules import RULES
from .checking import check
from .dumping import dump
from .protocol import EXIT_REJECT, LEVELS, PROTOCOL
from .writer_set import writer_recipes

# What matters most first: a file that needs a newer reader is not damaged, whatever else an old one finds in it.
_CLASSES = ("unsupported", "structure", "digest", "semantic")
_CLASSES_OF_ERRORS = {"UnsupportedError": "unsupported", "DigestError": "digest"}


def main() -> int:
    """Reads or writes, as the first argument says."""
    kind, *rest = sys.argv[1:]
    return _reader() if kind == "reader" else _writer(Path(rest[0]), Path(rest[1]))


def _reader() -> int:
    _say(
        {
            "type": "start",
            "protocol": PROTOCOL,
            "name": "gpack",
            "language": "python",
            "version": __version__,
            "level": LEVELS[-1],
        }
    )
    for line in sys.stdin:
        request = json.loads(line)
        if request["type"] == "stop":
            break
        _say({"type": "result", "seq": request["seq"], **judge(request["path"])})
    return 0


def judge(path: str) -> dict[str, Any]:
    """A verdict on a file: of the rules that it breaks the first of the class that matters most, or the dump."""
    try:
        broken = [result for result in check(path).failed if result.severity == "error"]
        if not broken:
            return {"verdict": "accept", "dump": dump(path)}
    except GpackError as error:
        return {"verdict": "reject", "class": "structure", "message": str(error)}
    first = min(broken, key=lambda result: _CLASSES.index(_class_of(result.rule)))
    return {
        "verdict": "reject",
        "class": _class_of(first.rule),
        "message": first.findings[0].message,
        "rule": first.rule,
    }


def _class_of(rule: str) -> str:
    return _CLASSES_OF_ERRORS.get(RULES[rule].error, "structure" if RULES[rule].level == "structure" else "semantic")


def _writer(recipe_path: Path, output: Path) -> int:
    wanted = json.loads(recipe_path.read_text())["id"]
    recipe = next((recipe for recipe in writer_recipes() if recipe.id == wanted), None)
    if recipe is None:
        sys.stdout.write(f"there is no recipe {wanted}\n")
        return EXIT_REJECT
    recipe.write(recipe_path.parent, output)
    return 0


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
