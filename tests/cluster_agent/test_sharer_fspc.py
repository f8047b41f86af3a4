"""Fair static capping: the digest's figures next to AAPC's (REGALE D2.3 §4.2)."""

from __future__ import annotations

import pytest

from cluster_agent.budget.sharers import registry
from tests.cluster_agent.sharer_views import view, worked

SHARE = registry.choose("fspc").share


@pytest.mark.parametrize(("budget_w", "cap_w"), [(4700, 470), (3750, 375), (2000, 200)])
def test_every_node_gets_the_same_part_idle_or_not(budget_w: int, cap_w: int) -> None:
    assert (SHARE(worked(), budget_w * 1000).caps_mw == cap_w * 1000).all()


def test_unlike_nodes_get_the_same_part_of_their_tdp_and_none_less_than_its_mop() -> None:
    caps_mw = SHARE(view([100, 200, 400], [10, 20, 300], []), 500_000).caps_mw
    assert caps_mw.tolist() == [66_667, 133_333, 300_000]


def test_the_reason_names_the_job_that_runs_there() -> None:
    nodes = worked()
    why = SHARE(nodes, 3_750_000).why(nodes, "n8")
    assert (why.cap_mw, why.reason, why.job, why.tag) == (375_000, "static", "C", "COMPUTE")
    assert why.words.startswith("375.0 W by fspc: the same part of TDP as for every node")
