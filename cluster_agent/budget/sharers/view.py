"""What a sharer gets, nodes and jobs as columns, and what it returns: a cap for each node and the reason for it.

Powers are whole mW, of whole nodes. Columns over n nodes are in the order of ``View.nodes``, columns over m jobs in
the order of their starts. A node may be in several jobs; a sharer has one of them own it (``View.owners``).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from cluster_agent.budget.sharers.rates import Learned
from cluster_agent.budget.sharers.speed import SpeedModel
from foundation.shell.errors import nearest

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]


class Tag(enum.IntEnum):
    """How much a job loses when its nodes get fewer watts. Members are in the order of capping: least loss first."""

    MEMORY = 0
    MIXED = 1
    COMPUTE = 2


UNTAGGED: Final = -1


def tag_of(word: str) -> Tag:
    """A tag by its name, in any case; ``ValueError`` with a one-line message for another name."""
    try:
        return Tag[word.upper()]
    except KeyError:
        known = [tag.name for tag in Tag]
        raise ValueError(f"no tag is called {word!r}{nearest(word.upper(), known)}") from None


@dataclass(frozen=True, slots=True)
class Job:
    """A running job. ``tag_source``: where the tag comes from. ``model``: of this job itself, if it has one, not of its
    tag. ``learned``: how far its own rate has shown the model to be off (``rates.Rates``). ``full_power``: whether its
    nodes get their TDP before others get more than their MOP."""

    name: str
    nodes: Sequence[str]
    tag: Tag | None = None
    tag_source: str = ""
    model: SpeedModel | None = None
    learned: Learned | None = None
    full_power: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """The nodes that a cap can be planned for, and what runs on them. ``member[first[j]:first[j + 1]]`` are the nodes
    of job j.

    ``need_mw``: what a node draws in its present job when it is not cap-bound; -1: not known (``needs.Needs``).
    ``loss``: a job's lost time over that of its model. ``factor``: what a node draws over what the median node of its
    model draws for the same work, as calibration has measured it; 1 where that is not known.
    """

    nodes: Sequence[str]
    tdp_mw: Ints
    mop_mw: Ints
    need_mw: Ints
    jobs: Sequence[Job]
    tag: Ints
    first: Ints
    member: Ints
    loss: Floats
    factor: Floats

    @classmethod
    def of(
        cls,
        nodes: Sequence[str],
        tdp_mw: Ints,
        mop_mw: Ints,
        jobs: Iterable[Job],
        need_mw: Mapping[str, int] | None = None,
        factors: Mapping[str, float] | None = None,
    ) -> View:
        """``jobs`` in the order of their starts; nodes of jobs that are not in ``nodes`` are ignored."""
        index = dict(zip(nodes, range(len(nodes)), strict=True))
        running = tuple(jobs)
        found = np.array(list(map(index.get, chain.from_iterable(job.nodes for job in running), repeat(-1))), np.int64)
        n_nodes = np.array([len(job.nodes) for job in running], np.int64)
        job_of = np.repeat(np.arange(len(running)), n_nodes)[found >= 0]
        first = np.concatenate(([0], np.cumsum(np.bincount(job_of, minlength=len(running)))))
        member = found[found >= 0]
        need = list(map(need_mw.get, nodes, repeat(-1))) if need_mw else np.full(len(nodes), -1)
        tag = [UNTAGGED if job.tag is None else int(job.tag) for job in running]
        columns = [np.array(column, np.int64) for column in (tdp_mw, mop_mw, need, tag, first, member)]
        loss = np.array([1.0 if job.learned is None else job.learned.loss for job in running])
        factor = np.array(list(map(factors.get, nodes, repeat(1.0))) if factors else np.ones(len(nodes)), np.float64)
        for column in (*columns, loss, factor):
            column.flags.writeable = False
        tdp, mop, needs, tags, firsts, members = columns
        return cls(nodes, tdp, mop, needs, running, tags, firsts, members, loss, factor)

    def at_full_power(self, available_mw: int) -> tuple[View, Ints]:
        """This view in which nodes of jobs at ``full_power`` have no cap below their TDP, and which nodes these are.
        A node for which the watts do not suffice, older jobs first, is left as it is."""
        wanted = [job for job, one in enumerate(self.jobs) if one.full_power]
        if not wanted:
            return self, np.zeros(0, np.int64)
        mop_mw, raised = self.mop_mw.copy(), []
        spare_mw = available_mw - int(mop_mw.sum())
        for at in np.concatenate([self.member[self.first[job] : self.first[job + 1]] for job in wanted]).tolist():
            more_mw = int(self.tdp_mw[at] - mop_mw[at])
            if 0 <= more_mw <= spare_mw:
                mop_mw[at] += more_mw
                spare_mw -= more_mw
                raised.append(at)
        return replace(self, mop_mw=mop_mw), np.array(raised, np.int64)

    def owners(self, tag: Ints) -> Ints:
        """Per node the job whose cap it gets, -1 if it is idle: the job with the most sensitive tag, of equal ones the
        oldest. ``tag``: of each job, none untagged."""
        job = np.repeat(np.arange(len(self.jobs)), np.diff(self.first))
        by_tag = np.lexsort((-job, tag[job]))
        owner = np.full(len(self.nodes), -1, np.int64)
        owner[self.member[by_tag]] = job[by_tag]  # where a node is in several jobs, the last write stays
        return owner


class Parts:
    """Views of some of the nodes of ``view``, each with the jobs that run there: O(its nodes and their jobs)."""

    def __init__(self, view: View) -> None:
        self._view = view
        job_of = np.repeat(np.arange(len(view.jobs)), np.diff(view.first))
        by_node = np.argsort(view.member, kind="stable")
        self._node, self._job = view.member[by_node], job_of[by_node]

    def of(self, at: Ints) -> View:
        """``at``: the positions of the nodes in the view, ascending."""
        view = self._view
        begin, end = np.searchsorted(self._node, at), np.searchsorted(self._node, at, "right")
        n = end - begin
        entries = np.repeat(begin - np.cumsum(n) + n, n) + np.arange(int(n.sum()))
        by_job = np.argsort(self._job[entries], kind="stable")
        member = np.repeat(np.arange(len(at)), n)[by_job]
        jobs, first = np.unique(self._job[entries][by_job], return_index=True)
        return View(
            [view.nodes[place] for place in at.tolist()], view.tdp_mw[at], view.mop_mw[at], view.need_mw[at],
            [view.jobs[job] for job in jobs.tolist()], view.tag[jobs], np.append(first, len(member)), member,
            view.loss[jobs], view.factor[at],
        )  # fmt: skip


ROUNDING_MW: Final = 2
"""Caps of one job that differ by no more are equal: whole milliwatts cannot always be split."""


class Reason(enum.IntEnum):
    """What decided a node's cap."""

    IDLE = 0
    UNCAPPED = 1
    STATIC = 2
    STATIC_MOP = 3
    TAG = 4
    TAG_AND_SHARE = 5
    MOP = 6
    MOP_AND_SHARE = 7
    SLOWED = 8
    FULL_SPEED = 9
    NEED = 10
    OWN = 11
    FULL_POWER = 12
    POLICY = 13
    UNMEASURED = 14
    EQUAL = 15


_WORDS: Final = {
    Reason.IDLE: "the node is idle, so its minimal operating power",
    Reason.UNCAPPED: "no cap was necessary, so its TDP",
    Reason.STATIC: "the same part of TDP as for every node, idle or not",
    Reason.STATIC_MOP: "its minimal operating power, since the part of TDP that every node gets is less",
    Reason.TAG: "pass 1: the cap of its tag",
    Reason.TAG_AND_SHARE: "pass 1: the cap of its tag, and its share of what the last cap left over",
    Reason.MOP: "pass 2: its minimal operating power",
    Reason.MOP_AND_SHARE: "pass 2: its minimal operating power, and its share of what the last cap left over",
    Reason.SLOWED: "slowed with all nodes of its job: the budget has no more watts, or other jobs gain more by them",
    Reason.FULL_SPEED: "full speed by its model's table, plus a guard",
    Reason.NEED: "full speed: the power measured while it was not cap-bound, plus a guard",
    Reason.OWN: "by a rule of this sharer's own",
    Reason.FULL_POWER: "its highest cap, since its job measures the node",
    Reason.POLICY: "as the scheduling policy plans with its job",
    Reason.UNMEASURED: "slowed with all nodes of its job; what it draws at full speed is not measured yet, so it counts"
    " with the most of its model's table",
    Reason.EQUAL: "at least the same part of TDP as for every node, since that limits none of them",
}


def reason_in_words(name: str) -> str:
    """A ``Reason`` by its name in any case, as part of a sentence; "" for another name."""
    return _WORDS[Reason[name.upper()]] if name.upper() in Reason.__members__ else ""


@dataclass(frozen=True, slots=True)
class Why:
    """Why a node has its cap, as data and in words. ``slowdown`` is predicted, 0.1 for 10 % longer; None: no model."""

    node: str
    cap_mw: int
    sharer: str
    reason: str
    job: str
    tag: str
    tag_source: str
    slowdown: float | None
    words: str


@dataclass(frozen=True, slots=True)
class Shares:
    """A sharer's result: per node the cap, what decided it (``Reason``) and its owner (-1: idle); per job the tag that
    was used and the predicted speed (NaN: no model). ``steps``: how many times a job was capped."""

    sharer: str
    caps_mw: Ints
    reason: Ints
    owner: Ints
    tag: Ints
    speed: Floats
    steps: int = 0
    note: str = ""

    def why(self, view: View, node: str) -> Why:
        """``KeyError`` if the node was not in the view."""
        try:
            at = list(view.nodes).index(node)
        except ValueError:
            raise KeyError(node) from None
        reason, owner = Reason(int(self.reason[at])), int(self.owner[at])
        cap_mw = int(self.caps_mw[at])
        words = f"{cap_mw / 1000:.1f} W by {self.sharer}: {_WORDS[reason]}"
        job = tag = source = ""
        slowdown: float | None = None
        if owner >= 0:
            job, tag = view.jobs[owner].name, Tag(int(self.tag[owner])).name
            source = view.jobs[owner].tag_source or ("given" if view.tag[owner] != UNTAGGED else "default")
            words += f"; job {job}, {tag} ({source})"
            if np.isfinite(self.speed[owner]):
                slowdown = 1 / float(self.speed[owner]) - 1
                words += f", predicted to take {100 * slowdown:.1f} % longer"
                learned = view.jobs[owner].learned
                words += f" ({learned.words})" if learned and learned.words else ""
            words += self._unlike_mates(view, at)
        if self.note:
            words += f"; {self.note}"
        return Why(node, cap_mw, self.sharer, reason.name.lower(), job, tag, source, slowdown, words)

    def _unlike_mates(self, view: View, at: int) -> str:
        """Why the caps of its job's nodes differ; empty if they do not."""
        mates = np.flatnonzero(self.owner == self.owner[at])
        low_mw, high_mw = int(self.caps_mw[mates].min()), int(self.caps_mw[mates].max())
        if high_mw - low_mw <= ROUNDING_MW:
            return ""
        need_mw, bounds = view.need_mw[mates], np.stack((view.tdp_mw[mates], view.mop_mw[mates]))
        is_known = need_mw >= 0
        n_full = int((self.reason[mates] == Reason.FULL_POWER).sum())
        causes = {
            f"the budget has the highest cap for {n_full} of them": 0 < n_full < len(mates),
            "their TDP or MOP differ": bool((bounds != bounds[:, :1]).any()),
            "they were measured to draw unlike watts": len(set(need_mw[is_known].tolist())) > 1,
            "not all of them are measured yet": 0 < int(is_known.sum()) < len(mates),
            "calibration has measured that they draw unlike watts": len(set(view.factor[mates].tolist())) > 1,
        }
        cause = ", ".join(words for words, is_so in causes.items() if is_so) or f"by a rule of {self.sharer}"
        return f"; the {len(mates)} nodes of the job get from {low_mw / 1000:.1f} to {high_mw / 1000:.1f} W: {cause}"
