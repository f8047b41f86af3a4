"""Submissions that answer to the schedule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_agent.caps import Cap
from cluster_agent.cli import main
from cluster_agent.machine import Machine
from cluster_agent.replay.closed_loop import answered, closed_loop, submissions
from cluster_agent.replay.swf import USER, Log
from cluster_agent.replay.workload import Workload
from cluster_agent.scheduler.governor import Watts
from cluster_agent.scheduler.jobs import Jobs
from cluster_agent.scheduler.native_replay import NativeReplay
from cluster_agent.scheduler.phases import Composition
from cluster_agent.scheduler.policies import registry
from tests.cluster_agent.power_traces import cap_lists, machines
from tests.cluster_agent.power_traces import compositions as power_compositions
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, compositions, jobs_of, traces

loops = st.sampled_from(["think=log", "think=7", "queue=1", "queue=4"])


def workload_of(jobs: Jobs) -> Workload:
    columns = np.full((18, len(jobs)), -1, np.int64)
    columns[USER] = jobs.user
    log = Log("rows", "", {}, columns, np.arange(len(jobs)), ())
    return Workload(log, PROCESSORS, jobs, np.arange(len(jobs)), True, np.zeros(len(jobs), np.bool_), ())


def submitted(jobs: Jobs, text: str, composition: Composition, seed: int = 0) -> Jobs:
    return submissions(workload_of(jobs), composition, closed_loop(text, seed), None, ()).jobs


def starts(jobs: Jobs, composition: Composition) -> list[int]:
    replay = NativeReplay(composition, jobs, PROCESSORS)
    replay.run(EVERYTHING_ENDED)
    return replay.start_s.tolist()


FCFS = Composition()


def test_a_user_thinks_after_the_last_end_as_long_as_in_the_log() -> None:
    """User 0 submits the second job 5 s after the first has ended; user 1 keeps the machine from him until 50."""
    jobs = jobs_of([(0, 50, 50, 10, 1), (1, 10, 10, 1, 0), (16, 10, 10, 1, 0)])
    found = submitted(jobs, "think=log", FCFS)
    assert found.submit_s.tolist() == [0, 1, 65]
    assert starts(found, FCFS) == [0, 50, 65]


def test_jobs_that_did_not_wait_for_one_another_come_with_the_same_gap() -> None:
    jobs = jobs_of([(0, 50, 50, 10, 1), (1, 10, 10, 1, 0), (4, 10, 10, 1, 0), (20, 10, 10, 1, 0)])
    assert submitted(jobs, "think=log", FCFS).submit_s.tolist() == [0, 1, 4, 66]  # 6 s after 14, here after 60


def test_a_regulated_queue_is_filled_a_second_after_a_job_has_left_it() -> None:
    jobs = jobs_of([(100 * at, 10, 10, 10, 0) for at in range(4)])
    found = submitted(jobs, "queue=2", FCFS)
    assert found.submit_s.tolist() == [0, 0, 1, 11]
    assert starts(found, FCFS) == [0, 10, 20, 30]


@settings(max_examples=60, deadline=None)
@given(jobs=traces(), text=loops, composition=compositions())
def test_a_replay_of_what_was_submitted_is_the_schedule_that_was_answered(
    jobs: Jobs, text: str, composition: Composition
) -> None:
    """Every job is there once, and a regulated queue is never longer than asked for."""
    workload, start_s = answered(workload_of(jobs), composition, closed_loop(text, 0), None, ())
    found = workload.jobs
    assert sorted(found.number.tolist()) == jobs.number.tolist()
    assert found.number.tolist() == jobs.number[workload.row].tolist()
    assert starts(found, composition) == [start_s[job] for job in range(len(jobs))]
    if text.startswith("queue="):
        started_s = np.array([start_s[job] for job in range(len(jobs))])
        for now_s in found.submit_s:
            assert ((found.submit_s <= now_s) & (started_s > now_s)).sum() <= int(text[6:])


@settings(max_examples=40, deadline=None)
@given(jobs=traces(), text=loops, composition=power_compositions, caps=cap_lists(), on=machines)
def test_with_kills_and_frequencies_too_the_whole_replay_repeats_the_answered_one(
    jobs: Jobs, text: str, composition: Composition, caps: list[Cap], on: Machine
) -> None:
    watts = Watts.of(on, composition.power)
    workload, start_s = answered(workload_of(jobs), composition, closed_loop(text, 0), watts, caps)
    replay = NativeReplay(composition, workload.jobs, PROCESSORS, watts, caps)
    replay.run(EVERYTHING_ENDED)
    assert replay.start_s.tolist() == [start_s.get(job, -1) for job in range(len(jobs))]


def test_the_seed_draws_the_times_to_think() -> None:
    jobs = jobs_of([(100 * at, 10, 10, 3, at % 2) for at in range(12)])
    first, again, other = (submitted(jobs, "think=60", FCFS, seed=seed).submit_s.tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_a_slower_machine_gets_its_jobs_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.swf"
    lines = [f"{at + 1} {at * 20} -1 10 4 -1 -1 4 10 -1 1 {at % 3} -1 -1 -1 -1 -1 -1" for at in range(9)]
    log.write_text("\n".join(lines))
    command = ["replay", str(log), "--machine", "4", "--closed-loop", "think=log", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    assert '"closed_loop": "think=log"' in (tmp_path / "out" / "manifest.json").read_text()
    capsys.readouterr()
    assert main([*command[:5], "think=never"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_jobs_of_equal_priority_are_served_in_the_order_in_which_they_come() -> None:
    """The users' first jobs come at once and in the order of the log; later ones as their users' earlier ones end."""
    policy = registry.choose("multifactor:cpu=0,energy=0").composition
    jobs = jobs_of([(0, 30, 30, 10, 0), (0, 10, 10, 10, 1), (50, 10, 10, 10, 1)])
    found = submitted(jobs, "think=log", policy)
    assert starts(found, policy) == starts(found, FCFS)
