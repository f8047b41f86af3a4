"""What the agent itself costs: own code per tick on 384 logical CPUs and 8 GPUs, and a served node at a 10 ms period.

*Own code* is everything from the raw sweep to the journal, without reading instruments or writing knobs. It is fed the
sweeps of a run of the same policies, so that clocks have followed the requests, and nothing else is timed: processor
time, in microseconds and in yardsticks of the machine (`tests/yardstick.py`) taken in turn with it. Target: at most
1 ms where a yardstick takes 130 us, as on a machine left to itself. The sweep itself is measured by `sweep_cost`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.experiment import save
from nodectl.config import Budget, Config, PolicyChoice
from nodectl.decide.decider import Decider
from nodectl.decide.decisions import Decisions
from nodectl.journal import JournalWriter, open_journal
from nodectl.loop.agent import Agent
from nodectl.loop.summary import RunAccount, Summary
from pmu.decode import decode
from pmu.layout import Layout
from pmu.readings import RawSweep, type_f64
from tests.yardstick import yardstick_ns
from twin.in_process_node import ports
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

MOST_US, AT_YARDSTICK_US, MOST_RSS_MB = 1000.0, 130.0, 60.0
STAGES = ("decode", "decide", "account", "journal")
PAIRS = (("bdpo-cpu", "bdpo-gpu"), ("bdpo-cpu-bounded", "gpu-ladder"))
LOADS = ("mixed-cpu:11", "mixed-gpu:3")
TICKS_PER_YARDSTICK = 5


def record(config: Config, workload: str, ticks: int) -> tuple[Layout, list[RawSweep]]:
    """Sweeps of an emulated genoa-h100 under the agent, 100 ms apart."""
    machine = load_machine("genoa-h100")
    with tempfile.TemporaryDirectory() as directory:
        twin = Twin(machine, load_workload(workload, machine, seed=1, duration_s=ticks / 10 + 10), seed=1)
        with Agent.open(ports(twin), msgspec.structs.replace(config, state_dir=directory)) as agent:
            agent.run(until_ns=twin.time_ns + ticks * 100_000_000)
        records = list(open_journal(Path(directory) / "journal"))
    return records[0].keyframe.layout, [record.raw for record in records]


def own_code(layout: Layout, sweeps: Sequence[RawSweep], config: Config) -> tuple[dict[str, type_f64], type_f64]:
    """Microseconds per tick of each stage, and of the yardstick taken last before it."""
    decider, account = Decider(layout, config), RunAccount(layout)
    sides = {policy.name: policy.domain for policy in decider.policies if policy}
    took_ns: list[list[int]] = []
    yardsticks_ns: list[int] = []
    with tempfile.TemporaryDirectory() as directory:
        journal = JournalWriter(Path(directory), layout, config, config.journal.max_bytes)
        journal.append(sweeps[0], Decisions(), [], 0, 0)
        for before, now in itertools.pairwise(sweeps):
            if len(took_ns) % TICKS_PER_YARDSTICK == 0:
                yardsticks_ns.append(yardstick_ns())
            else:
                yardsticks_ns.append(yardsticks_ns[-1])
            at = [time.thread_time_ns()]
            sample = decode(layout, before, now)
            at.append(time.thread_time_ns())
            decisions = decider.decide(sample)
            at.append(time.thread_time_ns())
            account.add_sample(sample)
            account.add_decisions(sample, decisions, sides)
            at.append(time.thread_time_ns())
            journal.append(now, decisions, [], 0, 0)
            at.append(time.thread_time_ns())
            took_ns.append([end - begin for begin, end in itertools.pairwise(at)])
        journal.close()
    stages = np.array(took_ns).T * 1e-3
    return dict(zip(STAGES, stages, strict=True)), np.array(yardsticks_ns) * 1e-3


def served(machine: str, workload: str, period: str, seconds: int) -> tuple[Summary, float, float] | str:
    """The daemon on a served node: its own summary, its peak RSS in MB and its processor time in seconds from start to
    end, or why it could not be run."""
    nodectl = [sys.executable, "-m", "nodectl.cli"]
    watch = (
        "import resource,subprocess,sys;subprocess.run(sys.argv[1:]);u=resource.getrusage(resource.RUSAGE_CHILDREN);"
        "print(u.ru_maxrss, u.ru_utime + u.ru_stime)"
    )
    with tempfile.TemporaryDirectory() as state:
        command = [
            *nodectl, "twin", "run", "--machine", machine, "--workload", workload,
            "--duration", str(seconds + 10), "--",
            sys.executable, "-c", watch, *nodectl, "run", "--mode", "optimize", "--period", period,
            "--duration", f"{seconds}s", "--state-dir", state, "--json",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), check=False)
    lines = done.stdout.splitlines()
    if done.returncode or len(lines) < 2:
        return (done.stderr.strip().splitlines() or ["no message"])[-1]
    rss_kb, processor_s = lines[-1].split()
    return msgspec.json.decode(lines[-2], type=Summary), int(rss_kb) / 1024, float(processor_s)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agent_cost", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer ticks")
    options = parser.parse_args(argv)
    ticks, seconds = (200, 8) if options.quick else (1000, 30)
    content: dict[str, Any] = {}
    missed = 0
    print(f"own code per tick on genoa-h100, us of processor time, medians of {ticks} recorded sweeps")
    columns = (*STAGES, "sum", "p99", "yardstick", "in these")
    print(f"{'policies':30}{'load':14}" + "".join(f"{column:>10}" for column in columns))
    for cpu, gpu in PAIRS:
        for load in LOADS:
            config = Config(
                mode="optimize", cpu_policy=PolicyChoice(cpu), gpu_policy=PolicyChoice(gpu), budget=Budget(core_share=0)
            )
            layout, sweeps = record(config, load, ticks)
            took, yardsticks = own_code(layout, sweeps, config)
            total = sum(took.values())
            figures = {stage: float(np.median(values)) for stage, values in took.items()}
            figures |= {"sum": float(np.median(total)), "p99": float(np.percentile(total, 99))}
            figures |= {"yardstick": float(np.median(yardsticks)), "in these": float(np.median(total / yardsticks))}
            row = "".join(f"{figures[column]:10.0f}" for column in columns[:-1])
            print(f"{cpu + ', ' + gpu:30}{load:14}{row}{figures['in these']:10.2f}", flush=True)
            content[f"{cpu}, {gpu}, {load}"] = figures
            missed += figures["in these"] > MOST_US / AT_YARDSTICK_US
    print(
        f"target: sum <= {MOST_US:.0f} us at a yardstick of {AT_YARDSTICK_US:.0f} us: {MOST_US / AT_YARDSTICK_US:.1f} "
        "yardsticks"
    )
    for machine, workload, period in (("xh2415", "easywave", "10ms"), ("genoa-h100", "mixed-cpu:11", "100ms")):
        outcome = served(machine, workload, period, seconds)
        if isinstance(outcome, str):
            print(f"served {machine} at {period}: not measured: {outcome}")
            continue
        summary, rss_mb, processor_s = outcome
        late = summary.lateness
        print(
            f"served {machine} at {period}: {summary.ticks} ticks, {summary.missed_periods} periods missed, period now "
            f"{summary.period_ms:g} ms, lateness p50 {late.p50_ms:.2f} p99 {late.p99_ms:.2f} ms, "
            f"sweep p50 {summary.sweep.p50_ms:.2f} ms, own code with knob writes p50 {summary.own_code.p50_ms:.2f} ms, "
            f"processor time {1e3 * processor_s / max(summary.ticks, 1):.2f} ms per period, "
            f"peak RSS {rss_mb:.1f} MB (target < 60)"
        )
        content[f"served {machine} {period}"] = {"summary": summary, "rss_mb": rss_mb, "processor_s": processor_s}
        # "keeps its period": not backed off, and at most one period in a hundred missed, which a shared machine needs
        missed += rss_mb >= MOST_RSS_MB or summary.period_ms > float(period[:-2])
        missed += summary.missed_periods > 0.01 * summary.ticks
    print("JSON:", save("agent_cost", content))
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
