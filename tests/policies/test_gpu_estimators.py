"""gpu-ladder tells phases apart by more than watts, doubts its means, and believes what the application reports."""

from __future__ import annotations

import numpy as np
import pytest

from nodectl.policies import gpu_ladder
from nodectl.policies.gpu_ladder import POLICY
from nodectl.policies.parts.gpu_choice import CHECK, Params
from nodectl.policies.parts.gpu_course import Course
from nodectl.policies.parts.gpu_curves import LEVELS, Estimator, curve_bank
from nodectl.policies.parts.gpu_phases import (
    CHECKS,
    COLUMNS,
    CONFUSED,
    COUNT,
    FACTS,
    LOSS,
    OTHER,
    PHASES,
    UNITS,
    Phases,
    Sight,
)
from nodectl.policies.parts.gpu_state import State
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


def test_utilisation_tells_phases_apart_that_draw_the_same_and_move_as_much() -> None:
    phases = Phases(np.zeros((PHASES, COLUMNS, LEVELS)), np.zeros((PHASES, FACTS)), BANK, 0.03, True)
    phases.learn(0, 0, Sight(0.4, 200.0, 5.0, 0.6), 1.0)
    assert phases.strangeness(0, Sight(0.4, 200.0, 5.0, 0.62))[0] < 1.0
    assert phases.strangeness(0, Sight(0.4, 200.0, 5.0, 0.9))[0] > 4.5
    lower = float(BANK.stretch[8])
    stretched = 0.6 * (1 + lower) / (1 + 0.6 * lower)
    watts = float(200.0 * phases.power(0)[8] / phases.power(0)[0])
    assert phases.strangeness(8, Sight(0.38, watts, 5.0, stretched))[0] < 1.0, "kernels take longer, gaps do not"


def test_two_phases_that_cannot_be_told_apart_at_low_clocks_do_not_stay_there() -> None:
    """Neither watts nor traffic differ there, so the means of what is taken for one phase show no loss. Believed, they
    cost a fifth of the speed for as long as the job runs."""
    loads = [
        Load(lambda x: max(0.0, 1.2 * (x - 0.75)), 200.0, 0.55, 4.0, low_watts=130.0),
        Load(lambda x: x, 205.0, 0.55 * 1.5, 4.0, low_watts=130.0),
    ]
    slowdown = {}
    for check in (Params().check, 0.0):
        plant = Plant(layout(), loads)
        _, reasons = run(plant, 200, Params(check=check))
        slowdown[check] = plant.slowdown
        assert (CHECK in reasons) == (check > 0)
    assert slowdown[0.0] > 0.18
    assert slowdown[Params().check] < 0.7 * slowdown[0.0]


def looks(at: dict[int, tuple[int, float]]) -> list[int]:
    """The levels at which a phase is mistaken for another after looks, by level: how many, and how many found it."""
    phases = Phases(np.zeros((PHASES, COLUMNS, LEVELS)), np.zeros((PHASES, FACTS)), BANK, 0.03, True)
    phases.table[1, LOSS] = 0.2
    for level, (count, mistaken) in at.items():
        phases.table[0, [CHECKS, CONFUSED, OTHER], level] = count, mistaken, 1
    is_mistaken, loss = phases.mistaken_for(0)
    assert (loss == np.where(is_mistaken, 0.2, 0.0)).all(), "the other phase's loss is assumed there"
    return np.flatnonzero(is_mistaken).tolist()


def test_a_phase_is_charged_with_another_where_looks_found_that_one() -> None:
    assert looks({12: (2, 2)}) == list(range(12, LEVELS))
    assert looks({12: (1, 1)}) == [], "it may just have ended"
    assert looks({12: (9, 2)}) == [], "so may two of nine"
    assert looks({12: (4, 1.4)}) == [], "looks since then have found it"
    assert looks({8: (1, 1), 12: (1, 1)}) == list(range(12, LEVELS)), "what is mistaken at a clock is so at lower ones"
    assert looks({5: (9, 0), 12: (2, 2)}) == list(range(12, LEVELS)), "what is known at a clock is not so at lower ones"


def test_a_phase_that_lasts_longer_than_before_is_looked_at_and_less_often_the_longer_it_is_known() -> None:
    """Ends that show themselves need no looks."""
    short = Load(lambda x: 0.2 * x, 200.0, 0.55, 5.0)
    plant = Plant(layout(), [short, Load(lambda x: 0.2 * x, 300.0, 0.3, 5.0)])
    state, reasons = run(plant, 60)
    assert reasons.count(CHECK) == 0
    while plant.part % 2 == 1:
        state, _ = run(plant, 0.1, state=state)
    plant.loads = [Load(short.loss, short.watts, short.traffic)]
    _, reasons = run(plant, 90, state=state)
    begins = [at / 10 for at in range(1, len(reasons)) if reasons[at] == CHECK != reasons[at - 1]]
    assert 3 <= len(begins) <= 7
    assert (np.diff(begins, n=2) > 0).all()


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
