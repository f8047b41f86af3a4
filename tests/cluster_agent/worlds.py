"""Worlds of a few jobs, and their replays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace as with_fields

from cluster_agent.cap_steps import Cap
from cluster_agent.replay.closed_loop import ClosedLoop
from cluster_agent.replay.world_run import Result, impossible, run
from cluster_agent.scheduler.configurations.table import Configuration, Rows, ScaledRows
from cluster_agent.scheduler.job_columns import Int64s, Jobs
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.plans.planning import Outcome
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_cap import PowerCap
from cluster_agent.scheduler.recorded import Recorded
from cluster_agent.scheduler.unlike_nodes.node_aware import PowerSource
from cluster_agent.scheduler.unlike_nodes.node_jobs import Nodes
from cluster_agent.scheduler.world import Ways, World
from cluster_agent.workloads.job_log import Workload
from cluster_agent.workloads.node_trace import NodeTrace
from cluster_agent.workloads.swf import NUMBER, USER, Log
from cluster_agent.workloads.warm_nodes import NodeStart


def workload_of(jobs: Jobs, processors: int) -> Workload:
    """A log of these jobs."""
    columns = np.full((18, len(jobs)), -1, np.int64)
    columns[USER], columns[NUMBER] = jobs.user, jobs.number
    log = Log("rows", "", {}, columns, np.arange(len(jobs)), ())
    return Workload(log, processors, jobs, np.arange(len(jobs)), True, np.zeros(len(jobs), np.bool_), ())


def replay(
    workload: Workload,
    composition: Composition,
    watts: Watts | None = None,
    caps: Sequence[Cap] = (),
    loop: ClosedLoop | None = None,
    recorded: Recorded | None = None,
    at_s: Sequence[int] = (),
) -> Result:
    """On processors."""
    return run(World(workload, watts, caps=PowerCap.of(caps), loop=loop, recorded=recorded), composition, at_s=at_s)


def replay_nodes(
    trace: NodeTrace,
    composition: Composition,
    nodes: Nodes,
    cap: PowerCap,
    power: PowerSource | None = None,
    recorded: Sequence[Outcome] | None = None,
    loop: ClosedLoop | None = None,
    at_s: Sequence[int] = (),
    start: NodeStart | None = None,
) -> Result:
    """On nodes that differ. ``power``: used once."""
    world = World(trace, nodes=nodes, caps=cap, loop=loop, plan=recorded)
    world = with_fields(world, new_predictor=None if power is None else lambda trace, nodes: power)
    if start is not None:
        world = with_fields(world, recorded=start.recorded, on=start.on)
    return run(world, composition, at_s=at_s)


def with_ways(jobs: Jobs, rows: Sequence[Rows], nodes: int, cap: PowerCap) -> World:
    """Jobs with configurations."""
    return World(workload_of(jobs, nodes), caps=cap, ways=Ways(ScaledRows.of(rows)))


class Moldable(NamedTuple):
    """What came of all jobs, those too that fit in none of their configurations."""

    jobs: Jobs
    result: Result
    start_s: Int64s  # -1: impossible
    end_s: Int64s
    chosen: tuple[Configuration | None, ...]
    impossible: tuple[int, ...]


def replay_moldable(composition: Composition, world: World) -> Moldable:
    """Of the jobs that are possible."""
    jobs = world.jobs
    never = impossible(world, composition)
    rows = np.setdiff1d(np.arange(len(jobs)), never)
    found = run(world.only(rows), composition)
    start_s, end_s = np.full(len(jobs), -1, np.int64), np.full(len(jobs), -1, np.int64)
    start_s[rows], end_s[rows] = found.start_s, found.start_s + found.run_s
    chosen: list[Configuration | None] = [None] * len(jobs)
    for row, one in zip(rows.tolist(), found.chosen, strict=True):
        chosen[row] = one
    return Moldable(jobs, found, start_s, end_s, tuple(chosen), tuple(never.tolist()))
