"""bdpo-cpu-bounded keeps its bound, spends it where it buys most, and gives nothing away blindly."""

from __future__ import annotations

import numpy as np
import pytest

from nodectl.policies import bdpo_cpu_bounded as bounded
from nodectl.policies.bdpo_cpu_bounded import MISSING, Params, State
from pmu.layout import Layout
from pmu.readings import type_f64, type_i64
from tests.policies.cpu_nodes import MAX_KHZ, layout, sample


def drive(
    node: Layout, betas: list[float], params: Params, state: State | None = None, *, has_stalls: bool = True
) -> tuple[State, float, type_f64]:
    """Run one interval per beta in closed loop; the true slowdown, and the mean clock of each distinct beta, follow."""
    state = state or bounded.initial(params, node)
    khz = np.full(len(node.cpus), MAX_KHZ, float)
    done = 0.0
    clocks: dict[float, list[float]] = {}
    for beta in betas:
        relative = khz.min() / MAX_KHZ
        done += 0.1 / (beta / relative + 1 - beta)
        clocks.setdefault(beta, []).append(relative)
        level = 1.5 if beta > 0.5 else 0.8
        state, request = bounded.decide(
            params, node, state, sample(node, khz, beta, ipc_at_top=level, has_stalls=has_stalls)
        )
        khz = np.where(request.target == 0, MAX_KHZ, request.target).astype(float)
    return state, 0.1 * len(betas) / done - 1.0, np.array([np.mean(clocks[beta]) for beta in sorted(clocks)])


@pytest.mark.parametrize("beta", [0.05, 0.2, 0.4, 0.6, 0.9])
@pytest.mark.parametrize("has_stalls", [True, False])
def test_the_bound_is_kept_over_the_whole_run(beta: float, has_stalls: bool) -> None:
    _, slowdown, _ = drive(layout(), [beta] * 600, Params(), has_stalls=has_stalls)
    assert slowdown <= 0.03


def test_a_memory_bound_phase_gets_a_low_clock_and_most_of_the_bound() -> None:
    _, slowdown, clock = drive(layout(), [0.15] * 600, Params())
    assert clock[0] < 0.9
    assert 0.02 < slowdown <= 0.03


def test_two_alternating_phases_are_told_apart() -> None:
    phases = ([0.1] * 50 + [0.95] * 50) * 10
    _, slowdown, (memory, compute) = drive(layout(), phases, Params())
    assert memory < 0.85
    assert compute > 0.96
    assert slowdown <= 0.03


def test_packages_in_the_same_phase_get_the_same_clock() -> None:
    node = layout(cpus=8, packages=2)
    params = Params()
    state = bounded.initial(params, node)
    khz: type_i64 | type_f64 = np.full(8, MAX_KHZ)
    for _ in range(100):
        state, request = bounded.decide(params, node, state, sample(node, np.asarray(khz, float), 0.2))
        khz = np.where(request.target == 0, MAX_KHZ, request.target)
    assert len(set(request.target)) == 1
    assert request.target[0] > 0


def test_a_missing_reading_never_lowers_a_clock() -> None:
    node = layout()
    params = Params()
    state, _, _ = drive(node, [0.1] * 100, params)
    blind = sample(node, np.full(4, MAX_KHZ, float), 0.1)
    blind.cpu.ipc[:] = blind.cpu.busy[:] = np.nan
    _, request = bounded.decide(params, node, state, blind)
    assert (request.target == 0).all()
    assert (request.reason == MISSING).all()


def test_deciding_leaves_the_given_state_as_it_was() -> None:
    node = layout()
    params = Params()
    state, _, _ = drive(node, [0.2] * 50, params)
    before = {name: np.array(getattr(state, name), copy=True) for name in State.__slots__}
    first = bounded.decide(params, node, state, sample(node, np.full(4, MAX_KHZ, float), 0.2))[1]
    second = bounded.decide(params, node, state, sample(node, np.full(4, MAX_KHZ, float), 0.2))[1]
    assert all(np.array_equal(getattr(state, name), before[name]) for name in State.__slots__)
    assert first.target.tobytes() == second.target.tobytes()


def test_a_bound_outside_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match="bound"):
        Params(bound=1.5)
