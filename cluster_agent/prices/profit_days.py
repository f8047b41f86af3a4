"""Days of a log, planned one after the other for profit; and the six rules that a plan has to beat.

At midnight a plan is made of the jobs that wait and of those that are submitted until the next midnight: that these are
known is an oracle, as in Bridi's study (PhD thesis, Bologna 2018, ch. 6). How long jobs run is known as

true       in his study, an oracle as well: the plan is carried out as it is
requested  the requested times, or
predicted  the mean of the user's last two run times: the plan gives an order, in which each job starts as soon as it
           fits, with true run times

The rules (EST, WT and Profit, each strict or not) run over all days with the same knowledge. Profit is a job's profit
over its costs, and a core-hour earns the same in every job, so that its order is that of watts per core.

What nodes draw without jobs is counted apart: a node goes off after ``OFF_AFTER_S`` without a job and boots in time for
the next one, in plans and under rules alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from cluster_agent.cluster import Machine
from cluster_agent.prices.profit_model import J_PER_KWH, NONE, Profit, Site, Window, idle, profit, window
from cluster_agent.prices.profit_search import SEARCHES, Day, Decoder, Schedules, multi
from cluster_agent.scheduler.job_columns import NEVER_S, Float64s, Int64s, Jobs
from cluster_agent.scheduler.native.native_list_plan import CListPlan
from cluster_agent.scheduler.plans.plan_phase import RunningOnNodes, Situation
from cluster_agent.scheduler.policies.rule_based import LEAST_W, MOST_W
from cluster_agent.scheduler.policy_phases import Queue
from cluster_agent.scheduler.power_cap import UNCAPPED
from cluster_agent.scheduler.unlike_nodes.node_aware import Placed
from cluster_agent.scheduler.unlike_nodes.node_jobs import Nodes, nodes_of

Knowledge: TypeAlias = Literal["true", "requested", "predicted"]
KNOWLEDGE: Final[tuple[Knowledge, ...]] = ("true", "requested", "predicted")

DAY_S: Final = 86_400
OFF_AFTER_S: Final = 300
"""Ours, as ``idle_off_s``."""

RECENT: Final = 50
"""Ours: how many earlier jobs of a user are looked through for two that have ended."""

RULES: Final = tuple((rule, strict) for rule in ("est", "wt", "profit") for strict in (False, True))


class Work(msgspec.Struct, frozen=True):
    """The jobs of a log on equal nodes: a job of more cores than a node has takes whole nodes, and pays its cores."""

    jobs: Jobs
    units: Int64s
    need: Int64s
    watts: Float64s
    spans: dict[str, Int64s]
    nodes: Nodes

    def __len__(self) -> int:
        return len(self.jobs)


class Carried(msgspec.Struct, frozen=True):
    """What happened: per job its start (``NEVER_S``: none) and nodes."""

    start_s: Int64s
    placed: dict[int, Placed]


class PlannedDays(msgspec.Struct, frozen=True):
    """The days of one search with one knowledge: what was carried out, and what each plan took."""

    carried: Carried
    tried: int
    jobs_planned: int


def work_of(jobs: Jobs, machine: Machine, seed: int = 1) -> Work:
    """Watts per core are drawn evenly from 7.8 to 11.11 W (thesis, ch. 6), since a job log has none."""
    cores = machine.node.cores
    width = jobs.width.astype(np.int64)
    units = -(-width // cores)
    nodes = nodes_of(machine)
    need = np.zeros((len(jobs), nodes.has.shape[1]), np.int64)
    need[:, 0] = np.where(width < cores, width, cores)
    watts = width * np.random.default_rng(seed).uniform(LEAST_W, MOST_W, len(jobs))
    spans = {"true": jobs.run_s, "requested": jobs.request_s, "predicted": _predicted_s(jobs)}
    return Work(jobs, units, need, watts, spans, nodes)


def _predicted_s(jobs: Jobs) -> Int64s:
    """The mean of the user's last two jobs that have ended, if each had started at once; at most the request."""
    found = jobs.request_s.copy()
    earlier: dict[int, list[tuple[int, int]]] = {}
    rows = zip(jobs.submit_s.tolist(), jobs.run_s.tolist(), jobs.user.tolist(), strict=True)
    for job, (submit_s, run_s, user) in enumerate(rows):
        past = earlier.setdefault(user, [])
        ended = [took_s for end_s, took_s in past[: -RECENT - 1 : -1] if end_s <= submit_s][:2]
        if ended:
            found[job] = min(math.ceil(sum(ended) / len(ended)), found[job])
        past.append((submit_s + run_s, run_s))
    return found


# --- plans, day after day


def planned(
    work: Work,
    site: Site,
    days: int,
    search: str,
    knowledge: Knowledge,
    iterations: int,
    decoder: Decoder = "serial",
    step: Callable[[int], Any] = lambda day: None,
) -> PlannedDays:
    """All days, from second 0 of ``work``; ``step`` is called as each is planned."""
    start_s = np.full(len(work), NEVER_S)
    placed: dict[int, Placed] = {}
    tried = most_jobs = 0
    for day in range(days):
        from_s, to_s = day * DAY_S, (day + 1) * DAY_S
        known = np.flatnonzero((work.jobs.submit_s < to_s) & (start_s == NEVER_S))
        most_jobs = max(most_jobs, len(known))
        if len(known):
            as_planned = _day(work, knowledge, known, start_s, placed, window(site, from_s, to_s), decoder)
            best = multi(as_planned)
            best = SEARCHES[search](as_planned, best, iterations)
            tried += best.tried
            schedules = Schedules(as_planned)
            schedules.release_s[:] = best.release_s
            begins_s, order = schedules.start_s(best.order), np.array(best.order)
            if knowledge != "true":  # the plan is an order
                order = order[np.argsort(begins_s[order], kind="stable")]
                schedules = Schedules(_day(work, "true", known, start_s, placed, as_planned.of, "list"))
                begins_s = schedules.start_s(order.tolist())
            _carry_out(schedules.plan(order.tolist()), known, begins_s, start_s, placed)
        step(day)
    return PlannedDays(Carried(start_s, placed), tried, most_jobs)


def _carry_out(plan: CListPlan, known: Int64s, begins_s: Int64s, start_s: Int64s, placed: dict[int, Placed]) -> None:
    """What starts on the day."""
    start_s[known] = begins_s
    for position in np.flatnonzero(begins_s < NEVER_S).tolist():
        placed[int(known[position])] = plan.placed(position)


def _day(
    work: Work,
    knowledge: Knowledge,
    known: Int64s,
    start_s: Int64s,
    placed: dict[int, Placed],
    of: Window,
    decoder: Decoder,
) -> Day:
    now_s, span_s, jobs = int(of.edges[0]), work.spans[knowledge], work.jobs
    runs = np.flatnonzero((start_s < now_s) & (start_s + jobs.run_s > now_s))
    runs = runs[np.argsort(start_s[runs], kind="stable")]
    free = work.nodes.has.copy()
    for job in runs.tolist():
        np.subtract.at(free, placed[job].node, placed[job].count[:, None] * work.need[job])
    end_s = np.maximum(start_s[runs] + span_s[runs], now_s + 1)
    on = tuple(placed[job] for job in runs.tolist())
    running = RunningOnNodes(runs, end_s, np.zeros(len(runs)), work.need[runs], on)
    queue = _queue(work, known, span_s)
    situation = Situation(now_s, queue, work.need[known], running, free, UNCAPPED, "pack")
    return Day(situation, np.maximum(jobs.submit_s[known], now_s), of, decoder)


def _queue(work: Work, known: Int64s, span_s: Int64s) -> Queue:
    jobs = work.jobs
    return Queue(
        known.astype(np.int32),
        jobs.submit_s[known],
        jobs.request_s[known],
        span_s[known],
        jobs.width[known],
        jobs.user[known],
        units=work.units[known].astype(np.float64),
        watts=work.watts[known],
    )


# --- rules


def by_rule(work: Work, days: int, rule: str, is_strict: bool, knowledge: Knowledge) -> Carried:
    """All days under a rule, from second 0."""
    jobs, every = work.jobs, np.arange(len(work))
    keys = {"est": jobs.submit_s, "wt": work.spans[knowledge], "profit": work.watts / jobs.width}
    no_job = RunningOnNodes(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), np.empty((0, 4), np.int64), ())
    queue = _queue(work, every, jobs.run_s)
    situation = Situation(0, queue, work.need, no_job, work.nodes.has, UNCAPPED, "pack")
    plan = CListPlan(situation, np.zeros(len(work)), None, jobs.submit_s, days * DAY_S, is_strict)
    start_s = plan.start_s(np.lexsort((every, keys[rule])).tolist())
    starts = np.flatnonzero(start_s < NEVER_S).tolist()
    return Carried(start_s, {job: plan.placed(job) for job in starts})


# --- what it was worth


class Worth(msgspec.Struct, frozen=True):
    """Of all days: profit as in the thesis, and what nodes without jobs cost next to it."""

    jobs: Profit
    without_jobs: Profit
    boots: int
    used: float  # core-seconds of jobs over those that there are
    started: int

    @property
    def with_idle(self) -> float:
        """EUR with idle nodes and boots counted."""
        return self.jobs.total + self.without_jobs.total


def worth(work: Work, site: Site, machine: Machine, days: int, carried: Carried) -> Worth:
    """Up to the end of the last day."""
    total, without, boots, core_s = NONE, NONE, 0, 0.0
    starts = carried.start_s < NEVER_S
    start_s, run_s, watts = carried.start_s[starts], work.jobs.run_s[starts], work.watts[starts]
    cores = work.jobs.width[starts].astype(np.int64)
    busy = busy_spells(work, carried)
    for day in range(days):
        of = window(site, day * DAY_S, (day + 1) * DAY_S)
        found = profit(of, start_s, run_s, cores, watts)
        joules, booted = _joules_without_jobs(of.edges, busy, machine, days * DAY_S)
        gone_s = np.clip(of.edges[:, None] - start_s, 0, run_s)
        total, boots = total + found, boots + booted
        without += idle(of, joules, np.diff(gone_s @ watts) / J_PER_KWH)
        core_s += float((gone_s[-1] - gone_s[0]) @ cores)
    share = core_s / (machine.nodes * machine.node.cores * days * DAY_S)
    return Worth(total, without, boots, share, int(starts.sum()))


def busy_spells(work: Work, carried: Carried) -> npt.NDArray[np.int64]:
    """Rows (node, from_s, to_s) in which a node has a job, by node and time, none next to each other."""
    rows = [np.empty((0, 3), np.int64)]
    run_s = work.jobs.run_s
    for job, placed in carried.placed.items():
        table = np.empty((len(placed.node), 3), np.int64)
        table[:, 0], table[:, 1] = placed.node, carried.start_s[job]
        table[:, 2] = carried.start_s[job] + run_s[job]
        rows.append(table)
    table = np.concatenate(rows)
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    if not len(table):
        return table
    far = 2 * int(table[:, 2].max()) + 1  # so that nodes lie one after another
    ends = np.maximum.accumulate(table[:, 0] * far + table[:, 2])
    begins = table[:, 0] * far + table[:, 1]
    first = np.flatnonzero(np.concatenate([[True], begins[1:] > ends[:-1]]))
    last = np.concatenate([first[1:] - 1, [len(table) - 1]])
    return np.stack([table[first, 0], table[first, 1], ends[last] - table[first, 0] * far], axis=1)


def _joules_without_jobs(
    edges: Int64s, busy: npt.NDArray[np.int64], machine: Machine, end_s: int
) -> tuple[Float64s, int]:
    """Per segment, of all nodes, and how many boots these are. A boot counts when it ends."""
    node = machine.node
    from_s, to_s = _gaps(busy, machine.nodes, end_s)
    off_s = np.minimum(from_s + OFF_AFTER_S, to_s)
    joules = np.zeros(len(edges) - 1)
    for begin, end, watts in ((from_s, off_s, node.idle_w), (off_s, to_s, node.off_w)):
        joules += watts * np.diff(np.clip(edges[:, None] - begin, 0, end - begin).sum(axis=1))
    boots = to_s[(off_s < to_s) & (to_s < end_s)]
    switched = np.histogram(boots, edges)[0]
    inside = (boots >= edges[0]) & (boots < edges[-1])
    return joules + (node.boot_j + node.switch_off_j) * switched, int(inside.sum())


def _gaps(busy: npt.NDArray[np.int64], nodes: int, end_s: int) -> tuple[Int64s, Int64s]:
    """From when to when a node has no job, up to ``end_s``."""
    edge = np.arange(nodes)
    node = np.concatenate([edge, busy[:, 0]])
    since = np.concatenate([np.zeros(nodes, np.int64), busy[:, 2]])
    until = np.concatenate([busy[:, 1], np.full(nodes, end_s)])
    until_node = np.concatenate([busy[:, 0], edge])
    since = since[np.lexsort((since, node))]
    until = until[np.lexsort((until, until_node))]
    since, until = np.minimum(since, end_s), np.minimum(until, end_s)
    some = until > since
    return since[some], until[some]


# --- the profile


def hours(work: Work, machine: Machine, carried: Carried, day: int) -> Iterator[tuple[int, float, int]]:
    """(Second, watts, cores) of each hour of the day: the most that is drawn in it, nodes without a job included, and
    the cores of the most nodes with a job."""
    busy = busy_spells(work, carried)
    starts = carried.start_s < NEVER_S
    start_s, watts = carried.start_s[starts], work.watts[starts]
    end_s = start_s + work.jobs.run_s[starts]
    for from_s in range(day * DAY_S, (day + 1) * DAY_S, 3600):
        inside = start_s[(start_s > from_s) & (start_s < from_s + 3600)]
        times = np.unique(np.concatenate([[from_s], inside, end_s[(end_s > from_s) & (end_s < from_s + 3600)]]))
        drawn_w = np.array([watts[(start_s <= at) & (end_s > at)].sum() for at in times.tolist()])
        used = np.array([((busy[:, 1] <= at) & (busy[:, 2] > at)).sum() for at in times.tolist()])
        drawn_w += machine.node.idle_w * (machine.nodes - used)
        yield from_s, float(math.ceil(drawn_w.max())), int(used.max()) * machine.node.cores
