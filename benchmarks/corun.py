"""Two of calibration's kernels at once on this machine, a core each, next to what the model of shared nodes says.

Each repetition measures, one right after the other, the first kernel alone, both, the second alone, both, on two cores
that the kernel may give a cache or a memory in common. A speed next to the other is the mean of the two times both ran
over the speed alone of the same repetition; the table has medians over repetitions, and their quartiles. The kernels
run at the highest priority (nice -20, with the right for it), since others may want the two cores, and wait for
each other in no way. *model*: the same two kernels on two cores of a die of the emulated node `rome`, as
`shared_nodes` predicts programs on halves: EMULATED, of another machine, so only the direction can agree: *slowed* is
below 0.95, the policy's floor. Speeds here are of this machine, which is not idle: the load is printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

from benchmarks.experiment import save
from benchmarks.nas_programs import Program
from benchmarks.shared_nodes import emulated
from calibration.kernels.native import NativeKernels
from calibration.kernels.port import FMA, STREAM, Kernel, mix, running
from foundation.shell.text_table import render
from pmu.core_halves import core_halves
from pmu.system import system_ports

SECONDS: Final = 0.4
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


def rates(ports: Sequence[NativeKernels], kernels: Sequence[Kernel], cpus: Sequence[int]) -> list[float]:
    """Units per second of kernels that run at once, each on its CPU."""
    with ExitStack() as opened:
        for port, kernel, cpu in zip(ports, kernels, cpus, strict=True):
            opened.enter_context(running(port, kernel, [cpu]))
        time.sleep(SETTLE_S)
        began_s, before = time.monotonic(), [port.units_done() for port in ports]
        time.sleep(SECONDS)
        took_s, after = time.monotonic() - began_s, [port.units_done() for port in ports]
    return [(now - had) / took_s for had, now in zip(before, after, strict=True)]


def measure(first: Kernel, second: Kernel, cpus: Sequence[int], times: int) -> Pair:
    files = system_ports().files
    ports = NativeKernels(files), NativeKernels(files)
    found = Pair([], [])
    for _ in range(times):
        (one,) = rates(ports[:1], [first], cpus[:1])
        both = rates(ports, [first, second], cpus)
        (other,) = rates(ports[1:], [second], cpus[1:])
        again = rates(ports, [first, second], cpus)
        found.first.append((both[0] + again[0]) / 2 / one)
        found.second.append((both[1] + again[1]) / 2 / other)
    return found


def predicted(first: Program, second: Program) -> tuple[float, float]:
    """EMULATED: on the first two cores of a die."""
    alone = [emulated([(one, [core])]).speeds[0] for core, one in enumerate((first, second))]
    both = emulated([(first, [0]), (second, [1])]).speeds
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
