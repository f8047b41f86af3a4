"""A job log for DARDIS: its jobs as units on nodes, their windows, the desired profile, and a schedule as a result.

A job of w processors is w / cores-of-a-node units, each on a node of its own, with as few cores more as make the units
equal. Its window is the mean wait that jobs of its width have under EASY in the same world (Bridi §5 takes the mean of
the job's partition). The schedule is given to the replay's engine as a record of starts, which checks that every job
has room where and when it started, and measures it like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from cluster_agent.cap_steps import Cap
from cluster_agent.cluster import Machine, load_machine
from cluster_agent.dispatch.fitting_index import Desired, Need, Profile
from cluster_agent.dispatch.messages import Grant, Rules
from cluster_agent.dispatch.node_state import NodeState
from cluster_agent.dispatch.simulation import Faults, Job, Links, Outcome, Simulation
from cluster_agent.dispatch.task_manager import Setup
from cluster_agent.errors import WrongUseError
from cluster_agent.library.fitting import Say, fitted
from cluster_agent.library.given import World as Given
from cluster_agent.replay.world_run import Result, run
from cluster_agent.scheduler.job_columns import Float64s, Int64s
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.recorded import Recorded, Start
from cluster_agent.scheduler.unlike_nodes.node_aware import Placed
from cluster_agent.scheduler.world import World
from cluster_agent.workloads.job_log import prepare
from cluster_agent.workloads.swf import read_swf

DAY_S: Final = 86400
SLOT_S: Final = 60
FOR_EVER_US: Final = 1 << 61

SETUPS: Final = {
    "throughput": Setup("first", "earliest", backfills=True),
    "throughput-within": Setup("first", "earliest", keeps=True, backfills=True),
    "balance": Setup("exponential", "best"),
    "profile": Setup("uniform", "random"),
}
"""Bridi's three; ``throughput-within`` is ours: it keeps the profile as the rule does, at the moment of a start."""


class Cut(msgspec.Struct, frozen=True):
    """Which jobs of a log, from one day on: one of ``every``; arrivals follow so many times faster."""

    from_day: int = 0
    days: int = 22
    compress: int = 1
    every: int = 1


class DispatchWorld(msgspec.Struct, frozen=True):
    """``world``: the same for every policy. ``grant_mw``: what each node may draw for jobs. ``desired``: how many
    nodes are desired from which second on, the first of them."""

    world: World
    machine: Machine
    jobs: tuple[Job, ...]
    window_s: Int64s
    grant_mw: tuple[int, ...]
    desired: tuple[tuple[int, int], ...]

    def profile_of(self, node: int) -> Profile:
        """All that the grant allows while the node is desired, else nothing."""
        full, none = Need(self.machine.node.cores, self.grant_mw[node]), Need(0, 0)
        steps = [Desired(-1, full if node < self.desired[0][1] else none)]
        for from_s, nodes in self.desired[1:]:
            most = full if node < nodes else none
            if most != steps[-1].most:
                steps.append(Desired(-(-from_s // SLOT_S), most))
        return Profile(steps)

    def nodes(self, rules: Rules) -> list[NodeState]:
        """Before the first job."""
        cores = self.machine.node.cores
        return [
            NodeState(node, Need(cores, grant), self.profile_of(node), rules, grant, Grant(grant, FOR_EVER_US))
            for node, grant in enumerate(self.grant_mw)
        ]


class Schedule(msgspec.Struct, frozen=True):
    """When each job was started, -1: never, and on which nodes."""

    start_s: Int64s
    nodes: list[tuple[int, ...]]


def read_world(
    log: str, machine: str, part: Cut, say: Say, profile: Sequence[Cap] = (), cap_w: float | None = None
) -> DispatchWorld:
    """``WrongUseError`` for a machine or a log that cannot be used."""
    nodes = load_machine(machine)
    if len(nodes.groups) != 1 or not nodes.has_watts:
        raise WrongUseError(f"--machine {machine}: one kind of nodes with watts is needed, such as curie-fat")
    workload = prepare(read_swf(log), nodes.processors)
    for finding in workload.findings:
        say(f"{log}: {finding}")
    first_s = part.from_day * DAY_S
    jobs, last_s = workload.jobs, first_s + part.days * DAY_S
    rows = np.flatnonzero((jobs.submit_s >= first_s) & (jobs.submit_s < last_s))
    if not len(rows):
        last = int(jobs.submit_s[-1]) // DAY_S
        raise WrongUseError(f"{log}: no job on days {part.from_day} to {part.from_day + part.days - 1}; see day {last}")
    jobs = jobs.only(rows[:: part.every])
    return world_of(
        {"submit_s": (jobs.submit_s - first_s) // part.compress, "run_s": jobs.run_s, "request_s": jobs.request_s},
        *(jobs.width.astype(np.int64), nodes, say, profile, cap_w),
    )


def world_of(
    times: dict[str, Int64s],
    width: Int64s,
    machine: Machine,
    say: Say,
    profile: Sequence[Cap] = (),
    cap_w: float | None = None,
) -> DispatchWorld:
    """Of columns of jobs."""
    node = machine.node
    units = -(-width // node.cores)
    cores = -(-width // units)
    mw_of_core = round((node.busy_w[0] - node.idle_w) * 1000) // node.cores
    watts = units * cores * mw_of_core / 1000
    given = Given({**times, "units": units, "cores": units * cores, "watts": watts}, machine=machine)
    world = fitted(given, choose("easy-capped"), "nodes", say)
    window_s = _windows(world)
    jobs = world.jobs
    table = zip(
        jobs.submit_s.tolist(),
        jobs.run_s.tolist(),
        jobs.units.tolist(),
        jobs.need[:, 0].tolist(),
        jobs.request_s.tolist(),
        window_s.tolist(),
        strict=True,
    )
    listed = tuple(
        Job(
            submit * 10**6,
            run_s * 10**6,
            n,
            Need(need, need * mw_of_core),
            -(-request // SLOT_S),
            max(-(-wait // SLOT_S), 1),
        )
        for submit, run_s, n, need, request, wait in table
    )
    grants = _grants(machine, cap_w, mw_of_core)
    desired = _desired(machine, profile)
    return DispatchWorld(world, machine, listed, window_s, grants, desired)


def _windows(world: World) -> Int64s:
    """Mean waits by width under EASY; widths up to twice as large are one class."""
    result = run(world, choose("easy-capped").on("nodes"))
    width = np.floor(np.log2(world.jobs.units)).astype(np.int64)
    wait_s = result.start_s - world.jobs.submit_s
    mean = np.bincount(width, wait_s) / np.maximum(np.bincount(width), 1)
    return np.ceil(mean[width]).astype(np.int64)


def _grants(machine: Machine, cap_w: float | None, mw_of_core: int) -> tuple[int, ...]:
    """As many nodes as the cap feeds get all that they can use, the next one the rest: a node with half of it could run
    no unit of all its cores. Watts of idle nodes come first."""
    most, nodes = mw_of_core * machine.node.cores, machine.nodes
    if cap_w is None:
        return (most,) * nodes
    left = round(1000 * (cap_w - machine.idle_w))
    if left < mw_of_core:
        raise WrongUseError(f"--cap {cap_w:g}: the idle machine draws {machine.idle_w:.0f} W: no core can be busy")
    return tuple(min(max(left - node * most, 0), most) for node in range(nodes))


def _desired(machine: Machine, profile: Sequence[Cap]) -> tuple[tuple[int, int], ...]:
    if not profile:
        return ((0, machine.nodes),)
    busy_w = machine.node.busy_w[0]
    steps = [(cap.from_s, min(int(cap.watts / busy_w), machine.nodes)) for cap in profile]
    if steps[0][0] > 0:
        steps.insert(0, (0, machine.nodes))
    return tuple(steps)


def dispatched(
    given: DispatchWorld, setup: Setup, seed: int, progress: Any = lambda ended: None, links: Links | None = None
) -> tuple[Schedule, Outcome]:
    """All jobs by DARDIS, without faults unless there are ``links``."""
    rules = Rules() if links is None else Rules(ahead_us=2_000_000)
    simulation = Simulation(given.nodes(rules), given.jobs, setup, rules, links or Links(), Faults(), seed)
    outcome = simulation.run(progress)
    start_s = np.array(outcome.start_us) // 10**6
    return Schedule(start_s, outcome.nodes), outcome


def result_of(given: DispatchWorld, schedule: Schedule) -> Result:
    """By the replay's engine; ``StartsError`` if a job has no room where it was started."""
    started = np.flatnonzero(schedule.start_s >= 0)
    world, start_s = given.world.only(started), schedule.start_s[started]
    starts = sorted(Start(at_s, job) for job, at_s in enumerate(start_s.tolist()))
    on = {
        job: Placed(np.array(sorted(schedule.nodes[row])), np.ones(len(schedule.nodes[row]), np.int64))
        for job, row in enumerate(started.tolist())
    }
    recorded = Recorded(starts, int(start_s.max()) + 1)
    return run(replace(world, recorded=recorded, on=on), choose("easy-capped").on("nodes"))


def placed_by(given: DispatchWorld, policy: str) -> Schedule:
    """The same by a policy of the replay. Nodes are those of the engine at each start."""
    result = run(given.world, choose(policy).on("nodes"))
    return Schedule(result.start_s, [])


# --- what the thesis measures in addition


class Lateness(msgspec.Struct, frozen=True):
    """Over all jobs that were started; ``over_core_h`` and ``dissimilarity`` need to know the nodes."""

    makespan_s: int
    wait_s: int  # of all jobs together
    tardiness_s: int
    late: int
    over_core_h: float
    dissimilarity: float


def lateness(given: DispatchWorld, schedule: Schedule) -> Lateness:
    """Waits beyond the window, use above the desired profile, and the distance of their shapes (Bridi §5)."""
    jobs, has = given.world.jobs, schedule.start_s >= 0
    wait_s = np.where(has, schedule.start_s - jobs.submit_s, 0)
    late_s = np.maximum(wait_s - given.window_s, 0)
    end_s = schedule.start_s + jobs.run_s
    makespan_s = int(end_s[has].max() - jobs.submit_s.min())
    over, unlike = (np.nan, np.nan)
    if schedule.nodes:
        over = _over(given, schedule) / 3600
        unlike = _dissimilarity(given, schedule, int(end_s[has].max()))
    return Lateness(makespan_s, int(wait_s.sum()), int(late_s.sum()), int((late_s > 0).sum()), over, unlike)


def _desired_at(given: DispatchWorld, time_s: npt.NDArray[Any]) -> Int64s:
    from_s, nodes = map(np.array, zip(*given.desired, strict=True))
    found: Int64s = nodes[np.maximum(np.searchsorted(from_s, time_s, "right") - 1, 0)]
    return found


def _over(given: DispatchWorld, schedule: Schedule) -> float:
    """Core-seconds on nodes that are not desired then."""
    from_s, nodes = map(np.array, zip(*given.desired, strict=True))
    jobs, over = given.world.jobs, 0.0
    for job, used in enumerate(schedule.nodes):
        if schedule.start_s[job] < 0:
            continue
        start, end = int(schedule.start_s[job]), int(schedule.start_s[job] + jobs.run_s[job])
        edges = np.concatenate([[start], from_s[(from_s > start) & (from_s < end)], [end]])
        wanted = nodes[np.maximum(np.searchsorted(from_s, edges[:-1], "right") - 1, 0)]
        count = len(used) - np.searchsorted(np.sort(used), wanted)
        over += float((count * np.diff(edges)).sum()) * int(jobs.need[job, 0])
    return over


def _dissimilarity(given: DispatchWorld, schedule: Schedule, end_s: int) -> float:
    jobs, slots = given.world.jobs, np.arange(0, end_s, SLOT_S)
    start, has = schedule.start_s // SLOT_S, schedule.start_s >= 0
    cores = jobs.need[:, 0] * jobs.units
    last = (schedule.start_s + jobs.run_s) // SLOT_S
    size = len(slots) + 2
    used: Float64s = np.cumsum(np.bincount(start[has], cores[has], size) - np.bincount(last[has], cores[has], size))[
        : len(slots)
    ]
    wanted = _desired_at(given, slots) * float(given.machine.node.cores)
    busy, auto = used > 0, float((wanted**2).sum())
    if not busy.any() or not auto:  # nothing has a shape
        return float("nan")
    psi = (wanted[busy] / used[busy]).min()
    return (auto - float((wanted * psi * used).sum())) / auto
