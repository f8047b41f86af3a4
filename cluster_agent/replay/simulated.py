"""A clock that jumps and a machine that runs the jobs of a log, for the engine's Python loop.

Whole logs are replayed in C, much faster. This pair is what the C code is tested against, and shows what a live clock
and machine must do.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import ceil

from cluster_agent.scheduler.interfaces import Event, Kind
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.policy_phases import Ties
from cluster_agent.scheduler.recorded import Recorded


class JumpingClock:
    """Jumps to every next event."""

    def __init__(self) -> None:
        self._now_s = 0

    def now_s(self) -> int:
        """The time of the last jump."""
        return self._now_s

    def wait_until(self, time_s: int | None) -> bool:
        """Jump; False when no event is left."""
        if time_s is None:
            return False
        self._now_s = time_s
        return True


class SimulatedMachine:
    """Submits the jobs of a log at their times and runs each for its run time.

    Events of one instant and kind happen in the order in which they were foreseen. ``start_s``: when each was started.
    ``recorded``: a warm start; its jobs start at their times.
    """

    def __init__(
        self,
        jobs: Jobs,
        ties: Ties,
        slowdown: Sequence[float] = (1.0,),
        requeues: bool = True,
        recorded: Recorded | None = None,
    ) -> None:
        self.start_s: dict[int, int] = {}
        self.end_s: dict[int, int] = {}
        self._slowdown = slowdown
        self._requeues = requeues
        self._pace: dict[int, tuple[int, float, int]] = {}  # job: since when, seconds of its run done by then, level
        self._jobs = jobs
        self._ties = ties
        self._submitted = 0
        self._foreseen = 0
        self._ends: list[tuple[int, int, int]] = []  # (time, number, job)
        self._overruns: list[tuple[int, int, int]] = []
        self._recorded = [] if recorded is None else recorded.starts[:]
        self._first_pass_s = None if recorded is None else recorded.until_s

    def events(self, now_s: int) -> Sequence[Event]:
        """All events of the instant: ends, overruns, submissions; with ``sc15`` one event, an overrun before a
        submission before an end. At last, by themselves, recorded starts."""
        events: list[Event] = []
        if self._ties == "sc15":
            takers = (self._take_overrun, self._take_submission, self._take_end)
            events += next(([event] for event in (take(now_s) for take in takers) if event), [])
        else:
            for take in (self._take_end, self._take_overrun, self._take_submission):
                while event := take(now_s):
                    events.append(event)
        if self._first_pass_s is not None and self._first_pass_s <= now_s:
            self._first_pass_s = None
            events.append(Event(Kind.ROOM, -1))
        return events or self._take_recorded(now_s)

    def next_event_s(self) -> int | None:
        """The earliest time of the three kinds."""
        times = [heap[0][0] for heap in (self._ends, self._overruns) if heap]
        if self._submitted < len(self._jobs):
            times.append(int(self._jobs.submit_s[self._submitted]))
        if self._first_pass_s is not None:
            times.append(self._first_pass_s)
        times += [one.start_s for one in self._recorded[:1]]
        return min(times, default=None)

    def start(self, at_s: int, job: int, expected_end_s: int, level: int = 0) -> None:
        """The job runs from ``at_s`` on."""
        self.start_s[job] = at_s
        self._pace[job] = (at_s, 0.0, level)
        self._foresee(self._ends, self._end_s(at_s, job), job)
        self.expect(at_s, job, expected_end_s)

    def kill(self, now_s: int, job: int) -> None:
        """The job ends, and its work is lost."""
        self._ends = [event for event in self._ends if event[2] != job]
        self._overruns = [event for event in self._overruns if event[2] != job]
        heapify(self._ends)
        heapify(self._overruns)
        if self._requeues:
            del self.start_s[job]
        else:
            self.end_s[job] = now_s

    def set_level(self, now_s: int, job: int, level: int, expected_end_s: int) -> None:
        """The job goes on, slower or faster."""
        since_s, done_s, before = self._pace[job]
        if now_s > since_s:
            since_s, done_s = now_s, done_s + (now_s - since_s) / self._slowdown[before]
        self._pace[job] = (since_s, done_s, level)
        self._ends = [event for event in self._ends if event[2] != job]
        self._overruns = [event for event in self._overruns if event[2] != job]
        heapify(self._ends)
        heapify(self._overruns)
        self._foresee(self._ends, self._end_s(now_s, job), job)
        self.expect(now_s, job, expected_end_s)

    def expect(self, now_s: int, job: int, expected_end_s: int) -> None:
        """Note an overrun to come, which this machine can foresee."""
        if now_s < expected_end_s < self._end_s(now_s, job):
            self._foresee(self._overruns, expected_end_s, job)

    @property
    def running(self) -> dict[int, int]:
        """The jobs that run, and when each will end."""
        return {job: end_s for end_s, _, job in self._ends}

    @property
    def submitted(self) -> int:
        """How many jobs have come: the first ones."""
        return self._submitted

    def level(self, job: int) -> int:
        """The frequency at which a job runs, or ran at last."""
        return self._pace[job][2]

    def _end_s(self, now_s: int, job: int) -> int:
        since_s, done_s, level = self._pace[job]
        left_s = (int(self._jobs.run_s[job]) - done_s) * self._slowdown[level]
        return max(since_s + ceil(left_s - 1e-9), now_s + 1)

    def _foresee(self, heap: list[tuple[int, int, int]], at_s: int, job: int) -> None:
        heappush(heap, (at_s, self._foreseen, job))
        self._foreseen += 1

    def _take_end(self, now_s: int) -> Event | None:
        if not self._ends or self._ends[0][0] > now_s:
            return None
        job = heappop(self._ends)[2]
        self.end_s[job] = now_s
        return Event(Kind.ENDED, job)

    def _take_recorded(self, now_s: int) -> list[Event]:
        is_due = self._recorded and self._recorded[0].start_s <= now_s
        return [Event(Kind.RECORDED, self._recorded.pop(0).job)] if is_due else []

    def _take_overrun(self, now_s: int) -> Event | None:
        is_due = self._overruns and self._overruns[0][0] <= now_s
        return Event(Kind.OVERRUN, heappop(self._overruns)[2]) if is_due else None

    def _take_submission(self, now_s: int) -> Event | None:
        if self._submitted == len(self._jobs) or self._jobs.submit_s[self._submitted] > now_s:
            return None
        self._submitted += 1
        return Event(Kind.SUBMITTED, self._submitted - 1)
