"""Jobs that wait for other jobs, or for a time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_agent.errors import WrongUseError
from cluster_agent.jobs.exported_state import state_of
from cluster_agent.jobs.job import OVER
from cluster_agent.jobs.waiting import _clock
from tests.live.fakes import Fake


def test_it_joins_the_queue_when_the_last_of_them_has_ended_behind_those_that_wait_there() -> None:
    fake = Fake(1)
    first, second = fake.submit(10), fake.submit(10)
    third = fake.submit(10, after=[first.id, second.id])
    between = fake.submit(10)
    fake.settle()
    assert fake.partition.why_waiting()[third.id] == f"after job {first.id} (running) and 1 more"
    fake.step(11)
    assert fake.partition.why_waiting()[third.id] == f"after job {second.id} (running)"
    fake.until(lambda: third.state == "done")
    assert first.ended_s <= second.started_s < second.ended_s <= between.started_s < between.ended_s <= third.started_s  # type: ignore[operator]
    assert third.queued_s == pytest.approx(second.ended_s)


def test_nodes_are_free_for_others_while_it_waits() -> None:
    fake = Fake(2)
    first = fake.submit(50)
    fake.submit(10, nodes=2, after=[first.id])
    next = fake.submit(10)
    fake.settle()
    assert (first.state, next.state) == ("running", "running")


def test_one_that_waits_for_a_time_joins_the_queue_then_at_once() -> None:
    fake = Fake(1)
    late = fake.submit(10, begin_s=1_030)
    fake.submit(10)
    fake.settle()
    assert fake.partition.why_waiting() == {late.id: f"not before {_clock(1_030, fake.now_s)}"}
    fake.step(29)
    assert late.state == "queued" and fake.partition.turn() == 1_030.0
    fake.step()
    assert late.state == "running" and late.queued_s == late.started_s == 1_030.0


def test_one_with_a_time_and_jobs_before_it_waits_for_both_and_through_a_restart() -> None:
    fake = Fake(2)
    first = fake.submit(20)
    both, early = fake.submit(5, after=[first.id], begin_s=1_030), fake.submit(5, after=[first.id], begin_s=1_010)
    fake.settle()
    clock = _clock(1_030, fake.now_s)
    assert fake.partition.why_waiting()[both.id] == f"after job {first.id} (running), and not before {clock}"
    fake.kill_and_restart()
    fake.report()
    fake.until(lambda: not fake.partition.jobs)
    first, both, early = fake.store.find([first.id, both.id, early.id])
    assert both.started_s == pytest.approx(1_030, abs=1) and early.started_s == pytest.approx(first.ended_s, abs=1)


def test_one_whose_job_before_fails_is_cancelled_before_its_time() -> None:
    fake = Fake(1)
    first = fake.submit(1000)
    needs = fake.submit(10, after_done=[first.id], begin_s=9_000)
    fake.settle()
    fake.partition.cancel(first)
    fake.until(lambda: not fake.partition.jobs)
    assert needs.state == "cancelled" and fake.now_s < 1_100


def test_what_fails_or_is_cancelled_cancels_those_that_need_it_done_and_theirs() -> None:
    fake = Fake(1)
    first = fake.submit(1000)
    needs, waits = fake.submit(10, after_done=[first.id]), fake.submit(10, after=[first.id])
    last = fake.submit(10, after_done=[needs.id])
    fake.settle()
    fake.partition.cancel(first)
    fake.until(lambda: waits.state == "done")
    assert (needs.state, last.state) == ("cancelled", "cancelled")
    assert needs.reason == f"job {first.id} was to be done before, and is cancelled"
    assert last.reason == f"job {needs.id} was to be done before, and is cancelled"
    assert not fake.partition.jobs


def test_killed_before_it_could_cancel_them_the_agent_does_so_when_it_is_back() -> None:
    fake = Fake(1)
    first = fake.submit(1000, nodes=1)
    needs = fake.submit(10, after_done=[first.id])
    fake.partition.cancel(first)
    fake.kill_and_restart()
    fake.settle()
    assert [job.state for job in fake.store.find([first.id, needs.id])] == ["cancelled", "cancelled"]


def test_what_is_done_lets_those_that_need_it_run() -> None:
    fake = Fake(1)
    first = fake.submit(5)
    needs = fake.submit(5, after_done=[first.id])
    fake.until(lambda: needs.state == "done")
    again = fake.submit(5, after_done=[first.id])  # that has ended long ago
    fake.until(lambda: again.state == "done")
    assert first.ended_s <= needs.started_s < again.started_s  # type: ignore[operator]


def test_jobs_that_are_not_there_or_can_never_be_done_are_refused() -> None:
    fake = Fake(1)
    with pytest.raises(WrongUseError, match="it is to wait for job 77, and there is no such job"):
        fake.submit(5, after=[77])
    first = fake.submit(5)
    fake.partition.cancel(first)
    with pytest.raises(WrongUseError, match=f"until job {first.id} is done, and that is cancelled"):
        fake.submit(5, after_done=[first.id])
    assert not fake.partition.jobs


def test_one_that_is_cancelled_while_it_waits_stays_so() -> None:
    fake = Fake(1)
    first = fake.submit(5)
    postponed = fake.submit(5, after=[first.id])
    fake.partition.cancel(postponed)
    fake.until(lambda: first.state == "done")
    fake.step()
    assert postponed.state == "cancelled"


def test_a_job_that_is_queued_again_is_still_waited_for() -> None:
    fake = Fake(1)
    first = fake.submit(20)
    postponed = fake.submit(5, after_done=[first.id])
    fake.step(5)
    fake.partition.requeue(first)
    fake.until(lambda: postponed.state == "done")
    assert first.attempt == 2 and first.ended_s <= postponed.started_s  # type: ignore[operator]


def test_a_state_has_no_jobs_that_wait_for_others_but_their_number() -> None:
    fake = Fake(1)
    first = fake.submit(50)
    fake.submit(5, after=[first.id])
    fake.settle()
    state = state_of(fake.partition, fake.store, "easy", fake.now_s)
    assert ([job.job for job in state.jobs], state.postponed) == ([first.id], 1)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_through_restarts_and_cancellations_none_starts_too_early_and_all_end(data: st.DataObject) -> None:
    """Chains and fans of up to a dozen jobs; the agent is killed at any instant."""
    fake = Fake(data.draw(st.integers(1, 3)))
    numbers: list[int] = []
    for _ in range(data.draw(st.integers(2, 12))):
        some = st.lists(st.sampled_from(numbers), max_size=2) if numbers else st.just([])
        numbers.append(fake.submit(data.draw(st.integers(1, 9)), after=data.draw(some), after_done=data.draw(some)).id)
    for _ in range(data.draw(st.integers(0, 6))):
        what = data.draw(st.sampled_from(["step", "restart", "cancel", "restart before the turn"]))
        if what == "step":
            fake.step(data.draw(st.integers(1, 5)))
        elif what == "cancel":
            number = data.draw(st.sampled_from(numbers))
            if job := fake.partition.jobs.get(number):
                fake.partition.cancel(job)
        else:
            if what == "restart":
                fake.settle()
            fake.kill_and_restart()
            fake.report()
    fake.until(lambda: not fake.partition.jobs)
    ended = {job.id: job for job in fake.store.find(numbers)}
    for job in ended.values():
        assert job.state in OVER
        before = [ended[number] for number in (*job.spec.after, *job.spec.after_done)]
        if job.started_s is not None:
            assert all(one.ended_s is not None and one.ended_s <= job.started_s for one in before)
            assert all(ended[number].state == "done" for number in job.spec.after_done)
        elif job.reason:
            assert any(ended[number].state != "done" for number in job.spec.after_done)


def test_a_chain_that_is_queued_again_is_one_again_and_stays_so_over_a_restart() -> None:
    fake = Fake(2)
    first = fake.submit(5)
    needs = fake.submit(5, after_done=[first.id])
    fake.partition.cancel(first)
    fake.settle()
    with pytest.raises(WrongUseError, match=f"job {needs.id} is to wait until job {first.id} is done, and that is can"):
        fake.partition.requeue(needs)
    assert not fake.partition.jobs
    fake.partition.requeue(first)
    fake.partition.requeue(needs)
    fake.step()
    assert (first.state, needs.state) == ("running", "queued")
    fake.kill_and_restart()
    fake.settle()
    fake.until(lambda: not fake.partition.jobs)
    first, needs = fake.store.find([first.id, needs.id])
    assert (first.state, needs.state) == ("done", "done")
    assert first.ended_s <= needs.started_s  # type: ignore[operator]
