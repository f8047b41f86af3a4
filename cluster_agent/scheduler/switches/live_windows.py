"""When queues of a live partition are open: which jobs they can run, and in which words people hear of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.switches.live_reservations import JobNeed, clock
from cluster_agent.scheduler.switches.queue_windows import (
    OpenHours,
    OpenQueues,
    Span,
    longest_s,
    next_open_s,
    next_span,
    opened,
)
from cluster_agent.scheduler.switches.reservations import DAY_S
from foundation.shell.duration import shown

AHEAD_S: Final = 60 * DAY_S
"""Ours: so far windows follow the clocks of this machine; later ones are as those of the last week of that."""


class LiveWindows:
    """Of the queues that have windows. ``follow`` comes before all else, and once a day, since clocks change."""

    def __init__(self, by_queue: Mapping[str, Sequence[OpenHours]]) -> None:
        self.by_queue = by_queue
        self._longest_s = {queue: longest_s(each) for queue, each in by_queue.items()}
        self._place_of = {queue: at for at, queue in enumerate(by_queue, 1)}
        self.follow(0)

    def follow(self, now_s: int) -> None:
        """From now on."""
        self.queues: OpenQueues = opened(self.by_queue, now_s, now_s + AHEAD_S)
        """As the engine has them."""
        opens, spans = self.queues.opens.tolist(), list(self.queues.windows)
        self._spans = {queue: spans[opens[at] : opens[at + 1]] for at, queue in enumerate(self.by_queue)}
        self._followed_s = now_s

    def is_behind(self, now_s: int) -> bool:
        """Whether ``follow`` is due."""
        return bool(self.by_queue) and now_s - self._followed_s >= DAY_S

    def place_of(self, queue: str) -> int:
        """1 + its place among the queues; 0: it is always open."""
        return self._place_of.get(queue, 0)

    def change_after_s(self, now_s: int) -> float:
        """When one of them opens next; inf: none has windows."""
        return min((next_open_s(each, now_s) for each in self._spans.values()), default=float("inf"))

    def check_job(self, need: JobNeed) -> None:
        """``WrongUseError`` for a job that is too long for every window of its queue."""
        if not need.reservation and need.walltime_s > (most_s := self._longest_s.get(need.queue, need.walltime_s)):
            times = f"a walltime of {shown(need.walltime_s)} is longer than any window of queue {need.queue}"
            fix = "give a shorter --time, or another queue"
            raise WrongUseError(f"{times}: it is open for at most {shown(most_s)}; {fix}")

    def why(self, waiting: Sequence[tuple[int, JobNeed]], now_s: int) -> dict[int, str]:
        """Why those of the waiting jobs, by number, may not start now for which their queue is closed."""
        found = {}
        for number, need in waiting if self.by_queue else ():
            if not need.reservation and (spans := self._spans.get(need.queue)) is not None:
                found[number] = self._closed(need, spans, now_s)
        return {number: reason for number, reason in found.items() if reason}

    def _closed(self, need: JobNeed, spans: Sequence[Span], now_s: int) -> str:
        present = next_span(spans, now_s)
        if present is None or need.walltime_s > self._longest_s[need.queue]:  # as since the settings were changed
            return f"needs {shown(need.walltime_s)}, for which queue {need.queue} is never open: cancel it"
        fits = next_span(spans, now_s, need.walltime_s)
        if fits is None or fits.from_s <= now_s:
            return ""
        if present.from_s > now_s:
            return f"queue {need.queue} is closed until {clock(present.from_s)}" + (
                "" if fits == present else f", and then too short for it until {clock(fits.from_s)}"
            )
        closes = f"needs {shown(need.walltime_s)}, and queue {need.queue} closes at {clock(present.to_s)}"
        return f"{closes}; it waits until {clock(fits.from_s)}"


ALWAYS_OPEN: Final = LiveWindows({})
"""No queue has windows."""
