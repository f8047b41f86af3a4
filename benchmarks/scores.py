"""Orders by a formula (``score``, ``wfp3``): mean bounded slowdown and longest wait, the guard on and off, and
what the whole command costs against EASY.

Cost is processor seconds of the command on CEA-Curie, the median of pairs that alternate with EASY. The bound is 2
times EASY's for formulas that time does not change, and 4 times for those that it does.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.replay_exact import DATA, ROOT
from benchmarks.sc15_learned import workload_of
from benchmarks.scheduler_speed import command
from cluster_agent.replay.measures import bounded_slowdown
from cluster_agent.replay.world_run import run as run_replay
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policies.score import RULES
from cluster_agent.scheduler.world import World
from cluster_agent.workloads.job_log import Workload

OUT = ROOT / "out" / "bench" / "scores.json"
LOGS = ("KTH-SP2", "CTC-SP2", "SDSC-BLUE", "CEA-Curie")
POLICIES = ("easy", *(f"score:lowest={rule}" for rule in RULES), "wfp3")
GUARD = 20
"""Bounded slowdown from which on a job becomes the head."""
TIMED = ("score:lowest=saf", "score:lowest=f1", "score:lowest=unicep", "wfp3")
PAIRS = 9
MOST_STATIC, MOST_TIMED = 2.0, 4.0


class Row(msgspec.Struct, frozen=True):
    """One replay of a log with estimates as requested; ``guard`` 0: off."""

    log: str
    policy: str
    guard: int
    ave_bsld: float
    mean_wait_s: float
    max_wait_s: int


class Cost(msgspec.Struct, frozen=True):
    """Median ratio of processor seconds to EASY's, of pairs, and its bound."""

    policy: str
    easy_s: float
    ratio: float
    most: float


def measured(workload: Workload, log: str, policy: str, guard: int) -> Row:
    text = policy + (f"{',' if ':' in policy else ':'}guard={guard}" if guard else "")
    wait_s = run_replay(World(workload), choose(text).composition).schedule.start_s - workload.jobs.submit_s
    bsld = bounded_slowdown(wait_s, workload.jobs.run_s)
    return Row(log, policy, guard, float(bsld.mean()), float(wait_s.mean()), int(wait_s.max()))


def cost(path: Path, policy: str, pairs: int) -> Cost:
    both = [(command(path, "easy", 1)[0], command(path, policy, 1)[0]) for _ in range(pairs)]
    follows_time = bool((made := choose(policy).composition.score) and made.follows_time)
    easy_s = float(np.median([easy for easy, _ in both]))
    return Cost(
        policy, easy_s, statistics.median(own / easy for easy, own in both), MOST_TIMED if follows_time else MOST_STATIC
    )


def show(rows: Sequence[Row]) -> None:
    for log in dict.fromkeys(row.log for row in rows):
        print(f"\n{log}: mean bounded slowdown / mean wait in s / longest wait in h, without and with guard={GUARD}")
        for policy in dict.fromkeys(row.policy for row in rows):
            own = [row for row in rows if (row.log, row.policy) == (log, policy)]
            figures = (f"{row.ave_bsld:9.1f} {row.mean_wait_s:9.0f} {row.max_wait_s / 3600:7.0f}" for row in own)
            print(f"  {policy:20} {'   '.join(figures)}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small log, one pair")
    options = parser.parse_args(arguments)
    if not DATA.exists():
        print("scores: no logs, ../shared/data/sc15-backfilling is not here", file=sys.stderr)
        return 2
    logs = LOGS[:1] if options.quick else LOGS
    rows = []
    for log in logs:
        workload = workload_of(log)
        rows += [measured(workload, log, policy, guard) for policy in POLICIES for guard in (0, GUARD)]
    show(rows)
    print("now processor times, some minutes", flush=True)
    costs = [cost(DATA / f"{logs[-1]}.swf.gz", policy, 1 if options.quick else PAIRS) for policy in TIMED]
    print(f"\nprocessor seconds of the whole command on {logs[-1]}")
    for one in costs:
        mark = "" if one.ratio <= one.most else "   NOT MET"
        print(f"  {one.policy:20} {one.ratio:5.2f} times EASY's {one.easy_s:.2f} s, bound {one.most:g}{mark}")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_bytes(msgspec.json.encode(rows))
    return int(any(one.ratio > one.most for one in costs))


if __name__ == "__main__":
    sys.exit(main())
