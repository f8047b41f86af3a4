"""A policy with a planner, live: the starts of a replay at the same events, and what only a live partition has: watts
that change without notice, a head that is killed, a planner that fails while jobs wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster_agent.errors import WrongUseError
from cluster_agent.jobs.admission import check_live
from cluster_agent.scheduler.job_columns import Float64s
from cluster_agent.scheduler.plans import live_planning
from cluster_agent.scheduler.plans.live_planning import LIVE_TIME_S, QUIET_S, LivePlanning
from cluster_agent.scheduler.plans.plan_phase import NO_BUDGET, Plan, PlanBudget, Planner, Situation, Start
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Queue
from cluster_agent.scheduler.rules import RULES
from tests.cluster_agent.test_plan_phase import all_now, chaotic, composed, on, unable
from tests.live.test_owned_nodes import (
    FULL_W,
    IDLE_W,
    MACHINE,
    NAMES,
    UNSHRUNK,
    RecordedFake,
    Row,
    budgets,
    job_rows,
    played,
    replayed,
)


@pytest.fixture(scope="module", autouse=True)
def patience() -> Iterator[None]:
    """No plan is late because other tests take the processor."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(live_planning, "LIVE_TIME_S", 60.0)
        yield


def under(planner: Planner, *steps: tuple[float, float], capacity: int = 512) -> RecordedFake:
    fake = RecordedFake(len(NAMES), composed(planner), now_s=1000.0, machine=MACHINE, capacity=capacity)  # type: ignore[arg-type]
    fake.set_budget(*(steps or ((1000.0, FULL_W),)))
    fake.settle()
    return fake


def at(second: Callable[[int], int]) -> Planner:
    """Every job at this second, by its number in the queue."""

    def plan(situation: Situation, budget: PlanBudget) -> Plan:
        return [
            Start(job, max(second(place), situation.now_s)) for place, job in enumerate(situation.queue.job.tolist())
        ]

    return plan


@settings(max_examples=40, phases=UNSHRUNK)
@given(rows=job_rows(), steps=budgets(), seed=st.integers(0, 1000))
def test_whatever_a_planner_defers_and_wherever_it_places_live_starts_are_those_of_the_replay(
    rows: list[Row], steps: list[tuple[int, float]], seed: int
) -> None:
    composition = composed(chaotic(seed))
    expected = replayed(composition, rows, steps, plans=True)
    assert sorted(played(composition, rows, steps, expected).decisions) == expected


def test_a_start_planned_for_later_comes_without_any_event_and_people_see_when() -> None:
    fake = under(at(lambda place: 1000 + 7 * place))
    first, second = fake.submit(run_s=100), fake.submit(run_s=100)
    fake.settle()
    assert (first.state, second.state) == ("running", "queued")
    assert fake.partition.turn() == 1001.0
    assert fake.partition.why_waiting()[second.id].startswith("planned to start by ")
    assert fake.partition.planned_s == {second.id: 1007}
    fake.now_s = 1006.5
    assert fake.partition.turn() == 1007.0
    fake.now_s = 1007.0
    fake.settle()
    assert (second.state, second.started_s) == ("running", 1007.0)


def test_a_restart_plans_again_and_the_planner_sees_the_jobs_that_run() -> None:
    seen: list[Situation] = []

    def noting(situation: Situation, budget: PlanBudget) -> Plan:
        seen.append(situation)
        return at(lambda place: 1020)(situation, budget) if len(situation.running.job) else all_now(situation, budget)

    fake = under(noting)
    wide = fake.submit(run_s=100, nodes=2, walltime_s=150)
    fake.settle()
    fake.step(5)
    fake.kill_and_restart()
    fake.set_budget((1000.0, FULL_W - 50))
    fake.report()
    waiting = fake.submit(run_s=5, gpus=2)
    fake.settle()
    last = seen[-1]
    assert [placed.node.tolist() for placed in last.running.placed] == [[0, 1]]
    assert (last.running.end_s.tolist(), last.running.watts.tolist()) == ([1150], [200.0])
    assert last.free[:, -1].tolist() == [0, 0, 1, 1, 1, 1]
    assert last.cap.at(int(fake.now_s)) == FULL_W - 50 - IDLE_W
    assert last.queue.watts.tolist() == [220.0]
    fake.until(lambda: waiting.state == "running")
    assert (fake.now_s, fake.partition.jobs[wide.id].nodes) == (1020.0, ["n00", "n01"])


def test_nodes_that_are_away_have_a_job_for_the_planner() -> None:
    seen: list[Situation] = []

    def noting(situation: Situation, budget: PlanBudget) -> Plan:
        seen.append(situation)
        return [Start(job, situation.now_s, on(1)) for job in situation.queue.job.tolist()]

    fake = under(noting)
    fake.partition.drain("n01", "fan", 0)
    fake.step()
    job = fake.submit(run_s=5)
    fake.step()
    assert seen[-1].free[:, -1].tolist() == [1, 0, 1, 1, 1, 1] and seen[-1].running.watts.tolist() == [0.0]
    assert job.state == "queued"
    fake.partition.resume("n01")
    fake.step()
    assert job.nodes == ["n01"]


def test_a_budget_that_changes_is_planned_with_at_once_and_a_planner_breaks_none() -> None:
    fake = under(all_now, (1000.0, IDLE_W + 100.0))
    jobs = [fake.submit(run_s=50, cores=16) for _ in range(3)]
    fake.settle()
    assert [job.state for job in jobs] == ["running", "queued", "queued"]
    fake.set_budget((1000.0, IDLE_W + 140.0), (1010.0, FULL_W))
    fake.settle()
    assert [job.state for job in jobs] == ["running", "running", "queued"]
    fake.until(lambda: jobs[2].state == "running")
    assert fake.now_s == 1010.0 and fake.said == []


def test_a_planner_that_raises_falls_back_to_the_list_schedule_and_says_so_once() -> None:
    is_able = False

    def planner(situation: Situation, budget: PlanBudget) -> Plan:
        return all_now(situation, budget) if is_able else unable(situation, budget)

    fake = under(planner)
    running = [fake.submit(run_s=90, nodes=2, gpus=1), fake.submit(run_s=5, nodes=2, gpus=1)]
    fake.settle()
    assert [job.state for job in running] == ["running", "queued"]
    why = fake.partition.why_waiting()[running[1].id]
    assert why.startswith("first in the queue: needs 2 nodes with 1 GPU, and 0 are idle")
    assert "(decided by the list schedule; planner: raised " in why and why.endswith("no licence)")
    for _ in range(3):
        running.append(fake.submit(run_s=1, cores=16))
        fake.step()
    [said] = fake.said
    assert said.startswith("ALARM: the policy's list schedule decides, not its planner: raised ")
    is_able = True
    running.append(fake.submit(run_s=1, cores=16))
    fake.step()
    assert len(fake.said) == 1, "one good plan is not the end of an alarm"
    fake.step(QUIET_S)
    running.append(fake.submit(run_s=1, cores=16))
    fake.step()
    assert fake.said[1:] == ["the alarm is over: the planner decides again"]
    fake.until(lambda: all(job.state == "done" for job in running))


@settings(max_examples=20, phases=UNSHRUNK)
@given(rows=job_rows(), steps=budgets())
def test_without_a_plan_live_decisions_are_those_of_prb(rows: list[Row], steps: list[tuple[int, float]]) -> None:
    prb = choose("prb").live
    expected = replayed(prb, rows, steps)
    assert sorted(played(composed(unable), rows, steps, expected).decisions) == expected


def test_a_late_plan_is_not_used() -> None:
    def slow(situation: Situation, budget: PlanBudget) -> Plan:
        assert budget.time_s == 0.01
        time.sleep(0.03)
        return at(lambda place: 2000)(situation, budget)

    composition = replace(composed(slow), plan_budget=PlanBudget(time_s=0.01))
    fake = RecordedFake(len(NAMES), composition, now_s=1000.0, machine=MACHINE)  # type: ignore[arg-type]
    job = fake.submit(run_s=5)
    fake.settle()
    assert job.state == "running" and fake.said[0].startswith("ALARM: ") and "planner: late: " in fake.said[0]


def test_a_live_plan_has_a_bound_on_its_time_and_a_longer_one_is_refused() -> None:
    budgets_seen: list[float | None] = []

    def noting(situation: Situation, budget: PlanBudget) -> Plan:
        budgets_seen.append(budget.time_s)
        return all_now(situation, budget)

    fake = under(noting)
    fake.submit(run_s=5)
    fake.settle()
    assert NO_BUDGET.time_s is None and budgets_seen == [live_planning.LIVE_TIME_S]
    check_live(composed(all_now, PlanBudget(time_s=LIVE_TIME_S)), has_watts=True)
    with pytest.raises(WrongUseError, match=r"^time_s=30: a live partition waits for no plan longer than 0\.5 s$"):
        check_live(choose("planned:time_s=30").live, has_watts=True)


def test_a_rule_that_raises_defers_nobody() -> None:
    is_able = True

    def rule(queue: Queue, now_s: int) -> Float64s:
        if not is_able:
            raise RuntimeError("no rule")
        return RULES["walltime"](queue, now_s)

    composition = replace(composed(at(lambda place: 1000 + 900 * place)), order=rule)
    fake = RecordedFake(len(NAMES), composition, now_s=1000.0, machine=MACHINE)  # type: ignore[arg-type]
    fake.set_budget((1000.0, FULL_W))
    first, second = fake.submit(run_s=2), fake.submit(run_s=2)
    fake.settle()
    assert (first.state, second.state) == ("running", "queued")
    is_able = False
    third = fake.submit(run_s=2)
    fake.step()
    assert (second.state, third.state) == ("running", "running") and "no rule" in fake.said[0]


def test_memory_does_not_grow_with_the_passes_and_a_full_table_is_followed_by_another() -> None:
    fake = under(chaotic(1), capacity=40)
    jobs = []
    for _ in range(150):
        jobs.append(fake.submit(run_s=2))
        fake.step()
    unlike = fake.partition.watts.counts.engine.unlike
    assert unlike is not None and unlike.planned is not None
    deciding = unlike.planned.deciding
    assert isinstance(deciding, LivePlanning)
    assert (len(deciding.outcomes), len(deciding.plan_s)) == (1, 1)
    assert len(unlike.planned._tried) == 1
    fake.until(lambda: all(job.state == "done" for job in jobs))
