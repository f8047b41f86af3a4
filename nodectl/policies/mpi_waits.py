"""mpi-waits: the lowest clock while all that computes on a node waits in MPI, after COUNTDOWN.

COUNTDOWN (Cesarini et al., IEEE Transactions on Computers 70(5), 2021) lowers the clock of a core whose rank has waited
in MPI for 500 us, since a rank that polls for a message gains nothing by a high clock. It does so inside the
application. Here the application hints that its threads wait (docs/hints.md), and the agent decides.

The page counts waits of the whole node and does not say of which CPU. So the clocks fall only when every busy CPU is
accounted for by a thread that has waited through the whole last interval. A short wait is never seen, and a rank that
computes while others wait for it keeps the clocks high. They are free again at the next interval, which begins as soon
as a long wait ends.

A rank that is killed in a call never ends its wait, and would explain a CPU for the rest of the job. So threads that
have waited for longer than 10 to 20 s explain none.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from nodectl.policies.api import Policy, Request
from pmu.layout import Layout
from pmu.readings import Quality, Sample

FREE, WAITS, NO_HINT = range(3)
REASONS: Final = ("a busy CPU that no waiting thread explains", "all busy CPUs wait in MPI", "no hint")
STUCK_S: Final = 10.0
"""Ours: far longer than most waits, and short against a job."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``busy``: share of an interval from which on a CPU is busy (ours: above that of an operating system)."""

    busy: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.busy <= 1:
            raise ValueError("busy must be in (0, 1]")


class State(msgspec.Struct, frozen=True):
    """``least``: the fewest threads that waited at an end of an interval since ``age_s``; ``stuck``: the same of the
    ``STUCK_S`` before."""

    stuck: int = 0
    least: int = 0
    age_s: float = 0.0


def initial(params: Params, layout: Layout) -> State:
    """No thread is stuck."""
    return State()


def decide(params: Params, layout: Layout, state: State, sample: Sample) -> tuple[State, Request]:
    """The lowest clock of each domain, or none."""
    free = Request.free(len(layout.cpus))
    is_hinted = sample.hints.quality == Quality.MEASURED
    busy = ~(sample.cpu.busy < params.busy)  # a CPU without readings counts as busy
    state = _watched(state, sample) if is_hinted else State()
    alive = sample.hints.waiting - min(state.stuck, state.least)
    waits = is_hinted and 0 < alive >= np.count_nonzero(busy)
    target = free.target
    if waits:
        for domain in layout.domains:
            target[list(domain.cpus)] = domain.min_khz
    reason = np.full(len(layout.cpus), WAITS if waits else FREE if is_hinted else NO_HINT, np.uint8)
    return state, Request(target, reason, free.loss, free.saved_w)


def _watched(state: State, sample: Sample) -> State:
    least = min(state.least, sample.hints.pending) if state.age_s else sample.hints.pending
    if state.age_s + sample.elapsed_s >= STUCK_S:
        return State(least, least)
    return State(state.stuck, least, state.age_s + sample.elapsed_s)


POLICY: Final = Policy(
    name="mpi-waits",
    domain="cpu",
    summary="the lowest core clock while every busy CPU waits in MPI, by hints of the job",
    source="after COUNTDOWN (Cesarini et al. 2021); node-wide waits and the rule are ours",
    reasons=REASONS,
    params=Params,
    initial=initial,
    decide=decide,
    is_woken=True,
)
