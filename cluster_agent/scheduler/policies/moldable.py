"""Moldable jobs: which of a job's configurations is best is decided when it may start.

``stock`` takes the one that ends first, including its wait, as OAR does. ``cores-endtime`` takes the least cores x time
until the end: a proxy for energy, which counts the wait as if it used cores. ``energy`` (ours) takes the least
predicted joules among those that end within ``slowdown`` x the earliest end. Times count from now; the report does not
define their origin, and with times since 1970 the cores alone would decide. Equal ones: the earlier end, then fewer
nodes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from cluster_agent.scheduler.configurations.moldable_scheduler import ChoiceInput, MoldableComposition, Rule, length_s
from cluster_agent.scheduler.configurations.table import Configuration
from cluster_agent.scheduler.policies.api import Policy


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``slowdown`` goes with ``rule=energy``."""

    rule: Literal["stock", "cores-endtime", "energy"] = "stock"
    slowdown: float = 1.2


def compose(params: Params) -> MoldableComposition:
    """The rule as the choice of a configuration."""
    if not params.slowdown >= 1:
        raise ValueError(f"slowdown={params.slowdown:g} must be 1 or more")

    def choose(given: ChoiceInput) -> Configuration | None:
        """The least score."""
        ends = []
        for row in given.rows:
            start_s = given.earliest_s(row)
            if start_s is not None:
                ends.append((start_s - given.now_s + length_s(row), row))
        if not ends:
            return None
        limit_s = params.slowdown * min(end_s for end_s, _ in ends)

        def score(end_s: int, row: Configuration) -> float:
            if params.rule == "cores-endtime":
                return row.nodes * row.cores * end_s
            return end_s if params.rule == "stock" else row.energy_j if end_s <= limit_s else float("inf")

        return min(ends, key=lambda one: (score(*one), one[0], one[1].nodes))[1]

    return MoldableComposition(choose, Rule(params.rule, slowdown=params.slowdown))


POLICY = Policy(
    name="moldable",
    summary="Jobs with configurations: the one that ends first, costs fewest cores x time, or fewest joules.",
    source="REGALE deliverable D2.3, 2023, §3.1; stock rule: OAR 3",
    params=Params,
    compose=compose,
)
