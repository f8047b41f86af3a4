"""What the agent itself costs: own code per tick on 384 logical CPUs and 8 GPUs, and a served node at a 10 ms period.

*Own code* is everything from the raw sweep to the journal, without reading instruments or writing knobs, fed from a
recorded run so that nothing else is timed. The sweep itself is measured by `sweep_cost`. Target: at most 1 ms.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.experiment import save
from nodectl.config import Config, PolicyChoice
from nodectl.decider import Decider
from nodectl.decisions import Decisions
from nodectl.journal import JournalWriter
from nodectl.summary import RunAccount, Summary
from pmu.decode import decode
from pmu.layout import Layout
from pmu.node import Instruments, discover
from pmu.readings import RawSweep
from twin.inproc import InProcess
from twin.machine import load_machine
from twin.model import Twin
from twin.workload import load_workload

MOST_US, MOST_RSS_MB = 1000.0, 60.0
STAGES = ("decode", "decide", "account", "journal")


def record(ticks: int) -> tuple[Layout, list[RawSweep]]:
    """Sweeps of an emulated genoa-h100: a mixed CPU and a mixed GPU load, 100 ms apart."""
    machine = load_machine("genoa-h100")
    twin = Twin(machine, load_workload("mixed-cpu:11", machine, seed=1, duration_s=ticks / 10 + 10), seed=1)
    with InProcess(twin) as node:
        layout, _ = discover(node.ports)
        instruments = Instruments(node.ports, layout)
        sweeps = []
        for _ in range(ticks + 1):
            twin.advance(0.1)
            sweeps.append(instruments.sweep())
        instruments.close()
    return layout, sweeps


def own_code(layout: Layout, sweeps: Sequence[RawSweep], config: Config) -> dict[str, np.ndarray[Any, Any]]:
    """Seconds per tick of each stage."""
    decider, account = Decider(layout, config), RunAccount(layout)
    sides = {policy.name: policy.domain for policy in decider.policies if policy}
    took: dict[str, list[float]] = {stage: [] for stage in STAGES}

    def timed(stage: str, call: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        result = call()
        took[stage].append(time.perf_counter() - begin)
        return result

    with tempfile.TemporaryDirectory() as directory:
        journal = JournalWriter(Path(directory), layout, config, config.journal.max_bytes)
        journal.append(sweeps[0], Decisions(), [], 0, 0)
        for before, now in itertools.pairwise(sweeps):
            sample = timed("decode", lambda b=before, n=now: decode(layout, b, n))
            decisions = timed("decide", lambda s=sample: decider.decide(s))
            timed("account", lambda s=sample, d=decisions: (account.add_sample(s), account.add_decisions(s, d, sides)))
            timed("journal", lambda n=now, d=decisions: journal.append(n, d, [], 0, 0))
        journal.close()
    return {stage: np.array(values) for stage, values in took.items()}


def served(machine: str, workload: str, period: str, seconds: int) -> tuple[Summary, float] | str:
    """The daemon on a served node: its own summary and its peak RSS in MB, or why it could not be run."""
    nodectl = [sys.executable, "-m", "nodectl.cli"]
    peak = "import resource,subprocess,sys;subprocess.run(sys.argv[1:]);print(resource.getrusage(-1).ru_maxrss)"
    with tempfile.TemporaryDirectory() as state:
        command = [
            *nodectl, "twin", "run", "--machine", machine, "--workload", workload,
            "--duration", str(seconds + 10), "--",
            sys.executable, "-c", peak, *nodectl, "run", "--mode", "optimize", "--period", period,
            "--duration", f"{seconds}s", "--state-dir", state, "--json",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), check=False)
    lines = done.stdout.splitlines()
    if done.returncode or len(lines) < 2:
        return (done.stderr.strip().splitlines() or ["no message"])[-1]
    return msgspec.json.decode(lines[-2], type=Summary), int(lines[-1]) / 1024


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agent_cost", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer ticks")
    options = parser.parse_args(argv)
    ticks, seconds = (200, 8) if options.quick else (1000, 30)
    layout, sweeps = record(ticks)
    content: dict[str, Any] = {}
    missed = 0
    print(
        f"own code per tick, us, medians of {ticks} recorded sweeps: {len(layout.cpus)} CPUs, {len(layout.gpus)} GPUs"
    )
    print(f"{'policies':32}" + "".join(f"{stage:>9}" for stage in STAGES) + f"{'sum':>9}{'p99':>9}")
    for cpu, gpu in (("bdpo-cpu", "bdpo-gpu"), ("bdpo-cpu-bounded", "gpu-ladder")):
        config = Config(mode="optimize", cpu_policy=PolicyChoice(cpu), gpu_policy=PolicyChoice(gpu))
        took = own_code(layout, sweeps, config)
        total = sum(took.values())
        figures = {stage: float(np.median(values) * 1e6) for stage, values in took.items()}
        figures |= {"sum": float(np.median(total) * 1e6), "p99": float(np.percentile(total, 99) * 1e6)}
        print(f"{cpu + ', ' + gpu:32}" + "".join(f"{value:9.0f}" for value in figures.values()))
        content[f"{cpu}, {gpu}"] = figures
        missed += figures["sum"] > MOST_US
    print("target: sum <= 1000 us")
    for machine, workload, period in (("xh2415", "easywave", "10ms"), ("genoa-h100", "mixed-cpu:11", "100ms")):
        outcome = served(machine, workload, period, seconds)
        if isinstance(outcome, str):
            print(f"served {machine} at {period}: not measured: {outcome}")
            continue
        summary, rss_mb = outcome
        late = summary.lateness
        print(
            f"served {machine} at {period}: {summary.ticks} ticks, {summary.missed_periods} periods missed, period now "
            f"{summary.period_ms:g} ms, lateness p50 {late.p50_ms:.2f} p99 {late.p99_ms:.2f} ms, "
            f"sweep p50 {summary.sweep.p50_ms:.2f} ms, own code with knob writes p50 {summary.own_code.p50_ms:.2f} ms, "
            f"peak RSS {rss_mb:.1f} MB (target < 60)"
        )
        content[f"served {machine} {period}"] = {"summary": summary, "rss_mb": rss_mb}
        # "holds its period": not backed off, and at most one period in a hundred missed, which a shared machine needs
        missed += rss_mb >= MOST_RSS_MB or summary.period_ms > float(period[:-2])
        missed += summary.missed_periods > 0.01 * summary.ticks
    print("JSON:", save("agent_cost", content))
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
