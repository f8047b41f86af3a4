"""What ``minimal-slowdown`` gains on ``aapc`` by the table of a calibrated node, and how much there is to gain at all.

EMULATED. The closed loop of ``benchmarks/sharers``: the same jobs, truth and reports; only what the sharer has
differs. *machine*: the tables that the truth is drawn around, Curie's measured watts and degradations (today's gain).
*calibrated*: the P-state table of an emulated node of Curie, by kernels and erring sensors. *truth*: each job's own
watts and speeds, which nobody can know. Nothing was chosen here; seeds are those of the published table.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.experiment import save
from benchmarks.sharers import HOURS, MAIN, NODES, Partition, Running, Setting
from benchmarks.stated_violation import write_node_table
from cluster_agent.budget.sharers import registry
from cluster_agent.budget.sharers.calibrated_speed import tables_of
from cluster_agent.budget.sharers.speed import SpeedModel
from cluster_agent.budget.sharers.view import Tag
from foundation.student import mean_interval

BUDGETS: Final = (60, 75, 80)
SEEDS: Final = 10
SETTINGS: Final = (MAIN,)
WANTED: Final = 1.5


class Given(Partition):
    """The sharer has these tables, or, without, each job's truth."""

    given: dict[Tag, SpeedModel] | None = None

    def table_of(self, job: Running) -> SpeedModel:
        if self.given is not None:
            return self.given[job.said]
        watts = self.idle_w + job.watts * (self.busy_w - self.idle_w)
        power, speed = watts / self.busy_w[0], job.table
        if power[0] > 1.0:  # its full speed needs more than TDP, which no cap gives
            at_tdp = float(np.interp(1.0, power[::-1], speed[::-1]))
            speed = np.append(at_tdp, speed[power < 1.0]) / at_tdp
            power = np.append(1.0, power[power < 1.0])
        idle = self.idle_w / self.busy_w[0]
        return SpeedModel(job.name, idle, tuple(power.tolist()), tuple(speed.tolist()), "the truth")


def throughput(
    make: Callable[..., Partition], given: dict[Tag, SpeedModel] | None, setting: Setting, budget: int, name: str,
    seed: int,
) -> float:  # fmt: skip
    """Per cent of what the nodes could do."""
    world = make(setting, seed, registry.choose(name).share, budget / 100)
    if isinstance(world, Given):
        world.given = given
    world.run(HOURS * 3600)
    return 100 * sum(world.work_s.values()) / (NODES * HOURS * 3600)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibrated_sharer", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="four seeds, one budget")
    options = parser.parse_args(arguments)
    seeds, budgets = (4, (75,)) if options.quick else (SEEDS, BUDGETS)
    with tempfile.TemporaryDirectory(prefix="nodectl-table-") as folder:
        write_node_table(Path(folder) / "pstates.toml")
        calibrated = tables_of(Path(folder) / "pstates.toml")
    print("EMULATED; gain of minimal-slowdown on aapc, per cent of throughput, by what it has")
    print(f"{'setting':20} {'budget':>6} {'aapc':>6} {'machine':>14} {'calibrated':>14} {'truth':>14}")
    rows: list[dict[str, Any]] = []
    ways: dict[str, Callable[[Setting, int, str, int], float]] = {
        "machine": partial(throughput, Partition, None),
        "calibrated": partial(throughput, Given, calibrated),
        "truth": partial(throughput, Given, None),
    }
    for setting in SETTINGS:
        for budget in budgets:
            with ProcessPoolExecutor(1) as pool:
                before = list(pool.map(partial(ways["machine"], setting, budget, "aapc"), range(seeds)))
                gains = {}
                for way, run in ways.items():
                    done = pool.map(partial(run, setting, budget, "minimal-slowdown"), range(seeds))
                    gains[way] = mean_interval([100 * (new / old - 1) for new, old in zip(done, before, strict=True)])
            rows.append({"setting": setting.name, "budget": budget, "aapc": sum(before) / seeds, **gains})
            shown = " ".join(f"{mean:7.2f} ±{half:5.2f}" for mean, half in gains.values())
            print(f"{setting.name:20} {budget:>4} % {sum(before) / seeds:6.1f} {shown}", flush=True)
    for row in rows:
        today = row["machine"][0]
        print(
            f"{row['setting']}, {row['budget']} %: calibrated {row['calibrated'][0] / today:.2f} x today's gain, truth"
            f" {row['truth'][0] / today:.2f} x (required: {WANTED:g})"
        )
    save("calibrated_sharer", {"rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
