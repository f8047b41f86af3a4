"""Runs the collected tests once for each library that is named on a pipe, each time in a child of its own.

``python -m tests.mutation.fork_server REQUESTS ANSWERS MODULE LIBRARY PYTEST_ARGUMENT...``: LIBRARY is MODULE without
one of its sources. A child loads that source's code, compiled apart, before it runs the first test. Collecting the
tests takes longer than most mutants live, and is done once.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import json
import os
import resource
import select
import signal
import sys
from collections import Counter

import hypothesis
import pytest

_WALL_S = 600  # a child that sleeps; one that computes has its limit in CPU seconds
_LONGEST_CPU = 5  # times what all tests took without a mutation
_MEMORY_BYTES = 8 << 30


class ForkServer:
    """A pytest plugin in the place of its loop over the tests."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests = os.fdopen(requests)
        self._answers = answers
        self._kills: Counter[str] = Counter()
        self._cost_s: dict[str, float] = {}
        self._limit_s = 300
        self._is_child = False
        self._report_to = -1

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Equal examples each time. After the conftest files, before the test files."""
        hypothesis.settings.register_profile("mutation", derandomize=True, database=None, deadline=None)
        hypothesis.settings.load_profile("mutation")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """One library after the other."""
        if session.testsfailed:
            raise session.Interrupted("not all tests could be collected")
        self._cost_s = {item.nodeid: 1e-3 for item in session.items}
        for line in self._requests:
            verdict = self._run(session, line.strip())
            os.write(self._answers, (json.dumps(verdict) + "\n").encode())
        return True

    def _run(self, session: pytest.Session, library: str) -> tuple[str, float]:
        reports, report_to = os.pipe()
        before = _children_cpu_s()
        child = os.fork()
        if not child:
            os.setsid()
            self._report_to = report_to
            self._is_child = True
            code = 3
            try:
                self._run_tests(session, library)
                code = 0
            finally:
                os._exit(code)
        os.close(report_to)
        text, is_late = _read_all(reports)
        os.close(reports)
        if is_late:
            os.killpg(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        cpu_s = _children_cpu_s() - before
        rows = [json.loads(row) for row in text.splitlines()]
        killer = next((name for name, outcome, _ in rows if outcome == "failed"), "")
        if not killer and (is_late or status):
            killer = next((name for name, outcome, _ in reversed(rows) if outcome == "begin"), "loading")
        if killer:
            self._kills[killer] += 1
        else:
            self._cost_s |= {name: max(took_s, 1e-4) for name, outcome, took_s in rows if outcome == "passed"}
            self._limit_s = max(5, round(_LONGEST_CPU * sum(self._cost_s.values())))
        if is_late or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
            killer += " (late)"
        return killer, cpu_s

    def _run_tests(self, session: pytest.Session, library: str) -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (self._limit_s, self._limit_s + 5))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        ctypes.CDLL(library, os.RTLD_GLOBAL | os.RTLD_NOW)
        ordered = sorted(session.items, key=lambda i: -(self._kills[i.nodeid] + 0.1) / self._cost_s[i.nodeid])
        for item, following in zip(ordered, [*ordered[1:], None], strict=True):
            self._tell(item.nodeid, "begin", 0.0)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The first failure ends the child."""
        if not self._is_child:
            return
        if report.failed:
            self._tell(report.nodeid, "failed", report.duration)
            os._exit(1)
        if report.when == "call":
            self._tell(report.nodeid, "passed", report.duration)

    def _tell(self, name: str, outcome: str, took_s: float) -> None:
        os.write(self._report_to, (json.dumps([name, outcome, took_s]) + "\n").encode())


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _read_all(descriptor: int) -> tuple[str, bool]:
    """Until the child and all that it started have closed it; True if that took too long."""
    parts: list[bytes] = []
    while select.select([descriptor], [], [], _WALL_S)[0]:
        part = os.read(descriptor, 1 << 16)
        if not part:
            return b"".join(parts).decode(), False
        parts.append(part)
    return b"".join(parts).decode(), True


def load(module: str, library: str) -> None:
    """Import ``module`` from ``library``; what it lacks is looked for at the first call."""
    package, _, name = module.rpartition(".")
    sys.setdlopenflags(os.RTLD_LAZY | os.RTLD_GLOBAL)
    loader = importlib.machinery.ExtensionFileLoader(module, library)
    spec = importlib.util.spec_from_file_location(module, library, loader=loader)
    assert spec is not None
    loaded = importlib.util.module_from_spec(spec)
    loader.exec_module(loaded)
    sys.modules[module] = loaded
    setattr(importlib.import_module(package), name, loaded)


def main() -> int:
    """See above."""
    requests, answers, module, library, *tests = sys.argv[1:]
    load(module, library)
    server = ForkServer(int(requests), int(answers))
    quiet = ["-q", "--no-header", "--no-summary", "-p", "no:cacheprovider", "-p", "no:timeout", "-p", "no:faulthandler"]
    return pytest.main([*quiet, "--capture=no", *tests], plugins=[server])


if __name__ == "__main__":
    sys.exit(main())
