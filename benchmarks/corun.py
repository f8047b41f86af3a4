"""Two of calibration's kernels at once on this machine, a core each, next to what the model of shared nodes says.

Each repetition measures, one right after the other, the first kernel alone, both, the second alone, both, on one core
of each half of this machine's cores. A speed next to the other is the mean of the two times both ran over the speed
alone of the same repetition, all in units per processor second, since others may want the two cores; the table has
medians over repetitions, and their quartiles. Who is not to run is stopped by a signal. Where the kernels got little of
their cores the two seldom ran at once, and the table says nothing: then the exit status is 1.

*model*: the same two kernels on the halves of the emulated node `rome`, next to each other against next to nobody, as
`shared_nodes` predicts programs: EMULATED, of another machine, so only the direction can agree. *slowed* is below 0.95,
the policy's floor.
"""

from __future__ import annotations

import argparse
import math
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

SECONDS: Final = 1.0
SETTLE_S: Final = 0.1
FLOOR: Final = 0.95
LEAST_SHARE: Final = 0.8
"""Ours: of its core, that each kernel must have had at the median for a pair to say anything."""

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
    """Speeds of the two next to each other, of each repetition, and the least share that one had of its core."""

    first: list[float]
    second: list[float]
    share: list[float]


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

    def done(self) -> tuple[float, float]:
        """Units, and the processor seconds that they took."""
        times = [process.cpu_times() for process in self._processes]
        return self._port.units_done(), sum(one.user + one.system for one in times)


class Rate(NamedTuple):
    """``per_s``: units in a processor second, NaN of one that does not run; ``share``: of its core that it had."""

    per_s: float
    share: float


def rates(one: Running, other: Running, is_one: bool, is_other: bool) -> list[Rate]:
    """Of both, of which those run that are to."""
    one.stop(not is_one)
    other.stop(not is_other)
    time.sleep(SETTLE_S)
    began_s, before = time.monotonic(), [one.done(), other.done()]
    time.sleep(SECONDS)
    took_s, after = time.monotonic() - began_s, [one.done(), other.done()]
    used_s = [now[1] - had[1] for had, now in zip(before, after, strict=True)]
    return [
        Rate((now[0] - had[0]) / cpu_s if cpu_s > 0 else math.nan, cpu_s / took_s)
        for had, now, cpu_s in zip(before, after, used_s, strict=True)
    ]


def measure(first: Kernel, second: Kernel, cpus: Sequence[int], times: int) -> Pair:
    found = Pair([], [], [])
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
            found.first.append((both[0].per_s + again[0].per_s) / 2 / alone.per_s)
            found.second.append((both[1].per_s + again[1].per_s) / 2 / other_alone.per_s)
            found.share.append(min(rate.share for rate in (*both, *again)))
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
    rows, found, shares, agreeing = [], [], [], 0
    for names in PAIRS:
        (first, one), (second, other) = KERNELS[names[0]], KERNELS[names[1]]
        pair, model = measure(first, second, cpus, times), predicted(one, other)
        shares.append(statistics.median(pair.share))
        for name, partner, speeds, expected in zip(names, reversed(names), pair[:2], model, strict=True):
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
    if min(shares) < LEAST_SHARE:
        print(f"that says nothing: a kernel had {min(shares):.2f} of its core only, so the two seldom ran at once")
    save("corun", {"pairs": found, "agreeing": agreeing, "of": len(rows), "load": load, "share": min(shares)})
    return 0 if min(shares) >= LEAST_SHARE else 1


if __name__ == "__main__":
    raise SystemExit(main())
