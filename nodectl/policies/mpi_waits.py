"""mpi-waits: the lowest clock while all that computes on a node waits in MPI, after COUNTDOWN.

COUNTDOWN (Cesarini et al., IEEE Transactions on Computers 70(5), 2021) lowers the clock of a core whose rank has waited
in MPI for 500 us, since a rank that polls for a message gains nothing by a high clock. It does so inside the
application. Here the application hints that its threads wait (docs/hints.md), and the agent decides.

The page counts waits of the whole node and does not say of which CPU. So the clocks fall only when every busy CPU is
accounted for by a thread that has waited through the whole last interval. A short wait is never seen, and a rank that
computes while others wait for it keeps the clocks high. They are free again at the next interval, which begins as soon
as a long wait ends.
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


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``busy``: share of an interval from which on a CPU is busy (ours: above that of an operating system)."""

    busy: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.busy <= 1:
            raise ValueError("busy must be in (0, 1]")


class State(msgspec.Struct, frozen=True):
    """Nothing is remembered."""


def initial(params: Params, layout: Layout) -> State:
    """No state."""
    return State()


def decide(params: Params, layout: Layout, state: State, sample: Sample) -> tuple[State, Request]:
    """The lowest clock of each domain, or none."""
    free = Request.free(len(layout.cpus))
    is_hinted = sample.hints.quality == Quality.MEASURED
    busy = ~(sample.cpu.busy < params.busy)  # a CPU without readings counts as busy
    waits = is_hinted and 0 < sample.hints.waiting >= np.count_nonzero(busy)
    target = free.target
    if waits:
        for domain in layout.domains:
            target[list(domain.cpus)] = domain.min_khz
    reason = np.full(len(layout.cpus), WAITS if waits else FREE if is_hinted else NO_HINT, np.uint8)
    return state, Request(target, reason, free.loss, free.saved_w)


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
