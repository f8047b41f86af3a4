"""Which grants a node takes, and what it falls to without one."""

from __future__ import annotations

import msgspec
import pytest

from foundation.wire.power_messages import Declaration, Grant, Report
from nodectl.member.lease import NodeLease

S = 1_000_000_000
DECLARED = Declaration(tdp_mw=500_000, mop_mw=200_000, safe_mw=220_000, boot_mw=450_000, lease_class="os")


def lease_at(now_ns: int = 100 * S, limit_mw: int = 400_000) -> NodeLease:
    return NodeLease("n0", "boot-1", DECLARED, limit_mw, now_ns)


def grant(report_id: int, cap_mw: int = 300_000, sequence: int = 1, epoch: int = 1) -> Grant:
    return Grant("n0", epoch, "boot-1", sequence, cap_mw, report_id, 10 * S)


def test_a_lease_runs_from_when_the_report_was_sent_not_from_when_the_grant_came() -> None:
    lease = lease_at()
    sent = lease.report(101 * S, -1).report_id
    assert lease.take(110 * S, grant(sent)) == ""
    assert lease.lease_end_ns == 111 * S
    assert not lease.lapse(111 * S - 1)
    assert lease.lapse(111 * S)
    assert lease.cap_mw == DECLARED.safe_mw


def test_a_grant_that_is_over_is_refused() -> None:
    lease = lease_at()
    sent = lease.report(101 * S, -1).report_id
    assert "over" in lease.take(111 * S, grant(sent))
    assert lease.cap_mw == 400_000


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"boot_id": "boot-0"}, "another boot"),
        ({"epoch": 1, "sequence": 9}, "taken over"),
        ({"epoch": 2, "sequence": 5}, "newer one is in force"),
        ({"report_id": 99 * S}, "has not sent"),
        ({"report_id": 999 * S}, "has not sent"),
    ],
)
def test_a_grant_that_is_not_the_newest_for_this_boot_and_agent_is_void(change: dict[str, object], why: str) -> None:
    lease = lease_at()
    sent = lease.report(101 * S, -1).report_id
    assert lease.take(101 * S, grant(sent, epoch=2, sequence=5)) == ""
    newer = grant(sent, epoch=2, sequence=6, cap_mw=350_000)
    assert why in lease.take(102 * S, msgspec.structs.replace(newer, **change))
    assert lease.cap_mw == 300_000


def test_a_lower_cap_is_reported_only_when_its_effect_was_seen() -> None:
    lease = lease_at()
    lease.take(101 * S, grant(lease.report(101 * S, -1).report_id, cap_mw=250_000))
    before = lease.report(102 * S, -1)
    lease.confirm("unseen")
    unseen = lease.report(103 * S, -1)
    lease.confirm("seen")
    after = lease.report(104 * S, -1)
    assert [one.limit_mw for one in (before, unseen, after)] == [400_000, 400_000, 250_000]
    assert [one.sequence for one in (before, unseen, after)] == [0, 0, 1]


def test_a_raise_counts_from_the_moment_it_is_taken() -> None:
    lease = lease_at(limit_mw=220_000)
    lease.take(101 * S, grant(lease.report(101 * S, -1).report_id, cap_mw=480_000))
    assert lease.report(102 * S, -1).limit_mw == 480_000


def test_without_a_lease_a_cap_never_rises() -> None:
    lease = lease_at(limit_mw=180_000)
    assert not lease.lapse(200 * S)
    assert lease.cap_mw == 180_000


def test_an_agent_starts_without_a_lease() -> None:
    assert lease_at(limit_mw=400_000).lapse(100 * S)


def test_reports_sent_at_one_time_are_still_distinguished() -> None:
    lease = lease_at()
    names = [lease.report(101 * S, -1).report_id for _ in range(3)]
    assert names == [101 * S, 101 * S + 1, 101 * S + 2], "and none says a later time than it must"


def test_a_report_says_who_sends_it_what_it_confirms_and_what_may_act() -> None:
    lease = lease_at()
    first = lease.report(101 * S, -1)
    assert first == Report("n0", "boot-1", 101 * S, 0, 0, 0, 400_000, "unseen", -1, DECLARED)
    lease.take(102 * S, grant(first.report_id, sequence=7, epoch=3))
    taken = lease.report(102 * S, 310_000)
    assert taken == Report("n0", "boot-1", 102 * S, 3, 0, 0, 400_000, "unseen", 310_000, DECLARED)
    lease.confirm("provisional")
    leaving = lease.report(103 * S, 250_000, is_leaving=True)
    assert leaving == Report("n0", "boot-1", 103 * S, 3, 3, 7, 300_000, "provisional", 250_000, DECLARED, True)


def test_neither_a_new_cap_nor_the_safe_cap_has_the_effect_that_was_seen_of_the_last() -> None:
    lease = lease_at()
    lease.take(101 * S, grant(lease.report(101 * S, -1).report_id))
    lease.confirm("seen")
    assert lease.report(102 * S, -1).effect == "seen"
    lease.take(103 * S, grant(lease.report(103 * S, -1).report_id, cap_mw=250_000, sequence=2))
    assert lease.report(103 * S, -1).effect == "unseen"
    lease.confirm("seen")
    assert lease.lapse(113 * S)
    assert lease.report(113 * S, -1).effect == "unseen"


def test_the_first_report_may_be_sent_and_answered_at_the_instant_of_the_start() -> None:
    lease = lease_at()
    assert lease.take(100 * S, grant(lease.report(100 * S, -1).report_id)) == ""


def test_a_grant_that_came_before_any_report_is_void() -> None:
    lease = lease_at(now_ns=0)
    assert "has not sent" in lease.take(1, grant(0))
    assert lease.take(1, grant(lease.report(0, -1).report_id)) == ""


def test_a_cap_that_is_the_safe_one_already_need_not_be_written_again() -> None:
    assert not lease_at(limit_mw=DECLARED.safe_mw).lapse(200 * S)


def test_the_effect_of_a_new_cap_is_unseen_until_it_is_confirmed() -> None:
    lease = lease_at()
    lease.take(101 * S, grant(lease.report(101 * S, -1).report_id, cap_mw=300_000))
    lease.confirm("seen")
    assert lease.report(102 * S, -1).effect == "seen"
    lease.take(103 * S, grant(lease.report(103 * S, -1).report_id, cap_mw=250_000, sequence=2))
    assert lease.report(104 * S, -1).effect == "unseen"
    lease.confirm("provisional")
    assert lease.report(105 * S, -1).effect == "provisional"
