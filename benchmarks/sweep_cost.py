"""What reading costs: one native sweep over real software events and real files, and decoding a large node.

Counter groups live on real CPUs, so 384 of them are spread over those that this machine has: the reads are as many as
on a node with 384 logical CPUs, and each read of another CPU's group interrupts that CPU, as it would there. Hardware
events would add the reading of their registers, some hundred nanoseconds a group.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pmu.decode import decode
from pmu.instruments.event_source import PERF_TYPE_SOFTWARE
from pmu.instruments.kept import NativeIntegers
from pmu.instruments.perf_groups import PerfGroups, Source, try_open
from pmu.node import Instruments, discover
from pmu.readings import type_i64
from pmu.system import OsFiles
from pmu.topology import online_cpus
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

OUT = Path(__file__).parent.parent / "out" / "bench" / "sweep_cost.json"

# enum perf_sw_ids (include/uapi/linux/perf_event.h)
EVENTS = [Source(PERF_TYPE_SOFTWARE, number, f"software-{number}") for number in (0, 2, 3, 5)]

LARGE_NODE = 384
FILES = 1152  # three cpuidle states of 384 CPUs
DECODE_BUDGET_US = 250.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    repeats = 200 if parser.parse_args(arguments).quick else 2000
    cpus = online_cpus(OsFiles())
    if error := try_open(EVENTS[0], cpus[0]):
        print(f"system-wide counting is not allowed here: {errno.errorcode[error]}", file=sys.stderr)
        return 1
    rows: list[tuple[str, str, type_i64]] = []
    for size in (1, 4):
        for cpu in cpus:
            rows.append(("real", f"1 group of {size} on CPU {cpu}, read from CPU 0", sweep([cpu], size, repeats)))
        rows.append(("real", f"{len(cpus)} groups of {size}, one per CPU", sweep(cpus, size, repeats)))
        spread = [cpus[i % len(cpus)] for i in range(LARGE_NODE)]
        rows.append(
            ("real", f"{LARGE_NODE} groups of {size} over {len(cpus)} CPUs", sweep(spread, size, repeats // 10))
        )
    rows.append(("real", f"{FILES} kept files", sweep_files(repeats // 10)))
    rows += large_node(repeats)
    print(f"{'on':<9} {'what':<44} {'p50':>9} {'p99':>9}  us")
    for where, what, costs_ns in rows:
        p50_us, p99_us = percentiles_us(costs_ns)
        print(f"{where:<9} {what:<44} {p50_us:9.1f} {p99_us:9.1f}")
    decode_us = percentiles_us(rows[-1][2])[0]
    print(f"decoding stays {'within' if decode_us <= DECODE_BUDGET_US else 'ABOVE'} {DECODE_BUDGET_US:.0f} us")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    table = [
        {"on": where, "what": what, "p50_us": p[0], "p99_us": p[1]}
        for where, what, c in rows
        if (p := percentiles_us(c))
    ]
    OUT.write_text(json.dumps(table, indent=1))
    return 0 if decode_us <= DECODE_BUDGET_US else 1


def sweep(cpus: list[int] | tuple[int, ...], size: int, repeats: int) -> type_i64:
    """Cost of sweeping one group per entry of ``cpus``, from CPU 0."""
    groups = PerfGroups(cpus, [EVENTS[:size]] * len(cpus))
    out = np.zeros((len(cpus), size), np.int64)
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        return timed(lambda: groups.sweep(out), repeats)
    finally:
        os.sched_setaffinity(0, allowed)
        groups.close()


def sweep_files(repeats: int) -> type_i64:
    """Cost of reading kept files with one number each."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/{i}" for i in range(FILES)]
        for i, path in enumerate(paths):
            Path(path).write_text(f"{i * 1_000_003}\n")
        kept = NativeIntegers(paths)
        out = np.zeros(FILES, np.int64)
        try:
            return timed(lambda: kept.sweep(out), repeats)
        finally:
            kept.close()


def large_node(repeats: int) -> list[tuple[str, str, type_i64]]:
    """Sweep and decoding of 384 logical CPUs and 8 GPUs, emulated in this process. The last row is the decoding."""
    machine = load_machine("genoa-h100")
    twin = Twin(machine, load_workload("easywave", machine, seed=1), seed=1)
    with InProcess(twin) as node:
        layout, _ = discover(node.ports)
        instruments = Instruments(node.ports, layout)
        before = instruments.sweep()
        twin.advance(0.1)
        current = instruments.sweep()
        what = f"{len(layout.cpus)} CPUs and {len(layout.gpus)} GPUs"
        swept = timed(instruments.sweep, repeats // 10, between=lambda: twin.advance(0.1))
        decoded = timed(lambda: decode(layout, before, current), repeats)
        instruments.close()
    return [("emulated", f"sweep of {what}, in process", swept), ("-", f"decoding {what}", decoded)]


def timed(work: Callable[[], object], repeats: int, between: Callable[[], object] = lambda: None) -> type_i64:
    """Nanoseconds of each of ``repeats`` calls, after a few to warm up; what is done ``between`` is not timed."""
    costs_ns = np.zeros(repeats, np.int64)
    for i in range(-5, repeats):
        between()
        begin_ns = time.perf_counter_ns()
        work()
        if i >= 0:
            costs_ns[i] = time.perf_counter_ns() - begin_ns
    return costs_ns


def percentiles_us(costs_ns: type_i64) -> tuple[float, float]:
    """Median and 99th percentile in microseconds."""
    return float(np.percentile(costs_ns, 50)) / 1e3, float(np.percentile(costs_ns, 99)) / 1e3


if __name__ == "__main__":
    sys.exit(main())
