"""A node's dealings with its cluster agent without the rest of the agent: reports, proof of caps, leases, leave."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from foundation.wire.job_messages import JobPart, NodeJobs
from foundation.wire.keys import KeyFileError, KeyPair, write_pair
from foundation.wire.power_messages import Declaration
from nodectl.config import Cluster
from nodectl.member import cluster_cap
from nodectl.member.cluster_cap import ClusterCap, boottime_ns, declaration, open_cluster_cap
from pmu.readings import NO_RAW_PROGRESS, RawProgress
from tests.nodectl.test_cluster_cap import CLUSTER, Wire

S = 1_000_000_000
MS = 1_000_000
SETTINGS = msgspec.convert(CLUSTER, Cluster)  # 520 W, safe 220 W, settles within 0.2 s


class Desk:
    """Jobs that are this test."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.now = NodeJobs("n0", "boot-1", [])
        self.is_closed = False

    def post(self, message: str) -> None:
        self.heard.append(message)

    def news(self) -> NodeJobs:
        return self.now

    def progress(self) -> RawProgress:
        return RawProgress(1, 42)

    def keep(self, record: bytes) -> None:
        self.record = record

    def kept(self) -> bytes:
        return b""

    def close(self) -> None:
        self.is_closed = True


class JobWire(Wire):
    """A link that carries jobs too."""

    def __init__(self) -> None:
        super().__init__()
        self.wants_jobs, self.job_queries = True, 1
        self.messages: list[str] = []
        self.jobs_sent: list[NodeJobs] = []
        self.is_closed = False
        self.waited_ms: list[int] = []

    def wait(self, timeout_ms: int) -> None:
        self.waited_ms.append(timeout_ms)
        super().wait(timeout_ms)

    def job_messages(self) -> list[str]:
        messages, self.messages = self.messages, []
        return messages

    def send_jobs(self, news: NodeJobs) -> None:
        self.jobs_sent.append(news)

    def close(self) -> None:
        self.is_closed = True


class Alone:
    """One run, whose clock and draw are the test's."""

    def __init__(self, earlier_cap_mw: int = 0, jobs: Desk | None = None, **changes: object) -> None:
        self.now_ns = 1000 * S
        self.wire, self.said = JobWire(), []
        settings = msgspec.structs.replace(SETTINGS, **changes)
        self.cap = ClusterCap(settings, self.wire, "boot-1", self.said.append, lambda: self.now_ns, jobs)
        if earlier_cap_mw:
            self.cap.inherit(earlier_cap_mw)

    def tick(self, power_w: float, ms: int = 100, trouble: str = "", **told: str) -> None:
        """One interval of the agent that ends now: what was drawn is said, then the cap of the next is taken."""
        self.now_ns += ms * MS
        self.cap.request(0)
        self.cap.follow(ms / 1000, power_w, "measured", trouble, **told)

    def grant(self, cap_w: float, sequence: int, **changes: object) -> None:
        self.wire.grant(cap_w, sequence)
        self.wire.grants[-1] = msgspec.structs.replace(self.wire.grants[-1], **changes)

    @property
    def last(self):
        return self.wire.sent[-1]


def capped(power_w: float = 400.0, cap_w: float = 300.0) -> Alone:
    """Granted this cap while it drew so much: the tick has just taken the grant."""
    made = Alone()
    made.tick(power_w)
    made.grant(cap_w, 1)
    made.tick(power_w)
    return made


def until_confirmed(made: Alone, power_w: float, ms: int = 100) -> int:
    """Ticks until the cap granted last is confirmed."""
    for n in range(1, 20):
        reports = len(made.wire.sent)
        made.tick(power_w, ms)
        if len(made.wire.sent) > reports and made.last.effect != "unseen":
            return n
    return 0


# --- what is said


def test_settings_in_watts_and_seconds_are_declared_in_milliwatts_and_milliseconds() -> None:
    settings = Cluster(
        tdp_w=520.1, mop_w=200.2, safe_w=220.3, boot_w=300.4, lease_class="sticky", settle_s=2.25, watchdog_s=7.5
    )
    assert declaration(settings) == Declaration(520_100, 200_200, 220_300, 300_400, "sticky", 2250, 7500)


def test_an_uncapped_node_reports_what_it_is_and_draws() -> None:
    made = Alone()
    assert made.cap.request(0) is None
    assert made.cap.cap_w is None and made.cap.limit_w is None
    made.tick(301.2345, tag="cpu-bound", cap_bound="no")
    report = made.last
    assert (report.node, report.boot_id, report.report_id) == ("n0", "boot-1", made.now_ns)
    assert report.declaration == declaration(SETTINGS)
    assert (report.limit_mw, report.power_mw, report.asked_mw) == (520_000, 301_234, -1)
    assert (report.quality, report.tag, report.tag_source, report.held) == ("measured", "cpu-bound", "measured", "no")
    assert (report.units, report.instructions) == (0, 0)
    assert not report.is_leaving


def test_a_load_that_nobody_has_named_has_no_source() -> None:
    made = Alone()
    made.tick(300.0)
    assert (made.last.tag, made.last.tag_source) == ("", "")


def test_energy_is_power_times_the_time_that_it_was_drawn_for_and_adds_up() -> None:
    made = Alone()
    made.tick(300.0, ms=500)
    assert made.last.energy_mj == 150_000
    made.tick(math.nan, ms=500)
    made.tick(200.0, ms=2000)
    assert made.last.energy_mj == 550_000, "what was not measured adds nothing"


def test_power_that_was_not_measured_is_not_said_to_be_zero_and_none_is_negative() -> None:
    made = Alone()
    made.tick(math.nan)
    assert made.last.power_mw == -1
    made.tick(-5.0, ms=1000)
    assert made.last.power_mw == 0


def test_a_report_goes_out_every_second() -> None:
    made = Alone()
    sent = []
    for _ in range(30):
        made.tick(300.0)
        sent.append(made.now_ns)
    assert [one.report_id for one in made.wire.sent] == [sent[0], sent[10], sent[20]]


def test_that_a_node_was_cap_bound_even_for_a_moment_is_in_the_next_report_and_only_there() -> None:
    made = Alone()
    made.tick(300.0)
    for held in ("no", "unsure", "yes", "unsure", "no", *["no"] * 14, "unsure", *["no"] * 10):
        made.tick(300.0, cap_bound=held)
    assert [one.held for one in made.wire.sent] == ["no", "yes", "unsure", "no"]


# --- proof that a cap is in force


def test_a_lower_cap_is_confirmed_when_the_mean_of_two_ticks_after_it_has_settled_is_below_it() -> None:
    made = capped()
    assert made.last.sequence == 0, "not in the tick that takes it"
    # the tick that takes it ends at 0 s; it has settled at 0.2 s, the ticks from there on end at 0.3 and 0.4 s
    assert until_confirmed(made, 290.0) == 4
    assert (made.last.sequence, made.last.limit_mw, made.last.effect) == (1, 300_000, "seen")
    assert made.last.report_id == made.now_ns, "watts are waited for: at once"
    assert (made.cap.cap_w, made.cap.limit_w) == (300.0, 300.0)


def test_an_interval_that_began_before_the_cap_had_settled_proves_nothing() -> None:
    made = capped()
    made.tick(290.0, ms=150)
    made.tick(100.0, ms=150)  # began at 0.15 s
    assert until_confirmed(made, 305.0) == 2, "mean of these two alone: within 2 % of the cap"
    assert capped().cap.limit_w == 520.0


def test_an_interval_that_began_when_the_cap_had_settled_counts() -> None:
    made = capped()
    made.tick(290.0, ms=200)
    assert until_confirmed(made, 290.0, ms=200) == 1


def test_power_above_the_cap_proves_nothing_and_the_next_window_begins_without_it() -> None:
    made = capped()
    for power_w in (400.0, 400.0, 400.0, 250.0):  # settles; then a mean of 325 W
        made.tick(power_w)
    assert made.last.sequence == 0
    assert until_confirmed(made, 300.0) == 2


def test_the_mean_is_weighted_by_time() -> None:
    made = capped()
    made.tick(290.0, ms=200)
    made.tick(400.0, ms=50)
    made.tick(281.0, ms=150)  # (400 x 0.05 + 281 x 0.15) / 0.2 = 310.75 W
    assert made.last.sequence == 0
    made.tick(400.0, ms=50)
    made.tick(270.0, ms=150)  # 302.5 W
    assert made.last.sequence == 1


def test_a_cap_is_kept_up_to_two_percent_above_it() -> None:
    assert until_confirmed(capped(), 306.0) == 4
    assert until_confirmed(capped(), 306.1) == 0
    assert until_confirmed(capped(), 0.0) == 4, "and by a node that draws nothing"


@pytest.mark.parametrize(("before_w", "effect"), [(300.1, "seen"), (300.0, "provisional"), (150.0, "provisional")])
def test_an_effect_is_seen_only_where_the_node_drew_more_than_the_new_cap(before_w: float, effect: str) -> None:
    made = capped(before_w)
    assert until_confirmed(made, 150.0) == 4
    assert made.last.effect == effect


@pytest.mark.parametrize("wrong", [{"trouble": "foreign"}, {"power_w": math.nan}])
def test_with_trouble_or_without_a_measured_draw_nothing_is_confirmed(wrong: dict[str, object]) -> None:
    made = capped()
    for _ in range(20):
        made.tick(**{"power_w": 290.0, **wrong})
    assert made.last.sequence == 0
    assert until_confirmed(made, 290.0) > 0


def test_a_raise_needs_not_settle_but_an_interval_of_its_own() -> None:
    made = Alone(earlier_cap_mw=250_000)
    made.tick(240.0)
    made.grant(300.0, 1)
    made.tick(240.0)
    assert made.last.sequence == 0, "this interval was under the old cap"
    made.tick(240.0)
    assert (made.last.sequence, made.last.effect) == (1, "provisional")


def test_a_renewal_of_a_confirmed_cap_is_confirmed_as_the_cap_was_and_not_measured_again() -> None:
    for before_w, effect in ((400.0, "seen"), (300.0, "provisional"), (250.0, "provisional")):
        made = capped(before_w)
        until_confirmed(made, 250.0)
        made.grant(300.0, 2)
        made.tick(math.nan, ms=1000)
        assert (made.last.sequence, made.last.effect) == (2, effect)


def test_a_renewal_of_a_cap_that_is_not_confirmed_confirms_nothing_and_measures_on() -> None:
    made = capped()
    made.tick(290.0)
    made.grant(300.0, 2)
    assert until_confirmed(made, 290.0) == 3
    assert made.last.sequence == 2


def test_the_first_grant_is_a_new_cap_even_at_the_tdp_where_the_node_is_already() -> None:
    made = capped(300.0, 520.0)
    assert made.cap.cap_w == 520.0
    assert made.last.asked_mw == -1, "said before the grant came"
    assert until_confirmed(made, 300.0) == 1
    assert made.last.asked_mw == 520_000


def test_a_grant_that_is_void_changes_nothing() -> None:
    made = Alone()
    made.tick(300.0)
    made.grant(300.0, 1, boot_id="boot-0")
    made.tick(300.0)
    assert made.cap.request(0) is None


# --- leases


def test_without_a_renewal_the_cap_falls_to_the_safe_cap_and_that_is_proved_as_any_other() -> None:
    made = capped()
    assert made.cap.lease_end_ns == made.wire.sent[0].report_id + 5 * S
    until_confirmed(made, 290.0)
    made.now_ns = made.cap.lease_end_ns - 1
    request = made.cap.request(0)
    assert request is not None and (request.node_w, request.source) == (300.0, "the cluster")
    made.now_ns += 1
    request = made.cap.request(0)
    assert request is not None and request.node_w == 220.0
    assert made.said[-1] == "the lease is over: 220 W, the safe cap (the cluster agent grants nothing)"
    assert made.cap.limit_w == 300.0, "until it is seen"
    made.tick(290.0, ms=1000)
    made.tick(290.0, ms=1000)
    assert made.cap.limit_w == 300.0
    assert until_confirmed(made, 210.0) == 2
    assert made.cap.limit_w == 220.0


def test_why_a_lease_was_not_renewed_is_said_where_the_link_is_down() -> None:
    made = capped()
    made.wire.is_up, made.wire.why_down = False, "no answer"
    made.now_ns += 10 * S
    made.cap.request(0)
    assert made.said[-2:] == [
        "the lease is over: 220 W, the safe cap (no answer)",
        "tcp://test: no answer; the cap stays in force until its lease is over",
    ]


def test_what_an_earlier_run_has_left_in_force_stays_a_cap_without_a_lease() -> None:
    made = Alone(earlier_cap_mw=210_000)
    request = made.cap.request(0)
    assert request is not None and request.node_w == 210.0, "below the safe cap, and not raised to it"
    higher = Alone(earlier_cap_mw=250_000)
    request = higher.cap.request(0)
    assert request is not None and request.node_w == 220.0


def test_a_controller_that_does_not_end_leases_makes_the_node_sticky_while_it_does_not() -> None:
    made = Alone(lease_class="hw")
    made.tick(300.0)
    made.cap.note_lease("no timer")
    made.cap.note_lease("no timer")
    assert made.said[-1] == "lease_class sticky in place of hw: no timer"
    made.tick(300.0)
    assert made.last.declaration.lease_class == "sticky", "at once: the ledger counts by it"
    assert made.last.declaration.tdp_mw == 520_000
    made.cap.note_lease("")
    made.tick(300.0)
    assert made.last.declaration == declaration(msgspec.structs.replace(SETTINGS, lease_class="hw"))
    assert made.said[1:] == ["lease_class sticky in place of hw: no timer", "lease_class hw: the controller ends it"]


@pytest.mark.parametrize("lease_class", ["os", "sticky"])
def test_only_a_node_whose_controller_should_end_leases_depends_on_whether_it_does(lease_class: str) -> None:
    made = Alone(lease_class=lease_class)
    made.tick(300.0)
    made.cap.note_lease("no timer")
    made.tick(300.0)
    assert len(made.wire.sent) == 1 and made.last.declaration.lease_class == lease_class


# --- leave


def test_who_was_never_capped_may_go() -> None:
    made = Alone()
    assert made.cap.leave()
    assert made.wire.sent == []


def test_leave_is_waited_for_three_seconds_and_requested_twice_a_second() -> None:
    made = capped()
    began_ns = made.now_ns
    reports = len(made.wire.sent)

    def pass_time() -> None:
        made.now_ns += 50 * MS

    made.wire.on_wait = pass_time
    assert not made.cap.leave()
    asked = made.wire.sent[reports:]
    assert [(one.report_id - began_ns) / S for one in asked] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    assert all(one.is_leaving for one in asked)
    assert made.now_ns - began_ns == 3 * S
    assert set(made.wire.waited_ms) == {50}
    assert made.said[-1] == "no leave within 3 s: the cap stays, at most 220 W"


def test_what_an_earlier_run_has_left_in_force_needs_leave_too() -> None:
    made = Alone(earlier_cap_mw=210_000)

    def pass_time() -> None:
        made.now_ns += S

    made.wire.on_wait = pass_time
    assert not made.cap.leave()
    asked = made.wire.sent[0]
    assert (asked.power_mw, asked.energy_mj, asked.quality) == (-1, 0, "missing"), "nothing has been measured"
    assert (asked.tag, asked.tag_source, asked.held, asked.asked_mw) == ("", "", "", 210_000)


def test_a_node_that_nobody_has_capped_has_no_cap_to_leave() -> None:
    cap = ClusterCap(SETTINGS, JobWire(), "boot-1")
    assert cap.cap_w is None and cap.limit_w is None
    assert cap.leave()


def test_a_cap_that_is_left_closes_its_link() -> None:
    wire = JobWire()
    with ClusterCap(SETTINGS, wire, "boot-1"):
        assert not wire.is_closed
    assert wire.is_closed


def test_leave_that_is_granted_ends_the_wait() -> None:
    made = capped()
    made.wire.on_wait = lambda: made.wire.grant(520.0, 2, is_leave=True)
    assert made.cap.leave()
    assert len(made.wire.waited_ms) == 1


def test_leave_that_was_granted_before_does_not_stand_once_a_cap_is_granted_after_it() -> None:
    made = capped()
    made.grant(520.0, 2, is_leave=True)
    made.tick(300.0)
    made.grant(300.0, 3)
    made.tick(300.0)

    def pass_time() -> None:
        made.now_ns += S

    made.wire.on_wait = pass_time
    assert not made.cap.leave()


# --- the link


def test_what_becomes_of_the_link_is_said_when_it_changes() -> None:
    made = Alone()
    made.wire.is_up, made.wire.why_down = False, "not connected yet"
    made.tick(300.0)
    assert made.said == []
    made.wire.why_down = "wrong key"
    made.tick(300.0)
    made.tick(300.0)
    made.wire.is_up = True
    made.tick(300.0)
    made.tick(300.0)
    made.wire.is_up, made.wire.why_down = False, "it closed"
    made.tick(300.0)
    made.tick(300.0)
    assert made.said == [
        "tcp://test: wrong key",
        "tcp://test: the cluster agent is there",
        "tcp://test: it closed; the cap stays in force until its lease is over",
    ]


def test_leases_run_by_the_clock_that_goes_on_while_a_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_cap.time, "clock_gettime_ns", {cluster_cap.time.CLOCK_BOOTTIME: 77}.__getitem__)
    assert boottime_ns() == 77


def test_an_open_link_needs_no_keys_and_only_where_the_settings_say_so(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(SETTINGS, insecure=True, key="")
    made = open_cluster_cap(settings, "boot-1", print)
    made.close()
    for wrong in ({"insecure": False}, {"key": str(tmp_path / "none")}):
        with pytest.raises(KeyFileError):
            open_cluster_cap(msgspec.structs.replace(settings, **wrong), "boot-1", print)


def test_a_link_has_the_keys_that_the_settings_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = KeyPair("a" * 40, "b" * 40)
    write_pair(tmp_path / "node.key", pair)
    settings = msgspec.structs.replace(SETTINGS, key=str(tmp_path / "node.key"), server_key="c" * 40)
    wire, said, opened = JobWire(), [], []
    monkeypatch.setattr(cluster_cap, "ClusterLink", lambda *arguments: opened.append(arguments) or wire)
    made = open_cluster_cap(settings, "boot-1", said.append, Desk())
    assert opened == [(settings.url, pair, "c" * 40, False)]
    made.request(0)
    made.follow(0.1, 300.0, "measured", "")
    assert wire.sent[0].boot_id == "boot-1"
    assert said == ["tcp://test: the cluster agent is there"]
    assert made.progress() == RawProgress(1, 42)


# --- jobs


def with_jobs() -> tuple[Alone, Desk]:
    desk = Desk()
    return Alone(jobs=desk), desk


def test_messages_about_jobs_are_passed_on_and_the_job_says_how_far_it_is() -> None:
    made, desk = with_jobs()
    made.wire.messages = ["start", "stop"]
    made.tick(300.0)
    assert desk.heard == ["start", "stop"]
    assert made.cap.progress() == RawProgress(1, 42)
    assert Alone().cap.progress() == NO_RAW_PROGRESS
    made.cap.close()
    assert desk.is_closed and made.wire.is_closed


def test_jobs_are_reported_only_on_request_and_at_once() -> None:
    made, desk = with_jobs()
    made.wire.wants_jobs = False
    made.tick(300.0)
    assert made.wire.jobs_sent == []
    made.wire.wants_jobs = True
    made.tick(300.0)
    made.tick(300.0)
    assert made.wire.jobs_sent == [desk.now]
    made.wire.wants_jobs = False
    made.tick(300.0)
    made.wire.wants_jobs = True  # on another connection
    made.tick(300.0)
    assert len(made.wire.jobs_sent) == 2


def test_a_change_of_jobs_and_a_question_are_answered_at_once() -> None:
    made, desk = with_jobs()
    made.tick(300.0)
    desk.now = NodeJobs("n0", "boot-1", [])
    made.tick(300.0)
    assert len(made.wire.jobs_sent) == 2
    made.wire.job_queries += 1
    made.tick(300.0)
    made.tick(300.0)
    assert len(made.wire.jobs_sent) == 3


@pytest.mark.parametrize(("parts", "every_s"), [([], 5), ([JobPart(1, 1, "running")], 1)])
def test_jobs_are_said_every_second_and_that_there_are_none_every_five(parts: list[JobPart], every_s: int) -> None:
    made, desk = with_jobs()
    desk.now = NodeJobs("n0", "boot-1", parts)
    sent_s = []
    for tick in range(1, 111):
        before = len(made.wire.jobs_sent)
        made.tick(300.0)
        if len(made.wire.jobs_sent) > before:
            sent_s.append((tick - 1) / 10)
    assert sent_s == [n for n in range(11) if n % every_s == 0]
