"""Which share of TDP each tag needs: by the kernels that lose as jobs of that tag do."""

from __future__ import annotations

import msgspec
import pytest

from calibration.table.tag_shares import MOST_LOSS, clock_share, tag_of, tag_shares
from cluster_agent.budget.sharers import registry
from tests.calibration.test_policy_values import CLOCKS, KERNELS, REST_W, TOP, points_of, table_points

MOST_W = 60.0 + 140.0
"""Of the packages at the highest clock, as ``points_of`` has it."""

REST: float = REST_W + 10.0


def share_of(beta: float) -> float:
    """By the formulas of ``points_of``."""
    khz = next(khz for khz in CLOCKS if beta * (TOP / khz - 1) <= MOST_LOSS)
    return 100 * (60.0 + 140.0 * (khz / TOP) ** 2 + 0.1 + REST) / (MOST_W + REST)


def test_a_tag_needs_the_watts_at_which_its_most_demanding_kernel_loses_a_twentieth() -> None:
    shares = tag_shares(table_points(KERNELS), has_meter=True)
    assert shares["memory"] == pytest.approx(share_of(0.3), abs=0.11)  # mix-2: of stream and it the more demanding
    assert shares["mixed"] == pytest.approx(share_of(0.6), abs=0.11)
    assert shares["compute"] == pytest.approx(share_of(1.0), abs=0.11)
    assert shares["memory"] < shares["mixed"] < shares["compute"] <= 100.0


def test_kernels_have_the_tags_of_the_agents_own_marks() -> None:
    assert [tag_of(beta) for beta in (0.1, 0.3, 0.31, 0.64, 0.65, 1.0)] == [
        "memory", "memory", "mixed", "mixed", "compute", "compute",
    ]  # fmt: skip
    assert clock_share(points_of("mix-4", 0.6, 1.7)) == pytest.approx(0.6)


def test_a_tag_without_a_kernel_is_left_out_and_a_less_sensitive_one_never_needs_more() -> None:
    few = {"stream": KERNELS["stream"], "fma": KERNELS["fma"]}
    assert set(tag_shares(table_points(few), True)) == {"memory", "compute"}
    hot = points_of("stream", 0.2, 0.5)
    cool = points_of("fma", 1.0, 2.2)
    cool = [msgspec.structs.replace(point, package_w=point.package_w / 2) for point in cool]
    shares = tag_shares([*hot, *cool], has_meter=False)
    assert shares["memory"] <= shares["compute"]
    assert tag_shares(points_of("fma", 1.0, 2.2, level="one"), True) == {}


def test_the_sharer_aapc_takes_what_a_table_says() -> None:
    shares = tag_shares(table_points(KERNELS), has_meter=True)
    text = ",".join(f"{tag}={share:g}" for tag, share in shares.items())
    assert registry.choose(f"aapc:{text}").share is not None
