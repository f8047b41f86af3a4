"""Ours: the caps under which all jobs together are predicted to lose the least time.

Each job has a model, watts to speed (``speed``). All its nodes run at one speed, since the others wait for the slowest.
Watts go step by step to the job that gains most per watt. ``weight`` chooses what a gain is:

- ``work``: nodes × slowdown × speed, which is nodes × (1 - speed): the time by which all jobs together fall behind per
  second. The least of it is the most throughput. In most P-state tables speed per watt rises towards the top, so of two
  equal jobs it is better to run one at full speed and slow the other than to slow both. The older one comes first.
- ``nodes``: nodes × slowdown: equal jobs are slowed about alike, at some cost of throughput.

Except for the one job that is left in the middle of a step, no other division has a better sum. Differences from AAPC
(REGALE D2.3 §4.2, its ideas beyond the two passes):

- a node gets no watts that it does not use: the curve of a job ends at what its nodes were measured to draw while not
  cap-bound, plus a guard for bursts (D10), and before any measurement at its table's highest watts;
- as the budget falls, a job's caps fall from the highest cap to MOP without a jump;
- ``floor``: every job gets this speed first, or if that is too much, the highest speed that all can have;
- where nodes report how fast their jobs work, the predicted loss of a job is corrected by what it showed (``rates``).

The nodes of one job are judged together: they draw alike, within what nodes of one model differ by, and one that was
measured to draw less did less at that time. Under a cap by such a measurement it would make all others wait.

Watts that no curve needs raise the lowest caps of active nodes first, as parts of TDP, since tables have errors.

Where the same part of TDP for every node (``fspc``) limits nobody, there is nothing to choose: every active node gets
at least that part. So no node is cap-bound here that would not be cap-bound there, also if it begins to draw more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np

from cluster_agent.budget.sharers import aapc, fspc
from cluster_agent.budget.sharers.api import Method, Models, Sharer, check_budget
from cluster_agent.budget.sharers.calibrated_speed import tables_of
from cluster_agent.budget.sharers.fill import fill
from cluster_agent.budget.sharers.speed import LOWEST_SPEED, SpeedModel, levels, model_of
from cluster_agent.budget.sharers.view import UNTAGGED, Floats, Ints, Reason, Shares, Tag, View, tag_of
from cluster_agent.cluster import load_machine
from cluster_agent.errors import WrongUseError

APPLICATIONS = {Tag.COMPUTE: "linpack", Tag.MIXED: "nas", Tag.MEMORY: "stream"}
"""The classes of a machine file's [degradation] that are used for the tags."""


ALIKE: Final = 0.05
"""Ours: a node of a job counts with at most so much less than its most demanding mate, as parts of their TDPs."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``guard``: how much more than its need a node may draw, in %, for bursts; it can be small, since a measured need
    is already the highest of some time. ``floor``: in % of full speed. For jobs without a model of their own:
    ``machine``: whose table is used; ``table``: a file of `nodectl calibrate run`, of a node of this partition. Empty:
    none.

    A job without any model counts as the most sensitive one that there is. If no job has a model, ``aapc`` decides,
    with its defaults.
    """

    guard: float = 1.0
    floor: float = 0.0
    weight: Literal["work", "nodes"] = "work"
    machine: str = ""
    table: str = ""
    untagged: aapc.Untagged = "compute"


def compose(params: Params) -> Sharer:
    """``ValueError`` for a percentage out of range, ``WrongUseError`` for a machine without tables."""
    if not 0 <= params.guard <= 100:
        raise ValueError(f"guard={params.guard:g} must be from 0 to 100 (%)")
    if not 0 <= params.floor < 100:
        raise ValueError(f"floor={params.floor:g} must be at least 0 and below 100 (%)")
    tables = models(params)
    fallback = aapc.compose(aapc.Params(untagged=params.untagged))

    def share(view: View, available_mw: int) -> Shares:
        tag = np.where(view.tag == UNTAGGED, int(tag_of(params.untagged)), view.tag)
        found = _models(view, tag, tables)
        check_budget(view, available_mw)
        if (equal := _equal_share(found, tag, view, available_mw)) is not None:
            return equal
        if found is None:
            answer = fallback(view, available_mw)
            note = "no job has a model of its speed, so minimal-slowdown leaves it to aapc"
            return Shares(**{name: getattr(answer, name) for name in Shares.__slots__} | {"note": note})
        return _share(params, *found, tag, view, available_mw)

    return share


def models(params: Params) -> Models:
    """The tables of ``machine`` or of ``table``; ``WrongUseError`` if it has none."""
    if params.table:
        if params.machine:
            raise WrongUseError("minimal-slowdown: machine and table: give one of the two")
        measured: dict[Tag | None, SpeedModel] = dict(tables_of(Path(params.table)).items())
        untagged = measured.get(tag_of(params.untagged))
        return measured | ({None: untagged} if untagged else {})
    if not params.machine:
        return {}
    try:
        machine = load_machine(params.machine)
    except WrongUseError as error:
        raise WrongUseError(str(error).replace("--machine ", "minimal-slowdown: machine=", 1)) from None
    tables: dict[Tag | None, SpeedModel] = {
        tag: model_of(machine, application) for tag, application in APPLICATIONS.items()
    }
    return tables | {None: tables[tag_of(params.untagged)]}


def _models(view: View, tag: Ints, tables: Models) -> tuple[list[SpeedModel], Ints] | None:
    """The models that occur, and for each job the index of its own; None if no job has one."""
    index: dict[SpeedModel, int] = {}
    by_identity: dict[int, int] = {}  # jobs share a few objects, and hashing a table is slow
    of_tag = [index.setdefault(tables[Tag(at)], len(index)) if Tag(at) in tables else -1 for at in range(len(Tag))]
    model = np.empty(len(view.jobs), np.int64)
    for at, job in enumerate(view.jobs):
        if job.model is None:
            model[at] = of_tag[tag[at]]
            continue
        known = by_identity.get(id(job.model))
        if known is None:
            known = by_identity[id(job.model)] = index.setdefault(job.model, len(index))
        model[at] = known
    if not index:
        return None
    found = list(index)
    most_sensitive = min(range(len(found)), key=lambda at: (found[at].speed[-1], at))
    return found, np.where(model < 0, most_sensitive, model)


def _equal_share(found: tuple[list[SpeedModel], Ints] | None, tag: Ints, view: View, mw: int) -> Shares | None:
    """The same part of TDP for all active nodes, idle ones at MOP; None if ``fspc`` would limit one of them.

    A node whose need is not known wants the most of its job's table, and all without one.
    """
    equal_mw = fspc.share(view, mw).caps_mw
    owner = view.owners(tag)
    active = np.flatnonzero(owner >= 0)
    wanted_mw = view.tdp_mw[active].astype(np.float64)
    if found is not None:
        models, model = found
        wanted_mw *= np.array([one.power[0] for one in models])[model[owner[active]]]
    wanted_mw = np.where(view.need_mw[active] >= 0, view.need_mw[active], wanted_mw)
    if (np.minimum(wanted_mw, view.tdp_mw[active]) > equal_mw[active]).any():
        return None
    caps_mw, tdp_mw = view.mop_mw.copy(), view.tdp_mw[active]
    left_mw = mw - int(caps_mw[owner < 0].sum())
    caps_mw[active] = fill(left_mw, equal_mw[active], tdp_mw, tdp_mw, np.zeros_like(tdp_mw))
    reason: Ints = np.full(len(caps_mw), int(Reason.IDLE), np.int64)
    reason[active] = np.where(caps_mw[active] == tdp_mw, Reason.UNCAPPED, Reason.EQUAL)
    speed = np.full(len(view.jobs), np.nan)
    if found is not None:
        speed[np.unique(owner[active])] = 1.0
    return Shares("minimal-slowdown", caps_mw, reason, owner, tag, speed)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """All that does not depend on the budget. Nodes are ordered job by job, jobs are those that own nodes; levels rise.

    ``caps_mw`` (nodes x levels) belong to ``speed`` (jobs x levels). ``step_*``: the steps of all jobs in the order in
    which they are taken, each from one corner of the job's curve to the next.
    """

    owner: Ints
    node: Ints
    job: Ints
    n_nodes: Ints
    speed: Floats
    caps_mw: Floats
    job_mw: Floats
    step_job: Ints
    step_mw: Floats


def _share(params: Params, models: list[SpeedModel], model: Ints, tag: Ints, view: View, mw: int) -> Shares:
    ready = _prepared(params, tuple(models), view, tag.tobytes(), model.tobytes())
    caps_mw = view.mop_mw.copy()
    reason: Ints = np.full(len(caps_mw), int(Reason.IDLE), np.int64)
    speed = np.full(len(view.jobs), np.nan)
    node = ready.node
    if len(node):
        reached, level, part = _reached(ready, mw - int(view.mop_mw[ready.owner < 0].sum()))
        per_node = np.repeat(np.arange(len(ready.job)), ready.n_nodes)
        rows, low = np.arange(len(node)), level[per_node]
        from_mw = ready.caps_mw[rows, low]
        exact = from_mw + part[per_node] * (ready.caps_mw[rows, low + 1] - from_mw)
        caps_mw[node] = np.floor(exact).astype(np.int64)
        speed[ready.job] = reached
        is_full = (reached >= 1 - 1e-12)[per_node]
        is_measured = _together_mw(view, ready.owner)[node] >= 0
        full = np.where(is_measured, Reason.NEED, Reason.FULL_SPEED)
        reason[node] = np.where(is_full, full, np.where(is_measured, Reason.SLOWED, Reason.UNMEASURED))
        left_mw = mw - int(caps_mw.sum())
        if is_full.all() and left_mw > 0:
            low_mw, high_mw = caps_mw[node], view.tdp_mw[node]
            caps_mw[node] = fill(int(low_mw.sum()) + left_mw, low_mw, high_mw, high_mw, np.zeros_like(low_mw))
            reason[node[caps_mw[node] == high_mw]] = Reason.UNCAPPED
    return Shares("minimal-slowdown", caps_mw, reason, ready.owner, tag, speed)


@lru_cache(maxsize=1)  # a plan calls the sharer several times with one view
def _prepared(params: Params, models: tuple[SpeedModel, ...], view: View, tags: bytes, which: bytes) -> _Prepared:
    tag, model = np.frombuffer(tags, np.int64), np.frombuffer(which, np.int64)
    owner = view.owners(tag)
    node = np.argsort(owner, kind="stable")[int((owner < 0).sum()) :]
    all_nodes = np.bincount(owner[node], minlength=len(view.jobs))
    job = np.flatnonzero(all_nodes)
    n_nodes = all_nodes[job]
    first = np.concatenate(([0], np.cumsum(n_nodes)[:-1])) if len(job) else np.zeros(0, np.int64)
    most = max(len(levels(one)[0]) for one in models)
    grids = [np.pad(levels(one), ((0, 0), (0, most - len(levels(one)[0]))), mode="edge") for one in models]
    lost = 1 / np.array([grid[0] for grid in grids])[model[job]] - 1
    speed = np.maximum(1 / (1 + view.loss[job, None] * lost), LOWEST_SPEED)
    uncut_mw = _needs(params, models, np.array([grid[1] for grid in grids]), model[owner[node]], view, node,
                      _together_mw(view, owner))  # fmt: skip
    caps_mw = np.clip(uncut_mw, view.mop_mw[node, None], view.tdp_mw[node, None])
    caps_mw[:, 0] = view.mop_mw[node]  # also where the table's lowest point is above it
    if not len(job):
        return _Prepared(owner, node, job, n_nodes, speed, caps_mw, caps_mw, job, np.zeros(0))
    at_mop = _across(uncut_mw, np.repeat(speed, n_nodes, axis=0), view.mop_mw[node].astype(np.float64))
    speed = np.maximum(speed, np.minimum.reduceat(at_mop, first)[:, None])
    job_mw = np.add.reduceat(caps_mw, first, axis=0)
    start, start_mw = speed, job_mw
    if params.floor:  # the steps below it become one first step
        floor = np.full(len(job), params.floor / 100)
        is_below = speed < floor[:, None]
        start = np.maximum(speed, floor[:, None])
        start_mw = np.where(is_below, _across(speed, job_mw, floor)[:, None], job_mw)
    value: Floats = n_nodes[:, None] * (start if params.weight == "work" else -1 / start)
    step_job, step_mw = _steps(start_mw, value)
    return _Prepared(owner, node, job, n_nodes, speed, caps_mw, job_mw, step_job, step_mw)


def _reached(ready: _Prepared, mw: int) -> tuple[Floats, Ints, Floats]:
    """For a budget in mW, per job: its speed, the level below it, and the fraction of the way to the next level."""
    spent_mw = ready.job_mw[:, -1].copy()  # all steps are subtracted below: the start, at MOP or at the floor
    np.subtract.at(spent_mw, ready.step_job, ready.step_mw)
    if float(spent_mw.sum()) > mw + 1:
        return _level_off(ready, mw)
    reached_mw = float(spent_mw.sum()) + np.cumsum(ready.step_mw)
    whole = int(np.searchsorted(reached_mw, mw, side="right"))
    spent_mw = spent_mw + np.bincount(ready.step_job[:whole], ready.step_mw[:whole], minlength=len(spent_mw))
    if whole < len(reached_mw):
        spent_mw[ready.step_job[whole]] += max(mw - float(spent_mw.sum()), 0.0)
    level, part = _place(ready.job_mw, spent_mw)
    return _between(ready.speed, level, part), level, part


def _level_off(ready: _Prepared, mw: int) -> tuple[Floats, Ints, Floats]:
    """The highest speed that all jobs can have if not even the floor fits (bisection)."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        needed_mw = _across(ready.speed, ready.job_mw, np.full(len(ready.job), middle)).sum()
        low, high = (middle, high) if needed_mw <= mw else (low, middle)
    level, part = _place(ready.speed, np.full(len(ready.job), low))
    return _between(ready.speed, level, part), level, part


def _needs(
    params: Params,
    models: tuple[SpeedModel, ...],
    parts: Floats,
    model: Ints,
    view: View,
    node: Ints,
    together_mw: Ints,
) -> Floats:
    """Per node and level of its job's speed the mW that the speed needs.

    A model's curve is stretched, above idle watts, so that it ends at the node's own need. Only its last step includes
    the guard: a job that is slowed needs none.
    """
    tdp_mw, need_mw = view.tdp_mw[node], together_mw[node]
    idle = np.array([one.idle for one in models])[model] * tdp_mw
    highest = np.array([one.power[0] for one in models])[model] * tdp_mw
    top = np.clip(np.where(need_mw >= 0, need_mw, highest), idle, tdp_mw)
    needs: Floats = idle[:, None] + parts[model] * (top - idle)[:, None]
    needs[parts[model] == 1] *= 1 + params.guard / 100
    return needs


def _together_mw(view: View, owner: Ints) -> Ints:
    """Per node its need in mW, or what its mates' needs say of it if that is more; -1: nothing is known of the job."""
    usual_mw = view.tdp_mw * view.factor
    part = np.where(view.need_mw >= 0, view.need_mw / np.maximum(usual_mw, 1.0), -1.0)
    highest = np.full(len(view.jobs) + 1, -1.0)  # the last one: idle nodes
    np.maximum.at(highest, owner, part)
    highest[-1] = -1.0
    by_mates_mw = np.minimum(highest[owner] * usual_mw, view.tdp_mw)
    less = np.where(view.need_mw >= 0, 1 - ALIKE, 1.0)
    together: Ints = np.where(highest[owner] < 0, -1, np.maximum(view.need_mw, by_mates_mw * less)).astype(np.int64)
    return together


def _steps(job_mw: Floats, value: Floats) -> tuple[Ints, Floats]:
    """The steps of all jobs, most value per mW first, equal ones in the order of starts: the job, and the mW.

    A curve may have dents, where a watt brings less than the next one does. Stopping in a dent never pays, so a step
    leads across it: steps go between corners of the curve's upper hull. Along one job the gain per mW then falls, so
    each step is taken after the one below it, and at most one job is left in the middle of a step.
    """
    rows, last = np.arange(len(job_mw)), job_mw.shape[1] - 1
    at = np.zeros(len(job_mw), np.int64)
    jobs, costs, gains = [], [], []
    while (at < last).any():
        cost = job_mw - job_mw[rows, at][:, None]
        gain = value - value[rows, at][:, None]
        rate = np.divide(gain, cost, out=np.where(gain > 0, np.inf, 0.0), where=cost > 0)
        rate[np.arange(last + 1) <= at[:, None]] = -1.0
        to = np.where(at < last, last - np.argmax(rate[:, ::-1], axis=1), last)
        is_step = at < to
        jobs.append(rows[is_step])
        costs.append(cost[rows, to][is_step])
        gains.append(rate[rows, to][is_step])
        at = to
    job, rate = np.concatenate(jobs), np.concatenate(gains)
    order = np.lexsort((job, -rate))
    return job[order], np.concatenate(costs)[order]


def _place(rising: Floats, wanted: Floats) -> tuple[Ints, Floats]:
    """Per row the last column that is at most the wanted value, and the fraction of the way to the next."""
    level = np.clip((rising <= wanted[:, None]).sum(axis=1) - 1, 0, rising.shape[1] - 2)
    rows = np.arange(len(rising))
    low, high = rising[rows, level], rising[rows, level + 1]
    part = np.divide(wanted - low, high - low, out=(wanted >= low).astype(np.float64), where=high > low)
    return level, np.clip(part, 0.0, 1.0)


def _between(columns: Floats, level: Ints, part: Floats) -> Floats:
    rows = np.arange(len(columns))
    low = columns[rows, level]
    found: Floats = low + part * (columns[rows, level + 1] - low)
    return found


def _across(rising: Floats, columns: Floats, wanted: Floats) -> Floats:
    """Per row ``columns``, interpolated at the point where ``rising`` has the wanted value."""
    return _between(columns, *_place(rising, wanted))


METHOD = Method(
    name="minimal-slowdown",
    summary="Watts to the jobs that are predicted to gain most time, none to nodes that do not use them.",
    source="ours; after the ideas beyond AAPC in REGALE D2.3, section 4.2",
    params=Params,
    compose=compose,
    models=models,
)
