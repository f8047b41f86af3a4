"""Nodes that stay on by a profile of a day ahead: the extraction as printed."""

from __future__ import annotations

import pytest

from cluster_agent.prices.node_profile import extraction, whole_nodes


@pytest.mark.parametrize(("offset", "share", "nodes"), [(0.7, 0.88, 264), (0.5, 0.8, 240), (1.0, 1.0, 300)])
def test_of_300_nodes_used_for_60_percent_so_many_stay_on(offset: float, share: float, nodes: int) -> None:
    found = extraction([0.6] * 24, [0.6] * 24, offset)
    assert found == pytest.approx([share] * 24) and whole_nodes(found, 300) == [nodes] * 24


def test_a_day_above_84_percent_keeps_all_on_and_so_does_each_hour_with_such_24_hours_before_it() -> None:
    assert extraction([0.85] * 24, [0.0] * 24, 0.5) == [1.0] * 24
    rising = extraction([0.8] * 24, [1.0] * 24, 0.5)
    assert rising[0] == pytest.approx(0.9) and rising[4] == pytest.approx(0.5 + (0.8 + 4 * 0.2 / 24) / 2)
    assert rising[:5].count(1.0) == 0 and rising[5:] == [1.0] * 19
