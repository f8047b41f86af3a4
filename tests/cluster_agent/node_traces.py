"""Small machines of unlike nodes and traces for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from cluster_agent.replay.world_run import Result
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.power_cap import UNCAPPED, PowerCap
from cluster_agent.scheduler.unlike_nodes.node_aware import PowerSource
from cluster_agent.scheduler.unlike_nodes.node_jobs import Nodes
from cluster_agent.workloads.node_trace import NodeTrace, NodeTraceBuilder
from cluster_agent.workloads.swf import TraceError
from tests.cluster_agent.worlds import replay_nodes

FOUR_NODES = Nodes(np.array([[16, 2, 0, 64], [16, 2, 0, 64], [16, 0, 2, 64], [16, 0, 2, 64]], np.int64))
"""n1, n2: 16 cores and 2 GPUs; n3, n4: 16 cores and 2 MICs (Bridi, Bologna 2018, ch. 4)."""

Row = tuple[int, int, int, int, int, int, int, float | None]
"""(submit, run, request, units, and of all units cores, GPUs, MICs, watts)"""


def trace_of(rows: Sequence[Row], job: Sequence[int] = ()) -> NodeTrace:
    """``job``: of each row the number of the job of which it is a component, from 1; 0: it is a job."""
    builder = NodeTraceBuilder("rows", "", is_strict=True)
    names = ("submit_s", "run_s", "request_s", "units", "cores", "gpus", "mics", "watts")
    for at, row in enumerate(rows, 1):
        values = dict(zip(names, row, strict=True), name=str(at), queue="", memory_kib=0, wait_s=0)
        if job and job[at - 1]:
            values["component_of"] = (str(job[at - 1]),)
        builder.add(at, lambda values=values: values)  # type: ignore[misc]
    return builder.finish()


WASTEFUL: list[Row] = [
    (0, 9, 9, 1, 1, 0, 0, 60.0),
    (0, 10, 10, 1, 1, 0, 0, 50.0),
    (0, 10, 10, 1, 1, 0, 0, 50.0),
]
"""Under 100 W the shortest job leaves 40 W that nobody can use; the other two together use all of them."""


def on_four_nodes(rows: list[Row], cap: PowerCap) -> NodeTrace:
    try:
        return trace_of(rows).on(FOUR_NODES, cap)
    except TraceError:  # the cap allows none of these jobs
        assume(False)
        raise


def starts(
    policy: str,
    trace: NodeTrace,
    nodes: Nodes = FOUR_NODES,
    cap: PowerCap = UNCAPPED,
    power: PowerSource | None = None,
) -> list[int]:
    return [int(start_s) for start_s in result_of(policy, trace, nodes, cap, power).start_s]


def result_of(
    policy: str,
    trace: NodeTrace,
    nodes: Nodes = FOUR_NODES,
    cap: PowerCap = UNCAPPED,
    power: PowerSource | None = None,
) -> Result:
    return replay_nodes(trace, choose(policy).on_nodes, nodes, cap, power)


@st.composite
def node_rows(draw: st.DrawFn, most: int = 20) -> list[Row]:
    """Jobs that fit ``FOUR_NODES``; few instants and short times, so that ties are common."""
    rows: list[Row] = []
    for _ in range(draw(st.integers(1, most))):
        run_s = draw(st.integers(1, 12))
        units = draw(st.integers(1, 2))
        kind = draw(st.sampled_from(["plain", "gpu", "mic"]))
        each = draw(st.integers(1, 2))
        rows.append(
            (
                draw(st.integers(0, 30)),
                run_s,
                run_s + draw(st.sampled_from([0, 1, 5, 50])),
                units,
                units * draw(st.integers(1, 16)),
                units * each * (kind == "gpu"),
                units * each * (kind == "mic"),
                float(draw(st.integers(1, 100))),
            )
        )
    return rows


@st.composite
def caps(draw: st.DrawFn) -> PowerCap:
    """A cap that changes up to four times, and at last allows every job of ``node_rows``."""
    times_s = sorted(draw(st.sets(st.integers(0, 60), max_size=4)))
    watts = [float(draw(st.integers(20, 300))) for _ in times_s]
    return PowerCap((*times_s, 61), (*watts, float(draw(st.integers(100, 300)))))
