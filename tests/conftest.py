"""One rule for the whole suite: in CI a test skipped for want of a tool that could be installed is a failure.

Such a skip says so in its reason ("perf is missing: install linux-perf"). Skips for hardware that is not there stay
skips everywhere.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from typing import Any

import pytest

# a suite that a shell runs in the background (`make test &`) inherits an ignored Ctrl-C, and so would all it starts
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _blocks_no_signals() -> Generator[None]:
    """What a test leaves blocked would be blocked in all that later tests start."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    after = signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert after == before, "the test left signals blocked"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    if report.skipped and os.environ.get("CI") and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if "install" in reason:
            report.outcome = "failed"
            report.longrepr = f"in CI a missing tool is a failure: {reason}"
    return report
