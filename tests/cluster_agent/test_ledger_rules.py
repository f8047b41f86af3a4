"""The ledger's figures one by one, each at its boundary; ``test_ledger`` has the rules at work, and the worlds."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from benchmarks.ledger_store import FaultyStore
from cluster_agent.budget.accounts import Accounts, after_lease_s
from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.kept_counts import DeposedError
from cluster_agent.budget.ledger import Ledger, Terms
from cluster_agent.serve.live_sharing import Sharing
from foundation.wire.power_messages import Declaration, LeaseClass
from tests.cluster_agent.ledger_calls import OS, STICKY, caps_w, confirmed, count_w, ledger, report, want

HERE_S = 10 * 1.001 / 0.999
"""A lease of 10 s, run by a node's slow clock, on our fast one."""

AFTER_S = 8.5
"""``OS`` settles in 0.5 s, and its watchdog takes 8 s."""


def places(one: Ledger, *names: str) -> np.ndarray:
    return one.accounts.at(list(names))


def two(budget_w: int = 2000, k: int = 0, store: FaultyStore | None = None, fixed_w: int = 0) -> Ledger:
    """Nodes a and b, with confirmed caps of 300 and 200 W since 0 s."""
    made = ledger(budget_w, k=k, store=store, fixed_w=fixed_w)
    confirmed(made, 0.0, {"a": 300, "b": 200})
    return made


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


# --- the store


class Commits(FaultyStore):
    """Remembers what each commit put."""

    def __init__(self) -> None:
        super().__init__()
        self.put: list[tuple[list[str], dict[int, int]]] = []

    def commit(self, epoch, nodes, changed, counts_mw) -> None:
        super().commit(epoch, nodes, changed, counts_mw)
        names = [name for name, _ in nodes.values()]
        self.put.append((names, {at: int(counts_mw[at]) for at in changed.tolist()}))


def three(store: Commits) -> Ledger:
    """The nodes of ``two`` and c, which counts its TDP; stored when c was granted its first cap."""
    made = two(store=store)
    made.expect(0.5, {"c": OS})
    made.hear(0.5, report("c", 500, 500))
    store.put.clear()
    made.grants(0.5, ["c"])
    assert store.put == [(["c"], {0: 300_000, 1: 200_000, 2: 500_000})], "counts that fell go along"
    store.put.clear()
    return made


def test_a_raise_is_stored_and_a_renewal_or_a_decrease_stores_nothing() -> None:
    store = Commits()
    one = three(store)
    want(one, {"a": 400_000})
    one.grants(1.0)
    assert store.put == [([], {0: 400_000})]
    store.put.clear()
    for name, limit_w in (("a", 400), ("b", 200)):
        one.hear(4.0, report(name, 4 * 10**9, limit_w, sequence=2, epoch=1, seen_epoch=1))
    assert one.grants(4.0, ["a", "b"])
    assert store.put == [([], {})], "only whether we are deposed"
    store.put.clear()
    want(one, {"a": 350_000})
    one.grants(5.0)
    assert store.put == [([], {})], "nor does a decrease"


def test_a_boot_is_stored_before_it_is_allowed() -> None:
    store = Commits()
    one = three(store)
    one.switched_off(30.0, "a")
    assert one.switch_on(30.0, "a")
    assert store.put == [([], {0: 450_000, 1: 450_000, 2: 450_000})], "b and c are silent, and may boot too"
    store = Commits()
    one = three(store)
    for name, limit_w in (("b", 200), ("c", 220)):
        one.hear(30.0, report(name, 30_000, limit_w, sequence=1, epoch=1))
    one.switched_off(30.0, "a")
    assert one.switch_on(30.0, "a")
    assert store.put == [([], {0: 450_000, 2: 220_000})]


def test_a_node_without_power_is_stored_as_one_that_counts_nothing_and_has_been_granted_something() -> None:
    store = Commits()
    one = three(store)
    one.switched_off(1.0, "a")
    want(one, {"b": 260_000})
    one.grants(1.0)
    assert store.put == [([], {0: 0, 1: 260_000})]
    account = Ledger(store, one.terms, one.budget, 2.0).accounts["a"]
    assert (account.is_leased, account.count_mw, account.limit_mw) == (True, 0, 0)


def test_one_node_that_rises_is_stored_whatever_the_others_have_stored() -> None:
    store = Commits()
    one = three(store)
    want(one, {"a": 250_000, "b": 260_000})
    one.grants(1.0)
    assert store.put == [([], {1: 260_000})]
    assert Ledger(store, one.terms, one.budget, 2.0).accounts["b"].count_mw == 260_000


def test_a_node_is_stored_by_name_before_it_is_granted_anything_and_again_when_it_declares_other_watts() -> None:
    store = Commits()
    one = ledger(3000, store=store)
    one.expect(0.0, {"a": OS})
    one.hear(0.0, report("b", 1, 300))
    assert store.put == []
    one.grants(0.0, ["b"])
    assert store.put == [(["a", "b"], {1: 500_000})]
    store.put.clear()
    more = msgspec.structs.replace(OS, tdp_mw=600_000)
    one.hear(1.0, report("b", 1000, 300, sequence=1, epoch=1, declaration=more))
    want(one, {"b": 550_000})
    one.grants(1.0)
    assert store.put == [(["b"], {1: 550_000})]
    after = Ledger(store, one.terms, one.budget, 2.0).accounts
    assert (after["b"].declaration, after["b"].is_leased, after["a"].is_leased) == (more, True, False)
    assert (after["a"].count_mw, after["b"].count_mw) == (500_000, 550_000)


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


# --- columns


def test_of_a_new_node_nothing_is_known_but_what_it_declares() -> None:
    columns = Accounts()
    assert (len(columns), list(columns), "a" in columns, columns.count_mw.shape) == (0, [], False, (0,))
    assert columns.add({"a": OS}).tolist() == [0]
    least, none, most = -math.inf, -1, 2**63 - 1
    ints = {
        "tdp_mw": 500_000, "mop_mw": 200_000, "safe_mw": 200_000, "boot_mw": 450_000, "boot_need_mw": 0,
        "limit_mw": 500_000, "count_mw": 0, "stored_mw": none, "report_id": none, "seen_epoch": none, "sequence": 0,
        "target_mw": none, "wanted_mw": none, "granted_report_id": none, "backed_mw": most, "open_mw": none,
        "open_sequence": most, "useful_mw": most,
    }  # fmt: skip
    floats = {
        "after_lease_s": 8.5, "heard_s": least, "watch_s": math.inf, "last_deadline_s": least,
        "open_deadline_s": math.inf,
    }  # fmt: skip
    bools = (
        "is_sticky", "is_leased", "has_confirmed", "is_leaving", "has_left", "is_off", "is_awaited", "owes_epoch",
        "has_claimed", "is_disbelieved",
    )  # fmt: skip
    for kind, columns_of_it in ((np.int64, ints), (np.float64, floats), (np.bool_, dict.fromkeys(bools, False))):
        for name, value in columns_of_it.items():
            column = getattr(columns, name)
            assert column.dtype == kind and set(column.ravel().tolist()) == {value}, name
    assert columns.open_mw.shape == columns.open_sequence.shape == columns.open_deadline_s.shape == (4, 1)


def test_nodes_keep_their_places_and_values_while_others_join() -> None:
    columns = Accounts()
    columns.add({"a": OS, "b": STICKY})
    columns.count_mw[:] = [1, 2]
    columns.open_mw[:, 1] = [3, 4, 5, 6]
    for n in range(5):
        first = len(columns)
        assert columns.add({f"n{n}-{i}": OS for i in range(10**n % 97)}).tolist() == list(range(first, len(columns)))
    assert columns.at(["b", "a"]).tolist() == [1, 0]
    assert (columns["a"].count_mw, columns["b"].count_mw, columns["b"].declaration) == (1, 2, STICKY)
    assert columns.open_mw[:, 1].tolist() == [3, 4, 5, 6]
    assert set(columns.count_mw[2:].tolist()) == {0}
    assert columns.is_sticky.nonzero()[0].tolist() == [1]
    assert list(columns)[:2] == ["a", "b"]
    lists = (columns.names, columns.declarations, columns.boot_ids, columns.past_boots, columns.count_mw)
    assert {len(one) for one in lists} == {len(columns)}
    with pytest.raises(KeyError):
        columns.at(["a", "nobody"])


def test_a_boot_that_was_left_is_remembered_as_past() -> None:
    columns = Accounts()
    at = columns.add({"a": OS, "b": OS})

    def compared(*boots: str) -> list[list[bool]]:
        return [one.tolist() for one in columns.compare_boots(at, boots)]

    assert compared("b1", "") == [[True, False], [False, False]]
    columns.reboot(0, "b1")
    assert compared("b1", "") == [[False, False], [False, False]], "that nothing was known is no boot"
    assert compared("", "") == [[True, False], [False, False]]
    columns.reboot(0, "b2")
    columns.reboot(0, "b3")
    assert compared("b1", "b1") == [[True, True], [True, False]]
    assert compared("b2", "b2") == [[True, True], [True, False]]
    assert compared("b3", "b3") == [[False, True], [False, False]]


def test_an_account_shows_each_column_as_it_is() -> None:
    columns = Accounts()
    columns.add({"a": OS, "b": STICKY})
    columns.reboot(1, "boot")
    flags = ("is_leased", "has_confirmed", "is_leaving", "has_left", "is_off")
    for number, name in enumerate(("limit_mw", "count_mw", "target_mw", "wanted_mw")):
        getattr(columns, name)[1] = 10 + number
    for flag in flags:
        for other in flags:
            getattr(columns, other)[1] = other == flag
        found = columns["b"]
        assert [getattr(found, other) for other in flags] == [other == flag for other in flags]
    assert (found.place, found.name, found.declaration, found.boot_id) == (1, "b", STICKY, "boot")
    assert (found.limit_mw, found.count_mw, found.target_mw, found.wanted_mw) == (10, 11, 12, 13)
    assert not found.is_heard
    columns.heard_s[1] = 0.0
    assert columns["b"].is_heard and not columns["a"].is_heard


@pytest.mark.parametrize(("lease_class", "after_s"), [("hw", 0.5), ("os", 8.5), ("sticky", 0.5)])
def test_only_software_that_ends_a_lease_needs_its_watchdog_waited_for(lease_class: LeaseClass, after_s: float) -> None:
    assert after_lease_s(msgspec.structs.replace(OS, lease_class=lease_class)) == after_s


def test_a_node_that_declares_other_watts_is_known_by_them_and_is_to_be_stored() -> None:
    columns = Accounts()
    at = columns.add({"a": OS, "b": OS})
    assert columns.unstored == {0: None, 1: None}
    columns.unstored.clear()
    other = Declaration(600_001, 200_002, 220_003, 400_004, "sticky", settle_ms=1500)
    columns.declare(at[1:], [other])
    assert columns.unstored == {1: None}
    assert columns.declarations == [OS, other]
    figures = (columns.tdp_mw, columns.mop_mw, columns.safe_mw, columns.boot_mw, columns.after_lease_s)
    assert [one.tolist()[1] for one in figures] == [600_001, 200_002, 220_003, 400_004, 1.5]
    assert columns.is_sticky.tolist() == [False, True]
    assert columns.tdp_mw[0] == 500_000


def test_of_five_open_grants_the_lowest_two_are_taken_together() -> None:
    columns = Accounts()
    at = columns.add({"a": OS, "b": OS})[:1]
    for sequence, cap_mw in enumerate((500, 400, 300, 200, 100), start=1):
        columns.sequence[at] = sequence
        columns.open_grants(at, np.array([cap_mw]), np.array([10.0 * sequence]))
    opened = sorted(zip(columns.open_mw[:, 0].tolist(), columns.open_sequence[:, 0].tolist(),
                        columns.open_deadline_s[:, 0].tolist(), strict=True))  # fmt: skip
    assert opened == [(200, 5, 50.0), (300, 3, 30.0), (400, 2, 20.0), (500, 1, 10.0)]
    columns.sequence[at] = 6
    columns.open_grants(at, np.array([450]), np.array([40.0]))  # ends no earlier than those before it
    assert sorted(columns.open_mw[:, 0].tolist()) == [-1, -1, 450, 500]
    assert columns.open_deadline_s[columns.open_mw[:, 0] == 450, 0].tolist() == [50.0]
    assert columns.last_deadline_s.tolist() == [50.0, -math.inf]
    columns.close_grants(at, columns.open_mw[:, at] == 450)
    assert sorted(columns.open_mw[:, 0].tolist()) == [-1, -1, -1, 500]
    columns.close_grants(at)
    assert set(columns.open_mw[:, 0].tolist()) == {-1}
    assert set(columns.open_sequence[:, 0].tolist()) == {2**63 - 1}
    assert set(columns.open_deadline_s[:, 0].tolist()) == {math.inf}
    assert set(columns.open_mw[:, 1].tolist()) == {-1}


def test_grants_of_several_nodes_are_opened_each_in_its_own_column() -> None:
    columns = Accounts()
    at = columns.add({"a": OS, "b": OS})
    for sequence, cap_mw in enumerate((500, 400, 300, 200), start=1):
        columns.sequence[:1] = sequence
        columns.open_grants(at[:1], np.array([cap_mw]), np.array([10.0]))
    columns.open_grants(at, np.array([100, 90]), np.array([20.0, 30.0]))
    assert sorted(columns.open_mw[:, 0].tolist()) == [200, 300, 400, 500]
    assert columns.open_deadline_s[columns.open_mw[:, 0] == 200, 0].tolist() == [20.0]
    assert sorted(columns.open_mw[:, 1].tolist()) == [-1, -1, -1, 90]
    columns.open_grants(at, np.array([450, 90]), np.array([20.0, 30.0]))
    assert sorted(columns.open_mw[:, 1].tolist()) == [-1, -1, -1, 90], "the newer one of the same cap stands for both"


# --- a new ledger


def test_a_new_ledger_is_young_until_the_last_lease_of_the_old_one_is_over_by_any_clock() -> None:
    store = FaultyStore()
    two(store=store)
    new = Ledger(store, Terms(), BudgetLine(2_000_000), 100.0)
    assert new.is_certain and new.is_young
    new.expect(100.0, {"c": OS})
    assert new.is_within_reach(100.0).tolist() == [True, True, False], "they may be heard at any moment"
    end_s = 100.0 + new.settle_s
    assert new.settle_s == pytest.approx(HERE_S + AFTER_S, abs=1e-9)
    new.pass_time(np.nextafter(end_s, 0))
    assert new.is_young and (count_w(new, "a"), count_w(new, "b")) == (500, 500), "as was stored"
    new.pass_time(end_s)
    assert not new.is_young and (count_w(new, "a"), count_w(new, "b")) == (450, 450), "they fell, or are booting"
    assert new.total_mw == 900_000 + 500_000
    assert new.is_within_reach(end_s).tolist() == [False, False, False]


def test_a_ledger_whose_store_has_lost_commits_believes_no_count_when_the_leases_are_over() -> None:
    store = FaultyStore()
    two(store=store)
    store.crash(0)
    new = Ledger(store, Terms(), BudgetLine(2_000_000), 100.0)
    assert not new.is_certain
    new.hear(101.0, report("a", 101_000, 300, sequence=1, epoch=1, seen_epoch=new.epoch))
    assert new.is_young, "others may have been raised by what was lost"
    assert count_w(new, "b") == 500, "as was stored"
    new.pass_time(200.0)
    assert not new.is_young
    assert count_w(new, "b") == 450
    sticky = msgspec.structs.replace(STICKY, boot_mw=200_000)
    for lost, count in ((False, 300), (True, 500)):
        store = FaultyStore()
        store.log.append(("nodes", ({0: ("s", sticky)}, {0: 300_000})))
        store.is_certain = not lost
        new = Ledger(store, Terms(), BudgetLine(2_000_000), 100.0)
        new.pass_time(200.0)
        assert count_w(new, "s") == count, "a sticky node keeps what it was granted last, and that may be lost"


def test_what_is_stored_is_not_stored_again_by_the_next_ledger() -> None:
    store = Commits()
    three(store)
    new = Ledger(store, Terms(), BudgetLine(9_000_000), 100.0)
    for name, limit_w in (("a", 300), ("b", 200), ("c", 500)):
        new.hear(101.0, report(name, 101_000, limit_w, sequence=1, epoch=1))
    assert caps_w(new.grants(101.0, ["a", "b", "c"])) == {"a": 300, "b": 200, "c": 500}
    assert store.put == [([], {})]
    for name, limit_w in (("a", 300), ("b", 200), ("c", 500)):
        new.hear(102.0, report(name, 102_000, limit_w, sequence=1, epoch=1, seen_epoch=new.epoch))
    want(new, {"a": 310_000})
    assert caps_w(new.grants(102.0)) == {"a": 310}
    assert store.put[1:] == [([], {0: 310_000})], "nor its nodes' names"


def test_a_node_that_has_heard_of_a_newer_epoch_makes_the_ledger_take_one_above_it() -> None:
    store = FaultyStore()
    one = two(store=store)
    one.hear(1.0, report("a", 1000, 300, sequence=1, epoch=1, seen_epoch=1))
    assert one.epoch == 1 and one.is_certain
    one.hear(2.0, report("a", 2000, 300, sequence=1, epoch=1, seen_epoch=7))
    assert (one.epoch, one.is_certain, one.is_young) == (8, False, True)


def test_whatever_node_of_a_batch_has_heard_of_a_newer_epoch() -> None:
    one = two()
    one.hear(2.0, report("b", 2000, 200, sequence=1, epoch=1, seen_epoch=1),
             report("a", 2000, 300, sequence=1, epoch=1, seen_epoch=7))  # fmt: skip
    assert one.epoch == 8


def test_a_node_that_claims_a_second_epoch_is_not_believed_and_hinders_nobody() -> None:
    one = two()
    one.hear(2.0, report("a", 2000, 300, sequence=1, epoch=1, seen_epoch=7))
    one.hear(3.0, report("a", 3000, 300, sequence=1, epoch=1, seen_epoch=one.epoch + 1))
    assert one.epoch == 8 and list(one.accounts.is_disbelieved) == [True, False]
    one.hear(5.0, report("b", 5000, 200, sequence=1, epoch=1, seen_epoch=9))
    assert (one.epoch, one.accounts.is_disbelieved[1]) == (10, False), "another node is believed"
    one.hear(6.0, report("a", 6000, 300, sequence=1, epoch=1, seen_epoch=7))
    assert not one.accounts.is_disbelieved[0]
    one.hear(7.0, report("a", 7000, 300, sequence=1, epoch=1, seen_epoch=one.epoch + 1))
    assert one.epoch == 10 and one.accounts.is_disbelieved[0], "an honest report in between changes nothing"


def test_of_two_newer_epochs_in_a_batch_the_newest_counts() -> None:
    one = two()
    one.hear(2.0, report("b", 2000, 200, sequence=1, epoch=1, seen_epoch=5),
             report("a", 2000, 300, sequence=1, epoch=1, seen_epoch=7))  # fmt: skip
    assert one.epoch == 8


@pytest.mark.parametrize(("ahead", "is_believed"), [(2**20, True), (2**20 + 1, False)])
def test_an_epoch_that_is_too_far_ahead_is_a_lie(ahead: int, is_believed: bool) -> None:
    one = two()
    claimed = one.epoch + ahead
    one.hear(2.0, report("a", 2000, 300, sequence=1, epoch=1, seen_epoch=claimed))
    assert one.epoch == (claimed + 1 if is_believed else 1)
    assert (one.accounts.is_disbelieved[0], one.is_young) == (not is_believed, is_believed)


def test_a_lie_in_a_batch_does_not_decide_the_epoch() -> None:
    one = two()
    one.hear(2.0, report("b", 2000, 200, sequence=1, epoch=1, seen_epoch=5),
             report("a", 2000, 300, sequence=1, epoch=1, seen_epoch=2**62 - 1))  # fmt: skip
    assert one.epoch == 6 and list(one.accounts.is_disbelieved) == [True, False]


def one_stored(is_certain: bool = True) -> Ledger:
    """A new ledger, at 100 s, of a store that knows node a at 300 W."""
    store = FaultyStore()
    store.log.append(("nodes", ({0: ("a", OS)}, {0: 300_000})))
    store.is_certain = is_certain
    return Ledger(store, Terms(0, 0), BudgetLine(2_000_000), 100.0)


def test_a_new_ledger_waits_for_nobody_once_every_node_has_heard_of_it() -> None:
    one = one_stored()
    one.hear(101.0, report("a", 1, 300, sequence=3, epoch=0, seen_epoch=0))
    assert one.is_young, "it answers the ledger before"
    one.grants(101.0, ["a"])
    one.hear(102.0, report("a", 2, 300, sequence=3, epoch=0, seen_epoch=one.epoch))
    assert not one.is_young
    one.hear(103.0, report("a", 3, 300, sequence=3, epoch=0, seen_epoch=0))
    assert not one.is_young, "that was heard once"


def test_a_ledger_whose_store_may_have_lost_nodes_waits_for_leases_of_nodes_that_it_cannot_know() -> None:
    one = one_stored(is_certain=False)
    one.hear(101.0, report("a", 1, 300, sequence=3, epoch=0, seen_epoch=0))
    one.grants(101.0, ["a"])
    one.hear(102.0, report("a", 2, 300, sequence=1, epoch=one.epoch, seen_epoch=one.epoch))
    assert one.is_young


def test_a_node_that_has_heard_of_a_newer_ledger_deposes_this_one() -> None:
    store = FaultyStore()
    one = two(store=store)
    Ledger(store, Terms(), BudgetLine(2_000_000), 1.0)
    with pytest.raises(DeposedError):
        one.hear(2.0, report("a", 2000, 300, sequence=1, epoch=1, seen_epoch=2))


def test_a_node_that_knows_our_epoch_but_was_granted_nothing_by_us_has_it_from_a_ledger_that_was_lost() -> None:
    store = FaultyStore()
    one = ledger(2000, store=store)
    one.hear(1.0, report("a", 1000, 300, sequence=3, epoch=1, seen_epoch=1))
    assert (one.epoch, one.is_certain) == (2, False)


def test_time_without_nodes_passes() -> None:
    one = ledger(2000)
    one.pass_time(1e9)
    assert (one.grants(1e9), one.total_mw, one.free_mw(1e9), one.is_young) == ([], 0, 2_000_000, False)
    assert math.isinf(one._next_s)
