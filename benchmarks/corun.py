"""Two of calibration's kernels at once on this machine, a core each, next to what the model of shared nodes says.

Each repetition measures, one right after the other, the first kernel alone, both, the second alone, both, on one core
of each half of this machine's cores. A speed next to the other is the mean of the two times both ran
over the speed alone of the same repetition; the table has medians over repetitions, and their quartiles. The kernels
run at the highest priority (nice -20, with the right for it), since others may want the two cores; who is not to run is
stopped by a signal. *model*: the same two kernels on the halves of the emulated node `rome`, next to each other against
next to nobody, as `shared_nodes` predicts programs: EMULATED, of another machine, so only the direction can agree.
*slowed* is below 0.95, the policy's floor. Speeds here are of this machine, which is not idle: the load is printed.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Final, NamedTuple

import psutil

from benchmarks.experiment import save
from benchmarks.nas_programs import Program
from benchmarks.shared_nodes import emulated, half
from calibration.kernels.native import NativeKernels
from calibration.kernels.port import FMA, STREAM, Kernel, mix
from foundation.shell.text_table import render
from pmu.core_halves import core_halves
from pmu.system import system_ports

SECONDS: Final = 0.3
SETTLE_S: Final = 0.1
FLOOR: Final = 0.95

KERNELS: Final[dict[str, tuple[Kernel, Program]]] = {
    "stream": (STREAM, Program("stream", 2, 32, "a triad: two arrays read, one fetched and written")),
    "mix": (mix(1.0), Program("mix", 8, 8, "one operation for each byte")),
    "fma": (FMA, Program("fma", 1, 0, "registers alone")),
}
"""Each with what it does for one number, as the model takes programs."""

PAIRS: Final = (
    ("stream", "fma"), ("stream", "mix"), ("stream", "stream"), ("mix", "fma"), ("mix", "mix"), ("fma", "fma"),
)  # fmt: skip


class Pair(NamedTuple):
    """Speeds of the two next to each other, of each repetition."""

    first: list[float]
    second: list[float]


class Running:
    """A kernel that runs on one CPU until ``close``, as far as it is not stopped: to begin takes seconds, since its
    arrays are far above the caches."""

    def __init__(self, kernel: Kernel, cpu: int) -> None:
        self._port = NativeKernels(system_ports().files)
        there = set(psutil.Process().children(recursive=True))
        self._port.start(kernel, [cpu])
        self._processes = set(psutil.Process().children(recursive=True)) - there
        self.close = self._port.stop

    def stop(self, is_stopped: bool) -> None:
        """By SIGSTOP; or go on."""
        for process in self._processes:
            process.send_signal(signal.SIGSTOP if is_stopped else signal.SIGCONT)

    def units(self) -> float:
        return self._port.units_done()


def rates(one: Running, other: Running, is_one: bool, is_other: bool) -> list[float]:
    """Units per second of both, of which those run that are to."""
    one.stop(not is_one)
    other.stop(not is_other)
    time.sleep(SETTLE_S)
    began_s, before = time.monotonic(), [one.units(), other.units()]
    time.sleep(SECONDS)
    took_s, after = time.monotonic() - began_s, [one.units(), other.units()]
    return [(now - had) / took_s for had, now in zip(before, after, strict=True)]


def measure(first: Kernel, second: Kernel, cpus: Sequence[int], times: int) -> Pair:
    found = Pair([], [])
    with ExitStack() as opened:
        one, other = (
            opened.enter_context(closing(Running(kernel, cpu)))
            for kernel, cpu in zip((first, second), cpus, strict=True)
        )
        for _ in range(times):
            alone, _ = rates(one, other, True, False)
            both = rates(one, other, True, True)
            _, other_alone = rates(one, other, False, True)
            again = rates(one, other, True, True)
            found.first.append((both[0] + again[0]) / 2 / alone)
            found.second.append((both[1] + again[1]) / 2 / other_alone)
    return found


def predicted(first: Program, second: Program) -> tuple[float, float]:
    """EMULATED: each on half the cores of every die, next to the other and next to nobody."""
    alone = [emulated([(one, half(which))]).speeds[0] for which, one in enumerate((first, second))]
    both = emulated([(first, half(0)), (second, half(1))]).speeds
    return both[0] / alone[0], both[1] / alone[1]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="5 repetitions instead of 25")
    times = 5 if parser.parse_args(arguments).quick else 25
    halves = core_halves(system_ports().files, os.sched_getaffinity(0))
    if halves is None:
        print("not measured: two cores are needed")
        return 0
    cpus = [min(half) for half in halves]
    if os.geteuid() == 0:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    rows, found, agreeing = [], [], 0
    for names in PAIRS:
        (first, one), (second, other) = KERNELS[names[0]], KERNELS[names[1]]
        pair, model = measure(first, second, cpus, times), predicted(one, other)
        for name, partner, speeds, expected in zip(names, reversed(names), pair, model, strict=True):
            low, middle, high = statistics.quantiles(speeds, n=4)
            agrees = (middle < FLOOR) == (expected < FLOOR)
            agreeing += agrees
            words = ["slowed" if speed < FLOOR else "unharmed" for speed in (middle, expected)]
            rows.append((name, partner, f"{middle:.2f}", f"{low:.2f} to {high:.2f}", f"{expected:.2f}", *words))
        found.append({"pair": names, "speeds": pair._asdict(), "model": model})
    head = ("kernel", "next to", "speed", "quartiles", "model (EMULATED)", "here", "model")
    print(render(head, rows))
    load = os.getloadavg()[0]
    print(f"the direction agrees in {agreeing} of {len(rows)} ({times} repetitions, CPUs {cpus}, load {load:.0f})")
    save("corun", {"pairs": found, "agreeing": agreeing, "of": len(rows), "load": load})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
