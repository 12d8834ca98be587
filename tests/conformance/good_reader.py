"""A reader that answers as a table says: `good_reader.py [--level L] [--depth D] TABLE.json`, with one answer to an id.

With a further argument it is a program that is started for each file: the file's name is the id.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def per_file(table: dict[str, Any], path: Path) -> None:
    answer = table[path.stem]
    if answer == "hang":
        time.sleep(600)
    while answer == "flood":
        sys.stdout.write("x" * 65536)
    if isinstance(answer, str):
        sys.stdout.write(answer)
        sys.exit(0)
    if isinstance(answer, int):
        sys.exit(answer)
    sys.stdout.write(json.dumps(answer.get("dump", answer)))
    sys.exit({"accept": 0, "reject": 1, "skip": 77}[answer.get("verdict", "skip")])


def main() -> None:
    start = {"type": "start", "protocol": 1, "name": "good", "language": "python", "version": "0", "level": "semantic"}
    arguments = sys.argv[1:]
    while arguments[0].startswith("--"):
        start[arguments[0][2:]] = arguments[1]
        del arguments[:2]
    table = json.loads(Path(arguments[0]).read_text())
    if len(arguments) > 1:
        per_file(table, Path(arguments[1]))
    sys.stdout.write(json.dumps(start) + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        request = json.loads(line)
        if request["type"] == "stop":
            break
        sys.stdout.write(json.dumps({"type": "result", "seq": request["seq"], **table[request["id"]]}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
