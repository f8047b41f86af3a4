"""C calls one way: a header lists the units from the bottom up, and the compiled objects follow it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FIRMWARE, TWIN, SCHEDULER = "firmware_bridge/controlpulp/src", "twin/csrc", "cluster_agent/csrc"
LISTS = {
    f"{FIRMWARE}/firmware.h": "*.c",
    f"{TWIN}/model_internal.h": "model*.c",
    f"{TWIN}/serve_internal.h": "serve*.c",
    "nodectl/csrc/restorer.h": "*.c",
    "calibration/kernels/csrc/kernels.h": "*.c",
    f"{SCHEDULER}/scheduler_inside.h": "**/*.c",
    "cluster_agent/hook/csrc/hook.h": "*.c",
}
"""Headers with a list of units, and the source files that it is about."""


def listed(header: Path) -> list[list[str]]:
    """Per line of the list its units; a unit is the names of its files, joined by ` + `."""
    block = re.search(r"from the bottom up\..*?\n \*\n((?: \*   [a-z_0-9, +]+\n)+)", header.read_text(), re.DOTALL)
    assert block, header
    return [line.removeprefix(" *   ").split(", ") for line in block[1].splitlines()]


def symbols(made: Path) -> tuple[set[str], set[str]]:
    """What an object defines for others, and what it uses of others."""
    lines = subprocess.run(["nm", "-g", made], check=True, capture_output=True, text=True).stdout.splitlines()
    kinds = [line.split()[-2:] for line in lines]
    return {name for kind, name in kinds if kind != "U"}, {name for kind, name in kinds if kind == "U"}


@pytest.mark.parametrize("header", LISTS)
def test_a_unit_of_c_calls_only_units_below_it(header: str, tmp_path: Path) -> None:
    lines = listed(ROOT / header)
    level = {name: at for at, line in enumerate(lines) for unit in line for name in unit.split(" + ")}
    unit_of = {name: unit for line in lines for unit in line for name in unit.split(" + ")}
    sources = {path.stem: path for path in sorted((ROOT / header).parent.glob(LISTS[header]))}
    assert set(sources) == set(level)

    include = [f"-I{ROOT / path}" for path in (TWIN, SCHEDULER, "nodectl/include")]
    subprocess.run(["cc", "-std=c11", "-D_GNU_SOURCE", "-c", *include, *sources.values()], check=True, cwd=tmp_path)
    found = {name: symbols(tmp_path / f"{name}.o") for name in sources}
    home = {symbol: name for name, (defined, _) in found.items() for symbol in defined}
    calls = {(name, home[symbol]) for name, (_, used) in found.items() for symbol in used if symbol in home}
    assert len(calls) >= len(lines)
    wrong = {(a, b) for a, b in calls if level[b] >= level[a] and unit_of[a] != unit_of[b]}
    assert wrong == set()
