"""The P-state table of emulated nodes whose silicon is not that of the machine files, against the truth.

Leakage of the shipped machines grows by a factor of e in some 70 K. Here each node draws its own: by 1.0 to 3.0 % per
kelvin, with 0.7 to 1.5 times as much at 60 C, under 0.85 to 1.0 of its power limit. Sensors err as in
``benchmarks.calibration_table``, whose truth is taken; ``fma`` and ``stream`` alone.

``near``: points whose watts are within 2 % of the truth. ``covered``: whose truth is in the 95 % interval. Nodes of
``CHOSEN`` were looked at while the method was made (one e-fold for all, before), those of ``JUDGED`` were not, nor
those of ``UNEVEN``, which keep five or six of their clocks: the lowest, the highest, and others drawn. Machines of one
seed draw the same silicon, so the intervals are over seeds.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from statistics import fmean
from typing import Final, NamedTuple

import msgspec
import numpy as np

from benchmarks.calibration_table import METER_GAIN, RAPL_GAIN, errors_of, measured, regulated, truths
from benchmarks.experiment import save
from calibration.kernels.port import FMA, STREAM
from calibration.measure.node_session import LEVELS
from foundation.student import mean_interval
from twin.machine import Machine, load_machine

KERNELS: Final = (FMA, STREAM)
AT_C: Final = 60.0
MACHINES: Final = ("curie", "skylake-6146", "taurus")
CHOSEN: Final = tuple((name, seed) for seed in (201, 202) for name in MACHINES)
JUDGED: Final = tuple((name, seed) for seed in (301, 302, 303, 304) for name in MACHINES)
UNEVEN: Final = tuple((name, seed) for seed in range(401, 421) for name in ("curie", "taurus"))


class Silicon(NamedTuple):
    """Of one node: relative leakage per kelvin, times as much at ``AT_C``, share of the power limit."""

    per_k: float
    times: float
    limit: float


class Row(msgspec.Struct, frozen=True):
    """Shares, but for ``per_k``."""

    machine: str
    seed: int
    is_judged: bool
    per_k: float
    times: float
    limit: float
    clocks: int
    near: float
    covered_watts: float
    covered_speed: float
    half_watts: float
    worst_watts: float
    worst_speed: float
    time: float


def drawn(machine: Machine, seed: int) -> tuple[Machine, Silicon]:
    random = np.random.default_rng(seed)
    per_k, times, limit = (float(random.uniform(*ends)) for ends in ((0.010, 0.030), (0.7, 1.5), (0.85, 1.0)))
    power = machine.power
    offset = power.leak_offset - (per_k - power.leak_per_k) * AT_C + float(np.log(times))
    made = msgspec.structs.replace(
        machine,
        power=msgspec.structs.replace(power, leak_per_k=per_k, leak_offset=offset),
    )
    return regulated(made, 1 / limit), Silicon(per_k, times, limit)


def sparse(machine: Machine, seed: int) -> Machine:
    """The machine with few clocks at uneven distances."""
    random = np.random.default_rng(seed + 2000)
    lowest, *between, highest = machine.steps_khz
    others = random.choice(between, int(random.integers(3, 5)), replace=False)
    steps = (lowest, *sorted(int(khz) for khz in others), highest)
    domains = tuple(msgspec.structs.replace(one, steps_khz=steps) for one in machine.domains)
    return msgspec.structs.replace(machine, steps_khz=steps, domains=domains)


def judge(name: str, seed: int, is_judged: bool, is_sparse: bool = False) -> Row:
    machine, silicon = drawn(load_machine(name), seed)
    machine = sparse(machine, seed) if is_sparse else machine
    away = np.random.default_rng(seed + 1000).uniform(-1, 1, 2)
    gains = (1 + RAPL_GAIN * float(away[0]), 1 + METER_GAIN * float(away[1]))
    machine = regulated(machine, gains[0])
    sweep, points = measured(machine, seed, 0, gains, KERNELS)
    session = sweep.session
    truth = truths(machine, seed, session.clocks, {level: session.cpus_of(level) for level in LEVELS}, KERNELS)
    errors = np.array([errors_of(point, truth, session.clocks[-1], gains[0])[:2] for point in points])
    half_w = np.array([point.package_half / point.package_w for point in points])
    half_s = np.array([point.speed_half / point.speed for point in points])
    watts, speed = np.abs(errors).T
    return Row(
        name, seed, is_judged, silicon.per_k, silicon.times, silicon.limit, len(session.clocks),
        near=float((watts <= 0.02).mean()), covered_watts=float((watts <= half_w).mean()),
        covered_speed=float((speed <= half_s + 1e-4).mean()), half_watts=float(half_w.mean()),
        worst_watts=float(watts.max()), worst_speed=float(speed.max()), time=sweep.spent_s / sweep.full_s,
    )  # fmt: skip


def over_silicon(rows: Sequence[Row], what: str) -> tuple[float, float]:
    """Mean and half of its 95 % interval. Machines of one seed have the same silicon, so they are one draw."""
    draws = [fmean(getattr(row, what) for row in rows if row.seed == seed) for seed in {row.seed for row in rows}]
    return mean_interval(draws) if len(draws) > 1 else (draws[0], math.nan)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration_silicon", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the first three of those that judge")
    parser.add_argument("--chosen", action="store_true", help="nodes that the method was made on")
    parser.add_argument("--uneven", action="store_true", help="forty other nodes, with five or six clocks")
    parser.add_argument("--from", type=int, default=0, dest="first", help="leave out so many of these")
    options = parser.parse_args(arguments)
    cases = CHOSEN if options.chosen else UNEVEN if options.uneven else JUDGED
    cases = cases[options.first :][: 3 if options.quick else None]
    print("emulated nodes, virtual time; shares of points in %; the gain of sensors taken out")
    print(f"{'machine':14} seed  per K  times  limit clocks   near  covered W/speed   ± W  worst W/speed   time")
    rows = []
    for name, seed in cases:
        row = judge(name, seed, not options.chosen, options.uneven)
        rows.append(row)
        shares = f"{100 * row.near:6.1f} {100 * row.covered_watts:9.1f} {100 * row.covered_speed:5.1f}"
        errors = f"{100 * row.half_watts:6.1f} {100 * row.worst_watts:7.1f} {100 * row.worst_speed:5.1f}"
        silicon = f"{row.per_k:6.3f} {row.times:6.2f} {row.limit:6.2f} {row.clocks:6}"
        print(f"{name:14} {seed:4} {silicon} {shares} {errors} {100 * row.time:7.1f}", flush=True)
    for what in ("near", "covered_watts", "covered_speed"):
        mean, half = over_silicon(rows, what)
        print(f"{what}: {100 * mean:.1f} ± {100 * half:.1f} % over draws of silicon")
    print("JSON:", save("calibration_silicon", {"rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
