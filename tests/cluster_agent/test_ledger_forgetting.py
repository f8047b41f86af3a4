"""A node that a person states to have no power: what the ledger has of it afterwards, on the disk and in memory."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from benchmarks.ledger_store import FaultyStore
from cluster_agent.budget.accounts import FORGOTTEN, NONE
from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.kept_counts import DeposedError
from cluster_agent.budget.ledger import Ledger, Terms
from foundation.wire.power_messages import Declaration
from tests.cluster_agent.ledger_calls import OS, caps_w, confirmed, count_w, ledger, report, want

NOTHING = Declaration(tdp_mw=0, mop_mw=0, safe_mw=0, boot_mw=0, lease_class="sticky")


def forgotten(store: FaultyStore) -> Ledger:
    """Node a has a cap of 300 W; b had one of 200 W and is forgotten."""
    made = ledger(2000, store=store)
    confirmed(made, 0.0, {"a": 300, "b": 200})
    made.forget(5.0, "b")
    return made


def test_a_forgotten_node_counts_nothing_and_its_watts_are_free() -> None:
    store = FaultyStore()
    made = ledger(1000, store=store)
    confirmed(made, 0.0, {"a": 300, "b": 200})
    assert made.free_mw(5.0) == 500_000
    made.forget(5.0, "b")
    assert (count_w(made, "b"), made.free_mw(5.0), count_w(made, "a")) == (0, 700_000, 300)


def test_that_is_stored_and_a_restart_knows_it() -> None:
    store = FaultyStore()
    forgotten(store)
    snapshot = store.take_over()
    assert snapshot.names == ["a", "b"] and snapshot.declarations == [OS, NOTHING] == [OS, FORGOTTEN]
    assert snapshot.counts_mw[0] >= 300_000 and snapshot.counts_mw[1] == NONE
    again = Ledger(store, Terms(failing_together=0), BudgetLine(1_000_000), 0.0)
    assert count_w(again, "b") == 0 and again.accounts.is_forgotten.tolist() == [False, True]


@pytest.mark.parametrize("before", ["at rest", "with an open grant", "switched off"])
def test_a_forgotten_node_is_like_one_that_was_never_heard_of(before: str) -> None:
    made = ledger(2000)
    confirmed(made, 0.0, {"a": 300, "b": 200})
    if before == "with an open grant":
        want(made, {"b": 400_000})
        assert caps_w(made.grants(1.0)) == {"b": 400}
    elif before == "switched off":
        made.switched_off(1.0, "b")
    made.forget(5.0, "b")
    made.expect(5.0, {"c": NOTHING})
    accounts = made.accounts
    at, fresh = accounts.places["b"], accounts.places["c"]
    names = {name for name, one in vars(type(accounts)).items() if not name.startswith("_") and not callable(one)}
    arrays = {name: found for name in names if isinstance(found := getattr(accounts, name), np.ndarray)}
    differing = {
        name: (found[..., at], found[..., fresh]) for name, found in arrays.items()
        if not np.array_equal(found[..., at], found[..., fresh])
    }  # fmt: skip
    numbers = {"report_id", "seen_epoch", "sequence", "last_deadline_s"}  # they go on, so that nothing older counts
    assert len(arrays) > 25 and differing.keys() == numbers, differing


def test_what_is_open_with_another_node_stays_open_and_who_is_off_stays_off() -> None:
    made = ledger(3000)
    confirmed(made, 0.0, {"a": 300, "b": 200, "c": 100})
    want(made, {"a": 400_000})
    assert caps_w(made.grants(1.0)) == {"a": 400}
    made.switched_off(1.0, "c")
    places = made.accounts.places
    before = made.accounts.open_mw[:, places["a"]].tolist()
    assert 400_000 in before
    made.forget(5.0, "b")
    assert made.accounts.open_mw[:, places["a"]].tolist() == before
    assert made.accounts.is_off.tolist() == [name == "c" for name in places]
    assert (count_w(made, "a"), count_w(made, "b"), count_w(made, "c")) == (400, 0, 0)


def test_a_forgotten_node_that_is_expected_again_counts_its_tdp() -> None:
    made = forgotten(FaultyStore())
    made.expect(6.0, {"a": OS, "b": OS})
    assert count_w(made, "b") == OS.tdp_mw / 1000 and count_w(made, "a") == 300
    assert made.accounts.limit_mw[made.accounts.places["b"]] == OS.tdp_mw


def test_a_forgotten_node_that_reports_starts_like_a_new_one() -> None:
    made = forgotten(FaultyStore())
    assert made.hear(6.0, report("b", 1, 400)) != []
    assert count_w(made, "b") == OS.tdp_mw / 1000 and not made.accounts.is_forgotten.any()


def test_a_node_that_was_not_stored_yet_is_stored_with_the_one_that_is_forgotten() -> None:
    store = FaultyStore()
    made = ledger(2000, store=store)
    confirmed(made, 0.0, {"a": 300, "b": 200})
    made.expect(1.0, {"c": msgspec.structs.replace(OS, safe_mw=110_000)})
    made.forget(5.0, "b")
    snapshot = store.take_over()
    assert snapshot.names == ["a", "b", "c"] and snapshot.declarations[2].safe_mw == 110_000


def test_who_was_deposed_forgets_nothing() -> None:
    store = FaultyStore()
    made = ledger(2000, store=store)
    confirmed(made, 0.0, {"a": 300, "b": 200})
    store.take_over()
    with pytest.raises(DeposedError):
        made.forget(5.0, "b")
    assert count_w(made, "b") == 200 and not made.accounts.is_forgotten.any()
