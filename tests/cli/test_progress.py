"""The bar appears for people only, and leaves nothing behind."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import redirect_stderr

import pytest

from gpack.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


def test_bar_on_a_terminal(terminal: Terminal) -> None:
    with redirect_stderr(terminal), Progress("convert") as progress:
        assert progress.enabled
        progress.update(2**30, 2 * 2**30)
    text = terminal.getvalue()
    assert "convert   0% |" in text
    assert "0 B of 2.0 GiB" in text
    assert "left" in text


def test_the_bar_counts_and_rates(terminal: Terminal) -> None:
    with redirect_stderr(terminal), Progress("verify") as progress:
        progress.update(2**20, 3 * 2**20)
        bar = progress._bar
        assert bar is not None
        progress.update(2**19, 3 * 2**20)
        assert bar.n == 1_572_864
        bar.start_t -= 1.0  # one second has passed
        bar.refresh()
    assert "verify  50% |" in terminal.getvalue()
    assert "1.5 MiB of 3.0 MiB, 1.5 MiB/s, 00:01 left" in terminal.getvalue()


def test_not_with_json(terminal: Terminal) -> None:
    with redirect_stderr(terminal), Progress("verify", enabled=False) as progress:
        progress.update(100, 100)
    assert terminal.getvalue() == ""


def test_not_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress("verify") as progress:
        progress.update(100, 100)
    assert not progress.enabled
    assert stream.getvalue() == ""


def test_forced_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress("verify", enabled=True) as progress:
        progress.update(100, 100)
    assert "verify" in stream.getvalue()


def test_nothing_to_do_shows_nothing(terminal: Terminal) -> None:
    with redirect_stderr(terminal), Progress("convert") as progress:
        progress.update(0, 0)
    assert terminal.getvalue() == ""


def test_a_closed_or_missing_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        with Progress("convert") as progress:
            progress.update(1, 1)
        assert not progress.enabled


def test_errors_pass_and_the_bar_goes(terminal: Terminal) -> None:
    def fail(progress: Progress) -> None:
        progress.update(1, 2)
        assert progress._bar is not None
        raise KeyError

    with redirect_stderr(terminal), pytest.raises(KeyError), Progress("convert") as progress:
        fail(progress)
    assert progress._bar is None
    assert terminal.getvalue().endswith("\r")  # the line was cleared


def test_without_a_bar_tqdm_is_not_imported() -> None:
    program = (
        "import sys; from gpack.cli.progress import Progress\n"
        "with Progress('x') as p: p.update(9, 9)\n"
        "sys.exit('tqdm' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, stderr=subprocess.PIPE)
    assert done.returncode == 0
    assert done.stderr == b""
