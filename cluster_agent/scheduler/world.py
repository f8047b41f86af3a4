"""What a policy schedules: jobs, a machine, caps, ways to run the jobs, a predictor. One type for every kind of
resources, in replays and on a live partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import msgspec
from msgspec.structs import replace

from cluster_agent.scheduler.job_columns import Int64s, Jobs
from cluster_agent.scheduler.policy_phases import (
    A_LOG,
    A_TRACE_WITH_NODES,
    A_WARM_START,
    CONFIGURATIONS,
    ON_PROCESSORS,
    PAST,
    REPLAY,
    Declared,
)
from cluster_agent.scheduler.power_cap import UNCAPPED, PowerCap

if TYPE_CHECKING:  # a short replay is as long as its imports
    from cluster_agent.replay.closed_loop import ClosedLoop
    from cluster_agent.scheduler.configurations.table import ScaledRows
    from cluster_agent.scheduler.native.governor import Watts
    from cluster_agent.scheduler.plans.looks import Look
    from cluster_agent.scheduler.plans.planning import Outcome
    from cluster_agent.scheduler.recorded import Recorded
    from cluster_agent.scheduler.switches.failures import Failures
    from cluster_agent.scheduler.switches.limits import Limits
    from cluster_agent.scheduler.unlike_nodes.node_aware import Placed, PowerSource
    from cluster_agent.scheduler.unlike_nodes.node_jobs import Nodes
    from cluster_agent.scheduler.unlike_nodes.shared_nodes import Shared
    from cluster_agent.workloads.job_log import Workload
    from cluster_agent.workloads.moldable_trace import Tables
    from cluster_agent.workloads.node_trace import NodeTrace

Kind: TypeAlias = Literal["processors", "nodes", "configurations"]
"""Of resources: a number of processors; nodes that differ; nodes on which a job runs in one of its configurations."""


class Ways(msgspec.Struct, frozen=True):
    """The configurations of each job, in order of time. ``cores``: of a node."""

    rows: ScaledRows  # as the policy knows them
    truth: ScaledRows | None = None  # as they are; None: the policy knows the truth
    cores: int = 1
    tables: Tables | None = None
    """Where they come from."""
    kinds: int | None = None
    """Live: the most kinds of jobs that there can be, of one table and as many requested nodes."""

    def only(self, rows: Sequence[int]) -> Ways:
        """Those of the jobs ``rows``."""
        return msgspec.structs.replace(self, rows=self.rows.only(rows), truth=self.truth and self.truth.only(rows))


class LiveJobs(msgspec.Struct, frozen=True):
    """The jobs of a live partition: a table whose rows are filled in as they come."""

    jobs: Jobs
    processors: int  # nodes
    users: Sequence[int]  # of the table, by number
    say: Callable[[str], None]  # where alarms go


class World(msgspec.Struct, frozen=True):
    """The inputs of a replay, or of a live partition."""

    source: Workload | NodeTrace | LiveJobs
    """The jobs, and where they come from."""
    watts: Watts | None = None
    """The machine of a log of processors, if it has watts."""
    nodes: Nodes | None = None
    """The machine of a trace with nodes."""
    caps: PowerCap = UNCAPPED
    ways: Ways | None = None
    """Then the trace's processors are nodes."""
    new_predictor: Callable[[NodeTrace, Nodes], PowerSource] | None = None
    """Of a job's power, for policies that admit by it on nodes; ``watts`` has that of processors."""
    limits: Limits | None = None
    """Partitions, memory, and what users and queues may run at once."""
    failures: Failures | None = None
    """Of nodes, in a replay on processors."""
    loop: ClosedLoop | None = None
    """Submissions follow from the schedule."""
    recorded: Recorded | None = None
    """A warm start: what has happened before."""
    on: Mapping[int, Placed] | None = None
    """On which nodes its jobs were started."""
    plan: Sequence[Outcome] | None = None
    """What a planner decided in the same replay, to be repeated without it."""
    looks: Sequence[Look] | None = None
    """What a portfolio chose in the same replay, to be repeated without looking."""
    shared: Shared | None = None
    """Nodes of two shares: how fast the jobs run next to each other."""

    @property
    def kind(self) -> Kind:
        """Of its resources."""
        return "nodes" if self.nodes is not None else "configurations" if self.ways is not None else "processors"

    @property
    def jobs(self) -> Jobs:
        """Of the trace, or of the partition."""
        return self.source.jobs

    @property
    def trace(self) -> Workload | NodeTrace:
        """Where the jobs of a replay come from."""
        assert not isinstance(self.source, LiveJobs)
        return self.source

    @property
    def on_processors(self) -> Workload | LiveJobs:
        """The jobs, where the machine is a number of processors, or of nodes that are alike."""
        assert self.nodes is None
        return cast("Workload | LiveJobs", self.source)

    @property
    def workload(self) -> Workload:
        """The trace, where it is a log of processors."""
        found = self.on_processors
        assert not isinstance(found, LiveJobs)
        return found

    @property
    def node_trace(self) -> NodeTrace:
        """The trace, where it has nodes."""
        assert self.nodes is not None
        return cast("NodeTrace", self.source)

    @property
    def declared(self) -> list[Declared]:
        """What its resources have not, and what its other parts need (``policy_phases.clash``)."""
        on_processors = [A_LOG, *([] if self.watts is not None else [ON_PROCESSORS])]
        needs = [
            (Declared("a world with configurations", (CONFIGURATIONS,)), self.ways),
            (Declared("a closed loop", (REPLAY,)), self.loop),
            (Declared("a world with limits or partitions", (REPLAY,)), self.limits),
            (Declared("a world whose nodes fail", (REPLAY,)), self.failures),
            (Declared("a world with best-effort jobs", (REPLAY,)), self.jobs.best_effort),
            (A_WARM_START, self.recorded),
            (Declared("a prediction of watts", (PAST,)), self.new_predictor),
        ]
        of_kind = {"processors": on_processors, "nodes": [A_TRACE_WITH_NODES]}.get(self.kind, [])
        return [*(one for one, part in needs if part is not None), *of_kind]

    @property
    def marks(self) -> dict[str, str | None]:
        """The SHA-256 of the files that failures, speeds of pairs and reservations are in; None: they are in none."""
        return {
            "failures": None if self.failures is None else self.failures.sha256 or None,
            "pairs": None if self.shared is None else self.shared.sha256,
            "reservations": None if self.limits is None else self.limits.reserved_sha256 or None,
        }

    @property
    def say(self) -> Callable[[str], None] | None:
        """Live: where alarms go."""
        return self.source.say if isinstance(self.source, LiveJobs) else None

    def only(self, rows: Int64s) -> World:
        """The jobs ``rows``, in that order."""
        ways = None if self.ways is None else self.ways.only(rows.tolist())
        limits = None if self.limits is None else self.limits.only(rows)
        shared = None if self.shared is None else self.shared.only(rows)
        return msgspec.structs.replace(self, source=self.trace.only(rows), ways=ways, limits=limits, shared=shared)

    def with_jobs(self, jobs: Jobs) -> World:
        """With these in place of the trace's."""
        return msgspec.structs.replace(self, source=replace(self.trace, jobs=jobs))
