"""Starts that nobody has planned: predicted by a replay of the queue, in a process of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import psutil
import pytest
from msgspec.structs import replace

from cluster_agent.history.job_history import HistoryRow
from cluster_agent.library import World, replay
from cluster_agent.page.queue_replay import starts
from cluster_agent.page.snapshot import order_of
from cluster_agent.page.start_prediction import predicted, with_run_times
from cluster_agent.workloads.state_file import VERSION, MachineState, StateJob, read_state
from tests.page import synthetic_head
from tests.page.served import Served
from tests.page.synthetic_head import SyntheticHead
from tests.waiting import PATIENCE_S, within

T0_S = 1_800_000_000


def state(policy: str = "easy", nodes: int = 4, away: int = 0) -> MachineState:
    """Three of four nodes are taken for another 3,000 s; one job waits for three nodes, one for four, one for one."""
    jobs = [
        StateJob(job=1, submit_s=T0_S - 900, width=3, request_s=3600, user=1, start_s=T0_S - 600),
        StateJob(job=2, submit_s=T0_S - 500, width=3, request_s=7200, user=2),
        StateJob(job=3, submit_s=T0_S - 400, width=4, request_s=60, user=1),
        StateJob(job=4, submit_s=T0_S - 300, width=1, request_s=1000, user=2),
    ]
    return MachineState(VERSION, "partition", policy, T0_S, nodes, jobs, away=away)


def test_jobs_start_when_those_before_them_have_had_their_whole_time() -> None:
    found = starts(state())
    assert found.likely_s == found.if_whole_s == {2: T0_S + 3000, 3: T0_S + 10_200, 4: T0_S}
    assert (found.policy, found.instead) == ("easy", "")


def test_a_job_that_will_be_shorter_lets_others_start_earlier_and_not_if_it_takes_its_whole_time() -> None:
    jobs = [replace(job, run_s=1200) if job.job == 1 else job for job in state().jobs]
    found = starts(replace(state(), jobs=jobs))
    assert found.likely_s[2] == T0_S + 600 and found.if_whole_s[2] == T0_S + 3000


def test_nodes_that_are_away_get_no_job_and_what_needs_them_is_not_predicted() -> None:
    found = starts(state(away=1))
    assert found.likely_s == {2: T0_S + 3000, 4: T0_S + 3000 + 7200}


def test_a_policy_that_needs_more_than_the_queue_is_replaced_and_that_is_said() -> None:
    found = starts(state("powercap:mode=dvfs"))
    assert found.policy == "easy" and found.instead.startswith("powercap:mode=dvfs: ") and found.likely_s[2]


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative", "easy-sjbf"])
def test_without_news_the_prediction_is_what_happens(tmp_path: Path, policy: str) -> None:
    """A replay is the partition, its state in the middle the queue, and its rest what is predicted."""
    rng = np.random.default_rng(11)
    jobs = {
        "submit_s": np.sort(rng.integers(0, 20_000, 150)), "width": rng.integers(1, 20, 150),
        "run_s": rng.integers(60, 5000, 150), "number": np.arange(1, 151),
    }  # fmt: skip
    whole = replay(World(jobs | {"request_s": jobs["run_s"] + 600}, machine=24), policy, at_s=[20_001])
    whole.write_state(str(tmp_path / "state.json"), 20_001)
    then = read_state(str(tmp_path / "state.json"))[0]
    known = [replace(job, run_s=int(jobs["run_s"][job.job - 1])) for job in then.jobs if job.what != "ended"]
    found = starts(replace(then, jobs=known))
    happened = dict(zip(whole.jobs.number.tolist(), whole.start_s.tolist(), strict=True))
    assert len(found.likely_s) > 50
    assert found.likely_s == {job: happened[job] for job in found.likely_s}


def ended(user: str, title: str, run_s: float, state: str = "done") -> HistoryRow:
    return replace(synthetic_head.ended(1, T0_S), user=user, application=title, run_s=run_s, state=state)


def test_a_job_is_taken_to_run_as_long_as_those_of_its_user_and_name() -> None:
    row = synthetic_head.job(2, False, [], T0_S, ["alice"])
    rows = [replace(row, title="cfd"), replace(row, job=1, title="cfd"), replace(row, job=4, title="md")]
    past = [ended("alice", "cfd", run_s) for run_s in (100, 500, 9000)] + [
        ended("alice", "md", 50),
        ended("bob", "md", 5),
    ]
    made = {job.job: job.run_s for job in with_run_times(state(), rows, past).jobs}
    assert made == {1: None, 2: 500, 3: None, 4: None}, "job 1 runs for longer already, and of md there are too few"
    past += [ended("alice", "cfd", 10_000, "failed")] * 9
    made = {
        job.job: job.run_s for job in with_run_times(state(), rows, [*past, *[ended("alice", "cfd", 9e9)] * 5]).jobs
    }
    assert made[2] == 7200, "no longer than it may, whatever the others took"


def test_a_replay_in_a_process_of_its_own_is_a_prediction_by_this_machines_clock() -> None:
    made = asyncio.run(predicted(state(), 5000.0))
    assert made.likely_s == {2: 8000.0, 3: 15_200.0, 4: 5000.0} and made.trouble == "" and made.known == 0
    made = asyncio.run(predicted(replace(state(), t0_s=T0_S + 5), 100.0))
    assert made.likely_s[4] == 100.0, "no start is in the past"


def test_what_cannot_be_replayed_is_a_trouble_in_one_line_and_no_process_stays() -> None:
    twice = replace(state(), jobs=[*state().jobs, state().jobs[1]])
    made = asyncio.run(predicted(twice, 5000.0))
    assert made.likely_s == {} and "job 2 is in it 2 times" in made.trouble and "\n" not in made.trouble

    async def given_up() -> None:
        task = asyncio.ensure_future(predicted(state(), 5000.0))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    children = set(psutil.Process().children())
    asyncio.run(given_up())
    assert set(psutil.Process().children()) <= children


def test_the_page_has_predicted_starts_where_the_policy_plans_none_and_only_there(tmp_path: Path) -> None:
    with SyntheticHead(tmp_path / "h.sock", plans=False) as head, Served(tmp_path, head.path) as served:
        assert within(PATIENCE_S, lambda: served.shown()["predicted"])
        shown = served.shown()["predicted"]
        waits = {str(row.job) for row in head.jobs if row.state == "queued"}
        assert set(shown["likely_s"]) == waits and shown["policy"] == "easy"
        assert head.answered["state"] == 1, "seldom"
        kept = served.feed.snapshot
        assert kept.order == order_of(kept.jobs, kept.predicted)
        head.jobs = [replace(row, planned_s=T0_S) for row in head.jobs]
        served.until(lambda: all(job["planned_s"] for job in served.shown()["jobs"]))
        served.feed._due_s["starts"] = 0.0
        version = served.feed.version
        served.until(lambda: served.shown() and served.feed.version > version + 6)
        assert head.answered["state"] == 1
