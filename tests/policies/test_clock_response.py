"""The second sign of bdpo-cpu: how IPC answers a first lower clock, where IPC alone says nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from nodectl.journal.state import decode_state, encode_state
from nodectl.policies import bdpo_cpu
from nodectl.policies.bdpo_cpu import FOLLOWS_CLOCK, Params, State
from nodectl.policies.parts import clock_response
from nodectl.policies.parts.clock_response import PROBE, READ
from pmu.layout import Layout
from pmu.readings import type_f64
from tests.policies.cpu_nodes import MAX_KHZ, MIN_KHZ, layout, sample

PARAMS = Params(low_ipc=3.0, high_ipc=3.1, dwell_s=0.1, floor=0.4, loss=0.04)
type_work = Callable[[int], tuple[float | type_f64, float]]


def clocks(node: Layout, work: type_work, intervals: int, params: Params = PARAMS, noise: float = 0.0) -> type_f64:
    """The relative clock of each CPU in each interval; ``work`` gives beta and the IPC at the highest clock."""
    return run(node, work, intervals, params, noise)[0]


def run(
    node: Layout, work: type_work, intervals: int, params: Params = PARAMS, noise: float = 0.0, elapsed_s: float = 0.1
) -> tuple[type_f64, State, list[int]]:
    state, khz = bdpo_cpu.initial(params, node), np.full(len(node.cpus), MAX_KHZ)
    random, found, reasons = np.random.default_rng(7), [], []
    for at in range(intervals):
        found.append(khz / MAX_KHZ)
        beta, ipc = work(at)
        seen = sample(node, khz, beta, ipc_at_top=ipc, elapsed_s=elapsed_s)
        seen.cpu.ipc[:] *= random.normal(1.0, noise, len(khz)) if noise else 1.0
        state, request = bdpo_cpu.decide(params, node, state, seen)
        khz = np.where(request.target == 0, MAX_KHZ, request.target)
        reasons.append(int(request.reason[0]))
    return np.array(found), state, reasons


def test_work_of_one_ipc_is_told_apart_by_how_it_answers() -> None:
    node = layout()
    waits, computes = (clocks(node, lambda at, beta=beta: (beta, 1.7), 60) for beta in (0.13, 0.9))  # type: ignore[misc]
    assert (computes[-1] == 1.0).all()
    assert 0.13 * (1 / waits[-1] - 1) == pytest.approx(PARAMS.loss, abs=0.01) and (waits[-1] < 0.8).all()


def test_a_look_at_computing_work_is_short_and_not_repeated_for_minutes() -> None:
    node = layout()
    seen, _, reasons = run(node, lambda at: (0.9, 1.7), 290, elapsed_s=1.0)
    is_low = (seen < 1.0).any(1)
    assert is_low.sum() == READ and PROBE <= seen.min() < PROBE + 0.03
    assert FOLLOWS_CLOCK in reasons
    again, _, _ = run(node, lambda at: (0.9, 1.7), 330, elapsed_s=1.0)
    assert (again < 1.0).any(1).sum() == 2 * READ


def test_alternating_phases_that_were_refused_are_not_tried_at_each_turn() -> None:
    node = layout()
    seen = clocks(node, lambda at: (0.9, 1.7) if at // 20 % 2 else (0.8, 2.4), 400)
    assert (seen < 1.0).any(1).sum() <= 2 * READ + 2


def test_other_work_has_the_highest_clock_at_once() -> None:
    node = layout()
    seen = clocks(node, lambda at: (0.1, 1.5) if at < 50 else (0.9, 2.4), 60)
    assert (seen[50] < 0.8).all() and (seen[51] == 1.0).all()


def test_cpus_that_do_the_same_get_one_clock_though_each_is_read_with_noise() -> None:
    node = layout(cpus=16)
    seen = clocks(node, lambda at: (0.13, 1.5), 100, noise=0.02)
    assert (seen[30:] == seen[30:, :1]).all() and (seen[-1] < 0.85).all()


def test_a_cpu_that_does_other_work_keeps_its_own_clock() -> None:
    node, betas = layout(cpus=4), np.array([0.1, 0.1, 0.1, 0.9])
    state, khz = bdpo_cpu.initial(PARAMS, node), np.full(4, MAX_KHZ)
    for _ in range(40):
        seen = sample(node, khz, betas, ipc_at_top=1.5)
        seen.cpu.ipc[3] *= 1.5
        state, request = bdpo_cpu.decide(PARAMS, node, state, seen)
        khz = np.where(request.target == 0, MAX_KHZ, request.target)
    assert (khz[:3] < 0.8 * MAX_KHZ).all() and khz[3] == MAX_KHZ


def test_the_floor_bounds_work_that_loses_nothing() -> None:
    seen = clocks(layout(), lambda at: (0.0, 1.5), 40)
    assert MIN_KHZ / MAX_KHZ <= PARAMS.floor <= seen.min() < PARAMS.floor + 0.04


def test_a_clock_that_its_domain_keeps_up_says_nothing() -> None:
    node, state = layout(), bdpo_cpu.initial(PARAMS, layout())
    for _ in range(100):
        state, request = bdpo_cpu.decide(PARAMS, node, state, sample(node, np.full(4, MAX_KHZ), 0.1, ipc_at_top=1.5))
    assert (request.target >= 0.84 * MAX_KHZ).all()


def test_the_state_goes_through_a_journal_and_is_as_before_without_loss() -> None:
    node = layout()
    _, state, _ = run(node, lambda at: (0.9, 1.7), 30)
    modules = {bdpo_cpu.__name__, clock_response.__name__}
    again = decode_state(encode_state(state), modules)
    assert encode_state(again) == encode_state(state) and again.response.refused.shape == (4, 4)
    _, plain, _ = run(node, lambda at: (0.9, 0.3), 30, Params())
    assert plain.response is None and [name for name, _ in encode_state(plain)[3]] == ["level", "low_ns"]
