"""What all tests have in common."""

from __future__ import annotations

import os
import signal

import exhaustive
import pytest

# Kernels for devices run in numba-cuda's simulator, where that is installed; numba reads this when it is imported.
os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")


def pytest_configure() -> None:
    """Ctrl-C and a closed terminal end programs that tests start, also where this run shall ignore them.

    What is started with `nohup`, or in the background of a script, ignores these signals, and hands that on.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)  # still ignored here, but by no child


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves exhaustive tests out unless they are wanted."""
    exhaustive.mark(items)
    if exhaustive.IS_EXHAUSTIVE:
        return
    left_out = [item for item in items if item.get_closest_marker("exhaustive")]
    items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]
    config.hook.pytest_deselected(items=left_out)


def pytest_report_header() -> str:
    """Whether this run is whole."""
    return "exhaustive tests: " + ("run" if exhaustive.IS_EXHAUSTIVE else "left out, `make test-all` runs them")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests say of how much they tried, also where they ran in other processes."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if report.when == "call":
                    terminalreporter.write_line(f"{name}: {value}")
