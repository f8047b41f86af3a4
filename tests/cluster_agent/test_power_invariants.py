"""What holds for every schedule on a machine with watts: the caps, the joules, and that no job is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster_agent.cap_steps import Cap
from cluster_agent.cluster import Machine
from cluster_agent.scheduler import cap_reactions, power_phases
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.governor import NO_CAP, Governor, Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_phases import Power
from tests.cluster_agent.power_traces import (
    CORES,
    cap_lists,
    compositions,
    conservative,
    machine,
    machines,
    off_by_cap,
    watts_of,
    with_places,
)
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, jobs_of, traces


def replayed(composition: Composition, jobs: Jobs, watts: Watts, caps: list[Cap]) -> NativeReplay:
    replay = NativeReplay(composition, jobs, PROCESSORS, watts, caps)
    replay.run(EVERYTHING_ENDED)
    return replay


@settings(max_examples=150)
@given(
    jobs=traces(), composition=compositions | with_places, caps=cap_lists(), on=machines, has_predictions=st.booleans()
)
def test_the_joules_of_jobs_idle_off_and_switching_are_the_clusters(
    jobs: Jobs, composition: Composition, caps: list[Cap], on: Machine, has_predictions: bool
) -> None:
    replay = replayed(composition, jobs, watts_of(composition, on, jobs, has_predictions), caps)
    joules = replay.joules
    parts = float(replay.job_j.sum()) + joules["idle"] + joules["off"] + joules["switching"]
    assert parts == pytest.approx(joules["cluster"], rel=1e-9)
    times_s, drawn_w, _ = replay.power
    if len(jobs):
        lasts_s = np.diff([*times_s, int(replay.end_s.max())])
        assert float((drawn_w * np.maximum(lasts_s, 0)).sum()) <= joules["cluster"] + 1e-6


@settings(max_examples=100)
@given(jobs=traces(), caps=cap_lists(), on=machines, off=st.sampled_from([None, off_by_cap(1), off_by_cap(3)]))
def test_the_watts_of_every_second_are_those_of_its_nodes(
    jobs: Jobs, caps: list[Cap], on: Machine, off: power_phases.Idle | None
) -> None:
    """Second by second from the table of jobs and the plan, without the meter."""
    caps = [replace(cap, announced_s=0) for cap in caps]
    composition = Composition(backfill="easy", power=Power(floor_mhz=1000, idle=off))
    watts = Watts.of(on, composition.power)
    replay = replayed(composition, jobs, watts, caps)
    if not len(jobs):
        return
    first_s, (times_s, drawn_w, _) = int(jobs.submit_s[0]), replay.power
    rows = Governor(watts, composition.power, caps, first_s).plan(first_s)
    for now_s in range(first_s, int(replay.end_s.max())):
        row = [row for row in rows if row.from_s <= now_s][-1]
        runs = np.flatnonzero((replay.start_s <= now_s) & (now_s < replay.end_s))
        extra_w = sum(
            int(jobs.width[job]) * (on.node.busy_w[replay.level[job]] - on.node.idle_w) / CORES for job in runs
        )
        expected_w = (row.idle_uw + row.off_uw + row.switching_uw) / 1e6 + extra_w
        assert drawn_w[np.searchsorted(times_s, now_s, "right") - 1] == pytest.approx(expected_w)


def above_cap_ws(replay: NativeReplay, from_s: int, to_s: int) -> float:
    times_s, drawn_w, cap_w = replay.power
    spans_s = np.clip(np.diff(np.clip([*times_s, to_s], from_s, to_s)), 0, None)
    return float((np.clip(drawn_w - cap_w, 0, None) * spans_s).sum())


@settings(max_examples=150)
@given(jobs=traces(), caps=cap_lists(), composition=compositions | conservative, on=machines)
def test_a_cap_known_from_the_start_is_never_exceeded_by_jobs(
    jobs: Jobs, caps: list[Cap], composition: Composition, on: Machine
) -> None:
    """The machine without jobs may draw more than a low cap; no job may add to that."""
    caps = [replace(cap, announced_s=0) for cap in caps]
    composition = replace(composition, power=replace(composition.power or Power(), react=None, looks_ahead=True))
    replay = replayed(composition, jobs, watts_of(composition, on, jobs, False), caps)
    if not len(jobs):
        return
    watts, first_s = Watts.of(on, composition.power), int(jobs.submit_s[0])
    rows = Governor(watts, composition.power, caps, first_s).plan(first_s)
    for at_s, drawn_w, cap_w in zip(*replay.power, strict=True):
        row = [row for row in rows if row.from_s <= at_s][-1]
        assert drawn_w <= max(cap_w, (row.idle_uw + row.off_uw + row.switching_uw) / 1e6) + 1e-6
        assert row.cap_uw == NO_CAP or cap_w == row.cap_uw / 1e6


@settings(max_examples=150)
@given(jobs=traces(), caps=cap_lists(), composition=compositions | conservative, on=machines, requeue=st.booleans())
def test_with_kill_a_cap_is_never_exceeded_however_late_it_is_known(
    jobs: Jobs, caps: list[Cap], composition: Composition, on: Machine, requeue: bool
) -> None:
    given_power = composition.power or Power()
    killing = replace(given_power, react=cap_reactions.kills("newest-start"), requeue=requeue, idle=None)
    composition = replace(composition, power=killing)
    replay = replayed(composition, jobs, watts_of(composition, on, jobs, False), caps)
    for drawn_w, cap_w in zip(*replay.power[1:], strict=True):
        assert drawn_w <= max(cap_w, on.idle_w) + 1e-6


@settings(max_examples=150)
@given(jobs=traces(), caps=cap_lists(), composition=compositions | conservative, on=machines)
def test_no_job_is_lost_by_killing(jobs: Jobs, caps: list[Cap], composition: Composition, on: Machine) -> None:
    """All windows end, so every job that is requeued runs in the end, to its full length."""
    replay = replayed(composition, jobs, watts_of(composition, on, jobs, False), caps)
    assert replay.ended == len(jobs)
    requeues = composition.power is None or composition.power.requeue
    for job in range(len(jobs)):
        if requeues or not replay.kills[job]:
            assert replay.end_s[job] - replay.start_s[job] >= jobs.run_s[job]
        assert (replay.lost[job] > 0) <= (replay.kills[job] > 0)


@settings(max_examples=100)
@given(jobs=traces(), caps=cap_lists(), composition=compositions | conservative, on=machines)
def test_a_replay_with_watts_gives_the_same_bits_again(
    jobs: Jobs, caps: list[Cap], composition: Composition, on: Machine
) -> None:
    def everything() -> list[object]:
        replay = replayed(composition, jobs, watts_of(composition, on, jobs, True), caps)
        return [replay.start_s.tolist(), replay.end_s.tolist(), replay.job_j.tolist(), replay.joules]

    assert everything() == everything()


def test_a_policy_that_knows_no_watts_backfills_above_a_cap_too() -> None:
    jobs = jobs_of([(0, 1, 1, width, 0) for width in (1, 8, 2, 1)])
    composition = Composition(backfill="easy")
    replay = replayed(composition, jobs, Watts.of(machine(0, False), None), [Cap(0, 400, 255.0)])
    assert replay.start_s.tolist() == [0, 0, 1, 0]


def test_without_caps_a_machine_with_watts_schedules_as_one_without() -> None:
    rng = np.random.default_rng(7)
    rows = [
        (int(submit), int(run), int(run + slack), int(width), int(user))
        for submit, run, slack, width, user in zip(
            np.sort(rng.integers(0, 3000, 300)), rng.integers(1, 90, 300), rng.integers(0, 50, 300),
            rng.integers(1, 11, 300), rng.integers(0, 4, 300), strict=True,
        )
    ]  # fmt: skip
    jobs = jobs_of(rows)
    for composition in (Composition(backfill="easy", scan="shortest", estimate="mean2"), Composition()):
        plain = NativeReplay(composition, jobs, PROCESSORS)
        plain.run(EVERYTHING_ENDED)
        metered = replayed(composition, jobs, Watts.of(machine(0, True), None), [])
        assert metered.start_s.tolist() == plain.start_s.tolist()
        assert metered.end_s.tolist() == plain.end_s.tolist()
