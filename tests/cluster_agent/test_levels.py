"""The budget as a tree: no raise and no plan exceeds the limit of any group that its node is in."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.ledger_levels import IgnoresGroups, faulty, tree
from benchmarks.ledger_store import FaultyStore
from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.ledger import Ledger, Terms
from cluster_agent.budget.levels import NO_GROUP, Group, Levels
from cluster_agent.budget.plan import plan
from cluster_agent.budget.sharers import registry
from cluster_agent.budget.sharers.turn import Sharing
from cluster_agent.budget.sharers.view import Job, Tag
from tests.cluster_agent.ledger_calls import OS, caps_w, confirmed, report, want

ROOM = [Group("room", 900_000), Group("left", 500_000, ("a", "b"), "room"), Group("right", 600_000, ("c",), "room")]


def ledger(groups: list[Group] = ROOM, budget_w: int = 5000, k: int = 0) -> Ledger:
    return Ledger(
        FaultyStore(), Terms(failing_together=k, lease_s=10.0), BudgetLine(budget_w * 1000), 0.0, Levels(groups)
    )


def capped(one: Ledger, watts: dict[str, int]) -> None:
    """Each node has this cap, granted and confirmed, whatever the limits are."""
    limits_mw = [line.budget_mw for line in one.levels.lines]
    for line in one.levels.lines:
        line.set(10**9)
    confirmed(one, 0.0, watts)
    for line, limit_mw in zip(one.levels.lines, limits_mw, strict=True):
        line.set(limit_mw)


def test_a_raise_waits_for_its_rack_though_the_site_has_watts() -> None:
    one = ledger()
    capped(one, {"a": 200, "b": 200, "c": 200, "d": 200})
    want(one, {"a": 350_000, "b": 250_000, "d": 500_000})
    assert caps_w(one.grants(0.0)) == {"b": 250, "d": 500}, "the rack has 100 W: the cheaper of its raises"


def test_watts_of_a_room_are_not_kept_for_a_raise_that_its_rack_refuses() -> None:
    one = ledger()
    capped(one, {"a": 250, "b": 250, "c": 300})
    want(one, {"a": 300_000, "c": 400_000})  # the cheaper one does not fit its rack, and the room has 100 W
    assert caps_w(one.grants(0.0)) == {"c": 400}


def test_gear_and_reboots_are_paid_from_the_limit_of_their_rack() -> None:
    groups = [Group("rack", 500_000, ("a", "b"), fixed_mw=50_000)]
    one = ledger(groups)
    capped(one, {"a": 200, "b": 200})
    assert one.levels.free_mw(0.0, 0.0, one.accounts, 0).tolist() == [50_000]
    assert one.levels.free_mw(0.0, 0.0, one.accounts, 1).tolist() == [-200_000], "450 W for a boot of either"
    want(one, {"a": 260_000})
    assert caps_w(one.grants(0.0)) == {}


def test_a_cap_within_the_count_waits_while_the_sum_of_its_rack_must_fall() -> None:
    one = ledger()
    capped(one, {"a": 250, "b": 250})
    one.levels.lines[one.levels.places["left"]].change(0.0, 400_000, [], one.settle_s)
    want(one, {"a": 200_000, "b": 200_000})
    assert caps_w(one.grants(0.0)) == {"a": 200, "b": 200}
    want(one, {"a": 240_000})
    assert caps_w(one.grants(0.5)) == {}, "it would stop the fall"


def test_a_limit_that_is_announced_lower_counts_one_settle_time_ahead() -> None:
    one = ledger([Group("rack", 900_000, ("a",))])
    capped(one, {"a": 200})
    line = one.levels.lines[0]
    line.announce(one.settle_s + 5.0, 300_000)
    assert one.levels.spendable_mw(0.0, one.settle_s).tolist() == [900_000]
    assert one.levels.spendable_mw(6.0, one.settle_s).tolist() == [300_000]
    assert one.levels.breach_mw(6.0, one.accounts).tolist() == [-700_000], "900 W are promised until then"


def test_a_node_is_switched_on_only_when_its_rack_has_room_for_the_boot() -> None:
    one = ledger([Group("rack", 600_000, ("a", "b"))])
    capped(one, {"a": 200, "b": 200})
    one.switched_off(1.0, "b")
    assert not one.switch_on(1.0, "b"), "200 and 450 W"
    one.levels.lines[0].set(700_000)
    assert one.switch_on(1.0, "b")


def test_a_boot_that_no_rack_has_watts_for_takes_none_from_the_plan() -> None:
    one = ledger([Group("rack", 600_000, ("a", "b"))])
    capped(one, {"a": 200, "b": 200, "c": 200})
    one.switched_off(30.0, "b")
    one.hear(30.0, report("a", 30_000, 200, sequence=1, epoch=one.epoch))
    one.await_boots(["b"])
    caps_mw = plan(one, 30.0, Sharing(registry.choose("fspc").share, one, ())).caps_mw
    assert caps_mw["a"] == 500_000, "its TDP: b waits for a larger limit"


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_as_many_of_the_cheapest_raises_of_each_group_are_sent_as_fit_one_by_one(data: st.DataObject) -> None:
    n, k = data.draw(st.integers(1, 9)), data.draw(st.sampled_from((0, 1, 3)))
    levels = tree(n, (2, 1)) if data.draw(st.booleans()) else Levels(_uneven(n))
    one = Ledger(FaultyStore(), Terms(failing_together=k), BudgetLine(10**9), 0.0, levels)
    names = [f"n{at:06d}" for at in range(n)]
    capped(one, dict.fromkeys(names, 200))
    costs_mw = np.array(data.draw(st.lists(st.integers(0, 300_000), min_size=n, max_size=n)), np.int64)
    room_mw = np.array(
        data.draw(st.lists(st.integers(0, 3_000_000), min_size=len(levels), max_size=len(levels))), np.int64
    )
    found = levels.fitting(one.accounts, k, room_mw, np.arange(n), costs_mw)
    assert found.tolist() == _plain(one, k, room_mw.tolist(), costs_mw.tolist())


def _uneven(n: int) -> list[Group]:
    """A node in no group, some directly in the room, one rack below it."""
    names = [f"n{at:06d}" for at in range(n)]
    return [Group("room", 1, tuple(names[1:4])), Group("rack", 1, tuple(names[4:7]), "room")]


def _plain(one: Ledger, k: int, room_mw: list[int], costs_mw: list[int]) -> list[bool]:
    """One group after the other, the deepest first, one raise after the other, the cheapest first."""
    accounts, levels = one.accounts, one.levels
    left = set(range(len(costs_mw)))
    for group in sorted(range(len(levels)), key=lambda at: -int(levels.depths[at])):
        members = [at for at in range(len(costs_mw)) if group in levels.path(at)]
        taken: dict[int, int] = {}
        is_full = False
        for at in sorted(left & set(members), key=lambda at: (costs_mw[at], at)):
            taken[at] = costs_mw[at]
            counts = {at: int(accounts.count_mw[at]) + taken.get(at, 0) for at in members}
            boots = sorted((max(int(accounts.boot_need_mw[at]) - mw, 0) for at, mw in counts.items()), reverse=True)
            is_full |= sum(counts.values()) + sum(boots[:k]) > room_mw[group]
            if is_full:
                left.discard(at)
                del taken[at]
    return [at in left for at in range(len(costs_mw))]


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_a_plan_of_every_sharer_is_within_the_limit_of_every_group(data: st.DataObject) -> None:
    sharer = data.draw(st.sampled_from(registry.names()))
    names = [f"n{at}" for at in range(8)]
    limits_mw = [1000 * data.draw(st.integers(300, 2500)) for _ in range(3)]
    more = () if data.draw(st.booleans()) else ("n7",)  # else each node is in a rack, and a rack may fill the room
    room, first = (("n0", "n1"), ()) if data.draw(st.booleans()) else ((), ("n0", "n1"))
    groups = [Group("room", limits_mw[0], room), Group("r1", limits_mw[1], (*first, "n2", "n3"), "room"),
              Group("r2", limits_mw[2], ("n4", "n5", "n6", *more), "room")]  # fmt: skip
    one = ledger(groups, data.draw(st.integers(1700, 4200)), k=data.draw(st.integers(0, 1)))
    capped(one, dict.fromkeys(names, 200))
    jobs = [Job("j0", names[1:4], Tag.MEMORY), Job("j1", names[4:6], Tag.COMPUTE)]
    sharing = Sharing(registry.choose(sharer).share, one, jobs)
    planned = plan(one, 0.0, sharing)
    caps_mw = one.levels.sums_mw(planned.caps, planned.at)
    is_enough = planned.group_short_mw == 0
    assert (caps_mw[is_enough] <= planned.group_left_mw[is_enough]).all()
    assert (planned.caps >= 200_000).all() and (planned.caps <= 500_000).all()
    assert int(planned.caps.sum()) <= planned.available_mw or planned.short_mw or not is_enough.all()
    beyond_mw = one.accounts.boot_need_mw.copy()
    beyond_mw[planned.at] -= planned.caps
    used_mw = caps_mw + one.levels.reserve_mw(beyond_mw, one.terms.failing_together)
    assert (used_mw[is_enough] <= np.array(limits_mw)[is_enough]).all(), "with what a reboot needs"


def test_watts_that_a_rack_cannot_use_go_to_the_others_and_the_sharers_own_order_counts_in_the_rack() -> None:
    one = ledger([Group("rack", 800_000, ("a", "b"))], budget_w=1750)
    capped(one, {"a": 200, "b": 200, "c": 200, "d": 200})
    jobs = [Job("memory", ["a", "c"], Tag.MEMORY), Job("compute", ["b", "d"], Tag.COMPUTE)]
    planned = plan(one, 0.0, Sharing(registry.choose("aapc:memory=60").share, one, jobs))
    assert planned.caps_mw == {"a": 300_000, "b": 500_000, "c": 450_000, "d": 500_000}, "memory first, in the rack too"
    assert planned.group_of == {"a": 0, "b": 0}


def test_a_room_all_of_whose_racks_are_full_keeps_its_own_limit() -> None:
    groups = [
        Group("room", 900_000),
        Group("left", 600_000, ("a", "b"), "room"),
        Group("right", 600_000, ("c", "d"), "room"),
    ]
    one = ledger(groups, budget_w=100_000)
    capped(one, dict.fromkeys("abcd", 300))
    planned = plan(one, 0.0, Sharing(registry.choose("fspc").share, one, ()))
    assert one.levels.sums_mw(planned.caps, planned.at).tolist() == [900_000, 450_000, 450_000]


def test_a_group_that_lacks_watts_for_its_mops_gives_its_nodes_these_and_says_how_many() -> None:
    one = ledger([Group("rack", 350_000, ("a", "b"))])
    capped(one, {"a": 300, "b": 300, "c": 300})
    planned = plan(one, 0.0, Sharing(registry.choose("fspc").share, one, ()))
    assert planned.caps_mw == {"a": 200_000, "b": 200_000, "c": 500_000}
    assert (planned.group_short_mw.tolist(), planned.short_mw) == ([50_000], 0)


def test_of_nodes_that_come_one_by_one_each_is_in_its_groups() -> None:
    one = ledger()
    for name in ("z", "c", "b", "y", "a"):
        one.expect(0.0, {name: msgspec.structs.replace(OS, tdp_mw=500_000)})
    groups = [[one.levels.names[at] for at in one.levels.path(place)] for place in range(5)]
    assert groups == [[], ["room", "right"], ["room", "left"], [], ["room", "left"]]
    assert one.levels.sums_mw(one.accounts.count_mw).tolist() == [1_500_000, 1_000_000, 500_000]
    assert (plan(one, 0.0, Sharing(registry.choose("fspc").share, one, ())).bound == NO_GROUP).all()


def test_no_level_is_over_whatever_goes_wrong() -> None:
    """``benchmarks.ledger_levels`` has a million events of this."""
    found = faulty("all", 1, 5000)
    assert [found[f"over_{level}"] for level in ("site", "room", "rack")] == [0, 0, 0] and found["limits_changed"] > 0


def test_a_ledger_without_the_rule_of_groups_is_seen_to_break_their_limits() -> None:
    found = faulty("network and agents", 1, 5000, IgnoresGroups)
    assert found["over_site"] == 0 and found["over_rack"] > 0
