"""What a plan at every event is worth on Eurora under a cap: ``planned`` against the rules that it begins with.

Per window and policy: mean wait, bounded slowdown (tau = 60 s), waits over what the queues promise (WQT) and tardiness
over it (WT; both of Bridi ch. 4, summed over jobs with a promise), passes that the planner decided, seconds per plan.
Objective, first orders, changes and iterations were chosen on instances 1 and 2 of ``CHOSEN_ON``; this judges instance
0 of these, larger windows and historical ones. The watts above the cap are summed from the schedule.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.eurora_capped import DATA
from cluster_agent.cluster import load_machine
from cluster_agent.replay.measures import measure, timed
from cluster_agent.replay.world_run import run as run_replay
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.power_cap import constant
from cluster_agent.scheduler.unlike_nodes.node_jobs import nodes_of
from cluster_agent.scheduler.world import World
from cluster_agent.workloads.eurora import instances, read_jobs

ROOT = Path(__file__).parent.parent
OUT = ROOT / "out" / "bench" / "planned_capped.json"

CAP_W: Final = 3000
RULES, OURS = "prb", "planned"
SERIAL: Final = "planned:decoder=serial"
POLICIES: Final = (RULES, "prb:rule=promise", "prb:rule=energy", "easy-capped", "planned:iterations=8", OURS, SERIAL)
"""``iterations=8``: the best of the rules' orders at each event, without local search."""

CHOSEN_ON: Final = ("rndm_100_3600", "rndm_100_7200", "rndm_200_3600", "rndm_200_7200")
EXAMPLE: Final = "rndm_200_3600_0"
LARGER: Final = ("rndm_200_14400_0", "rndm_400_7200_0")
HISTORICAL: Final = 6
"""How many of the 206, evenly over their sizes and days."""


class Row(msgspec.Struct, frozen=True):
    """One policy on one window."""

    window: str
    jobs: int
    policy: str
    wait_s: float
    bsld: float
    wqt: float
    wt: float
    by_planner: int
    by_list: int
    plan_mean_s: float
    plan_max_s: float
    above_cap_ws: float
    unstarted: int


def measured(table: str, window: str, policy: str) -> Row:
    nodes, cap = nodes_of(load_machine("eurora")), constant(CAP_W)
    trace = read_jobs(str(DATA / table), window).on(nodes, cap)
    result = run_replay(World(trace, nodes=nodes, caps=cap), choose(policy).on_nodes)
    found, times_s = measure(result), timed(result)
    plans = found.get("plans", {"planner": 0, "list": 0})
    return Row(
        window,
        len(trace.jobs),
        policy,
        found["wait_s"]["mean"],
        found["AVEbsld"],
        found["waits_by_promise"]["WQT"],
        found["waits_by_promise"]["WT"],
        plans["planner"],
        plans["list"],
        times_s.get("plan_mean_s", 0.0),
        times_s.get("plan_max_s", 0.0),
        found["over_cap_ws"],
        result.unstarted,
    )


def windows(is_quick: bool) -> list[tuple[str, str]]:
    """(table, window) of those that judge."""
    if is_quick:
        return [("synthetic.parquet", EXAMPLE)]
    names = instances(str(DATA / "jobs.csv.gz"))
    chosen = [names[(2 * at + 1) * len(names) // (2 * HISTORICAL)] for at in range(HISTORICAL)]
    synthetic = [*(f"{kind}_0" for kind in CHOSEN_ON), *LARGER]
    return [*(("synthetic.parquet", name) for name in synthetic), *(("jobs.csv.gz", name) for name in chosen)]


def shown(row: Row) -> str:
    return (
        f"{row.window:26} {row.jobs:5} {row.policy:22} {row.wait_s:8.0f} {row.bsld:8.2f} {row.wqt:8.1f} {row.wt:8.2f}"
        f" {row.by_planner:8} {row.by_list:5} {row.plan_mean_s * 1e3:9.1f} {row.plan_max_s * 1e3:8.1f}"
        f" {row.above_cap_ws:9.0f}"
    )


def ratio(rows: Sequence[Row], policy: str, to: str, field: str) -> float:
    """The geometric mean over the windows of the policy's figure over the other's; windows where one is 0 are left
    out, and NaN if these are all."""
    of = {(row.window, row.policy): float(getattr(row, field)) for row in rows}
    pairs = [(of[window, policy], of[window, to]) for window in {row.window for row in rows}]
    logs = [math.log(own / other) for own, other in pairs if own > 0 and other > 0]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def compared(rows: Sequence[Row], policy: str, to: str) -> str:
    """In one line, better or not."""
    names = {"wait_s": "wait", "bsld": "slowdown", "wqt": "WQT", "wt": "WT"}
    shares = {name: 100 * (ratio(rows, policy, to, field) - 1) for field, name in names.items()}
    return f"{policy} against {to}: " + ", ".join(f"{name} {share:+.1f} %" for name, share in shares.items())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{EXAMPLE} alone")
    parser.add_argument("--windows", nargs="*", default=[], help="of those that judge, these alone")
    options = parser.parse_args(arguments)
    if not DATA.exists():
        print("planned_capped: the tables of ../shared/data/eurora are not here", file=sys.stderr)
        return 1
    print(f"cap {CAP_W} W; chosen on instances 1 and 2 of {', '.join(CHOSEN_ON)}; judged on these windows:")
    print(
        f"{'window':26} {'jobs':>5} {'policy':22} {'wait s':>8} {'bsld':>8} {'WQT':>8} {'WT':>8} {'planner':>8}"
        f" {'list':>5} {'ms a plan':>9} {'longest':>8} {'above W s':>9}"
    )
    rows = []
    judged = [one for one in windows(options.quick) if not options.windows or one[1] in options.windows]
    for table, window in judged:
        for policy in POLICIES:
            rows.append(measured(table, window, policy))
            print(shown(rows[-1]), flush=True)
    for other in POLICIES:
        if other not in (OURS, SERIAL):
            print(compared(rows, OURS, other))
    print(compared(rows, SERIAL, OURS))
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=1))
    wrong = sum(bool(row.above_cap_ws or row.unstarted) for row in rows)
    print(f"{len(rows) - wrong} of {len(rows)} rows keep the cap and run every job; {OUT.relative_to(ROOT)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
