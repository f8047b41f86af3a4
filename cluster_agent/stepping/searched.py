"""A searched baseline: of a few orders, the one that serves the waiting jobs best if nothing else is submitted.

Every ``every_s``, at a decision, each order is tried on a blind fork, which knows what a scheduler knows: the jobs
that wait, and estimates. It runs until all of them have started; the order with the least sum of their bounded
slowdowns decides until the next search (Talby and Feitelson, IPDPS 2005; Deng, Song, Ren, Iosup, SC'13; the forks are
ours).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cluster_agent.replay.measures import bounded_slowdown
from cluster_agent.scheduler.job_columns import Int64s
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.world import World
from cluster_agent.stepping.steps import Steps


def estimated_slowdown(steps: Steps, order: Composition) -> float:
    """The sum over the waiting jobs if this order decides from here on and all run for as long as estimated."""
    blind = steps.fork(order, blind=True)
    estimate_s = dict(zip(steps.queue["job"].tolist(), steps.queue["estimate_s"].tolist(), strict=True))
    blind.run()
    run_s = np.array([estimate_s[job] for job in blind.started.tolist()], np.int64)
    return float(bounded_slowdown(blind.wait_s, run_s).sum())


def search(world: World, orders: Sequence[Composition], every_s: int) -> tuple[Int64s, list[int]]:
    """When each job of the log starts (s), and how often each of ``orders`` decided; among equals the first does."""
    steps, start_s = Steps(world, orders[0], "choices"), np.full(len(world.jobs), -1, np.int64)
    chosen = [0] * len(orders)
    while True:
        start_s[steps.started] = steps.wait_s + world.jobs.submit_s[steps.started]
        if steps.is_over:
            return start_s, chosen
        costs = [estimated_slowdown(steps, order) for order in orders]
        best = int(np.argmin(costs))
        chosen[best] += 1
        until_s = steps.now_s + every_s
        steps = steps.fork(orders[best])
        steps.run(until_s)
        if not steps.is_over:
            steps.advance()
