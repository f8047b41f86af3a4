"""The native engine against the plain-Python one on machines with watts: random traces, caps, frequencies,
switch-off."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cluster_agent.cap_steps import Cap
from cluster_agent.cluster import Machine
from cluster_agent.replay.simulated import JumpingClock, SimulatedMachine
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policy_phases import Composition, Scan
from cluster_agent.scheduler.power_phases import Power
from tests.cluster_agent.power_traces import (
    any_composition,
    cap_lists,
    compositions,
    machine,
    machines,
    off_by_cap,
    rescaling,
    watts_of,
    with_places,
)
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, jobs_of, traces
from tests.oracle.power_scheduler import PowerReferenceScheduler


@settings(max_examples=150)
@given(jobs=traces(), composition=compositions, caps=cap_lists(), on=machines, has_predictions=st.booleans())
@example(  # a cap that is exceeded, since the policy asks for no watts: backfilling is not to heed it either
    jobs=jobs_of([(0, 1, 1, 2 if job == 9 else 1, 0) for job in range(20)]),
    composition=Composition(backfill="easy"),
    caps=[Cap(0, 1, 130.0)],
    on=machine(0.0, False),
    has_predictions=False,
)
@example(  # the last two share a node that boots, whose watts count once
    jobs=jobs_of([(0, 1, 1, 1, 0), (2, 1, 1, 5, 0), (3, 1, 1, 1, 0), (3, 1, 1, 2, 0)]),
    composition=Composition(backfill="easy", power=Power(), idle_off_s=1),
    caps=[Cap(0, 400, 365.0)],
    on=machine(2.5, False),
    has_predictions=False,
)
def test_with_watts_too_the_engines_give_the_same_schedule(
    jobs: Jobs, composition: Composition, caps: list[Cap], on: Machine, has_predictions: bool
) -> None:
    check_engines(jobs, composition, caps, on, has_predictions)


def check_engines(jobs: Jobs, composition: Composition, caps: list[Cap], on: Machine, has_predictions: bool) -> None:
    watts = watts_of(composition, on, jobs, has_predictions)
    reference = PowerReferenceScheduler(composition, jobs, watts, caps)
    simulated = SimulatedMachine(jobs, composition.ties, watts.slowdown, watts.requeues)
    run(reference, JumpingClock(), simulated)

    replay = NativeReplay(composition, jobs, PROCESSORS, watts, caps)
    replay.run(EVERYTHING_ENDED)
    n = range(len(jobs))
    assert replay.start_s.tolist() == [simulated.start_s.get(job, -1) for job in n]
    assert replay.end_s.tolist() == [simulated.end_s.get(job, -1) for job in n]
    assert replay.level.tolist() == [reference.levels.get(job, 0) for job in n]
    for job, processors in reference.held.items():
        given = {one for first, last in replay.processors(job) for one in range(first, last + 1)}
        assert given == processors


@settings(max_examples=50)
@given(jobs=traces(), composition=compositions, caps=cap_lists(), on=machines)
def test_with_watts_too_the_native_scheduler_decides_alike_in_both_loops(
    jobs: Jobs, composition: Composition, caps: list[Cap], on: Machine
) -> None:
    watts = watts_of(composition, on, jobs, False)
    simulated = SimulatedMachine(jobs, composition.ties, watts.slowdown, watts.requeues)
    run(NativeScheduler(composition, jobs, PROCESSORS, watts, caps), JumpingClock(), simulated)
    replay = NativeReplay(composition, jobs, PROCESSORS, watts, caps)
    replay.run(EVERYTHING_ENDED)
    assert replay.start_s.tolist() == [simulated.start_s.get(job, -1) for job in range(len(jobs))]
    assert replay.end_s.tolist() == [simulated.end_s.get(job, -1) for job in range(len(jobs))]


@settings(max_examples=200)
@given(
    jobs=traces(),
    composition=any_composition(
        backfill=st.sampled_from(["none", "list", "easy", "easy", "conservative"]),
        ties=st.just("sc15"),
        idle_off_s=st.sampled_from([1, 3, 12]),
        passes_if_new_fits=st.booleans(),
    ),
    on=machines,
)
@example(  # at 20 the fifth job takes the processors of the fourth, which are not free once more when that ends
    jobs=jobs_of([(5, 9, 12, 4, 0), (6, 11, 11, 4, 0), (10, 6, 9, 3, 0), (14, 3, 3, 7, 0), (17, 3, 6, 6, 0),
                  (18, 3, 6, 4, 0), (18, 8, 8, 7, 0), (19, 4, 4, 6, 0), (20, 7, 7, 1, 0)]),
    composition=Composition(backfill="easy", ties="sc15", idle_off_s=1000),
    on=machine(0.0, False),
)  # fmt: skip
def test_nodes_go_off_and_boot_with_single_events_too(jobs: Jobs, composition: Composition, on: Machine) -> None:
    check_engines(jobs, composition, [], on, False)


@settings(max_examples=200)
@given(jobs=traces(), composition=with_places, caps=cap_lists(), on=machines, has_predictions=st.booleans())
def test_a_place_for_everybody_is_planned_in_watts_too(
    jobs: Jobs, composition: Composition, caps: list[Cap], on: Machine, has_predictions: bool
) -> None:
    check_engines(jobs, composition, caps, on, has_predictions)


@settings(max_examples=250)
@given(
    jobs=traces(),
    composition=any_composition(backfill=st.sampled_from(["none", "list", "easy", "easy"]), power=rescaling),
    caps=cap_lists(),
    on=machines,
    has_watts=st.booleans(),
)
def test_jobs_that_are_lowered_and_metered_are_so_in_both_engines(
    jobs: Jobs, composition: Composition, caps: list[Cap], on: Machine, has_watts: bool
) -> None:
    check_engines(jobs, composition, caps, on, has_watts)


def crowd(rng: np.random.Generator, jobs: int) -> Jobs:
    """More work than the machine can do, so that there is always a head that waits."""
    run_s = rng.integers(1, 30, jobs)
    columns = np.sort(rng.integers(0, 150, jobs)), run_s, run_s + rng.integers(0, 8, jobs), rng.integers(1, 8, jobs)
    return jobs_of([(*map(int, row), int(row[0]) % 3) for row in zip(*columns, strict=True)])


@pytest.mark.parametrize("seed", range(60))
def test_the_engines_agree_on_a_crowded_machine_under_caps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs, on = crowd(rng, 40), machine([0.0, 2.0][seed % 2], True)
    caps = [Cap(int(at_s), int(at_s) + 45, float(rng.integers(200, 480)), seed % 3 * 10) for at_s in (30, 90, 150, 300)]
    power = Power(floor_mhz=[None, 1500, 1000][seed % 3], idle=[None, off_by_cap(1), off_by_cap(2)][seed // 3 % 3])
    if seed % 4 == 3:
        caps = [Cap(0, 4000, float(rng.integers(260, 450)))]
    scan: Scan = "shortest" if seed % 5 == 0 else "queue"
    composition = Composition(
        backfill="easy",
        scan=scan,
        power=power,
        estimate="mean2" if seed % 7 == 0 else "requested",
        idle_off_s=[None, 3, 15][seed // 2 % 3],
    )
    watts = watts_of(composition, on, jobs, seed % 2 == 0)
    simulated = SimulatedMachine(jobs, composition.ties, watts.slowdown, watts.requeues)
    run(PowerReferenceScheduler(composition, jobs, watts, caps), JumpingClock(), simulated)
    replay = NativeReplay(composition, jobs, PROCESSORS, watts, caps)
    replay.run(EVERYTHING_ENDED)
    assert replay.start_s.tolist() == [simulated.start_s.get(job, -1) for job in range(len(jobs))]
