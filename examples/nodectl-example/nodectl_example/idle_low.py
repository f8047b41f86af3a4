"""The lowest clock for a CPU that has been idle for a while; all others run free."""

from __future__ import annotations

import msgspec
import numpy as np

from nodectl.policies.api import Policy, Request
from pmu.layout import Layout
from pmu.readings import Sample, type_i64


class Params(msgspec.Struct, frozen=True):
    """A CPU is idle once it was busy for less than ``below`` of its time in each of the last ``after`` periods."""

    below: float = 0.05
    after: int = 10

    def __post_init__(self) -> None:
        if not 0 <= self.below <= 1:
            raise ValueError("below has to be within 0 and 1")
        if self.after < 1:
            raise ValueError("after has to be 1 or more")


class State(msgspec.Struct, frozen=True):
    """For how many periods in a row each CPU has been idle."""

    periods: type_i64


def initial(params: Params, layout: Layout) -> State:
    """No CPU has been idle yet."""
    return State(np.zeros(len(layout.cpus), np.int64))


def decide(params: Params, layout: Layout, state: State, sample: Sample) -> tuple[State, Request]:
    """A missing reading is NaN, which is not below anything: such a CPU runs free."""
    periods = np.where(sample.cpu.busy < params.below, state.periods + 1, 0)
    is_idle = periods >= params.after
    lowest_khz = np.zeros(len(layout.cpus), np.int64)
    for domain in layout.domains:
        lowest_khz[list(domain.cpus)] = domain.min_khz
    free = Request.free(len(layout.cpus))  # what is lost or saved is not estimated
    request = Request(np.where(is_idle, lowest_khz, 0), is_idle.astype(np.uint8), free.loss, free.saved_w)
    return State(periods), request


POLICY = Policy(
    name="idle-low",
    domain="cpu",
    summary="lowest clock for CPUs that are idle",
    source="an example",
    reasons=("works: runs free", "idle: lowest clock"),
    params=Params,
    initial=initial,
    decide=decide,
)
