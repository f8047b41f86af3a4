"""gpu-ladder tells phases apart by more than watts, doubts its means, and believes what the application reports."""

from __future__ import annotations

import numpy as np
import pytest

from nodectl.policies import gpu_ladder
from nodectl.policies.gpu_ladder import POLICY
from nodectl.policies.parts.gpu_choice import Params
from nodectl.policies.parts.gpu_course import Course
from nodectl.policies.parts.gpu_curves import LEVELS, Estimator, curve_bank
from nodectl.policies.parts.gpu_estimators import counting2
from nodectl.policies.parts.gpu_phases import (
    COLUMNS,
    COUNT,
    FACTS,
    LOSS,
    PHASES,
    SECONDS,
    UNITS,
    Phases,
    Sight,
    lost,
)
from nodectl.policies.parts.gpu_state import BLOCK_RATE, BLOCK_UTILIZATION, BLOCK_WATTS, PULSES, State, writable
from pmu.readings import type_i64
from tests.policies.gpu_nodes import Load, Plant, clock_bound, layout, sample

BANK = curve_bank(layout().gpus[0], 0.5)


def run(
    plant: Plant, seconds: float, params: Params | None = None, state: State | None = None
) -> tuple[State, list[int]]:
    """The state after some seconds, and each reason on the way."""
    params = params or Params()
    state = state or POLICY.initial(params, plant.node)
    target: type_i64 = np.zeros(len(plant.node.gpus), np.int64)
    reasons = []
    for _ in range(round(seconds * 10)):
        state, request = gpu_ladder.decide(params, plant.node, state, plant.step(target))
        target = request.target
        reasons.append(int(request.reason[0]))
    return state, reasons


def test_a_lasting_shift_of_traffic_ends_a_phase_and_single_blocks_do_not() -> None:
    state = POLICY.initial(Params(), layout())
    phases = Phases(np.zeros((PHASES, COLUMNS, LEVELS)), np.zeros((PHASES, FACTS)), BANK, 0.03, False)
    for number in range(12):
        phases.learn(0, 5, Sight(0.5 + 0.002 * (-1) ** number, 150.0, 5.0, 1.0), number / 2)
    course = Course(Params(), BANK, state, 0, False)
    ended = [course._has_shifted(phases, 0, 5, Sight(0.5 * odd, 150.0, 5.0, 1.0)) for odd in (1.08, 0.97, 1.03) * 3]
    assert not any(ended)
    assert phases.strangeness(5, Sight(0.46, 150.0, 5.0, 1.0))[0] < 4.5, "no single block shows it"
    ended = [course._has_shifted(phases, 0, 5, Sight(0.46, 150.0, 5.0, 1.0)) for _ in range(5)]
    assert any(ended)
    assert phases.table[0, COUNT, 5] == 2, "the mean may be one of two phases"


def test_seconds_lost_are_those_beyond_what_the_work_takes_at_the_highest_clock() -> None:
    """Ten seconds at a clock that makes work a quarter longer hold eight seconds of work."""
    table = np.zeros((COLUMNS, LEVELS))
    table[SECONDS, [3, 5]], table[LOSS, [3, 5]] = (10.0, 4.0), (0.25, 1.0)
    assert lost(table) == pytest.approx(2.0 + 2.0)


def test_what_a_forgotten_phase_has_lost_stays_in_the_account() -> None:
    state = writable(POLICY.initial(Params(), layout()))
    course = Course(Params(), BANK, state, 0, False)
    phases = course._phases()
    for number in range(PHASES):
        phases.learn(number, 0, Sight(0.9 / (number + 1), 380.0 - 30.0 * number, 5.0, 1.0), 1.0 + number)
    state.table[0, 0, SECONDS, 3], state.table[0, 0, LOSS, 3] = 10.0, 0.25
    before = float(lost(state.table[0]).sum() + state.forgotten_s[0])
    state.sums[0, [PULSES, BLOCK_RATE, BLOCK_WATTS, BLOCK_UTILIZATION]] = (5.0, 5 * 0.02, 5 * 90.0, 5 * 0.3)
    course.close_block()
    assert state.phase[0] == 0 and state.table[0, 0, SECONDS, 3] == 0.0, "the oldest made room for a ninth"
    after = float(lost(state.table[0]).sum() + state.forgotten_s[0])
    assert before == after == pytest.approx(2.0)


def test_each_stretch_in_which_units_are_counted_cuts_two_of_them() -> None:
    """As in stretches drawn at random over units of equal length."""
    random = np.random.default_rng(1)
    for stretches, length in ((1, 40.0), (8, 5.0)):
        begins, lengths = random.uniform(0.0, 1.0, (2, 4000, stretches))
        lengths += length
        counts = np.floor(begins + lengths).sum(1)
        drawn2 = float(np.var(counts / lengths.sum(1)))
        stated2 = float(counting2(np.array(counts.mean()), np.array(float(stretches))))
        edges2 = stated2 - float(counting2(np.array(counts.mean()), np.array(0.0)))
        assert drawn2 <= edges2 <= 1.5 * stretches / 6 / counts.mean() ** 2


def test_utilisation_tells_phases_apart_that_draw_the_same_and_move_as_much() -> None:
    phases = Phases(np.zeros((PHASES, COLUMNS, LEVELS)), np.zeros((PHASES, FACTS)), BANK, 0.03, True)
    phases.learn(0, 0, Sight(0.4, 200.0, 5.0, 0.6), 1.0)
    assert phases.strangeness(0, Sight(0.4, 200.0, 5.0, 0.62))[0] < 1.0
    assert phases.strangeness(0, Sight(0.4, 200.0, 5.0, 0.9))[0] > 4.5
    lower = float(BANK.stretch[8])
    stretched = 0.6 * (1 + lower) / (1 + 0.6 * lower)
    watts = float(200.0 * phases.power(0)[8] / phases.power(0)[0])
    assert phases.strangeness(8, Sight(0.38, watts, 5.0, stretched))[0] < 1.0, "kernels take longer, gaps do not"


def test_progress_shows_a_loss_that_traffic_hides() -> None:
    """Traffic that does not fall with speed, as of ``tpacf`` on a V100. Believed alone it costs more than the bound."""
    slowdowns = []
    for unit_s in (0.02, 0.0):
        load = Load(lambda x: x, 320.0, 0.3, bias=-1.0, unit_s=unit_s)
        plant = Plant(layout(), [load])
        run(plant, 90)
        slowdowns.append(plant.slowdown)
    assert slowdowns[0] < 0.035 < slowdowns[1]


def test_progress_frees_a_load_whose_traffic_falls_more_than_its_speed() -> None:
    """Traffic shows three quarters of the clock's own loss, which may be all of it."""
    savings = []
    for unit_s in (0.02, 0.0):
        plant = Plant(layout(), [Load(lambda x: 0.15 * x, 320.0, 0.3, bias=4.0, unit_s=unit_s)])
        run(plant, 150)
        savings.append(plant.saving)
        assert plant.slowdown < 0.035
    assert savings[0] > savings[1] + 0.05


def test_units_of_another_program_are_not_compared_with_those_before() -> None:
    plant = Plant(layout(), [Load(lambda x: x, 320.0, 0.3, unit_s=0.02)])
    state, _ = run(plant, 20)
    before = state.table[0, :, UNITS].sum()
    plant.program, plant.loads = 2, [Load(lambda x: x, 320.0, 0.3, unit_s=0.2)]
    state, _ = run(plant, 5, state=state)
    assert before > 500
    assert 0 < state.table[0, :, UNITS].sum() < 30


def test_units_of_several_kinds_count_for_less_the_more_they_contradict_every_curve() -> None:
    loss = 0.3 * BANK.stretch
    at = [0, 4, 8, 12, 16]
    error = np.full(LEVELS, np.inf)
    error[at] = 0.004
    shown = Estimator(0.4 / (1.0 + loss), error)
    steady, jumping = np.full(LEVELS, 50.0), np.full(LEVELS, 50.0)
    jumping[[0, 8, 16]] = 30.0
    alone = BANK.weigh(shown, 1.0).mean[10]
    with_steady = BANK.weigh(shown, 1.0, Estimator(steady, error)).mean[10]
    with_jumping = BANK.weigh(shown, 1.0, Estimator(jumping, error)).mean[10]
    assert with_steady < 0.6 * alone
    assert with_jumping == pytest.approx(alone, rel=0.25)


def test_progress_counts_for_no_group_while_the_gpus_run_several() -> None:
    node = layout(2)
    state = POLICY.initial(Params(), node)
    one, two = (
        Plant(layout(), [Load(lambda x: 0.0, 330.0, 0.6, unit_s=0.02)]),
        Plant(layout(), [clock_bound(150.0, 0.1)]),
    )
    target = np.zeros(2, np.int64)
    for number in range(200):
        given = [plant.step(target[at : at + 1]) for at, plant in enumerate((one, two))]
        columns = {
            name: [float(getattr(each.gpu, name)[0]) for each in given]
            for name in ("sm_clock_mhz", "power_w", "energy_j", "gpu_utilization", "memory_utilization")
        }
        state, request = gpu_ladder.decide(
            Params(), node, state, sample(node, number, progress=given[0].progress, **columns)
        )
        target = request.target
        if number == 60:
            assert len(set(state.leader.tolist())) == 2
            units = state.table[:, :, UNITS].sum()
    assert state.table[:, :, UNITS].sum() == units
