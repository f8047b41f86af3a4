"""How often stated intervals have the truth, counted over draws of each method.

A truth is drawn, the method is given noisy values of it, and it is counted how often its 95 % interval has the truth.
``at``: share that is stated (a 95th percentile: of later values below it). ``counted``: share over all draws, with its
own 95 % interval, for which each draw counts once however many values it has.

Everything here is made up: what is drawn, and how it scatters. So it judges the methods, not the twin and no hardware;
intervals of calibrated nodes, with drawn nodes and erring sensors, are counted by ``benchmarks.calibration_table``.
Intervals over measured codes cannot be tested so: there is one set of codes, and no truth behind it to draw from.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from benchmarks.clustered import mean_over, median_over
from benchmarks.experiment import save
from calibration.gpu_table.clock_sweep import Ran, rows_of
from calibration.kernels.kernel_speed import WINDOWS
from calibration.limits.knob_latency import spread_of
from calibration.measure.pooled_means import means_of
from calibration.model.application_model import LAW_ERROR, ApplicationModel
from calibration.model.capped_form import COEFFICIENTS, DEMAND, KEPT, REACH, TIME, Capped
from calibration.model.configuration_grid import Grid, quadratic
from calibration.model.observations import Observations
from calibration.model.optimal_design import optimal_set
from calibration.model.polynomial_form import Polynomial
from calibration.table.clock_curve import Curve, Given, predict
from foundation.student import mean_interval
from pmu.readings import type_f64

DRAWS: Final = 300
QUICK_DRAWS: Final = 40
STATED: Final = 0.95
KEPT_AT: Final = (0.92, 0.98)
"""Ours: a stated 95 % is kept where so many are counted."""

type_hits = list[bool]
"""Of one draw: whether each of its intervals has the truth."""


class Case(NamedTuple):
    """``over``: what differs from draw to draw. ``limits``: others where the reason is in ``note``."""

    name: str
    over: str
    draw: Callable[[np.random.Generator], type_hits]
    limits: tuple[float, float] = KEPT_AT
    note: str = ""


class Row(msgspec.Struct, frozen=True):
    """Shares."""

    name: str
    over: str
    draws: int
    counted: float
    half: float
    is_kept: bool
    note: str


# --- means


def runs_of_few_seeds(random: np.random.Generator) -> type_hits:
    """Means of 3 and 5 values."""
    found = []
    for count in (3, 5) * 5:
        mean, half = mean_interval(random.normal(1.0, 0.3, count).tolist())
        found.append(abs(mean - 1.0) <= half)
    return found


def kernel_speeds(random: np.random.Generator) -> type_hits:
    found = []
    for _ in range(10):
        mean, half = mean_interval(random.normal(100.0, 7.0, WINDOWS).tolist())
        found.append(abs(mean - 100.0) <= half)
    return found


def few_windows(random: np.random.Generator) -> type_hits:
    """Eight sessions of six windows each: what a stay that was cut short has."""
    sessions = [means_of({0: [random.normal(10.0, 0.1, 6).tolist()]}, {0: 0})[0] for _ in range(8)]
    return [abs(one.value - 10.0) <= one.half for one in sessions]


def fading_windows(random: np.random.Generator) -> type_hits:
    """24 settings of 8 neighbouring windows, whose error lasts as long as a stay."""
    keep = 0.78
    stays = {}
    for number in range(24):
        error, own = float(random.standard_normal()), []
        for _ in range(8):
            error = keep * error + float(np.sqrt(1 - keep**2) * random.standard_normal())
            own.append(10.0 + 0.1 * error)
        stays[number] = [own]
    return [abs(one.value - 10.0) <= one.half for one in means_of(stays, dict.fromkeys(stays, "all")).values()]


# --- tables

CLOCKS: Final = np.linspace(1.2, 3.2, 21)
SEEN: Final = (0, 4, 9, 14, 17, 20)


def _volts(random: np.random.Generator) -> type_f64:
    """Over the clock, relative to the top's: two to four straight parts, as P-state tables have, in steps of 5 mV."""
    u = CLOCKS / CLOCKS[-1]
    kinks = [u[0], *sorted(random.uniform(u[0] + 0.1, 0.9, random.integers(1, 3))), 1.0]
    falls = random.uniform(0.1, 0.9, len(kinks) - 1) * np.diff(kinks)
    volts = np.append(1.0 - np.cumsum(falls[::-1])[::-1], 1.0)
    return np.asarray(np.round(np.interp(u, kinks, volts) / 0.005) * 0.005)


def watts_between_clocks(random: np.random.Generator) -> type_hits:
    """Three kernels on one processor's volts, six of 21 clocks measured within 0.5 %."""
    u, volts = CLOCKS / CLOCKS[-1], _volts(random)
    truth = {k: random.uniform(15, 40) + random.uniform(10, 30) * volts + random.uniform(30, 120) * u * volts**2
             for k in range(3)}  # fmt: skip
    return _between(random, "watts", truth)


def time_between_clocks(random: np.random.Generator) -> type_hits:
    """The time of a unit, partly the core's and partly memory's, which the clock slows a little too."""
    u = CLOCKS / CLOCKS[-1]
    truth = {}
    for k in range(3):
        beta, bent = random.uniform(0.05, 1.0), random.normal(0, 0.02)
        truth[k] = 1.0 + beta * (1 / u - 1) + bent * np.sin(np.pi * (u - u[0]) / (1 - u[0]))
    return _between(random, "time", truth)


def _between(random: np.random.Generator, shape: str, truth: dict[int, type_f64]) -> type_hits:
    seen, noise = list(SEEN), 0.005
    given = {}
    for k, own in truth.items():
        values = own[seen] * (1 + noise * random.standard_normal(len(seen)))
        given[k] = Given(CLOCKS[seen].tolist(), values.tolist(), (noise * values).tolist(), CLOCKS.tolist())
    curves: dict[int, Curve] = predict(shape, given)
    others = [at for at in range(len(CLOCKS)) if at not in SEEN]
    return [bool(abs(curves[k].value[at] - own[at]) <= curves[k].half[at]) for k, own in truth.items() for at in others]


def gpu_clocks(mhz: Sequence[int], runs: int) -> Callable[[np.random.Generator], type_hits]:
    """Watts, speed and joules of runs that scatter by 1 %, the last clock being the highest."""
    clocks = {one: (150.0 + 0.2 * one * one / 1400, 0.3 + 0.7 * one / 1400) for one in mhz}
    top_w, top_speed = clocks[mhz[-1]]

    def draw(random: np.random.Generator) -> type_hits:
        ran = []
        for one, (watts, speed) in clocks.items():
            for _ in range(runs):
                seconds = 10.0 / speed * (1 + 0.01 * float(random.standard_normal()))
                drawn = watts * (1 + 0.01 * float(random.standard_normal()))
                ran.append(Ran(one, seconds, drawn * seconds, float(one), 0))
        found = []
        for row in rows_of(ran):
            watts, speed = clocks[row.mhz]
            found.append(abs(row.watts - watts) <= row.watts_half)
            if row.mhz != mhz[-1]:
                found.append(abs(row.speed - speed / top_speed) <= row.speed_half)
                found.append(abs(row.joules - watts / speed * top_speed / top_w) <= row.joules_half)
        return found

    return draw


# --- predictions of applications

GRID: Final = Grid((8, 14, 24, 40, 64), (8, 10, 12, 14, 16), (51, 60, 70, 80, 90, 100, 108, 115))


def polynomial_application(random: np.random.Generator) -> type_hits:
    sizes = [0.3] + [0.1] * 3 + [0.03] * 6
    time_s = np.array([6.0, -0.8, -0.3, -0.2, *[0.0] * 6]) + 2 * random.normal(0, sizes)
    watts = np.array([7.4, 1.04, 0.1, 0.3, *[0.0] * 6]) + random.normal(0, sizes)
    return _predicted(random, "polynomial", Polynomial().logs(GRID, np.concatenate([time_s, watts]), GRID.points)[0])


def capped_application(random: np.random.Generator) -> type_hits:
    coefficients = np.zeros(COEFFICIENTS)
    coefficients[DEMAND] = [np.log(85), *random.normal((-0.05, 0.12), 0.04), *random.normal(0, 0.02, 3)]
    coefficients[[KEPT, REACH]] = [1.0, 1.2]
    coefficients[TIME] = [6, *random.normal((-0.8, -0.25), 0.1), *random.normal(0, 0.05, 3), 0.6, 0.2, 0.05, 0.05]
    return _predicted(random, "capped", Capped().logs(GRID, coefficients, GRID.points)[0])


DESIGN: Final = optimal_set(quadratic(GRID.coordinates(GRID.points)), 20)


def _predicted(random: np.random.Generator, form: str, truth: type_f64) -> type_hits:
    truth = np.exp(truth + LAW_ERROR * random.standard_normal(truth.shape))  # as far as forms are off
    noisy = truth[:, DESIGN] * (1 + 0.05 * random.standard_normal((2, len(DESIGN))))
    found = ApplicationModel(GRID, Observations.checked(GRID.points[DESIGN], noisy[0], noisy[1]), form).predict(
        share=STATED
    )
    time_s = (found.time_low_s <= truth[0]) & (truth[0] <= found.time_high_s)
    watts = (found.watts_low <= truth[1]) & (truth[1] <= found.watts_high)
    return [*time_s.tolist(), *watts.tolist()]


# --- latencies


def later_latencies(count: int) -> Callable[[np.random.Generator], type_hits]:
    """Whether later requests take no longer than the 95th percentile of the first: on a grid of 10 ms and a tail."""

    def draw(random: np.random.Generator) -> type_hits:
        seconds = random.uniform(0, 0.010, count + 200) + random.exponential(0.002, count + 200)
        p95_s = spread_of(seconds[:count].tolist()).p95_s
        return [one <= p95_s for one in seconds[count:].tolist()]

    return draw


# --- savings over workloads


def share_of_workloads(workloads: int, runs: int, of: str) -> Callable[[np.random.Generator], type_hits]:
    """Shares of an oracle's saving: workloads differ (skewed: few are far below the others), runs of one less so."""
    interval = mean_over if of == "mean" else median_over

    def values(random: np.random.Generator, count: int) -> type_f64:
        own = 0.95 - random.gamma(3.0, 0.07, (count, 1))
        return np.asarray(own + 0.04 * random.standard_normal((count, runs)))

    large = values(np.random.default_rng(0), 200_000)
    truth = float(large.mean() if of == "mean" else np.median(large))

    def draw(random: np.random.Generator) -> type_hits:
        found = []
        for _ in range(4):
            within = interval(values(random, workloads).tolist())
            found.append(within.low <= truth <= within.high)
        return found

    return draw


CASES: Final = (
    Case("mean of 3 or 5 seeds", "noise", runs_of_few_seeds),
    Case("speed of a kernel", "windows of 20", kernel_speeds),
    Case("mean of six windows", "noise", few_windows),
    Case("mean of windows whose errors last", "noise", fading_windows),
    Case("watts at clocks that were not measured", "volts, kernels, noise", watts_between_clocks),
    Case("time at clocks that were not measured", "kernels, noise", time_between_clocks),
    Case("GPU table: five clocks, 3 runs of each", "runs", gpu_clocks((600, 800, 1000, 1200, 1400), 3)),
    Case("GPU table: three clocks, 2 runs of each", "runs", gpu_clocks((600, 1000, 1400), 2)),
    Case("application, polynomial form", "applications, noise", polynomial_application),
    Case("application, capped form", "applications, noise", capped_application),
    Case("95th percentile of 60 latencies", "requests", later_latencies(60)),
    Case(
        "95th percentile of 8 latencies", "requests", later_latencies(8), (0.86, 0.92),
        "the highest of eight: the next is below it in 8 of 9 cases",
    ),
    Case("mean over 16 workloads, 4 runs each", "workloads, runs", share_of_workloads(16, 4, "mean")),
    Case("mean over 6 workloads, 8 runs each", "workloads, runs", share_of_workloads(6, 8, "mean")),
    Case("median over 16 workloads, 4 runs each", "workloads, runs", share_of_workloads(16, 4, "median")),
    Case("median over 6 workloads, 8 runs each", "workloads, runs", share_of_workloads(6, 8, "median")),
)  # fmt: skip


def counted(case: Case, draws: int) -> Row:
    """``draws`` draws, the same each time."""
    random = np.random.default_rng(2026)
    shares = [float(np.mean(case.draw(random))) for _ in range(draws)]
    mean, half = mean_interval(shares)
    low, high = case.limits
    return Row(case.name, case.over, draws, mean, half, low <= mean <= high, case.note)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.interval_coverage", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_DRAWS} draws in place of {DRAWS}")
    draws = QUICK_DRAWS if parser.parse_args(arguments).quick else DRAWS
    print(f"{'interval':44}{'what is drawn':26}{'draws':>6}{'counted, %':>16}")
    rows = []
    for case in CASES:
        row = counted(case, draws)
        rows.append(row)
        verdict = "" if row.is_kept else f"  not within {case.limits[0]:.0%} to {case.limits[1]:.0%}"
        print(f"{row.name:44}{row.over:26}{row.draws:6}{100 * row.counted:10.1f} ±{100 * row.half:4.1f}{verdict}"
              + (f"  ({row.note})" if row.note else ""), flush=True)  # fmt: skip
    print("JSON:", save("interval_coverage", {"rows": rows}))
    return 0 if all(row.is_kept for row in rows) or draws < DRAWS else 1


if __name__ == "__main__":
    sys.exit(main())
