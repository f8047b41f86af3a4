"""Queues that are open in some hours of the week: as in a replay, after restarts, and what people see of it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster_agent.errors import WrongUseError
from cluster_agent.jobs.job import JobSpec
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.switches.live_limits import LiveSwitches
from cluster_agent.scheduler.switches.live_reservations import Reservation, clock
from cluster_agent.serve.config import JobSettings
from tests.live.fakes import Fake
from tests.live.test_live_limits import replayed, running

MONDAY_S = 1_893_974_400.0  # 7 January 2030, in Greenwich


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An hour before Greenwich, and two in summer."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Europe/Rome")
        time.tzset()
        yield
    time.tzset()


def open_in(windows: str, queues: str = "day night", limits: str = "") -> LiveSwitches:
    return JobSettings(limits=limits, queues=queues, windows=windows).switches


def fake_of(windows: str, nodes: int = 4, hour: int = 15, **given: Any) -> Fake:
    """From so late on Monday, in Rome."""
    return Fake(nodes, now_s=MONDAY_S + (hour - 1) * 3600, switches=open_in(windows), **given)


def test_a_job_waits_for_a_window_that_is_long_enough_and_its_place_is_kept() -> None:
    fake = fake_of("night=18:00-08:00")
    at_18 = fake.now_s + 3 * 3600
    night = fake.submit(60, nodes=4, walltime_s=3600, queue="night")
    short, long = fake.submit(600, nodes=4, walltime_s=3 * 3600), fake.submit(60, walltime_s=4 * 3600)
    assert running(fake, night, short, long) == [False, True, False]
    assert fake.partition.why_waiting()[night.id] == f"queue night is closed until {clock(at_18)}"
    fake.now_s += 700
    fake.end_due()
    fake.report()
    assert running(fake, night, long) == [False, False], "this one would not be over when the queue opens"
    fake.kill_and_restart()
    fake.now_s = at_18
    fake.report()
    assert running(fake, night, long) == [True, False]
    late = fake.submit(60, walltime_s=14 * 3600, queue="night")
    fake.now_s += 120
    fake.end_due()
    fake.report()
    assert running(fake, late, long) == [False, True]
    assert fake.partition.why_waiting()[late.id] == (
        f"needs 14:00:00, and queue night closes at {clock(at_18 + 14 * 3600)}; it waits until {clock(at_18 + 86400)}"
    )
    assert fake.partition.watts.switched == {"windows": 1}, "since the restart"


def test_windows_follow_the_clocks_of_the_machine_for_months(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_of("night=18:00-08:00")
    fake.now_s += 150 * 86_400  # in June
    fake.report()
    job = fake.submit(60, queue="night")
    assert running(fake, job) == [False]
    fake.now_s += 7200 - 1  # in summer it is 16:00 at the same time
    fake.report()
    assert running(fake, job) == [False]
    fake.now_s += 1
    fake.report()
    assert running(fake, job) == [True]


def test_a_job_that_no_window_can_run_is_refused_and_its_reservation_comes_first() -> None:
    fake = fake_of("night=18:00-08:00,sat-sun", hour=15)
    with pytest.raises(WrongUseError) as error:
        fake.submit(60, walltime_s=3 * 86_400, queue="night")
    assert str(error.value) == (
        "a walltime of 3-00:00:00 is longer than any window of queue night: it is open for at most 2-14:00:00; give a"
        " shorter --time, or another queue"
    )
    course = Reservation("course", 2, int(fake.now_s) + 60, 600, ["ada"])
    fake.partition.reserve(course)
    own = fake.submit(60, walltime_s=600, user="ada", reservation="course", queue="night")
    fake.now_s += 60
    fake.report()
    assert running(fake, own) == [True], "while its queue is closed"
    waits = fake.submit(60, walltime_s=2 * 86_400, queue="night")
    fake.settle()
    assert fake.partition.why_waiting()[waits.id].startswith(
        "queue night is closed until 2030-01-07 18:00, and then too"
    )


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"windows": "late=sat"}, "no queue is called 'late'"),
        (
            {"windows": "night=sat", "queues": "day=n00 night=n01"},
            "queues with nodes of their own do not go with windows",
        ),
        ({"windows": "night=8-9"}, "night=8-9: '8-9' is no window"),
        (
            {"windows": "night=sat", "policy": "conservative:ends=compress"},
            "backfill=compress does not go with windows",
        ),
        ({"windows": "night=sat", "policy": "portfolio:members=easy|fcfs"}, "a portfolio does not go with windows"),
    ],
)
def test_windows_that_cannot_be_kept_are_one_line(settings: dict[str, str], problem: str) -> None:
    made = JobSettings(**({"queues": "day night"} | settings))
    with pytest.raises(WrongUseError) as error:
        made.composition  # noqa: B018
        made.switches  # noqa: B018
    assert problem in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("policy", ["fcfs", "easy-sjbf:estimate=mean2,correct=incremental", "conservative"])
def test_the_replay_of_what_a_partition_exports_has_its_windows(policy: str, tmp_path: Path) -> None:
    rng, nights = random.Random(3), ",".join(f"15:{minute:02}-15:{minute + 1:02}" for minute in range(1, 30, 2))
    switches = open_in(f"night={nights} odd=15:02-15:05,15:09-16:20", "day night odd")
    fake = Fake(8, choose(policy).live, now_s=MONDAY_S + 14 * 3600, switches=switches)
    submit(fake, rng)
    for _ in range(45):
        for _ in range(rng.choice([0, 1, 1, 2, 6])):
            fake.end_due()
            fake.report()
            fake.settle()
            fake.now_s += 1
        submit(fake, rng)
    fake.end_due()
    fake.report()
    fake.settle()
    fake.until(lambda: not fake.partition.jobs, most_s=2000)
    ended = fake.store.ended(1000)
    started = {job.id: int(job.started_s or 0) for job in ended}
    found, metrics = replayed(fake, policy, tmp_path)
    assert found == started
    assert metrics["switches"]["windows"] == fake.partition.watts.switched["windows"] > 5


def submit(fake: Fake, rng: random.Random) -> None:
    run_s, who = rng.randint(1, 40), f"u{rng.randrange(3)}"
    queue, walltime_s = rng.choice(["day", "day", "night", "odd"]), run_s + rng.choice([0, 1, 8])
    spec = JobSpec(["run", str(run_s)], walltime_s, "/", nodes=rng.randint(1, 4), queue=queue)
    fake.partition.submit(1000 + sum(map(ord, who)), who, spec)
