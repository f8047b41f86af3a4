"""Jobs that may share nodes, two on each: what they are, and how fast each runs next to whom.

A node has two *shares*: the halves of its cores (half the cores of every die), or the halves of a GPU's time. They are
the only resource of such nodes, counted as two cores. A job's speed is a share of its speed alone on whole nodes, and
above 1 where half a node each is faster than whole nodes. The engine follows the true speeds
(``csrc/resources/sharing.c``), and a policy decides by those that are known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from cluster_agent.scheduler.job_columns import Float64s, Int32s, Int64s
from cluster_agent.scheduler.native.native_tables import pointer
from cluster_agent.scheduler.unlike_nodes.node_aware import Placed
from cluster_agent.scheduler.unlike_nodes.node_jobs import Nodes

if TYPE_CHECKING:
    from cluster_agent.sharing.pair_table import PairTable

SHARES: Final = 2
"""Of a node."""

ALONE: Final = 1.0
"""The speed of a job on a card that nobody shares."""

SLOWEST: Final = 0.01
"""Ours: in a replay a pair that does not run together, which no policy forms, goes on at this speed."""


class Shared(msgspec.Struct, frozen=True):
    """``name``: of each kind of jobs. ``kind``: of each job, by its place there. ``speed[kind, partner]``: the true
    speeds, in the last column next to nobody; None: run times are what they are whoever is near, as those of jobs that
    have run live. ``known``: those that the policy knows, NaN: it does not; 0: the two
    cannot run together. ``floor``: of each job, the least speed that it agrees to; NaN: as the policy says, above 1:
    it shares with nobody. ``are_halves``: a share is half a node, so that a job on shares is on twice as many nodes;
    else on as many as alone."""

    name: tuple[str, ...]
    kind: Int32s
    speed: Float64s | None
    known: Float64s
    floor: Float64s
    are_halves: bool
    sha256: str = ""
    """Of the table of speeds."""

    def only(self, rows: Int64s) -> Shared:
        """The jobs ``rows``, in that order."""
        return replace(self, kind=self.kind[rows], floor=self.floor[rows])

    def nodes(self, count: int) -> Nodes:
        """So many, each with two shares."""
        return Nodes(np.tile(np.array([SHARES, 0, 0, 0], np.int64), (count, 1)))

    def columns(self) -> dict[str, Any]:
        """Those of ``node_model_t``; none where speeds are not followed."""
        if self.speed is None:
            return {}
        speed = np.ascontiguousarray(np.maximum(np.nan_to_num(self.speed), SLOWEST))
        kind = np.ascontiguousarray(self.kind, np.int32)
        return {"n_kinds": len(self.name), "speed": pointer("double", speed), "kind": pointer("int32_t", kind)}


class Company(NamedTuple):
    """``partners``: the jobs that a job shared a node with, in the order in which they came to it. ``is_whole``: it had
    all its nodes to itself, both shares of each."""

    partners: list[int]
    is_whole: bool


def companies(start_s: Int64s, end_s: Int64s, placed: Sequence[Placed]) -> list[Company]:
    """Of each job; one that was never started has no nodes."""
    on = defaultdict[int, list[int]](list)
    found = [Company([], bool((one.count == SHARES).all())) for one in placed]
    for job in np.argsort(start_s, kind="stable").tolist():
        for node in placed[job].node.tolist():
            for other in on[node]:
                if end_s[other] > start_s[job] and other not in found[job].partners:
                    found[job].partners.append(other)
                    found[other].partners.append(job)
            on[node] = [other for other in on[node] if end_s[other] > start_s[job]] + [job]
    return found


def known_speeds(table: PairTable, kinds: int) -> Float64s:
    """``Shared.known`` of the variants of a table, and after them of kinds that were never measured."""
    found, measured = np.full((kinds, kinds + 1), np.nan), len(table.variants)
    found[:measured, :measured] = table.speed
    found[:measured, -1] = ALONE if table.free is None else table.free
    return found


def why(shared: Shared, job: int, company: Company, names: Mapping[int, str] | Sequence[str]) -> str:
    """In words, why the job has these partners, or none."""

    def known(one: int, partner: int) -> str:
        return f"{shared.known[shared.kind[one], shared.kind[partner]]:.2f}"

    kind, partners = shared.kind[job], company.partners
    if partners:
        most = ", ".join(f"{names[other]} ({known(job, other)}, {known(other, job)})" for other in partners)
        return f"next to {most}; speeds as known, its own and the partner's"
    if shared.floor[job] > 1:
        return "alone: exclusive"
    if np.isnan(shared.known[kind]).all():
        return f"alone: {shared.name[kind] or 'its application'} was never measured"
    if company.is_whole or not shared.are_halves:
        return "alone: when it started, no other job kept both floors and saved time, or the rule forms no pairs"
    return "on half nodes, and nobody came to the other halves"
