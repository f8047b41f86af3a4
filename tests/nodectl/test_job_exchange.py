"""A node's half of jobs: a start that takes long, and what is said of jobs and when."""

from __future__ import annotations

import threading
import time

from foundation.wire.job_messages import (
    MAX_PARTS,
    JobForget,
    JobPart,
    JobSignal,
    JobStart,
    NodeJobs,
)
from nodectl.jobs.job_runner import JobThread
from nodectl.member.job_exchange import JobExchange
from tests.waiting import PATIENCE_S


class SlowBackend:
    """Starts take as long as the test wants."""

    runs_only = ""
    runs_names = ()
    refuses = ""
    runs_uid = -1
    halves = ""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.runs: list[JobPart] = []
        self.signals: list[int] = []

    def half_of(self, job: int, attempt: int) -> frozenset[int]:
        return frozenset()

    def start(self, start: JobStart) -> None:
        assert self.may_go_on.wait(240)
        if start.job == 13:
            raise OSError("no")
        self.runs.append(JobPart(start.job, start.attempt, "running"))

    def signal(self, signal: JobSignal) -> None:
        self.signals.append(signal.signal)

    def forget(self, forget: JobForget) -> None:
        self.runs = [part for part in self.runs if part.job != forget.job]

    def parts(self) -> list[JobPart]:
        return list(self.runs)

    def counter(self, job: int, attempt: int) -> None: ...

    def keep(self, record: bytes) -> None: ...

    def kept(self) -> bytes:
        return b""

    def close(self) -> None: ...


def job_start(job: int) -> JobStart:
    return JobStart(job, 1, 0, ["a"], "", "/", "o", "", {}, 60, 1, "", "", 0, ["n0"])


def test_a_start_that_takes_its_time_does_not_delay_the_nodes_loop(tmp_path):
    backend, said = SlowBackend(), []
    desk = JobThread(backend, "n0", "boot", said.append)
    try:
        before_s = time.perf_counter()
        for job in (13, *range(20, 20 + MAX_PARTS + 1)):
            desk.post(job_start(job))
            assert desk.news().parts == []
        assert time.perf_counter() - before_s < PATIENCE_S
        backend.may_go_on.set()
        deadline = time.monotonic() + PATIENCE_S
        while len(desk.news().parts) < MAX_PARTS:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert said == ["job 13: no"]
        desk.post(JobSignal(20, 1, 15))
        while not backend.signals:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        backend.may_go_on.set()
        desk.close()
    assert len(desk.news().parts) == MAX_PARTS


class Asking:
    """A link on which jobs are queried."""

    wants_jobs, job_queries = True, 0

    def __init__(self) -> None:
        self.sent: list[NodeJobs] = []

    def job_messages(self) -> list[JobStart]:
        return []

    def send_jobs(self, news: NodeJobs) -> None:
        self.sent.append(news)


def test_a_node_without_jobs_says_so_now_and_then_and_at_once_when_that_changes_or_it_is_queried():
    backend, link = SlowBackend(), Asking()
    desk = JobThread(backend, "n0", "boot")
    exchange = JobExchange(link, desk)
    for tenth in range(100):
        exchange.exchange(tenth * 100_000_000)
    assert len(link.sent) == 2, "in ten seconds"
    link.job_queries += 1
    exchange.exchange(10_000_000_000)
    exchange.exchange(10_100_000_000)
    assert len(link.sent) == 3
    backend.may_go_on.set()
    desk.post(job_start(1))
    while not desk.news().parts:
        time.sleep(0.01)
    for tenth in range(21):
        exchange.exchange(10_200_000_000 + tenth * 100_000_000)
    assert [len(news.parts) for news in link.sent] == [0, 0, 0, 1, 1, 1], "at once, then every second"
    exchange.close()
