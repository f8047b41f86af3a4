"""Where a job's tag comes from: its user, a model, its nodes' counters, or earlier jobs. The source is always named.

A source is a function from what is known of a job to a tag, or None if it has none; ``resolve`` tries them in the order
of ``in_order``. The user's tag wins (REGALE D2.3 §4.2, D11): who submits a job can know what its next hour will be. The
counters' tag comes next, since it is measured on this run, and the history of such jobs last. Nodes decide the
counters' tag by a rule (``nodectl.decide.load_tag``); where the site has chosen a model that learned (``scored_tags``),
that comes before the rule.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from cluster_agent.budget.sharers.view import Tag

USER: Final = "user"
MODEL: Final = "model"
NODE_AGENT: Final = "node agent"
JOB_HISTORY: Final = "job history"
"""The sources by the names that users see."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a source may look at."""

    user: str
    name: str
    declared: Tag | None = None
    measured: Tag | None = None
    scored: Tag | None = None


Source: TypeAlias = Callable[[Known], Tag | None]


def from_user(job: Known) -> Tag | None:
    """As the user submitted it."""
    return job.declared


def from_model(job: Known) -> Tag | None:
    """As a model says from what its nodes count."""
    return job.scored


def from_counters(job: Known) -> Tag | None:
    """As its nodes' agents report it while it runs."""
    return job.measured


class History:
    """The tag that was measured for most of the last jobs of the same user and name."""

    def __init__(self, last: int = 8, fewest: int = 2) -> None:
        self._fewest = fewest
        self._last = last
        self._tags: dict[tuple[str, str], deque[Tag]] = {}

    def ended(self, user: str, name: str, measured: Tag) -> None:
        """Note the measured tag of a job that ended."""
        self._tags.setdefault((user, name), deque(maxlen=self._last)).append(measured)

    def __call__(self, job: Known) -> Tag | None:
        """The most frequent tag; of equally frequent ones the more sensitive; None with too few jobs."""
        seen = self._tags.get((job.user, job.name), ())
        if len(seen) < self._fewest:
            return None
        return max(Counter(seen).items(), key=lambda found: (found[1], found[0]))[0]


def in_order(history: Source) -> tuple[tuple[str, Source], ...]:
    """All sources with their names, in the order in which they are tried."""
    return (USER, from_user), (MODEL, from_model), (NODE_AGENT, from_counters), (JOB_HISTORY, history)


def in_words(tag: str, source: str) -> str:
    """For tables and sentences; "-" without a tag."""
    return f"{tag} ({source})" if tag else "-"


def resolve(job: Known, sources: Sequence[tuple[str, Source]]) -> tuple[Tag | None, str]:
    """The first tag that a source gives, and that source's name; (None, "") if none gives one."""
    for name, source in sources:
        tag = source(job)
        if tag is not None:
            return tag, name
    return None, ""
