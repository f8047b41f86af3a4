"""Joules for three days in the middle of a busy week: energybud, reducepc and a plain cap against EASY.

After Glesser (PhD thesis, Grenoble 2016, ch. 5; Dutot et al., CCGrid 2017): weeks of logs on a machine whose every
processor draws what a Taurus node does, budgets of 100 to 30 % of what all would draw computing, each measure of
the whole week relative to EASY's, then the mean over weeks. Here a week's jobs begin on an empty machine, and weeks are
drawn, with a seed, from the third of the log in which EASY keeps most processors busy. MetaCentrum is a shorter and
smaller log than the thesis's (2 176 processors, 17 900 jobs). Switching idle nodes off is not measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from cluster_agent.machine import load_machine
from cluster_agent.replay.metrics import bounded_slowdown, joules_between
from cluster_agent.replay.swf import read_swf
from cluster_agent.replay.workload import machine_of, prepare
from cluster_agent.scheduler.budget import Budget, Rule
from cluster_agent.scheduler.governor import Watts
from cluster_agent.scheduler.jobs import Jobs
from cluster_agent.scheduler.native import NativeReplay
from cluster_agent.scheduler.phases import Composition
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.power import Power

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data"
OUT = ROOT / "out" / "bench" / "energy_budget.json"
LOGS: Final = {
    "CEA-Curie": DATA / "sc15-backfilling" / "CEA-Curie.swf.gz",
    "SDSC-BLUE": DATA / "sc15-backfilling" / "SDSC-BLUE.swf.gz",
    "MetaCentrum": DATA / "swf" / "MetaCentrum-wagap-2013.swf.gz",
}
PROCESSORS: Final = {"MetaCentrum": 2176}  # its header states none
LEVELS: Final = (100, 90, 80, 70, 60, 50, 49, 30)
RULES: Final[tuple[Rule, ...]] = ("powercap", "reducepc", "energybud")
DAY_S: Final = 86400
WEEK_S: Final = 7 * DAY_S
FROM_S, TO_S = 2 * DAY_S, 5 * DAY_S
COMPUTING_W, IDLE_W = 190.738, 95.0
MOST: Final = 10**9
MEASURES: Final = ("AVEbsld", "utilization", "started", "energy")


def busy_weeks(jobs: Jobs, processors: int, count: int, seed: int) -> list[int]:
    """When drawn weeks begin."""
    easy = NativeReplay(choose("easy").composition, jobs, processors)
    easy.run(MOST)
    first_s, last_s = int(jobs.submit_s[0]), int(jobs.submit_s[-1])
    begins = np.arange(first_s, last_s - WEEK_S, WEEK_S)
    ran_s = [
        np.clip(easy.start_s + jobs.run_s, at, at + WEEK_S) - np.clip(easy.start_s, at, at + WEEK_S) for at in begins
    ]
    busy = np.array([float((jobs.width * one).sum()) for one in ran_s])
    busiest = begins[np.argsort(-busy, kind="stable")[: max(len(begins) // 3, count)]]
    drawn = np.random.default_rng(seed).permutation(len(busiest))[:count]
    return [int(busiest[i]) for i in drawn]


def week_of(jobs: Jobs, from_s: int) -> Jobs:
    """The jobs submitted in a week, which begins at 0."""
    is_in = (jobs.submit_s >= from_s) & (jobs.submit_s < from_s + WEEK_S)
    found = Jobs(*(getattr(jobs, column)[is_in] for column in Jobs.__slots__))
    return replace(found, submit_s=found.submit_s - from_s)


def measured(jobs: Jobs, processors: int, budget: Budget | None) -> dict[str, float]:
    """One replay of a week."""
    composition = Composition(backfill="easy", power=Power(budget=budget, node_w=COMPUTING_W))
    watts = Watts.of(load_machine(f"taurus:nodes={processors},cores=1"), composition.power)
    replay = NativeReplay(composition, jobs, processors, watts)
    replay.run(MOST)
    start_s, end_s = replay.start_s, replay.end_s
    ran_s = np.clip(end_s, 0, WEEK_S) - np.clip(start_s, 0, WEEK_S)
    drawn_j = joules_between(replay, FROM_S, TO_S)
    return {
        "AVEbsld": float(bounded_slowdown(start_s - jobs.submit_s, jobs.run_s).mean()),
        "utilization": float((jobs.width * ran_s).sum()) / (processors * WEEK_S),
        "started": float((start_s < WEEK_S).sum()),
        "energy": joules_between(replay, 0, WEEK_S),
        "of_budget": drawn_j / budget.joules if budget else float("nan"),
    }


def runs(logs: Sequence[str], weeks: int, levels: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Each budget of each week, relative to EASY."""
    for log in logs:
        table = read_swf(str(LOGS[log]))
        processors = PROCESSORS.get(log) or machine_of(table)
        assert processors is not None
        jobs = prepare(table, processors, True, False).jobs
        for from_s in busy_weeks(jobs, processors, weeks, seed=1):
            week = week_of(jobs, from_s)
            easy = measured(week, processors, None)
            for level in levels:
                joules = level / 100 * COMPUTING_W * processors * (TO_S - FROM_S)
                for rule in RULES:
                    found = measured(week, processors, Budget(joules, FROM_S, TO_S, rule))
                    relative = {key: found[key] / easy[key] for key in MEASURES}
                    yield {
                        "log": log,
                        "week_from_s": from_s,
                        "jobs": len(week),
                        "level": level,
                        "rule": rule,
                        "of_budget": found["of_budget"],
                        **relative,
                        "easy": easy,
                    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="five weeks, eight levels; else one and four")
    parser.add_argument("--quick", action="store_true", help="one week of MetaCentrum, two levels")
    options = parser.parse_args(argv)
    missing = [str(path) for path in LOGS.values() if not path.exists()]
    if missing:
        print(f"skipped: {missing[0]} is not there")
        return 0
    if options.quick:
        found = list(runs(["MetaCentrum"], 1, (90, 60)))
    elif options.full:
        found = list(runs(list(LOGS), 5, LEVELS))
    else:
        found = list(runs(list(LOGS), 1, (90, 80, 60, 49)))
    print(
        "% of EASY's, mean over weeks; in brackets the window's joules as a share of the budget, highest of the weeks"
    )
    print(f"{'level':>5} {'rule':10} {'AVEbsld':>9} {'util.':>7} {'3/7b+4/7':>8} {'started':>8} {'energy':>7}")
    for level in sorted({row["level"] for row in found}, reverse=True):
        for rule in RULES:
            rows = [row for row in found if (row["level"], row["rule"]) == (level, rule)]
            mean = {key: 100 * float(np.mean([row[key] for row in rows])) for key in MEASURES}
            line = 100 * (3 / 7 * level / 100 + 4 / 7)
            most = max(row["of_budget"] for row in rows)
            note = "  at or below idle: cannot be kept" if level / 100 * COMPUTING_W <= IDLE_W else ""
            print(
                f"{level:>5} {rule:10} {mean['AVEbsld']:>9.1f} {mean['utilization']:>7.1f} {line:>8.1f}"
                f" {mean['started']:>8.1f} {mean['energy']:>7.1f}  ({most:.3f}){note}"
            )
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_bytes(msgspec.json.encode(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
