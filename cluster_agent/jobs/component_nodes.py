"""Which nodes the components of a job get, and how many of them there are.

The scarcest component chooses first, as in the engine (``scheduler.unlike_nodes.components``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from cluster_agent.jobs.job import Component, Job, JobSpec
from cluster_agent.jobs.job_nodes import Node


def scarcest_first(spec: JobSpec, nodes: Mapping[tuple[int, int, int, int], int]) -> list[int]:
    """The components, by their places in the job, in the order in which they choose nodes. ``nodes``: how many have
    this."""
    requests = spec.requests
    if len(requests) == 1:
        return [0]
    able = [sum(count for has, count in nodes.items() if one.fits(has)) for one in requests]
    return sorted(range(len(requests)), key=lambda at: (able[at], able[at] / requests[at].nodes))


def distributed(spec: JobSpec, free: Sequence[Node]) -> list[Node]:
    """Of these nodes, those of the job, component after component; empty: there are not enough."""
    if not spec.components or any(node.has is None for node in free):
        return list(free[: spec.nodes]) if len(free) >= spec.nodes else []
    known = Counter(node.has for node in free if node.has is not None)
    left, found = list(free), dict[int, list[Node]]()
    for at in scarcest_first(spec, known):
        one, others = spec.components[at], list[Node]()
        own = found[at] = []
        for node in left:
            is_own = len(own) < one.nodes and node.has is not None and one.fits(node.has)
            (own if is_own else others).append(node)
        if len(own) < one.nodes:
            return []
        left = others
    return [node for at in sorted(found) for node in found[at]]


def component_on(job: Job, name: str) -> Component:
    """That which has this node; of one that the job has not, the first."""
    requests = job.spec.requests
    if len(requests) == 1:  # most jobs, so that nobody looks through their nodes
        return requests[0]
    return requests[job.spec.on_rank(job.nodes.index(name) if name in job.nodes else 0)]


def requested_nodes(spec: JobSpec) -> str:
    """What each component requests."""
    return " : ".join(one.in_words for one in spec.requests)
