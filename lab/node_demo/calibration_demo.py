"""A calibration, from the first kernel to what policies save by it, on an emulated node; and a short one in real time.

In virtual time a node of the machine is measured as `nodectl calibrate run` does, its table is written and drawn, and
the same policies run the same work on the same node with their defaults and with what the table says. Then the command
itself, in real time, on a served node.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from calibration.kernels.port import FMA, STREAM
from calibration.measure.node_session import open_session
from calibration.table.adaptive_sweep import Aim, Sweep
from calibration.table.balance_series import measure_balance
from calibration.table.finished_table import finished_table, package_limits_w
from calibration.table.pstate_table import Table
from calibration.table.table_file import write_table
from foundation.shell.text_table import render
from lab.emulated.emulated_kernels import emulated_kernels
from lab.node_demo.costs import at_fixed_clock
from lab.node_demo.experiment import Experiment, run
from lab.node_demo.served import why_not_served
from nodectl.calibrated.node_identity import identity
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.physics.variation import Variation

MACHINE: Final = "curie"
NODE: Final = 2
BIAS: Final = 0.2
PRECISION: Final = 0.03
WORKLOADS: Final = ("stream", "gromacs", "hpl")
POLICIES: Final = ("bdpo-cpu", "bdpo-cpu-bounded")
SERVED_MACHINE: Final = "taurus"
SERVED_BUDGET: Final = "16s"
PATIENCE_S: Final = 120.0


class Line(msgspec.Struct, frozen=True):
    """One workload under one policy: shares of the whole node's energy and of time, against the highest clocks."""

    workload: str
    policy: str
    saved: float
    slower: float
    saved_after: float
    slower_after: float


class Served(msgspec.Struct, frozen=True):
    """The command on a served node. ``why_not``: empty if it ran."""

    why_not: str = ""
    lines: tuple[str, ...] = ()
    status: int = 0


def calibrated(machine: str = MACHINE, node: int = NODE) -> Table:
    """The table of an emulated node, measured in virtual time."""
    twin = Twin(load_machine(machine), seed=node, variation=Variation(node=node))
    with (
        InProcess(twin) as shown,
        tempfile.TemporaryDirectory(prefix="nodectl-demo-") as state,
        open_session(shown.ports, emulated_kernels(twin, node, BIAS), state) as session,
    ):
        limits_w = package_limits_w(shown.ports.files, session.packages)
        sweep = Sweep(session, (FMA, STREAM), Aim(PRECISION), limits_w=limits_w)
        sweep.run()
        measure_balance(sweep)
        return finished_table(sweep, identity(shown.ports, session.found.layout), datetime.datetime.now(datetime.UTC))


def before_and_after(
    table: Table, seconds: float, workloads: tuple[str, ...] = WORKLOADS, machine: str = MACHINE, node: int = NODE
) -> Iterator[Line]:
    """Each policy on each workload, ``seconds`` long at the highest clocks, by its defaults and by the table."""
    variation = Variation(node=node)
    for workload in workloads:
        reference = at_fixed_clock(machine, workload, node, BIAS, seconds, 0, variation)
        for policy in POLICIES:
            shares: list[float] = []
            for params in ({}, dict[str, Any](table.policies.get(policy, {}))):
                result = run(
                    Experiment(machine, workload, node, BIAS, seconds, policy, cpu_params=params, variation=variation)
                )
                shares.append(1.0 - result.energy_j["node"] / reference.energy_j["node"])
                shares.append(result.slowdown_against(reference.time_s))
            yield Line(workload, policy, *shares)


def lines_of(found: list[Line]) -> list[str]:
    """One table, in per cent."""
    heads = ("workload", "policy", "saved: defaults", "by the table", "slower: defaults", "by the table")
    rows = [(one.workload, one.policy, *(f"{100 * value:.1f}" for value in _values(one))) for one in found]
    return render(heads, rows).splitlines()


def _values(one: Line) -> tuple[float, float, float, float]:
    return one.saved, one.saved_after, one.slower, one.slower_after


def served_run(folder: Path) -> Served:
    """`nodectl calibrate run`, short, in real time on a served node, and `check` of what it wrote."""
    if why := why_not_served():
        return Served(why_not=why)
    nodectl = [sys.executable, "-m", "nodectl.cli"]
    table = folder / "served.toml"
    table.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="nodectl-demo-") as state:
        measure = [
            *nodectl, "calibrate", "run", "--out", str(table), "--kernel", "fma", "--time-budget", SERVED_BUDGET,
            "--state-dir", state,
        ]  # fmt: skip
        check = [*nodectl, "calibrate", "check", str(table)]
        script = 'n=$1; shift; "${@:1:n}" && "${@:n+1}"'
        command = [
            *nodectl, "twin", "run", "--machine", SERVED_MACHINE, "--",
            "bash", "-c", script, "bash", str(len(measure)), *measure, *check,
        ]  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=os.environ.copy()
        )
    lines = [line for line in (done.stdout if not done.returncode else done.stderr).splitlines() if line.strip()]
    return Served(lines=tuple(lines[-4:]), status=done.returncode)


def demo_of_calibration(out: Path, seconds: float, is_virtual: bool, say: Callable[[str], None]) -> int:
    """All of it; leaves the table, its picture and the figures in ``out``. Status 1 if the served run failed."""
    from calibration.table.table_figure import draw
    from calibration.table.table_report import show_lines

    say("EMULATED: every figure below comes from a model of the machine it names, not from that machine.\n")
    say(f"1. A node of {MACHINE} is calibrated, in virtual time ...")
    table = calibrated()
    write_table(out / "pstates.toml", table)
    draw(table, "all", out / "pstates.svg")
    for line in "\n".join(show_lines(table)).splitlines():
        say(f"   {line}")
    say(f"\n2. The same policies on the same node, {seconds:.0f} s of work: by their defaults, and by that table ...\n")
    found = list(before_and_after(table, seconds))
    for line in lines_of(found):
        say(f"   {line}")
    say("   Per cent of the whole node's energy and of time, against the highest clocks.")
    served = Served(why_not="requested") if is_virtual else served_run(out)
    say(f"\n3. `nodectl calibrate run`, one kernel in {SERVED_BUDGET}, in real time on a served {SERVED_MACHINE}:")
    for line in served.lines or (f"not served: {served.why_not}",):
        say(f"   {line}")
    content = {"emulated": True, "policies": table.policies, "lines": found, "served": served}
    (out / "calibration.json").write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1))
    say(f"\nEMULATED. In {out}/: pstates.toml, pstates.svg, calibration.json")
    return 1 if served.status else 0
