"""How long a replay takes: the whole command, reading and writing included, as a user starts it, on one core.

Bounds apply to processor seconds, which are what the wall clock shows on an idle core; the wall clock stands next to
them and shows more when others use the machine. Machines differ, and shared ones from minute to minute: next to each
time stand the yardsticks (``tests.yardstick``: 120 to 150 us on a machine left to itself) measured just before and
after each run. Compiled byte code is kept between the runs, as it is in every installation, wherever else Python may
write it; the first run, which compiles, does not count.

The generated log has the load and the size that are requested and no other claim to be like a real one: Poisson
arrivals, widths that are powers of two up to a 32nd of the machine, log-normal run times, and requests of one to ten
times the run time, all drawn from the seed.

``--against CHECKOUT``: only the commands, those of ``power_speed``, and long logs with configurations, here and in
another checkout that is set up (``make setup``), which of them is first in turn: median processor seconds, the
geometric mean of the pairs' ratios, and its 95 % interval (``--pairs 40`` for an answer). With ``--instructions`` it
counts what both engines execute, once and under valgrind (``cluster_agent._native`` alone, reading and writing of logs
included), which no other program on the machine changes: at most 1.02 times as many as the other checkout's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import statistics
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
from benchmarks.paired_cost import MOST_RATIO, interval
from benchmarks.power_speed import TRACE, Case, cases
from benchmarks.rmap import write_long
from cluster_agent.cluster import load_machine
from cluster_agent.scheduler.job_columns import Int64s
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Composition, Queue
from cluster_agent.workloads.job_log import Workload, prepare
from cluster_agent.workloads.swf import read_swf
from tests.yardstick import yardstick_ns

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data" / "sc15-backfilling"
OUT = ROOT / "out" / "bench" / "scheduler_speed.json"

EASY_PLUS_PLUS = "easy-sjbf:estimate=mean2,correct=incremental"
COMMANDS = (
    # log, policy, most seconds
    ("CTC-SP2", "easy", 0.6),
    ("CEA-Curie", "easy", 2.0),
    ("CEA-Curie", EASY_PLUS_PLUS, 3.0),
    ("KTH-SP2", "conservative", 5.0),
    ("CTC-SP2", "conservative", 1.2),
)
ORDERED_LOG, MOST_ORDERED_S, MOST_CALL_US = "CTC-SP2", 1.2, 10.0
ORDER = """
from cluster_agent.scheduler.policies.api import NoParams, Policy
from cluster_agent.scheduler.policy_phases import Composition


def order(queue, now_s):
    return queue.width * queue.estimate_s * 1.0


POLICY = Policy("own-saf", "", "", NoParams, lambda params: Composition(order=order, backfill="easy"))
"""
"""A policy file whose order is that of ``score:lowest=saf``, in Python."""
RICC = ROOT.parent / "shared" / "data" / "swf" / "RICC-2010-2.swf.gz"
RICC_MOST_S = 60.0
GENERATED_JOBS, GENERATED_NODES, LOAD, SEED = 1_000_000, 100_000, 0.85, 1
CROWDED = {0.95: 15.0, 1.1: 10.0}
"""Load: most seconds. Above 1 the queue grows without end."""
GENERATED_MOST_MIB = 2048.0
MOST_GROWTH = 1.5
MOST_INSTRUCTIONS = 1.02
REPEATS = 7
YARDSTICKS = 100  # before and after each run


class Row(msgspec.Struct, frozen=True):
    """One measurement and its bound; ``wall_s`` is the median too, where there is a time."""

    what: str
    median: float
    bound: float
    unit: str
    wall_s: float | None = None
    yardstick_us: float | None = None

    @property
    def is_met(self) -> bool:
        return self.median <= self.bound


def generate(path: Path, jobs: int, processors: int, load: float, seed: int) -> None:
    """Write a log that offers ``load`` of the machine on average."""
    random = np.random.default_rng(seed)
    width = 2 ** random.integers(0, int(np.log2(processors / 32)) + 1, jobs)
    run_s = np.clip(random.lognormal(7.5, 1.5, jobs), 10, 86_400).astype(np.int64)
    request_s = np.minimum((run_s * random.uniform(1, 10, jobs)).astype(np.int64) // 60 * 60 + 60, 172_800)
    mean_gap_s = float((width * run_s).mean()) / (load * processors)
    submit_s = np.cumsum(random.exponential(mean_gap_s, jobs)).astype(np.int64)
    user = random.integers(1, 501, jobs)
    unknown = np.full(jobs, -1)
    columns: list[Int64s] = [
        np.arange(1, jobs + 1),
        submit_s,
        unknown,
        run_s,
        width,
        unknown,
        unknown,
        width,
        request_s,
    ]
    columns += [unknown, np.ones(jobs, np.int64), user, *[unknown] * 6]
    with path.open("w") as file:
        file.write(f"; Computer: generated, seed {seed}\n; MaxProcs: {processors}\n")
        np.savetxt(file, np.column_stack(columns), fmt="%d")


def command(log: Path, policy: str, repeats: int) -> tuple[float, float, float, float]:
    """Medians of processor and wall seconds on one core, the largest memory of any command so far in MiB, and the
    median yardstick in microseconds."""
    processor_s, wall_s, yardsticks_ns = [], [], []
    with tempfile.TemporaryDirectory(prefix="scheduler-speed-") as out:
        arguments = [str(log), "--policy", policy]
        once(ROOT, arguments, out)
        for _ in range(repeats):
            yardsticks_ns += [yardstick_ns() for _ in range(YARDSTICKS)]
            begin = time.perf_counter()
            processor_s.append(once(ROOT, arguments, out))
            wall_s.append(time.perf_counter() - begin)
            yardsticks_ns += [yardstick_ns() for _ in range(YARDSTICKS)]
    mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return statistics.median(processor_s), statistics.median(wall_s), mib, statistics.median(yardsticks_ns) / 1000


def once(checkout: Path, arguments: Sequence[str], out: str, below: Sequence[str] = ()) -> float:
    """Processor seconds of one replay by a checkout on one core, with byte code that is kept below ``out``; below
    another program, such as valgrind."""
    core = {min(os.sched_getaffinity(0))}
    results = Path(out) / "replay"
    shutil.rmtree(results, ignore_errors=True)
    python = sys.executable if checkout == ROOT else str(checkout / ".venv" / "bin" / "python")
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": f"{out}/byte-code"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    running = subprocess.Popen(
        [*below, python, "-m", "cluster_agent.cli", "replay", *arguments, "--out", str(results)],
        cwd=checkout,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        preexec_fn=lambda: os.sched_setaffinity(0, core),
    )
    _, status, used = os.wait4(running.pid, 0)
    running.returncode = os.waitstatus_to_exitcode(status)
    if running.returncode > 1 or not (results / "metrics.json").exists():  # 1: some jobs never fit under the cap
        raise subprocess.CalledProcessError(running.returncode, running.args)
    return used.ru_utime + used.ru_stime


def instructions(checkout: Path, arguments: Sequence[str], out: str) -> int:
    """How many instructions the native engine of a checkout executes in one replay."""
    left = Path(out) / "callgrind.out"
    once(checkout, arguments, out, ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={left}"])
    return executed(left.read_text())


def executed(callgrind: str) -> int:
    """Instructions of the engine's own code in a file of callgrind (valgrind manual, "Callgrind Format
    Specification"): lines of costs below ``ob=``, but for those after ``calls=``, which are a callee's."""
    names, count, is_ours, is_callees = dict[str, str](), 0, False, False
    for line in callgrind.splitlines():
        if found := re.match(r"c?ob=(\(\d+\))(?: (.*))?$", line):
            names.setdefault(found[1], found[2] or "")
            is_ours = names[found[1]].endswith("cluster_agent/_native.abi3.so") if line[0] == "o" else is_ours
        elif line.startswith("calls="):
            is_callees = True
        elif re.match(r"[+*\d-]", line):
            count += int(line.split()[1]) if is_ours and not is_callees else 0
            is_callees = False
    return count


def rows_to_compare(folder: Path, only: Sequence[str]) -> dict[str, list[str]]:
    """The arguments of each replay, by what it is, if that contains one of ``only``, or of all; files that it needs lie
    in ``folder``."""
    machine = load_machine("curie")
    rows = {f"{policy} on {log}": [str(DATA / f"{log}.swf.gz"), "--policy", policy] for log, policy, _ in COMMANDS}
    first_s = int(prepare(read_swf(str(TRACE)), machine.processors).jobs.submit_s[0])
    windows = folder / "windows.csv"
    for case in [Case("metered easy", "easy"), *cases(machine, first_s)]:
        rows[case.what] = [str(TRACE), "--policy", case.policy, "--machine", "curie"]
        if len(case.caps) == 1:
            rows[case.what].append(f"--cap={case.caps[0].watts}")
        elif case.caps:
            lines = [f"{cap.from_s},{cap.to_s},{cap.watts}\n" for cap in case.caps]
            windows.write_text("".join(["from_s,to_s,watts\n", *lines]))
            rows[case.what] += ["--cap", str(windows)]
    long = folder / "long.swf"
    write_long(long, 100_000, 1000)
    on_nodes = ["--configurations", "cab", "--machine", "cab64:nodes=1000", "--cap", "90000"]
    for policy in ("rmap", "moldable"):
        rows[f"{policy}, 10^5 jobs on 1000 nodes"] = [str(long), "--policy", policy, *on_nodes]
    return {what: row for what, row in rows.items() if not only or any(word in what for word in only)}


def compare(other: Path, pairs: int, only: Sequence[str]) -> int:
    """Print the ratios to another checkout, with their 95 % intervals; 1: an interval is wholly above the bound."""
    ratios: dict[str, list[float]] = {}
    slower = 0
    print(f"{'what':44} {'other':>8} {'here':>8} {'ratio':>7}   95 % interval, {pairs} pairs")
    with tempfile.TemporaryDirectory(prefix="scheduler-speed-") as folder:
        for what, arguments in rows_to_compare(Path(folder), only).items():
            took: dict[Path, list[float]] = {other: [], ROOT: []}
            for pair in range(pairs + 1):
                for checkout in (other, ROOT) if pair % 2 else (ROOT, other):
                    took[checkout].append(once(checkout, arguments, folder))
            theirs, ours = took[other][1:], took[ROOT][1:]  # the first run compiles
            ratios[what] = [here / there for there, here in zip(theirs, ours, strict=True)]
            ratio, low, high = interval(ratios[what])
            is_slower = low > MOST_RATIO
            slower += is_slower
            times = f"{statistics.median(theirs):7.3f}s {statistics.median(ours):7.3f}s"
            print(f"{what:44} {times} {ratio:7.3f}   {low:.3f} to {high:.3f}{'   SLOWER' * is_slower}", flush=True)
    print("JSON:", save("scheduler_speed_pairs", {"against": str(other), "ratios": ratios}))
    return int(slower > 0)


def compare_instructions(other: Path, only: Sequence[str]) -> int:
    """Print how many instructions both engines execute; 1: a ratio is above the bound."""
    if shutil.which("valgrind") is None:
        print("scheduler_speed: valgrind is missing: apt-get install valgrind", file=sys.stderr)
        return 2
    ratios = dict[str, float]()
    print(f"{'what':44} {'other':>16} {'here':>16} {'ratio':>7}")
    with tempfile.TemporaryDirectory(prefix="scheduler-speed-") as folder:
        for what, arguments in rows_to_compare(Path(folder), only).items():
            theirs, ours = (instructions(checkout, arguments, folder) for checkout in (other, ROOT))
            ratios[what] = ours / theirs
            is_more = ratios[what] > MOST_INSTRUCTIONS
            print(f"{what:44} {theirs:16,} {ours:16,} {ratios[what]:7.3f}{'   MORE' * is_more}", flush=True)
    print("JSON:", save("scheduler_speed_instructions", {"against": str(other), "ratios": ratios}))
    return int(max(ratios.values(), default=0.0) > MOST_INSTRUCTIONS)


def whole_commands(repeats: int) -> list[Row]:
    found = []
    for log, policy, most_s in COMMANDS:
        processor_s, wall_s, _, yardstick_us = command(DATA / f"{log}.swf.gz", policy, repeats)
        found.append(Row(f"{policy} on {log}", processor_s, most_s, "s", wall_s, yardstick_us))
    return found


def order_in_python(folder: Path, repeats: int) -> list[Row]:
    """The whole command with an order in Python, and what a call costs: against the same order by a formula, which is
    native, in the engine alone, in pairs."""
    file, log = folder / "own.py", DATA / f"{ORDERED_LOG}.swf.gz"
    file.write_text(ORDER)
    processor_s, wall_s, _, yardstick_us = command(log, str(file), repeats)
    what = f"an order in Python on {ORDERED_LOG}"
    found = read_swf(str(log))
    workload = prepare(found, int(found.header["MaxProcs"]))
    own, formula, calls, call_us = choose(str(file)).composition, choose("score:lowest=saf").composition, 0, []
    yardsticks_ns = []

    def counted(queue: Queue, now_s: int) -> Any:
        nonlocal calls
        calls += 1
        return queue.width * queue.estimate_s * 1.0

    starts = []
    for composition in (msgspec.structs.replace(own, order=counted), formula):
        replay = NativeReplay(composition, workload.jobs, workload.processors)
        replay.run(len(workload.jobs) + 1)
        starts.append(replay.start_s.tolist())
    assert starts[0] == starts[1]
    for _ in range(repeats):
        yardsticks_ns += [yardstick_ns() for _ in range(YARDSTICKS)]
        native_s = engine_seconds(workload, formula)
        call_us.append((engine_seconds(workload, own) - native_s) / calls * 1e6)
    call = Row(f"a call of it, of {calls:,}", statistics.median(call_us), MOST_CALL_US, "us")
    call = msgspec.structs.replace(call, yardstick_us=statistics.median(yardsticks_ns) / 1000)
    return [Row(what, processor_s, MOST_ORDERED_S, "s", wall_s, yardstick_us), call]


def conservative_on_ricc() -> Row:
    """Once: thousands of jobs wait for weeks."""
    processor_s, wall_s, _, yardstick_us = command(RICC, "conservative", 1)
    return Row("conservative on RICC", processor_s, RICC_MOST_S, "s", wall_s, yardstick_us)


def a_million_jobs(path: Path, load: float, repeats: int) -> list[Row]:
    generate(path, GENERATED_JOBS, GENERATED_NODES, load, SEED)
    processor_s, wall_s, mib, yardstick_us = command(path, "easy", repeats)
    what = f"easy on {GENERATED_JOBS:,} generated jobs, load {load:g}"
    return [
        Row(what, processor_s, CROWDED[load], "s", wall_s, yardstick_us),
        Row(f"{what}, memory", mib, GENERATED_MOST_MIB, "MiB"),
    ]


def growth_with_nodes(path: Path, jobs: int, repeats: int) -> Row:
    """The same schedule on 10^5 nodes as on 10^3: every width times 100, so queue and running jobs are equal."""
    generate(path, jobs, 1000, LOAD, SEED)
    small = prepare(read_swf(str(path)), 1000)
    large = prepare(scaled(small), 100_000)
    fast, slow = [], []
    for _ in range(repeats):
        fast.append(engine_seconds(small))
        slow.append(engine_seconds(large))
    ratio = statistics.median(slow) / statistics.median(fast)
    return Row("easy, 10^5 nodes against 10^3", ratio, MOST_GROWTH, "times")


def scaled(workload: Workload) -> Any:
    """The log with every width times 100."""
    log = workload.log
    columns = log.columns.copy()
    columns[[4, 7]] *= 100
    return type(log)(log.path, log.sha256, log.header, columns, log.lines, log.findings)


def engine_seconds(workload: Workload, composition: Composition | None = None) -> float:
    begin = time.process_time()
    NativeReplay(composition or choose("easy").composition, workload.jobs, workload.processors).run(
        len(workload.jobs) + 1
    )
    return time.process_time() - begin


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three repeats, no million jobs, no RICC")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="compare with another one, and nothing else")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--instructions", action="store_true", help="with --against: what the engines execute")
    parser.add_argument("only", nargs="*", help="with --against: commands whose name contains one of these")
    options = parser.parse_args(arguments)
    if options.against and options.instructions:
        return compare_instructions(options.against.resolve(), options.only)
    if options.against:
        return compare(options.against.resolve(), options.pairs, options.only)
    repeats = 3 if options.quick else REPEATS
    found: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="scheduler-speed-") as directory:
        log = Path(directory) / "generated.swf"
        if DATA.exists():
            found += whole_commands(repeats) + order_in_python(Path(directory), repeats)
        else:
            print("scheduler_speed: no real logs, ../shared/data/sc15-backfilling is not here", file=sys.stderr)
        found.append(growth_with_nodes(log, 50_000, repeats))
        if not options.quick:
            found += [row for load in CROWDED for row in a_million_jobs(log, load, 3)]
            found += [conservative_on_ricc()] if RICC.exists() else []
    print(f"{'what':56} {'median':>9} {'bound':>9} {'of bound':>9} {'wall':>9} {'yardstick':>9}")
    for row in found:
        mark = "" if row.is_met else "   NOT MET"
        wall = "" if row.wall_s is None else f"{row.wall_s:.2f}"
        yardstick = "" if row.yardstick_us is None else f"{row.yardstick_us:.0f} us"
        times = f"{row.median:9.2f} {row.bound:9.2f} {row.median / row.bound:9.0%} {wall:>9} {yardstick:>9}"
        print(f"{row.what:56} {times} {row.unit}{mark}")
    OUT.parent.mkdir(parents=True, exist_ok=True)
    content = {"load_average": os.getloadavg()[0], "rows": json.loads(msgspec.json.encode(found))}
    OUT.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1))
    return 0 if all(row.is_met for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
