"""Imports point one way (docs/architecture.md): the agent never knows the twin, a reader never knows a knob."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("pmu", "nodectl", "twin", "firmware_bridge", "cluster_agent", "calibration", "hil_tests")

ALLOWED: dict[str, set[str]] = {
    "pmu": set(),
    "firmware_bridge": set(),
    "twin": {"pmu"},  # the types of the doors that it stands in for
    "nodectl": {"pmu", "firmware_bridge"},
    "calibration": {"nodectl", "pmu"},
    "cluster_agent": {"nodectl"},
    "hil_tests": {"twin", "firmware_bridge"},
}

CLOCKS = ("time", "datetime")

MAY_IMPORT_TWIN = ("nodectl/demo/", "nodectl/emulated/", "nodectl/commands/demo.py", "nodectl/commands/twin.py")
"""The `demo` and `twin` commands: the only product code that may import the emulated node."""


def imported_packages(source: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source.read_text(), str(source))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.lineno, node.module.partition(".")[0]


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_point_one_way(package: str) -> None:
    wrong = []
    for source in sorted((ROOT / package).rglob("*.py")):
        name = source.relative_to(ROOT).as_posix()
        allowed = ALLOWED[package] | {package}
        if name.startswith(MAY_IMPORT_TWIN):
            allowed = allowed | {"twin"}
        wrong += [
            f"{name}:{line} imports {top}"
            for line, top in imported_packages(source)
            if top in OURS and top not in allowed
        ]
    assert wrong == []


def test_neither_ledger_nor_lease_reads_a_clock() -> None:
    """So no wall clock that jumps can move a deadline: time is given to them, by one that goes on through suspend."""
    sources = [
        *sorted((ROOT / "cluster_agent" / "budget").rglob("*.py")),
        ROOT / "nodectl/lease.py",
        ROOT / "nodectl/wire.py",
    ]
    assert len(sources) > 10
    read = [(source.name, top) for source in sources for _, top in imported_packages(source) if top in CLOCKS]
    assert read == []
