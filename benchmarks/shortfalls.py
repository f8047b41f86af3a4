"""Why three rows fall short of their papers: one experiment for each.

rmap      the gain of ``adaptive`` on random traces, with arrivals from dense to rare, and with applications that gain
          less from more nodes (the shares of the time that are bound by memory or communication times a factor)
efs       energy fair-share, SDSC-SP2, per user: with a green user of 0.999, where nothing should happen, to 0.1
powercap  running jobs that are slowed when a cap begins (``eco`` with every job a volunteer) next to ``mix`` and
          ``shut``: work in the hour of the cap, and jobs killed, with 60 and 40 % of the watts

Traces, logs and intervals are those of ``benchmarks.rmap``, ``energy_fair_share`` and ``powercap_curie``; seeds 0 to 2
and three of five bounds of the first. EMULATED.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias
from unittest.mock import patch

import numpy as np
from msgspec.structs import replace

from benchmarks import rmap
from benchmarks.energy_fair_share import USERS, busiest, composition, stretch
from benchmarks.experiment import save
from benchmarks.powercap_curie import TRACE, Interval, intervals
from benchmarks.sc15_learned import workload_of
from cluster_agent.cap_steps import Cap
from cluster_agent.cluster import Machine, load_machine
from cluster_agent.scheduler.configurations import cab_table
from cluster_agent.scheduler.configurations.table import Configuration
from cluster_agent.scheduler.job_columns import Int64s
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.world import World
from cluster_agent.workloads.job_log import prepare
from cluster_agent.workloads.swf import read_swf

Table: TypeAlias = dict[str, tuple[Configuration, ...]]

GAPS_S: Final = (30.0, rmap.MEAN_GAP_S, 600.0, 3000.0)
BOUND_BY: Final = (1.0, 2.0, 4.0)
BOUNDS_W: Final = (6500.0, 10000.0, 14000.0)
EFFICIENCIES: Final = (0.999, 0.99, 0.9, 0.7, 0.5, 0.1)
SHARES: Final = (0.6, 0.4)
SLOWED: Final = "eco:share=1,floor=0.01,queue=easy"
POWERCAP: Final = ("powercap:mode=mix", "powercap:mode=shut", SLOWED)


def of_rmap() -> list[dict[str, float]]:
    found = []
    table = cab_table.cab_table()
    for gap_s in GAPS_S:
        found.append({"gap_s": gap_s, "bound_by": 1.0} | gains(table, gap_s))
    for factor in BOUND_BY[1:]:
        found.append({"gap_s": rmap.MEAN_GAP_S, "bound_by": factor} | gains(bound_by(factor), rmap.MEAN_GAP_S))
    return found


def bound_by(factor: float) -> Table:
    """The generated table with applications that are bound by memory and communication so many times as much."""
    changed = tuple(
        replace(one, memory=min(one.memory * factor, 0.9), communication=one.communication * factor)
        for one in cab_table.APPLICATIONS
    )
    with patch.object(cab_table, "APPLICATIONS", changed):
        return cab_table.cab_table()


def gains(table: Table, gap_s: float) -> dict[str, float]:
    """Per cent of the mean turnaround that ``adaptive`` saves, mean over seeds and bounds."""
    of: dict[str, list[float]] = {"traditional": [], "naive": []}
    for seed in range(3):
        world = rmap.trace("random", seed, table)
        submit_s = (world.jobs.submit_s * (gap_s / rmap.MEAN_GAP_S)).astype(np.int64)
        workload = replace(world.workload, jobs=replace(world.jobs, submit_s=submit_s))
        world = World(workload, ways=world.ways)
        for bound_w in BOUNDS_W:
            adaptive_s = rmap.turnaround_s(rmap.replayed(rmap.POLICIES["adaptive"], world, bound_w))
            for name, values in of.items():
                other_s = rmap.turnaround_s(rmap.replayed(rmap.POLICIES[name], world, bound_w))
                values.append(100 * (1 - adaptive_s / other_s))
    found = {name: statistics.mean(values) for name, values in of.items()}
    print("  ".join(f"{name} {value:+6.1f} %" for name, value in found.items()), flush=True)
    return found


def of_efs() -> list[dict[str, float]]:
    """Over the users: ratio of mean stretches, with the standard error of its mean."""
    workload, found = workload_of("SDSC-SP2"), []
    users, number = busiest(workload, USERS), np.asarray(workload.users)[workload.jobs.user]
    base = stretch(workload, composition("EFS"))
    for efficiency in EFFICIENCIES:
        ratios = np.array(
            [
                stretch(workload, composition("EFS", user, efficiency))[number == user].mean()
                / base[number == user].mean()
                for user in users
            ]
        )
        row = {
            "efficiency": efficiency,
            "mean": float(ratios.mean()),
            "median": float(np.median(ratios)),
            "standard_error": float(ratios.std(ddof=1) / len(ratios) ** 0.5),
            "without_the_highest": float(np.sort(ratios)[:-1].mean()),
            "highest": float(ratios.max()),
            "below_1": float((ratios < 1).sum()),
        }
        print("  ".join(f"{name} {value:g}" for name, value in row.items()), flush=True)
        found.append(row)
    return found


def of_powercap() -> list[dict[str, object]]:
    machine, found = load_machine("curie"), []
    workload = prepare(read_swf(str(TRACE)), machine.processors)
    for interval in intervals(workload):
        if interval.hours > 5:
            continue
        base = in_window(interval, "powercap:mode=idle", machine, None)[0]
        for share in SHARES:
            for policy in POWERCAP:
                work, kills, over_w = in_window(interval, policy, machine, share)
                found.append(
                    {"interval": interval.name, "share": share, "policy": policy, "work": work / base, "kills": kills}
                )
                print(
                    f"{interval.name:18}{share:5.1f} {policy:36}{work / base:7.3f} of the work, {kills} killed,"
                    f" {over_w:.0f} W above the cap"
                )
    return found


class InWindow(NamedTuple):
    """Processor-seconds at the highest frequency done in the window, less those that kills lose; how many kills; and by
    how much the machine drew more than the cap at most."""

    work: float
    kills: int
    over_w: float


def in_window(
    interval: Interval, policy: str, machine: Machine, share: float | None, busy_uw: Int64s | None = None
) -> InWindow:
    """``busy_uw``: what a processor of each job draws; None: what the machine says."""
    from_s, to_s = interval.window_s
    caps = [] if share is None else [Cap(from_s, to_s, share * (machine.full_w - machine.fixed_w) + machine.fixed_w)]
    chosen = choose(policy).composition
    watts = replace(Watts.of(machine, chosen.power), job_busy_uw=busy_uw)
    replay = NativeReplay(chosen, interval.jobs, machine.processors, watts, caps)
    done = []
    for at_s in (from_s, to_s):
        replay.pause_at(at_s)
        replay.run(len(interval.jobs) + 1)
        moment = replay.moment(at_s)
        done_s = np.where((replay.end_s >= 0) & (replay.end_s <= at_s), interval.jobs.run_s, 0).astype(np.float64)
        for job, seconds in moment.done_s.items():
            done_s[job] = min(seconds, interval.jobs.run_s[job])
        done.append(float(done_s @ interval.jobs.width))
    time_s, drawn_w, cap_w = replay.power
    over_w = np.maximum(drawn_w - cap_w, 0.0)[np.diff(time_s, append=to_s) > 0]
    return InWindow(done[1] - done[0], int(replay.kills.sum()), float(over_w.max(initial=0.0)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    known = {"rmap": of_rmap, "efs": of_efs, "powercap": of_powercap}
    parser.add_argument("--only", nargs="*", choices=known, default=list(known))
    parser.add_argument("--quick", action="store_true", help="the caps alone")
    options = parser.parse_args(arguments)
    save("shortfalls", {name: known[name]() for name in (["powercap"] if options.quick else options.only)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
