"""Ten minutes of the real agent on emulated nodes, replayed: are all decisions the same, and how fast is it?

Prints a table and writes ``out/bench/replay_speed.json``. Required: byte-equal decisions, and at least 50 times faster
than the run, at the default period of 100 ms. In addition: what the journal takes on the disk, and how long its 1 GB
therefore lasts. Emulated nodes; replay and journal are the real ones. Process CPU time is what is measured, so that
other load on the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from nodectl.config import Config, GpuSettings, PolicyChoice
from nodectl.journal import DEFAULT_MAX_BYTES, open_journal
from nodectl.journal.decide_again import replay
from nodectl.loop.agent import Agent
from nodectl.policies import registry
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

REQUIRED = 50.0
RUN_S, QUICK_RUN_S = 600, 60
OUT = Path("out/bench/replay_speed.json")

CASES = (
    ("curie", "mixed-cpu:1"),
    ("xh2415", "mixed-gpu:1"),
    ("genoa-h100", "mixed-cpu:1"),
    ("genoa-h100", "mixed-gpu:1"),
)


def record(state_dir: str, machine_name: str, workload_name: str, run_s: int) -> Path:
    """One run of the agent with its default policies; returns its journal."""
    machine = load_machine(machine_name)
    twin = Twin(machine, load_workload(workload_name, machine, duration_s=2.0 * run_s))
    gpu_policy = Config().gpu_policy if machine.gpus else PolicyChoice(registry.NONE)
    config = Config(mode="optimize", state_dir=state_dir, gpu_policy=gpu_policy, gpu=GpuSettings(0))
    with InProcess(twin) as node, Agent.open(node.ports, config) as agent:
        agent.run(until_ns=node.ports.clock.now_ns() + run_s * 10**9)
    return config.journal_dir


def measure(machine_name: str, workload_name: str, run_s: int) -> dict[str, object]:
    """Record one run and replay it."""
    with tempfile.TemporaryDirectory() as state_dir:
        directory = record(state_dir, machine_name, workload_name, run_s)
        size = sum(path.stat().st_size for path in directory.iterdir())
        begin = time.process_time()
        report = replay(open_journal(directory))
        cpu_s = time.process_time() - begin
    return {
        "machine": machine_name,
        "workload": workload_name,
        "records": report.records,
        "decisions": report.decided,
        "differing": report.differing,
        "first_difference": str(report.first or ""),
        "times_faster": report.recorded_s / cpu_s,
        "ms_per_record": 1e3 * cpu_s / report.records,
        "bytes_per_record": size / report.records,
        "hours_in_default_bound": DEFAULT_MAX_BYTES / size * report.recorded_s / 3600,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay_speed", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"runs of {QUICK_RUN_S} s instead of {RUN_S} s")
    run_s = QUICK_RUN_S if parser.parse_args(arguments).quick else RUN_S
    print(
        f"{'machine':12} {'workload':12} {'decisions':>9} {'differ':>6} {'faster':>8} {'ms/tick':>8} {'B/tick':>7}"
        " 1 GB lasts"
    )
    rows = []
    for case in CASES:
        row = measure(*case, run_s)
        rows.append(row)
        print(
            f"{row['machine']:12} {row['workload']:12} {row['decisions']:9} {row['differing']:6}"
            f" {row['times_faster']:7.0f}x {row['ms_per_record']:8.3f} {row['bytes_per_record']:7.0f}"
            f" {row['hours_in_default_bound']:8.1f} h",
            flush=True,
        )
        if row["differing"]:
            print(f"  {row['first_difference']}")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(
        json.dumps({"required_times_faster": REQUIRED, "run_s": run_s, "emulated": True, "rows": rows}, indent=2)
    )
    is_good = all(row["differing"] == 0 and float(str(row["times_faster"])) >= REQUIRED for row in rows)
    print(f"required: equal and at least {REQUIRED:.0f} times faster: {'yes' if is_good else 'NO'}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
