"""A node whose limits somebody raises: it reports at once what they allow, until its cap is in force again."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from foundation.wire.job_messages import JobPart, JobSignal
from nodectl.config import Cluster, Config
from nodectl.jobs.job_runner import JobThread
from nodectl.member.cluster_cap import RAISED_NS, ClusterCap
from tests.nodectl.test_agent import node
from tests.nodectl.test_cluster_cap import CLUSTER, LONG_TERM, CappedNode, S, Wire
from tests.waiting import PATIENCE_S, within

TICKS = 30


@pytest.fixture
def capped(tmp_path) -> Iterator[CappedNode]:
    with node("skylake-6146", "hpl") as inside:
        made = CappedNode(inside, tmp_path)
        made.ticks(3)
        made.wire.grant(300.0, 1)
        made.ticks(TICKS)
        assert (made.wire.sent[-1].limit_mw, made.wire.sent[-1].raised_by) == (300_000, "")
        yield made
        made.wire.on_wait = lambda: made.wire.grant(520.0, 99, is_leave=True)
        made.agent.stop()


def raise_limit(made: CappedNode, watts: int) -> None:
    made.inside.ports.files.write(LONG_TERM, str(watts * 1_000_000))


def test_one_write_above_the_cap_is_undone_and_counted_and_over_when_the_cap_is_confirmed_again(capped):
    sent = len(capped.wire.sent)
    raise_limit(capped, 700)
    capped.ticks(10)
    assert capped.limit_uw() == 120_000_000, "within a second"
    first = next(one for one in capped.wire.sent[sent:] if one.raised_by)
    assert first.limit_mw == 60_000 + 165_000 + 120_000, "what the hardware takes, and the other package's share"
    assert first.effect == "unseen" and first.raised_by == "unknown"
    capped.wire.grant(300.0, 2)
    capped.ticks(40)
    last = capped.wire.sent[-1]
    assert (last.limit_mw, last.raised_by, last.sequence) == (300_000, "", 2)
    assert any("ALARM: somebody (unknown) set it to 700000000 uW" in line for line in capped.said)


def test_a_loop_of_writes_counts_for_as_long_as_it_lasts(capped):
    for n in range(12):
        for _ in range(5):
            raise_limit(capped, 700)
            capped.ticks(1)
        capped.wire.grant(300.0, 2 + n)
        assert capped.wire.sent[-1].limit_mw >= 345_000
    assert capped.wire.sent[-1].raised_by == "unknown"


def test_a_zone_that_is_switched_off_counts_what_the_hardware_takes(capped):
    capped.inside.ports.files.write("/sys/class/powercap/intel-rapl:0/enabled", "0")
    capped.ticks(10)
    assert capped.inside.ports.files.read("/sys/class/powercap/intel-rapl:0/enabled").strip() == "1"
    assert max(one.limit_mw for one in capped.wire.sent[-3:]) == 345_000


# --- without a node: what is reported of numbers


class JobWire(Wire):
    """Nobody asks for jobs."""

    wants_jobs, job_queries = False, 0

    def job_messages(self) -> list[object]:
        return []


class Member:
    """A member of a cluster that was granted 300 W, in virtual time: ``draw`` is one tick."""

    def __init__(self, jobs: JobThread | None = None) -> None:
        self.wire, self.said, self.now_ns = JobWire(), [], 10 * S
        settings = Config(cluster=Cluster(**CLUSTER)).cluster
        self.cap = ClusterCap(settings, self.wire, "boot", self.said.append, lambda: self.now_ns, jobs)
        self.sequence = 0
        self.draw(290.0, seconds=1.0)
        self.draw(290.0, seconds=3.0)
        assert self.limit_w == 300.0

    def draw(self, watts: float, seconds: float = 0.1, raised_by: str = "", allowed_w: float = 0.0) -> None:
        for _ in range(round(seconds / 0.1)):
            self.now_ns += S // 10
            self.cap.request(self.now_ns)
            self.cap.follow(0.1, watts, "measured", "", raised_by=raised_by, allowed_w=allowed_w)
            if self.sequence == 0 or self.now_ns % (2 * S) == 0:
                self.sequence += 1
                self.wire.grant(300.0, self.sequence)

    @property
    def limit_w(self) -> float:
        return self.wire.sent[-1].limit_mw / 1000


def test_power_that_stays_above_a_cap_in_force_counts_whatever_the_limits_read():
    made = Member()
    made.draw(480.0, seconds=1.2)
    assert made.limit_w == 300.0, "a package may draw more for about a second after it was idle"
    made.draw(480.0, seconds=0.8)
    assert made.limit_w == 480.0 and made.wire.sent[-1].effect == "unseen"
    assert [line for line in made.said if line.startswith("ALARM: 480 W are drawn where at most 300 W were in force")]
    made.draw(480.0, seconds=3.0)
    assert made.limit_w == 480.0
    made.draw(290.0, seconds=1.0)
    assert made.limit_w == 300.0


def test_bursts_of_a_second_are_no_lost_cap():
    made = Member()
    for _ in range(10):
        made.draw(100.0, seconds=1.0)
        made.draw(360.0, seconds=1.0)
    assert made.limit_w == 300.0 and not [line for line in made.said if "ALARM" in line]


def test_a_raised_limit_counts_at_once_and_for_two_seconds_after_the_last_time():
    made = Member()
    made.draw(290.0, raised_by="dd (process 7)", allowed_w=760.0)
    assert (made.limit_w, made.wire.sent[-1].raised_by) == (760.0, "dd (process 7)")
    made.draw(290.0, seconds=RAISED_NS / S - 0.2)
    assert made.limit_w == 760.0
    made.draw(290.0, seconds=1.0)
    assert (made.limit_w, made.wire.sent[-1].raised_by) == (300.0, "")


def test_a_limit_that_nothing_bounds_counts_the_declared_most_and_never_less_than_what_is_drawn():
    made = Member()
    made.draw(290.0, raised_by="unknown", allowed_w=float("inf"))
    assert made.limit_w == 520.0
    made.draw(610.0, seconds=2.0, raised_by="x" * 200, allowed_w=float("inf"))
    assert (made.limit_w, len(made.wire.sent[-1].raised_by)) == (610.0, 96)


def test_a_raise_of_the_cap_does_not_confirm_what_somebody_has_lost():
    made = Member()
    made.draw(290.0, raised_by="unknown", allowed_w=760.0)
    made.sequence += 1
    made.wire.grant(310.0, made.sequence)
    made.draw(290.0, seconds=0.3)
    assert made.limit_w == 760.0


class Recorder:
    """Runs no job, and records the signals for the one that it says it runs."""

    runs_only, runs_names, runs_uid, refuses, halves = "", (), -1, "", ""

    def __init__(self) -> None:
        self.signals: list[JobSignal] = []

    def parts(self) -> list[JobPart]:
        return [JobPart(7, 1, "running"), JobPart(6, 1, "ended")]

    def signal(self, message: JobSignal) -> None:
        self.signals.append(message)

    def half_of(self, job, attempt):
        return frozenset()

    def counter(self, job, attempt): ...

    def keep(self, record): ...

    def kept(self) -> bytes:
        return b""

    def close(self): ...


def test_the_job_is_ended_if_the_site_wants_that_once_a_limit_is_raised_again_and_again():
    backend = Recorder()
    thread = JobThread(backend, "n0", "boot")
    made = Member(thread)
    try:
        for _ in range(2):
            made.draw(290.0, raised_by="dd (process 7)", allowed_w=760.0)
            made.cap.end_jobs()
        assert not backend.signals, "one write, and one that was seen twice, end no job"
        made.draw(290.0, raised_by="dd (process 7)", allowed_w=760.0)
        made.cap.end_jobs()
        assert within(PATIENCE_S, lambda: backend.signals == [JobSignal(7, 1, signal.SIGTERM)])
        assert any("job 7 is ended" in line and "dd (process 7)" in line for line in made.said)
    finally:
        made.cap.close()
