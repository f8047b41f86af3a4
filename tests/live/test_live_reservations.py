"""Nodes that are kept for the jobs of some users: as in a replay, after restarts, and what people see of it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.jobs.job import Job, JobSpec
from cluster_agent.jobs.power_switching import PowerTimes
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.switches.live_limits import LiveSwitches
from cluster_agent.scheduler.switches.live_reservations import Reservation, clock
from tests.live.fakes import EASY, Fake
from tests.live.test_live_limits import limited, replayed, running

DAY_S = 86_400


def reserve(fake: Fake, name: str = "maint", nodes: int = 2, in_s: int = 100, length_s: int = 50, **more: Any) -> None:
    """From so many seconds from now on."""
    given = {"users": ["ada"], "from_s": int(fake.now_s) + in_s} | more
    fake.partition.reserve(Reservation(name, nodes, length_s=length_s, **given))


def refusal(fake: Fake, *given: Any, **more: Any) -> str:
    with pytest.raises(WrongUseError) as error:
        reserve(fake, *given, **more)
    return str(error.value)


def test_nodes_are_free_when_a_reservation_begins_and_its_jobs_run_in_it_alone() -> None:
    fake = Fake(4)
    reserve(fake)
    own = fake.submit(40, nodes=2, walltime_s=50, user="ada", reservation="maint")
    late, wide = fake.submit(500, nodes=2, walltime_s=500), fake.submit(20, nodes=1, walltime_s=101)
    short = fake.submit(60, nodes=2, walltime_s=100)
    assert running(fake, own, late, wide, short) == [False, True, False, True]
    why, at_s = fake.partition.why_waiting(), fake.now_s + 100
    assert why[own.id] == f"waits for its reservation maint, from {clock(at_s)}"
    until = clock(fake.now_s + 101)
    assert why[wide.id] == f"2 nodes are reserved for maint from {clock(at_s)}, and it may run until {until}"
    fake.until(lambda: fake.now_s == at_s)
    assert running(fake, own, wide) == [True, False]
    fake.until(lambda: fake.now_s >= at_s + 50)
    fake.until(lambda: wide.started_s is not None)
    assert wide.started_s == at_s + 50, "when the reservation ends, and not when its job does"
    assert fake.partition.reservations.by_name == {}, "it is over"
    fake.until(lambda: not fake.partition.jobs)


def nodes_of(job: Job) -> list[str]:
    return sorted(job.nodes)


def test_named_nodes_are_free_when_their_reservation_begins_and_its_jobs_run_on_them() -> None:
    fake = Fake(4)
    reserve(fake, on=["n01", "n02"], length_s=100)
    own = fake.submit(40, nodes=2, walltime_s=50, user="ada", reservation="maint")
    short, long = fake.submit(50, walltime_s=60), fake.submit(300, nodes=2, walltime_s=500)
    assert running(fake, short, long, own) == [True, True, False]
    assert (nodes_of(short), nodes_of(long)) == (["n01"], ["n00", "n03"]), "the short one leaves room for long ones"
    fake.kill_and_restart()
    fake.report()
    wide = fake.submit(500, walltime_s=500)
    assert running(fake, wide) == [False]
    assert fake.partition.why_waiting()[wide.id].startswith("n01, n02 are reserved for maint from ")
    for job in (long, wide):
        fake.partition.cancel(fake.partition.jobs[job.id])
    fake.settle()
    fake.now_s += 100
    fake.end_due()
    fake.report()
    assert running(fake, own) == [True] and nodes_of(fake.partition.jobs[own.id]) == ["n01", "n02"], "others are free"


def test_a_job_waits_where_others_have_the_nodes_that_no_reservation_names() -> None:
    """The policy counts two nodes that are free and not reserved, but one of the free ones is n02."""
    fake = Fake(3)
    short = fake.submit(80, walltime_s=80)
    assert running(fake, short) == [True] and nodes_of(short) == ["n00"]
    reserve(fake, nodes=1, on=["n02"])
    long = fake.submit(200, nodes=2, walltime_s=500)
    assert running(fake, long) == [False]
    assert (
        fake.partition.why_waiting()[long.id] == "needs 2 nodes that are not reserved by name, and 1 of those are idle"
    )
    fake.until(lambda: long.started_s is not None, most_s=100)
    assert nodes_of(long) == ["n00", "n01"]


def test_nodes_that_cannot_be_named_are_one_line() -> None:
    fake = Fake(4)
    job = fake.submit(500, walltime_s=500)
    assert running(fake, job) == [True]
    until = clock(fake.now_s + 500)
    assert refusal(fake, on=["n00", "n01"]) == (
        f"n00 may have job {job.id} until {until}: choose a later --start, or other nodes"
    )
    assert refusal(fake, on=["n01", "n9"]).startswith("no node is called 'n9'")
    assert refusal(fake, on=["n01", "n01"]).startswith("a node is named twice, or their number is another one")
    reserve(fake, on=["n01", "n02"], every_s=DAY_S)
    at = clock(fake.now_s + 100 + DAY_S)
    assert refusal(fake, "other", nodes=1, on=["n02"], in_s=80 + DAY_S) == (
        f"n02 is reserved for maint at {at} already: choose another time or node"
    )
    reserve(fake, "other", nodes=1, on=["n02"], in_s=200)


def test_a_restart_forgets_no_reservation_and_a_deleted_one_keeps_nothing() -> None:
    fake = Fake(2)
    reserve(fake, every_s=DAY_S)
    waits = fake.submit(10, walltime_s=200)
    fake.settle()
    fake.kill_and_restart()
    fake.report()
    assert running(fake, waits) == [False]
    own = fake.submit(10, walltime_s=50, user="ada", reservation="maint")
    with pytest.raises(WrongUseError, match=rf"job {own.id} wait or run in maint: cancel them first"):
        fake.partition.unreserve("maint")
    fake.partition.cancel(own)
    fake.partition.unreserve("maint")
    assert running(fake, waits) == [True]
    fake.kill_and_restart()
    assert fake.partition.reservations.by_name == {}


def test_a_reservation_comes_again_every_day() -> None:
    fake = Fake(1)
    reserve(fake, nodes=1, every_s=DAY_S)
    first_s = fake.now_s + 100
    fake.now_s += 120
    fake.report()
    own = fake.submit(10, walltime_s=50, user="ada", reservation="maint")
    assert running(fake, own) == [False], "too little is left of the first one"
    assert f"it waits for the next one, from {clock(first_s + DAY_S)}" in fake.partition.why_waiting()[own.id]
    fake.now_s = first_s + DAY_S
    fake.report()
    assert running(fake, own) == [True]


def test_a_job_whose_reservation_is_over_is_cancelled_and_says_so() -> None:
    fake = Fake(1)
    reserve(fake, nodes=1)
    first, second = (fake.submit(30, walltime_s=30, user="ada", reservation="maint") for _ in range(2))
    fake.until(lambda: not fake.partition.jobs, most_s=200)
    found = {job.id: (job.state, job.reason) for job in fake.store.ended(10)}
    assert found == {first.id: ("done", ""), second.id: ("cancelled", "its reservation maint is over")}


def test_what_cannot_be_had_is_refused_in_one_line() -> None:
    fake = Fake(4)
    job = fake.submit(500, nodes=3, walltime_s=500)
    assert running(fake, job) == [True]
    at = clock(fake.now_s + 100)
    assert refusal(fake) == (
        f"2 nodes requested, and at {at} only 1 of 4 are certain to be free: job {job.id} may have the others; choose a"
        " later --start, or fewer nodes"
    )
    assert refusal(fake, nodes=5) == "5 nodes requested, and the partition has 4"
    assert refusal(fake, in_s=-60) == f"it would be over since {clock(fake.now_s - 10)}: give a later --start"
    assert "which is longer than a day: leave out --every" in refusal(fake, length_s=DAY_S + 1, every_s=DAY_S)
    reserve(fake, nodes=3, in_s=600, every_s=7 * DAY_S)
    assert refusal(fake) == "there is a reservation maint already: delete it first, or choose another name"
    overlaps = refusal(fake, "other", in_s=610 + 7 * DAY_S)
    at = clock(fake.now_s + 610 + 7 * DAY_S)
    assert overlaps == (f"of the 4 nodes at {at} 3 for maint are reserved already: choose another time, or fewer nodes")
    assert refusal(fake, "other", in_s=590, every_s=DAY_S).startswith(
        f"of the 4 nodes at {clock(fake.now_s + 600)} 3 for"
    )
    reserve(fake, "other", nodes=1, in_s=610)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"reservation": "mint"}, "no reservation is called 'mint' (nearest: maint)"),
        ({"user": "eve"}, "reservation maint is for ada, not for eve"),
        ({"nodes": 3}, "3 nodes requested, and reservation maint has 2"),
        (
            {"walltime_s": 51},
            "a walltime of 00:00:51 is longer than reservation maint, which lasts 00:00:50: give a shorter --time",
        ),
    ],
)
def test_a_job_that_its_reservation_can_never_run_is_refused(given: dict[str, Any], problem: str) -> None:
    fake = Fake(4)
    reserve(fake)
    with pytest.raises(WrongUseError) as error:
        fake.submit(10, **({"reservation": "maint", "user": "ada", "walltime_s": 50} | given))
    assert str(error.value) == problem


@pytest.mark.parametrize(
    ("policy", "switches", "problem"),
    [
        ("portfolio:members=easy|fcfs", limited(""), "a portfolio does not go with reservations"),
        ("conservative:ends=compress", limited(""), "backfill=compress does not go with reservations"),
        ("easy", limited("", "batch=n00 debug=n01"), "queues with nodes of their own do not go with reservations"),
    ],
)
def test_a_policy_that_keeps_no_reservations_says_so_and_does_not_start_with_one(
    policy: str, switches: LiveSwitches, problem: str
) -> None:
    fake = Fake(2, choose(policy).live, switches=switches)
    assert refusal(fake) == f"reservation maint cannot be kept: {problem}; choose another policy ([jobs] policy)"
    kept = Fake(2)
    reserve(kept)
    kept.composition, kept.given = fake.composition, fake.given
    with pytest.raises(ClusterError, match="reservation maint cannot be kept"):
        kept.kill_and_restart()


def test_nodes_are_not_switched_on_for_a_job_that_waits_for_its_reservation() -> None:
    fake = Fake(2, EASY, power=PowerTimes(idle_off_s=30))
    reserve(fake, in_s=500)
    fake.submit(10, walltime_s=50, nodes=2, user="ada", reservation="maint")
    for _ in range(40):
        fake.step()
    assert len([node for node in fake.partition.nodes.values() if node.switched is not None]) == 2


@pytest.mark.parametrize("policy", ["fcfs", "easy", "easy-sjbf:estimate=mean2,correct=incremental", "conservative"])
def test_the_replay_of_what_a_partition_exports_has_its_reservations(policy: str, tmp_path: Path) -> None:
    """All are made while jobs run, and one is deleted."""
    rng = random.Random(11)
    fake = Fake(8, choose(policy).live, now_s=1000.0)
    submit(fake, rng, "")
    open_: list[str] = []
    for at in range(90):
        for _ in range(rng.choice([0, 1, 1, 2, 4])):
            fake.end_due()
            fake.report()
            fake.settle()
            fake.now_s += 1
        if at in (5, 20, 40, 60):
            name = f"r{at}"
            reserve(fake, name, nodes=rng.randint(2, 3), in_s=rng.randint(30, 45), length_s=rng.randint(40, 50))
            open_ += [name] * (at != 40)
        if at == 50:
            fake.partition.unreserve("r40")
        there = [name for name in open_ if early(fake, name)]
        submit(fake, rng, rng.choice(["", "", *there]))
    fake.settle()
    fake.until(lambda: not fake.partition.jobs)
    ended = fake.store.ended(1000)
    started = {job.id: int(job.started_s or 0) for job in ended}
    assert sum(bool(job.spec.reservation) for job in ended) > 10 and {job.state for job in ended} == {"done"}
    found, metrics = replayed(fake, policy, tmp_path)
    assert found == started
    assert metrics["switches"]["reservations"] == fake.partition.watts.switched["reservations"] > 5


def early(fake: Fake, name: str) -> bool:
    """Whether jobs may be submitted that then do not have to be cancelled when the reservation is over."""
    one = fake.partition.reservations.by_name.get(name)
    waits = sum(job.spec.reservation == name and job.state == "queued" for job in fake.partition.jobs.values())
    return one is not None and waits < 3 and fake.now_s < one.from_s + one.length_s - 30


def submit(fake: Fake, rng: random.Random, name: str) -> Job:
    run_s, who = rng.randint(1, 6 if name else 12), "ada" if name else f"u{rng.randrange(3)}"
    spec = JobSpec(["run", str(run_s)], run_s + rng.choice([0, 1, 8]), "/", nodes=rng.randint(1, 2), reservation=name)
    return fake.partition.submit(1000 + sum(map(ord, who)), who, spec)
