"""A thread that runs the jobs of a node, so that the agent's loop never waits for them.

Starting a job forks and waits for the disk; the loop enforces the node's cap and must do neither. So the loop only
passes messages and takes the newest ``NodeJobs``, and one thread does the rest:

    loop    ── post(message) ──►  thread ── start, signal, forget ──►  Backend (processes, or emulated work)
            ◄── news() ─────────         ◄── parts, ten times a second ──

The progress and the hints of a job need no thread: the loop reads their few bytes itself.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from foundation.program_name import program_name
from foundation.shell.errors import NodectlError
from foundation.wire.job_messages import MAX_PARTS, JobForget, JobPart, JobSignal, JobStart, Message, NodeJobs
from pmu.instruments.job_hints import HintFile
from pmu.instruments.job_progress import Counter
from pmu.readings import NO_RAW_PROGRESS, PmuError, RawProgress

LOOK_S: Final = 0.1
"""Ours: how often the thread looks at the running jobs."""

WAITING: Final = 64
"""Ours: messages that may wait for the thread; more are dropped, and come again."""


class Backend(Protocol):
    """What runs jobs on a node. One thread calls its methods, which may be slow; only the loop calls ``counter``,
    ``hint_page`` and ``half_of``.

    A run is named by ``(job, attempt)``, is started at most once, and stays in ``parts`` until it is forgotten. A job
    that cannot be started raises nothing: its part is ``refused``. ``OSError``, ``ValueError`` and ``NodectlError`` are
    logged, and the call is not repeated. ``runs_only``, ``runs_names``, ``refuses``, ``runs_uid`` and
    ``halves``: as in ``NodeJobs``.
    """

    runs_only: str

    @property
    def refuses(self) -> str:
        """See above."""
        ...

    @property
    def runs_names(self) -> Sequence[str]:
        """See above."""
        ...

    @property
    def runs_uid(self) -> int:
        """See above."""
        ...

    @property
    def halves(self) -> str:
        """See above."""
        ...

    def start(self, start: JobStart) -> None:
        """Accept and start a run; ignore one that is known or was forgotten."""
        ...

    def signal(self, signal: JobSignal) -> None:
        """Send a signal (``JobSignal``) to a run; ignore it for one that is unknown or has ended."""
        ...

    def forget(self, forget: JobForget) -> None:
        """Delete a run that has ended: its result is recorded elsewhere. Ignore this for one that has not ended."""
        ...

    def parts(self) -> list[JobPart]:
        """The present state of all runs that are not forgotten."""
        ...

    def counter(self, job: int, attempt: int) -> Counter | None:
        """The counter in which a run reports its progress; None while there is none. Does not wait."""
        ...

    def hint_page(self, job: int, attempt: int) -> HintFile | None:
        """The page on which a run gives hints; None while there is none. ``PmuError`` if it is not to be believed. Does
        not wait."""
        ...

    def half_of(self, job: int, attempt: int) -> frozenset[int]:
        """The CPUs of the half of the node that a run has; empty: it has all. Does not wait."""
        ...

    def keep(self, record: bytes) -> None:
        """Keep this on the disk in place of what was kept before. It survives the agent, not the machine."""
        ...

    def kept(self) -> bytes:
        """What an earlier agent has kept; empty where there is nothing."""
        ...

    def close(self) -> None:
        """The agent ends. Running jobs continue if they can."""
        ...


@dataclass(frozen=True, slots=True)
class RunningJob:
    """The only job on this node: ``key``, its number and attempt; ``program``: what it runs (``program_name``);
    ``rank``: of this node among its nodes. ``keeps_phases``: as in ``JobStart``."""

    key: tuple[int, int]
    program: str
    rank: int
    keeps_phases: bool


def deliver(backend: Backend, message: Message) -> None:
    """Call the method of the backend that the message is for."""
    if isinstance(message, JobStart):
        backend.start(message)
    elif isinstance(message, JobSignal):
        backend.signal(message)
    else:
        backend.forget(message)


class JobThread:
    """The thread. The loop calls ``post``, ``news`` and ``progress``; none of them waits. When the backend fails, the
    thread calls ``log`` with a line for the log."""

    def __init__(
        self, backend: Backend, node: str, boot_id: str, log: Callable[[str], None] = lambda line: None
    ) -> None:
        self._backend, self._log = backend, log
        self._waiting: deque[Message] = deque()
        self._to_keep: bytes | None = None
        self._why_not_kept = ""
        self._wake = threading.Event()
        self._is_over = False
        self._counted: tuple[int, int] | None = None
        self._jobs: dict[tuple[int, int], RunningJob] = {}
        self._counter: Counter | None = None
        self._hinted: tuple[int, int] | None = None
        self._page: HintFile | None = None
        self._is_odd_page = False
        self._source = 0
        self._news = NodeJobs(
            node, boot_id, self._parts(), backend.runs_only, list(backend.runs_names), backend.refuses,
            backend.runs_uid, backend.halves,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
        self._thread.start()

    def post(self, message: Message) -> None:
        """Queue a message for the thread."""
        if len(self._waiting) < WAITING:
            if isinstance(message, JobStart):
                if len(self._jobs) >= WAITING:
                    del self._jobs[next(iter(self._jobs))]
                key = message.job, message.attempt
                name = program_name(message.command, message.workdir, message.script)
                self._jobs[key] = RunningJob(key, name, message.rank, message.keeps_phases)
            self._waiting.append(message)
            self._wake.set()

    def news(self) -> NodeJobs:
        """All runs as the thread saw them last; a new object whenever something has changed."""
        return self._news

    def keep(self, record: bytes) -> None:
        """Have the thread keep this on the disk, unless a newer record comes first."""
        self._to_keep = record
        self._wake.set()

    def kept(self) -> bytes:
        """What an earlier agent has kept."""
        return self._backend.kept()

    def progress(self) -> RawProgress:
        """The progress that the job on this node reports; none where several run, since their units do not add up."""
        only = self._only()
        if only != self._counted:
            self._drop_counter()
            self._counted = only
        if only and not self._counter:
            self._counter = self._backend.counter(*only)
            self._source += self._counter is not None
        return RawProgress(self._source, self._counter.read()) if self._counter else NO_RAW_PROGRESS

    def hint_page(self) -> HintFile | None:
        """The page of the job on this node; None where several run. ``PmuError``, once for each job, if it is not to be
        believed."""
        only = self._only()
        if only != self._hinted:
            self._drop_page()
            self._hinted = only
        if only and not self._page and not self._is_odd_page:
            try:
                self._page = self._backend.hint_page(*only)
            except PmuError:
                self._is_odd_page = True
                raise
        return self._page

    def job(self) -> RunningJob | None:
        """The only job on this node; None where there is no job, or several, or where an earlier agent has started
        it."""
        only = self._only()
        return self._jobs.get(only) if only else None

    def halves(self) -> dict[str, frozenset[int]]:
        """By run, ``JOB.ATTEMPT``, the CPUs of each that has a half of the node and has begun to draw from it."""
        running = [part for part in self._news.parts if not part.is_over and part.started_s]
        found = {f"{part.job}.{part.attempt}": self._backend.half_of(part.job, part.attempt) for part in running}
        return {run: cpus for run, cpus in found.items() if cpus}

    def _only(self) -> tuple[int, int] | None:
        runs = [(part.job, part.attempt) for part in self._news.parts if part.phase in ("running", "ending")]
        return runs[0] if len(runs) == 1 else None

    def _drop_counter(self) -> None:
        if self._counter:
            self._counter.close()
            self._counter = None

    def _drop_page(self) -> None:
        if self._page:
            self._page.close()
        self._page, self._is_odd_page = None, False

    def close(self) -> None:
        """End the thread; running jobs continue."""
        self._is_over = True
        self._wake.set()
        self._thread.join()
        self._drop_counter()
        self._drop_page()
        self._backend.close()

    def _run(self) -> None:
        while not self._is_over:
            self._wake.wait(LOOK_S)
            self._wake.clear()
            while self._waiting and not self._is_over:
                message = self._waiting.popleft()
                if isinstance(message, JobStart) and len(self._news.parts) >= MAX_PARTS:
                    continue  # no room for one more in ``NodeJobs``: the message comes again
                self._try(message)
            self._keep_newest()
            try:
                parts = self._parts()
            except TROUBLES as error:
                self._log(f"jobs: {error}")
                continue
            if (parts, self._backend.refuses) != (self._news.parts, self._news.refuses):
                self._news = msgspec.structs.replace(self._news, parts=parts, refuses=self._backend.refuses)

    def _try(self, message: Message) -> None:
        try:
            deliver(self._backend, message)
        except TROUBLES as error:
            self._log(f"job {message.job}: {error}")

    def _keep_newest(self) -> None:
        record, self._to_keep = self._to_keep, None
        if record is None:
            return
        try:
            self._backend.keep(record)
            self._why_not_kept = ""
        except TROUBLES as error:
            if not self._why_not_kept:
                self._log(f"the energy of jobs cannot be kept over a restart of this agent: {error}")
            self._why_not_kept = str(error)

    def _parts(self) -> list[JobPart]:
        return self._backend.parts()[-MAX_PARTS:]


TROUBLES: Final = (OSError, ValueError, NodectlError)
