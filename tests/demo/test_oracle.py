"""The oracle finds the least energy under a bound: as good as trying everything, and never over the bound."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lab.node_demo.costs import MOST_CLOCKS, at_fixed_clock, cpu_costs, gpu_costs, run_at
from lab.node_demo.experiment import Experiment, run
from lab.node_demo.oracle import PhaseCosts, best_clocks, best_shares
from twin.machine import Machine, load_machine
from twin.physics.model import Twin
from twin.physics.variation import Variation
from twin.programs.workload import Workload, load_workload


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


def tried_in_every_corner(costs: list[PhaseCosts], bound: float) -> float:
    """The least joules with at most one phase between two clocks: an optimum of the linear programme is such a corner,
    since one bound couples the phases."""
    limit_s = (1 + bound) * sum(float(phase.seconds[-1]) for phase in costs)
    least = np.inf
    for clocks in itertools.product(*(range(len(phase.seconds)) for phase in costs)):
        seconds = sum(float(phase.seconds[clock]) for phase, clock in zip(costs, clocks, strict=True))
        joules = sum(float(phase.joules[clock]) for phase, clock in zip(costs, clocks, strict=True))
        if seconds <= limit_s:
            least = min(least, joules)
        for phase, clock in zip(costs, clocks, strict=True):
            for other in range(len(phase.seconds)):
                change_s = float(phase.seconds[other] - phase.seconds[clock])
                part = (limit_s - seconds) / change_s if change_s else -1.0
                if 0 <= part <= 1:
                    least = min(least, joules + part * float(phase.joules[other] - phase.joules[clock]))
    return least


ROUNDED = PhaseCosts("phase-0", np.array([4.21875, 4.21875, 3.95507812, 3.75]), np.array([1.0, 1.0, 2.0, 3.0]))
"""Rounding leaves 1e-16 of the bound after its first edge."""


@settings(max_examples=100, deadline=None)
@given(phases(), st.sampled_from([0.01, 0.03, 0.1]))
@example([ROUNDED], 0.03)
def test_no_sharing_of_phases_between_clocks_is_better(costs: list[PhaseCosts], bound: float) -> None:
    found = best_shares(costs, bound)
    mixed = list(zip(costs, found.shares, strict=True))
    seconds = sum((1 - part) * phase.seconds[one] + part * phase.seconds[other] for phase, (one, other, part) in mixed)
    joules = sum((1 - part) * phase.joules[one] + part * phase.joules[other] for phase, (one, other, part) in mixed)
    reference_s, reference_j = sum(phase.seconds[-1] for phase in costs), sum(phase.joules[-1] for phase in costs)
    assert found.slowdown == pytest.approx(seconds / reference_s - 1) and found.slowdown <= bound + 1e-9
    assert found.saving == pytest.approx(1 - joules / reference_j)
    assert joules == pytest.approx(tried_in_every_corner(costs, bound), abs=1e-6)
    assert found.saving >= best_clocks(costs, bound).saving - 1e-9


def test_an_oracle_that_may_share_a_phase_between_two_clocks_saves_more_where_the_next_clock_costs_too_much() -> None:
    """NAS on Curie: the next lower clocks exceed the bound of 3 %."""
    costs = cpu_costs("curie", "nas", 1, 0.2, 20.0)
    one, two = best_clocks(costs, 0.03), best_shares(costs, 0.03)
    assert one.slowdown < 0.02 and two.slowdown == pytest.approx(0.03, abs=1e-6)
    assert two.saving > one.saving + 0.01


@pytest.mark.parametrize(("machine", "workload", "share"), [("rome", "triad", 0.6), ("spr-h100", "hpl", 0.6)])
def test_what_the_oracle_knows_of_a_clock_is_what_a_run_at_that_clock_costs(
    machine: str, workload: str, share: float
) -> None:
    """On shared bandwidth, and at turbo bins with wide vectors under a power limit; the run is the agent's own."""
    node, duration_s = load_machine(machine), 4.0
    clocks = node.domains[0].steps_khz
    khz = min(clocks, key=lambda clock: abs(clock - share * clocks[-1]))
    alike = Variation(node=2, iteration=0.0, power=0.0)
    costs = cpu_costs(machine, workload, 2, 0.2, duration_s, alike)
    reached = run_at(machine, workload, 2, 0.2, duration_s, 0, alike)[1]
    known = [clock for clock in clocks[:-1] if clock < reached]
    known = (known[::-2][::-1] if len(known) > MOST_CLOCKS else known) + [clocks[-1]]
    assert len(known) == len(costs[0].seconds)
    at = min(range(len(known)), key=lambda index: abs(known[index] - khz))
    fixed = run(
        Experiment(
            machine, workload, 2, 0.2, duration_s, cpu_policy="fixed", cpu_params={"clock_khz": known[at]},
            variation=alike,
        )
    )  # fmt: skip
    assert sum(phase.seconds[at] for phase in costs) == pytest.approx(fixed.time_s, rel=0.01)
    assert sum(phase.joules[at] for phase in costs) == pytest.approx(fixed.joules("node"), rel=0.01)


def test_the_oracles_clocks_cost_in_a_run_what_it_says() -> None:
    """Each phase at the clock that the oracle chose, on the same node: the sum of phases measured apart."""
    machine, variation = load_machine("curie"), Variation(node=3, iteration=0.0, power=0.0)
    costs = cpu_costs("curie", "mixed-cpu:12", 3, 0.2, 60.0, variation)
    best = best_clocks(costs, 0.03)
    twin = Twin(machine, load_workload("mixed-cpu:12", machine, seed=3, duration_s=60.0), seed=3, variation=variation)
    seconds = [0.0] * len(costs)
    while not twin.finished:
        twin.advance(0.005)
        now = [phase.seconds for phase in twin.report().phases]
        phase = next((at for at, (was, then) in enumerate(zip(seconds, now, strict=True)) if then > was), 0)
        seconds = now
        for domain in range(len(machine.domains)):
            twin.set_domain(domain, max_khz=machine.domains[0].steps_khz[best.clocks[phase]])
    reference = at_fixed_clock("curie", "mixed-cpu:12", 3, 0.2, 60.0, 0, variation)
    assert len(set(best.clocks)) > 1
    assert twin.report().time_s / reference.time_s - 1 == pytest.approx(best.slowdown, abs=0.002)
    assert 1 - twin.report().energy_j["node"] / reference.energy_j["node"] == pytest.approx(best.saving, abs=0.003)


def gpu_run(machine: Machine, work: Workload, mhz_of: Sequence[float]) -> tuple[float, float]:
    """Seconds and joules of all boards in a run in which each phase has a clock of its own."""
    twin = Twin(machine, work, seed=3)
    names = [phase.name for group in work.truth.groups if group.on_gpu for phase in group.phases]
    rows = [at for at, phase in enumerate(twin.report().phases) if phase.name in names]
    seconds, phase = [0.0] * len(rows), 0
    while not twin.finished:
        now = [twin.report().phases[row].seconds for row in rows]
        phase = next((at for at, (was, then) in enumerate(zip(seconds, now, strict=True)) if then > was), phase)
        seconds = now
        for gpu in range(machine.gpus):
            twin.lock_gpu(gpu, int(mhz_of[phase]), int(mhz_of[phase]))
        twin.advance(0.02)
    report = twin.report()
    return report.time_s, sum(joules for part, joules in report.energy_j.items() if part.startswith("gpu-"))


@pytest.mark.parametrize(("name", "workload"), [("xh2415", "easywave"), ("v100", "mixed-gpu:22")])
def test_the_gpu_oracles_clocks_cost_in_the_model_what_it_says(name: str, workload: str) -> None:
    """Each phase at its clock. The oracle's watts are those of settled temperatures; the run begins cold."""
    machine = load_machine(name)
    work = load_workload(workload, machine, seed=3, duration_s=40.0)
    costs = gpu_costs(work.truth)
    best = best_clocks(costs, 0.03)
    ladders = [phase.clocks_mhz for group in work.truth.groups if group.on_gpu for phase in group.phases]
    chosen = [
        ladder[len(ladder) - len(of.seconds) + clock]
        for ladder, of, clock in zip(ladders, costs, best.clocks, strict=True)
    ]
    top_s, top_j = gpu_run(machine, work, [ladder[-1] for ladder in ladders])
    time_s, joules = gpu_run(machine, work, chosen)
    assert len(set(chosen)) > 1
    assert top_s == pytest.approx(sum(float(phase.seconds[-1]) for phase in costs), rel=0.001)
    assert top_j == pytest.approx(sum(float(phase.joules[-1]) for phase in costs), rel=0.02)
    assert time_s / top_s - 1 == pytest.approx(best.slowdown, abs=0.002)
    assert 1 - joules / top_j == pytest.approx(best.saving, abs=0.006)


def test_slowdown_is_against_a_run_without_the_policy_not_against_work_that_has_the_memory_to_itself() -> None:
    variation = Variation(node=2)
    one = Experiment("rome", "triad", 2, 0.2, 4.0, cpu_policy="fixed", variation=variation)
    free = at_fixed_clock("rome", "triad", 2, 0.2, 4.0, 0, variation)
    without = run(one)
    assert without.slowdown > 1.0
    assert without.slowdown_against(free.time_s) == pytest.approx(0.0, abs=0.001)
