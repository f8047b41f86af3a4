"""The reactive rule of bdpo-cpu: slow to take a clock away, quick to give it back."""

from __future__ import annotations

import numpy as np
import pytest

from nodectl.policies import bdpo_cpu
from nodectl.policies.bdpo_cpu import FREE, HIGH_IPC, IDLE, MISSING, Params, State
from pmu.layout import Layout
from pmu.readings import Sample, type_i64
from tests.policies.cpu_nodes import MAX_KHZ, layout, sample

PARAMS = Params()


def run(node: Layout, samples: list[Sample], state: State | None = None) -> tuple[State, type_i64, type_i64]:
    state = state or bdpo_cpu.initial(PARAMS, node)
    for each in samples:
        state, request = bdpo_cpu.decide(PARAMS, node, state, each)
    return state, request.target, request.reason


def with_ipc(node: Layout, ipc: float) -> Sample:
    return sample(node, np.full(len(node.cpus), MAX_KHZ), 1.0, ipc_at_top=ipc)


def test_a_clock_falls_one_step_per_dwell() -> None:
    node = layout()
    state, target, _ = run(node, [with_ipc(node, 0.3)] * 2)
    assert (target == 0).all()
    state, target, _ = run(node, [with_ipc(node, 0.3)], state)
    assert (target == MAX_KHZ - 100_000).all()
    _, target, _ = run(node, [with_ipc(node, 0.3)] * 3, state)
    assert (target == MAX_KHZ - 200_000).all()


def test_a_high_ipc_frees_the_clock_at_once() -> None:
    node = layout()
    state, _, _ = run(node, [with_ipc(node, 0.3)] * 12)
    _, target, reason = run(node, [with_ipc(node, 0.8)], state)
    assert (target == 0).all()
    assert (reason == HIGH_IPC).all()


def test_between_the_thresholds_the_clock_is_unchanged() -> None:
    node = layout()
    state, before, _ = run(node, [with_ipc(node, 0.3)] * 6)
    _, after, _ = run(node, [with_ipc(node, 0.6)] * 20, state)
    assert (after == before).all()


def test_the_clock_never_falls_below_the_floor() -> None:
    node = layout()
    _, target, _ = run(node, [with_ipc(node, 0.1)] * 500)
    assert (target >= PARAMS.floor * MAX_KHZ).all()
    assert (target <= PARAMS.floor * MAX_KHZ + 100_000).all()


def test_an_idle_sibling_does_not_keep_its_busy_core_at_a_higher_clock() -> None:
    node = layout(cpus=4, cpus_per_domain=2)
    half_idle = sample(node, np.full(4, MAX_KHZ), 1.0, ipc_at_top=0.3, busy=np.array([1.0, 0.0, 1.0, 0.0]))
    _, target, reason = run(node, [half_idle] * 6)
    assert (target == MAX_KHZ - 200_000).all()
    assert reason[1] == IDLE


def test_an_idle_domain_runs_free() -> None:
    node = layout()
    _, target, reason = run(node, [sample(node, np.full(4, MAX_KHZ), 1.0, busy=0.0)] * 10)
    assert (target == 0).all()
    assert set(reason) <= {FREE, IDLE}


def test_a_missing_reading_never_lowers_a_clock() -> None:
    node = layout()
    state, _, _ = run(node, [with_ipc(node, 0.3)] * 6)
    blind = with_ipc(node, 0.3)
    blind.cpu.ipc[2] = blind.cpu.busy[2] = np.nan
    _, target, reason = run(node, [blind] * 10, state)
    assert target[2] == 0
    assert reason[2] == MISSING
    assert (target[[0, 1, 3]] > 0).all()


@pytest.mark.parametrize("wrong", [{"low_ipc": 0.9}, {"floor": 0.0}, {"dwell_s": -1.0}])
def test_thresholds_that_contradict_each_other_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Params(**wrong)  # type: ignore[arg-type]
