"""The oracle finds the least energy under a bound: as good as trying everything, and never over the bound."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodectl.demo.costs import cpu_costs, gpu_costs
from nodectl.demo.oracle import PhaseCosts, best_clocks
from twin.machine import load_machine
from twin.workload import load_workload


@st.composite
def phases(draw: st.DrawFn) -> list[PhaseCosts]:
    made = []
    for number in range(draw(st.integers(1, 3))):
        clocks = draw(st.integers(1, 4))
        top_s = draw(st.floats(1.0, 20.0))
        extra = sorted(draw(st.lists(st.floats(0.0, 0.2), min_size=clocks - 1, max_size=clocks - 1)), reverse=True)
        joules = draw(st.lists(st.floats(1.0, 1000.0), min_size=clocks, max_size=clocks))
        seconds = np.array([top_s * (1 + share) for share in extra] + [top_s])
        made.append(PhaseCosts(f"phase-{number}", seconds, np.array(joules)))
    return made


def tried_one_by_one(costs: list[PhaseCosts], bound: float) -> float:
    limit = (1 + bound) * sum(phase.seconds[-1] for phase in costs)
    return min(
        sum(phase.joules[clock] for phase, clock in zip(costs, clocks, strict=True))
        for clocks in itertools.product(*(range(len(phase.seconds)) for phase in costs))
        if sum(phase.seconds[clock] for phase, clock in zip(costs, clocks, strict=True)) <= limit
    )


@settings(max_examples=60)
@given(phases(), st.sampled_from([0.01, 0.03, 0.1]))
def test_nothing_under_the_bound_is_better(costs: list[PhaseCosts], bound: float) -> None:
    found = best_clocks(costs, bound)
    joules = sum(phase.joules[clock] for phase, clock in zip(costs, found.clocks, strict=True))
    assert found.slowdown <= bound + 1e-9
    # rounding up to a cell of the time budget may only hide combinations that lie within a cell per phase of the bound
    assert joules <= tried_one_by_one(costs, bound * (1 - len(costs) / 4000)) + 1e-6


def test_a_wider_bound_never_saves_less() -> None:
    machine = load_machine("xh2415")
    costs = gpu_costs(load_workload("easywave", machine).truth)
    savings = [best_clocks(costs, bound).saving for bound in (0.001, 0.01, 0.03, 0.1)]
    assert savings == sorted(savings)
    assert savings[-1] > 0.2


def test_a_clock_bound_code_leaves_the_oracle_nothing() -> None:
    best = best_clocks(cpu_costs("curie", "hpl", 1, 0.2, 20.0), 0.03)
    assert best.saving == pytest.approx(0.0, abs=0.005)
