"""Functions stay small enough to be understood at one reading; the others are listed here, each with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

lizard = pytest.importorskip("lizard", reason="lizard is missing: pip install lizard")

ROOT = Path(__file__).parents[1]
PACKAGES = ("foundation", "nodectl", "pmu", "twin", "firmware_bridge", "cluster_agent", "calibration", "lab")
MOST = 15
"""Ours: cyclomatic complexity as lizard counts it: 1 and a point for each branch, loop, `and`, `or` and `?:`."""

SWITCH = "a switch of a protocol: one line per case, nothing to name"
OPTIONS = "the options of a command, checked or laid out one by one"

EXEMPT = {
    "cluster_agent/campaigns/campaign_grid.py: grid": "one loop for each dimension of the grid",
    "cluster_agent/commands/submit.py: _options_of": OPTIONS,
    "cluster_agent/serve/job_requests.py: _jobs": "one condition for each option that chooses jobs",
    "firmware_bridge/controlpulp/boards/posix/main.c: read_choice": "options: one branch for each",
    "firmware_bridge/controlpulp/src/control.c: control_substitute": "four loops over a domain, each with its comment",
    "foundation/shell/command_line.py: call": "one clause for each way in which a command ends",
    "pmu/csrc/decode.c: decode_cpus": "one pass over a CPU's counters, hot: the rules stand at each line",
    "twin/faults/fault.py: _check_value": "a table: one case for each kind of fault",
    "twin/nvml/fields.c: answer": SWITCH,
    "twin/nvml/system.c: nvmlErrorString": SWITCH,
}
"""Functions above ``MOST``, as ``file: function``."""


def test_a_function_with_many_branches_is_taken_apart_or_listed_with_the_reason() -> None:
    files = [
        file for package in PACKAGES for file in (ROOT / package).rglob("*.*") if file.suffix in (".py", ".c", ".h")
    ]
    functions = [
        (f"{Path(found.filename).relative_to(ROOT).as_posix()}: {function.name}", function.cyclomatic_complexity)
        for found in lizard.analyze_files([str(file) for file in files])
        for function in found.function_list
    ]
    assert sum(".py: " in name for name, _ in functions) > 2000
    assert sum(".c: " in name for name, _ in functions) > 1000
    above = {name for name, complexity in functions if complexity > MOST}
    assert sorted(above - set(EXEMPT)) == []
    assert sorted(set(EXEMPT) - above) == [], "no longer needed"
