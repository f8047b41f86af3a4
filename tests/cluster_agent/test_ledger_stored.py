"""What the ledger stores, and what a new ledger believes of what the one before it has stored and granted."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from benchmarks.ledger_store import FaultyStore
from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.kept_counts import DeposedError
from cluster_agent.budget.ledger import Ledger, Terms
from tests.cluster_agent.ledger_calls import (
    AFTER_S,
    HERE_S,
    OS,
    STICKY,
    caps_w,
    count_w,
    ledger,
    report,
    two,
    want,
)

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
