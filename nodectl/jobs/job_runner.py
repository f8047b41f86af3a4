"""Jobs on a node beside the agent's loop: what runs them, and a thread that keeps their slowness away from the loop.

Starting a job forks and waits for the disk; the loop that holds the node's cap must not. So the loop only hands over
messages and takes the newest ``NodeJobs``, and one thread does the rest:

    loop    ── hear(message) ──►  thread ── start, signal, forget ──►  Backend (processes, or emulated work)
            ◄── news() ─────────         ◄── parts, ten times a second ──

How far the running job says it has come (``told``) is not worth a thread: the loop reads eight bytes itself.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

import msgspec

from nodectl.shell.errors import NodectlError
from nodectl.wire.job_messages import MAX_PARTS, JobForget, JobPart, JobSignal, JobStart, NodeJobs
from pmu.instruments.job_progress import Counter
from pmu.readings import NOTHING_TOLD, RawProgress

Message: TypeAlias = JobStart | JobSignal | JobForget

LOOK_S: Final = 0.1
"""Ours: how often the thread looks at what runs."""

WAITING: Final = 64
"""Ours: messages that may wait for the thread; more are dropped, and come again."""


class Backend(Protocol):
    """What runs jobs on a node. One thread calls it, not always the one that made it, and it may take its time; only
    ``counter`` is called by the loop.

    A run is named by ``(job, attempt)``, is started at most once, and stays in ``parts`` until it is forgotten. Nothing
    is raised on account of a job: one that cannot be started is a part that is ``refused``. ``OSError``, ``ValueError``
    and ``NodectlError`` are said, and the call is not repeated. ``runs_only`` and ``runs_names``: as in
    ``NodeJobs``.
    """

    runs_only: str

    @property
    def runs_names(self) -> Sequence[str]:
        """See above."""
        ...

    def start(self, start: JobStart) -> None:
        """Accept and start a run. One that is known or has been forgotten is passed over."""
        ...

    def signal(self, signal: JobSignal) -> None:
        """Give a run a signal (``JobSignal``); nothing if it is not known or over."""
        ...

    def forget(self, forget: JobForget) -> None:
        """What came of the run is recorded elsewhere; nothing if it is not over."""
        ...

    def parts(self) -> list[JobPart]:
        """All runs that are not forgotten, as they are now."""
        ...

    def counter(self, job: int, attempt: int) -> Counter | None:
        """By which a run tells its progress; None while it has none. Does not wait."""
        ...

    def close(self) -> None:
        """The agent ends. What runs goes on if it can."""
        ...


def tell(backend: Backend, message: Message) -> None:
    """Give it a message."""
    if isinstance(message, JobStart):
        backend.start(message)
    elif isinstance(message, JobSignal):
        backend.signal(message)
    else:
        backend.forget(message)


class JobDesk:
    """``hear``, ``news`` and ``told`` for the loop; none waits. ``say`` takes a line, on the thread, when a backend
    fails."""

    def __init__(
        self, backend: Backend, node: str, boot_id: str, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self._backend, self._say = backend, say
        self._waiting: deque[Message] = deque()
        self._wake = threading.Event()
        self._is_over = False
        self._counted: tuple[int, int] | None = None
        self._counter: Counter | None = None
        self._source = 0
        self._news = NodeJobs(node, boot_id, self._parts(), backend.runs_only, list(backend.runs_names))
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
        self._thread.start()

    def hear(self, message: Message) -> None:
        """Do this soon."""
        if len(self._waiting) < WAITING:
            self._waiting.append(message)
            self._wake.set()

    def news(self) -> NodeJobs:
        """All runs, as the thread saw them last; another object whenever something has changed."""
        return self._news

    def told(self) -> RawProgress:
        """How far the job on this node says it has come. Nothing where several run: their units do not add up."""
        runs = [(part.job, part.attempt) for part in self._news.parts if part.phase in ("running", "ending")]
        only = runs[0] if len(runs) == 1 else None
        if only != self._counted:
            self._drop_counter()
            self._counted = only
        if only and not self._counter:
            self._counter = self._backend.counter(*only)
            self._source += self._counter is not None
        return RawProgress(self._source, self._counter.read()) if self._counter else NOTHING_TOLD

    def _drop_counter(self) -> None:
        if self._counter:
            self._counter.close()
            self._counter = None

    def close(self) -> None:
        """End the thread; what runs goes on."""
        self._is_over = True
        self._wake.set()
        self._thread.join()
        self._drop_counter()
        self._backend.close()

    def _run(self) -> None:
        while not self._is_over:
            self._wake.wait(LOOK_S)
            self._wake.clear()
            while self._waiting and not self._is_over:
                message = self._waiting.popleft()
                if isinstance(message, JobStart) and len(self._news.parts) >= MAX_PARTS:
                    continue  # there is no room to speak of one more: it comes again
                self._try(message)
            try:
                parts = self._parts()
            except TROUBLES as error:
                self._say(f"jobs: {error}")
                continue
            if parts != self._news.parts:
                self._news = msgspec.structs.replace(self._news, parts=parts)

    def _try(self, message: Message) -> None:
        try:
            tell(self._backend, message)
        except TROUBLES as error:
            self._say(f"job {message.job}: {error}")

    def _parts(self) -> list[JobPart]:
        return self._backend.parts()[-MAX_PARTS:]


TROUBLES: Final = (OSError, ValueError, NodectlError)
