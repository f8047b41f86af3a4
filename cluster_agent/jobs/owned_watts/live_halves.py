"""Nodes that two jobs share, live: each node has two shares, the halves of its cores, for the policy ``shared``.

Planner and engine are those of replays (``scheduler.plans.pairing``, ``csrc/resources/nodes.c``). Live, a walltime is
wall-clock time, so speeds decide who may share with whom and change no end that is expected: instead a job that may be
slowed to its floor may take as much longer. Of which application a job is says its name; one that is not in the table
of speeds is next to nobody.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from cluster_agent.errors import WrongUseError
from cluster_agent.jobs.job import Job, Partner
from cluster_agent.jobs.job_nodes import SHARES, Node
from cluster_agent.jobs.job_runs import Run
from cluster_agent.jobs.owned_watts.live_counts import Counts
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.unlike_nodes.components import Components
from cluster_agent.scheduler.unlike_nodes.node_jobs import PLACES
from cluster_agent.scheduler.unlike_nodes.shared_nodes import Company, Shared, known_speeds, why
from cluster_agent.scheduler.world import LiveJobs, World
from cluster_agent.sharing.gpu_jobs import EXCLUSIVE, floor_of
from cluster_agent.sharing.pair_table import PairTable, read_pairs
from foundation.shell.plain_text import read_text

if TYPE_CHECKING:
    from cluster_agent.scheduler.plans.pairing import Pairing

LEAST_FLOOR: Final = 0.5
"""Ours: a job gets at most twice its walltime, however slow its user lets it be."""


ONE_SHARE: Final = (1, 0, 0, 0, 0)
"""What a unit takes of a node, which has two shares as cores."""


class LivePairs(NamedTuple):
    """``text``: of the file of the table. ``share_all``: jobs share that do not say so, too."""

    table: PairTable
    text: str
    share_all: bool = False

    def share(self, share: str) -> str:
        """What a job's own word comes to here."""
        return share or ("auto" if self.share_all else "exclusive")


def read_live_pairs(path: str, share_all: bool) -> LivePairs:
    """``WrongUseError`` for a file that is no table of halves of nodes."""
    table = read_pairs(path)
    if table.free is None:
        raise WrongUseError(f"{path}: has no row with the partner free: a live partition shares halves of nodes alone")
    return LivePairs(table, read_text(path), share_all)


class HalfCounts(Counts):
    """``nodes``: all names, in the engine's order."""

    def __init__(self, live: LiveJobs, composition: Composition, pairs: LivePairs, nodes: Sequence[str]) -> None:
        rows = len(live.jobs)
        self._pairs, self._names = pairs, list(nodes)
        self._at = {name: place for place, name in enumerate(nodes)}
        planner: Pairing = composition.plan  # type: ignore[assignment]
        self._floor = planner.floor
        variants = [*map(str, pairs.table.variants), ""]
        self._kinds = {name: kind for kind, name in enumerate(variants)}
        self._shared = Shared(
            tuple(variants),
            np.full(rows, len(variants) - 1, np.int32),
            None,
            known_speeds(pairs.table, len(variants)),
            np.full(rows, EXCLUSIVE),
            are_halves=True,
        )
        jobs = replace(
            live.jobs,
            units=np.zeros(rows, np.int64),
            need=np.zeros((rows, PLACES + 1), np.int64),
            watts=np.zeros(rows, np.float64),
            knows_watts=np.ones(rows, np.bool_),
            max_wait_s=np.zeros(rows, np.int64),
            components=Components.growing(rows, PLACES + 1),
        )
        live = msgspec.structs.replace(live, jobs=jobs)
        super().__init__(World(live, nodes=self._shared.nodes(len(nodes)), shared=self._shared), composition)

    def request_s(self, job: Job) -> int:
        """Longer by what a partner may cost it."""
        floor = self.floor(job)
        if floor > 1 or self._kind(job) == len(self._kinds) - 1:
            return job.spec.walltime_s
        floor = self._floor if math.isnan(floor) else floor
        return math.ceil(job.spec.walltime_s / max(floor, LEAST_FLOOR))

    def floor(self, job: Job) -> float:
        """The least speed that it agrees to; NaN: the policy's, above 1: it shares with nobody."""
        return floor_of(f"job {job.id}", self._pairs.share(job.spec.share))

    def add(self, row: int, job: Job) -> None:
        """A whole node is two shares."""
        self._fill(row, job.spec.shares, self._kind(job), self.floor(job))

    def adopted(self, row: int, job: Job, now_s: int) -> dict[str, Any]:
        """Where the job is."""
        counts = [1 if name in job.halves else SHARES for name in job.nodes]
        self._fill(row, sum(counts), self._kind(job), self.floor(job))
        return {"nodes": [self._at[name] for name in job.nodes], "counts": counts}

    def occupy(self, row: int, names: Sequence[str], shares: Sequence[int] = ()) -> dict[str, Any]:
        """Nobody is next to it."""
        counts = list(shares) or [SHARES] * len(names)
        self._fill(row, sum(counts), len(self._kinds) - 1, EXCLUSIVE)
        return {"nodes": [self._at[name] for name in names], "counts": counts}

    def nodes_for(self, scheduler: NativeScheduler, row: int, free: Sequence[Node], width: int) -> Sequence[Node]:
        """Where the planner has placed it, or none: other nodes would have other partners."""
        there = {node.name: node for node in free}
        placed = scheduler.placed(row)
        wanted = [
            (there.get(self._names[at]), count)
            for at, count in zip(placed.node.tolist(), placed.count.tolist(), strict=True)
        ]
        found = [node for node, count in wanted if node is not None and node.free_shares >= count]
        return found if len(found) == len(wanted) else []

    def counts_on(self, scheduler: NativeScheduler, row: int) -> Mapping[str, int]:
        """As placed."""
        placed = scheduler.placed(row)
        return {self._names[at]: count for at, count in zip(placed.node.tolist(), placed.count.tolist(), strict=True)}

    def met(self, one: Run, others: Sequence[Run]) -> None:
        """The job has started, next to these."""
        one.job.may_take_s = self.request_s(one.job)
        rows = {each.row: f"job {each.job.id}" for each in (one, *others)}
        is_whole = not one.job.halves
        one.job.placed_why = why(self._shared, one.row, Company([each.row for each in others], is_whole), rows)
        for other in others:
            other.job.placed_why = why(self._shared, other.row, Company([one.row], False), rows)
            for job, partner in ((one, other), (other, one)):
                speeds = self._known(job.row, partner.row), self._known(partner.row, job.row)
                job.job.partners.append(Partner(partner.job.id, *speeds))

    def _known(self, row: int, partner: int) -> float | None:
        speed = float(self._shared.known[self._shared.kind[row], self._shared.kind[partner]])
        return None if math.isnan(speed) else speed

    def _kind(self, job: Job) -> int:
        return self._kinds.get(job.title, len(self._kinds) - 1)

    def _fill(self, row: int, units: int, kind: int, floor: float) -> None:
        assert self.engine.unlike is not None
        self.engine.unlike.add(row, [(units, ONE_SHARE)], 0.0)
        self._shared.kind[row], self._shared.floor[row] = kind, floor


def application(pairs: LivePairs, job: Job) -> tuple[str, str]:
    """Of the job, with its batch size, as the table has it; of one that is not there, a name that is not there."""
    found: Mapping[str, tuple[str, str]] = {str(one): one for one in pairs.table.variants}
    stranger = "x" + max((one.application for one in pairs.table.variants), key=len)
    return found.get(job.title, (stranger, ""))
