"""The ledger's columns keep of many nodes and grants what would be kept of each alone."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cluster_agent.budget.accounts import OPEN, Accounts
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
