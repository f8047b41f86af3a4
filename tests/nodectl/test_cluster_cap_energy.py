"""A member's energy counters, its job parts' reports, and what it says of its cluster agent; alone."""

from __future__ import annotations

import msgspec
import pytest

from foundation.wire.job_messages import JobPart, NodeJobs
from nodectl.member.cluster_cap import ClusterCap
from nodectl.member.energy_meter import EnergyMeter, Interval, Kept
from nodectl.member.job_exchange import JobExchange
from tests.nodectl.test_cluster_cap_alone import MS, SETTINGS, Alone, Desk, JobWire, S

WALL_S = 1_700_000_000.0
"""The wall clock when the node's own clock shows 0."""


class KeepingDesk(Desk):
    """Jobs whose thread has a disk: what it kept, and when."""

    def __init__(self, record: bytes = b"") -> None:
        super().__init__()
        self.record, self.records = record, list[bytes]()

    def keep(self, record: bytes) -> None:
        self.record = record
        self.records.append(record)

    def kept(self) -> bytes:
        return self.record


class Member(Alone):
    """One run with jobs, on clocks that are the test's."""

    def __init__(self, desk: KeepingDesk, begin_ns: int = 1000 * S) -> None:
        self.now_ns, self.desk = begin_ns, desk
        self.wire, self.said = JobWire(), []
        self.cap = ClusterCap(
            SETTINGS, self.wire, "boot-1", self.said.append, lambda: self.now_ns, desk, lambda: self.wall_s
        )  # type: ignore[arg-type]

    @property
    def wall_s(self) -> float:
        return WALL_S + self.now_ns / S

    def has(self, *parts: JobPart) -> None:
        self.desk.now = NodeJobs("n0", "boot-1", list(parts))

    @property
    def part(self) -> JobPart:
        """The part as it was reported last."""
        (part,) = self.wire.jobs_sent[-1].parts
        return part

    @property
    def part_j(self) -> float:
        energy = self.part.energy
        return 0.0 if energy is None else (energy.measured_mj + energy.estimated_mj) / 1000


def running(started_s: float) -> JobPart:
    return JobPart(1, 1, "running", started_s=started_s)


def test_a_running_part_is_reported_with_what_the_node_drew_since_its_start() -> None:
    made = Member(KeepingDesk())
    made.tick(100.0, 1000)
    made.has(running(made.wall_s))
    for _ in range(4):
        made.tick(200.0, 1000)
    assert made.part_j == pytest.approx(600.0), "what was drawn up to the last tick but one"


def test_the_counters_are_kept_every_second_whether_or_not_the_cluster_agent_wants_to_know_of_jobs() -> None:
    made = Member(KeepingDesk())
    made.wire.wants_jobs = False
    made.has(running(made.wall_s))
    kept_ms = []
    for at_ms in range(100, 3200, 100):
        before = len(made.desk.records)
        made.tick(200.0)
        if len(made.desk.records) > before:
            kept_ms.append(at_ms)
    assert kept_ms == [100, 1100, 2100, 3100]
    assert set(msgspec.json.decode(made.desk.record, type=Kept).starts) == {"1.1"}, "a part's start is in the record"


def test_the_next_run_goes_on_from_what_this_one_has_kept() -> None:
    desk = KeepingDesk()
    made = Member(desk)
    for _ in range(20):
        made.tick(200.0)
    kept_j = sum(msgspec.json.decode(desk.record, type=Kept).totals[:-1])
    assert kept_j >= 100
    again = Member(KeepingDesk(desk.record), made.now_ns)
    again.tick(200.0)
    assert again.last.energy_mj == round(1000 * (kept_j + 20.0))


def test_an_end_whose_energy_is_not_known_yet_is_reported_as_soon_as_it_is() -> None:
    made = Member(KeepingDesk())
    made.tick(100.0)
    made.has(running(made.wall_s))
    made.tick(100.0)
    made.tick(100.0)
    made.has(JobPart(1, 1, "ended", started_s=made.desk.now.parts[0].started_s, ended_s=made.wall_s + 0.05))
    made.tick(100.0)
    assert made.part.phase == "running", "it ended after the last tick"
    made.tick(100.0)
    assert made.part.phase == "ended"
    sent = len(made.wire.jobs_sent)
    made.tick(100.0)
    assert len(made.wire.jobs_sent) == sent, "once is enough"


def test_without_a_meter_news_of_jobs_is_passed_on_as_it_is() -> None:
    wire, desk = JobWire(), KeepingDesk()
    wire.job_queries = 0
    exchange = JobExchange(wire, desk)  # type: ignore[arg-type]
    for at_ms in (0, 100, 200):
        exchange.exchange(1000 * S + at_ms * MS)
    assert wire.jobs_sent == [desk.now] and desk.records == []


def test_counters_are_read_at_the_time_of_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[tuple[object, ...]] = []
    monkeypatch.setattr(EnergyMeter, "add", lambda self, *given: added.append(given))
    monkeypatch.setattr(EnergyMeter, "resume", lambda self, *given: added.append(given))
    made = Member(KeepingDesk())
    made.cap.resume("layout", "shares", "first")  # type: ignore[arg-type]
    made.cap.follow(0.1, 200.0, "measured", "", joules=7.0, sweep="sweep", sweep_age_ns=5)  # type: ignore[arg-type]
    made.cap.follow(0.5, 200.0, "measured", "")
    assert added == [
        ("layout", "shares", "first"),
        (Interval(made.now_ns - 5, 0.1, 7.0, "measured"), "sweep", {}),
        (Interval(made.now_ns, 0.5, 100.0, "measured"), None, {}),
    ]


def test_the_highest_useful_cap_is_reported_once_it_is_known() -> None:
    made = Alone()
    made.tick(200.0)
    assert made.last.useful_mw == -1 and made.last.inlet_mk == -1 and made.last.site_jobs == {}
    made.cap.useful_mw, made.cap.inlet_mk = 250_000, 296_150
    made.cap.site_jobs = lambda: {"17": (5, 6)}
    made.tick(200.0, 1000)
    assert made.last.site_jobs == {"17": (5, 6)}
    assert made.last.useful_mw == 250_000 and made.last.inlet_mk == 296_150


def test_the_highest_cap_of_use_is_tdp_until_the_limits_of_the_site_are_known() -> None:
    made, found = Alone(tdp_w=520.0), {}
    for useful_mw in (-1, 0, 250_000, 520_001):
        made.cap.useful_mw = useful_mw
        found[useful_mw] = made.cap.most_mw
    assert found == {-1: 520_000, 0: 0, 250_000: 250_000, 520_001: 520_000}


def test_trouble_with_the_cluster_agent_is_a_link_that_is_down_or_a_lease_that_is_over() -> None:
    made = Alone()
    assert made.cap.trouble == "", "nothing is granted, and nobody has capped this node"
    made.tick(400.0)
    made.grant(300.0, 1)
    made.tick(400.0)
    assert made.cap.trouble == ""
    made.now_ns = made.cap.lease_end_ns - 1
    assert made.cap.trouble == ""
    made.now_ns += 1
    assert made.cap.trouble == "the cluster agent grants nothing"
    made.now_ns -= 1
    made.wire.is_up, made.wire.why_down = False, "no route"
    assert made.cap.trouble == "no route"
