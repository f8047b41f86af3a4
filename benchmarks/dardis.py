"""DARDIS next to the rule and to central policies on CEA-Curie, and what it claims: scale, and no single point.

The log (Bridi, PhD thesis, Bologna 2018, §5): jobs of at most 9,600 cores of CEA-Curie on 300 nodes of 32, from day 388
on, arrivals four times as fast (his makespans are below the 22 days of his trace, which is not published: ours are
fewer jobs, and wider). A job's window is the mean wait of its width under EASY. The desired profile is the shape of a
day: jobs submitted by hour in days 366 to 387, the highest is the whole machine. It is not made of what is judged, but
it was chosen after the mean of the judged days and one line of the fcfs rule had been seen, so these days are no clean
hold-out for it. EASY and ``planned`` do not know the profile. Each unit requests candidates of four nodes; ``all`` of
all 300, as published.

The 22 days: ``--only table --days 22 --every 3 --compress 2``. All jobs of these days are three times the work that the
published machine can have done in the published makespan, so one of three is taken; they come within eleven days. A row
costs minutes to hours: ``--rows`` chooses.

Then 10^5 nodes on links of 1 ms median and 10 ms p99 of which 1 % of the messages are lost, and 10^6 events with
messages lost, late and doubled, nodes that crash, task managers that die, a cut network, clocks apart, a head that is
gone, and jobs that are cancelled. EMULATED.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from benchmarks.experiment import save
from cluster_agent.cap_steps import Cap
from cluster_agent.cluster import load_machine
from cluster_agent.dispatch.fitting_index import Desired, Need, Profile
from cluster_agent.dispatch.log_world import (
    DAY_S,
    SETUPS,
    Cut,
    DispatchWorld,
    Lateness,
    dispatched,
    lateness,
    placed_by,
    read_world,
    result_of,
)
from cluster_agent.dispatch.messages import Grant, Rules
from cluster_agent.dispatch.node_state import NodeState
from cluster_agent.dispatch.profile_rule import RULES, by_rule
from cluster_agent.dispatch.simulation import Crash, Faults, Job, Links, Simulation
from cluster_agent.dispatch.simulation import Cut as NetworkCut
from cluster_agent.dispatch.task_manager import Setup
from cluster_agent.workloads.job_log import prepare
from cluster_agent.workloads.swf import read_swf

LOG: Final = Path(__file__).parents[2] / "shared" / "data" / "sc15-backfilling" / "CEA-Curie.swf.gz"
SHAPE_DAYS: Final = (366, 388)
JUDGED_FROM: Final = 388
COMPRESS: Final = 4
POLICIES: Final = ("easy-capped", "planned:iterations=8")
ALL: Final = "throughput all"
ROWS: Final = (*(f"rule {rule}" for rule in RULES), *POLICIES, *SETUPS, ALL)
YEAR_S: Final = 365 * DAY_S
PUBLISHED: Final = {
    "throughput": "11.69 d  79.85 y  79.58 y  14722  781886  0.990",
    "balance": "178.05 d  661.75 y  611.38 y  12725  1227779  0.981",
    "profile": "200.44 d  759.96 y  759.46 y  13141  785639  0.974",
    "rule fcfs": "19.70 d  158.33 y  158.70 y  29102  257856  0.976",
    "rule df": "19.97 d  129.44 y  128.47 y  30098  368234  0.980",
    "rule wt": "19.93 d  116.50 y  115.34 y  27908  395657  0.998",
}
"""Of 35,538 jobs."""

LINKS: Final = Links(1_000, 10_000, 0.01)
FAULTY: Final = Links(1_000, 10_000, 0.02, 0.02)
LATE: Final = Rules(ahead_us=2_000_000)
DISPATCH_MS: Final = 50
MINUTE_US: Final = 60_000_000


class Row(msgspec.Struct, frozen=True):
    """``overhead_s``: processor time a job; of the rule, and of a pass."""

    name: str
    found: Lateness
    overhead_s: float
    attempts: int = 0


def shape() -> list[Cap]:
    """The desired profile of a hundred days, hour by hour."""
    machine = load_machine("curie-fat")
    jobs = prepare(read_swf(str(LOG)), machine.processors).jobs
    of = (jobs.submit_s >= SHAPE_DAYS[0] * DAY_S) & (jobs.submit_s < SHAPE_DAYS[1] * DAY_S)
    work = np.bincount(jobs.submit_s[of] // 3600 % 24, minlength=24)
    watts = work / work.max() * machine.nodes * machine.node.busy_w[0]
    return [Cap(hour * 3600, (hour + 1) * 3600, float(watts[hour % 24])) for hour in range(24 * 400)]


class Progress:
    """A line a minute on stderr, for rows that take hours."""

    def __init__(self, jobs: int) -> None:
        self._jobs, self._said_s = jobs, time.monotonic()

    def __call__(self, ended: int) -> None:
        if time.monotonic() - self._said_s > 60:
            self._said_s = time.monotonic()
            print(f"{ended} of {self._jobs} jobs have ended", file=sys.stderr)


def by_dardis(name: str, given: DispatchWorld, asks: int, label: str) -> Row:
    begun = time.process_time()
    schedule, outcome = dispatched(given, replace(SETUPS[name], asks=asks), 0, Progress(len(given.jobs)))
    spent_s = time.process_time() - begun
    assert not outcome.twice and not outcome.over_capacity and not outcome.lost
    result_of(given, schedule)  # the engine checks that every job had room
    return Row(label, lateness(given, schedule), spent_s / len(given.jobs), outcome.messages["Submit"])


def table(part: Cut, names: Sequence[str]) -> list[Row]:
    given = read_world(str(LOG), "curie-fat", part, lambda _: None, shape())
    desired = np.array([nodes for _, nodes in given.desired[:24]])
    print(
        f"{len(given.jobs)} jobs, one of {part.every} of {part.days} days, arrivals x {part.compress}; the profile"
        f" desires {desired.mean() / 3:.0f} % of the nodes on average, {desired.min() / 3:.0f} % at least"
    )
    print(f"{'':20} makespan     wait     tardy  late  over core-h  diss.  CPU ms a job  published (35,538 jobs)")
    rows: list[Row] = []

    def add(row: Row) -> None:
        rows.append(row)
        found = row.found
        published = PUBLISHED.get(row.name.removesuffix(" all"), "-")
        years = f"{found.wait_s / YEAR_S:6.2f} y {found.tardiness_s / YEAR_S:6.2f} y"
        more = f"{found.late:5} {found.over_core_h:12.0f} {found.dissimilarity:6.3f} {1000 * row.overhead_s:13.3f}"
        print(f"{row.name:20} {found.makespan_s / DAY_S:6.2f} d {years} {more}  {published}", flush=True)

    for name in names:
        rule = next((one for one in RULES if name == f"rule {one}"), None)
        if rule is not None:
            schedule, pass_s = by_rule(given, rule)
            result_of(given, schedule)
            add(Row(name, lateness(given, schedule), pass_s))
        elif name in POLICIES:
            begun = time.process_time()
            schedule = placed_by(given, name)
            add(Row(name, lateness(given, schedule), (time.process_time() - begun) / len(given.jobs)))
        else:
            add(by_dardis(name.removesuffix(" all"), given, 0 if name == ALL else 4, name))
    against(rows)
    return rows


def against(rows: Sequence[Row]) -> None:
    """The claims, against the rule that is best in each."""
    rules = [row.found for row in rows if row.name.startswith("rule")]
    for row in rows:
        if rules and row.name in SETUPS:
            gain = {
                name: 100 * (getattr(row.found, name) / min(getattr(rule, name) for rule in rules) - 1)
                for name in ("makespan_s", "wait_s", "late", "over_core_h")
                if min(getattr(rule, name) for rule in rules)
            }
            print(f"{row.name}: against the best rule", ", ".join(f"{name} {one:+.0f} %" for name, one in gain.items()))


def nodes_of(count: int, rules: Rules, cap_mw: int = 352_000, safe_mw: int = 176_000) -> list[NodeState]:
    profile, has = Profile([Desired(0, Need(32, cap_mw))]), Need(32, cap_mw)
    return [NodeState(node, has, profile, rules, safe_mw, Grant(cap_mw, 1 << 61)) for node in range(count)]


def generated(count: int, gap_us: int, seed: int, widest: int) -> list[Job]:
    random, at_us, jobs = Random(seed), 0, []
    widths = [width for width in (1, 1, 1, 1, 2, 2, 4, 8, 16, 32) if width <= widest]
    for _ in range(count):
        at_us += int(random.expovariate(1 / gap_us))
        length, cores = random.randrange(1, 60), random.choice((1, 4, 16, 32))
        run_us = int(length * MINUTE_US * random.uniform(0.2, 1.0))
        need = Need(cores, cores * 11_000)
        jobs.append(Job(at_us, run_us, random.choice(widths), need, length, random.choice((10, 60))))
    return jobs


def scale(nodes: int, count: int) -> dict[str, Any]:
    """Dispatch times on links that lose messages; nobody else is at fault."""
    jobs = generated(count, 10_000, 7, 32)
    begun = time.process_time()
    simulation = Simulation(nodes_of(nodes, LATE), jobs, Setup("first", "earliest", asks=4), LATE, LINKS, seed=7)
    outcome = simulation.run()
    spent_s = time.process_time() - begun
    dispatch_ms = np.array([one for one in outcome.dispatch_us if one >= 0]) / 1000
    found = {
        "nodes": nodes, "jobs": count, "dispatched": len(dispatch_ms), "p50_ms": float(np.percentile(dispatch_ms, 50)),
        "p99_ms": float(np.percentile(dispatch_ms, 99)), "submits_a_job": outcome.messages["Submit"] / count,
        "messages_a_job": outcome.messages.total() / count, "cpu_ms_a_job": 1000 * spent_s / count,
        "lost": len(outcome.lost), "twice": outcome.twice,
    }  # fmt: skip
    bound = DISPATCH_MS + LATE.offer_us / 1000
    print(f"{nodes} nodes, {count} jobs in {jobs[-1].submit_us / 1e6:.0f} s: dispatch p50 {found['p50_ms']:.1f} ms,")
    print(f"  p99 {found['p99_ms']:.1f} ms (wanted: {bound:.0f}), {found['submits_a_job']:.1f} nodes and")
    print(f"  {found['messages_a_job']:.0f} messages a job, CPU {found['cpu_ms_a_job']:.2f} ms a job", flush=True)
    return found


def faulty(events: int, nodes: int = 60, count: int = 500) -> dict[str, Any]:
    """Seeds one after the other, until there are so many events."""
    total, faults, seed = Counter[str](), Counter[str](), 0
    while total["events"] < events:
        seed += 1
        random, jobs = Random(seed), generated(count, MINUTE_US // 2, seed, 8)
        last_us = jobs[-1].submit_us
        crashes = []
        for _ in range(nodes):
            at_us = random.randrange(last_us)
            crashes.append(Crash(random.randrange(nodes), at_us, at_us + random.randrange(60, 4000) * 1_000_000))
        cut = NetworkCut(last_us // 4, last_us // 3, frozenset(random.sample(range(nodes), nodes // 4)))
        gone = last_us // 2, last_us * 3 // 4
        clocks = {random.randrange(nodes): 180_000_000, random.randrange(nodes): 5_000_000}
        wrong = Faults(tuple(crashes), (cut,), 0.05, 100_000, clocks, gone, 0.1)
        setup = replace(SETUPS[random.choice(list(SETUPS))], asks=4)
        simulation = Simulation(nodes_of(nodes, LATE), jobs, setup, LATE, FAULTY, wrong, seed, 60_000_000)
        outcome = simulation.run()
        total += Counter(
            events=outcome.events, jobs=count, accepted=len(outcome.accepted), lost=len(outcome.lost),
            twice=outcome.twice, over_capacity=outcome.over_capacity, over_budget_mw=outcome.over_budget_mw,
            cut=len(outcome.cut), tasks_left=len(simulation.tasks), cancelled=len(outcome.cancelled),
            after_cancel=outcome.after_cancel,
        )  # fmt: skip
        faults += outcome.faults
    print(f"{total['events']} events in {seed} worlds: {total['accepted']} of {total['jobs']} jobs accepted,")
    print(f"  lost {total['lost']}, run twice {total['twice']}, {total['cut']} ended with their node,")
    print(f"  cancelled {total['cancelled']}, of which {total['after_cancel']} ran after their users had the answer,")
    print(f"  starts above cores or watts in force {total['over_capacity']},", end=" ")
    print(f"{total['over_budget_mw'] / 1000:.0f} W above the budget, {total['tasks_left']} task managers left")
    print("  faults: " + ", ".join(f"{count} {what}" for what, count in faults.most_common()), flush=True)
    return {**total, "worlds": seed, "faults": dict(faults)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one day, 10^4 nodes, 10^5 events")
    parser.add_argument("--from-day", type=int, default=JUDGED_FROM, help="of the log; 370 was used to choose by")
    parser.add_argument("--days", type=int, default=2, help="of the log")
    parser.add_argument("--compress", type=int, default=COMPRESS, help="arrivals so many times as fast")
    parser.add_argument("--every", type=int, default=1, help="one of so many jobs")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS, help="of the table, in this order")
    parser.add_argument("--only", choices=("table", "scale", "faulty"))
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {}
    if options.only in (None, "table"):
        part = Cut(options.from_day, 1 if options.quick else options.days, options.compress, options.every)
        found["table"] = table(part, ROWS[:6] if options.quick else options.rows)
    if options.only in (None, "scale"):
        found["scale"] = scale(*((10_000, 300) if options.quick else (100_000, 3_000)))
    if options.only in (None, "faulty"):
        found["faulty"] = faulty(100_000 if options.quick else 1_000_000)
    save("dardis" if options.only is None else f"dardis-{options.only}", found)
    bad = found.get("faulty", {})
    return int(any(bad.get(name, 0) for name in ("lost", "twice", "after_cancel", "over_capacity", "over_budget_mw")))


if __name__ == "__main__":
    sys.exit(main())
