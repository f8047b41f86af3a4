"""The tag of a live job: what its user gave, else what its nodes measured, else what such jobs were before."""

from __future__ import annotations

from collections.abc import Iterable

from cluster_agent.budget.sharers.view import Tag, tag_of
from cluster_agent.budget.tag_sources import History, Known, in_order, resolve
from cluster_agent.jobs.job import Job


class JobTags:
    """``give`` sets a job's tag while it runs; ``ended`` remembers it for the next job of the same user and title."""

    def __init__(self, past: Iterable[Job] = ()) -> None:
        """``past``: jobs that have ended, in the order of their ends."""
        self._history = History(last=1, fewest=1)
        self._sources = in_order(self._history)
        for job in past:
            self.ended(job)

    def give(self, job: Job, measured: Iterable[str] = ()) -> Tag | None:
        """Set ``job.tag`` and its source. ``measured``: the tags that its nodes report; the most sensitive one
        counts."""
        tags = [tag for tag in map(_tag, measured) if tag is not None]
        known = Known(job.user, job.title, _tag(job.spec.tag), max(tags, default=None))
        tag, job.tag_source = resolve(known, self._sources)
        job.tag = "" if tag is None else tag.name
        return tag

    def ended(self, job: Job) -> None:
        """Remember the measured tag of a job that ended."""
        tag = _tag(job.tag)
        if tag is not None:
            self._history.ended(job.user, job.title, tag)


def _tag(word: str) -> Tag | None:
    try:
        return tag_of(word) if word else None
    except ValueError:  # a tag of a newer node agent, or a wrong one
        return None
