"""Which nodes the components of a job get, and how many of them there are.

The scarcest component chooses first, as in the engine (``scheduler.unlike_nodes.components``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cluster_agent.jobs.job import JobSpec
from cluster_agent.jobs.job_nodes import Node


def scarcest_first(spec: JobSpec, nodes: Collection[tuple[int, int, int, int]]) -> list[int]:
    """The components, by their places in the job, in the order in which they choose nodes, of those that have this."""
    able = [sum(one.fits(has) for has in nodes) for one in spec.requests]
    return sorted(range(len(able)), key=lambda at: able[at])


def distributed(spec: JobSpec, free: Sequence[Node]) -> list[Node]:
    """Of these nodes, those of the job, component after component; empty: there are not enough."""
    known = [node.has for node in free if node.has is not None]
    if not spec.components or len(known) < len(free):
        return list(free[: spec.nodes]) if len(free) >= spec.nodes else []
    left, found = list(free), dict[int, list[Node]]()
    for at in scarcest_first(spec, known):
        one = spec.components[at]
        found[at] = [node for node in left if node.has is not None and one.fits(node.has)][: one.nodes]
        if len(found[at]) < one.nodes:
            return []
        left = [node for node in left if node not in found[at]]
    return [node for at in sorted(found) for node in found[at]]


def requested_nodes(spec: JobSpec) -> str:
    """What each component requests."""
    return " : ".join(one.in_words for one in spec.requests)
