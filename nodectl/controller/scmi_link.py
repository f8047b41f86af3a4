"""The link to an SCMI controller: its heartbeat, and a thread of its own.

The loop must never wait for a controller that hangs: its answers may take 30 ms in shared memory and 250 ms on a serial
line, a reconnection seconds, and a period is 100 ms. So the link belongs to a thread (``ThreadedLink``). The loop
passes jobs to it and waits for their results at most ``TICK_WAIT_S`` per tick *in all*; a job that takes longer
continues in the thread, and a later heartbeat shows its result. (A loop of non-blocking exchanges would need a state
machine for every step of connecting, discovering, setting and verifying.) In virtual time nothing blocks, and
``InlineLink`` does the same jobs in the loop itself, so that a run is the same every time.

Every ``BEAT_S`` the link sends one GET for each of its knobs. This is the heartbeat, and it checks that the value is
still in force; for a cap it also reads the measured power. After ``MISSES`` heartbeats without an answer the controller
counts as silent. When it answers again, each value that it has lost is set again and read back before it counts as up.
The same is done after a restart that was too short to miss a heartbeat: our own firmware's slot counter shows it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from firmware_bridge.errors import LinkError, NoAnswerError, ScmiError
from firmware_bridge.scmi.client import Client
from firmware_bridge.scmi.controller import Controller
from firmware_bridge.scmi.protocols.telemetry import TELEMETRY, TelemetryStatus
from firmware_bridge.scmi.transports.url import open_transport
from nodectl.controller.scmi_knobs import ScmiKnob, as_knob_error
from nodectl.knobs.api import KnobError
from pmu.ports import Clock

BEAT_S: Final = 0.1
MISSES: Final = 2

REOPEN_S: Final = 1.0
"""Ours: a link that has been silent this long is opened again; on a serial line the two ends then exchange HELLO frames
again."""

TICK_WAIT_S: Final = 0.025
"""Ours: a quarter of the default period, and some fifty times what an exchange in shared memory takes."""

START_WAIT_S: Final = 2.0
"""Ours: how long the start and the end of a run may wait for a controller."""

T = TypeVar("T")

type_job = Callable[[Controller], Any]


@dataclass(frozen=True, slots=True)
class Change:
    """The controller has gone silent, or answers again. ``why`` is one clause for people."""

    is_up: bool
    why: str


class Link:
    """One connection, its heartbeat, and the knobs behind it. ``connect`` opens it, each time that it is needed."""

    def __init__(self, url: str, connect: Callable[[], Client] | None, now_s: Callable[[], float]) -> None:
        self.url = url
        self.knobs: list[ScmiKnob] = []
        self.is_up = False
        self.changes: deque[Change] = deque()
        self._connect = connect or (lambda: patient_client(url))
        self._now_s = now_s
        self._controller: Controller | None = None
        self.why_down = f"{url}: not connected yet"
        self._misses = 0
        self._heard_s = now_s()
        self._slots = 0
        self._has_lost_all = False

    def beat(self) -> None:
        """Read every knob; connect first where there is no connection."""
        try:
            controller = self._controller = self._controller or self._opened()
            self._has_lost_all |= self._was_started_again(controller)
            for knob in self.knobs:
                knob.look(controller)
            if self._has_lost_all or not self.is_up:
                for knob in self.knobs:
                    knob.assert_again(controller)
            self._has_lost_all = False
        except LinkError as error:
            self._missed(error)
        except ScmiError as error:  # it answers, but refuses a value that it had before: the next beat tries again
            self._misses, self._heard_s, self.why_down = 0, self._now_s(), str(error)
        else:
            self._misses, self._heard_s = 0, self._now_s()
            if not self.is_up:
                self.is_up = True
                self.changes.append(Change(True, "answers"))

    def do(self, job: Callable[[Controller], T]) -> T:
        """Do a job, and once more if no answer came. That is safe: every job only sets or reads a state."""
        try:
            if self._controller is None:
                raise LinkError(f"{self.url}: not connected")
            try:
                return job(self._controller)
            except NoAnswerError:
                return job(self._controller)
        except ScmiError as error:
            if isinstance(error, LinkError):
                self._missed(error)
            raise as_knob_error(error) from error

    def _was_started_again(self, controller: Controller) -> bool:
        """Has our own firmware restarted, so that its slot counter is lower? Others show a restart only by silence."""
        if TELEMETRY not in controller.identity.versions:
            return False
        before, self._slots = self._slots, controller.client.request(TelemetryStatus()).slots
        return self._slots < before

    def disconnect(self) -> None:
        """Close the connection; what is in force stays in force."""
        controller, self._controller = self._controller, None
        if controller is not None:
            with contextlib.suppress(LinkError):
                controller.close()

    def _opened(self) -> Controller:
        client = self._connect()
        self._has_lost_all = True  # what answers may be another controller than before
        try:
            return Controller(client)
        except BaseException:
            client.close()
            raise

    def _missed(self, error: LinkError) -> None:
        self._misses += 1
        is_gone = not isinstance(error, NoAnswerError)
        if is_gone or self._now_s() - self._heard_s >= REOPEN_S:
            self.disconnect()
            self._heard_s = self._now_s()
        self.why_down = str(error)
        if self._misses >= MISSES:
            self.give_up(f"{MISSES} heartbeats without an answer: {error}")

    def give_up(self, why: str) -> None:
        """The controller counts as silent from now on."""
        if self.is_up:
            self.is_up = False
            self.changes.append(Change(False, why))


class Runs(Protocol):
    """A link that is served by a thread or by the loop."""

    link: Link

    def start(self) -> None:
        """Begin, with a first beat."""

    def ask(self, job: Callable[[Controller], T]) -> T:
        """Have a job done and wait for it within the time that is left in this tick; ``KnobError`` otherwise."""

    def new_tick(self, wait_s: float = TICK_WAIT_S) -> None:
        """A tick begins, in which ``ask`` may wait for so long in all."""

    def stop(self) -> None:
        """End, and close the link."""


class InlineLink:
    """For virtual time: the loop does beats and jobs itself, a beat in each tick at which one is due."""

    def __init__(self, url: str, connect: Callable[[], Client], clock: Clock) -> None:
        self._clock = clock
        self.link = Link(url, connect, self._now_s)
        self._due_s = 0.0

    def start(self) -> None:
        """Beat."""
        self._beat()

    def ask(self, job: Callable[[Controller], T]) -> T:
        """Do the job."""
        _refuse_if_down(self.link)
        return self.link.do(job)

    def new_tick(self, wait_s: float = TICK_WAIT_S) -> None:
        """Beat if it is time."""
        if self._now_s() >= self._due_s:
            self._beat()

    def stop(self) -> None:
        """Close the connection."""
        self.link.disconnect()

    def _beat(self) -> None:
        self._due_s = self._now_s() + 0.9 * BEAT_S  # a tick that comes a little early is in time
        self.link.beat()

    def _now_s(self) -> float:
        return self._clock.now_ns() / 1e9


class ThreadedLink:
    """For real time: a thread owns the link, and ``ask`` waits only as long as ``new_tick`` allows."""

    def __init__(self, url: str, connect: Callable[[], Client] | None = None) -> None:
        self.link = Link(url, connect, time.monotonic)
        self._jobs: queue.SimpleQueue[tuple[type_job, Future[Any]] | None] = queue.SimpleQueue()
        self._left_s = START_WAIT_S
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scmi-link", daemon=True)

    def start(self) -> None:
        """Start beating and wait for the first beat."""
        self._thread.start()
        self._has_begun.wait(START_WAIT_S)

    def ask(self, job: Callable[[Controller], T]) -> T:
        """Put the job in the thread's queue and wait for what is left of the tick's time."""
        _refuse_if_down(self.link)
        future: Future[T] = Future()
        self._jobs.put((job, future))
        begin_s = time.monotonic()
        try:
            return future.result(self._left_s)
        except TimeoutError:
            raise KnobError(
                f"{self.link.url}: no answer within the {TICK_WAIT_S * 1e3:g} ms of a tick; the job continues",
                "refused",
                "no answer",
            ) from None
        finally:
            self._left_s = max(self._left_s - (time.monotonic() - begin_s), 0.0)

    def new_tick(self, wait_s: float = TICK_WAIT_S) -> None:
        """Reset the time that ``ask`` may wait in this tick."""
        self._left_s = wait_s

    def stop(self) -> None:
        """End the thread; one that hangs in the operating system ends with the process."""
        self._jobs.put(None)
        self._thread.join(START_WAIT_S)

    def _run(self) -> None:
        due_s = time.monotonic()
        try:
            while True:
                try:
                    item = self._jobs.get(timeout=max(due_s - time.monotonic(), 0.0))
                except queue.Empty:
                    self.link.beat()
                    self._has_begun.set()
                    due_s = max(due_s + BEAT_S, time.monotonic())  # beats that were missed are not made up for
                    continue
                if item is None:
                    return
                self._settle(*item)
        finally:  # after a defect in this thread, the controller must not count as up
            self.link.give_up("the link has ended")
            self.link.disconnect()

    def _settle(self, job: type_job, future: Future[Any]) -> None:
        try:
            future.set_result(self.link.do(job))
        except Exception as error:  # whatever it is, the caller of ``ask`` gets it
            future.set_exception(error)


def patient_client(url: str) -> Client:
    """A client that tries each command once, for at most a beat: the next beat is the next try."""
    transport = open_transport(url)
    transport.reply_timeout_s = min(transport.reply_timeout_s, BEAT_S)
    return Client(transport, tries=1)


def _refuse_if_down(link: Link) -> None:
    if not link.is_up:
        raise KnobError(f"{link.url}: the controller is silent", "vanished", "no answer")
