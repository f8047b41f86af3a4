"""The table of scenarios and rigs, as a plug-in of pytest."""

from __future__ import annotations

import pytest

_MARKS = {"passed": "ok", "failed": "FAILED", "skipped": "-"}


class Table:
    """Collects results and prints a row per scenario, a column per rig, and the reasons of skipped scenarios."""

    def __init__(self, rigs: list[str]) -> None:
        self._rigs = rigs
        self._rows: dict[str, dict[str, str]] = {}
        self._reasons: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A scenario's set-up, run or tear-down has ended."""
        rig = dict(report.user_properties).get("rig")
        if not isinstance(rig, str) or (report.when != "call" and report.passed):
            return
        scenario = report.nodeid.partition("::")[2].partition("[")[0]
        row = self._rows.setdefault(scenario.removeprefix("test_").replace("_", " "), {})
        if row.get(rig) != _MARKS["failed"]:
            row[rig] = _MARKS[report.outcome]
        if report.skipped and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            where = self._reasons.setdefault(f"{rig}: {reason}", [])
            where.append(scenario)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print it."""
        if not self._rows:
            return
        rigs = [rig for rig in self._rigs if any(rig in row for row in self._rows.values())]
        width = max(len(scenario) for scenario in self._rows)
        write = terminalreporter.write_line
        write("")
        write(f"{'scenario':<{width}}" + "".join(f"  {rig:>{max(len(rig), 6)}}" for rig in rigs))
        for scenario, row in self._rows.items():
            write(f"{scenario:<{width}}" + "".join(f"  {row.get(rig, ''):>{max(len(rig), 6)}}" for rig in rigs))
        for reason, scenarios in self._reasons.items():
            write(f"-  {reason} ({len(scenarios)})")
