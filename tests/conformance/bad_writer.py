"""A writer that behaves as it is told: `bad_writer.py MODE GOOD-FILE RECIPE OUTPUT`; GOOD-FILE is the right one."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path


def main() -> int:
    mode, good, recipe, output = sys.argv[1], *map(Path, sys.argv[2:])
    data = bytearray(good.read_bytes())
    middle = len(data) // 2
    actions: dict[str, Callable[[], object]] = {
        "good": lambda: output.write_bytes(data),
        "nothing": lambda: None,
        "empty": lambda: output.write_bytes(b""),
        "flip": lambda: output.write_bytes(bytes([*data[:middle], data[middle] ^ 1, *data[middle + 1 :]])),
        "short": lambda: output.write_bytes(data[:-1]),
        "link": lambda: output.symlink_to(good),
        "pipe": lambda: os.mkfifo(output),
        "folder": output.mkdir,
        "change-input": lambda: (recipe.parent / json.loads(recipe.read_text())["sections"][0]["file"]).write_bytes(
            b""
        ),
        "change-recipe": lambda: recipe.write_text("{}"),
        "leave": lambda: (output.with_suffix(".tmp").write_bytes(b"x"), output.write_bytes(data)),
        "beside": lambda: ((recipe.parent.parent / "new").write_bytes(b"x"), output.write_bytes(data)),
        "refuse": lambda: (sys.stdout.write("not this one"), sys.exit(1)),
        "skip": lambda: (sys.stdout.write("some day"), sys.exit(77)),
        "raise": lambda: output / 0,  # type: ignore[operator]
        "exit-9": lambda: sys.exit(9),
        "signal": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "flood": lambda: [os.write(1, b"x" * 65536) for _ in iter(int, 1)],
        "fill": lambda: [Path(f"f{number}").write_bytes(b"x" * (1 << 20)) for number in itertools.count()],
        "grow": lambda: [b"\1" * (1 << 22) for _ in iter(int, 1)],
        "hang": lambda: time.sleep(600),
        "input": lambda: (sys.stdin.read(), output.write_bytes(data)),
    }
    actions[mode]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
