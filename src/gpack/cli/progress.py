"""A progress bar on stderr, only where a person watches."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Self

from gpack.terminal.units import rate, size

if TYPE_CHECKING:
    from tqdm import tqdm

_FORMAT = "{desc} {percentage:3.0f}% |{bar}| {done} of {whole}, {speed}, {remaining} left"


class Progress:
    """Shows how many bytes of a total are done, at what rate, and the time that is left.

    Without a terminal it writes nothing and does not even import tqdm. A total of 0 shows no bar.
    """

    def __init__(self, label: str, enabled: bool | None = None) -> None:
        """The bar appears with the first update.

        Args:
            label: What is being done, in one word or two.
            enabled: False for no bar (`--json`), True for one in any case, None for one if stderr is a terminal.
        """
        self.label = label
        self.enabled = _is_terminal(sys.stderr) if enabled is None else enabled
        self._bar: tqdm[Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()

    def update(self, n_bytes: int, total_bytes: int) -> None:
        """Adds bytes that are done, of `total_bytes` in all; does nothing where no bar is shown."""
        if self._bar is None and self.enabled and total_bytes > 0:
            self._bar = _make_bar(total_bytes, self.label)
        if self._bar is not None:
            self._bar.update(n_bytes)


def _make_bar(total_bytes: int, label: str) -> tqdm[Any]:
    from tqdm import tqdm

    class ByteBar(tqdm):  # type: ignore[type-arg]  # generic in the stubs alone
        """Sizes and rates in this program's units: tqdm scales amounts by 1024, but rates always by 1000."""

        @property
        def format_dict(self) -> Any:
            state = dict(super().format_dict)
            # tqdm smooths the rate over the last updates and has none before the second one.
            speed = rate(state["rate"], 1) if state["rate"] else rate(state["n"], state["elapsed"])
            return state | {"done": size(state["n"]), "whole": size(state["total"]), "speed": speed}

    return ByteBar(
        total=total_bytes,
        desc=label,
        file=sys.stderr,
        bar_format=_FORMAT,
        dynamic_ncols=True,
        leave=False,  # the command's own report stays instead
    )


def _is_terminal(stream: Any) -> bool:
    """Whether the stream is a terminal; it is not where it is closed or, under `pythonw`, missing."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False
