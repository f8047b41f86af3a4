"""The inputs of the scheduler in C, as the tables that its headers declare, and its columns as NumPy's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec.structs import astuple

from cluster_agent._native import ffi, lib
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.scheduler.idle_off import IdleOff
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.governor import Predicting, Row, Watts
from cluster_agent.scheduler.policy_phases import ON_PROCESSORS, Composition, Learning, clash

if TYPE_CHECKING:  # a short replay is as long as its imports
    from cluster_agent.scheduler.orders.priority import Priority
    from cluster_agent.scheduler.orders.score_formula import Score
    from cluster_agent.scheduler.plans.looks import Look
    from cluster_agent.scheduler.power_cap import PowerCap
    from cluster_agent.scheduler.unlike_nodes.node_aware import Placed


def code(kind: str, name: str | Callable[..., Any]) -> int:
    """The number of a name in C: ``code("SCAN", "shortest")`` is ``SCAN_SHORTEST``; of a function ``..._OWN``."""
    name = "own" if callable(name) else name
    return int(getattr(lib, f"{kind}_{name.upper().replace('-', '_')}"))


ENDS: Final = {
    "unheard": lib.ENDS_UNHEARD,
    "before": lib.ENDS_BEFORE_PASS,
    "after": lib.ENDS_AFTER_PASS,
}


def c_caps(cap: PowerCap) -> tuple[Any, ...]:
    """``caps_t *``, and the columns that have to stay with it."""
    columns = ffi.new("int64_t[]", cap.time_s), ffi.new("int64_t[]", cap.uw)
    return ffi.new("caps_t *", [len(cap.time_s), *columns]), *columns


def c_composition(composition: Composition, processors: int) -> Any:
    """``composition_t *``."""
    return ffi.new(
        "composition_t *",
        {
            "processors": processors,
            "estimate": code("ESTIMATE", composition.estimate),
            "history": code("HISTORY", composition.history),
            "fixed": code("FIXED_AT", composition.fixed),
            "correct": code("CORRECT", composition.correct),
            "backfill": code("BACKFILL", composition.backfill),
            "scan": code("SCAN", composition.scan),
            "frees_at_estimate": composition.frees_at_estimate,
            "passes_if_new_fits": composition.passes_if_new_fits,
            "shadow": composition.shadow,
            "guard": composition.guard or 0.0,
            "learning": _learning(composition.learning),
        },
    )


def _learning(learning: Learning) -> dict[str, int]:
    over, under = learning.loss.split("-")
    return {
        "model": code("MODEL", learning.model),
        "over": code("LOSS", over),
        "under": code("LOSS", under),
        "weight": code("WEIGHT", learning.weight),
    }


def pointer(kind: str, array: Any) -> Any:
    """The memory of a NumPy column as a C array; the column must outlive its use."""
    return ffi.from_buffer(f"{kind}[]", array)


Scalar = TypeVar("Scalar", bound=np.generic)


def copied(source: Any, count: int, dtype: type[Scalar]) -> npt.NDArray[Scalar]:
    """A NumPy copy of a C column of ``count``."""
    return np.frombuffer(ffi.buffer(source, count * np.dtype(dtype).itemsize), dtype).copy()


class CJobs:
    """``jobs_t`` over the columns of ``Jobs``, which it keeps alive."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self._columns = [
            pointer("int64_t", np.ascontiguousarray(jobs.run_s, np.int64)),
            pointer("int64_t", np.ascontiguousarray(jobs.request_s, np.int64)),
            pointer("int32_t", np.ascontiguousarray(jobs.width, np.int32)),
            pointer("int32_t", np.ascontiguousarray(jobs.user, np.int32)),
        ]
        is_none = jobs.best_effort is None
        self._columns.append(ffi.NULL if is_none else pointer("uint8_t", np.ascontiguousarray(jobs.best_effort)))
        self.c = ffi.new("jobs_t *", [len(jobs), jobs.n_users, *self._columns])


class CWatts:
    """``power_model_t`` over the columns of ``Watts``, which it keeps alive. ``reading_s``: when the joules of its
    budget are read first."""

    def __init__(self, watts: Watts, reading_s: int | None, predicting: Predicting | None = None) -> None:
        jobs = [watts.job_busy_uw, predicting.job_plan_uw if predicting else watts.job_plan_uw]
        self._columns = [
            ffi.new("int64_t[]", watts.busy_uw),
            ffi.new("int64_t[]", watts.plan_uw),
            ffi.new("double[]", watts.slowdown),
            *(ffi.NULL if one is None else pointer("int64_t", np.ascontiguousarray(one, np.int64)) for one in jobs),
        ]
        lowest = ffi.NULL
        if watts.job_lowest is not None and watts.starts_slowed:
            lowest = self._lowest = pointer("int32_t", np.ascontiguousarray(watts.job_lowest, np.int32))
        self.c = ffi.new(
            "power_model_t *",
            [
                len(watts.busy_uw),
                watts.lowest if watts.starts_slowed else 0,
                watts.asks_watts,
                watts.requeues,
                watts.idle_uw,
                *self._columns,
                lowest,
                ENDS[watts.reacts_to_ends],
                watts.rescales,
                watts.meters,
                _budget(watts, reading_s),
            ],
        )


class CIdleOff:
    """``c`` is an ``idle_off_t *``."""

    def __init__(self, model: IdleOff) -> None:
        self._kept_on = ffi.new("kept_on_t[]", model.kept_on)
        self.c = ffi.new("idle_off_t *", [*astuple(model)[:-1], len(model.kept_on), self._kept_on])


def c_idle_off(composition: Composition, watts: Watts | None) -> CIdleOff | None:
    """None where nodes stay on; ``WrongUseError`` without watts."""
    if composition.idle_off_s is None:
        return None
    if watts is None:
        raise WrongUseError(str(clash([*composition.declared, ON_PROCESSORS])))
    return CIdleOff(IdleOff.of(watts.machine, composition.idle_off_s, composition.kept))


def _budget(watts: Watts, reading_s: int | None) -> list[float]:
    """``budget_t``, not open yet."""
    budget = watts.budget
    if budget is None or reading_s is None:
        return [lib.BUDGET_NONE, 0, 0, 0, 0, 0, 0.0]
    rule, test = code("BUDGET", budget.rule), code("TEST", budget.test)
    return [rule, test, reading_s, budget.to_s, budget.limit_uw, budget.tick_s, budget.stored_j]


class CPriority:
    """``priority_t`` over columns per user, which it keeps alive. ``users``: their numbers in the log; ``full_w``: of a
    processor at full load."""

    def __init__(self, priority: Priority, users: Sequence[int], full_w: float) -> None:
        share, efficiency = priority.of_users(users)
        self._columns = [pointer("double", share), pointer("double", efficiency * full_w)]
        self.c = ffi.new(
            "priority_t *",
            [
                *(priority.age, priority.size, priority.cpu, priority.energy),
                priority.oldest_s,
                priority.half_life_s,
                priority.period_s or 0,
                priority.damping,
                full_w,
                priority.is_relative,
                *self._columns,
            ],
        )


def c_score(score: Score) -> Any:
    """``score_t *``, and its steps, to be kept alive until it has been given to a scheduler."""
    steps = ffi.new("score_step_t[]", [(code("SCORE", one.op), one.number) for one in score.steps])
    return ffi.new("score_t *", [len(score.steps), score.follows_time, steps]), steps


def c_portfolio(
    scheduler: Any, composition: Composition, processors: int, looks: Sequence[Look] | None, keeps: bool
) -> list[Any]:
    """Gives the scheduler the composition's portfolio. ``looks``: to be repeated; ``keeps``: whether all that come are
    kept. Returns what must live as long as the scheduler."""
    portfolio = composition.portfolio
    assert portfolio is not None
    kept: list[Any] = []
    members = ffi.new("member_t[]", len(portfolio.members))
    for c_member, member in zip(members, portfolio.members, strict=True):
        c_member.composition = c_composition(member, processors)[0]
        if member.score is not None:
            kept.append(c_score(member.score))
            c_member.score = kept[-1][0]
    recorded = ffi.NULL if looks is None else ffi.new("look_t[]", [(one.at_s, one.member) for one in looks])
    given = {
        "n_members": len(portfolio.members),
        "members": members,
        "every": portfolio.every,
        "length_s": max(round(portfolio.hours * 3600), 1),
        "objective": code("OBJECTIVE", portfolio.objective),
        "repeats_arrivals": portfolio.arrivals == "again",
        "draws": portfolio.draws,
        "seed": portfolio.seed,
        "keeps": keeps,
        "recorded": recorded,
        "n_recorded": len(looks or ()),
    }
    checked(lib.scheduler_set_portfolio(scheduler, ffi.new("portfolio_model_t *", given)))
    return [*kept, members, recorded]


def looks_so_far(scheduler: Any, recorded: Sequence[Look] | None, members: int) -> list[Look]:
    """The looks of a portfolio that keeps them. Those that were repeated are ``recorded``, with their costs;
    ``ClusterError`` if there was another one."""
    looked = lib.scheduler_looks(scheduler)
    if looked.is_other:
        raise ClusterError(
            "the recorded looks are not of this replay: give the trace, machine and policy that they were recorded with"
        )
    if recorded is not None:
        return list(recorded)
    from cluster_agent.scheduler.plans.looks import Look  # only here: a short replay is as long as its imports

    costs = copied(looked.costs, looked.count * members, np.float64).reshape(-1, members).tolist()
    found = looked.looks
    return [Look(found[i].at_s, found[i].member, tuple(costs[i])) for i in range(looked.count)]


def c_rows(rows: Sequence[Row]) -> Any:
    """``plan_row_t[]``."""
    return ffi.new("plan_row_t[]", [tuple(row) for row in rows])


def checked(status: int) -> None:
    """``MemoryError`` if C has none left."""
    if status < 0:
        raise MemoryError


def owned(pointer_or_null: Any, free: Callable[[Any], None]) -> Any:
    """A pointer from C, freed with the last reference to it; ``MemoryError`` if it is null."""
    if pointer_or_null == ffi.NULL:
        raise MemoryError
    return ffi.gc(pointer_or_null, free)


def placed(scheduler: Any, job: int) -> Placed:
    """The nodes of a job that was started."""
    from cluster_agent.scheduler.unlike_nodes.node_aware import Placed

    count = ffi.new("int32_t *")
    found = lib.scheduler_placed(scheduler, job, count)
    pairs = [(found[i].node, found[i].count) for i in range(count[0])]
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return Placed(table[:, 0].copy(), table[:, 1].copy())
