"""Small random traces and compositions for the property tests, and a few ways of running them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from cluster_agent.errors import WrongUseError
from cluster_agent.replay.simulated import JumpingClock, SimulatedMachine
from cluster_agent.scheduler.interfaces import Scheduler
from cluster_agent.scheduler.job_columns import Int64s, Jobs
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.orders.priority import Account, Priority
from cluster_agent.scheduler.orders.score_formula import Score, score
from cluster_agent.scheduler.policies import registry
from cluster_agent.scheduler.policies.score import RULES
from cluster_agent.scheduler.policy_phases import Backfill, Composition, Correction, Learning, Order, Queue

PROCESSORS = 10


def counts_processors(name: str) -> bool:
    """Whether a policy can be used on a log of processors."""
    try:
        return bool(registry.choose(name).composition)
    except WrongUseError:
        return False


EVERYTHING_ENDED = 2**31 - 1


def jobs_of(rows: list[tuple[int, int, int, int, int]]) -> Jobs:
    """Jobs from (submit, run, request, width, user), sorted by submission."""
    rows = sorted(rows, key=lambda row: row[0])
    columns = [np.array([row[i] for row in rows], np.int64) for i in range(5)]
    submit_s, run_s, request_s, width, user = columns
    _, dense = np.unique(user, return_inverse=True)
    return Jobs(
        number=np.arange(1, len(rows) + 1),
        submit_s=submit_s,
        run_s=run_s,
        request_s=request_s,
        width=width.astype(np.int32),
        user=dense.astype(np.int32),
    )


@st.composite
def traces(draw: st.DrawFn, most: int = 25) -> Jobs:
    """Few instants and short times, so that ties are common; some requests are exact, some far too long."""
    rows = []
    for _ in range(draw(st.integers(0, most))):
        run_s = draw(st.integers(1, 12))
        slack_s = draw(st.sampled_from([0, 0, 1, 3, 10, 200]))
        width = draw(st.integers(1, PROCESSORS))
        rows.append((draw(st.integers(0, 30)), run_s, run_s + slack_s, width, draw(st.integers(0, 2))))
    return jobs_of(rows)


def widest_first(queue: Queue, now_s: int) -> Int64s:
    """An *order* in Python, for the tests: widest job first, then by age."""
    return np.lexsort((queue.submit_s, -queue.width.astype(np.int64)))


PRIORITIES = [
    Priority(cpu=1.0, energy=0.0, half_life_s=20.0),
    Priority(cpu=1.0, energy=1.0, half_life_s=20.0, accounts={1: Account(0.3, 0.7), 2: Account(2.0, 1.3)}),
    Priority(cpu=0.7, energy=0.4, half_life_s=20.0, is_relative=True, accounts={1: Account(0.3, 0.7)}),
    Priority(
        age=0.5, size=0.25, cpu=1.0, energy=0.5, period_s=7, half_life_s=20.0, oldest_s=15, damping=2.0, spread=0.3
    ),
    Priority(cpu=1.0, half_life_s=0.4),  # so short that usage is brought to later origins
]
"""Usage matters within the seconds that these traces last."""


SCORES = [
    score(text)
    for text in [
        *RULES.values(),
        "-(wait / estimate) ** 3 * width",
        "1 / (wait - 3)",
        "log(4 - width) + request",
        "sqrt(5 - wait)",
    ]
]
"""The last ones have infinities and what is no number."""


def composition(
    guard: float | None,
    backfill: Backfill,
    order: Order | Priority | Score | None,
    correct: Correction,
    shadow: float,
    **fields: Any,
) -> Composition:
    """Without guard or shadow where there is none."""
    fields |= {"correct": correct, "shadow": 1.0 if correct == "incremental" else shadow}
    fields["priority" if isinstance(order, Priority) else "score" if isinstance(order, Score) else "order"] = order
    return Composition(guard=None if backfill == "compress" else guard, backfill=backfill, **fields)


def compositions(**fixed: Any) -> st.SearchStrategy[Composition]:
    """Any composition, but for the fields that are given."""
    choices: dict[str, Any] = {
        "estimate": st.sampled_from(["requested", "clairvoyant", "mean2", "learned"]),
        "history": st.sampled_from(["user", "similar"]),
        "fixed": st.sampled_from(["submission", "start"]),
        "shadow": st.sampled_from([1.0, 1.0, 1.5, 2.0, float("inf")]),
        "correct": st.sampled_from(["requested", "incremental", "doubling", "doubling-capped"]),
        "learning": st.builds(
            Learning,
            model=st.sampled_from(["thesis", "sc15"]),
            loss=st.sampled_from(["linear-linear", "linear-squared", "squared-linear", "squared-squared"]),
            weight=st.sampled_from(["equal", "short-wide", "long-narrow", "small", "large"]),
        ),
        "order": st.sampled_from([None, widest_first, *PRIORITIES, *SCORES]),
        "backfill": st.sampled_from(["none", "list", "easy", "conservative", "compress"]),
        "scan": st.sampled_from(["queue", "shortest"]),
        "ties": st.sampled_from(["instant", "sc15"]),
        "guard": st.sampled_from([None, 0.5, 1.5, 3.0]),
        "passes_if_new_fits": st.booleans(),
    }
    return st.builds(composition, **{**choices, **{name: st.just(value) for name, value in fixed.items()}})


def plain_compositions(*backfills: Backfill) -> st.SearchStrategy[Composition]:
    """Those that the plain machines of the oracle know."""
    return st.sampled_from(backfills).flatmap(
        lambda backfill: compositions(
            backfill=backfill,
            ties="instant",
            guard=None,
            estimate="requested",
            correct="requested",
            shadow=1.0,
            passes_if_new_fits=False,
        )
    )


def native_starts(composition: Composition, jobs: Jobs) -> dict[int, int]:
    """Start times by the native replay."""
    replay = NativeReplay(composition, jobs, PROCESSORS)
    assert not replay.run(EVERYTHING_ENDED)
    return {job: int(start_s) for job, start_s in enumerate(replay.start_s) if start_s >= 0}


def looped_starts(scheduler: Scheduler, composition: Composition, jobs: Jobs) -> dict[int, int]:
    """Start times by the Python loop around any scheduler."""
    machine = SimulatedMachine(jobs, composition.ties)
    run(scheduler, JumpingClock(), machine)
    return machine.start_s
