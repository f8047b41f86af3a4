"""Emulated nodes for a riplay, all in this process: a twin each, faster than real time, with a socket for workloads.

No agent runs on them: who decides sets their clocks and switches them off, and jobs put their workload on them by the
socket (``workload_socket``). A node that is off draws what the machine file says.

A second of a Curie node costs about 0.6 ms of processor time, so 128 nodes at ten times real time would take most of a
core. So in each tick a node lives as long as the log has gone on, but no longer than ``MOST_PACE`` lets it, and draws
the mean watts of that for all of the log's time. Dies and heat sinks then take longer to warm up than in the log.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from twin.machine import Machine
from twin.physics.model import STEP_S, Twin
from twin.programs.workload_socket import WorkloadSocket

TICK_S: Final = 0.1
"""Ours: how often sockets are looked at; a job waits so long for its workload."""

MOST_PACE: Final = 256.0
"""Ours: seconds of all nodes in a second, some 0.15 cores."""

READ_S: Final = 1.0
"""Ours: how often the joules of all nodes are noted."""


class FastNodes:
    """``with FastNodes(names, sockets, speed, off_w, model) as nodes``. ``sockets``: the folder of their sockets.
    Joules are of the log's time, ``speed`` times as fast as real time, from ``begin_meter`` on."""

    def __init__(self, names: Sequence[str], sockets: Path, speed: float, off_w: float, model: Machine) -> None:
        self._twins = {name: _Node(model, seed) for seed, name in enumerate(names, 1)}
        self._sockets, self._speed, self._off_w = sockets, speed, off_w
        self._most_s = MOST_PACE / len(names) * TICK_S
        self.readings: list[tuple[float, float]] = []
        """(Unix time, joules of all nodes until then), from ``begin_meter`` on."""
        self._joules, self._trouble = 0.0, list[BaseException]()
        self._stop, self._is_open, self._is_metered = threading.Event(), threading.Event(), threading.Event()
        self._is_metered.set()
        self._thread = threading.Thread(target=self._guarded, name="emulated nodes", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_open.wait()
        self.check()
        return self

    def __exit__(self, *_: object) -> None:
        """At the end of the tick at hand."""
        self._stop.set()
        self._thread.join()

    def begin_meter(self) -> None:
        """From now on joules count."""
        self._is_metered.clear()
        while not self._is_metered.wait(1.0):
            self.check()

    def set_clock(self, names: Sequence[str], mhz: int) -> None:
        """The highest clock of these nodes, from the next tick on."""
        for name in names:
            self._twins[name].mhz = mhz

    def set_off(self, names: Sequence[str], is_off: bool) -> None:
        """These nodes are off, or on, from the next tick on."""
        for name in names:
            self._twins[name].is_off = is_off

    def settle(self, until_s: float) -> None:
        """Wait for a reading of this Unix time or later."""
        while not self.readings or self.readings[-1][0] < until_s:
            self.check()
            time.sleep(TICK_S)

    def check(self) -> None:
        """Raise what has ended the nodes, if anything has."""
        if self._trouble:
            raise self._trouble[0]

    def _guarded(self) -> None:
        try:
            self._live()
        except BaseException as error:  # whoever waits for the nodes raises it
            self._trouble.append(error)
        finally:
            self._is_open.set()

    def _live(self) -> None:
        with contextlib.ExitStack() as closing:
            sockets = {
                name: closing.enter_context(contextlib.closing(WorkloadSocket(self._sockets, name, node.twin)))
                for name, node in self._twins.items()
            }
            before_s = time.time()
            self._is_open.set()
            while not self._stop.is_set():
                now_s = time.time()
                for name, node in self._twins.items():
                    sockets[name].look()
                    self._joules += self._drawn_w(node, now_s - before_s) * (now_s - before_s) * self._speed
                before_s = now_s
                if not self._is_metered.is_set():
                    self.readings, self._joules = [], 0.0
                    self._is_metered.set()
                if not self.readings or now_s >= self.readings[-1][0] + READ_S:
                    self.readings.append((now_s, self._joules))
                self._stop.wait(max(TICK_S - (time.time() - now_s), 0.0))

    def _drawn_w(self, node: _Node, seconds: float) -> float:
        """The node's watts in these seconds of real time."""
        return self._off_w if node.is_off else node.live(min(seconds * self._speed, self._most_s))


class _Node:
    def __init__(self, model: Machine, seed: int) -> None:
        self.twin = Twin(model, seed=seed)
        self.is_off = False
        self.mhz, self._set_mhz = model.max_khz // 1000, 0

    def live(self, seconds: float) -> float:
        """Mean watts of these seconds of its own, one step of the model at least."""
        if self.mhz != self._set_mhz:
            self._set_mhz = self.mhz
            for domain in range(len(self.twin.machine.domains)):
                self.twin.set_domain(domain, max_khz=1000 * self._set_mhz, governor="performance")
        before_j, before_ns = self.twin.parts_j()["node"], self.twin.age_ns
        self.twin.advance(max(seconds, STEP_S))
        return (self.twin.parts_j()["node"] - before_j) / (1e-9 * (self.twin.age_ns - before_ns))
