"""Is a cap at the share of TDP that a calibration gives to a tag as harmless as it says? Against measured slowdown.

EMULATED, in virtual time. A node is calibrated by its kernels; then shipped workloads and random mixes, which are none
of them, run on it: at the highest clock, at the lowest, which gives the tag, and under the packages' part of the tag's
cap (``calibration.table.tag_shares``). Kept: no more than ``MOST_LOSS`` slower.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import tempfile
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from benchmarks.experiment import save
from calibration.kernels.port import FMA, STREAM
from calibration.measure.node_session import open_session
from calibration.table.adaptive_sweep import Aim, Sweep
from calibration.table.balance_series import measure_balance
from calibration.table.finished_table import package_limits_w
from calibration.table.tag_shares import LEVEL, MOST_LOSS, TAGS, tag_of, tag_shares
from lab.emulated.emulated_kernels import emulated_kernels
from lab.node_demo.costs import run_at
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.physics.variation import Variation
from twin.programs.workload import load_workload

MACHINES: Final = ("curie", "skylake-6146")
NODE: Final = 1
BIAS: Final = 0.2
SHIPPED: Final = ("hpl", "stream", "imb", "gromacs", "nas")
MIXES, QUICK_MIXES, FIRST_MIX = 250, 25, 1001
"""On each machine."""

SECONDS: Final = 10.0
WINDOW_US: Final = 250_000
"""Of the limits while they are judged: the run must be long against it, and some machines average over 10 s."""


class Row(msgspec.Struct, frozen=True):
    """One workload. ``clock_share``: of its time, by the runs at the lowest and the highest clock."""

    machine: str
    workload: str
    clock_share: float
    tag: str
    cap_w: float
    slower: float


def caps_of(machine: str) -> tuple[dict[str, float], dict[str, float]]:
    """By tag: per cent of TDP, and what of that cap the packages have."""
    twin = Twin(load_machine(machine), seed=NODE, variation=Variation(node=NODE))
    with (
        InProcess(twin) as shown,
        tempfile.TemporaryDirectory(prefix="nodectl-calibration-") as state_dir,
        open_session(shown.ports, emulated_kernels(twin, NODE, BIAS), state_dir) as session,
    ):
        limits_w = package_limits_w(shown.ports.files, session.packages)
        sweep = Sweep(session, (FMA, STREAM), Aim(0.03), limits_w=limits_w)
        sweep.run()
        measure_balance(sweep)
        points = [one for one in sweep.all_measured() if one.level == LEVEL]
    shares = tag_shares(points, has_meter=True)
    rest_w = max(one.node_w - one.package_w for one in points)
    tdp_w = max(one.package_w for one in points) + rest_w
    return shares, {tag: share / 100 * tdp_w - rest_w for tag, share in shares.items()}


def judge(task: tuple[str, str, dict[str, float]]) -> Row:
    """One workload under the cap of its tag."""
    name, workload, caps_w = task
    machine, variation = load_machine(name), Variation(node=NODE)
    steps = machine.domains[0].steps_khz
    free, top_khz = run_at(name, workload, NODE, BIAS, SECONDS, 0, variation)
    slow, _ = run_at(name, workload, NODE, BIAS, SECONDS, steps[0], variation)
    share = (slow.time_s / free.time_s - 1.0) / (top_khz / steps[0] - 1.0)
    tag = tag_of(share)
    twin = Twin(machine, load_workload(workload, machine, seed=NODE, bias=BIAS, duration_s=SECONDS), seed=NODE,
                variation=variation)  # fmt: skip
    packages = [number for number, zone in enumerate(machine.zones) if zone.name.startswith("package")]
    for zone in packages:
        for number, constraint in enumerate(machine.zones[zone].constraints):
            if constraint.name == "long_term":
                twin.set_zone_limit(zone, number, round(caps_w[tag] / len(packages) * 1e6), WINDOW_US)
    while not twin.finished:
        twin.advance(0.5)
    return Row(name, workload, share, tag, caps_w[tag], twin.report().time_s / free.time_s - 1.0)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibrated_tags", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the mixes")
    options = parser.parse_args(argv)
    rows: list[Row] = []
    count = QUICK_MIXES if options.quick else MIXES
    workloads = (*SHIPPED, *(f"mixed-cpu:{number}" for number in range(FIRST_MIX, FIRST_MIX + count)))
    print("EMULATED, virtual time")
    for machine in MACHINES:
        shares, caps_w = caps_of(machine)
        said = ", ".join(f"{tag} {share:g}" for tag, share in shares.items())
        print(f"{machine}: per cent of TDP: {said}", flush=True)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            rows += pool.imap(judge, ((machine, name, caps_w) for name in workloads), chunksize=5)
        own = [row for row in rows if row.machine == machine]
        for tag, of_tag in itertools.groupby(sorted(own, key=lambda row: TAGS.index(row.tag)), lambda row: row.tag):
            print("  " + _line(tag, list(of_tag)), flush=True)
    print(_line("all", rows))
    for row in sorted(rows, key=lambda row: -row.slower)[:3]:
        print(f"  worst: {row.machine} {row.workload}, {row.tag}: {row.slower:.1%} slower")
    print("JSON:", save("calibrated_tags", {"rows": rows}))
    return 0


def _line(name: str, rows: Sequence[Row]) -> str:
    slower = np.array([row.slower for row in rows])
    return (
        f"{name:8} {len(rows):4} workloads: kept {np.mean(slower <= MOST_LOSS):6.1%}, slower by"
        f" {np.mean(slower):.1%} in the mean, {slower.max():.1%} at most (required: 95 % kept)"
    )


if __name__ == "__main__":
    raise SystemExit(main())
