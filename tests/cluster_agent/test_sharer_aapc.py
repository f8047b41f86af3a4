"""AAPC: the digest's worked vectors (REGALE D2.3 §4.2), and the options where the source leaves a choice."""

from __future__ import annotations

import numpy as np
import pytest

from cluster_agent.budget.sharers import registry
from cluster_agent.budget.sharers.api import BudgetTooSmallError
from cluster_agent.budget.sharers.view import Job, Tag
from tests.cluster_agent.sharer_views import view, worked

SHARE = registry.choose("aapc").share


@pytest.mark.parametrize(
    ("budget_w", "caps_w", "steps"),
    [
        (4700, [200, 500, 500, 500, 500, 500, 500, 500, 500, 500], 0),
        (4400, [200, 400, 400, 466.667, 466.667, 466.666, 500, 500, 500, 500], 2),
        (3750, [200, 225, 225, 400, 400, 400, 450, 450, 500, 500], 5),
        (2000, [200] * 10, 8),
    ],
)
def test_the_worked_vectors_come_out(budget_w: int, caps_w: list[float], steps: int) -> None:
    shares = SHARE(worked(), budget_w * 1000)
    assert np.array_equal(shares.caps_mw, np.round(np.array(caps_w) * 1000).astype(int))
    assert shares.steps == steps


def test_a_budget_below_the_sum_of_mops_is_refused_with_what_is_missing() -> None:
    with pytest.raises(BudgetTooSmallError, match=r"1999\.0 W are 1\.0 W less than the minimal operating power of 10"):
        SHARE(worked(), 1_999_000)


def test_watts_that_no_running_job_can_use_stay_unspent_so_that_the_next_start_lowers_nobody() -> None:
    shares = SHARE(worked(), 5_000_000)
    assert shares.caps_mw[0] == 200_000
    assert shares.caps_mw.sum() == 4_700_000


def test_small_jobs_are_capped_before_wide_ones_and_older_ones_before_younger_ones() -> None:
    jobs = [Job("wide", ["n0", "n1"], Tag.MIXED), Job("old", ["n2"], Tag.MIXED), Job("young", ["n3"], Tag.MIXED)]
    caps_mw = SHARE(view([100] * 4, [50] * 4, jobs), 385_000).caps_mw
    assert caps_mw.tolist() == [100_000, 100_000, 90_000, 95_000]


def test_each_reason_says_the_pass_the_tag_and_where_the_tag_is_from() -> None:
    nodes = worked()
    shares = SHARE(nodes, 3_750_000)
    found = {name: shares.why(nodes, name) for name in ("n0", "n1", "n3", "n6", "n8")}
    assert {name: why.reason for name, why in found.items()} == {
        "n0": "idle", "n1": "mop_and_share", "n3": "tag", "n6": "tag", "n8": "uncapped",
    }  # fmt: skip
    assert found["n1"].words == (
        "225.0 W by aapc: pass 2: its minimal operating power, and its share of what the last cap left over;"
        " job A, MEMORY (user)"
    )
    assert found["n0"].words == "200.0 W by aapc: the node is idle, so its minimal operating power"


def test_what_is_left_over_is_shared_in_equal_watts_or_to_equal_parts_of_tdp() -> None:
    nodes = view([100, 400], [20, 20], [Job("j", ["n0", "n1"], Tag.MEMORY)])
    watts = registry.choose("aapc:memory=50").share(nodes, 310_000).caps_mw
    parts = registry.choose("aapc:memory=50,fairness=tdp").share(nodes, 310_000).caps_mw
    assert watts.tolist() == [80_000, 230_000]
    assert parts.tolist() == [62_000, 248_000]


def test_a_share_ends_at_the_cap_that_was_in_force_before() -> None:
    nodes = view([100, 400], [20, 20], [Job("j", ["n0", "n1"], Tag.MEMORY)])
    assert registry.choose("aapc:memory=50").share(nodes, 450_000).caps_mw.tolist() == [100_000, 350_000]


def test_a_tags_cap_below_mop_is_mop() -> None:
    nodes = view([100, 100], [95, 50], [Job("j", ["n0", "n1"], Tag.MEMORY)])
    assert SHARE(nodes, 175_000).caps_mw.tolist() == [95_000, 80_000]


def test_a_job_without_a_tag_counts_as_compute_bound_or_as_configured() -> None:
    nodes = view([100, 100], [50, 50], [Job("untagged", ["n0"]), Job("mixed", ["n1"], Tag.MIXED)])
    assert SHARE(nodes, 190_000).caps_mw.tolist() == [100_000, 90_000]
    shares = registry.choose("aapc:untagged=memory").share(nodes, 190_000)
    assert shares.caps_mw.tolist() == [90_000, 100_000]
    assert "job untagged, MEMORY (default)" in shares.why(nodes, "n0").words


def test_a_node_shared_by_jobs_has_the_most_sensitive_ones_tag() -> None:
    jobs = [Job("memory", ["n0", "n1"], Tag.MEMORY), Job("compute", ["n1"], Tag.COMPUTE)]
    nodes = view([100, 100], [50, 50], jobs)
    shares = SHARE(nodes, 180_000)
    assert shares.caps_mw.tolist() == [80_000, 100_000]
    assert shares.why(nodes, "n1").job == "compute"
