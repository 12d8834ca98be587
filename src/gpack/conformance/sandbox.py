"""The folders that a program under test gets, and what it did to them.

```
gpack-conformance-XXXX/     nothing may appear here
    input/                  the file that is read; nothing may change
    beside/                 a bystander; nothing may change
    work/                   the working directory
    temporary/              TMPDIR
```

Without root, only these folders are watched: what a program writes elsewhere (its home, /tmp by name, /dev/shm) is not
seen. A change that is undone before the answer is seen too, for the time of change cannot be set back.
"""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Self

from ..errors import PathError
from .disk import Stamp, changes, contents, remove, snapshot
from .process import Child, Limits

_BYSTANDER = "bystander.txt"
_NAMED = 5  # files that a message names


class Sandbox:
    """The folders. Use it as a context manager: it removes them whatever is in them.

    Attributes:
        input, work, temporary: The folders.
    """

    def __init__(self) -> None:
        try:
            self.root = Path(tempfile.mkdtemp(prefix="gpack-conformance-")).resolve()
            self.input, self.work = self.root / "input", self.root / "work"
            self.temporary, self.beside = self.root / "temporary", self.root / "beside"
            try:
                for folder in (self.input, self.work, self.temporary, self.beside):
                    folder.mkdir()
                (self.beside / _BYSTANDER).write_text("Nobody has to change this file.\n")
            except OSError:
                remove(self.root)
                raise
        except OSError as error:
            raise PathError(
                f"no temporary folder can be made: {error.strerror}", code="io.write", path=tempfile.gettempdir()
            ) from error
        self._before: dict[str, Stamp] = {}
        self.seal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Removes everything.

        Raises:
            PathError: Something cannot be removed.
        """
        if not remove(self.root):
            raise PathError("the temporary folder cannot be removed", code="io.write", path=self.root)

    def start(self, command: Sequence[str], limits: Limits, stop: Event) -> Child:
        """Starts a program in the working folder; `stop`, set from elsewhere, ends all waiting for it.

        Raises:
            PathError: It cannot be started.
        """
        return Child(
            command,
            folder=self.work,
            watched=(self.work, self.temporary),
            limits=limits,
            environment={"TMPDIR": str(self.temporary)},
            stop=stop,
        )

    def seal(self) -> None:
        """Remembers the watched folders as they are now."""
        self._before = self._watched()

    def touched(self) -> list[str]:
        """What was done to the watched folders since they were sealed, in words."""
        return changes(self._before, self._watched())

    def leftovers(self) -> list[str]:
        """Files in the working and the temporary folder, in words; empty folders are forgiven."""
        found = {folder.name: contents(folder, most=_NAMED) for folder in (self.work, self.temporary)}
        return [
            f"left files in its {name} folder: {', '.join(map(ascii, files))}" for name, files in found.items() if files
        ]

    def empty_input(self) -> None:
        """Removes what was to be read."""
        _renew(self.input)

    def sweep(self) -> None:
        """Empties the working and the temporary folder."""
        for folder in (self.work, self.temporary):
            _renew(folder)

    def _watched(self) -> dict[str, Stamp]:
        """Input, bystander, and what else there is beside them; the program's own folders only by name."""
        found: dict[str, Stamp] = {}
        for folder in (self.input, self.beside):
            found |= {f"{folder.name}/{path}": stamp for path, stamp in snapshot(folder).items()}
        return found | _names(self.root)


def _renew(folder: Path) -> None:
    remove(folder)
    folder.mkdir(exist_ok=True)


def _names(folder: Path) -> dict[str, Stamp]:
    """The entries of a folder and what kind they are, without what is in them."""
    return {path.name: Stamp(0, stat.S_IFMT(path.lstat().st_mode), 0, 0, 0) for path in folder.iterdir()}
