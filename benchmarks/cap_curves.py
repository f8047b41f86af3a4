"""Training under a GPU's power limit, predicted from two or three limits, next to Zeus, which measures all of them.

Zeus (You et al., NSDI'23) runs each power limit of a card for some seconds and takes the one of the least cost

    eta * joules + (1 - eta) * highest limit * seconds

of an epoch. ``power-limit-training`` has what their runs measured: time of an epoch and mean watts of six networks with
batch sizes and optimizers, on four cards. Ours measures the highest limit and the lowest (three: also one between) and
predicts the others:

    watts    ln W = ln D + g(ln(limit / D)) + own     D: watts at the highest limit; g: of other networks on that card;
                                                      own: what the known limits differ by, straight between them
    seconds  ln s = -1/k ln((W - static) / (D - static))       what the switching transistors get, over k; k so that the
                                                      lowest limit is right; static: from other networks, and
                                                      from the third limit

A network that is predicted is left out of g and of static, with all its runs. The forms were chosen on P100 and RTX6000
(``--chosen``); V100 and A40 judge.

Cost lost: the cost at the limit that is chosen by predictions over the least of all limits, by what was measured.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple

import msgspec
import numpy as np

from benchmarks.experiment import save
from pmu.readings import type_f64
from twin.physics.families import SHARED

TRAINING: Final = SHARED / "gpu-dvfs/power-limit-training.csv.gz"
CHOSEN, JUDGED = ("p100", "rtx6000"), ("v100", "a40")
POINTS: Final = (2, 3)
ETAS: Final = (0.5, 1.0)
"""Of the cost: theirs, and joules alone."""

BINS: Final = 12
SHARES: Final = np.linspace(0.0, 0.95, 96)
"""Of the watts at the lowest limit: what ``static`` may be."""
TIME_ERROR: Final = 0.02
"""Ours: relative, of an epoch's time."""


class Run(NamedTuple):
    """One network with its batch size and optimizer, at ascending limits."""

    network: str
    limits_w: type_f64
    time_s: type_f64
    watts: type_f64


class Row(msgspec.Struct, frozen=True):
    """Over all runs of a card: errors at limits that were not measured, per cent; ``lost_half``, ``worst_half``: cost
    over the least, mean and worst, per cent, with eta 0.5, ``top_half`` that of the highest limit; the same of joules.
    ``of``: limits in all."""

    card: str
    points: int
    of: int
    runs: int
    time_median: float
    time_p95: float
    time_worst: float
    watts_median: float
    watts_p95: float
    watts_worst: float
    lost_half: float
    worst_half: float
    top_half: float
    lost_joules: float
    worst_joules: float
    top_joules: float


@cache
def runs_of(card: str) -> tuple[Run, ...]:
    with gzip.open(TRAINING, "rt", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == card]
    keys = ("dataset", "network", "batch_size", "optimizer")
    found: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    limits = sorted({float(row["power_limit"]) for row in rows})
    made = []
    for (dataset, network, *_), own in found.items():
        own.sort(key=lambda row: float(row["power_limit"]))
        if [float(row["power_limit"]) for row in own] == limits:  # a few runs lack a limit
            values = ([float(row[name]) for row in own] for name in ("time_per_epoch", "average_power"))
            time_s, watts = map(np.array, values)
            made.append(Run(f"{network} {dataset}", np.array(limits), time_s, watts))
    return tuple(made)


def places(points: int, limits: int) -> list[int]:
    """The limits that are measured."""
    return sorted({round(at) for at in np.linspace(0, limits - 1, points)})


class Others(NamedTuple):
    """What the other networks of a card say: ``g`` at ascending ln(limit / D), and ``static`` as a share of the watts
    at the lowest limit, its mean and deviation."""

    at: type_f64
    g: type_f64
    share: float
    deviation: float


def learned(runs: Sequence[Run]) -> Others:
    reach = np.concatenate([np.log(run.limits_w / run.watts[-1]) for run in runs])
    drawn = np.concatenate([np.log(run.watts / run.watts[-1]) for run in runs])
    edges = np.quantile(reach, np.linspace(0.0, 1.0, BINS + 1))
    bins = np.clip(np.searchsorted(edges, reach, side="right") - 1, 0, BINS - 1)
    some = [number for number in range(BINS) if (bins == number).any()]
    at, g = (np.array([values[bins == number].mean() for number in some]) for values in (reach, drawn))
    shares = []
    for run in runs:
        if np.log(run.time_s[0] / run.time_s[-1]) > 5 * TIME_ERROR:  # of one that loses nothing, nothing is seen
            errors = [time_errors(run, run.watts, share, range(len(run.watts))) for share in SHARES]
            shares.append(float(SHARES[int(np.argmin([float(error @ error) for error in errors]))]))
    return Others(at, g, float(np.mean(shares)), float(np.std(shares)) + 0.02)


def times(run: Run, watts: type_f64, share: float) -> type_f64:
    """Seconds at all limits, from those at the lowest and the highest."""
    static = share * watts[0]
    left = np.log(np.maximum(watts - static, 0.02 * watts) / (watts[-1] - static))
    lost = np.log(run.time_s[0] / run.time_s[-1])
    return np.asarray(run.time_s[-1] * np.exp(lost * left / left[0] if left[0] < -1e-3 else np.zeros(len(left))))


def time_errors(run: Run, watts: type_f64, share: float, known: Sequence[int]) -> type_f64:
    """In logarithms, at some limits."""
    at = list(known)
    return np.asarray(np.log(times(run, watts, share)[at] / run.time_s[at]))


def predicted(run: Run, others: Others, points: int) -> tuple[type_f64, type_f64]:
    """Seconds and watts at all limits; what was measured stays."""
    known = places(points, len(run.limits_w))
    reach = np.log(run.limits_w / run.watts[-1])
    shape = np.interp(reach, others.at, others.g)
    own = np.log(run.watts[known] / run.watts[-1]) - shape[known]
    watts = run.watts[-1] * np.exp(shape + np.interp(reach, reach[known], own))
    watts = np.minimum(watts, run.watts[-1])
    watts[known] = run.watts[known]
    costs = []
    for share in SHARES:
        errors = time_errors(run, watts, share, known) / TIME_ERROR
        costs.append(float(errors @ errors) + ((share - others.share) / others.deviation) ** 2)
    time_s = times(run, watts, float(SHARES[int(np.argmin(costs))]))
    time_s[known] = run.time_s[known]
    return time_s, watts


def lost(run: Run, time_s: type_f64, watts: type_f64, eta: float) -> tuple[float, float]:
    """Of the limit that these values choose, and of the highest."""

    def cost(seconds: type_f64, power: type_f64) -> type_f64:
        return np.asarray(seconds * (eta * power + (1 - eta) * run.limits_w[-1]))

    true = cost(run.time_s, run.watts)
    return float(true[cost(time_s, watts).argmin()] / true.min() - 1), float(true[-1] / true.min() - 1)


def row_of(card: str, points: int) -> Row:
    runs = runs_of(card)
    errors: list[type_f64] = []
    losses: list[list[float]] = []
    for network in dict.fromkeys(run.network for run in runs):
        others = learned([run for run in runs if run.network != network])
        for run in (run for run in runs if run.network == network):
            time_s, watts = predicted(run, others, points)
            hidden = [at for at in range(len(time_s)) if at not in places(points, len(time_s))]
            errors.append(np.abs([time_s[hidden] / run.time_s[hidden] - 1, watts[hidden] / run.watts[hidden] - 1]))
            losses.append([value for eta in ETAS for value in lost(run, time_s, watts, eta)])
    each = 100 * np.concatenate(errors, axis=1)
    (half, top_half, joules, top_joules), worst = 100 * np.mean(losses, axis=0), 100 * np.max(losses, axis=0)
    (time_median, watts_median), (time_p95, watts_p95) = np.median(each, axis=1), np.quantile(each, 0.95, axis=1)
    return Row(
        card, points, len(runs[0].limits_w), len(runs),
        float(time_median), float(time_p95), float(each[0].max()),
        float(watts_median), float(watts_p95), float(each[1].max()),
        float(half), float(worst[0]), float(top_half), float(joules), float(worst[2]), float(top_joules),
    )  # fmt: skip


def table(cards: Sequence[str]) -> Iterator[Row]:
    return (row_of(card, points) for card in cards for points in POINTS)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cap_curves", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="it takes seconds: the same")
    parser.add_argument("--chosen", action="store_true", help="the cards that the forms were chosen on")
    options = parser.parse_args(arguments)
    if not TRAINING.exists():
        print(f"cap_curves: needs {TRAINING}")
        return 1
    rows = list(table(CHOSEN if options.chosen else JUDGED))
    print("per cent; lost: cost over the least of all limits, mean (worst), in brackets that of the highest limit")
    print("card     limits  runs   time: median p95 worst   watts: median p95 worst   lost, eta 0.5        eta 1")
    for row in rows:
        print(
            f"{row.card:8} {row.points} of {row.of}  {row.runs:4}   {row.time_median:8.1f} {row.time_p95:5.1f}"
            f" {row.time_worst:5.1f}   {row.watts_median:9.1f} {row.watts_p95:5.1f} {row.watts_worst:5.1f}"
            f"   {row.lost_half:4.2f} ({row.worst_half:.1f}) [{row.top_half:.1f}]"
            f"   {row.lost_joules:4.2f} ({row.worst_joules:.1f}) [{row.top_joules:.1f}]"
        )
    print("JSON:", save("cap_curves", {"rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
