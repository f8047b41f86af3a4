"""The budget ledger, rule by rule; its claim under faults is in ``test_ledger_world``."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.ledger_store import FaultyStore
from cluster_agent.budget.accounts import OPEN, Ints
from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.kept_counts import DeposedError
from cluster_agent.budget.ledger import CLOCK_RATE_ERROR, Ledger, Terms
from cluster_agent.budget.plan import plan
from foundation.wire.power_messages import Grant
from tests.cluster_agent.ledger_calls import OS, STICKY, caps_w, confirmed, count_w, ledger, report, want


def test_a_raise_waits_until_the_decrease_that_pays_for_it_is_confirmed() -> None:
    one = ledger(600)
    confirmed(one, 0.0, {"a": 400, "b": 200})
    want(one, {"a": 200_000, "b": 400_000})
    lowered = one.grants(1.0)
    assert caps_w(lowered) == {"a": 200}
    assert one.grants(1.5) == []
    one.hear(2.0, report("a", 2000, 200, sequence=lowered[0].sequence, epoch=one.epoch))
    assert caps_w(one.grants(2.0)) == {"b": 400}
    assert one.total_mw == 600_000


def test_a_raise_is_in_the_store_before_it_is_sent() -> None:
    class FullDisk(FaultyStore):
        def commit(self, epoch: int, nodes: Any, changed: Ints, counts_mw: Ints) -> None:
            if len(changed):
                raise OSError("no space left on device")

    store = FullDisk()
    store.log.append(("nodes", ({0: ("a", OS)}, {0: 200_000})))
    one = ledger(900, store=store)
    one.hear(0.5, report("a", 500, 200, sequence=7, epoch=1, seen_epoch=one.epoch - 1))
    one.pass_time(30.0)
    one.hear(30.0, report("a", 30_000, 200, sequence=7))
    want(one, {"a": 400_000})
    with pytest.raises(OSError):
        one.grants(30.0)
    assert count_w(one, "a") == 200


def test_a_lost_grant_counts_until_it_can_no_longer_be_taken() -> None:
    one = ledger(900)
    confirmed(one, 0.0, {"a": 200})
    want(one, {"a": 400_000})
    one.grants(1.0)
    one.pass_time(9.0)
    assert count_w(one, "a") == 400
    one.hear(10.0, report("a", 10_000, 200, sequence=1, epoch=one.epoch))
    assert count_w(one, "a") == 400
    one.pass_time(18.6)  # 10 s of lease, 0.5 s to settle and 8 s of watchdog after the report that it answered
    assert count_w(one, "a") == 200


def test_a_grant_counts_for_as_long_as_a_slow_clock_may_let_its_node_keep_it_by_a_fast_one_here() -> None:
    lease_lasts_s = 10.0 / (1 - CLOCK_RATE_ERROR)  # of true time, on a node whose clock is slow
    seen_here_s = lease_lasts_s * (1 + CLOCK_RATE_ERROR)
    one = ledger(900)
    confirmed(one, 0.0, {"a": 200})
    want(one, {"a": 400_000})
    one.grants(1.0)
    one.pass_time(seen_here_s + 8.5 - 1e-3)  # it settles for 0.5 s, and its watchdog takes 8 s
    assert count_w(one, "a") == 400
    one.pass_time(seen_here_s + 8.5 + 1e-3)
    assert count_w(one, "a") == 450, "lapsed to its safe cap, or booting"


def test_a_sticky_nodes_lost_grant_counts_also_when_its_time_is_over() -> None:
    one = ledger(2000)
    one.hear(0.0, report("s", 0, 200, declaration=STICKY))
    want(one, {"s": 200_000})
    (first,) = one.grants(0.0)
    one.hear(0.0, report("s", 1, 200, sequence=first.sequence, epoch=one.epoch, declaration=STICKY))
    want(one, {"s": 400_000})
    one.grants(1.0)
    one.pass_time(1000.0)
    assert count_w(one, "s") == 400, "nothing ends it there"
    one.hear(1001.0, report("s", 1_001_000, 400, sequence=1, epoch=one.epoch, declaration=STICKY))
    assert count_w(one, "s") == 400, "it was taken, says the node"
    one.hear(1002.0, report("s", 1_002_000, 200, sequence=1, epoch=one.epoch, declaration=STICKY))
    assert count_w(one, "s") == 200, "or it was not, and can no longer be"


def test_a_raise_is_in_the_store_also_where_others_granted_with_it_need_no_storing() -> None:
    store = FaultyStore()
    one = ledger(1400, store=store)
    confirmed(one, 0.0, {"a": 400, "b": 200, "c": 200})
    one.hear(1.0, report("d", 1_000_000_000, 500))
    want(one, {"d": 200_000})
    one.grants(1.0)  # what is stored of the others is what they count now
    one.hear(5.0, *(report(node, 5_000_000_000, cap, sequence=1, epoch=one.epoch) for node, cap in
                    (("a", 400), ("b", 200), ("c", 200))))  # fmt: skip
    want(one, {"b": 300_000, "c": 150_000})
    assert caps_w(one.grants(5.0, ["a", "b", "c"])) == {"a": 400, "b": 300, "c": 150}
    after = Ledger(store, one.terms, one.budget, 6.0)
    assert {name: count_w(after, name) for name in "abc"} == {"a": 400, "b": 300, "c": 200}


def test_a_confirmation_from_before_a_takeover_retires_nothing_that_was_granted_since() -> None:
    store = FaultyStore()
    confirmed(ledger(700, store=store), 0.0, {"a": 200})
    new = Ledger(store, Terms(), BudgetLine(900_000), 100.0)
    new.hear(100.0, report("a", 100_000, 200, sequence=7, epoch=1))
    assert caps_w(new.grants(100.0, ["a"])) == {"a": 200}
    new.pass_time(130.0)
    new.hear(130.0, report("a", 130_000, 200, sequence=7, epoch=1, seen_epoch=2))
    want(new, {"a": 400_000})
    assert caps_w(new.grants(130.0)) == {"a": 400}
    new.hear(131.0, report("a", 131_000, 200, sequence=7, epoch=1, seen_epoch=2))
    assert count_w(new, "a") == 400, "its confirmation is of the epoch before, whatever its number"


def test_a_grant_is_not_retired_by_the_confirmation_of_the_one_before_it() -> None:
    one = ledger(900)
    confirmed(one, 0.0, {"a": 200})
    want(one, {"a": 400_000})
    one.grants(0.1)
    one.hear(0.2, report("a", 200, 200, sequence=1, epoch=one.epoch))
    assert count_w(one, "a") == 400
    one.hear(0.3, report("a", 300, 200, sequence=2, epoch=one.epoch))
    assert count_w(one, "a") == 200


def test_a_report_that_was_overtaken_by_a_newer_one_is_void() -> None:
    one = ledger(900)
    confirmed(one, 0.0, {"a": 300})
    one.hear(1.0, report("a", 1000, 300, sequence=1, epoch=one.epoch))
    assert one.hear(1.1, report("a", 900, 200, sequence=1, epoch=one.epoch)) == []
    assert one.hear(1.1, report("a", 1000, 200, sequence=1, epoch=one.epoch)) == [], "a copy of it"
    assert count_w(one, "a") == 300


def test_what_was_stored_is_not_believed_after_the_stores_machine_went_down() -> None:
    store = FaultyStore()
    confirmed(ledger(2000, store=store), 0.0, {"a": 200})
    places = np.arange(2)
    store.commit(store.epoch, {0: ("a", OS), 1: ("s", STICKY)}, places, np.array([200_000, 200_000]))
    kept = Ledger(store, Terms(), BudgetLine(2_000_000), 0.0)
    kept.pass_time(60.0)
    assert (count_w(kept, "a"), count_w(kept, "s")) == (450, 200)
    store.crash(0)
    after = Ledger(store, Terms(), BudgetLine(2_000_000), 100.0)
    assert not after.is_certain
    after.pass_time(160.0)
    assert (count_w(after, "a"), count_w(after, "s")) == (450, 500), "a later grant may be lost, and nothing ended it"


def test_a_cap_below_the_count_but_above_what_was_granted_last_waits_while_the_sum_must_fall() -> None:
    one = ledger(1000)
    confirmed(one, 0.0, {"a": 500, "b": 500})
    one.budget.set(700_000)
    want(one, {"a": 200_000})
    assert caps_w(one.grants(1.0)) == {"a": 200}
    want(one, {"a": 400_000})
    assert one.grants(1.5) == [], "it would stop the fall"
    want(one, {"b": 450_000})
    assert caps_w(one.grants(1.5)) == {"b": 450}, "a lower one than was granted last does not"


def test_what_is_fixed_is_paid_from_the_budget() -> None:
    one = ledger(900, fixed_w=300)
    one.budget.set(10**9)
    confirmed(one, 0.0, {"a": 400, "b": 300})
    one.budget.set(900_000)
    assert (one.spendable_mw(0.0), one.free_mw(0.0)) == (600_000, -100_000)
    assert (one.over_mw(0.0), one.breach_mw(0.0)) == (100_000, 100_000)


def test_lower_caps_beyond_those_that_are_distinguished_count_what_the_highest_of_them_may_be() -> None:
    one = ledger(900)
    confirmed(one, 0.0, {"a": 500})
    caps_w = [450, 400, 350, 300, 250]
    for number, cap_w in enumerate(caps_w):
        want(one, {"a": cap_w * 1000})
        (grant,) = one.grants(0.1 * number)
    assert len(caps_w) > OPEN
    one.hear(1.0, report("a", 1000, 350, sequence=grant.sequence - 2, epoch=one.epoch))
    assert count_w(one, "a") == 350
    one.hear(1.1, report("a", 1100, 200, sequence=grant.sequence - 2, epoch=one.epoch))
    assert count_w(one, "a") == 300, "that of 300 W may have been taken, though only 250 W is known to be open"
    one.hear(1.2, report("a", 1200, 200, sequence=grant.sequence, epoch=one.epoch))
    assert count_w(one, "a") == 200


def test_a_silent_node_counts_its_safe_cap_or_its_boot_power_and_a_sticky_one_its_last() -> None:
    one = ledger(2000)
    confirmed(one, 0.0, {"a": 300})
    one.hear(0.0, report("s", 0, 500, declaration=STICKY))
    want(one, {"s": 300_000})
    grant = one.grants(0.0)[-1]
    one.hear(0.0, report("s", 1, 300, sequence=grant.sequence, epoch=one.epoch, declaration=STICKY))
    one.pass_time(60.0)
    assert (count_w(one, "a"), count_w(one, "s")) == (450, 300)


def test_watts_for_a_reboot_are_set_aside() -> None:
    one = ledger(850, k=1)
    confirmed(one, 0.0, {"a": 200, "b": 300})
    want(one, {"b": 420_000})
    assert caps_w(one.grants(1.0)) == {}  # 200 + 420 + (450 - 200) > 850
    want(one, {"b": 400_000})
    assert caps_w(one.grants(1.0)) == {"b": 400}


def test_a_rebooted_node_counts_its_boot_power_until_it_has_confirmed_a_cap() -> None:
    one = ledger(2000)
    confirmed(one, 0.0, {"a": 300})
    one.hear(5.0, report("a", 10, 200, boot="b2"))
    assert count_w(one, "a") == 450
    assert not one.hear(5.1, report("a", 9_999, 300, sequence=1, epoch=one.epoch))  # late, from before the reboot
    grant = one.grants(5.2, ["a"])[0]
    one.hear(6.0, report("a", 1_000, 200, sequence=grant.sequence, epoch=one.epoch, boot="b2"))
    assert count_w(one, "a") == 200


def test_a_node_never_heard_of_counts_its_tdp() -> None:
    one = ledger(2000)
    one.expect(0.0, {"x": OS})
    assert count_w(one, "x") == 500
    one.pass_time(1e6)
    assert count_w(one, "x") == 500


def test_a_new_ledger_raises_nothing_until_the_leases_of_the_old_one_are_over() -> None:
    store = FaultyStore()
    confirmed(ledger(700, store=store), 0.0, {"a": 300, "b": 200})
    new = Ledger(store, Terms(), BudgetLine(900_000), 100.0)
    new.hear(100.5, report("a", 100_500, 300, sequence=1, epoch=1))
    want(new, {"a": 500_000})
    assert caps_w(new.grants(100.5, ["a"])) == {"a": 300}  # its lease is renewed
    new.hear(102.0, report("a", 102_000, 300, sequence=1, epoch=2))
    assert new.is_young and new.grants(102.0) == []  # b has not been heard
    new.pass_time(118.6)
    new.hear(119.0, report("a", 119_000, 300, sequence=1, epoch=2))
    assert not new.is_young
    assert caps_w(new.grants(119.0)) == {}  # b may be booting: 300 + 450 + 200 > 900
    want(new, {"a": 450_000})
    assert caps_w(new.grants(119.0)) == {"a": 450}


def test_a_new_ledger_raises_nothing_though_there_is_room_until_all_nodes_have_acknowledged_it() -> None:
    store = FaultyStore()
    confirmed(ledger(900, store=store), 0.0, {"a": 300, "b": 300})
    new = Ledger(store, Terms(0, 0), BudgetLine(2_000_000), 100.0)
    new.hear(100.5, report("a", 100_500, 300, sequence=1, epoch=1))
    want(new, {"a": 400_000})
    assert caps_w(new.grants(100.5, ["a"])) == {"a": 300}, "a renewal alone"
    new.hear(102.0, report("a", 102_000, 300, sequence=1, epoch=2))
    assert new.grants(102.0) == [], "b has said nothing yet"
    new.hear(103.0, report("b", 103_000, 300, sequence=1, epoch=1))
    new.grants(103.0, ["b"])
    new.hear(104.0, report("a", 104_000, 300, sequence=1, epoch=2), report("b", 104_000, 300, sequence=1, epoch=2))
    assert caps_w(new.grants(104.0)) == {"a": 400}


def test_the_renewal_of_a_node_that_asks_for_leave_is_no_leave() -> None:
    one = ledger(700)
    confirmed(one, 0.0, {"a": 300, "b": 300})
    one.hear(5.0, report("a", 5_000_000_000, 300, sequence=1, epoch=one.epoch, is_leaving=True))
    assert [(grant.cap_mw, grant.is_leave) for grant in one.grants(5.0, ["a"])] == [(300_000, False)]
    assert not one.accounts["a"].has_left and count_w(one, "a") == 300


def test_what_a_boot_will_count_is_in_the_store_before_the_node_is_switched_on() -> None:
    store = FaultyStore()
    one = ledger(2000, store=store)
    confirmed(one, 0.0, {"a": 200, "b": 200})
    one.hear(1.0, report("late", 1_000_000_000, 500))
    want(one, {"late": 200_000})
    one.grants(1.0)  # what is stored of the others is what they count now
    one.switched_off(30.0, "b")
    assert one.switch_on(30.0, "b")
    assert count_w(Ledger(store, one.terms, one.budget, 31.0), "b") == 450


def test_an_older_ledger_that_still_runs_can_send_nothing() -> None:
    store = FaultyStore()
    old = ledger(900, store=store)
    confirmed(old, 0.0, {"a": 300})
    Ledger(store, Terms(), BudgetLine(900_000), 1.0)
    want(old, {"a": 250_000})
    with pytest.raises(DeposedError):
        old.grants(1.0)


def test_a_drop_is_obeyed_one_settle_time_before_it_comes() -> None:
    one = ledger(1000)
    confirmed(one, 0.0, {"a": 500})
    one.budget.announce(100.0, 400_000)
    assert one.spendable_mw(100.0 - one.settle_s - 0.1) == 1_000_000
    assert one.spendable_mw(100.0 - one.settle_s) == 400_000


def test_a_provisional_cap_counts_what_was_measured_if_that_is_more() -> None:
    one = ledger(2000)
    one.hear(0.0, report("a", 1, 200, sequence=1, epoch=1, effect="provisional", power_mw=230_000))
    assert count_w(one, "a") == 230


def test_a_node_may_go_uncapped_only_when_there_is_room_for_its_tdp() -> None:
    one = ledger(700)
    confirmed(one, 0.0, {"a": 300, "b": 300})
    one.hear(1.0, report("a", 1000, 300, sequence=1, epoch=1, is_leaving=True))
    assert not any(grant.is_leave for grant in one.grants(1.0, ["a"]))
    want(one, {"b": 200_000})
    grant = one.grants(1.5)[0]
    one.hear(2.0, report("b", 2000, 200, sequence=grant.sequence, epoch=1))
    leave = one.grants(2.0)
    assert [(one.node, one.is_leave, one.cap_mw) for one in leave] == [("a", True, 500_000)]
    one.pass_time(100.0)
    assert count_w(one, "a") == 500


def test_a_node_that_is_off_counts_nothing_and_is_switched_on_only_when_its_boot_fits() -> None:
    store = FaultyStore()
    one = ledger(900, store=store)
    confirmed(one, 0.0, {"a": 400, "b": 400})
    one.switched_off(30.0, "b")
    assert count_w(one, "b") == 0
    one.hear(30.0, report("a", 30_000, 400, sequence=1, epoch=one.epoch))
    one.want(one.accounts.at(["a"]), np.array([500_000]))
    one.grants(30.0)
    assert one.total_mw == 500_000
    assert not one.switch_on(30.0, "b"), "450 W for its boot are not free"
    one.await_boots(["b"])
    planned = plan(one, 31.0, lambda at, mw: np.minimum(mw // max(len(at), 1), one.accounts.tdp_mw[at]))
    assert planned.caps_mw == {"a": 450_000}, "the plan sets the boot's watts aside"
    (lowered,) = one.grants(31.0)
    one.hear(31.5, report("a", 31_500, 450, sequence=lowered.sequence, epoch=one.epoch))
    assert one.switch_on(31.5, "b")
    assert count_w(one, "b") == 450
    after = Ledger(store, one.terms, one.budget, 32.0)
    assert after.accounts["b"].count_mw >= 450_000, "it is on the disk before the node may boot"


def test_a_node_known_to_be_off_counts_nothing_after_a_restart_and_delays_no_raise() -> None:
    store = FaultyStore()
    confirmed(ledger(900, store=store), 0.0, {"b": 400})
    after = Ledger(store, Terms(0, 0), BudgetLine(900_000), 10.0)
    assert after.is_young and count_w(after, "b") > 0
    after.switched_off(10.0, "b")
    assert not after.is_young and count_w(after, "b") == 0
    assert after.switch_on(10.0, "b") and count_w(after, "b") == 450
    after.pass_time(1000.0)
    assert count_w(after, "b") == 450, "until it is heard"


@settings(max_examples=60)
@given(
    moves=st.lists(st.tuples(st.sampled_from(["off", "on", "want", "hear", "wait", "restart"]), st.integers(0, 2),
                             st.integers(200, 500)), max_size=40),
    budget_w=st.integers(900, 1600),
)  # fmt: skip
def test_a_boot_takes_the_counts_beyond_the_budget_neither_at_once_nor_when_it_is_heard(
    moves: list[Any], budget_w: int
) -> None:
    store, names, now_s = FaultyStore(), ["a", "b", "c"], 0.0
    one = ledger(budget_w, store=store)
    confirmed(one, now_s, dict.fromkeys(names, 200))
    boots = dict.fromkeys(names, 1)
    has_power = dict.fromkeys(names, True)
    counted: set[str] = set()  # switched on, and not heard since
    for kind, n, cap_w in moves:
        now_s += 1.0
        name = names[n]
        if kind == "off":
            has_power[name] = False
            now_s += one.settle_s + 1
            one.pass_time(now_s)
            one.switched_off(now_s, name)
            counted.discard(name)
        elif kind == "on" and not has_power[name]:
            one.pass_time(now_s)
            fits = one.free_mw(now_s) >= 450_000 and not one.is_young
            assert one.switch_on(now_s, name) == fits
            if fits:
                assert one.free_mw(now_s) >= 0
                has_power[name] = True
                counted.add(name)
                boots[name] += 1
        elif kind == "want":
            want(one, {name: cap_w * 1000})
        elif kind == "restart":
            one = Ledger(store, one.terms, one.budget, now_s)
            for other in names:
                if not has_power[other]:
                    one.switched_off(now_s, other)
            assert all(count_w(one, other) >= 450 for other in counted), "a boot is on the disk before it is begun"
        elif kind == "hear":
            granted: list[Grant] = []
            for other in names:
                if has_power[other]:
                    boot = f"b{boots[other]}"
                    limit_w = min(int(count_w(one, other)), 450 if other in counted else 500)
                    before_mw = one.total_mw
                    one.hear(now_s, report(other, int(now_s * 1000), limit_w, boot=boot))
                    assert other not in counted or one.total_mw <= before_mw
                    counted.discard(other)
            granted = one.grants(now_s, [other for other in names if has_power[other]])
            for grant in granted:
                boot = f"b{boots[grant.node]}"
                one.hear(now_s + 0.5, report(grant.node, int(now_s * 1000) + 1, grant.cap_mw // 1000, boot=boot,
                                             sequence=grant.sequence, epoch=one.epoch))  # fmt: skip


def test_a_plan_keeps_what_its_own_caps_make_necessary_for_reboots() -> None:
    one = ledger(4000, k=2)
    confirmed(one, 0.0, {f"n{i}": 200 for i in range(10)})
    found = plan(one, 0.0, lambda at, mw: np.full(len(at), min(mw // len(at), 500_000)))
    assert found.reserve_mw == 2 * (450_000 - found.caps_mw["n0"])
    assert 0 <= 4_000_000 - sum(found.caps_mw.values()) - found.reserve_mw < 10
    assert found.short_mw == 0


def test_a_node_that_wakes_under_the_cap_it_was_taken_to_have_lost_is_granted_no_more_than_it_counted() -> None:
    one = ledger(1000)
    confirmed(one, 0.0, {"a": 500, "b": 200})
    small = msgspec.structs.replace(OS, boot_mw=200_000)
    one.hear(0.5, report("a", 500, 500, sequence=1, epoch=one.epoch, declaration=small))
    one.pass_time(60.0)
    assert count_w(one, "a") == 200, "suspended: taken to have fallen to its safe cap"
    one.hear(60.0, report("b", 60_000, 200, sequence=1, epoch=one.epoch))
    want(one, {"b": 500_000})
    raised = one.grants(60.0)
    one.hear(61.0, report("b", 61_000, 500, sequence=raised[0].sequence, epoch=one.epoch))
    want(one, {"a": 450_000})  # planned while it slept: below its cap, but not below what was set aside for it
    one.hear(61.5, report("a", 61_500_000_000, 500, sequence=1, epoch=one.epoch, declaration=small))
    assert (count_w(one, "a"), one.free_mw(61.5)) == (500, 0)
    one.budget.set(900_000)
    lowered = one.grants(61.5, ["a", "b"])
    assert caps_w(lowered)["a"] == 200, "in answer to the report that woke the alarm"
    one.hear(62.0, report("a", 62_000_000_000, 500, sequence=1, epoch=one.epoch, declaration=small))
    one.hear(64.9, report("a", 64_900_000_000, 500, sequence=1, epoch=one.epoch, declaration=small))
    assert caps_w(one.grants(64.9, ["a"])) == {"a": 200}, "and to each after it, should that be lost"


def test_a_sticky_node_without_power_may_come_up_unasked_and_watts_are_set_aside_for_that() -> None:
    one = ledger(2000, k=1)
    one.hear(0.0, report("s", 0, 450, declaration=STICKY))
    assert one.reserve_mw == 0, "it keeps its cap through a reboot"
    one.switched_off(60.0, "s")
    assert one.reserve_mw == 450_000, "but not without power"
    assert one.switch_on(60.0, "s")
    assert one.reserve_mw == 0, "that is what it counts now"
