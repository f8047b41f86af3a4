"""What ``gpu-ladder`` takes over from earlier runs, on GPUs with known curves."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from msgspec.structs import replace

from foundation.wire.phase_messages import KeptPhase
from nodectl.journal.state import decode_state, encode_state
from nodectl.policies import gpu_ladder
from nodectl.policies.parts import gpu_memory
from nodectl.policies.parts.gpu_choice import Params
from nodectl.policies.parts.gpu_course import EXPECTED_S
from nodectl.policies.parts.gpu_memory import KEPT_BLOCKS
from nodectl.policies.parts.gpu_phases import COUNT, LOSS, PHASES
from nodectl.policies.parts.gpu_state import State, initial
from pmu.layout import Layout
from pmu.readings import Sample
from tests.policies.gpu_nodes import Load, Plant, clock_bound, layout, memory_bound

PARAMS = Params()
NODE = layout()
MIX = (memory_bound(330.0, 0.6, seconds=6.0), clock_bound(300.0, 0.3, seconds=5.0))


def run(plant: Plant, seconds: float, state: State | None = None, node: Layout = NODE) -> State:
    state = initial(PARAMS, node) if state is None else state
    target = np.zeros(len(node.gpus), np.int64)
    for _ in range(round(seconds * 10)):
        sample: Sample = plant.step(target)
        state, request = gpu_ladder.decide(PARAMS, node, state, sample)
        target = request.target
    return state


OTHER = (clock_bound(260.0, 0.45, seconds=7.0), memory_bound(200.0, 0.35, seconds=4.0))
"""Another program."""


@functools.cache
def ended(loads: tuple[Load, ...]) -> State:
    """Of a first run."""
    return run(Plant(NODE, loads, seed=1), 100.0)


def kept_of_a_run(loads: tuple[Load, ...] = MIX) -> list[KeptPhase]:
    return gpu_memory.kept(PARAMS, NODE, ended(loads), 0)


def again(loads: tuple[Load, ...] = MIX) -> State:
    """What a second run begins with."""
    return gpu_memory.recalled(PARAMS, NODE, None, 0, kept_of_a_run(loads))


def saved(plant: Plant) -> float:
    return 1.0 - plant.joules / plant.joules_at_top


def test_a_second_run_begins_where_the_first_has_ended() -> None:
    assert len(kept_of_a_run()) == 2
    first, second = Plant(NODE, MIX, seed=2), Plant(NODE, MIX, seed=2)
    run(first, 40.0)
    run(second, 40.0, again())
    assert saved(second) > saved(first) + 0.03
    slower = second.now * 0.1 / second.work_s - 1.0
    assert slower <= 0.035


SENSITIVE = (clock_bound(330.0, 0.6, seconds=20.0), clock_bound(300.0, 0.3, seconds=20.0))
"""Every lower clock costs time."""


def test_false_figures_of_the_highest_clock_from_elsewhere_do_not_hide_what_is_lost() -> None:
    """They say that half of the clock loses nothing; a run that believed them would lose 7 % and more."""
    half = NODE.gpus[0].clocks_mhz[len(NODE.gpus[0].clocks_mhz) // 2]
    lies = [
        replace(
            phase, clocks_mhz=(phase.clocks_mhz[0], half), blocks=(120.0, 120.0),
            traffic=(0.94 * phase.traffic[0],) * 2, watts=(phase.watts[0], phase.watts[0] / 2.0),
        )
        for phase in kept_of_a_run(SENSITIVE)
    ]  # fmt: skip
    plant = Plant(NODE, SENSITIVE, seed=8)
    state = gpu_memory.recalled(PARAMS, NODE, None, 0, gpu_memory.at_second_hand(lies))
    assert gpu_memory.kept(PARAMS, NODE, state, 0) == [], "what was not measured here is not passed on"
    run(plant, 120.0, state)
    assert plant.now * 0.1 / plant.work_s - 1.0 <= PARAMS.bound


def test_phases_survive_keeping_and_recalling_as_they_were() -> None:
    phases = kept_of_a_run()
    for before, after in zip(phases, gpu_memory.kept(PARAMS, NODE, again(), 0), strict=True):
        assert after.clocks_mhz == before.clocks_mhz
        assert after.watts == pytest.approx(before.watts) and after.traffic == pytest.approx(before.traffic)
        assert max(after.blocks) <= KEPT_BLOCKS
        assert after.is_sound


def test_runs_without_anything_recalled_have_the_state_that_journals_know() -> None:
    fields = {name for name, _ in encode_state(initial(PARAMS, NODE))[3]}
    assert not fields & {"share", "settled"}
    state = again()
    read = decode_state(encode_state(state), {"nodectl.policies.parts.gpu_state"})
    assert np.array_equal(read.share, state.share) and np.array_equal(read.settled, state.settled)


def test_what_is_settled_is_not_moved_by_a_load_that_looks_alike() -> None:
    phases = kept_of_a_run()
    state = run(Plant(NODE, MIX, seed=3), 60.0, again())
    for before, after in zip(phases, gpu_memory.kept(PARAMS, NODE, state, 0), strict=True):
        settled = [
            mhz
            for mhz, blocks in zip(before.clocks_mhz, before.blocks, strict=True)
            if blocks >= gpu_memory.SETTLED_BLOCKS
        ]
        assert settled
        where = {mhz: place for place, mhz in enumerate(after.clocks_mhz)}
        for mhz in settled:
            assert after.traffic[where[mhz]] == before.traffic[before.clocks_mhz.index(mhz)]


def test_a_program_that_changed_under_its_name_costs_its_bound_and_is_no_fit() -> None:
    plant = Plant(NODE, OTHER, seed=4)
    state = run(plant, 100.0, again())
    assert plant.now * 0.1 / plant.work_s - 1.0 <= 0.035
    assert gpu_memory.fit(NODE, state, 0) < 0.5
    assert gpu_memory.fit(NODE, run(Plant(NODE, MIX, 5), 20.0, again()), 0) > 0.9
    assert np.isnan(gpu_memory.fit(NODE, ended(MIX), 0))


def test_the_first_seconds_tell_which_program_it_is() -> None:
    tables = [kept_of_a_run(), kept_of_a_run(OTHER)]
    for own, loads in enumerate((MIX, OTHER)):
        state = run(Plant(NODE, loads, seed=6), 4.0)
        far = [gpu_memory.distance(PARAMS, NODE, state, 0, table) for table in tables]
        assert far[own] < 2.0 < far[1 - own] - 2.0
    assert np.isnan(gpu_memory.distance(PARAMS, NODE, initial(PARAMS, NODE), 0, tables[0]))


def test_phases_taken_for_two_are_kept_as_one() -> None:
    phases = kept_of_a_run()
    state = gpu_memory.recalled(PARAMS, NODE, None, 0, [*phases, phases[0]])
    assert len(gpu_memory.kept(PARAMS, NODE, state, 0)) == len(phases)


def test_what_was_recalled_in_the_middle_of_a_run_leaves_the_account_as_it_was() -> None:
    state = ended(MIX)
    lost_s = float((state.table[0, :, 3] * state.table[0, :, LOSS] / (1 + state.table[0, :, LOSS])).sum())
    after = gpu_memory.recalled(PARAMS, NODE, state, 0, kept_of_a_run())
    assert after.forgotten_s[0] == pytest.approx(state.forgotten_s[0] + lost_s)
    assert after.time_s == state.time_s and after.phase[0] == -1 and after.level[0] == 0
    assert state.table[0, :, COUNT].any(), "the state given stays as it was"


def test_the_budget_goes_where_a_second_saves_most_among_all_pairs_of_clocks() -> None:
    state = again()
    phases = gpu_memory._phases_of(PARAMS, NODE, state, 0)
    assert state.share is not None
    seconds = EXPECTED_S * state.share[0]
    weight = seconds[:2] / seconds[:2].sum()
    losses = np.array([gpu_memory.planned(phases, phase, seconds, 0.027, 0.09) for phase in (0, 1)])
    assert weight @ losses <= 0.027 + 1e-6
    loss = phases.table[:2, LOSS]
    watts = np.stack([phases.power(phase) for phase in (0, 1)])
    joules = weight[:, None] * watts * (1.0 + loss)
    pairs = joules[0][:, None] + joules[1][None, :]
    lost = weight[0] * loss[0][:, None] + weight[1] * loss[1][None, :]
    own = [int(np.argmin(np.where(abs(loss[phase] - losses[phase]) < 1e-6, watts[phase], np.inf))) for phase in (0, 1)]
    apart = [int(np.argmin(np.where(loss[phase] <= 0.027, joules[phase], np.inf))) for phase in (0, 1)]
    assert pairs[own[0], own[1]] <= pairs[lost <= 0.027].min() * 1.01, "of all pairs of clocks"
    assert pairs[own[0], own[1]] < pairs[apart[0], apart[1]], "each phase with the same allowance"
    assert gpu_memory.planned(phases, PHASES - 1, seconds, 0.027, 0.09) == pytest.approx(0.027), "nothing known of it"
