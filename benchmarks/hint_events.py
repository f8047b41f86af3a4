"""What `gpu-events` saves and costs on emulated nodes whose programs give hints.

Compared with other policies and with REGALE's interception prototype: energy of GPU boards and time, against the fixed
highest clock. `bdpo-gpu` and `gpu-events` look at SM occupancy, which NVML does not show on an A100, where both would
do next to nothing: here they are given the model's own, as in `published_facts`. `firmware`: the card chooses its clock
itself. Only `gpu-events` sees hints. The programs hint as `lab.node_demo.emulated_hints` assumes: a big copy at the
start of each phase under 10 % occupancy, a kernel at the start of each other one. The published prototype also
intercepts whatever kernels lie within such a phase, and its callbacks cost time; neither is known, and neither is
emulated. All EMULATED; nothing was chosen on these runs: both constants of the policy are the report's.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.experiment import Experiment, run, save
from benchmarks.oracle_gpu import at_highest_clock
from benchmarks.published_facts import with_occupancy
from lab.node_demo.emulated_hints import EmulatedHints

MACHINE = "xh2415"
BY_OCCUPANCY = ("bdpo-gpu", "gpu-events")
WORKLOADS = ("hpcg", "qe-pw", "easywave")
POLICIES = ("firmware", "bdpo-gpu", "gpu-events", "gpu-ladder")
SEEDS = (1, 2, 3, 4, 5)

PUBLISHED = {
    "hpcg": ("-6 /  0", "-8 /  0", "-14 /  3", "-"),
    "qe-pw": ("0 /  3", "-1 /  3", "+2 /  6", "-"),
    "easywave": ("-5 / ~0", "-11 / ~0", "incompatible", "-"),
}
"""REGALE D2.3 §3.4, A100-80: energy and time in percent, in the order of ``POLICIES``."""


def measure(machine: str, workload: str, policy: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Energy and time relative to the fixed highest clock, each seed."""
    energy, slower, ticks = [], [], []
    for seed in seeds:
        experiment = Experiment(machine, workload, seed, gpu_policy=policy)
        reference_s, reference_j = at_highest_clock(machine, workload, seed, experiment.bias, None)
        result = run(experiment, hints=EmulatedHints if policy == "gpu-events" else None)
        energy.append(result.joules("gpu") / reference_j - 1.0)
        slower.append(result.slowdown_against(reference_s))
        ticks.append(result.ticks / result.time_s)
    return {"workload": workload, "policy": policy, "energy": energy, "slower": slower, "ticks_per_s": ticks}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hint_events", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed")
    options = parser.parse_args(argv)
    seeds = SEEDS[:1] if options.quick else SEEDS
    print(f"EMULATED, {MACHINE}, {len(seeds)} seeds: energy of the GPU boards / time, against the fixed highest clock")
    print(f"{'':10}{'':12}{'energy %':>16}{'time %':>16}{'ticks/s':>9}   published (energy / time)")
    rows, seeing = [], with_occupancy()
    for workload in WORKLOADS:
        for policy, published in zip(POLICIES, PUBLISHED[workload], strict=True):
            row = measure(seeing if policy in BY_OCCUPANCY else MACHINE, workload, policy, seeds)
            rows.append(row)
            energy, slower = ([100.0 * share for share in row[name]] for name in ("energy", "slower"))
            print(
                f"{workload:10}{policy:12}{np.mean(energy):+9.1f} ±{np.ptp(energy) / 2:4.1f}"
                f"{np.mean(slower):+11.1f} ±{np.ptp(slower) / 2:4.1f}{np.mean(row['ticks_per_s']):9.2f}"
                f"   {published}",
                flush=True,
            )
    if not options.quick:
        print("JSON:", save("hint_events", {"machine": MACHINE, "rows": rows}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
