"""bdpo-cpu-bounded: packages that work together, and threads that poll."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from foundation.shell.errors import UsageError
from nodectl.policies import bdpo_cpu_bounded as bounded
from nodectl.policies.bdpo_cpu_bounded import Params, State
from nodectl.policies.parts.cpu_phases import LAST_S
from nodectl.policies.parts.cpu_views import View, as_one_package, package_draws
from pmu.readings import type_f64
from tests.policies.cpu_nodes import MAX_KHZ, layout, sample

POLLING = (1.0, 1.0, 1.4)
"""IPC over that of the work alone: every third interval has a barrier, at which threads poll."""


def view(watts: float, ipc: float = 1.0, clock: float = 1.0) -> View:
    return View(ipc, clock, np.nan, watts)


def phases_of(state: State) -> int:
    return int((state.facts[:, LAST_S] >= 0).sum())


def test_packages_of_unlike_watts_that_work_together_have_one_phase_and_one_clock() -> None:
    """Else one of them is slowed down, and the other waits for it at its full power."""
    node, params = layout(cpus=8, packages=2), Params()
    state = bounded.initial(params, node)
    khz: type_f64 = np.full(8, MAX_KHZ, float)
    clocks = []
    for number in range(600):
        seen = sample(node, khz, 0.15 if number // 60 % 2 else 0.8, ipc_at_top=0.8 if number // 60 % 2 else 1.5)
        seen.energy_j[:] *= (0.96, 1.04)
        state, request = bounded.decide(params, node, state, seen)
        khz = np.where(request.target == 0, MAX_KHZ, request.target).astype(float)
        clocks.append(khz)
    assert phases_of(state) == 2
    assert (np.array(clocks)[:, 0] == np.array(clocks)[:, -1]).all()
    assert np.mean(clocks) < 0.95 * MAX_KHZ
    assert state.draws == pytest.approx([0.96, 1.04])


def test_packages_count_whatever_their_numbers_are() -> None:
    """Firmware of Arm machines numbers them with gaps; a number that is none must not become as many rows."""
    node, params = layout(cpus=8, packages=2), Params()
    zones = tuple(replace(zone, package=7 + zone.package * 2**40) for zone in node.zones)
    other = replace(node, package_of=tuple(7 + package * 2**40 for package in node.package_of), zones=zones)
    states, khz = [bounded.initial(params, one) for one in (node, other)], np.full(8, MAX_KHZ, float)
    for _ in range(20):
        answers = [
            bounded.decide(params, one, state, sample(one, khz, 0.15))
            for one, state in zip((node, other), states, strict=True)
        ]
        states = [state for state, _ in answers]
        assert (answers[0][1].target == answers[1][1].target).all()
        khz = np.where(answers[0][1].target == 0, MAX_KHZ, answers[0][1].target).astype(float)
    assert len(states[1].phase) == 2 and khz.min() < MAX_KHZ


def test_steps_that_give_more_clocks_than_memory_are_refused_by_name() -> None:
    node = layout(cpus=8)
    node = replace(node, cpus=tuple(range(8192)), domains=[replace(one, steps_khz=()) for one in node.domains])
    with pytest.raises(UsageError, match=r"step_mhz: steps of 1 MHz give 8192 CPUs \d+ clocks each: too many"):
        bounded.initial(Params(step_mhz=1), node)


def test_what_packages_draw_is_learned_only_while_they_do_the_same() -> None:
    same = package_draws(None, [view(95.0), view(105.0)])
    assert same == pytest.approx([0.95, 1.05])
    others = (view(105.0, ipc=1.2), view(105.0, clock=0.9), view(190.0), view(np.nan), None)
    for other in others:
        assert package_draws(None, [view(95.0), other]) is None
        assert package_draws(same, [view(95.0), other]) is same
    assert package_draws(None, [view(95.0)]) is None


def test_watts_of_packages_are_compared_as_those_of_their_mean() -> None:
    views = as_one_package([view(95.0), None, view(105.0)], np.array([0.95, 1.0, 1.05]))
    assert [one and one.watts for one in views] == pytest.approx([100.0, None, 100.0])
    assert as_one_package([view(95.0)], None) == [view(95.0)]


@pytest.mark.parametrize(("counts_misses", "is_slowed"), [(True, True), (False, False)])
def test_work_bound_by_memory_is_known_by_its_misses_while_threads_poll(counts_misses: bool, is_slowed: bool) -> None:
    """Polling executes many instructions and misses nothing. Without the event this work is left alone."""
    node, params = layout(), Params()
    state = bounded.initial(params, node)
    khz: type_f64 = np.full(4, MAX_KHZ, float)
    for number in range(300):
        seen = sample(node, khz, 0.1, ipc_at_top=0.1, has_stalls=False)
        if counts_misses:
            seen.cpu.llc_misses[:] = seen.cpu.instructions / 3.0
        seen.cpu.ipc[:] *= POLLING[number % 3]
        state, request = bounded.decide(params, node, state, seen)
        khz = np.where(request.target == 0, MAX_KHZ, request.target).astype(float)
    assert phases_of(state) == int(counts_misses)
    assert bool(khz[0] < 0.9 * MAX_KHZ) is is_slowed
