"""Every order, estimate, backfilling, guard and kind of resources in every loop: it runs, or says why it cannot.

What a schedule must be, the plain-Python engines say (``test_engines_agree``, ``test_power_engines_agree``). Here no
combination is left out.
"""

from __future__ import annotations

from itertools import product
from typing import Any, Final

import msgspec
import numpy as np
import pytest

from cluster_agent.cap_steps import Cap
from cluster_agent.replay.closed_loop import ClosedLoop
from cluster_agent.replay.drawn import power_over_time
from cluster_agent.replay.measures import joules_between
from cluster_agent.replay.simulated import JumpingClock, SimulatedMachine
from cluster_agent.replay.world_run import Result
from cluster_agent.replay.world_run import run as run_world
from cluster_agent.scheduler.configurations.choices import Rule
from cluster_agent.scheduler.configurations.table import Configuration
from cluster_agent.scheduler.energy_window import Budget
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.orders.priority import Priority
from cluster_agent.scheduler.policy_phases import (
    A_LOG,
    A_TRACE_WITH_NODES,
    GPUS,
    LIVE,
    ON_PROCESSORS,
    PROMISES,
    WATTS,
    Composition,
    Declared,
    clash,
)
from cluster_agent.scheduler.power_cap import UNCAPPED, constant
from cluster_agent.scheduler.power_phases import Power
from cluster_agent.workloads.job_log import Workload
from cluster_agent.workloads.swf import USER, Log
from tests.cluster_agent.node_traces import FOUR_NODES, trace_of
from tests.cluster_agent.power_traces import machine, off_by_cap
from tests.cluster_agent.traces import PROCESSORS, jobs_of, widest_first
from tests.cluster_agent.worlds import replay, replay_nodes, with_ways
from tests.oracle.node_scheduler import NodeScheduler

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
    schedule, jobs = result.schedule, result.world.workload.jobs
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


SIX: Final = ((0, 9, 3, 0), (1, 4, 4, 0), (2, 2, 1, 1), (2, 6, 2, 2), (5, 3, 1, 0), (8, 5, 2, 2))
NODE_ROWS: Final = [(at_s, run_s, run_s + 3, units, 12 * units, gpus, 0, 40.0) for at_s, run_s, units, gpus in SIX]
ON_NODES: Final[dict[str, dict[str, Any]]] = {
    "unaware of watts": {},
    "watts": {"power": Power()},
    "watts, idle off": {"power": Power(), "idle_off_s": 3},
    "frequencies": {"power": Power(floor_mhz=1000)},
    "switched off for a cap": {"power": Power(idle=off_by_cap(1))},
    "a budget": {"power": Power(budget=Budget(BUDGET_J, 0, TO_S))},
    "single events": {"ties": "sc15"},
}


def test_on_nodes_every_composition_runs_or_is_refused_by_the_sentence_that_names_what_is_missing() -> None:
    cap = constant(130.0)
    ran = 0
    for order, estimate, backfill, guard, watts in product(ORDERS, ESTIMATES, BACKFILLS, GUARDS, ON_NODES):
        given = {**ORDERS[order], **ESTIMATES[estimate], **ON_NODES[watts], "backfill": backfill, "guard": guard}
        try:
            composition = Composition(**given)
        except ValueError as error:
            assert "\n" not in str(error)
            continue
        reason = clash([*composition.declared, A_TRACE_WITH_NODES])
        is_possible = order in ("submission", "a rule") and estimate == "requested" and guard is None
        is_possible &= backfill in ("none", "list", "easy") and watts in (
            "unaware of watts",
            "watts",
            "watts, idle off",
        )
        assert (reason is None) == is_possible, (order, estimate, backfill, guard, watts, reason)
        if reason is not None:
            assert "a trace with nodes" in reason and "needs" in reason
            continue
        trace = trace_of(NODE_ROWS)
        for loop in reversed(LOOPS.values()):
            result = replay_nodes(trace, composition, FOUR_NODES, cap, loop=loop)
            assert result.unstarted == 0 and (result.start_s >= result.jobs.submit_s).all()
            assert composition.power is None or power_over_time(result).watts.max() <= 130.0
            ran += 1
        reference = NodeScheduler(composition, trace.jobs, FOUR_NODES, cap if composition.power else UNCAPPED)
        simulated = SimulatedMachine(trace.jobs, "instant")
        run(reference, JumpingClock(), simulated)
        assert result.start_s.tolist() == [simulated.start_s[job] for job in range(len(trace.jobs))]
    assert ran == 2 * 3 * 3 * len(LOOPS)  # submission and a rule, three backfills, three kinds of watts


WAYS: Final = tuple(Configuration(nodes, nodes * 12, 80.0, 12.0 / nodes, 40.0 * nodes) for nodes in (4, 2, 1))


def test_with_configurations_every_composition_runs_or_is_refused_by_the_sentence_that_names_why() -> None:
    world, ran = with_ways(workload().jobs, [WAYS] * JOBS, 8, constant(200.0)), 0
    for order, estimate, backfill, guard, watts in product(ORDERS, ESTIMATES, BACKFILLS, GUARDS, ON_NODES):
        given = {**ORDERS[order], **ESTIMATES[estimate], **ON_NODES[watts], "backfill": backfill, "guard": guard}
        is_possible = order in ("submission", "a rule") and estimate == "requested" and guard is None
        is_possible &= backfill in ("none", "list", "easy") and watts in ("unaware of watts", "watts")
        try:
            composition = Composition(choose=Rule("stock"), **given)
        except ValueError as error:
            assert not is_possible and "\n" not in str(error)
            continue
        assert is_possible, (order, estimate, backfill, guard, watts)
        for loop in LOOPS.values():
            result = run_world(msgspec.structs.replace(world, loop=loop), composition)
            assert result.unstarted == 0 and power_over_time(result).watts.max() <= 200.0
            ran += 1
    assert ran == 2 * 3 * 2 * len(LOOPS)


@pytest.mark.parametrize(
    ("phases", "resources", "sentence"),
    [
        (
            {"order": widest_first, "needs": (GPUS,)},
            A_LOG,
            "an order by a rule needs GPUs, and a log of processors has none",
        ),
        ({"order": widest_first, "needs": (WATTS,)}, ON_PROCESSORS, "needs watts, and a number of processors has none"),
        ({"order": widest_first, "needs": (WATTS,)}, LIVE, "needs watts that the policy does not own, and a live"),
        ({"order": widest_first, "needs": (PROMISES,)}, LIVE, "needs promised waits, and a live partition has none"),
        ({"power": Power(is_metered=True)}, A_LOG, "is_metered needs nodes, and a log of processors has none"),
        (
            {"power": Power(looks_ahead=False)},
            A_TRACE_WITH_NODES,
            "a cap that is unknown until it begins needs a number",
        ),
        ({"power": Power(node_w=300.0)}, A_TRACE_WITH_NODES, "watts of a busy node needs a number of processors"),
        ({"placing": "pack"}, A_LOG, "placing=pack needs nodes, and a log of processors has none"),
        (
            {"choose": Rule("naive")},
            A_TRACE_WITH_NODES,
            "needs a table of configurations, and a trace with nodes has none",
        ),
    ],
)
def test_what_the_resources_lack_is_named_with_the_phase_that_needs_it(
    phases: dict[str, Any], resources: Declared, sentence: str
) -> None:
    said = clash([*Composition(**phases).declared, resources])
    assert said is not None and sentence in said and "\n" not in said
