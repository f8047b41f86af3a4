"""The CPU time of real processes as load on emulated CPUs.

Each thread gets an emulated CPU for its life, the lowest that no other thread has; a thread beyond the last CPU shares
one. The CPU is busy for the share of time in which the thread ran on the host. So governors, power and counters follow
what a command really does, on as many CPUs at once as the host has.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

from twin.physics.model import Twin

PERIOD_S = 0.02
"""Ours: a few periods of a dynamic governor."""


class CommandLoad:
    """Follows all processes that /proc shows, except those in ``without``."""

    def __init__(self, twin: Twin, without: frozenset[int], proc: str = "/proc") -> None:
        self._twin = twin
        self._without = without
        self._proc = proc
        self._cpu_of: dict[int, int] = {}
        self._ran_ns = dict(self._threads())
        self._at_ns = time.monotonic_ns()

    def run(self, stop: threading.Event) -> None:
        """Follow them until ``stop`` is set."""
        while not stop.wait(PERIOD_S):
            self.follow(time.monotonic_ns())

    def follow(self, now_ns: int) -> None:
        """Set the load since the last call."""
        ran_ns = dict(self._threads())
        elapsed_ns, self._at_ns = now_ns - self._at_ns, now_ns
        shares = [0.0] * self._twin.machine.cpus
        self._cpu_of = {thread: cpu for thread, cpu in self._cpu_of.items() if thread in ran_ns}
        for thread, ran in ran_ns.items():
            share = (ran - self._ran_ns.get(thread, 0)) / max(elapsed_ns, 1)
            if share > 0:
                cpu = self._cpu(thread)
                shares[cpu] = min(shares[cpu] + share, 1.0)
        self._ran_ns = ran_ns
        self._twin.set_load(shares)

    def _cpu(self, thread: int) -> int:
        if thread not in self._cpu_of:
            taken = set(self._cpu_of.values())
            free = (cpu for cpu in range(self._twin.machine.cpus) if cpu not in taken)
            self._cpu_of[thread] = next(free, len(self._cpu_of) % self._twin.machine.cpus)
        return self._cpu_of[thread]

    def _threads(self) -> Iterator[tuple[int, int]]:
        """Each thread with the nanoseconds that it ran (proc_pid_schedstat(5), the first number)."""
        for process in os.listdir(self._proc):
            if not process.isdecimal() or int(process) in self._without:
                continue
            try:
                for thread in os.listdir(f"{self._proc}/{process}/task"):
                    with open(f"{self._proc}/{process}/task/{thread}/schedstat") as file:
                        yield int(thread), int(file.read().split()[0])
            except OSError:
                continue  # it has ended
