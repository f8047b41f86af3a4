"""Idle nodes go off and boot on demand: by hand, and second by second against the plain-Python nodes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_agent.cap_steps import Cap
from cluster_agent.cli import main
from cluster_agent.cluster import Machine, load_machine
from cluster_agent.errors import WrongUseError
from cluster_agent.replay.simulated import JumpingClock, SimulatedMachine
from cluster_agent.scheduler.idle_off import IdleOff
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_phases import Idle, Power
from tests.cluster_agent.power_traces import cap_lists, compositions, machine, machines, off_by_cap
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, jobs_of, traces
from tests.oracle.power_scheduler import PowerReferenceScheduler

SAMPLE = Path(__file__).parents[2] / "cluster_agent" / "samples" / "generated-500.swf"
TAURUS = load_machine("taurus:nodes=2,cores=1")


def replayed(composition: Composition, jobs: Jobs, on: Machine, caps: list[Cap] | None = None) -> NativeReplay:
    replay = NativeReplay(composition, jobs, on.processors, Watts.of(on, composition.power), caps or [])
    replay.run(EVERYTHING_ENDED)
    return replay


def test_a_job_waits_for_the_nodes_that_it_boots() -> None:
    """Taurus: off 6.1 s after the timer, which counts as 7; a boot takes 152 s."""
    jobs = jobs_of([(0, 10, 10, 1, 0), (1000, 20, 20, 1, 0), (1100, 5, 5, 1, 0)])
    replay = replayed(choose("easy:idle_off_s=300").composition, jobs, TAURUS)
    assert replay.start_s.tolist() == [0, 1152, 1252]
    assert replay.boots == 2  # the third job finds the other node off too
    times_s, drawn_w, _ = replay.power
    idle, busy, boot, going, off = 95.0, 190.738, 19030 / 152, 620 / 7, 9.75
    assert dict(zip(times_s.tolist(), drawn_w.round(3).tolist(), strict=True)) == {
        0: round(busy + idle, 3),
        10: 2 * idle,
        300: round(idle + going, 3),  # the node that never had a job
        307: idle + off,
        310: round(going + off, 3),
        317: 2 * off,
        1000: round(boot + off, 3),
        1100: round(2 * boot, 3),
        1152: round(busy + boot, 3),
        1172: round(idle + boot, 3),
        1252: round(idle + busy, 3),
        1257: 2 * idle,
    }
    joules = replay.joules
    assert joules["switching"] == pytest.approx(2 * 19030 + 2 * 620)
    assert joules["off"] == pytest.approx(off * (1000 - 307 + 1100 - 317))
    assert replay.job_j.tolist() == pytest.approx([1907.38, 20 * busy, 5 * busy])


def test_nodes_that_are_on_are_taken_before_those_that_are_off() -> None:
    """Node 0 is off when node 1 still runs its job; the next one-node job gets node 1 and starts at once."""
    jobs = jobs_of([(0, 10, 10, 1, 0), (0, 900, 900, 1, 0), (1000, 5, 5, 1, 0)])
    replay = replayed(choose("easy:idle_off_s=300").composition, jobs, TAURUS)
    assert replay.start_s.tolist() == [0, 0, 1000]
    assert replay.processors(2) == [(1, 1)]
    assert replay.boots == 0


def test_a_cap_delays_a_job_that_would_boot_too_many_nodes() -> None:
    """Planned with are a node's highest watts, 203.12 W: both together are 406.24 W."""
    jobs = jobs_of([(0, 2000, 2000, 1, 0), (1000, 20, 20, 1, 0)])
    composition = choose("powercap:mode=idle,idle_off_s=300").composition
    assert replayed(composition, jobs, TAURUS, [Cap(0, 10**6, 406.25)]).start_s.tolist() == [0, 1152]
    assert replayed(composition, jobs, TAURUS, [Cap(0, 10**6, 406.23)]).start_s.tolist() == [0, 2000]


def test_of_a_job_that_is_ended_while_one_of_its_nodes_boots_the_other_can_be_had_without_a_boot() -> None:
    """Job 1 has booted node 0 by 1152; job 2 boots node 1 until 1252 and is withdrawn before. The cap then allows one
    processor more on a node that is on, and no boot."""
    on = load_machine("taurus:nodes=2,cores=2")
    jobs = jobs_of([(0, 1, 1, 4, 0), (1000, 900, 900, 1, 0), (1100, 900, 900, 3, 0), (1201, 9, 9, 1, 0)])
    composition = choose("powercap:mode=idle,idle_off_s=300").composition
    scheduler = NativeScheduler(composition, jobs, on.processors, Watts.of(on, composition.power))
    scheduler.submit(0, 0)
    scheduler.decide(0)
    scheduler.end(0)
    for now_s in (1, 301, 308):
        scheduler.advance(now_s)
        scheduler.decide(now_s)
    for job, now_s in ((1, 1000), (2, 1100)):
        scheduler.submit(now_s, job)
        assert scheduler.decide(now_s) == [job]
    scheduler.advance(1152)
    assert scheduler.begins_s(1100, 2) == 1252
    scheduler.withdraw(2)
    scheduler.announce([Cap(1200, 10**6, 230.0)], 1200, is_reacting=False)
    scheduler.submit(1201, 3)
    assert scheduler.decide(1201) == [3]


def test_where_going_off_draws_more_than_idling_a_cap_forbids_it() -> None:
    """Five nodes idle at 150 W; each draws 20 W more while it goes off."""
    jobs, on = jobs_of([(0, 40, 40, 10, 0), (300, 1, 1, 1, 0)]), machine(1.0, False)
    composition = Composition(backfill="easy", power=Power(), idle_off_s=10)

    def highest_w(cap_w: float) -> float:
        times_s, drawn_w, _ = replayed(composition, jobs, on, [Cap(45, 200, cap_w)]).power
        return float(drawn_w[(times_s >= 45) & (times_s < 200)].max())

    assert highest_w(249.0) == 150.0
    assert highest_w(250.0) == 250.0


@settings(max_examples=40)
@given(jobs=traces(), composition=compositions, caps=cap_lists(), on=machines)
def test_the_watts_of_every_instant_are_those_of_the_nodes_in_plain_python(
    jobs: Jobs, composition: Composition, caps: list[Cap], on: Machine
) -> None:
    watts = Watts.of(on, composition.power)
    scheduler = PowerReferenceScheduler(composition, jobs, watts, caps)
    simulated = SimulatedMachine(jobs, composition.ties, watts.slowdown, watts.requeues)
    seen: dict[int, int] = {}

    class Clock(JumpingClock):
        def wait_until(self, time_s: int | None) -> bool:
            seen[self.now_s()] = scheduler.present_uw(self.now_s())
            return super().wait_until(time_s)

    run(scheduler, Clock(), simulated)
    replay = replayed(composition, jobs, on, caps)
    if not len(jobs):
        return
    assert replay.boots == (scheduler.nodes.boots if scheduler.nodes else 0)
    times_s, drawn_w, _ = replay.power
    for at_s, drawn_uw in seen.items():
        if int(times_s[0]) <= at_s < replay.end_s.max():
            assert drawn_w[np.searchsorted(times_s, at_s, "right") - 1] == pytest.approx(drawn_uw / 1e6)


@settings(max_examples=40)
@given(
    jobs=traces(),
    caps=cap_lists(),
    on=machines,
    off=st.sampled_from([None, off_by_cap(1)]),
    idle_off_s=st.integers(1, 6),
)
def test_from_its_decision_to_its_end_a_jobs_processors_are_its_own_also_while_they_boot(
    jobs: Jobs, caps: list[Cap], on: Machine, off: Idle | None, idle_off_s: int
) -> None:
    composition = Composition(backfill="easy", power=Power(idle=off), idle_off_s=idle_off_s)
    watts, clock = Watts.of(on, composition.power), JumpingClock()
    decided_s: dict[int, int] = {}

    class Watched(SimulatedMachine):
        def start(self, at_s: int, job: int, expected_end_s: int, level: int = 0) -> None:
            decided_s[job] = clock.now_s()
            super().start(at_s, job, expected_end_s, level)

    simulated = Watched(jobs, composition.ties, watts.slowdown, watts.requeues)
    run(NativeScheduler(composition, jobs, PROCESSORS, watts, caps), clock, simulated)
    replay = replayed(composition, jobs, on, caps)
    assert replay.start_s.tolist() == [simulated.start_s.get(job, -1) for job in range(len(jobs))]
    held: dict[int, list[tuple[int, int]]] = {}
    for job, from_s in decided_s.items():
        for first, last in replay.processors(job):
            for processor in range(first, last + 1):
                held.setdefault(processor, []).append((from_s, int(replay.end_s[job])))
    for spans in held.values():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_a_machine_whose_nodes_switch_at_once_loses_no_time() -> None:
    """Curie's file gives no cost of switching."""
    curie = load_machine("curie:nodes=4")
    jobs = jobs_of([(0, 10, 10, 1, 0), (1000, 20, 20, 64, 0)])
    replay = replayed(choose("easy:idle_off_s=300").composition, jobs, curie)
    assert replay.start_s.tolist() == [0, 1000]
    assert replay.boots == 4
    assert replay.joules["switching"] == 0


def test_switching_off_saves_joules_and_never_loses_a_job() -> None:
    jobs = jobs_of([(500 * i, 100, 120, 1 + 3 * i % PROCESSORS, 0) for i in range(40)])
    on = load_machine("generic:nodes=5,cores=2")
    always, switched = (replayed(choose(text).composition, jobs, on) for text in ("easy", "easy:idle_off_s=60"))
    assert switched.ended == len(jobs)
    assert switched.joules["cluster"] < 0.8 * always.joules["cluster"]
    parts = switched.job_j.sum() + sum(switched.joules[part] for part in ("idle", "off", "switching"))
    assert parts == pytest.approx(switched.joules["cluster"], rel=1e-9)


def test_a_switch_that_costs_joules_and_no_time_takes_a_second() -> None:
    assert IdleOff.of(machine(0.0, False), 5).boot_s == 0
    assert IdleOff.of(TAURUS, 5) == IdleOff(5, 1, 7, 152, 9_750_000, 88_571_429, 125_197_368)


@pytest.mark.parametrize("policy", ["conservative:ends=compress,idle_off_s=300", "easy:idle_off_s=0"])
def test_what_does_not_go_with_switching_off_is_refused(policy: str) -> None:
    with pytest.raises(WrongUseError, match="idle_off_s"):
        choose(policy)


def test_without_watts_there_is_nothing_to_switch_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(SAMPLE), "--policy", "easy:idle_off_s=300", "--machine", "100"]) == 2
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .endswith("idle_off_s needs watts, and a number of processors has none: give a machine such as curie")
    )
    arguments = ["replay", str(SAMPLE), "--policy", "easy:idle_off_s=300", "--machine", "nodes=64,cores=2"]
    assert main(arguments) == 0
