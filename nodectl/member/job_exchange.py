"""Messages about jobs between the link to the cluster agent and the thread that runs them."""

from __future__ import annotations

import signal
from typing import Final

import msgspec

from foundation.wire.job_messages import JobSignal, NodeJobs
from nodectl.jobs.job_runner import JobThread, RunningJob
from nodectl.member.cluster_link import ClusterLink
from nodectl.member.dispatch_thread import REFUSES
from nodectl.member.energy_meter import EnergyMeter
from nodectl.member.half_joules import HalvesNow
from pmu.instruments.job_hints import HintFile
from pmu.readings import RawProgress

REPORT_NS: Final = 1_000_000_000
NO_JOBS_NS: Final = 5_000_000_000
"""Ours: how often a node reports that it knows no jobs; a change or a ``JobQuery`` is answered at once."""


class JobExchange:
    """Passes messages from the link to the jobs' thread, and its ``NodeJobs`` back: at once after a change or a
    ``JobQuery``, else once a second, and less often while there is no job. ``meter`` adds the parts'
    energy; its record is kept on the disk, once a second."""

    def __init__(
        self, link: ClusterLink, thread: JobThread, meter: EnergyMeter | None = None, dispatches: bool = False
    ) -> None:
        """``dispatches``: the node has a node manager, so the cluster agent starts no job here, nor ends one."""
        self._link, self._thread, self._meter, self._dispatches = link, thread, meter, dispatches
        self._sent: NodeJobs | None = None
        self._is_delayed = False
        self._answered = 0
        self._due_ns = self._keep_ns = 0

    def exchange(self, now_ns: int) -> None:
        """After ``link.receive``; never waits."""
        for message in self._link.job_messages():
            if not self._dispatches:
                self._thread.post(message)
        self._keep(now_ns)
        if not self._link.wants_jobs:
            self._sent = None
            return
        news, queries = self._news(), self._link.job_queries
        is_due = news is not self._sent or queries != self._answered or now_ns >= self._due_ns
        if is_due or self._is_delayed:
            self._link.send_jobs(self._metered(news))
            self._sent, self._answered = news, queries
            self._due_ns = now_ns + (REPORT_NS if news.parts else NO_JOBS_NS)

    def _news(self) -> NodeJobs:
        """The parts, for the cluster agent that has started them."""
        news = self._thread.news()
        if not self._dispatches:
            return news
        if self._sent is None:
            return msgspec.structs.replace(news, parts=[], refuses=REFUSES)
        return self._sent

    def _metered(self, news: NodeJobs) -> NodeJobs:
        if self._meter is None:
            return news
        parts = self._meter.metered(news.parts)
        self._is_delayed = [part.phase for part in parts] != [part.phase for part in news.parts]
        return msgspec.structs.replace(news, parts=parts)

    def _keep(self, now_ns: int) -> None:
        """Have the thread keep the counters: the loop does not wait for a disk."""
        if self._meter is not None and now_ns >= self._keep_ns:
            self._keep_ns = now_ns + REPORT_NS
            self._meter.metered(self._thread.news().parts)  # what has begun is in the record too
            self._thread.keep(self._meter.keep())

    def end_jobs(self) -> list[int]:
        """End every job part that runs here; their numbers."""
        running = [part for part in self._thread.news().parts if part.phase == "running"]
        for part in running:
            self._thread.post(JobSignal(part.job, part.attempt, signal.SIGTERM))
        return [part.job for part in running]

    def progress(self) -> RawProgress:
        """The progress that the job on this node reports."""
        return self._thread.progress()

    def hint_page(self) -> HintFile | None:
        """The page of hints of the job on this node."""
        return self._thread.hint_page()

    def job(self) -> RunningJob | None:
        """The only job on this node; None where that is not known."""
        return self._thread.job()

    def halves(self) -> HalvesNow:
        """Of the runs on halves of this node."""
        return self._thread.halves()

    def close(self) -> None:
        """Close; jobs continue."""
        self._thread.close()
