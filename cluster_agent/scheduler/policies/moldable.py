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

from cluster_agent.scheduler.configurations.choices import Rule
from cluster_agent.scheduler.policies.api import Policy
from cluster_agent.scheduler.policy_phases import Composition


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``slowdown`` goes with ``rule=energy``."""

    rule: Literal["stock", "cores-endtime", "energy"] = "stock"
    slowdown: float = 1.2


def compose(params: Params) -> Composition:
    """The rule as the choice of a configuration."""
    if not params.slowdown >= 1:
        raise ValueError(f"slowdown={params.slowdown:g} must be 1 or more")

    return Composition(choose=Rule(params.rule, slowdown=params.slowdown))


POLICY = Policy(
    name="moldable",
    summary="Jobs with configurations: the one that ends first, costs fewest cores x time, or fewest joules.",
    source="REGALE deliverable D2.3, 2023, §3.1; stock rule: OAR 3",
    params=Params,
    compose=compose,
)
