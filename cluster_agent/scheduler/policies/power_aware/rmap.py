"""RMAP: job-level power bounds on a cluster with more nodes than its watts can feed.

Every job has a fair share of the watts, ``priority`` x its share of the nodes. ``traditional`` ignores the share and
runs the requested nodes at full watts. ``naive`` runs the fastest configuration within the share. ``adaptive`` does so
too, but instead of waiting it takes the fastest that fits what is left now, if that ends within the requested time
stretched by ``th``.

The paper's algorithm does not check whether the nodes of a configuration are free; here every choice of ``adaptive``
does. The paper takes naive's choice if P_job <= P_avail; if only nodes are short, this continues as if watts were. With
a bound above the needs of every job ``adaptive`` and ``naive`` choose the same.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from cluster_agent.scheduler.configurations.choices import Rule
from cluster_agent.scheduler.policies.api import Policy
from cluster_agent.scheduler.policy_phases import Composition


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``th``: allowed slowdown of ``adaptive``, a share of the requested time; inf: any. ``near`` (ours): of the rows
    as fast up to this share the one with fewest watts is taken."""

    policy: Literal["adaptive", "naive", "traditional"] = "adaptive"
    th: float = 0.0
    priority: float = 1.0
    near: float = 0.0


def compose(params: Params) -> Composition:
    """EASY in nodes and watts around one of the three choices (``csrc/resources/choices.c``)."""
    if not params.th >= 0 or not 0 <= params.near < 1 or not params.priority > 0:
        raise ValueError("th must be 0 or more, near from 0 to below 1, and priority above 0")
    return Composition(choose=Rule(params.policy, params.th, params.near, params.priority))


POLICY = Policy(
    name="rmap",
    summary="Jobs with configurations: nodes and watts are chosen at the start, within a fair share of the watts.",
    source="Patki et al., Practical resource management in power-constrained HPC, HPDC 2015",
    params=Params,
    compose=compose,
)
