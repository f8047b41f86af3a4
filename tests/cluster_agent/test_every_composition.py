"""Every order, estimate, backfilling, guard and kind of resources in every loop: it runs, or says why it cannot.

What a schedule must be, the plain-Python engines say (``test_engines_agree``, ``test_power_engines_agree``). Here no
combination is left out.
"""

from __future__ import annotations

from itertools import product
from typing import Any, Final

import numpy as np
import pytest

from cluster_agent.cap_steps import Cap
from cluster_agent.replay.closed_loop import ClosedLoop
from cluster_agent.replay.log_run import Result, replay
from cluster_agent.replay.measures import joules_between
from cluster_agent.scheduler.energy_window import Budget
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.orders.priority import Priority
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_phases import Power
from cluster_agent.workloads.job_log import Workload
from cluster_agent.workloads.swf import USER, Log
from tests.cluster_agent.power_traces import machine, off_by_cap
from tests.cluster_agent.traces import PROCESSORS, jobs_of, widest_first

JOBS: Final = 20
ORDERS: Final[dict[str, dict[str, Any]]] = {
    "submission": {},
    "shortest behind the head": {"scan": "shortest"},
    "a rule": {"order": widest_first},
    "priorities": {"priority": Priority(half_life_s=20.0)},
}
ESTIMATES: Final[dict[str, dict[str, Any]]] = {
    "requested": {},
    "clairvoyant": {"estimate": "clairvoyant"},
    "mean2": {"estimate": "mean2", "correct": "incremental"},
    "ours": {"estimate": "mean2", "history": "similar", "fixed": "start", "shadow": float("inf")},
    "learned": {"estimate": "learned", "correct": "doubling"},
}
BACKFILLS: Final = ("none", "list", "easy", "conservative", "compress")
GUARDS: Final = (None, 2.0)
CAP_W, BUDGET_J, TO_S = 400.0, 40_000.0, 120
RESOURCES: Final[dict[str, dict[str, Any]]] = {
    "processors": {},
    "processors, ties=sc15": {"ties": "sc15"},
    "metered": {},
    "metered, idle off": {"idle_off_s": 3},
    "metered, ties=sc15": {"ties": "sc15"},
    "metered, ties=sc15, idle off": {"ties": "sc15", "idle_off_s": 3},
    "cap": {"power": Power(floor_mhz=1000)},
    "cap, switched off": {"power": Power(idle=off_by_cap(1))},
    "cap, idle off": {"power": Power(), "idle_off_s": 3},
    "budget": {"power": Power(budget=Budget(BUDGET_J, 0, TO_S, "energybud", "path", 10))},
    "budget, idle off": {"power": Power(budget=Budget(BUDGET_J, 0, TO_S, "energybud", "path", 10)), "idle_off_s": 3},
    "budget, set aside for the head": {"power": Power(budget=Budget(BUDGET_J, 0, TO_S, "reducepc", "path", 10))},
}
LOOPS: Final = {"open": None, "think": ClosedLoop(think_s=4.0), "queue": ClosedLoop(queue=3)}


def workload() -> Workload:
    rng = np.random.default_rng(7)
    run_s = rng.integers(1, 12, JOBS)
    columns = np.sort(rng.integers(0, 60, JOBS)), run_s, run_s + rng.integers(0, 9, JOBS), rng.integers(1, 9, JOBS)
    jobs = jobs_of([(*map(int, row), at % 3) for at, row in enumerate(zip(*columns, strict=True))])
    log = Log("generated", "", {}, np.full((18, JOBS), -1), np.arange(JOBS), ())
    log.columns[USER] = np.arange(JOBS) % 3
    return Workload(log, PROCESSORS, jobs, np.arange(JOBS), True, np.zeros(JOBS, np.bool_), ())


def replayed(composition: Composition, resources: str, loop: ClosedLoop | None) -> Result:
    watts = None if resources.startswith("processors") else Watts.of(machine(1.0, False), composition.power)
    caps = [Cap(0, 100_000, CAP_W)] if resources.startswith("cap") else []
    if resources == "cap, switched off":
        caps = [Cap(20, 60, 300.0), Cap(60, 100_000, CAP_W)]
    return replay(workload(), composition, watts=watts, caps=caps, loop=loop)


def check(result: Result, resources: str) -> None:
    schedule, jobs = result.schedule, result.workload.jobs
    assert result.unstarted == 0
    assert (schedule.start_s >= jobs.submit_s).all()
    for now_s in np.unique(schedule.start_s):
        runs = (schedule.start_s <= now_s) & (now_s < schedule.end_s)
        assert jobs.width[runs].sum() <= PROCESSORS
    if resources.startswith("cap"):
        _, watts, cap_w = schedule.power
        assert (watts <= cap_w).all()
    if resources.startswith("budget"):
        assert joules_between(schedule, 0, TO_S) <= BUDGET_J


@pytest.mark.parametrize("resources", RESOURCES)
@pytest.mark.parametrize("order", ORDERS)
def test_every_composition_runs_or_says_in_one_line_which_phases_do_not_go_together(order: str, resources: str) -> None:
    ran = refused = 0
    for (estimate, phases), backfill, guard in product(ESTIMATES.items(), BACKFILLS, GUARDS):
        given = {**ORDERS[order], **phases, **RESOURCES[resources], "backfill": backfill, "guard": guard}
        has_places = resources.partition(",")[0] == "processors" or resources in ("metered", "metered, ties=sc15")
        expected = backfill == "compress" and (guard is not None or not has_places)
        expected |= backfill == "conservative" and resources == "budget, set aside for the head"
        composition, reason = None, ""
        try:
            composition = Composition(**given)
        except ValueError as error:
            reason = str(error)
        assert bool(reason) == expected, (estimate, backfill, guard, reason)
        if composition is None:
            assert "\n" not in reason and ("backfill=" in reason or "guard" in reason)
            refused += 1
            continue
        for loop in LOOPS.values():
            check(replayed(composition, resources, loop), resources)
            ran += 1
    counts = (90, 20) if resources == "budget, set aside for the head" else (135, 5) if has_places else (120, 10)
    assert (ran, refused) == counts
