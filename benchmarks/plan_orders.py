"""How many orders a plan can try in the time that twenty take in Python.

The queues are those of ``bridi_tables --times``. In Python an order is decoded as the first trial of serial schedules
was: sums of what all nodes have free and of watts, as columns of NumPy, each job at its earliest start over its whole
span. In C (``csrc/resources``) it is on nodes. Three ways to try orders, one job brought forward in each:

whole   ``serial``, each order decoded to its end, with what two orders begin with kept
search  ``serial`` as ``planned`` searches: the first 32 jobs of the order, cut once the cost cannot be below the best
list    ``list``, each order cut once the cost cannot be below the best

Processor times, medians of some runs, next to the yardstick of the tests.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from benchmarks.bridi_tables import situations
from benchmarks.experiment import save
from cluster_agent.scheduler.job_columns import Float64s
from cluster_agent.scheduler.native.native_list_plan import CListPlan, CSerialPlan
from cluster_agent.scheduler.plans.list_search import FRONT, brought_forward, first_orders, weights
from cluster_agent.scheduler.plans.plan_phase import Situation
from tests.yardstick import yardstick_us

PYTHON_ORDERS: Final = 20
RUNS: Final = 5
TRIED: Final = 40_000
"""Orders times waiting jobs."""
FAR_S: Final = 2.0**60


def earliest_starts(situation: Situation, order: Sequence[int]) -> Float64s:
    """Per position, in sums over all nodes."""
    running, queue, now_s = situation.running, situation.queue, float(situation.now_s)
    at_s = np.unique(np.concatenate([[now_s], running.end_s.astype(float)]))
    left = np.zeros((len(at_s), situation.free.shape[1] + 1))
    left[:, :-1] = situation.free.sum(axis=0)
    left[:, -1] = min(situation.cap.at(int(now_s)), 1e12)
    for end_s, watts, need, placed in zip(running.end_s, running.watts, running.need, running.placed, strict=True):
        left[at_s >= end_s, :-1] += placed.count.sum() * need
        left[at_s < end_s, -1] -= watts
    wanted = np.column_stack([situation.need * queue.units[:, None], queue.watts]).astype(float)
    start_s = np.full(len(order), FAR_S)
    for job in order:
        span_s, fits = float(queue.estimate_s[job]), (left >= wanted[job] - 1e-6).all(axis=1)
        begin = begin_of_room(at_s, fits, span_s)
        start_s[job] = at_s[begin]
        end = int(np.searchsorted(at_s, at_s[begin] + span_s))
        if end == len(at_s) or at_s[end] != at_s[begin] + span_s:
            at_s = np.insert(at_s, end, at_s[begin] + span_s)
            left = np.insert(left, end, left[end - 1], axis=0)
        left[begin:end] -= wanted[job]
    return start_s


def begin_of_room(at_s: Float64s, fits: np.ndarray, span_s: float) -> int:
    """The first step from which on there is room for so long; there is some in the end."""
    begin = 0
    for step in np.flatnonzero(~fits).tolist():
        if step > begin and at_s[step] - at_s[begin] >= span_s:
            break
        begin = step + 1
    return begin


def python_s(situation: Situation, order: list[int]) -> float:
    """Processor seconds of twenty orders."""
    draw, tried, weight = random.Random(1), order, weights(situation, "promise")
    begun_s = time.thread_time()
    for _ in range(PYTHON_ORDERS):
        float(weight @ (earliest_starts(situation, tried) - situation.now_s))
        tried = brought_forward(order, draw)
    return time.thread_time() - begun_s


def orders_per_s(schedules: CListPlan, order: list[int], waiting: int, is_cut: bool) -> float:
    """The best so far is changed, again and again."""
    draw, least = random.Random(1), schedules.cost(order)
    begun_s = time.thread_time()
    tries = TRIED // waiting
    for _ in range(tries):
        changed = brought_forward(order, draw)
        cost = schedules.cost(changed, least) if is_cut else schedules.cost(changed)
        if cost < least:
            order, least = changed, cost
    return tries / (time.thread_time() - begun_s)


def ways(situation: Situation) -> dict[str, Callable[[list[int]], float]]:
    waiting = len(situation.queue.job)
    weight, late = weights(situation, "late"), np.ones(waiting)
    return {
        "whole": lambda order: orders_per_s(CSerialPlan(situation, weight, late), order, waiting, is_cut=False),
        "search": lambda order: orders_per_s(CSerialPlan(situation, weight, late), order[:FRONT], waiting, is_cut=True),
        "list": lambda order: orders_per_s(CListPlan(situation, weight, late), order, waiting, is_cut=True),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one run of each")
    parser.add_argument("--waiting", type=int, nargs="*", help="of the queues those with so many jobs alone")
    options = parser.parse_args(arguments)
    runs, found = 1 if options.quick else RUNS, {}
    for waiting, situation in situations().items():
        if options.waiting and waiting not in options.waiting:
            continue
        order = first_orders(situation, weights(situation, "late"))[0]
        row = {"yardstick_us": statistics.median(yardstick_us(20) for _ in range(runs))}
        row["python_s"] = statistics.median(python_s(situation, order) for _ in range(runs))
        print(
            f"{waiting:5} waiting: 20 orders in Python {row['python_s']:.3f} s; yardstick {row['yardstick_us']:.0f} us"
        )
        for name, measured in ways(situation).items():
            row[name] = statistics.median(measured(order) for _ in range(runs))
            print(f"      {name:6} {row[name]:9.0f} orders a second, {row[name] * row['python_s']:9.0f} in that time")
        found[str(waiting)] = row
    save("plan_orders", found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
