"""The ledger's columns keep of many nodes and grants what would be kept of each alone."""

from __future__ import annotations

import math
import operator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_agent.budget.accounts import OPEN, Accounts, after_lease_s
from foundation.wire.power_messages import Declaration, LeaseClass
from tests.cluster_agent.ledger_calls import OS, STICKY, ledger, report

OPENED = st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 6), st.integers(0, 12))


@given(st.lists(OPENED, max_size=30))
def test_open_grants_count_as_if_each_were_kept(moves: list[tuple[int, int, int, int]]) -> None:
    """Against a plain list: more than it where more are open than are distinguished, and never less."""
    columns = Accounts()
    at = columns.add({"a": OS, "b": OS})[1:]
    kept: list[tuple[int, int, float]] = []
    now_s, deadline_s, is_exact = 0.0, 0.0, True
    for sequence, (cap_mw, waits_s, lease_s, confirmed_back) in enumerate(moves, 1):
        now_s += waits_s
        columns.sequence[at] = sequence
        deadline_s = max(now_s + lease_s, deadline_s)
        columns.open_grants(at, np.array([cap_mw]), np.array([deadline_s]))
        kept.append((sequence, cap_mw, deadline_s))
        is_exact &= len({mw for n, mw, _ in kept if all(mw > later for m, later, _ in kept if m > n)}) <= OPEN
        confirmed = sequence - confirmed_back
        kept = [one for one in kept if one[0] > confirmed and one[2] > now_s]
        columns.close_grants(at, columns.open_sequence[:, at] <= confirmed)
        columns.close_grants(at, columns.open_deadline_s[:, at] <= now_s)
        highest_mw = max([-1, *(mw for _, mw, _ in kept)])
        found_mw = int(columns.open_mw[:, 1].max())
        assert found_mw == highest_mw if is_exact else found_mw >= highest_mw
    assert columns.open_mw[:, 0].max() == -1


SAID = st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.integers(150, 500), st.integers(0, 4),
                 st.sampled_from(["b1", "b1", "b2"]), st.booleans(), st.sampled_from(["seen", "provisional", "unseen"]),
                 st.sampled_from([OS, STICKY]))  # fmt: skip


@given(st.lists(st.lists(SAID, max_size=6), max_size=12))
def test_reports_taken_together_are_taken_as_one_after_the_other(batches: list[list[Any]]) -> None:
    """But for a grant that was never given here: then older leases are waited for, also those of nodes that come with
    the same batch."""
    together, singly = ledger(1400, k=1), ledger(1400, k=1)
    for now, batch in enumerate(batches):
        given = {node for node in singly.accounts if singly.accounts.sequence[singly.accounts.at([node])] > 0}
        reports = [
            report(node, 1000 * now + later, limit_w, sequence=sequence if node in given else 0,
                   epoch=1 if sequence and node in given else 0, boot=boot, is_leaving=is_leaving, effect=effect,
                   power_mw=230_000, declaration=declared)
            for node, later, limit_w, sequence, boot, is_leaving, effect, declared in batch
        ]  # fmt: skip
        heard = {one.node for one in together.hear(now, *reports)}
        assert heard == {one.node for report in reports for one in singly.hear(now, report)}
        for one in (together, singly):
            one.want(np.arange(len(one.accounts)), np.full(len(one.accounts), 200_000 + 30_000 * (now % 8)))
        by_node = operator.attrgetter("node")
        granted = [sorted(one.grants(now, heard), key=by_node) for one in (together, singly)]
        assert granted[0] == granted[1]
        assert [together.accounts[name] for name in sorted(together.accounts)] == [
            singly.accounts[name] for name in sorted(singly.accounts)
        ]
        assert together.total_mw == singly.total_mw == together.accounts.count_mw.sum()


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
