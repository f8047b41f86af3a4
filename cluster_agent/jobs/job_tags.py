"""The tag of a live job: what its user gave, else what a model or its nodes say, else what such jobs were before."""

from __future__ import annotations

from collections.abc import Iterable

from cluster_agent.budget.scored_tags import ScoredTags
from cluster_agent.budget.sharers.view import Tag, tag_of
from cluster_agent.budget.tag_sources import History, Known, in_order, resolve
from cluster_agent.jobs.job import Job


class JobTags:
    """``give`` sets a job's tag while it runs; ``ended`` remembers it for the next job of the same user and title."""

    def __init__(self, past: Iterable[Job] = (), scored: ScoredTags | None = None) -> None:
        """``past``: jobs that have ended, in the order of their ends. ``scored``: by a model of the site."""
        self._scored = scored
        self._history = History(last=1, fewest=1)
        self._sources = in_order(self._history)
        for job in past:
            self.ended(job)

    def give(self, job: Job, measured: Iterable[str] = (), nodes: Iterable[str] = ()) -> Tag | None:
        """Set ``job.tag`` and its source. ``measured``: the tags that its nodes report; the most sensitive one
        counts. ``nodes``: those nodes."""
        scored = self._scored.tag(str(job.id), nodes) if self._scored is not None and not job.spec.tag else None
        tags = [tag for tag in map(_tag, measured) if tag is not None]
        known = Known(job.user, job.title, _tag(job.spec.tag), max(tags, default=None), scored)
        tag, job.tag_source = resolve(known, self._sources)
        job.tag = "" if tag is None else tag.name
        return tag

    def ended(self, job: Job) -> None:
        """Remember the measured tag of a job that ended."""
        if self._scored is not None:
            self._scored.ended(str(job.id))
        tag = _tag(job.tag)
        if tag is not None:
            self._history.ended(job.user, job.title, tag)


def _tag(word: str) -> Tag | None:
    try:
        return tag_of(word) if word else None
    except ValueError:  # a tag of a newer node agent, or a wrong one
        return None
