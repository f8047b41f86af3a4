"""Jobs on a node beside the agent's loop: what runs them, and a thread that keeps their slowness away from the loop.

Starting a job forks and waits for the disk; the loop that holds the node's cap must not. So the loop only hands over
messages and takes the newest ``NodeJobs``, and one thread does the rest:

    loop    ── hear(message) ──►  thread ── start, signal, forget ──►  Backend (processes, or emulated work)
            ◄── news() ─────────         ◄── parts, ten times a second ──
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from nodectl.errors import NodectlError
from nodectl.job_wire import MAX_PARTS, JobForget, JobPart, JobSignal, JobStart, NodeJobs

Message: TypeAlias = JobStart | JobSignal | JobForget

LOOK_S: Final = 0.1
"""Ours: how often the thread looks at what runs."""

WAITING: Final = 64
"""Ours: messages that may wait for the thread; more are dropped, and come again."""


class Backend(Protocol):
    """What runs jobs on a node. One thread calls it, not always the one that made it, and it may take its time.

    A run is named by ``(job, attempt)``, is started at most once, and stays in ``parts`` until it is forgotten. Nothing
    is raised on account of a job: one that cannot be started is a part that is ``refused``. ``OSError``, ``ValueError``
    and ``NodectlError`` are said, and the call is not repeated.
    """

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
    """``hear`` and ``news`` for the loop; neither waits. ``say`` takes a line, on the thread, when a backend fails."""

    def __init__(
        self, backend: Backend, node: str, boot_id: str, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self._backend, self._say = backend, say
        self._waiting: deque[Message] = deque()
        self._wake = threading.Event()
        self._is_over = False
        self._news = NodeJobs(node, boot_id, self._parts())
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

    def close(self) -> None:
        """End the thread; what runs goes on."""
        self._is_over = True
        self._wake.set()
        self._thread.join()
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
                self._news = NodeJobs(self._news.node, self._news.boot_id, parts)

    def _try(self, message: Message) -> None:
        try:
            tell(self._backend, message)
        except TROUBLES as error:
            self._say(f"job {message.job}: {error}")

    def _parts(self) -> list[JobPart]:
        return self._backend.parts()[-MAX_PARTS:]


TROUBLES: Final = (OSError, ValueError, NodectlError)
