"""Searches for a day's schedule of most profit: Multi, Delay and Relaxation (Bridi, PhD thesis, Bologna 2018, ch. 6).

Each job in an order gets its earliest start next to those before it (his heuristic): the decoder ``serial`` of plans
(``native_list_plan``) does that, by the next event where he adds a second. ``list`` tries every job at each instant
instead, as rules do on line.

Multi       the best of ten keys, each upwards and downwards. He has an eleventh, the latest start, which is the
            duration downwards here: jobs of a log have no deadline.
Delay       after Multi, the job that starts last may start no earlier than one step after; then two steps, until the
            day ends, when it goes back to its best start and the next job is delayed. He does not print the step.
Relaxation  after Multi, changes of the best order, as far as they earn more. He lets a solver move jobs of one unit,
            and all starts, with the nodes of other jobs kept; on equal nodes the order decides that.

Where his searches have 4000 seconds, these have a number of schedules to make: a plan is the same on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from cluster_agent.prices.profit_model import Profit, Window, profit
from cluster_agent.scheduler.job_columns import NEVER_S, Int64s
from cluster_agent.scheduler.native.native_list_plan import CListPlan, CSerialPlan
from cluster_agent.scheduler.plans.list_search import brought_forward, moved
from cluster_agent.scheduler.plans.plan_phase import Situation

Decoder: TypeAlias = Literal["list", "serial"]
DECODERS: Final[dict[Decoder, type[CListPlan]]] = {"list": CListPlan, "serial": CSerialPlan}

STEP_S: Final = 900
"""Ours: of Delay."""


class Day(msgspec.Struct, frozen=True):
    """What is to be scheduled: the queue of ``situation``, of which no job starts before ``release_s``, nor after
    ``of`` ends."""

    situation: Situation
    release_s: Int64s
    of: Window
    decoder: Decoder = "serial"

    @property
    def span_s(self) -> Int64s:
        """How long each job is expected to run."""
        return self.situation.queue.estimate_s


class Found(msgspec.Struct, frozen=True):
    """A schedule, as the order that gives it with these releases, and what was tried for it."""

    order: tuple[int, ...]
    release_s: Int64s
    profit: Profit
    tried: int


Search: TypeAlias = Callable[[Day, Found, int], Found]
"""``search(day, of_multi, iterations)``."""


class Schedules:
    """Makes the schedules of a day. ``release_s`` may be changed between them."""

    def __init__(self, day: Day) -> None:
        self.day = day
        self.release_s = day.release_s.copy()
        weight, until_s = np.zeros(len(self.release_s)), int(day.of.edges[-1])
        self._plan = DECODERS[day.decoder](day.situation, weight, None, self.release_s, until_s)
        queue = day.situation.queue
        self._cores, self._watts = queue.width.astype(np.int64), queue.watts

    def start_s(self, order: Sequence[int]) -> Int64s:
        """Of each job; ``NEVER_S``: not on this day."""
        return self._plan.start_s(list(order))

    def plan(self, order: Sequence[int]) -> CListPlan:
        """The decoder, after this order."""
        self._plan.cost(list(order))
        return self._plan

    def profit(self, start_s: Int64s) -> Profit:
        """Of these starts."""
        starts = start_s < NEVER_S
        cores, watts = self._cores[starts], self._watts[starts]
        return profit(self.day.of, start_s[starts], self.day.span_s[starts], cores, watts)


def multi(day: Day) -> Found:
    """The best of the orders by one key."""
    schedules, best, tried = Schedules(day), None, 0
    for order in key_orders(day):
        tried += 1
        found = schedules.profit(schedules.start_s(order))
        if best is None or found.total > best.profit.total:
            best = Found(tuple(order), day.release_s, found, tried)
    assert best is not None
    return msgspec.structs.replace(best, tried=tried)


def key_orders(day: Day) -> Iterator[list[int]]:
    """By each key upwards and downwards; equal ones in order of submission."""
    queue, span_s = day.situation.queue, day.span_s
    per_core = queue.watts / queue.width  # power over profit: a core-hour earns the same in every job
    keys: list[tuple[npt.NDArray[Any], ...]] = [
        (queue.submit_s,),
        (span_s,),
        (queue.units,),
        (day.situation.need[:, 0],),
        (queue.width,),
        (queue.width * span_s,),
        (queue.watts,),
        (per_core,),
        (per_core.round(1), span_s),
        (per_core.round(1), -span_s),
    ]
    for key in keys:
        for sign in (1, -1):
            columns = [queue.job, *reversed(key[1:]), sign * key[0]]
            yield np.lexsort(columns).tolist()


def delay(day: Day, best: Found, iterations: int) -> Found:
    """Jobs wait on purpose, the last ones first."""
    schedules = Schedules(day)
    schedules.release_s[:] = best.release_s
    start_s, end_s, tried = schedules.start_s(best.order), int(day.of.edges[-1]), 0
    starting = np.flatnonzero(start_s < NEVER_S)
    for job in starting[np.argsort(-start_s[starting], kind="stable")].tolist():
        kept_s = int(schedules.release_s[job])
        for at_s in range(int(start_s[job]) + STEP_S, end_s, STEP_S):
            if tried == iterations:
                return msgspec.structs.replace(best, tried=best.tried + tried)
            tried += 1
            schedules.release_s[job] = at_s
            found = schedules.profit(schedules.start_s(best.order))
            if found.total > best.profit.total:
                best = Found(best.order, schedules.release_s.copy(), found, best.tried)
                kept_s = at_s
        schedules.release_s[job] = kept_s
    return msgspec.structs.replace(best, tried=best.tried + tried)


def relaxation(day: Day, best: Found, iterations: int) -> Found:
    """Changes of the best order; equal numbers of iterations give equal orders."""
    schedules, draw = Schedules(day), random.Random(0)
    schedules.release_s[:] = best.release_s
    change = brought_forward if day.decoder == "serial" else moved
    order = list(best.order)
    for _ in range(iterations if len(order) > 1 else 0):
        changed = change(order, draw)
        found = schedules.profit(schedules.start_s(changed))
        if found.total > best.profit.total:
            order, best = changed, Found(tuple(changed), best.release_s, found, best.tried)
    return msgspec.structs.replace(best, tried=best.tried + iterations)


def no_search(day: Day, best: Found, iterations: int) -> Found:
    """Multi alone."""
    return best


SEARCHES: Final[dict[str, Search]] = {"multi": no_search, "delay": delay, "relaxation": relaxation}
