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

from cluster_agent.scheduler.configurations.moldable_scheduler import ChoiceInput, Choose, MoldableComposition, Rule
from cluster_agent.scheduler.configurations.table import Configuration, best
from cluster_agent.scheduler.policies.api import Policy


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``th``: allowed slowdown of ``adaptive``, a share of the requested time; inf: any. ``near`` (ours): of the rows
    as fast up to this share the one with fewest watts is taken."""

    policy: Literal["adaptive", "naive", "traditional"] = "adaptive"
    th: float = 0.0
    priority: float = 1.0
    near: float = 0.0


def compose(params: Params) -> MoldableComposition:
    """EASY in nodes and watts around one of the three choices."""
    if not params.th >= 0 or not 0 <= params.near < 1 or not params.priority > 0:
        raise ValueError("th must be 0 or more, near from 0 to below 1, and priority above 0")
    rule = Rule(params.policy, params.th, params.near, params.priority)
    if params.policy == "traditional":
        return MoldableComposition(traditional, rule)
    return MoldableComposition(naive(params) if params.policy == "naive" else adaptive(params), rule)


def traditional(given: ChoiceInput) -> Configuration | None:
    """The requested nodes with all cores at the highest cap, or as many of them as the cluster's watts allow."""
    cores, cap_w = max((row.cores, row.cap_w) for row in given.rows)
    full = [row for row in given.rows if (row.cores, row.cap_w) == (cores, cap_w) and row.watts <= given.cluster_w]
    fitting = [row for row in full if row.nodes <= given.nodes]
    return max(fitting, key=lambda row: row.nodes, default=None)


def naive(params: Params) -> Choose:
    """The fastest within the fair share, wherever that leads."""

    def choose(given: ChoiceInput) -> Configuration | None:
        return best(given.rows, fair_share_w(given, params.priority), given.cluster_nodes, params.near)

    return choose


def adaptive(params: Params) -> Choose:
    """Naive's choice if it can start; else the fastest that can, if it is fast enough; else naive's, later."""

    def choose(given: ChoiceInput) -> Configuration | None:
        bound_w = fair_share_w(given, params.priority)
        wanted = best(given.rows, bound_w, given.cluster_nodes, params.near)
        if wanted is None or (bound_w <= given.free_w and wanted.nodes <= given.free_nodes):
            return wanted
        now = best(given.rows, min(bound_w, given.free_w), given.free_nodes, params.near)
        return now if now is not None and now.time_s <= (1 + params.th) * given.request_s else wanted

    return choose


def fair_share_w(given: ChoiceInput, priority: float) -> float:
    """P_job: a ceiling on the job's package watts."""
    return priority * given.nodes / given.cluster_nodes * given.cluster_w


POLICY = Policy(
    name="rmap",
    summary="Jobs with configurations: nodes and watts are chosen at the start, within a fair share of the watts.",
    source="Patki et al., Practical resource management in power-constrained HPC, HPDC 2015",
    params=Params,
    compose=compose,
)
