"""The tag of a live job: its user's word, else what its nodes measured, else what such a job was the last time."""

from __future__ import annotations

from collections.abc import Iterable

from cluster_agent.budget.sharers.tag_sources import History, Known, in_order, resolve
from cluster_agent.budget.sharers.view import Tag, tag_of
from cluster_agent.jobs.job import Job


class JobTags:
    """``give`` a job its tag while it runs; ``ended`` remembers it for the next of the same user and title."""

    def __init__(self, past: Iterable[Job] = ()) -> None:
        """``past``: jobs that have ended, in the order of their ends."""
        self._history = History(last=1, fewest=1)
        self._sources = in_order(self._history)
        for job in past:
            self.ended(job)

    def give(self, job: Job, measured: Iterable[str] = ()) -> Tag | None:
        """Set ``job.tag`` and its source. ``measured``: what its nodes say, the most sensitive of which counts."""
        told = [tag for tag in map(_tag, measured) if tag is not None]
        known = Known(job.user, job.title, _tag(job.spec.tag), max(told, default=None))
        tag, job.tag_source = resolve(known, self._sources)
        job.tag = "" if tag is None else tag.name
        return tag

    def ended(self, job: Job) -> None:
        """It has ended as this."""
        tag = _tag(job.tag)
        if tag is not None:
            self._history.ended(job.user, job.title, tag)


def _tag(word: str) -> Tag | None:
    try:
        return tag_of(word) if word else None
    except ValueError:  # of a newer agent, or a liar's
        return None
