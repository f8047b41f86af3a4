"""Jobs that another job manager runs on the nodes, as its prolog and epilog notify: the sharer sees them like our own.

A notice is on the disk before it is answered, so the sharer knows of them after a restart, too. There is no timeout:
a notice ends a job, of its epilog or of whoever compares with the manager (``clusterctl slurm follow``).

A number alone names no job. A manager that was killed may give the number of a lost job to the next one, and a requeued
job keeps its own. So a run is known by the manager's cluster, the number, the time of submission and the count of
restarts. A prolog does not know the time of submission; 0 stands for that, until somebody adds it. A manager has at
most one run of a number at a time: a start takes the place of an older one, and a late end of an older one is ignored.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec

from cluster_agent.budget.sharers.view import Job, Tag, tag_of
from cluster_agent.errors import ClusterError, WrongUseError
from foundation.planted_links import open_new
from foundation.shell.names import with_domain

SOURCE: Final = "job manager"
MOST: Final = 100_000
"""Ours: more jobs than any partition runs at a time; a manager that never ends one is found out."""


class ForeignJob(msgspec.Struct, frozen=True):
    """A job that runs, by its number or name at its own manager. ``submitted_s``: Unix seconds, 0 if not known.

    ``began_s``: when its start was noticed; ``counters``: of its nodes at that time, the boot and the mJ drawn in it;
    ``is_shared``: another job ran on one of its nodes at some time; ``partition``: the manager's.
    """

    job: str
    nodes: list[str]
    tag: str = ""
    cluster: str = ""
    submitted_s: int = 0
    restarts: int = 0
    user: str = ""
    title: str = ""
    began_s: float = 0.0
    counters: dict[str, tuple[str, int]] = {}
    is_shared: bool = False
    partition: str = ""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.job}@{self.cluster}" if self.cluster else self.job

    @property
    def key(self) -> str:
        """The same for all notices of one run, whatever they leave out."""
        return f"{self.cluster}/{self.job}/{self.restarts}"

    def is_run_of(self, other: ForeignJob) -> bool:
        """Whether both are notices of one run, as far as they say; what one leaves out does not differ."""
        pairs = ((self.submitted_s, other.submitted_s), (self.user, other.user), (self.title, other.title))
        return self.restarts == other.restarts and all(a == b or not a or not b for a, b in pairs)

    def is_later_than(self, submitted_s: int, restarts: int) -> bool:
        """Whether this run began after one of the same number with this submission and count, as far as is known."""
        if submitted_s and self.submitted_s and submitted_s != self.submitted_s:
            return self.submitted_s > submitted_s
        return self.restarts > restarts


class ForeignJobs:
    """``path``: where they are stored. ``ClusterError`` if that cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._jobs: dict[tuple[str, str], ForeignJob] = {}
        try:
            stored = msgspec.json.decode(path.read_bytes(), type=list[ForeignJob])
        except FileNotFoundError:
            stored = []
        except (OSError, msgspec.MsgspecError) as error:
            raise ClusterError(f"{path}: cannot read the jobs of another manager: {error}: remove it") from None
        self._jobs = {(one.cluster, one.job): one for one in stored}
        self._on: dict[str, str] | None = None
        self._all_on: dict[str, list[str]] | None = None

    @property
    def all_on_nodes(self) -> Mapping[str, list[str]]:
        """By node, the jobs that have it or a share of it (``ForeignJob.key``)."""
        if self._all_on is None:
            self._all_on = {}
            for one in self._jobs.values():
                for node in one.nodes:
                    self._all_on.setdefault(node, []).append(one.key)
        return self._all_on

    @property
    def on_nodes(self) -> Mapping[str, str]:
        """By node, the job that has it alone (``ForeignJob.key``)."""
        if self._on is None:
            self._on = {node: one.key for one in self._jobs.values() if not one.is_shared for node in one.nodes}
        return self._on

    def __len__(self) -> int:
        return len(self._jobs)

    def all(self) -> list[ForeignJob]:
        """In the order of their starts."""
        return list(self._jobs.values())

    def start(self, one: ForeignJob, known: Collection[str]) -> str:
        """The job runs from now on, on those of its nodes that are ``known``. A second notice takes the place of the
        first; what the second one leaves out stays. Nothing is stored of a job that has no known node."""
        if not one.nodes:
            raise WrongUseError(f"job {one.name} runs on no nodes: name them")
        if one.tag:
            try:
                tag_of(one.tag)
            except ValueError as error:
                raise WrongUseError(str(error)) from None
        ours = [node for node in one.nodes if node in known]
        key = one.cluster, one.job
        if not ours:
            self.end(one.job, one.cluster, one.submitted_s, one.restarts)
            nearly = next(iter(with_domain(one.nodes, known).items()), None)
            hint = f": {nearly[0]} calls itself {nearly[1]} here (name it with [cluster] name)" if nearly else ""
            return f"job {one.name} runs on no node of this cluster agent{hint}"
        before = self._jobs.get(key)
        if len(self._jobs) >= MOST and before is None:
            raise WrongUseError(f"{MOST} jobs were started and never ended: end them first")
        one = _completed(msgspec.structs.replace(one, nodes=ours), before)
        if one != before:
            self._store({**self._with_sharers(one), key: msgspec.structs.replace(one, is_shared=self._shares(one))})
        return f"job {one.name} {'runs' if before is None else 'runs now'} on {_nodes(len(ours))}"

    def end(self, job: str, cluster: str = "", submitted_s: int = 0, restarts: int = MOST) -> str:
        """The job has ended: this run of it, or an earlier one. A later run goes on."""
        one = self._jobs.get((cluster, job))
        name = ForeignJob(job, [], cluster=cluster).name
        if one is None:
            return f"job {name} was not known"
        if one.is_later_than(submitted_s, restarts):
            return f"job {name} runs again: this is the end of an earlier run"
        self._store({key: kept for key, kept in self._jobs.items() if kept is not one})
        return f"job {name} has ended"

    def find(self, job: str, cluster: str) -> ForeignJob | None:
        """The run of this number that is known."""
        return self._jobs.get((cluster, job))

    def _others(self, one: ForeignJob) -> list[tuple[tuple[str, str], ForeignJob]]:
        nodes = set(one.nodes)
        others = ((key, other) for key, other in self._jobs.items() if key != (one.cluster, one.job))
        return [(key, other) for key, other in others if not nodes.isdisjoint(other.nodes)]

    def _shares(self, one: ForeignJob) -> bool:
        return one.is_shared or bool(self._others(one))

    def _with_sharers(self, one: ForeignJob) -> dict[tuple[str, str], ForeignJob]:
        """All jobs, those on its nodes marked as sharing them."""
        shared = {key: msgspec.structs.replace(other, is_shared=True) for key, other in self._others(one)}
        return {**self._jobs, **shared}

    def for_sharer(self) -> list[Job]:
        """In the order of their starts."""
        return [Job(one.name, one.nodes, _tag(one.tag), SOURCE if one.tag else "") for one in self._jobs.values()]

    def _store(self, jobs: dict[tuple[str, str], ForeignJob]) -> None:
        made = self._path.with_name(f"{self._path.name}.new")
        try:
            with open(open_new(made), "wb") as file:
                file.write(msgspec.json.encode(list(jobs.values())))
                file.flush()
                os.fsync(file.fileno())
            made.replace(self._path)
        except OSError as error:
            raise ClusterError(f"{self._path}: cannot store the notice: {error.strerror}") from None
        self._jobs, self._on, self._all_on = jobs, None, None


def _tag(word: str) -> Tag | None:
    return tag_of(word) if word else None


def _completed(one: ForeignJob, before: ForeignJob | None) -> ForeignJob:
    """With what only the notice before says of the same run: Slurm's queue has no tag, its prolog no submission."""
    if before is None or not one.is_run_of(before):
        return one
    return msgspec.structs.replace(
        one,
        tag=one.tag or before.tag,
        submitted_s=one.submitted_s or before.submitted_s,
        user=one.user or before.user,
        title=one.title or before.title,
        partition=one.partition or before.partition,
        began_s=before.began_s or one.began_s,
        counters={**one.counters, **before.counters},
        is_shared=before.is_shared,
    )


def _nodes(number: int) -> str:
    return f"{number} node{'s' if number != 1 else ''}"
