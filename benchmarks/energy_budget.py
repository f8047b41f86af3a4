"""Joules for three days in the middle of a busy week: energybud, reducepc and a plain cap against EASY.

After Glesser (PhD thesis, Grenoble 2016, ch. 5; Dutot et al., CCGrid 2017): weeks of logs on a machine whose every
processor draws what a Taurus node does, budgets of 100 to 30 % of what all would draw computing, without and with idle
nodes going off after 300 s, each measure of the whole week relative to EASY's without that, then the mean over weeks.
Here weeks are drawn, with a seed, from the third of the log in which EASY keeps most processors busy. MetaCentrum is a
shorter and smaller log than the thesis's (2 176 processors, 17 900 jobs).

A week's jobs begin on an empty machine (``cold``). Two other set-ups tell what that, and what jobs that run when the
window begins, are worth: ``warm`` replays the week before, too, whose jobs are not measured, and ``first`` lets the
window begin with the week, on the empty machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from cluster_agent.cluster import load_machine
from cluster_agent.replay.measures import bounded_slowdown, joules_between
from cluster_agent.scheduler.energy_window import Budget, Rule
from cluster_agent.scheduler.job_columns import KNOWN_EVERYWHERE, Jobs
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_phases import Power
from cluster_agent.workloads.job_log import machine_of, prepare
from cluster_agent.workloads.swf import read_swf

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data"
OUT = ROOT / "out" / "bench"
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
WINDOW_S: Final = 3 * DAY_S
SETUPS: Final = {"cold": (0, 2 * DAY_S), "warm": (WEEK_S, WEEK_S + 2 * DAY_S), "first": (0, 0)}
"""When the measured week begins and the window begins, in seconds of the replay."""
IDLE_OFF_S: Final = 300
COMPUTING_W, IDLE_W = 190.738, 95.0
MOST: Final = 10**9
MEASURES: Final = ("AVEbsld", "utilization", "started", "energy")
PUBLISHED: Final = {
    "powercap": (0.27, -0.37, -0.13, -4.62),
    "reducepc": (1.91, 1.22, 1.67, -1.79),
    "energybud": (-9.83, 2.05, 1.66, -1.32),
}
"""Change by switch-off in %, of the measures in order."""


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


def jobs_of(jobs: Jobs, from_s: int, to_s: int) -> Jobs:
    """The jobs submitted in [from_s, to_s), which begins at 0."""
    is_in = (jobs.submit_s >= from_s) & (jobs.submit_s < to_s)
    found = Jobs(*(getattr(jobs, column)[is_in] for column in KNOWN_EVERYWHERE))
    return replace(found, submit_s=found.submit_s - from_s)


def measured(
    jobs: Jobs, processors: int, budget: Budget | None, idle_off_s: int | None = None, week_s: int = 0
) -> dict[str, float]:
    """One replay, and its measures over the week that begins at ``week_s``."""
    power = Power(budget=budget, node_w=COMPUTING_W)
    composition = Composition(backfill="easy", power=power, idle_off_s=idle_off_s)
    watts = Watts.of(load_machine(f"taurus:nodes={processors},cores=1"), power)
    replay = NativeReplay(composition, jobs, processors, watts)
    replay.run(MOST)
    start_s, end_s, end_of_week_s = replay.start_s, replay.end_s, week_s + WEEK_S
    ran_s = np.clip(end_s, week_s, end_of_week_s) - np.clip(start_s, week_s, end_of_week_s)
    is_measured = jobs.submit_s >= week_s
    bsld = bounded_slowdown(start_s - jobs.submit_s, jobs.run_s)[is_measured]
    return {
        "AVEbsld": float(bsld.mean()),
        "utilization": float((jobs.width * ran_s).sum()) / (processors * WEEK_S),
        "started": float((is_measured & (start_s < end_of_week_s)).sum()),
        "energy": joules_between(replay, week_s, end_of_week_s),
        "of_budget": joules_between(replay, budget.from_s, budget.to_s) / budget.joules if budget else float("nan"),
        "boots": float(replay.boots),
    }


def runs(
    logs: Sequence[str],
    weeks: int,
    levels: Sequence[int],
    setup: str = "cold",
    switching: Sequence[int | None] = (None, IDLE_OFF_S),
) -> Iterator[dict[str, Any]]:
    """Each budget of each week, relative to EASY."""
    week_s, window_s = SETUPS[setup]
    for log in logs:
        table = read_swf(str(LOGS[log]))
        processors = PROCESSORS.get(log) or machine_of(table)
        assert processors is not None
        jobs = prepare(table, processors, True, False).jobs
        for from_s in busy_weeks(jobs, processors, weeks, seed=1):
            week = jobs_of(jobs, from_s - week_s, from_s + WEEK_S)
            easy = measured(week, processors, None, None, week_s)
            for level in levels:
                joules = level / 100 * COMPUTING_W * processors * WINDOW_S
                for rule, idle_off_s in product(RULES, switching):
                    budget = Budget(joules, window_s, window_s + WINDOW_S, rule)
                    found = measured(week, processors, budget, idle_off_s, week_s)
                    relative = {key: found[key] / easy[key] for key in MEASURES}
                    yield {
                        "log": log,
                        "setup": setup,
                        "week_from_s": from_s,
                        "jobs": len(week),
                        "level": level,
                        "rule": rule,
                        "idle_off_s": idle_off_s,
                        "of_budget": found["of_budget"],
                        "boots": found["boots"],
                        **relative,
                        "easy": easy,
                    }


def printed(found: Sequence[dict[str, Any]]) -> None:
    """The table of one set-up, and what switch-off changes."""
    means = {}
    for level in sorted({row["level"] for row in found}, reverse=True):
        for rule, idle_off_s in product(RULES, sorted({row["idle_off_s"] or 0 for row in found})):
            key = level, rule, idle_off_s
            rows = [row for row in found if (row["level"], row["rule"], row["idle_off_s"] or 0) == key]
            mean = means[key] = {key: 100 * float(np.mean([row[key] for row in rows])) for key in MEASURES}
            line = 100 * (3 / 7 * level / 100 + 4 / 7)
            of_budget = max(row["of_budget"] for row in rows)
            note = "  idle draws all" if level / 100 * COMPUTING_W <= IDLE_W else ""
            print(
                f"{level:>5} {rule:10} {'on' if idle_off_s else 'off':3} {mean['AVEbsld']:>9.1f}"
                f" {mean['utilization']:>7.1f} {line:>8.1f} {mean['started']:>8.1f} {mean['energy']:>7.1f}"
                f"  ({of_budget:.3f}){note}"
            )
    if not any(idle_off_s for _, _, idle_off_s in means):
        return
    print("what switch-off changes, %, mean over all runs (published: see PUBLISHED)")
    for rule in RULES:
        pairs = [(means[key], means[key[0], key[1], 0]) for key in means if key[1] == rule and key[2]]
        change = {key: 100 * float(np.mean([on[key] / off[key] - 1 for on, off in pairs])) for key in MEASURES}
        print(
            f"{rule:10} "
            + "  ".join(f"{key} {change[key]:+.2f} ({PUBLISHED[rule][i]:+.2f})" for i, key in enumerate(MEASURES))
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="five weeks, eight levels; else one and four")
    parser.add_argument("--quick", action="store_true", help="one week of MetaCentrum, two levels")
    parser.add_argument("--setup", choices=list(SETUPS), default="cold", help="what runs when the window begins")
    parser.add_argument("--log", choices=list(LOGS), action="append", help="only this log; may be repeated")
    options = parser.parse_args(argv)
    missing = [str(path) for path in LOGS.values() if not path.exists()]
    if missing:
        print(f"skipped: {missing[0]} is not there")
        return 0
    logs = options.log or list(LOGS)
    if options.quick:
        found = list(runs(["MetaCentrum"], 1, (90, 60), options.setup))
    elif options.full:
        found = list(runs(logs, 5, LEVELS, options.setup))
    else:
        found = list(runs(logs, 1, (90, 80, 60, 49), options.setup))
    print(
        "% of EASY's, mean over weeks; in brackets the window's joules as a share of the budget, highest of the weeks"
    )
    print(f"{'level':>5} {'rule':10} {'':3} {'AVEbsld':>9} {'util.':>7} {'3/7b+4/7':>8} {'started':>8} {'energy':>7}")
    printed(found)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"energy_budget-{options.setup}.json").write_bytes(msgspec.json.encode(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
