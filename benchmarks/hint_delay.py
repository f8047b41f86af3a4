"""How soon a clock follows a hint of a job, what a hint costs its program, and what hints cost the agent.

In real time on this machine: a program of its own gives hints on a real page, the real agent decides by `gpu-events`
and sets the clock of an EMULATED card through NVML. *Delay*: from before the call of the hint until NVML has taken the
clock of the first card. It has in it what the node model costs here, and not the time that a real card takes to follow.
*Periodic*: the same without the wake-up. *Phase*: from the front of a phase until the clock of the first core is
written, by `phase-levels` through cpufreq of the emulated node. Published: a node manager in Arm firmware, from a
phase's front to the applied clock, over SCMI (REGALE D2.3 §3.5).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.experiment import save
from nodectl.config import Budget, Config, GpuSettings, JournalSettings, PolicyChoice
from nodectl.jobs.hint_page import make_hint_page
from nodectl.jobs.hint_watch import SHARE, HintWatch
from nodectl.loop.agent import Agent
from nodectl.loop.interruptions import Interruptions
from nodectl.progress import header
from pmu.instruments.job_hints import HintFile
from pmu.readings import Sample
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin

PUBLISHED_MS = {"event": 1.35, "periodic": 2.20}
CALLS = 2_000_000
NO_POLICY = PolicyChoice("none")
LEVELS = PolicyChoice("phase-levels", {"levels": "1:0.6/2:0.8"})

GIVES = """
import sys, time
from nodectl import hints
gaps = [float(word) for word in sys.argv[1:]]
hints.phase(1).__enter__()
time.sleep(0.5)
for number, gap in enumerate(gaps):
    at = time.monotonic_ns()
    hints.kernel() if number % 2 else hints.copy(10**10)
    print(at)
    time.sleep(gap)
"""

PHASES = """
import sys, time
from nodectl import hints
time.sleep(0.5)
for number, gap in enumerate(float(word) for word in sys.argv[1:]):
    print(time.monotonic_ns())
    hints.phase(1 + number % 2).__enter__()
    time.sleep(gap)
"""

FLOODS = """
import sys, time
from nodectl import hints
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    for number in range(1, 100):
        hints.phase(number).__enter__()
"""

CALLS_FROM_PYTHON = """
import time
from nodectl import hints
begin = time.perf_counter()
for _ in range(200000): hints.kernel()
print((time.perf_counter() - begin) / 200000 * 1e9)
"""

COSTS = """
#include <stdio.h>
#include <time.h>
#include "nodectl_hints.h"
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
int main(void)
{
    for (int round = 0; round < 5; round++) {
        double a = now();
        for (int i = 0; i < CALLS; i++) nodectl_hints_kernel();
        double b = now();
        for (int i = 0; i < CALLS; i++) nodectl_hints_phase((uint32_t)i);
        double c = now();
        for (int i = 0; i < CALLS / 2; i++) { nodectl_hints_wait_begin(); nodectl_hints_wait_end(); }
        printf("%g %g %g\\n", (b - a) / CALLS, (c - b) / CALLS, (now() - c) / CALLS);
    }
}
"""


class Watched(HintWatch):
    """Adds up what hints cost the loop."""

    woken, woken_s, looks, look_s = 0, 0.0, 0, 0.0

    def look(self, sample: Sample, spent_s: float, least_s: float = 0.0) -> list[str]:
        begin_s = time.thread_time()
        before = self._credit_s
        lines = super().look(sample, spent_s, least_s)
        if self._credit_s < before:
            self.woken, self.woken_s = self.woken + 1, self.woken_s + spent_s
        self.looks, self.look_s = self.looks + 1, self.look_s + time.thread_time() - begin_s
        return lines


def program_costs(place: Path, environment: dict[str, str]) -> dict[str, float]:
    """Nanoseconds of one call in C, the median of five rounds, with a page and nobody asleep on it."""
    (place / "costs.c").write_text(COSTS)
    compiler = ["cc", "-std=gnu11", "-O2", f"-DCALLS={CALLS}", f"-I{header()}", str(place / "costs.c"), "-o"]
    subprocess.run([*compiler, str(place / "costs")], check=True)
    names = ("kernel", "phase, each another", "wait")
    costs: dict[str, float] = {}
    for title, env in (("with a page", environment), ("without", {})):
        printed = subprocess.run([place / "costs"], env=env, check=True, capture_output=True, text=True).stdout
        rounds = np.array([[float(word) for word in line.split()] for line in printed.splitlines()])
        costs |= {f"{name}, {title}": float(np.median(rounds[:, at])) for at, name in enumerate(names)}
    python = [sys.executable, "-c", CALLS_FROM_PYTHON]
    done = subprocess.run(python, env=environment, check=True, capture_output=True, text=True)
    return costs | {"kernel, from Python": float(done.stdout)}


class Stamped:
    """NVML, with the time of each new clock."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self.seen: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nvml, name)

    def nvmlDeviceSetGpuLockedClocks(self, card: Any, low_mhz: int, high_mhz: int) -> None:  # noqa: N802 - NVML's name
        self._nvml.nvmlDeviceSetGpuLockedClocks(card, low_mhz, high_mhz)
        if not self.seen or self.seen[-1][1] != high_mhz:
            self.seen.append((time.monotonic_ns(), high_mhz))


class StampedFiles:
    """The node's files, with the time of each new clock of the first core."""

    def __init__(self, files: Any, seen: list[tuple[int, int]]) -> None:
        self._files, self._seen = files, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def write(self, path: str, text: str) -> None:
        self._files.write(path, text)
        if path.endswith("policy0/scaling_max_freq"):
            self._seen.append((time.monotonic_ns(), int(text)))


class Ran(NamedTuple):
    """A program under the agent: what it printed, when which clock was set, what hints cost, and seconds."""

    given: list[int]
    seen: list[tuple[int, int]]
    watch: Watched
    took_s: float


@contextlib.contextmanager
def agent(
    place: Path, period_ms: float, is_woken: bool, cpu_policy: PolicyChoice = NO_POLICY
) -> Iterator[Callable[..., Ran]]:
    """The agent on an emulated node in real time: yields a function that runs it around a program. Clocks are those of
    the card, or with ``cpu_policy`` those of the first of 8 cores."""
    path = place / "hints"
    path.unlink(missing_ok=True)
    make_hint_page(path)
    page = HintFile(path, os.geteuid())
    twin = Twin(load_machine("xh2415" if cpu_policy == NO_POLICY else "a100"))
    on_cpu: list[tuple[int, int]] = []
    config = Config(
        mode="optimize", period_ms=period_ms, gpu_policy=PolicyChoice("gpu-events"), cpu_policy=cpu_policy,
        state_dir=str(place / f"state-{time.monotonic_ns()}"), journal=JournalSettings(), gpu=GpuSettings(0),
        budget=Budget(core_share=0.0), calibration="",
    )  # fmt: skip
    with (
        contextlib.closing(Watched(lambda: page)) as watch,
        InProcess(twin, is_realtime=True) as node,
        Interruptions(node.ports.clock) as interruptions,
        Agent.open(
            replace(
                node.ports,
                nvml=(nvml := Stamped(node.ports.nvml)),
                files=StampedFiles(node.ports.files, on_cpu) if cpu_policy != NO_POLICY else node.ports.files,
            ),
            config,
            wait=interruptions.wait,
            hints=watch,
        ) as opened,
    ):
        seen = on_cpu if cpu_policy != NO_POLICY else nvml.seen
        watch.want(is_woken)
        if is_woken:
            interruptions.also = watch.descriptor

        def around(script: str, *words: str) -> Ran:
            begin_s = time.monotonic()
            environment = {**os.environ, "NODECTL_HINTS": str(path)}
            child = subprocess.Popen([sys.executable, "-c", script, *words], env=environment, stdout=subprocess.PIPE)
            interruptions.watch(child)
            opened.run(is_over=interruptions.is_over)
            own = opened.summary()
            print(f"    a tick: sweep {own.sweep.p50_ms:.2f} ms, the rest {own.own_code.p50_ms:.2f} ms (medians)")
            given = [int(line) for line in child.communicate()[0].split()]
            return Ran(given, seen, watch, time.monotonic() - begin_s)

        yield around
    page.close()


def delays_ms(
    place: Path, period_ms: float, is_woken: bool, count: int, script: str = GIVES, cpu_policy: PolicyChoice = NO_POLICY
) -> list[float]:
    """From each hint to the clock that follows from it."""
    drawn = random.Random(1)
    gaps = [f"{drawn.uniform(0.15, 0.35):.4f}" for _ in range(count)]
    with agent(place, period_ms, is_woken, cpu_policy) as around:
        ran = around(script, *gaps)
    times = [at for at, _ in ran.seen[cpu_policy == NO_POLICY :]]
    return [(next(at for at in times if at > hint) - hint) / 1e6 for hint in ran.given if times and hint < times[-1]]


def thread_s() -> float:
    """Processor seconds of the thread that sleeps on the page."""
    for thread in threading.enumerate():
        if thread.name == "hints" and thread.native_id:
            return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e9
    return 0.0


def agent_costs(place: Path, seconds: float) -> dict[str, float]:
    """Next to a program that gives no hints, and to one that does nothing else; shares of one CPU."""
    costs: dict[str, float] = {}
    for title, script in (("quiet", "import sys, time; time.sleep(float(sys.argv[1]))"), ("flood", FLOODS)):
        with agent(place, 100.0, True) as around:
            before_s = thread_s()
            ran = around(script, str(seconds))
            costs[f"{title}: thread"] = (thread_s() - before_s) / ran.took_s
            costs[f"{title}: early ticks"] = ran.watch.woken_s / ran.took_s
            costs[f"{title}: early ticks a second"] = ran.watch.woken / ran.took_s
            costs[f"{title}: looking, us a tick"] = ran.watch.look_s / ran.watch.looks * 1e6
    return costs


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hint_delay", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer hints, shorter floods")
    options = parser.parse_args(argv)
    count, seconds = (20, 5.0) if options.quick else (100, 20.0)
    content: dict[str, Any] = {"load": os.getloadavg(), "cpus": os.cpu_count()}
    print(f"EMULATED card, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="nodectl-hint-delay-") as name:
        place = Path(name)
        for title, period_ms, is_woken, script, cpu_policy in (
            ("woken, period 100 ms", 100.0, True, GIVES, NO_POLICY),
            ("periodic, 100 ms", 100.0, False, GIVES, NO_POLICY),
            ("periodic, 10 ms", 10.0, False, GIVES, NO_POLICY),
            ("phase, woken, period 100 ms", 100.0, True, PHASES, LEVELS),
            ("phase, periodic, 100 ms", 100.0, False, PHASES, LEVELS),
            ("phase, periodic, 10 ms", 10.0, False, PHASES, LEVELS),
        ):
            delays = content[title] = delays_ms(place, period_ms, is_woken, count, script, cpu_policy)
            p50, p90 = np.percentile(delays, [50, 90])
            print(f"{title:28} {len(delays):4} hints: median {p50:7.2f} ms, p90 {p90:7.2f}, least {min(delays):.2f}")
        print(f"published: event {PUBLISHED_MS['event']} ms, periodic {PUBLISHED_MS['periodic']} ms")
        costs = content["agent"] = agent_costs(place, seconds)
        for title, cost in costs.items():
            print(f"{title:32} {cost:.2f}" if "second" in title or "us" in title else f"{title:32} {cost:.3%} of a CPU")
        print(f"target: a flood's early ticks at most {SHARE:.0%} of a CPU")
        make_hint_page(place / "costs-page")
        ns = content["program_ns"] = program_costs(place, {**os.environ, "NODECTL_HINTS": str(place / "costs-page")})
        for title, cost in ns.items():
            print(f"{title:32} {cost:6.1f} ns a call")
    if not options.quick:
        print("JSON:", save("hint_delay", content))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
