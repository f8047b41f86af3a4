"""Worlds that stop whenever something happens, or when their caller says (``stops="instants"``), and early ends."""

from __future__ import annotations

import numpy as np
import pytest

from cluster_agent.errors import StepError
from cluster_agent.library import World
from cluster_agent.replay.world_run import run
from cluster_agent.stepping.steps import Steps
from tests.cluster_agent.test_stepping import policy, starts, world


def test_a_world_stops_at_every_end_and_submission_and_the_policy_decides_as_in_its_replay() -> None:
    source = world(120, load=0.6)
    replayed = run(source, policy("easy"))
    steps, seen = Steps(source, policy("easy"), "instants"), []
    while not steps.is_over:
        seen.append(steps.now_s)
        steps.decide()
        steps.advance()
    assert starts(steps).tolist() == replayed.start_s.tolist()
    ends_s = (replayed.start_s + replayed.run_s).tolist()
    assert set(source.jobs.submit_s.tolist()) | set(ends_s) == {*seen, steps.now_s}
    assert [ends_s[job] for job in steps.ended] == sorted(ends_s)
    assert steps.submitted == len(source.jobs)


@pytest.mark.parametrize("stops", ["instants", "passes", "choices"])
def test_a_world_stops_where_its_caller_says_and_no_more_after_that(stops: str) -> None:
    plain, woken = (Steps(world(40), policy("easy"), stops) for _ in range(2))  # type: ignore[arg-type]
    at_s = woken.now_s + 1
    while woken.now_s < at_s:
        woken.decide()
        woken.advance(at_s)
    assert woken.now_s == at_s
    for steps in (plain, woken):
        steps.run()
    assert starts(woken).tolist() == starts(plain).tolist()


def test_a_wish_to_stop_is_for_one_step() -> None:
    steps = Steps(world(40), policy("easy"), "instants")
    later_s = int(steps.jobs.submit_s[30])
    steps.decide()
    steps.advance(later_s - 1)
    assert steps.now_s < later_s - 1  # another event came first
    seen = []
    while steps.now_s < later_s:
        steps.decide()
        steps.advance()
        seen.append(steps.now_s)
    assert later_s - 1 not in seen


def test_a_job_that_is_ended_early_frees_its_processors_and_comes_back_no_more() -> None:
    steps = Steps(world(40), policy("easy"), "instants")
    while len(steps.running) < 3:
        steps.decide()
        steps.advance()
    job, free = int(steps.running["job"][1]), steps.free
    steps.end(job)
    assert job not in steps.running["job"] and job not in steps.queue["job"]
    assert steps.free == free + steps.jobs.width[job]
    assert steps.ended[-1] == job
    at_s, fork = steps.now_s, steps.fork()
    with pytest.raises(StepError, match=f"end: job {job} does not run"):
        steps.end(job)
    for one in (steps, fork):
        one.run()
    assert steps.ended.tolist().count(job) == 1 and len(steps.ended) == 40
    assert steps.schedule.end_s[job] == at_s
    assert sorted([*fork.ended.tolist(), *steps.ended[: 40 - len(fork.ended)].tolist()]) == list(range(40))


def test_any_of_the_running_jobs_can_be_ended_and_the_others_end_as_before() -> None:
    """Of a heap, the first, the last and those between are taken out in other ways."""
    for place in range(7):
        steps = Steps(world(200, load=3), policy("easy"), "instants")
        while len(steps.running) < 7:
            steps.decide()
            steps.advance()
        steps.decide()
        due_s = dict(
            zip(steps.started.tolist(), (steps.wait_s + steps.jobs.submit_s[steps.started]).tolist(), strict=True)
        )
        running = steps.running["job"].tolist()
        job = running[place]
        steps.end(job)
        steps.run()
        for other in running:
            if other != job:
                assert steps.schedule.end_s[other] == due_s[other] + steps.jobs.run_s[other]


def test_with_watts_a_job_that_is_ended_early_draws_no_more_and_counts_as_killed() -> None:
    steps = Steps.of(World("cluster_agent/samples/generated-500.swf", machine="curie"), "fcfs", "instants")
    idle_w = steps.drawn_w
    steps.start([0])
    assert steps.drawn_w > idle_w
    steps.advance(steps.now_s + 20)
    steps.end(0)
    at_s, width = steps.now_s, int(steps.jobs.width[0])
    ran_s = at_s - int(steps.schedule.start_s[0])
    assert 0 < ran_s < steps.jobs.run_s[0]
    assert steps.drawn_w == idle_w
    assert steps.schedule.kills[0] == 1 and steps.schedule.lost[0] == ran_s * width
    assert steps.schedule.lost_j[0] == steps.schedule.job_j[0] > 0
    before_j = steps.schedule.job_j[0]
    steps.run()
    assert steps.schedule.job_j[0] == before_j and steps.schedule.end_s[0] == at_s


def test_jobs_that_its_caller_starts_past_an_earlier_one_have_overtaken() -> None:
    steps = Steps(world(40, load=3), policy("easy"))
    while len(steps.queue) < 3 or steps.queue["width"][[0, 2]].sum() > steps.free:
        steps.advance()
    first, second, third = steps.queue["job"][:3].tolist()
    steps.start([third, first])
    assert steps.schedule.overtook[[first, second, third]].tolist() == [False, False, True]
    assert np.count_nonzero(steps.schedule.overtook) == 1
