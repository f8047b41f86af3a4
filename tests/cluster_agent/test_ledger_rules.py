"""The ledger's figures one by one, each at its boundary; ``test_ledger`` has the rules at work, and the worlds."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from benchmarks.ledger_store import FaultyStore
from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.ledger import Ledger, Terms
from cluster_agent.serve.live_sharing import Sharing
from foundation.wire.power_messages import Declaration
from tests.cluster_agent.ledger_calls import (
    AFTER_S,
    HERE_S,
    OS,
    STICKY,
    caps_w,
    confirmed,
    count_w,
    ledger,
    places,
    report,
    two,
    want,
)

# --- terms and sums


def test_one_node_at_a_time_reboots_by_default_and_its_watts_are_set_aside() -> None:
    one = Ledger(FaultyStore(), Terms(), BudgetLine(2_000_000), 0.0)
    confirmed(one, 0.0, {"a": 300, "b": 200})
    assert one.reserve_mw == 250_000, "the largest of 450 - 300 and 450 - 200"


@pytest.mark.parametrize(("k", "reserve_w"), [(0, 0), (1, 250), (2, 400), (9, 400)])
def test_the_reserve_is_what_so_many_nodes_could_draw_beyond_their_counts(k: int, reserve_w: int) -> None:
    one = two(k=k)
    one.expect(0.0, {"c": msgspec.structs.replace(OS, boot_mw=100_000)})  # below its count
    assert one.reserve_mw == reserve_w * 1000
    assert one.reserve_with_mw(places(one, "b"), np.array([350_000])) == (0, 150_000, 250_000, 250_000)[min(k, 3)]


def test_a_decrease_is_in_force_after_a_lease_by_the_slower_clock_and_the_slowest_node() -> None:
    one = ledger(2000)
    assert one.settle_s == pytest.approx(HERE_S, abs=1e-9)
    one.expect(0.0, {"a": msgspec.structs.replace(OS, lease_class="hw")})
    assert one.settle_s == pytest.approx(HERE_S + 0.5, abs=1e-9), "the controller ends its lease"
    one.expect(0.0, {"b": OS})
    assert one.settle_s == pytest.approx(HERE_S + AFTER_S, abs=1e-9)
    one.hear(1.0, report("b", 1, 500, declaration=msgspec.structs.replace(OS, settle_ms=2500)))
    assert one.settle_s == pytest.approx(HERE_S + 10.5, abs=1e-9), "as it declares now"
    one.hear(2.0, report("b", 2, 500, declaration=STICKY))
    assert one.settle_s == pytest.approx(HERE_S + 10.5, abs=1e-9), "grants under the older words may be open"


def test_what_is_free_is_the_budget_less_counts_reserve_and_what_is_fixed() -> None:
    one = two(1000, k=1, fixed_w=100)
    assert (one.spendable_mw(0.0), one.free_mw(0.0)) == (900_000, 150_000)
    assert (one.over_mw(0.0), one.breach_mw(0.0)) == (-400_000, -400_000)
    one.budget.announce(5.0, 600_000)
    assert (one.spendable_mw(0.0), one.free_mw(0.0)) == (500_000, -250_000)
    one.budget.change(1.0, 450_000, [], 5.0)
    assert one.over_mw(1.0) == 150_000
    assert one.breach_mw(1.0) == -400_000, "until it must be kept"
    assert one.breach_mw(6.0) == 150_000


def test_a_step_of_the_budget_is_in_force_from_its_time_on_for_whoever_looks() -> None:
    one = two()
    one.budget.announce(5.0, 400_000)
    assert one.over_mw(4.9) == -1_500_000
    assert one.over_mw(5.0) == 100_000


# --- silence


def test_a_node_is_silent_once_its_lease_is_over_by_any_clock_and_acted_on() -> None:
    one = two()
    one.hear(100.0, report("a", 100_000, 300, sequence=1, epoch=1))
    end_s = 100.0 + HERE_S + AFTER_S
    assert one.is_silent(end_s - 1e-6).tolist() == [False, True]
    assert one.is_silent(end_s + 1e-6).tolist() == [True, True]
    assert one.is_within_reach(end_s - 1e-6).tolist() == [True, False]
    assert one.is_within_reach(end_s + 1e-6).tolist() == [False, False]


def test_a_silent_node_counts_what_it_fell_to_from_that_time_on() -> None:
    small = msgspec.structs.replace(OS, boot_mw=210_000)
    one = two()
    one.hear(0.5, report("a", 500, 300, sequence=1, epoch=1, declaration=small))
    end_s = 0.5 + HERE_S + AFTER_S
    one.pass_time(end_s - 1e-6)
    assert count_w(one, "a") == 300
    one.pass_time(end_s + 1e-6)
    assert count_w(one, "a") == 210
    assert one.total_mw == one.accounts.count_mw.sum()


def test_silence_begins_at_the_very_instant_at_which_the_lease_is_surely_over() -> None:
    one = ledger(2000)
    confirmed(one, 0.0, {"a": 300})
    end_s = one.settle_s
    assert not one.is_silent(np.nextafter(end_s, 0)).any()
    one.pass_time(np.nextafter(end_s, 0))
    assert count_w(one, "a") == 300
    assert one.is_silent(end_s).all()
    one.pass_time(end_s)
    assert count_w(one, "a") == 450


def lost_grant(declaration: Declaration, limit_w: int) -> Ledger:
    """Node a was granted 400 W at 0 s and is heard at 5 s, without it; b has it the other way round."""
    one = ledger(3000)
    for name in ("a", "b"):
        one.expect(0.0, {name: declaration})
        one.hear(0.0, report(name, 1, limit_w, declaration=declaration))
    one.grants(0.0, ["a", "b"])
    want(one, {"a": 400_000, "b": 320_000})
    sent = {grant.node: grant.sequence for grant in one.grants(0.0)}
    one.hear(5.0, report("a", 5000, limit_w, sequence=1, epoch=1, declaration=declaration))
    one.hear(5.0, report("b", 5000, 320, sequence=sent["b"], epoch=1, declaration=declaration))
    return one


def test_a_lost_grant_is_over_at_the_very_instant_at_which_its_lease_is_though_the_node_is_heard() -> None:
    one = lost_grant(OS, 250)
    one.pass_time(np.nextafter(one.settle_s, 0))
    assert (count_w(one, "a"), count_w(one, "b")) == (400, 320)
    one.pass_time(one.settle_s)
    assert (count_w(one, "a"), count_w(one, "b")) == (250, 320)
    assert one.total_mw == 570_000


def test_each_lost_grant_is_over_at_its_own_time() -> None:
    one = two(3000)
    one.hear(0.0, report("a", 1, 300, sequence=1, epoch=1))
    one.hear(2.0, report("b", 2000, 200, sequence=1, epoch=1))
    want(one, {"a": 480_000, "b": 470_000})
    one.grants(2.0)
    for name, limit_w in (("a", 300), ("b", 200)):
        one.hear(5.0, report(name, 5000, limit_w, sequence=1, epoch=1))
    one.pass_time(one.settle_s)
    assert (count_w(one, "a"), count_w(one, "b")) == (300, 470)
    one.pass_time(one.settle_s + 2.0)
    assert (count_w(one, "a"), count_w(one, "b")) == (300, 200)


def test_each_sticky_node_may_keep_its_own_lost_grant() -> None:
    one = ledger(3000)
    for name in ("a", "b"):
        one.expect(0.0, {name: STICKY})
        one.hear(0.0, report(name, 1, 250, declaration=STICKY))
    want(one, {"a": 400_000, "b": 320_000})
    one.grants(0.0)
    for name in ("a", "b"):
        one.hear(5.0, report(name, 5000, 250, declaration=STICKY))
    one.pass_time(one.settle_s)
    assert [one.accounts[name].limit_mw for name in ("a", "b")] == [400_000, 320_000]


def test_of_two_lost_grants_of_a_node_the_second_is_open_when_the_first_is_over() -> None:
    one = two()
    want(one, {"a": 480_000})
    one.grants(0.0)
    one.hear(3.0, report("a", 3000, 300, sequence=1, epoch=1))
    want(one, {"a": 470_000})
    one.grants(3.0)
    one.hear(6.0, report("a", 6000, 300, sequence=1, epoch=1))
    one.pass_time(np.nextafter(one.settle_s, 0))
    assert count_w(one, "a") == 480
    one.pass_time(one.settle_s)
    assert count_w(one, "a") == 470
    one.pass_time(one.settle_s + 3.0)
    assert count_w(one, "a") == 300


def test_watts_of_a_grant_that_is_over_are_free_for_the_grants_of_that_very_time() -> None:
    one = lost_grant(OS, 250)
    one.budget.set(700_000)
    end_s = one.settle_s
    one.hear(end_s - 1.0, report("b", 18_000, 320, sequence=2, epoch=1))
    want(one, {"a": -1, "b": 450_000})
    assert one.grants(np.nextafter(end_s, 0)) == []
    assert caps_w(one.grants(end_s)) == {"b": 450}


def test_a_lost_grant_may_have_been_taken_and_lapsed_to_the_safe_cap() -> None:
    one = lost_grant(OS, 150)
    one.pass_time(one.settle_s)
    assert (count_w(one, "a"), count_w(one, "b")) == (200, 320), "the safe cap, which is more than the node has said"


def test_a_sticky_node_may_have_taken_a_lost_grant_and_keep_it() -> None:
    one = lost_grant(STICKY, 250)
    one.pass_time(one.settle_s)
    assert (count_w(one, "a"), count_w(one, "b")) == (400, 320)
    one.pass_time(1000.0)
    assert (count_w(one, "a"), count_w(one, "b")) == (400, 320)


def test_a_grant_that_is_confirmed_leaves_the_newer_ones_open() -> None:
    one = two()
    want(one, {"a": 480_000})
    first = one.grants(1.0)[0].sequence
    want(one, {"a": 470_000})
    second = one.grants(1.5)[0].sequence
    one.hear(2.0, report("a", 2000, 250, sequence=first, epoch=1))
    assert count_w(one, "a") == 470, "the newer one may be taken yet"
    one.hear(2.5, report("a", 2500, 260, sequence=second, epoch=1))
    assert count_w(one, "a") == 260


def test_a_sequence_of_another_epoch_confirms_nothing_here() -> None:
    one = two()
    want(one, {"a": 480_000})
    sequence = one.grants(1.0)[0].sequence
    one.hear(2.0, report("a", 2000, 250, sequence=sequence, epoch=0, seen_epoch=1))
    assert count_w(one, "a") == 480


def test_a_node_that_was_granted_nothing_in_this_boot_does_not_fall_by_itself() -> None:
    one = ledger(2000)
    one.hear(0.0, report("a", 1, 350))
    one.pass_time(1000.0)
    assert count_w(one, "a") == 500


def test_a_node_that_was_let_go_is_out_of_reach_and_counts_its_tdp_until_its_agent_is_back() -> None:
    one = two()
    one.hear(1.0, report("a", 1000, 300, sequence=1, epoch=1, is_leaving=True))
    (leave,) = one.grants(1.0)
    assert leave.is_leave
    assert one.is_within_reach(1.0).tolist() == [False, True]
    one.hear(2.0, report("a", 2000, 300, sequence=leave.sequence, epoch=1, is_leaving=True))
    assert one.is_within_reach(2.0).tolist() == [False, True], "that report may be older than its leave"
    one.hear(3.0, report("a", 3000, 300))
    assert one.is_within_reach(3.0).tolist() == [True, True]
    assert count_w(one, "a") == 450, "it has confirmed nothing since"


# --- power off and on


def test_switching_one_node_off_says_nothing_of_the_others() -> None:
    one = ledger(3000, k=9)
    confirmed(one, 0.0, {"a": 300, "b": 200})
    one.hear(0.0, report("s", 1, 400, declaration=STICKY))
    one.switched_off(30.0, "a")
    assert [one.accounts[name].is_off for name in ("a", "b", "s")] == [True, False, False]
    assert one.reserve_mw == 450_000 + 250_000, "a may come up by itself, b may reboot, s keeps its cap"
    assert one.total_mw == one.accounts.count_mw.sum() == 200_000 + 500_000


def test_nothing_that_was_open_counts_for_a_node_without_power_nor_when_it_is_back() -> None:
    one = two()
    want(one, {"a": 490_000, "b": 480_000})
    one.grants(1.0)
    one.switched_off(2.0, "a")
    one.hear(2.5, report("b", 2500, 200, sequence=1, epoch=1))
    assert (count_w(one, "a"), count_w(one, "b")) == (0, 480), "that of b is open as before"
    assert one.switch_on(3.0, "a")
    assert count_w(one, "a") == 450, "its boot, not the grant of before"
    one.pass_time(100.0)
    assert count_w(one, "a") == 450


def test_a_cap_above_the_boot_power_does_not_outlive_the_power() -> None:
    one = ledger(2000)
    confirmed(one, 0.0, {"a": 480})
    one.switched_off(30.0, "a")
    assert one.switch_on(31.0, "a")
    assert count_w(one, "a") == 450


def test_of_two_nodes_without_power_one_is_switched_on() -> None:
    one = two(k=9)
    one.switched_off(30.0, "a")
    one.switched_off(30.0, "b")
    assert one.reserve_mw == 900_000, "both may come up unasked"
    assert one.switch_on(31.0, "a")
    assert [one.accounts[name].is_off for name in ("a", "b")] == [False, True]
    assert (one.total_mw, one.reserve_mw) == (450_000, 450_000)


def test_a_boot_must_fit_an_announced_drop_too() -> None:
    one = two()
    one.switched_off(30.0, "a")
    one.budget.announce(31.0 + one.settle_s, 800_000)
    assert not one.switch_on(31.0, "a"), "with b, which is silent, 900 W"
    one.budget.announce(31.0 + one.settle_s, 900_000)
    assert one.switch_on(31.0, "a")


def test_a_node_that_had_leave_and_was_switched_off_counts_its_boot_when_it_is_switched_on() -> None:
    one = two()
    one.hear(1.0, report("a", 1000, 300, sequence=1, epoch=1, is_leaving=True))
    assert one.grants(1.0)[0].is_leave
    one.switched_off(30.0, "a")
    assert not one.accounts["a"].has_left
    assert one.switch_on(31.0, "a")
    assert count_w(one, "a") == 450


def test_what_a_boot_costs_is_what_the_node_would_count_more() -> None:
    one = two()
    one.switched_off(30.0, "a")
    assert one.boot_costs_mw(places(one, "a", "b")).tolist() == [450_000, 250_000]
    one.hear(30.0, report("c", 1, 480))
    assert one.boot_costs_mw(places(one, "c")).tolist() == [0], "it counts its TDP"


def test_only_the_nodes_named_last_are_awaited() -> None:
    one = two()
    one.await_boots(["a"])
    assert one.accounts.is_awaited.tolist() == [True, False]
    one.await_boots(["b"])
    assert one.accounts.is_awaited.tolist() == [False, True]
    one.await_boots([])
    assert one.accounts.is_awaited.tolist() == [False, False]


def test_a_node_that_is_switched_on_is_awaited_no_more_and_has_confirmed_nothing() -> None:
    one = two()
    one.switched_off(30.0, "a")
    one.await_boots(["a"])
    assert one.switch_on(30.0, "a")
    account = one.accounts["a"]
    assert (account.is_off, account.has_confirmed, account.has_left, account.target_mw) == (False, False, False, -1)
    assert account.limit_mw == 450_000
    assert not one.accounts.is_awaited.any()


@pytest.mark.parametrize(("budget_w", "fits"), [(899, False), (900, True)])
def test_a_boot_needs_every_watt_of_its_cost(budget_w: int, fits: bool) -> None:
    one = two()
    one.switched_off(30.0, "a")  # b is silent, so that it may be booting too
    one.budget.set(budget_w * 1000)
    assert one.switch_on(30.0, "a") is fits
    assert count_w(one, "a") == 450 * fits


def test_what_ran_out_before_a_node_is_switched_on_is_free_for_its_boot() -> None:
    small = msgspec.structs.replace(OS, boot_mw=200_000)
    one = two(1000)
    one.hear(0.5, report("b", 500, 200, sequence=1, epoch=1, declaration=small))
    want(one, {"b": 480_000})
    one.grants(1.0)
    one.switched_off(1.0, "a")
    one.budget.set(700_000)
    assert not one.switch_on(2.0, "a"), "480 W may be in force at b"
    assert one.switch_on(60.0, "a"), "b is at its safe cap by now"


def test_an_announced_drop_takes_effect_also_while_nothing_else_happens() -> None:
    one = two()
    one.budget.announce(5.0, 400_000)
    one.pass_time(5.0)
    assert one.budget.budget_mw == 400_000


# --- what is sent


def test_a_grant_answers_the_last_report_of_its_node_and_carries_all_that_this_needs() -> None:
    one = two()
    one.hear(4.0, report("a", 4000, 300, sequence=1, epoch=1, boot="b1"))
    want(one, {"a": 250_000})
    (grant,) = one.grants(4.0)
    assert (grant.node, grant.epoch, grant.boot_id, grant.sequence) == ("a", one.epoch, "b1", 2)
    assert (grant.cap_mw, grant.report_id, grant.lease_ns, grant.is_leave) == (250_000, 4000, 10**10, False)


@pytest.mark.parametrize(("age_s", "is_sent"), [(4.999, True), (5.0, False)])
def test_a_grant_must_leave_the_node_half_of_its_lease(age_s: float, is_sent: bool) -> None:
    one = two()
    one.hear(10.0, report("a", 10_000, 300, sequence=1, epoch=1))
    want(one, {"a": 250_000})
    assert bool(one.grants(10.0 + age_s)) is is_sent


@pytest.mark.parametrize(("age_ns", "is_sent"), [(3 * 10**9 - 1, False), (3 * 10**9, True)])
def test_a_lease_is_renewed_after_three_tenths_of_it(age_ns: int, is_sent: bool) -> None:
    one = two()
    want(one, {"a": -1, "b": -1})
    granted = 10**10
    one.hear(1.0, report("a", granted, 300, sequence=1, epoch=1, seen_epoch=one.epoch))
    assert one.grants(1.0, ["a"])
    one.hear(2.0, report("a", granted + age_ns, 300, sequence=2, epoch=1, seen_epoch=one.epoch))
    assert caps_w(one.grants(2.0, ["a"])) == ({"a": 300} if is_sent else {})


def test_only_nodes_that_were_heard_are_renewed_and_each_is_granted_once() -> None:
    one = two()
    for name, limit_w in (("a", 300), ("b", 200)):
        one.hear(4.0, report(name, 4 * 10**9, limit_w, sequence=1, epoch=1, seen_epoch=1))
    want(one, {"a": 250_000})
    assert caps_w(one.grants(4.0, ["a"])) == {"a": 250}, "the new cap renews too"
    assert caps_w(one.grants(4.0, ["b"])) == {"b": 200}
    assert one.grants(4.0) == []


def test_who_has_not_heard_of_this_epoch_is_granted_its_cap_under_it() -> None:
    one = two()
    one.hear(1.0, report("a", 1000, 300, sequence=1, epoch=1, seen_epoch=0))
    assert caps_w(one.grants(1.0, ["a"])) == {"a": 300}


def test_a_node_that_was_granted_nothing_keeps_what_is_in_force_there_or_less_if_that_is_wanted() -> None:
    one = ledger(2000)
    one.expect(0.0, dict.fromkeys("abc", OS))
    one.hear(0.0, report("a", 1, 350), report("b", 1, 350), report("c", 1, 600))
    want(one, {"b": 320_000})
    assert caps_w(one.grants(0.0, ["a", "b", "c"])) == {"a": 350, "b": 320, "c": 500}


def test_a_wanted_cap_that_cannot_be_raised_to_yet_bounds_what_a_node_keeps_meanwhile() -> None:
    one = ledger(400)
    one.expect(0.0, {"a": OS})
    one.hear(0.0, report("a", 1, 350))
    want(one, {"a": 320_000})
    assert caps_w(one.grants(0.0, ["a"])) == {"a": 320}


def test_a_renewal_raises_nothing_where_the_node_has_fallen_below_its_grant() -> None:
    one = two(500)
    one.hear(4.0, report("a", 4 * 10**9, 220, sequence=1, epoch=1, seen_epoch=1))
    want(one, {"a": -1})
    assert caps_w(one.grants(4.0, ["a"])) == {"a": 220}


def test_reports_of_one_node_are_taken_in_their_order_and_all_that_are_taken_are_returned() -> None:
    one = two()
    reports = [
        report("a", 1000, 310, sequence=1, epoch=1),
        report("b", 1000, 210, sequence=1, epoch=1),
        report("a", 1001, 320, sequence=1, epoch=1),
        report("a", 1000, 330, sequence=1, epoch=1),
    ]
    assert one.hear(1.0, *reports) == reports[:3]
    assert (count_w(one, "a"), count_w(one, "b")) == (320, 210)
    assert one.hear(1.0) == []


def test_a_report_as_old_as_the_last_is_void() -> None:
    one = two()
    assert one.hear(2.0, report("a", 2000, 310, sequence=1, epoch=1))
    assert not one.hear(2.0, report("a", 2000, 290, sequence=1, epoch=1))
    assert count_w(one, "a") == 310


def test_what_one_report_of_several_says_is_of_its_node_alone() -> None:
    one = two(3000, k=9)
    want(one, {"a": 480_000, "b": 470_000})
    one.grants(1.0)
    void = report("a", 0, 250, sequence=1, epoch=1)
    good = report("b", 1000, 210, sequence=1, epoch=1)
    assert one.hear(1.0, void, good) == [good]
    assert count_w(one, "a") == 480
    one.hear(2.0, report("a", 1, 200, boot="b2"), report("b", 2000, 210, sequence=1, epoch=1))
    assert [one.accounts[name].boot_id for name in ("a", "b")] == ["b2", "b1"]
    assert (count_w(one, "a"), count_w(one, "b")) == (450, 470)
    other = msgspec.structs.replace(OS, tdp_mw=600_000)
    one.hear(3.0, report("a", 2, 200, boot="b2"), report("b", 3000, 210, sequence=1, epoch=1, declaration=other))
    assert [one.accounts[name].declaration for name in ("a", "b")] == [OS, other]
    want(one, {"a": 480_000, "b": -1})
    sequence = one.grants(3.0)[0].sequence
    one.hear(4.0, report("a", 3, 200, boot="b2"), report("b", 4000, 210, sequence=sequence + 1, epoch=1))
    assert (count_w(one, "a"), count_w(one, "b")) == (480, 210), "b confirms nothing of a"


def test_a_node_that_was_taken_to_be_off_and_is_heard_is_on() -> None:
    one = two(k=9)
    one.switched_off(30.0, "a")
    one.hear(31.0, report("a", 31_000, 350, boot="b2"), report("b", 31_000, 200, sequence=1, epoch=1))
    assert not one.accounts["a"].is_off
    assert (count_w(one, "a"), one.reserve_mw) == (450, 250_000)


# --- which raises there is room for


def wanting(budget_w: int, caps_w: dict[str, int], k: int = 0) -> Ledger:
    """Nodes with confirmed caps of 200 W that want these."""
    one = ledger(budget_w, k=k)
    confirmed(one, 0.0, dict.fromkeys(caps_w, 200))
    want(one, {name: cap_w * 1000 for name, cap_w in caps_w.items()})
    return one


@pytest.mark.parametrize(
    ("budget_w", "raised"),
    [(1000, ""), (1009, ""), (1010, "e"), (1029, "e"), (1030, "ed"), (1060, "edc"), (1099, "edc"), (1100, "edcb"),
     (1149, "edcb"), (1150, "edcba")],
)  # fmt: skip
def test_of_raises_that_do_not_all_fit_the_cheapest_are_sent(budget_w: int, raised: str) -> None:
    one = wanting(budget_w, {"a": 250, "b": 240, "c": 230, "d": 220, "e": 210})
    assert set(caps_w(one.grants(0.0))) == set(raised)


@pytest.mark.parametrize(("budget_w", "raised"), [(649, ""), (650, "a"), (699, "a"), (700, "ab")])
def test_a_raise_that_gives_back_as_much_of_the_reserve_costs_nothing_while_its_node_is_the_one(
    budget_w: int, raised: str
) -> None:
    one = wanting(budget_w, {"a": 250, "b": 250}, k=1)  # 400 W, and 250 W for one that reboots
    sent = caps_w(one.grants(0.0))
    assert (set(sent) == {"a", "b"}) is (raised == "ab")


def test_a_raise_must_fit_an_announced_drop_too() -> None:
    one = wanting(2000, {"a": 400})
    one.budget.announce(one.settle_s, 399_999)
    assert one.grants(0.0) == []
    one.budget.announce(one.settle_s, 400_000)
    assert caps_w(one.grants(0.0)) == {"a": 400}


def test_while_more_counts_than_the_budget_allows_a_grant_above_where_a_count_is_heading_is_no_decrease() -> None:
    one = ledger(1000)
    confirmed(one, 0.0, {"a": 300})
    one.expect(0.5, {"b": OS})
    one.hear(0.5, report("b", 500, 500))  # counts its TDP, granted nothing
    one.budget.set(400_000)
    want(one, {"a": 250_000, "b": 300_000})
    assert caps_w(one.grants(0.5)) == {"a": 250}, "b heads for its safe cap of 200 W: 300 W would stop that"
    want(one, {"a": 280_000, "b": 200_000})
    assert caps_w(one.grants(0.5)) == {"b": 200}, "a heads for 250 W"
    want(one, {"a": 250_000, "b": 190_000})
    assert caps_w(one.grants(0.5)) == {"b": 190}


# --- boots


def test_a_reboot_voids_what_was_open_confirmed_and_left_of_that_node_alone() -> None:
    one = two()
    want(one, {"a": 490_000, "b": 480_000})
    one.grants(1.0)
    one.hear(2.0, report("a", 10, 300, boot="b2"))
    assert count_w(one, "a") == 450
    account = one.accounts["a"]
    assert (account.boot_id, account.has_confirmed, account.has_left, account.target_mw) == ("b2", False, False, -1)
    one.hear(2.0, report("b", 2000, 200, sequence=1, epoch=1))
    assert count_w(one, "b") == 480, "its grant is open as before"
    assert caps_w(one.grants(2.0, ["a"])) == {"a": 490}, "it is wanted, and no renewal has to be due"


def test_a_node_that_had_leave_and_reboots_without_its_agent_having_said_so_counts_its_boot() -> None:
    one = two()
    one.hear(1.0, report("a", 1000, 300, sequence=1, epoch=1, is_leaving=True))
    assert one.grants(1.0)[0].is_leave
    one.hear(2.0, report("a", 10, 300, boot="b2", is_leaving=True))
    assert not one.accounts["a"].has_left
    assert count_w(one, "a") == 450


def test_a_sticky_node_needs_nothing_set_aside_among_others_that_do() -> None:
    one = ledger(5000, k=1)
    confirmed(one, 0.0, {"a": 440})
    one.hear(0.0, report("s", 1, 200, declaration=msgspec.structs.replace(STICKY, boot_mw=500_000)))
    assert one.accounts.boot_need_mw.tolist() == [450_000, 0]


# --- caps of use


def test_a_node_is_given_no_more_than_its_sites_limits_let_it_use_and_the_others_get_the_rest() -> None:
    one = two(budget_w=900)
    at = places(one, "a", "b")
    assert one.accounts.most_mw(at).tolist() == [500_000, 500_000], "an older agent does not say"
    assert Sharing("fspc").share(one, at, 900_000).tolist() == [450_000, 450_000]
    one.hear(1.0, msgspec.structs.replace(report("a", 1000, 300, sequence=1, epoch=1), useful_mw=320_000))
    assert Sharing("fspc").share(one, at, 900_000).tolist() == [320_000, 500_000]
    one.hear(2.0, msgspec.structs.replace(report("a", 2000, 300, sequence=1, epoch=1), useful_mw=0))
    assert one.accounts.most_mw(at).tolist() == [200_000, 500_000], "no less than its MOP"
    one.hear(3.0, msgspec.structs.replace(report("a", 3000, 300, sequence=1, epoch=1), useful_mw=10**9))
    assert one.accounts.most_mw(at).tolist() == [500_000, 500_000], "no more than its TDP"
    one.hear(4.0, report("a", 4000, 300, sequence=1, epoch=1))
    assert one.accounts.most_mw(at).tolist() == [500_000, 500_000], "the limits are gone"
