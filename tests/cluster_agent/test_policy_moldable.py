"""``moldable``: the three rules on cases worked out by hand."""

from __future__ import annotations

import pytest

from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.configurations.table import Configuration
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.power_cap import constant
from tests.cluster_agent.traces import jobs_of
from tests.cluster_agent.worlds import Moldable, replay_moldable, with_ways

ONE_NODE, TWO_NODES = Configuration(1, 16, 115, 7200, 200), Configuration(2, 16, 115, 3600, 440)
"""The report's example: one node for two hours, or two nodes for one."""


def replayed(rule: str, *rows: tuple[Configuration, ...]) -> Moldable:
    world = with_ways(jobs_of([(at_s, 1, 9999, 1, 0) for at_s in range(len(rows))]), rows, 2, constant(1000.0))
    return replay_moldable(choose(f"moldable:rule={rule}").composed, world)


def test_on_an_empty_cluster_the_stock_rule_takes_what_ends_first() -> None:
    assert replayed("stock", (ONE_NODE, TWO_NODES)).chosen == (TWO_NODES,)


def test_cores_times_end_ties_in_the_reports_example_and_the_earlier_end_decides() -> None:
    assert replayed("cores-endtime", (ONE_NODE, TWO_NODES)).chosen == (TWO_NODES,)


def test_cores_times_end_bills_waiting() -> None:
    """One node is taken for 1000 s: 32 cores x 4599 s are more than 16 x 7200."""
    busy = (Configuration(1, 16, 115, 1000, 200),)
    result = replayed("cores-endtime", busy, (ONE_NODE, TWO_NODES))
    assert (result.chosen[1], result.start_s[1]) == (ONE_NODE, 1)
    assert replayed("stock", busy, (ONE_NODE, TWO_NODES)).start_s[1] == 1000


def test_the_energy_rule_saves_joules_within_its_slowdown() -> None:
    """1.44 MJ against 1.58 MJ, at twice the time."""
    assert replayed("energy", (ONE_NODE, TWO_NODES)).chosen == (TWO_NODES,)
    assert replayed("energy,slowdown=2", (ONE_NODE, TWO_NODES)).chosen == (ONE_NODE,)


def test_a_job_that_fits_nowhere_is_reported_and_stops_nobody() -> None:
    result = replayed("stock", (Configuration(3, 16, 115, 10, 100),), (ONE_NODE,))
    assert result.impossible == (0,) and result.start_s.tolist() == [-1, 1]


def test_a_slowdown_below_one_is_refused() -> None:
    with pytest.raises(WrongUseError, match=r"slowdown=0\.5 must be 1 or more"):
        choose("moldable:rule=energy,slowdown=0.5")
