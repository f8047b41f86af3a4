"""How much faster than real time the emulated node runs on one core, per machine and load.

Prints a table and writes ``out/bench/twin_speed.json``. The requirement: genoa-h100, 384 logical CPUs and 8 GPUs, at
least 5 times, also while all cores wait for shared memory bandwidth. Process CPU time is what is measured, so that
other load on the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

from twin.machine import EVENTS, load_machine
from twin.machine_tables import Bandwidth
from twin.physics.model import Twin
from twin.programs.workload import load_workload

REQUIRED = 5.0
OUT = Path("out/bench/twin_speed.json")

CASES = (
    ("curie", "hpl"),
    ("skylake-6146", "mixed-cpu:1"),
    ("v100", "v100:ResN50"),
    ("xh2415", "easywave"),
    ("genoa-h100", "mixed-gpu:1"),
    ("genoa-h100", "mixed-cpu:1"),
    ("genoa-h100", "mixed-gpu:1+triad"),
    ("spr-h100", "mixed-gpu:1+triad"),
)
SHARED = Bandwidth(core_gbs=30.0, link_cores=8, link_gbs=40.0, link_loss=0.01, package_gbs=400.0)
"""Ours: of the node that runs triad next to its GPUs' work, whose file has none."""
MODEL_S = 20.0


def speed(machine_name: str, workload_name: str, model_s: float) -> dict[str, float | str]:
    """Model seconds per CPU second: undisturbed, and with all counters read each 10 ms as an agent does."""
    machine = load_machine(machine_name)
    gpu_work, _, cpu_work = workload_name.partition("+")
    if cpu_work and machine.memory.bandwidth is None:
        memory = msgspec.structs.replace(machine.memory, bandwidth=SHARED)
        machine = msgspec.structs.replace(machine, memory=memory)
    workload = load_workload(gpu_work, machine)
    if cpu_work:
        on_gpus = [group for group in workload.groups if group.on_gpu]
        groups = (*on_gpus, *load_workload(cpu_work, machine, duration_s=120.0).groups)
        workload = msgspec.structs.replace(workload, groups=groups)
    rates = []
    for period_s in (model_s, 0.010):
        twin = Twin(machine, workload)
        twin.advance(1.0)
        start = time.process_time()
        for _ in range(round(model_s / period_s)):
            twin.advance(period_s)
            if period_s < model_s:
                twin.counters(EVENTS)
        rates.append(model_s / (time.process_time() - start))
    return {
        "machine": machine_name,
        "workload": workload_name,
        "cpus": machine.cpus,
        "gpus": machine.gpus,
        "times_real_time": rates[0],
        "times_real_time_read_at_10_ms": rates[1],
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.twin_speed", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter of the time")
    model_s = MODEL_S / 4 if parser.parse_args(arguments).quick else MODEL_S
    rows = [speed(machine, workload, model_s) for machine, workload in CASES]
    print(f"{'machine':14} {'workload':18} {'CPUs':>5} {'GPUs':>5} {'x real time':>12} {'read at 10 ms':>14}")
    for row in rows:
        print(
            f"{row['machine']:14} {row['workload']:18} {row['cpus']:5} {row['gpus']:5} "
            f"{row['times_real_time']:12.0f} {row['times_real_time_read_at_10_ms']:14.0f}"
        )
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(rows, indent=1))
    slowest = float(np.min([row["times_real_time"] for row in rows if row["machine"] == "genoa-h100"]))
    print(f"genoa-h100 runs {slowest:.0f} times faster than real time on one core (required: {REQUIRED:.0f})")
    return 0 if slowest >= REQUIRED else 1


if __name__ == "__main__":
    sys.exit(main())
