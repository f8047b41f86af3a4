"""Best-effort jobs: what no other job can use, preempted when one can; in the engine, in replays and in the library."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster_agent.cap_steps import Cap
from cluster_agent.cluster import UW
from cluster_agent.library import ColumnError, World
from cluster_agent.library import replay as replayed_world
from cluster_agent.replay.world_run import _preempted
from cluster_agent.scheduler.job_columns import Bools, Jobs
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.switches.failures import CFailures, Failure
from tests.cluster_agent.power_traces import cap_lists, machine
from tests.cluster_agent.replay_by_command import replayed
from tests.cluster_agent.traces import EVERYTHING_ENDED, PROCESSORS, plain_compositions, traces

COMPOSITIONS = plain_compositions("none", "easy", "list", "conservative")


@st.composite
def mixed(draw: st.DrawFn) -> Jobs:
    """Jobs of which some are best-effort."""
    jobs = draw(traces())
    which = draw(st.lists(st.booleans(), min_size=len(jobs), max_size=len(jobs)))
    return replace(jobs, best_effort=np.array(which, np.bool_))


def which(jobs: Jobs) -> Bools:
    assert jobs.best_effort is not None
    return jobs.best_effort


def without(jobs: Jobs) -> Jobs:
    """The other jobs alone, with their users as they were."""
    alone = ~which(jobs)
    return replace(jobs.only(alone), user=jobs.user[alone], best_effort=None)


def left_over(jobs: Jobs, starts: dict[int, int]) -> tuple[dict[int, int], list[int], list[int]]:
    """In plain Python, what is left to the best-effort jobs where the others start so: the last start of each, how
    often each was preempted, and the processor-seconds that it lost."""
    start_s, kills, lost = dict[int, int](), [0] * len(jobs), [0] * len(jobs)
    waiting, running = list[int](), list[int]()
    due = {int(at_s) for at_s in jobs.submit_s} | {
        at_s for job, s in starts.items() for at_s in (s, s + jobs.run_s[job])
    }
    while due:
        now_s = min(due)
        due.remove(now_s)
        running = [job for job in running if start_s[job] + jobs.run_s[job] > now_s]
        waiting += [job for job in range(len(jobs)) if which(jobs)[job] and jobs.submit_s[job] == now_s]
        free = PROCESSORS - sum(int(jobs.width[job]) for job, s in starts.items() if s <= now_s < s + jobs.run_s[job])
        stay = list(running)
        while sum(jobs.width[job] for job in stay) > free:
            stay.pop()
        for job in running[len(stay) :]:
            if sum(jobs.width[one] for one in [*stay, job]) <= free:
                stay.append(job)
            else:
                kills[job] += 1
                lost[job] += (now_s - start_s.pop(job)) * int(jobs.width[job])
                waiting.append(job)
        running = stay
        for job in sorted(waiting):
            if sum(jobs.width[one] for one in [*running, job]) <= free:
                waiting.remove(job)
                running.append(job)
                start_s[job] = now_s
                due.add(now_s + int(jobs.run_s[job]))
    return start_s, kills, lost


def started(replay: NativeReplay) -> dict[int, int]:
    return {job: at_s for job, at_s in enumerate(replay.start_s.tolist()) if at_s >= 0}


@settings(max_examples=200, deadline=None)
@given(jobs=mixed(), composition=COMPOSITIONS)
def test_other_jobs_start_as_without_them_and_they_get_what_is_left(jobs: Jobs, composition: Composition) -> None:
    replay, alone = NativeReplay(composition, jobs, PROCESSORS), NativeReplay(composition, without(jobs), PROCESSORS)
    for one in (replay, alone):
        assert not one.run(EVERYTHING_ENDED)
    others = np.flatnonzero(~which(jobs)).tolist()
    assert [int(replay.start_s[job]) for job in others] == alone.start_s.tolist()
    assert (replay.end_s >= 0).all()
    starts = {job: int(replay.start_s[job]) for job in others}
    expected, kills, lost = left_over(jobs, starts)
    assert started(replay) == starts | expected
    assert (replay.kills.tolist(), replay.lost.tolist()) == (kills, lost)


@settings(max_examples=60, deadline=None)
@given(jobs=mixed(), composition=COMPOSITIONS)
def test_no_processor_has_two_jobs_at_once(jobs: Jobs, composition: Composition) -> None:
    replay = NativeReplay(composition, jobs, PROCESSORS)
    replay.run(EVERYTHING_ENDED)
    spans = [
        (int(replay.start_s[job]), int(replay.end_s[job]), one)
        for job in range(len(jobs))
        for first, last in replay.processors(job)
        for one in range(first, last + 1)
    ]
    for from_s, to_s, one in spans:
        assert 0 <= one < PROCESSORS
        assert sum(s < to_s and from_s < e and one == other for s, e, other in spans) == 1, "itself"


@settings(max_examples=60, deadline=None)
@given(jobs=mixed(), composition=COMPOSITIONS, caps=cap_lists())
def test_on_a_machine_with_watts_their_joules_are_counted(
    jobs: Jobs, composition: Composition, caps: list[Cap]
) -> None:
    watts = Watts.of(machine(0.0, has_racks=True), None)
    plain, metered = (
        NativeReplay(composition, jobs, PROCESSORS, **given) for given in ({}, {"watts": watts, "caps": caps})
    )
    for replay in (plain, metered):
        assert not replay.run(EVERYTHING_ENDED)
    for name in ("start_s", "end_s", "kills", "lost"):
        assert getattr(plain, name).tolist() == getattr(metered, name).tolist()
    busy_w = watts.busy_uw[0] / UW
    assert metered.lost_j.tolist() == pytest.approx((metered.lost * busy_w).tolist())
    useful = jobs.width * (metered.end_s - metered.start_s)
    assert metered.job_j.sum() == pytest.approx(((useful + metered.lost) * busy_w).sum())


def test_a_node_that_fails_under_a_best_effort_job_has_it_wait_again() -> None:
    of = {"number": [1, 2], "submit_s": [0, 10], "run_s": [100, 20], "request_s": [100, 20]}
    columns = {name: np.array(values, np.int64) for name, values in of.items()}
    jobs = Jobs(**columns, width=np.array([2, 2], np.int32), user=np.zeros(2, np.int32),
                best_effort=np.array([True, False]))  # fmt: skip
    replay = NativeReplay(Composition(), jobs, 4, failures=CFailures([Failure(5, 50, 0, 1), Failure(60, 70, 0, 0)]))
    assert not replay.run(EVERYTHING_ENDED)
    # lost with its node at 5 s and started again on the other one; preempted at 10 s; then from 30 s on
    assert (replay.start_s.tolist(), replay.kills.tolist()) == ([30, 10], [2, 0])
    assert replay.lost.tolist() == [2 * 5 + 2 * 5, 0]


@settings(max_examples=100, deadline=None)
@given(jobs=mixed(), composition=COMPOSITIONS)
def test_a_switch_that_counts_0_has_changed_nothing(jobs: Jobs, composition: Composition) -> None:
    with_them = NativeReplay(composition, jobs, PROCESSORS)
    ordinary = NativeReplay(composition, replace(jobs, best_effort=None), PROCESSORS)
    for one in (with_them, ordinary):
        one.run(EVERYTHING_ENDED)
    if _preempted(with_them) == {"best_effort": 0}:
        assert with_them.start_s.tolist() == ordinary.start_s.tolist()


JOBS = ((1, 0, 100, 2, 1), (2, 10, 50, 4, 1), (3, 20, 100, 2, 2), (4, 30, 10, 2, 2))
"""Number, submission, run time, processors, queue."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """On four processors: the second job waits for the first, next to which there is room for one of the last two."""
    path = tmp_path / "site.swf"
    rows = (f"{n} {at} -1 {run} {w} -1 -1 {w} {run} -1 1 {1 + n % 2} 1 -1 {q} 1 -1 -1\n" for n, at, run, w, q in JOBS)
    path.write_text("; MaxProcs: 4\n" + "".join(rows))
    return path


def test_the_command_replays_queues_of_best_effort_jobs(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    status, found, _ = replayed(capsys, log, "--best-effort", "queue=2", "--policy", "fcfs", "--out", out)
    assert (status, found["kills"], found["lost_processor_s"], found["switches"]) == (0, 1, 160, {"best_effort": 2})
    rows = [line.split(",") for line in (out / "jobs.csv").read_text().splitlines()]
    at = rows[0].index("starting_time"), rows[0].index("job_id")
    assert {int(row[at[1]]): float(row[at[0]]) for row in rows[1:]} == {1: 0, 2: 100, 3: 150, 4: 150}
    assert json.loads((out / "manifest.json").read_text())["best_effort"] == "queue=2"


def test_the_library_has_them_as_a_column() -> None:
    number, submit_s, run_s, width, queue = np.array(JOBS).T
    columns = {"number": number, "submit_s": submit_s, "run_s": run_s, "request_s": run_s, "width": width}
    for values in (queue - 1, queue == 2):
        result = replayed_world(World(columns | {"best_effort": values}, machine=4), "fcfs")
        assert result.start_s.tolist() == [0, 100, 150, 150]
        again = replayed_world(World(result.jobs, machine=4), "fcfs")
        assert again.start_s.tolist() == result.start_s.tolist()
    with pytest.raises(ColumnError, match="column best_effort, row 2: 2: give 1 for a best-effort job, else 0"):
        replayed_world(World(columns | {"best_effort": queue * (queue == 2)}, machine=4), "fcfs")


def test_one_that_goes_past_a_waiting_job_counts_though_it_never_waits_itself() -> None:
    number, submit_s, run_s, width = np.array([[1, 2, 3], [0, 10, 20], [100, 50, 10], [2, 4, 2]])
    columns = {"number": number, "submit_s": submit_s, "run_s": run_s, "request_s": run_s, "width": width}
    result = replayed_world(World(columns | {"best_effort": [0, 0, 1]}, machine=4), "fcfs")
    assert (result.start_s.tolist(), result.metrics["kills"]) == ([0, 100, 20], 0)
    assert result.metrics["switches"] == {"best_effort": 1}


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["--best-effort", "2"], "--best-effort 2: give queues of the log, such as queue=2 or queue=2,3"),
        (["--best-effort", "queue="], "--best-effort queue=: give queues of the log, such as queue=2 or queue=2,3"),
        (["--best-effort", "queue=2,7"], "has no job of queue 7; correct it, or leave that queue out"),
        (["--best-effort", "queue=2", "--memory", "1"], "--best-effort queue=2: does not go with --memory"),
        (["--best-effort", "queue=2", "--closed-loop", "think=9"], "does not go with --closed-loop; leave one of them"),
        (["--best-effort", "queue=2", "--policy", "portfolio"], "a portfolio does not go with best_effort"),
        (["--best-effort", "queue=2", "--log", "x"], "--log x: best-effort are not in an event log"),
        (["--best-effort", "queue=2", "--machine", "curie", "--policy", "fcfs-killer"], "a policy that knows watts"),
    ],
)
def test_what_cannot_be_is_one_line(given: list[str], line: str, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = replayed(capsys, log, *given)
    assert status == 2
    assert line in err and err.count("\n") == 1
