"""Nodes that stay on by a profile of a day ahead: the extraction as printed, and joules by hand next to a timer's."""

from __future__ import annotations

import numpy as np
import pytest

from cluster_agent.cluster import Machine, NodeGroup, Topology
from cluster_agent.prices.node_profile import (
    WithoutJobs,
    busy_nodes,
    by_profile,
    by_timer,
    extraction,
    whole_nodes,
)

NODE = NodeGroup(4, 8, 10.0, 100.0, (2000,), (200.0,), boot_j=5000.0, switch_off_j=1000.0)
MACHINE = Machine("small", (NODE,), Topology(), {})
USED = [(0, 1), (1000, 0), (4000, 3), (5000, 0)]
"""Nodes with a job, until 7200 s."""


@pytest.mark.parametrize(("offset", "share", "nodes"), [(0.7, 0.88, 264), (0.5, 0.8, 240), (1.0, 1.0, 300)])
def test_of_300_nodes_used_for_60_percent_so_many_stay_on(offset: float, share: float, nodes: int) -> None:
    found = extraction([0.6] * 24, [0.6] * 24, offset)
    assert found == pytest.approx([share] * 24) and whole_nodes(found, 300) == [nodes] * 24


def test_a_day_above_84_percent_keeps_all_on_and_so_does_each_hour_with_such_24_hours_before_it() -> None:
    assert extraction([0.85] * 24, [0.0] * 24, 0.5) == [1.0] * 24
    rising = extraction([0.8] * 24, [1.0] * 24, 0.5)
    assert rising[0] == pytest.approx(0.9) and rising[4] == pytest.approx(0.5 + (0.8 + 4 * 0.2 / 24) / 2)
    assert rising[:5].count(1.0) == 0 and rising[5:] == [1.0] * 19


def test_joules_of_a_profile_are_those_worked_out_by_hand_and_jobs_boot_what_it_lacks() -> None:
    """On are 2 nodes in the first hour, and 1 in the second, in which three jobs boot two more."""
    idle_s = 1000 * 1 + 2600 * 2 + 400 * 1 + 1000 * 0 + 2200 * 1
    off_s = 1000 * 2 + 2600 * 2 + 400 * 3 + 1000 * 1 + 2200 * 3
    assert by_profile(USED, [2, 1], MACHINE, 7200) == WithoutJobs(idle_s * 100 + off_s * 10 + 2 * 6000, 2, 1)
    ahead = by_profile(USED, [2, 3], MACHINE, 7200)
    assert (ahead.boots, ahead.late) == (1, 0), "it boots before the jobs come"


def test_joules_of_a_timer_are_those_worked_out_by_hand() -> None:
    """Three nodes are idle from 0 on and one from 1000 s; at 4000 s that one, and two of the others, get jobs."""
    found = by_timer(USED, 3500, MACHINE, 7200)
    idle_s = 3000 + 2 * 3500 + 3500 + 3 * 2200
    off_s = 2 * 500 + 3700
    assert found == WithoutJobs(idle_s * 100 + off_s * 10 + 2 * 6000, 2, 1)
    assert by_timer(USED, 7200, MACHINE, 7200).boots == 0


def test_busy_nodes_are_counted_from_the_window_on() -> None:
    spells = np.array([[0, 0, 100], [1, 50, 300], [2, 400, 500]])
    assert busy_nodes(spells, 60, 450) == [(60, 2), (100, 1), (300, 0), (400, 1)]
    assert busy_nodes(spells[:0], 60, 450) == [(60, 0)]
