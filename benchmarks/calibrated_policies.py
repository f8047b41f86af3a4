"""The CPU policies on emulated nodes before and after each node was calibrated.

EMULATED, in virtual time. Each node differs from its machine file and its counters err, as in ``cpu_savings``; its
energy counters and its meter have a gain of their own, as in ``calibration_table``. Calibration runs its kernels, which
are none of the judged workloads, and the policies take the parameters that its table has; *before* they have their
defaults. Savings are the whole node's truth against the same run at the highest clocks; *share* is that of the oracle's
saving within 3 %.

The rules of ``calibration.table.policy_values`` were chosen on the nodes of ``CHOSEN``; those of ``NODES`` judge.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import multiprocessing
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import msgspec
import numpy as np

from benchmarks.calibration_table import METER_GAIN, RAPL_GAIN, ErringSensors
from benchmarks.cpu_savings import CPU_NODES, KEPT, WORTH, Line, Row, Task, judge
from benchmarks.experiment import save
from calibration.kernels.port import FMA, STREAM
from calibration.measure.node_session import open_session
from calibration.table.adaptive_sweep import Aim, Sweep
from calibration.table.balance_series import measure_balance
from calibration.table.finished_table import package_limits_w
from calibration.table.policy_values import policy_values
from lab.emulated.emulated_kernels import emulated_kernels
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.physics.variation import Variation

NODES: Final = (1, 2, 3)
CHOSEN: Final = (11, 12, 13)
REACTIVE, BOUNDED = "bdpo-cpu", "bdpo-cpu-bounded"
NAMED: Final = ("stream", "gromacs", "hpl")
OTHERS: Final = ("imb", "nas", "mixed-cpu:31", "mixed-cpu:32", "mixed-cpu:33")
BIAS: Final = 0.2
PRECISION: Final = 0.03

WANTED_OF_BOUNDED: Final = 0.6
WANTED_POINTS: Final = 5.0
WORSE_POINTS: Final = 2.0


class Pair(msgspec.Struct, frozen=True):
    """One workload on one node under one policy, with its defaults and with what the node's table says."""

    before: Row
    after: Row


@functools.lru_cache(maxsize=8)
def table_values(machine: str, node: int) -> dict[str, dict[str, float]]:
    """The parameters that a calibration of this node comes to."""
    drawn = np.random.default_rng(node).uniform(-1, 1, 2)
    gains = (1 + RAPL_GAIN * float(drawn[0]), 1 + METER_GAIN * float(drawn[1]))
    twin = Twin(load_machine(machine), seed=node, variation=Variation(node=node))
    with InProcess(twin) as shown, tempfile.TemporaryDirectory(prefix="nodectl-calibration-") as state_dir:
        ports = replace(shown.ports, files=ErringSensors(shown.ports, *gains, seed=1000 * node))
        with open_session(ports, emulated_kernels(twin, node, BIAS), state_dir) as session:
            limits_w = package_limits_w(shown.ports.files, session.packages)
            sweep = Sweep(session, (FMA, STREAM), Aim(PRECISION), limits_w=limits_w)
            sweep.run()
            measure_balance(sweep)
            return policy_values(sweep.all_measured(), session.has_meter)[0]


def judged(case: tuple[str, str, int]) -> list[Pair]:
    """Both policies, before and after; they share the oracle."""
    machine, workload, node = case
    values = table_values(machine, node)
    found = []
    for policy in (REACTIVE, BOUNDED):
        line = Line(policy, BIAS, own_rest=False)
        before, after = (
            judge(Task(machine, workload, node, line, json.dumps(params))) for params in ({}, values.get(policy, {}))
        )
        found.append(Pair(before, after))
    return found


def text(title: str, pairs: Sequence[Pair]) -> str:
    """Means over the nodes, per cent."""

    def mean(value: Callable[[Pair], float]) -> str:
        return f"{100 * statistics.fmean(value(pair) for pair in pairs):8.1f}"

    worth = [pair for pair in pairs if pair.before.oracle_saving >= WORTH]
    shares = (
        [100 * statistics.median(side(pair).share for pair in worth) for side in (_before, _after)] if worth else []
    )
    share = f"{shares[0]:8.0f}{shares[1]:8.0f}" if shares else f"{'-':>8}{'-':>8}"
    return (
        f"{title:44}{mean(lambda pair: pair.before.oracle_saving)}{mean(lambda pair: pair.before.saving)}"
        f"{mean(lambda pair: pair.after.saving)}{mean(lambda pair: pair.before.slowdown)}"
        f"{mean(lambda pair: pair.after.slowdown)}{share}"
    )


def _before(pair: Pair) -> Row:
    return pair.before


def _after(pair: Pair) -> Row:
    return pair.after


def verdicts(pairs: Sequence[Pair]) -> dict[str, float]:
    """The figures that are required, in per cent or points."""
    of = {
        (policy, name): [pair.after for pair in pairs if (pair.after.policy, pair.after.workload) == (policy, name)]
        for policy in (REACTIVE, BOUNDED)
        for name in NAMED
    }
    found = {}
    for name in NAMED[:2]:
        own, other = (statistics.fmean(row.saving for row in of[policy, name]) for policy in (REACTIVE, BOUNDED))
        found[f"{REACTIVE} on {name}, of {BOUNDED}'s saving"] = 100 * own / other
    found[f"{REACTIVE} on hpl, worst saving"] = 100 * min(row.saving for row in of[REACTIVE, "hpl"])
    found[f"{REACTIVE} on hpl, worst slowdown"] = 100 * max(row.slowdown for row in of[REACTIVE, "hpl"])
    bounded = [pair for pair in pairs if pair.before.policy == BOUNDED and pair.before.oracle_saving >= WORTH]
    medians = [statistics.median(side(pair).share for pair in bounded) for side in (_before, _after)]
    found[f"{BOUNDED}: points of median share gained"] = 100 * (medians[1] - medians[0])
    found[f"{BOUNDED}: median share with tables"] = 100 * medians[1]
    found[f"{BOUNDED}: worst share with tables"] = 100 * min(pair.after.share for pair in bounded)
    by_workload = {
        key: 100 * statistics.fmean(pair.after.share - pair.before.share for pair in own)
        for key, own in _grouped(bounded).items()
    }
    found[f"{BOUNDED}: the workload that changes worst, points of share"] = min(by_workload.values())
    kept = [pair.after.slowdown <= KEPT for pair in pairs if pair.after.policy == BOUNDED]
    found[f"{BOUNDED}: runs with a slowdown of 3.5 % at most"] = 100 * statistics.fmean(kept)
    return found


def _grouped(pairs: Sequence[Pair]) -> dict[tuple[str, str], list[Pair]]:
    found: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        found.setdefault((pair.before.machine, pair.before.workload), []).append(pair)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibrated_policies", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the three named workloads")
    parser.add_argument("--chosen", action="store_true", help="the nodes that rules were chosen on")
    parser.add_argument("--machine", help="only this machine")
    options = parser.parse_args(argv)
    machines = [options.machine] if options.machine else list(CPU_NODES)
    workloads = NAMED if options.quick else (*NAMED, *OTHERS)
    nodes = CHOSEN if options.chosen else NODES
    cases = list(itertools.product(machines, workloads, nodes))
    print("EMULATED, virtual time; per cent of the run at the highest clocks; before: defaults, after: by the table")
    print(f"{'':44}{'oracle':>8}{'saved':>8}{'after':>8}{'slower':>8}{'after':>8}{'share':>8}{'after':>8}", flush=True)
    pairs: list[Pair] = []
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for _, own in itertools.groupby(zip(cases, pool.imap(judged, cases), strict=True), lambda item: item[0][:2]):
            of_workload = [pair for _, found in own for pair in found]
            pairs += of_workload
            for policy in (REACTIVE, BOUNDED):
                rows = [pair for pair in of_workload if pair.before.policy == policy]
                print(text(f"{rows[0].before.machine} {rows[0].before.workload}, {policy}", rows), flush=True)
    for policy in (REACTIVE, BOUNDED):
        print(text(f"all, {policy}", [pair for pair in pairs if pair.before.policy == policy]))
    found = verdicts(pairs)
    for name, value in found.items():
        print(f"{name}: {value:.1f}")
    print(
        f"required: {REACTIVE} {WANTED_OF_BOUNDED:.0%} of {BOUNDED} on stream and gromacs, nothing lost on hpl;"
        f" {BOUNDED} {WANTED_POINTS:g} points of median share gained, no workload worse by more than {WORSE_POINTS:g}"
    )
    if not options.chosen:
        values = {f"{machine}:{node}": table_values(machine, node) for machine in machines for node in nodes}
        print("JSON:", save("calibrated_policies", {"verdicts": found, "values": values, "pairs": pairs}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
