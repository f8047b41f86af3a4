"""Does a tick cost more than in another checkout? The writer with 384 clocks and a cap, and the agent's tick, in pairs.

`python -m benchmarks.paired_cost --against CHECKOUT`, for example one that `git worktree add --detach` has made and in
which the native parts are built. Each pair runs both checkouts one after the other, in turn which one is first, each in
processes of its own with the Python of its own environment, so that what else the machine does meets both alike.
Compared is processor time. Without `--against` a checkout is compared with itself: what is seen then is noise.

*writer*: a round of 384 clock limits that all move and one package limit that stays, ten times a second, from the
agent to the files and back; agent and writer process together, the mean of all rounds, so that what happens in some
of them counts too. *tick that writes*, *tick*: deciding and writing in one process on the twin's files of a
genoa-h100, with and without all limits moving (`agent_cost.limits_cost`), medians. *whole tick*: the same with both
policies from the sweep to the journal, so that every number of NVML and of the kernel's files passes the readers'
guard, and with the looks for late hardware; the twin's part is in it. Target: the 95 % interval of the ratio is not
wholly above 1.03.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.experiment import save

MOST_RATIO: Final = 1.03
T_95: Final = 1.96
"""Of the normal distribution; 40 pairs are many enough."""

HERE: Final = Path(__file__).parent.parent

WRITER: Final = """
import json, os, sys, tempfile, time
from pathlib import Path
import psutil
from benchmarks.writer_cost import NAMES, CLOCKS, VALUES_KHZ, used_ms
from tests.writer_process.tree_writer import make_tree, writer_on
folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
with tempfile.TemporaryDirectory(dir=folder) as directory:
    at = Path(directory)
    writer = writer_on(make_tree(at / "node", CLOCKS), at / "state", lock=at / "lock")
    writer.start()
    (process,) = psutil.Process(writer._link.process.pid).children()
    pids = (os.getpid(), process.pid)
    took = []
    for n in range(int(sys.argv[1]) + 2):
        settings = {**dict.fromkeys(NAMES, VALUES_KHZ[n % 2]), "rapl/package-0/long_term_uw": 60_000_000}
        before = sum(map(used_ms, pids))
        writer.apply(settings)
        time.sleep(0.1)
        took.append(sum(map(used_ms, pids)) - before)
    writer.restore_all()
    writer.close()
print(json.dumps({"writer": sum(took[2:]) / len(took[2:])}))
"""

TICK: Final = """
import json, sys
from benchmarks.agent_cost import limits_cost
found = limits_cost("cpu", int(sys.argv[1]))
names = {"tick": "tick without a write, us", "tick that writes": "tick that writes all limits, us"}
print(json.dumps({short: found[name] for short, name in names.items()}))
"""


WHOLE_TICK: Final = """
import json, sys, tempfile, time
import numpy as np
from nodectl.config import Budget, Config
from nodectl.loop.agent import Agent
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload
machine, ticks, took = load_machine("genoa-h100"), int(sys.argv[1]), []
twin = Twin(machine, load_workload("easywave", machine, seed=1, duration_s=ticks / 10 + 10), seed=1)
with tempfile.TemporaryDirectory() as directory, InProcess(twin) as node:
    config = Config(mode="optimize", state_dir=directory, budget=Budget(core_share=0))
    with Agent.open(node.ports, config) as agent:
        period = agent._period
        def timed(*given):
            began_ns = time.thread_time_ns()
            period(*given)
            took.append((time.thread_time_ns() - began_ns) / 1e3)
        agent._period = timed
        for _ in range(ticks):
            agent.tick()
print(json.dumps({"whole tick": float(np.median(took))}))
"""


def measured(checkout: Path, code: str, rounds: int) -> dict[str, float]:
    """What the code prints in that checkout."""
    python = checkout / ".venv" / "bin" / "python"
    done = subprocess.run(
        [str(python) if python.exists() else sys.executable, "-c", code, str(rounds)],
        cwd=checkout, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(checkout)},
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of the ratios, and its 95 % interval."""
    logs = np.log(ratios)
    half = T_95 * float(logs.std(ddof=1)) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    mean = float(logs.mean())
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paired_cost", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="4 pairs, and shorter")
    parser.add_argument("--against", type=Path, default=HERE, help="the other checkout (default: this one)")
    parser.add_argument("--pairs", type=int, help="how many (default: 40)")
    options = parser.parse_args(arguments)
    pairs = options.pairs or (4 if options.quick else 40)
    rounds, ticks = (10, 30) if options.quick else (30, 60)
    ratios: dict[str, list[float]] = {}
    for n in range(pairs):
        for code, length in ((WRITER, rounds), (TICK, ticks), (WHOLE_TICK, ticks)):
            order = (HERE, options.against) if n % 2 else (options.against, HERE)
            both = [(checkout, measured(checkout, code, length)) for checkout in order]
            ours, theirs = (both[1][1], both[0][1]) if n % 2 == 0 else (both[0][1], both[1][1])
            for name in ours:
                ratios.setdefault(name, []).append(ours[name] / theirs[name])
            print(f"pair {n + 1}:", *(f"{name} {found[-1]:.3f}" for name, found in ratios.items()), flush=True)
    rows = {name: interval(found) for name, found in ratios.items()}
    print(f"processor time here / in {options.against}: {pairs} pairs, geometric mean and 95 % interval")
    for name, (mean, low, high) in rows.items():
        print(f"{name:18} {mean:6.3f}  ({low:.3f} to {high:.3f})")
    print("JSON:", save("paired_cost", {"rows": rows, "ratios": ratios, "against": str(options.against)}))
    return int(any(low > MOST_RATIO for _, low, _ in rows.values()))


if __name__ == "__main__":
    raise SystemExit(main())
