"""How long it takes to share a budget anew: from the ledger and the running jobs to the caps to be reached.

One call of ``plan`` with each sharer: which nodes are within reach, the view of nodes and jobs, the sharer in as many
rounds as the reserve for reboots needs, and the ledger told. Nodes of three kinds, jobs of three tags, all nodes busy,
75 % of TDP, half of the nodes measured; generated, from a seed. Bounds hold for processor seconds, medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

from benchmarks.experiment import save
from benchmarks.ledger_world import FaultyStore
from cluster_agent.budget.ledger import Ledger, Terms
from cluster_agent.budget.line import BudgetLine
from cluster_agent.budget.plan import plan
from cluster_agent.budget.sharers import registry
from cluster_agent.budget.sharers.sharing import Sharing
from cluster_agent.budget.sharers.speed import model_of
from cluster_agent.budget.sharers.view import Job, Tag
from cluster_agent.machine import load_machine
from nodectl.wire import Declaration, Report

SIZES = ((10_000, 2_000, 0.05), (100_000, 20_000, 0.6))
"""Nodes, jobs, most seconds."""
KINDS = (
    Declaration(358_000, 193_000, 193_000, 250_000, "hw"),
    Declaration(500_000, 200_000, 250_000, 350_000, "os", watchdog_ms=10_000),
    Declaration(700_000, 300_000, 300_000, 400_000, "hw"),
)
REPEATS = 9
FAILING_TOGETHER = 18


def partition(n: int, m: int) -> tuple[Ledger, list[Job], dict[str, int]]:
    """A ledger that has heard every node, jobs in the order of their starts, and what half of the nodes need."""
    dice = np.random.default_rng(1)
    kind = dice.integers(0, len(KINDS), n)
    tdp_mw = sum(KINDS[at].tdp_mw for at in kind)
    ledger = Ledger(FaultyStore(), Terms(0, FAILING_TOGETHER), BudgetLine(tdp_mw * 3 // 4), 0.0)
    names = [f"n{at:06d}" for at in range(n)]
    for name, at in zip(names, kind, strict=True):
        declared = KINDS[at]
        ledger.hear(0.0, Report(name, "b", 1, 0, 0, 0, declared.mop_mw, "seen", -1, declared))
    curie = load_machine("curie")
    models = {Tag.COMPUTE: "linpack", Tag.MIXED: "nas", Tag.MEMORY: "stream"}
    of_tag = {tag: model_of(curie, application) for tag, application in models.items()}
    ends = np.sort(dice.choice(np.arange(1, n), m - 1, replace=False))
    jobs = []
    for at, members in enumerate(np.split(dice.permutation(n), ends)):
        tag = Tag(int(dice.integers(0, 3)))
        jobs.append(Job(f"j{at}", [names[node] for node in members], tag, "user", of_tag[tag]))
    measured = dice.random(n) < 0.5
    part = dice.uniform(0.6, 1.0, n)
    need_mw = {name: int(part[at] * KINDS[kind[at]].tdp_mw) for at, name in enumerate(names) if measured[at]}
    return ledger, jobs, need_mw


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three repeats")
    repeats = 3 if parser.parse_args(arguments).quick else REPEATS
    rows: list[dict[str, Any]] = []
    print(f"{'sharer':18} {'nodes':>7} {'jobs':>6} {'rounds':>6} {'CPU s':>8} {'wall s':>8} {'bound':>6}")
    for n, m, most_s in SIZES:
        ledger, jobs, need_mw = partition(n, m)
        for name in registry.names():
            share = registry.choose(name).share
            cpu_s, wall_s, rounds = [], [], 0
            for _ in range(repeats):
                sharing = Sharing(share, ledger, jobs, need_mw)
                asked: list[int] = []

                def counted(names: list[str], mw: int, sharing: Sharing = sharing, asked: list[int] = asked) -> Any:
                    asked.append(mw)
                    return sharing(names, mw)

                begin_s, begin = time.process_time(), time.perf_counter()
                planned = plan(ledger, 1.0, counted)
                cpu_s.append(time.process_time() - begin_s)
                wall_s.append(time.perf_counter() - begin)
                rounds = len(asked)
                assert sum(planned.caps_mw.values()) <= planned.available_mw
            row = {"sharer": name, "nodes": n, "jobs": m, "rounds": rounds, "cpu_s": statistics.median(cpu_s),
                   "wall_s": statistics.median(wall_s), "bound_s": most_s}  # fmt: skip
            rows.append(row)
            mark = "" if row["cpu_s"] <= most_s else "   NOT MET"
            print(f"{name:18} {n:7d} {m:6d} {rounds:6d} {row['cpu_s']:8.3f} {row['wall_s']:8.3f} {most_s:6.2f}{mark}")
    save("rebalance", {"rows": rows})
    return 0 if all(row["cpu_s"] <= row["bound_s"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
