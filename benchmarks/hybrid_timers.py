"""Nodes that go off after so many idle seconds, next to such with a profile of spares made a day ahead.

The whole curve of ``idle_off_s`` on SDSC-BLUE, 144 Taurus nodes, ``easy``: joules and mean wait. Spares look at eight
weeks, at several quantiles, with a timer of a second and of 300 s; and so many nodes without a job at all times
(``keep_idle``). Another way is better where it needs fewer joules at no longer wait. EMULATED.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import cache
from typing import Final

import msgspec
from msgspec.structs import replace

from benchmarks.experiment import save
from benchmarks.sc15_learned import workload_of
from cluster_agent.cluster import Machine, load_machine
from cluster_agent.kept_on import Kept
from cluster_agent.prices.node_forecast import Past, spares
from cluster_agent.prices.profit_days import DAY_S
from cluster_agent.scheduler.job_columns import Int64s, Jobs
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policies.registry import choose

TIMER_S: Final = 300
WEEKS: Final = 8
CONSTANT: Final = 2
QUANTILES: Final = (0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98)
TIMERS_S: Final = (1, 30, 60, 120, 300, 600, 900, 1800, 3600)


class Row(msgspec.Struct, frozen=True):
    """Of one timer, None: nodes never go off; with spares of a quantile, or so many nodes at all times, or neither."""

    off_s: int | None
    quantile: float | None
    constant: int | None
    joules: float
    wait_s: float
    boots: int


@cache
def of_blue() -> tuple[Jobs, Machine]:
    return workload_of("SDSC-BLUE").jobs, load_machine("taurus:nodes=144")


def measured(off_s: int | None, quantile: float | None = None, constant: int | None = None) -> Row:
    kept = None if quantile is None else kept_by(quantile)
    replay = replayed(off_s, kept, constant)
    wait_s = float((replay.start_s - of_blue()[0].submit_s).mean())
    return Row(off_s, quantile, constant, replay.joules["cluster"], wait_s, replay.boots)


def replayed(off_s: int | None, kept: Kept | None = None, constant: int | None = None) -> NativeReplay:
    jobs, machine = of_blue()
    given = [("idle_off_s", off_s), ("keep_idle", constant)]
    parameters = ",".join(f"{name}={value}" for name, value in given if value is not None)
    composition = choose(f"easy:{parameters}" if parameters else "easy").composition
    composition = composition if kept is None else replace(composition, kept=kept)
    replay = NativeReplay(composition, jobs, machine.processors, Watts.of(machine, composition.power))
    replay.run(len(jobs) + 1)
    return replay


@cache
def started_s() -> Int64s:
    """With the timer alone."""
    return replayed(TIMER_S).start_s.copy()


@cache
def kept_by(quantile: float) -> Kept:
    jobs, machine = of_blue()
    begun_s = int(jobs.submit_s[0]) // DAY_S * DAY_S
    days = int(jobs.submit_s[-1] - begun_s) // DAY_S + 1
    found = spares(Past(jobs, started_s(), machine, WEEKS, quantile), begun_s, days)
    return Kept(idle=tuple((at_s, nodes * machine.node.cores) for at_s, nodes in found))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one timer and one quantile")
    options = parser.parse_args(arguments)
    timers_s, quantiles = ((TIMER_S,), QUANTILES[:1]) if options.quick else (TIMERS_S, QUANTILES)
    wanted: list[tuple[int | None, float | None, int | None]] = [(off_s, None, None) for off_s in (None, *timers_s)]
    wanted += [(off_s, quantile, None) for quantile in quantiles for off_s in (1, TIMER_S)]
    rows = []
    print(f"{'timer':>6} {'spares':>6} {'nodes':>6} {'TJ':>8} {'wait s':>8} {'boots':>8}")
    for one in [*wanted, (TIMER_S, None, CONSTANT)]:
        rows.append(measured(*one))
        cells = " ".join(f"{'-' if value is None else value:>6}" for value in one)
        row = rows[-1]
        print(f"{cells} {row.joules / 1e12:8.4f} {row.wait_s:8.1f} {row.boots:8}", flush=True)
    save("hybrid_timers", {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
