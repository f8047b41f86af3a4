"""Jobs that another job manager runs on the nodes, as its prolog and epilog notify: the sharer sees them like our own.

A notice is on the disk before it is answered, so the sharer knows of them after a restart, too. There is no timeout:
only a notice ends a job.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from cluster_agent.budget.sharers.view import Job, Tag, tag_of
from cluster_agent.errors import ClusterError, WrongUseError, no_such_node
from foundation.planted_links import open_new

SOURCE: Final = "job manager"
MOST: Final = 100_000
"""Ours: more jobs than any partition runs at a time; a manager that never ends one is found out."""


class ForeignJob(msgspec.Struct, frozen=True):
    """A job that runs, by its number or name at its own manager."""

    job: str
    nodes: list[str]
    tag: str = ""


class ForeignJobs:
    """``path``: where they are stored. ``ClusterError`` if that cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._jobs: dict[str, ForeignJob] = {}
        try:
            stored = msgspec.json.decode(path.read_bytes(), type=list[ForeignJob])
        except FileNotFoundError:
            stored = []
        except (OSError, msgspec.MsgspecError) as error:
            raise ClusterError(f"{path}: cannot read the jobs of another manager: {error}: remove it") from None
        self._jobs = {one.job: one for one in stored}

    def __len__(self) -> int:
        return len(self._jobs)

    def start(self, one: ForeignJob, known: Collection[str]) -> str:
        """The job runs on these nodes from now on; a second notice takes the place of the first."""
        if not one.nodes:
            raise WrongUseError(f"job {one.job} runs on no nodes: name them")
        if unknown := sorted(set(one.nodes) - set(known)):
            raise no_such_node(unknown[0], known)
        if one.tag:
            try:
                tag_of(one.tag)
            except ValueError as error:
                raise WrongUseError(str(error)) from None
        if len(self._jobs) >= MOST and one.job not in self._jobs:
            raise WrongUseError(f"{MOST} jobs were started and never ended: end them first")
        verb = "runs now" if one.job in self._jobs else "runs"
        self._store({**self._jobs, one.job: one})
        return f"job {one.job} {verb} on {len(one.nodes)} node{'s' if len(one.nodes) > 1 else ''}"

    def end(self, job: str) -> str:
        """The job has ended."""
        if job not in self._jobs:
            return f"job {job} was not known"
        self._store({name: one for name, one in self._jobs.items() if name != job})
        return f"job {job} has ended"

    def for_sharer(self) -> list[Job]:
        """In the order of their starts."""
        return [Job(one.job, one.nodes, _tag(one.tag), SOURCE if one.tag else "") for one in self._jobs.values()]

    def _store(self, jobs: dict[str, ForeignJob]) -> None:
        made = self._path.with_name(f"{self._path.name}.new")
        try:
            with open(open_new(made), "wb") as file:
                file.write(msgspec.json.encode(list(jobs.values())))
                file.flush()
                os.fsync(file.fileno())
            made.replace(self._path)
        except OSError as error:
            raise ClusterError(f"{self._path}: cannot store the notice: {error.strerror}") from None
        self._jobs = jobs


def _tag(word: str) -> Tag | None:
    return tag_of(word) if word else None
