"""Rules for the whole suite.

- In CI a test skipped for want of a tool that could be installed is a failure. Such a skip says so in its reason ("perf
  is missing: install linux-perf"). Skips for hardware that is not there stay skips everywhere.
- Tests that need recorded data which is not here are counted in one line (tests/recorded.py).
- `make test` runs test files side by side (pytest-xdist), and those that look at the whole machine alone.
- Property tests (hypothesis) run the same examples every time, here and in CI. `make fuzz` runs new ones.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.alone import ALONE, LONGEST, FilesSideBySide, Turns
from tests.recorded import WHY as NEEDS_RECORDED

# No limit on the time of an example, and no check for slow ones: on a busy machine all are slow.
_NO_CLOCK: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("same", derandomize=True, **_NO_CLOCK)
settings.register_profile("random", print_blob=True, **_NO_CLOCK)  # --hypothesis-profile=random
settings.load_profile("same")

_END_S = pytest.StashKey[float]()

# a suite that a shell runs in the background (`make test &`) inherits an ignored Ctrl-C, and so would all it starts
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--for-seconds", type=float, help="begin tests in random order until this time is over")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # one of several processes of pytest-xdist
        config.pluginmanager.register(Turns())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesSideBySide:
    return FilesSideBySide(config, log)


def _turn(test: str) -> int:
    """Which tests come first where files run side by side: the longest ones, and at the end those that run alone."""
    first = next((place for place, file in enumerate(LONGEST) if test.startswith(file)), len(LONGEST))
    return len(LONGEST) + 1 if test.startswith(ALONE) else first


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _turn(item.nodeid))
    seconds = config.getoption("--for-seconds")
    if seconds is not None:
        random.shuffle(items)
        config.stash[_END_S] = time.monotonic() + seconds


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    if time.monotonic() > item.config.stash.get(_END_S, float("inf")):
        return True  # done with, without having begun
    return None


@pytest.fixture(autouse=True)
def _blocks_no_signals() -> Generator[None]:
    """What a test leaves blocked would be blocked in all that later tests start."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    after = signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert after == before, "the test left signals blocked"


def is_failure_in_ci(reason: str) -> bool:
    """Whether a skip is for want of a tool that could be installed."""
    return "install" in reason


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    if report.skipped and os.environ.get("CI") and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if is_failure_in_ci(reason):
            report.outcome = "failed"
            report.longrepr = f"in CI a missing tool is a failure: {reason}"
    return report


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """A category of its own, of which pytest does not list the members."""
    if report.skipped and isinstance(report.longrepr, tuple) and NEEDS_RECORDED in report.longrepr[2]:
        return "without recorded data", "s", "SKIPPED"
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("without recorded data", [])
    if skipped:
        missing = ", ".join(sorted({report.longrepr[2].partition(NEEDS_RECORDED)[2] for report in skipped}))
        terminalreporter.line(f"{len(skipped)} tests need recorded data and were skipped; not here: {missing}")
