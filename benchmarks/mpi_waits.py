"""What `mpi-waits` saves and costs on an emulated node whose program waits for a late rank of another node.

All cores compute as `nas` does, then poll in MPI until the late rank comes, again and again. Polling takes the same
time at any clock. Assumed (ours): it draws as much activity as computing does, has an IPC of 1 and reads no memory. The
hints are those of `nodectl_mpi.c`, in virtual time: each core's thread waits from the front of the polling to its end,
which wakes the agent. Energy of packages and DRAM, and time, against the fixed highest clock. EMULATED; nothing was
chosen on these runs.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.experiment import Experiment, run, save
from lab.node_demo.emulated_hints import EmulatedHints
from pmu.ports import Clock
from pmu.readings import Hint, RawHints
from twin.physics.model import Twin

MACHINE = "curie"
SEEDS = (1, 2, 3)
SECONDS = 30.0
PUBLISHED = "COUNTDOWN (arXiv 1806.07258), real machine: NAS -6 to -50 % (< 5 % slower), Quantum ESPRESSO -22 % (< 3 %)"

WORKLOAD = """
name = "late-rank"
summary = "computing as nas, and polling for a late rank"
source = "ours"

[[cpu]]
cpus = "cores"
repeat = {repeat}
wait = "spin"
imbalance = 0.02
[[cpu.phase]]
name = "solve"
seconds = {solve}
beta = 0.4
activity = 0.80
ipc = 1.1
traffic_gbs = 2.5
iterations = 1
[[cpu.phase]]
name = "poll"
seconds = {poll}
beta = 0.0
activity = 0.80
ipc = 1.0
traffic_gbs = 0.0
iterations = 1
"""


class EmulatedWaits(EmulatedHints):
    """Of the first group, which waits in the last phase of each round; only the end of a wait wakes the agent."""

    def __init__(self, twin: Twin, clock: Clock) -> None:
        super().__init__(twin, clock)
        assert twin.workload is not None
        (self._group,) = range(len(twin.workload.groups))
        group = twin.workload.groups[0]
        self._threads = len(group.units)
        self._ends_s = list(np.cumsum([seconds for _, _, seconds in group.program]))

    def read(self) -> RawHints:
        rounds, into_s = divmod(self._twin.work_s()[self._group] + 1e-9, self._ends_s[-1])
        is_waiting = into_s >= self._ends_s[-2] and not self._twin.finished
        waited = int(rounds) * self._threads
        self._last_read = RawHints(1, int(rounds), 1, Hint.NONE, 0, 0, waited + is_waiting * self._threads, waited, 1)
        return self._last_read

    def wait(self, deadline_ns: int) -> None:
        before = self.read().news
        while self._clock.now_ns() < deadline_ns and self.read().news == before:
            self._clock.sleep_until_ns(min(deadline_ns, self._clock.now_ns() + 1_000_000))


def measure(place: Path, poll_s: float, share: float, period_ms: float, seeds: Sequence[int]) -> dict[str, Any]:
    """Energy and time relative to the fixed highest clock, each seed."""
    solve_s = poll_s * (1 - share) / share
    path = place / "late-rank.toml"
    path.write_text(WORKLOAD.format(repeat=max(round(SECONDS / (solve_s + poll_s)), 1), solve=solve_s, poll=poll_s))
    energy, slower = [], []
    for seed in seeds:
        fixed = run(Experiment(MACHINE, str(path), seed, cpu_policy="fixed-cpu"))
        found = run(
            Experiment(MACHINE, str(path), seed, cpu_policy="mpi-waits", period_ms=period_ms), hints=EmulatedWaits
        )
        energy.append(found.joules("cpu") / fixed.joules("cpu") - 1.0)
        slower.append(found.slowdown_against(fixed.time_s))
    return {"poll_s": poll_s, "share": share, "period_ms": period_ms, "energy": energy, "slower": slower}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mpi_waits", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, one share")
    options = parser.parse_args(argv)
    seeds, shares = (SEEDS[:1], (0.3,)) if options.quick else (SEEDS, (0.1, 0.3, 0.5))
    print(f"EMULATED, {MACHINE}, {len(seeds)} seeds: energy of packages and DRAM / time, against the highest clock")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for share in shares:
            for poll_s in (0.05, 0.2, 1.0):
                for period_ms in (10.0, 100.0):
                    row = measure(Path(folder), poll_s, share, period_ms, seeds)
                    rows.append(row)
                    print(
                        f"waits {share:4.0%} of the time, {1000 * poll_s:5.0f} ms each, period {period_ms:3.0f} ms:"
                        f" energy {100 * np.mean(row['energy']):+6.1f} %, time {100 * np.mean(row['slower']):+5.2f} %",
                        flush=True,
                    )
    print(f"published: {PUBLISHED}")
    if not options.quick:
        print("JSON:", save("mpi_waits", {"machine": MACHINE, "rows": rows}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
