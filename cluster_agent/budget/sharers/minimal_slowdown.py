"""Ours: the caps under which all jobs together are predicted to lose least time.

Each job has a model, watts to speed, without dents (``speed``). All its nodes run at one speed, since the others wait
for the slowest, so a job has one number: its speed. From the lowest speed on, watts go step by step to the job whose
predicted slowdown, times its nodes, falls most per watt. With such curves no other division has a lesser sum (up to
the steps of the curves). Differences from AAPC (REGALE D2.3 §4.2, its ideas beyond the two passes):

- watts that a node does not use are nobody's: the curve of a job ends at what its nodes were measured to draw when
  nothing held them back, with a guard for bursts (D10), and at its table's highest watts before that;
- caps move by small steps, instead of a jump from a tag's cap to MOP;
- ``floor``: below this speed the slowest job is served first, whatever that costs the sum.

Watts that no curve asks for go to the active nodes alike, up to TDP: tables err.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from cluster_agent.budget.sharers import aapc
from cluster_agent.budget.sharers.api import Method, Sharer, check_budget
from cluster_agent.budget.sharers.fill import fill
from cluster_agent.budget.sharers.speed import SpeedModel, levels, model_of
from cluster_agent.budget.sharers.view import UNTAGGED, Floats, Ints, Reason, Shares, Tag, View, tag_of
from cluster_agent.machine import load_machine

APPLICATIONS = {Tag.COMPUTE: "linpack", Tag.MIXED: "nas", Tag.MEMORY: "stream"}
"""The classes of a machine file's [degradation] that stand for the tags."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``guard``: in % of what a node draws or is to draw, how much more it may. ``floor``: in % of full speed.
    ``machine``: whose table serves jobs without a model of their own; empty: none does.

    A job without any model counts as the most sensitive one that there is; if there is none at all, ``aapc`` decides,
    with its defaults.
    """

    guard: float = 5.0
    floor: float = 0.0
    machine: str = ""
    untagged: aapc.Untagged = "compute"


def compose(params: Params) -> Sharer:
    """``ValueError`` for percentages that are none, ``WrongUseError`` for a machine without tables."""
    if not 0 <= params.guard <= 100:
        raise ValueError(f"guard={params.guard:g} has to be from 0 to 100 (%)")
    if not 0 <= params.floor < 100:
        raise ValueError(f"floor={params.floor:g} has to be from 0 to below 100 (%)")
    tables: dict[Tag, SpeedModel] = {}
    if params.machine:
        machine = load_machine(params.machine)
        tables = {tag: model_of(machine, application) for tag, application in APPLICATIONS.items()}
    fallback = aapc.compose(aapc.Params(untagged=params.untagged))

    def share(view: View, available_mw: int) -> Shares:
        tag = np.where(view.tag == UNTAGGED, int(tag_of(params.untagged)), view.tag)
        found = _models(view, tag, tables)
        if found is None:
            answer = fallback(view, available_mw)
            note = "no job has a model of its speed, so minimal-slowdown leaves it to aapc"
            return Shares(**{name: getattr(answer, name) for name in Shares.__slots__} | {"note": note})
        check_budget(view, available_mw)
        return _share(params, *found, tag, view, available_mw)

    return share


def _models(view: View, tag: Ints, tables: Mapping[Tag, SpeedModel]) -> tuple[list[SpeedModel], Ints] | None:
    """The models that occur, and for each job which one is its own; None if there is none."""
    index: dict[SpeedModel, int] = {}
    by_identity: dict[int, int] = {}  # jobs mostly share a few objects, and to hash a table takes long
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
    models = list(index)
    most_sensitive = min(range(len(models)), key=lambda at: (models[at].speed[-1], at))
    return models, np.where(model < 0, most_sensitive, model)


def _share(params: Params, models: list[SpeedModel], model: Ints, tag: Ints, view: View, mw: int) -> Shares:
    owner = view.owners(tag)
    caps_mw = view.mop_mw.copy()
    reason: Ints = np.full(len(caps_mw), int(Reason.IDLE), np.int64)
    speed = np.full(len(view.jobs), np.nan)
    node = np.argsort(owner, kind="stable")[int((owner < 0).sum()) :]  # job by job
    if len(node) == 0:
        return Shares("minimal-slowdown", caps_mw, reason, owner, tag, speed)
    n_nodes = np.bincount(owner[node], minlength=len(view.jobs))
    job = np.flatnonzero(n_nodes)
    first = np.concatenate(([0], np.cumsum(n_nodes[job])[:-1]))
    floor = params.floor / 100
    at_level = np.array([levels(one, floor)[0] for one in models])[model[job]]  # jobs x levels: speeds
    needs_mw = _needs(params, models, model[owner[node]], view, node)  # nodes x levels
    taken, part = _best(params, n_nodes[job], at_level, np.add.reduceat(needs_mw, first, axis=0),
                        mw - int(view.mop_mw[owner < 0].sum()))  # fmt: skip
    per_node = np.repeat(np.arange(len(job)), n_nodes[job])
    rows, low, high = np.arange(len(node)), taken[per_node], np.minimum(taken + 1, at_level.shape[1] - 1)[per_node]
    exact = needs_mw[rows, low] + part[per_node] * (needs_mw[rows, high] - needs_mw[rows, low])
    caps_mw[node] = np.floor(exact).astype(np.int64)
    jobs = np.arange(len(job))
    step_up = at_level[jobs, np.minimum(taken + 1, at_level.shape[1] - 1)] - at_level[jobs, taken]
    speed[job] = at_level[jobs, taken] + part * step_up
    is_full = (taken == at_level.shape[1] - 1)[per_node]
    reason[node] = np.where(is_full, np.where(view.need_mw[node] >= 0, Reason.NEED, Reason.FULL_SPEED), Reason.SLOWED)
    left_mw = mw - int(caps_mw.sum())
    if is_full.all() and left_mw > 0:
        low_mw, high_mw = caps_mw[node], view.tdp_mw[node]
        caps_mw[node] = fill(int(low_mw.sum()) + left_mw, low_mw, high_mw, np.ones_like(low_mw), low_mw)
        reason[node[caps_mw[node] == high_mw]] = Reason.UNCAPPED
    return Shares("minimal-slowdown", caps_mw, reason, owner, tag, speed)


def _needs(params: Params, models: list[SpeedModel], model: Ints, view: View, node: Ints) -> Floats:
    """Per node and level of its job's speed the mW that it takes, within MOP and TDP; the first level is MOP.

    A model's curve is stretched, above idle watts, so that it ends where the node's own need does.
    """
    tdp_mw, mop_mw, need_mw = view.tdp_mw[node], view.mop_mw[node], view.need_mw[node]
    idle = np.array([one.idle for one in models])[model] * tdp_mw
    highest = np.array([one.power[0] for one in models])[model] * tdp_mw
    top = np.clip(np.where(need_mw >= 0, need_mw, highest) * (1 + params.guard / 100), idle, tdp_mw)
    floor = params.floor / 100
    part = np.array([levels(one, floor)[1] for one in models])[model]
    needs: Floats = idle[:, None] + part * (top - idle)[:, None]
    np.clip(needs, mop_mw[:, None], tdp_mw[:, None], out=needs)
    needs[:, 0] = mop_mw
    return needs


def _best(params: Params, weight: Ints, speed: Floats, need_mw: Floats, mw: int) -> tuple[Ints, Floats]:
    """Per job the level that it reaches and the part of the next step, so that the sum of weight / speed is least.

    ``speed``, ``need_mw``: jobs x levels, rising. Steps are taken in order of their gain per watt. Along one job that
    falls, as its curve has no dents, so no step is taken before the one below it.
    """
    cost = np.diff(need_mw, axis=1)
    gain = weight[:, None] * -np.diff(1 / speed, axis=1)
    per_mw = np.divide(gain, cost, out=np.full_like(gain, np.inf), where=cost > 0)
    per_mw = np.minimum.accumulate(per_mw, axis=1)
    from_speed = speed[:, :-1].T.ravel()  # step by step, so that equals rise together
    floor = params.floor / 100
    first_served = np.where(from_speed < floor, from_speed, floor)
    order = np.lexsort((-per_mw.T.ravel(), first_served)) if floor > 0 else np.argsort(-per_mw.T.ravel(), kind="stable")
    reached_mw = float(need_mw[:, 0].sum()) + np.cumsum(cost.T.ravel()[order])
    whole = int(np.searchsorted(reached_mw, mw, side="right"))
    n = len(weight)
    taken = np.bincount(order[:whole] % n, minlength=n)
    part = np.zeros(n)
    if whole < len(order):
        last = int(order[whole])
        left_mw = mw - (float(reached_mw[whole - 1]) if whole else float(need_mw[:, 0].sum()))
        part[last % n] = max(left_mw, 0.0) / cost.T.ravel()[last]
    return taken, part


METHOD = Method(
    name="minimal-slowdown",
    summary="Watts where they are predicted to save most time, none where they are not used.",
    source="ours; after the ideas beyond AAPC in REGALE D2.3, section 4.2",
    params=Params,
    compose=compose,
)
