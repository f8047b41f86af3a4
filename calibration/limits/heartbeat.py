"""Is the node still responsive? A heartbeat, as a thread of this process or as one of an emulated node.

A cap that is too low does not stop a node, it makes it miss its times: agents report late, leases end, a watchdog
resets. So a node is called responsive by what a thread gets that sleeps most of the time: how late it wakes, and how
long a bit of fixed work takes. The thread is pinned nowhere, since the kernel would not be either.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from calibration.kernels.emulated import CONTROL, ServedHost
from calibration.limits.probes import Beats
from pmu.ports import Clock

PERIOD_S: Final = 0.010
"""Ours: an agent that samples every 100 ms has ten of them to be late by."""

WORK_LOOPS: Final = 2000
"""Ours: some 50 us of Python at 3 GHz."""


class NativeHeartbeat:
    """A thread of this process. ``clock`` is the machine's."""

    def __init__(self, clock: Clock, period_s: float = PERIOD_S) -> None:
        self.period_s = period_s
        self._clock, self._period_ns = clock, round(period_s * 1e9)
        self._late_s: list[float] = []
        self._usual_s = 0.0
        self._due_ns = 0
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to beat."""
        self._usual_s = min(self._work_s() for _ in range(10))
        self._late_s, self._due_ns = [], self._clock.now_ns() + self._period_ns
        self._is_over.clear()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def beats(self) -> Beats:
        """Lateness of the wake-up and of the work, which usually takes none of it."""
        late_s, self._late_s = self._late_s, []
        return Beats(late_s, max(self._clock.now_ns() - self._due_ns, 0) / 1e9)

    def stop(self) -> None:
        """End the thread."""
        self._is_over.set()
        if self._thread:
            self._thread.join()
        self._thread = None

    def _run(self) -> None:
        while not self._is_over.is_set():
            due_ns = self._due_ns
            self._clock.sleep_until_ns(due_ns)
            woken_ns = self._clock.now_ns()
            late_ns = woken_ns - due_ns + max(self._work_s() - self._usual_s, 0.0) * 1e9
            self._late_s.append(late_ns / 1e9)
            self._due_ns = due_ns + (1 + int(late_ns) // self._period_ns) * self._period_ns

    def _work_s(self) -> float:
        before_ns = self._clock.now_ns()
        total = 0
        for number in range(WORK_LOOPS):
            total += number
        return (self._clock.now_ns() - before_ns) / 1e9


class EmulatedHeartbeat:
    """A thread of an emulated node. ``beat``: starts one with this period, and returns what reads its beats."""

    def __init__(
        self, beat: Callable[[float], Callable[[], tuple[list[float], float]]], period_s: float = PERIOD_S
    ) -> None:
        self.period_s = period_s
        self._beat = beat
        self._read: Callable[[], tuple[list[float], float]] | None = None

    def start(self) -> None:
        """Begin to beat in the node's time."""
        self._read = self._beat(self.period_s)

    def beats(self) -> Beats:
        """The beats of the node's time."""
        return Beats(*self._read()) if self._read else Beats([], 0.0)

    def stop(self) -> None:
        """Forget the thread."""
        self._read = None


def served_heartbeat(period_s: float = PERIOD_S, path: str = CONTROL) -> EmulatedHeartbeat:
    """The heartbeat of the served node that this process runs on. ``KernelError`` when it does not answer."""
    host = ServedHost(path)

    def beat(each_s: float) -> Callable[[], tuple[list[float], float]]:
        host.request("heartbeat-start", period_s=each_s)
        return lambda: host.request("heartbeat-beats")

    return EmulatedHeartbeat(beat, period_s)
