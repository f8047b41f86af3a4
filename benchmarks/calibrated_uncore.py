"""Rows of a P-state table under limits of the uncore against the truth, and `uncore-bounded` before and after them.

EMULATED, in virtual time, on the machine that has an uncore (``spr-h100``), nodes ``NODES``, of which nothing was seen
while this was written (34 was). Sensors and counters err as in ``calibration_table``. Truth: watts of packages when
their temperature has settled and units per second, at every limit of the uncore, all cores at their highest clock.
*Near*: watts and speed within 2 %, RAPL's gain taken out.

Policies run on the first of these nodes, and on the same with a stall event and 100 W outside packages in place of 1300
W (ours: without GPUs and fans): *before* with defaults, *after* with what the table says.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from benchmarks.calibration_table import (
    COUNTER_BIAS,
    FASTER_HEAT,
    METER_GAIN,
    NEAR,
    RAPL_GAIN,
    ErringSensors,
    regulated,
    variation,
)
from benchmarks.experiment import Experiment, run, save
from calibration.kernels.port import KERNELS, Kernel
from calibration.measure.node_session import label, open_session
from calibration.table.adaptive_sweep import Aim, Sweep
from calibration.table.finished_table import package_limits_w
from calibration.table.policy_values import policy_values
from calibration.table.pstate_table import Point
from calibration.table.uncore_series import LEVEL, measure_uncore, uncore_points
from lab.emulated.emulated_kernels import emulated_kernels
from nodectl.config import PolicyChoice
from twin.in_process_node import InProcess
from twin.machine import MACHINES, Machine, load_machine
from twin.physics.model import Twin
from twin.physics.variation import NONE as ALIKE

MACHINE: Final = "spr-h100"
NODES: Final = (51, 52, 53)
WORKLOADS: Final = ("hpl", "gromacs", "nas", "imb", "stream", "mixed-cpu:31", "mixed-cpu:32", "mixed-cpu:33")
DURATION_S: Final = 60.0
SETTLE_S: Final = 8.0


class Row(msgspec.Struct, frozen=True):
    """One node. ``stays``, ``seconds``: what the uncore's rows took beyond the table's, which took ``table_s``."""

    node: int
    points: int
    near: int
    worst_watts: float
    worst_speed: float
    stays: int
    seconds: float
    table_s: float
    values: dict[str, float]


class Run(msgspec.Struct, frozen=True):
    """One workload: shares of the node's energy saved and of time lost, with defaults and with the table."""

    machine: str
    workload: str
    saving: tuple[float, float]
    slowdown: tuple[float, float]


def judge(name: str, node: int) -> Row:
    """Measure a node as `nodectl calibrate run` does, and compare its rows with the truth."""
    drawn = np.random.default_rng(node).uniform(-1, 1, 2)
    gains = (1 + RAPL_GAIN * float(drawn[0]), 1 + METER_GAIN * float(drawn[1]))
    machine = regulated(load_machine(name), gains[0])
    twin = Twin(machine, seed=node, variation=variation(node))
    with InProcess(twin) as shown, tempfile.TemporaryDirectory(prefix="nodectl-calibration-") as state_dir:
        files = ErringSensors(shown.ports, *gains, seed=1000 * node)
        port = emulated_kernels(twin, node, COUNTER_BIAS)
        with open_session(replace(shown.ports, files=files), port, state_dir) as session:
            sweep = Sweep(session, KERNELS, Aim(), limits_w=package_limits_w(files, session.packages))
            sweep.run()
            table_s = sweep.spent_s
            measure_uncore(sweep)
            points = uncore_points(sweep)
            values = policy_values(sweep.all_measured(), session.has_meter, points)[0]["uncore-bounded"]
            truth = truths(machine, node, session.uncore.clocks, session.cpus_of(LEVEL))
    errors = np.abs([_errors(point, truth, gains[0]) for point in points])
    return Row(
        node=node,
        points=len(points),
        near=int((errors <= NEAR).all(1).sum()),
        worst_watts=float(errors[:, 0].max()),
        worst_speed=float(errors[:, 1].max()),
        stays=sum(bool(dwell.setting.uncore_khz) for dwell in sweep.dwells),
        seconds=sweep.spent_s - table_s,
        table_s=table_s,
        values=values,
    )


def truths(
    machine: Machine, node: int, clocks: Sequence[int], cpus: Sequence[int], kernels: Sequence[Kernel] = KERNELS
) -> dict[tuple[str, int], tuple[float, float]]:
    """By kernel and limit: settled watts of the packages, and units per second. ``node``: 0: as the machine file."""
    heat = msgspec.structs.replace(
        machine.heat,
        die_j_per_k=machine.heat.die_j_per_k / FASTER_HEAT,
        sink_j_per_k=machine.heat.sink_j_per_k / FASTER_HEAT,
    )
    twin = Twin(msgspec.structs.replace(machine, heat=heat), seed=node, variation=variation(node) if node else ALIKE)
    port = emulated_kernels(twin, node, COUNTER_BIAS)
    found = {}
    for kernel in kernels:
        port.start(kernel, cpus)
        for khz in clocks:
            for package in set(machine.package_of):
                twin.set_uncore(package, 0, khz)
            twin.advance(SETTLE_S)
            joules, units = twin.report().energy_j, port.units_done()
            twin.advance(1.0)
            after = twin.report().energy_j
            watts = sum(after[name] - joules[name] for name in after if name.startswith("package"))
            found[label(kernel), khz] = watts, port.units_done() - units
        port.stop()
    return found


def _errors(point: Point, truth: dict[tuple[str, int], tuple[float, float]], gain: float) -> tuple[float, float]:
    """Relative, of watts and of speed."""
    watts, units = truth[point.kernel, point.khz]
    top = max(khz for kernel, khz in truth if kernel == point.kernel)
    return point.package_w / gain / watts - 1, point.speed / (units / truth[point.kernel, top][1]) - 1


def without_gpus(folder: Path) -> str:
    """The machine's file with a stall event, and 100 W of rest."""
    text = (MACHINES / f"{MACHINE}.toml").read_text()
    for old, new in (('"instructions", "llc', '"instructions", "stalls", "llc'), ("rest_w = 1300.0", "rest_w = 100.0")):
        if text.count(old) != 1:
            raise ValueError(f"{MACHINE}.toml: {old} is there {text.count(old)} times")
        text = text.replace(old, new)
    path = folder / "spr-stalls.toml"
    path.write_text(text)
    return str(path)


def compared(machine: str, workload: str, node: int, values: dict[str, float]) -> Run:
    """The same run without the policy, with its defaults, and with the table's values."""
    base = Experiment(machine, workload, node, COUNTER_BIAS, DURATION_S, variation=variation(node))
    found = []
    for params in ({"floor": 1.0}, {}, values):
        result = run(msgspec.structs.replace(base, others={"uncore": PolicyChoice("uncore-bounded", params)}))
        found.append((result.joules("node"), result.time_s, result))
    (joules, seconds, _), *others = found
    before, after = ((1 - own / joules, result.slowdown_against(seconds)) for own, _, result in others)
    return Run(Path(machine).stem, workload, (before[0], after[0]), (before[1], after[1]))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibrated_uncore", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one node, two workloads")
    options = parser.parse_args(argv)
    print(f"EMULATED: rows of {MACHINE} under limits of its uncore; 2 % of watts and speed, RAPL's gain taken out")
    rows = []
    for node in NODES[: 1 if options.quick else None]:
        row = judge(MACHINE, node)
        rows.append(row)
        print(
            f"node {row.node}: {row.near} of {row.points} points near, worst {row.worst_watts:.1%} of watts and"
            f" {row.worst_speed:.1%} of speed; {row.stays} stays, {row.seconds:.0f} s more than the table's"
            f" {row.table_s:.0f} s; " + ", ".join(f"{name} {value:g}" for name, value in row.values.items()),
            flush=True,
        )
    print(
        f"\nEMULATED: uncore-bounded on node {NODES[0]}, % of the node's energy and of time: defaults, with the table"
    )
    runs = []
    with tempfile.TemporaryDirectory(prefix="nodectl-machine-") as folder:
        other = without_gpus(Path(folder))
        cases = ((MACHINE, rows[0].values), (other, judge(other, NODES[0]).values))
        for machine, values in cases:
            for workload in WORKLOADS[:: 4 if options.quick else 1]:
                one = compared(machine, workload, NODES[0], values)
                runs.append(one)
                saved, slower = (
                    " ".join(f"{100 * value:6.2f}" for value in pair) for pair in (one.saving, one.slowdown)
                )
                print(f"{one.machine:12}{workload:14} saved {saved}   slower {slower}", flush=True)
    if not options.quick:
        save("calibrated_uncore", {"rows": rows, "runs": runs})
    return 0 if sum(row.near for row in rows) >= 0.95 * sum(row.points for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
