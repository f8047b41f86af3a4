"""Jobs that share a GPU: what exact matching saves, and how much of it is left for applications never seen.

Data: Gavel's measured pairs of 26 variants of 7 applications, on a V100 and a K80 (Narayanan et al., OSDI'20).
Windows of 8 jobs of an hour are drawn from the variants, with replacement; intervals are of 95 %, over windows.

*Never seen*: each application is left out in turn with all its batch sizes. Each of these has three measured partners,
which are chosen from the other applications' speeds; its other speeds, and those of its batch sizes with each other,
are predicted, and their error is measured on the other applications. Who fits next to whom counts as known, as it is
where jobs state their memory; ``memory not known`` shows what happens where it is not. Kinds of windows: ``mixed``, as
they come, at least one job of the new application; ``half`` of the jobs are new; ``all`` are; ``two new`` applications
and nothing else.

A pair that is predicted is a trial of 72 s: it is separated if its true speeds are below the floor, or lose. Then its
jobs run one after the other, and the whole trial was lost. ``share`` is what is gained so, of what exact matching
on the true speeds gains under the same floor. ``failed`` are the trials that had to be separated, of all pairs formed.
``once again`` matches those jobs again, with the others of the window that are not running yet, until no trial fails.

Constants (rank, penalties, error, least chance, partners) were chosen on the V100, whose shares are therefore somewhat
too good. The K80 judges; nothing was chosen on it. Its floors are lower, since no pair there keeps 0.7.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.experiment import OUT
from cluster_agent.sharing.completion import PARTNERS, completed, partners_to_measure, prediction_error
from cluster_agent.sharing.matching import matched
from cluster_agent.sharing.pair_savings import TRIAL_H, saved_hours, savings
from cluster_agent.sharing.pair_table import PairTable, read_pairs
from cluster_agent.sharing.pair_windows import LEAST_CHANCE
from foundation.shell.text_table import render

Float64s = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]

DATA: Final = Path(__file__).parents[2] / "shared" / "data" / "gpu-pairs" / "gpu-pairs.csv"
JOBS: Final = 8
FLOORS: Final = {"v100": (0.0, 0.6, 0.7, 0.8), "k80": (0.0, 0.5, 0.6)}
PUBLISHED: Final = {
    ("v100", "in order"): 6.36, ("v100", "blindly"): 7.05, ("v100", "exact, floor 0"): 5.62,
    ("v100", "exact, floor 0.6"): 5.69, ("v100", "exact, floor 0.7"): 6.17, ("v100", "exact, floor 0.8"): 6.82,
    ("k80", "exact, floor 0"): 7.30, ("k80", "exact, floor 0.8"): 8.00,
}  # fmt: skip
"""Of 300 windows (the README of the data; issue and digest): their own 95 % interval is some ±0.06 to ±0.09."""


class Mean(msgspec.Struct, frozen=True):
    """``half``: of the interval of 95 %."""

    value: float
    half: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.half:.3f}"


class Cost(msgspec.Struct, frozen=True):
    """GPU hours of a window."""

    gpu: str
    way: str
    hours: Mean
    published: float | None


class Share(msgspec.Struct, frozen=True):
    """Of the exact gain; ``worst``: of the applications left out, with its name."""

    gpu: str
    windows: str
    floor: float
    way: str
    share: Mean | None
    failed: float
    unfit: float
    worst: float | None
    worst_of: str


class Way(NamedTuple):
    """``known``: of the pairs of new jobs: none, those measured, or predictions."""

    name: str
    knows: str = "predictions"
    partners: str = "chosen"
    number: int = PARTNERS
    least_chance: float = LEAST_CHANCE
    again: bool = False
    memory: bool = True


PRODUCT: Final = Way("predicted")
MAIN: Final = (
    Way("new jobs alone", knows="none"),
    Way("measured pairs only", knows="measured"),
    PRODUCT,
    Way("predicted, once again", again=True),
)
OTHERS: Final = (
    Way("2 partners", number=2),
    Way("1 partner", number=1),
    Way("same 3 for all batch sizes", partners="same"),
    Way("drawn partners", partners="drawn"),
    Way("least chance 0", least_chance=0.0),
    Way("least chance 0.25", least_chance=0.25),
    Way("least chance 0.5", least_chance=0.5),
    Way("memory not known", memory=False),
)


KINDS: Final = {"mixed": MAIN + OTHERS, "half": MAIN, "all": MAIN[2:], "two new": MAIN[2:]}
DRAWS: Final = 5


class Fold(NamedTuple):
    """Variants by their rows: those of the applications left out, and the others."""

    name: str
    new: Indices
    known: Indices


def folds(table: PairTable, left_out: int) -> Iterator[Fold]:
    applications = sorted({one.application for one in table.variants})
    for names in itertools.combinations(applications, left_out):
        is_new = np.array([one.application in names for one in table.variants])
        yield Fold("+".join(names), np.flatnonzero(is_new), np.flatnonzero(~is_new))


def drawn(kind: str, fold: Fold, count: int, random: np.random.Generator) -> Indices:
    """(count, JOBS) rows of variants."""
    if kind == "mixed":
        found = random.integers(len(fold.new) + len(fold.known), size=(40 * count, JOBS))
        return found[np.isin(found, fold.new).any(1)][:count]
    new = JOBS // 2 if kind == "half" else JOBS
    both = [random.choice(fold.new, (count, new)), random.choice(fold.known, (count, JOBS - new))]
    return random.permuted(np.concatenate(both, axis=1), axis=1)


class Known(NamedTuple):
    """(n, n): the speeds as a way knows them, NaN where it does not, and the error of those that are predicted."""

    speed: Float64s
    predicted: Bools
    error: float = 0.0


def known_speed(table: PairTable, fold: Fold, way: Way, random: np.random.Generator) -> Known:
    speed = np.full(table.speed.shape, math.nan)
    among = np.ix_(fold.known, fold.known)
    speed[among] = table.speed[among]
    no = np.zeros(speed.shape, bool)
    if way.knows == "none":
        return Known(speed, no)
    turns = partners_to_measure(table.speed[among], len(fold.new))
    for turn, new in zip(turns, fold.new, strict=True):
        chosen = {"chosen": turn, "same": turns[0], "drawn": random.permutation(len(fold.known)).tolist()}
        partners = fold.known[chosen[way.partners][: way.number]]
        speed[new, partners], speed[partners, new] = table.speed[new, partners], table.speed[partners, new]
    if way.knows == "measured":
        return Known(speed, no)
    return Known(*completed(speed, table.variants, way.number), error_of(table, fold))


ERRORS: Final[dict[tuple[str, str], float]] = {}


def error_of(table: PairTable, fold: Fold) -> float:
    """Of predictions, by the known applications alone."""
    at = table.gpu, fold.name
    if at not in ERRORS:
        known = [table.variants[row] for row in fold.known]
        ERRORS[at] = prediction_error(table.speed[np.ix_(fold.known, fold.known)], known)
    return ERRORS[at]


def exact(table: PairTable, windows: Indices, floor: float) -> Float64s:
    """Hours gained with the true speeds, (windows,)."""
    known = Known(table.speed, np.zeros(table.speed.shape, bool))
    return np.asarray(gained(table, windows, PRODUCT, known, floor)[0], np.float64)


def gained(table: PairTable, windows: Indices, way: Way, known: Known, floor: float) -> Float64s:
    """(4, windows): hours gained, pairs formed, pairs that had to be separated, those of them that did not fit."""
    runs = (table.speed > 0) | (known.predicted & ~np.array(way.memory))
    floors, ones = np.full(len(table.speed), floor), np.ones(len(table.speed))
    expected = savings(np.where(runs, known.speed, 0.0), np.where(known.predicted, known.error, 0.0), ones, floors)
    weight = np.where(expected.chance < way.least_chance, 0.0, expected.hours)
    true = saved_hours(table.speed, table.speed.T, ones)
    is_good = (np.minimum(table.speed, table.speed.T) >= max(floor, 1e-9)) & (true > 0)
    result = np.where(is_good, true, -TRIAL_H)
    places = windows[:, :, None], windows[:, None, :]
    here = weight[places] * ~np.eye(JOBS, dtype=bool)
    total = np.zeros((4, len(windows)))
    for _ in range(JOBS if way.again else 1):
        partner = matched(here)
        first = np.arange(JOBS) < partner
        mates = np.take_along_axis(windows, partner, 1)
        good, unfit = is_good[windows, mates], table.speed[windows, mates] == 0
        total += [(result[windows, mates] * first).sum(1), first.sum(1), (first & ~good).sum(1), (first & unfit).sum(1)]
        failed = first & ~good
        if not failed.any():
            break
        here = _after(here, windows, partner, (partner != np.arange(JOBS)) & good, failed)
    return total


def _after(here: Float64s, windows: Indices, partner: Indices, started: Bools, failed: Bools) -> Float64s:
    """Weights for another round: jobs that run now have none, nor have pairs like those that failed."""
    here = np.where(started[:, :, None] | started[:, None, :], 0.0, here)
    for at, job in zip(*np.nonzero(failed), strict=True):
        one, other = windows[at, job], windows[at, partner[at, job]]
        like = (windows[at][:, None] == one) & (windows[at] == other)
        here[at][like | like.T] = 0.0
    return here


def share(parts: Float64s, random: np.random.Generator) -> Mean | None:
    """The sum of (0) over the sum of (1), with the interval of a bootstrap over windows; None where nothing can be
    gained."""
    if parts[1].sum() < 1e-9:
        return None
    samples = random.integers(parts.shape[1], size=(400, parts.shape[1]))
    ratios = parts[0][samples].sum(1) / parts[1][samples].sum(1)
    return Mean(float(parts[0].sum() / parts[1].sum()), float(1.96 * ratios.std()))


def never_seen(table: PairTable, kind: str, ways: Sequence[Way], floors: Sequence[float], count: int) -> list[Share]:
    found = []
    for way in ways:
        random, drawing = np.random.default_rng(1), np.random.default_rng(2)  # the same windows for all ways
        parts: dict[float, list[Float64s]] = {floor: [] for floor in floors}
        names = []
        for fold in folds(table, 2 if kind == "two new" else 1):
            windows = drawn(kind, fold, count, random)
            draws = DRAWS if way.partners == "drawn" else 1
            for part in np.array_split(windows, draws):
                known = known_speed(table, fold, way, drawing)
                for floor in floors:
                    both = [*gained(table, part, way, known, floor), exact(table, part, floor)]
                    parts[floor].append(np.vstack(both))
                names.append(fold.name)
        found += [_share(table.gpu, kind, floor, way, names, parts[floor], random) for floor in floors]
    return found


def _share(
    gpu: str, kind: str, floor: float, way: Way, names: list[str], parts: list[Float64s], random: np.random.Generator
) -> Share:
    every = np.hstack(parts)
    formed = max(float(every[1].sum()), 1.0)
    each = [
        (float(one[0].sum() / one[4].sum()), name) for one, name in zip(parts, names, strict=True) if one[4].sum() > 1
    ]
    worst, worst_of = min(each, default=(None, ""))
    return Share(
        gpu, kind, floor, way.name, share(every[[0, 4]], random), float(every[2].sum() / formed),
        float(every[3].sum() / formed), worst, worst_of,
    )  # fmt: skip


def costs(table: PairTable, count: int) -> list[Cost]:
    """GPU hours of windows without anything predicted."""
    windows = np.random.default_rng(3).integers(len(table.variants), size=(count, JOBS))
    ones, speed = np.ones(len(table.speed)), table.speed
    first, second = windows[:, ::2], windows[:, 1::2]
    with_next = np.where(speed > 0, saved_hours(speed, speed.T, ones), 0.0)[first, second]
    found = [_cost(table.gpu, "one after the other", np.full(count, float(JOBS)))]
    found.append(_cost(table.gpu, "in order", JOBS - np.maximum(with_next, 0).sum(1)))
    found.append(_cost(table.gpu, "blindly", JOBS - with_next.sum(1)))
    for floor in (0.0, 0.6, 0.7, 0.8):
        found.append(_cost(table.gpu, f"exact, floor {floor:g}", JOBS - exact(table, windows, floor)))
    return found


def _cost(gpu: str, way: str, hours: Float64s) -> Cost:
    half = float(1.96 * hours.std() / math.sqrt(len(hours)))
    return Cost(gpu, way, Mean(float(hours.mean()), half), PUBLISHED.get((gpu, way)))


def of_windows(table: PairTable, floor: float, repeats: int) -> list[tuple[int, float, float]]:
    """Jobs of a window, hours per job with exact matching, and median milliseconds of one matching."""
    found = []
    jobs = np.random.default_rng(4).integers(len(table.variants), size=240)
    saved = savings(
        table.speed, np.zeros(table.speed.shape), np.ones(len(table.speed)), np.full(len(table.speed), floor)
    )
    for window in (4, 6, 8, 10, 12, 16):
        total, took = 0.0, []
        for begin in range(0, len(jobs), window):
            rows = jobs[begin : begin + window]
            weight = saved.hours[np.ix_(rows, rows)] * ~np.eye(len(rows), dtype=bool)
            started = time.perf_counter()
            partner = matched(weight)
            took.append(time.perf_counter() - started)
            total += weight[np.arange(len(rows)), partner].sum() / 2
        found.append((window, float(1 - total / len(jobs)), 1000 * float(np.median(took))))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer windows")
    options = parser.parse_args(arguments)
    if not DATA.exists():
        print("../shared/data/gpu-pairs is not here: nothing measured")
        return 0
    many, count = (500, 20) if options.quick else (5000, 120)
    tables = {gpu: read_pairs(str(DATA), gpu) for gpu in FLOORS}
    hours = [row for table in tables.values() for row in costs(table, many)]
    print(
        "GPU hours of 8 jobs of an hour\n" + render(("GPU", "pairs", "hours", "published"), [*map(_cost_line, hours)])
    )
    errors = {gpu: prediction_error(table.speed, table.variants) for gpu, table in tables.items()}
    print("standard deviation of predicted speeds: " + ", ".join(f"{gpu} {error:.3f}" for gpu, error in errors.items()))
    shares: list[Share] = []
    for gpu, table in tables.items():
        for kind, ways in KINDS.items():
            shares += never_seen(table, kind, ways, FLOORS[gpu], count // 3 if kind == "two new" else count)
    names = ("GPU", "windows", "floor", "way", "share of exact", "failed", "did not fit", "worst application")
    print(render(names, [*map(_share_line, shares)]))
    lengths = of_windows(tables["v100"], 0.7, many)
    print(
        "V100, floor 0.7\n"
        + render(("window", "hours per job", "ms"), [(f"{w}", f"{h:.3f}", f"{m:.2f}") for w, h, m in lengths])
    )
    OUT.mkdir(parents=True, exist_ok=True)
    content = {"hours": hours, "error": errors, "shares": shares, "windows": lengths}
    (OUT / "gpu_pairs.json").write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1))  # measured
    return 0


def _cost_line(row: Cost) -> tuple[str, ...]:
    return row.gpu, row.way, str(row.hours), "-" if row.published is None else f"{row.published:.2f}"


def _share_line(row: Share) -> tuple[str, ...]:
    worst = "-" if row.worst is None else f"{row.worst:.2f} {row.worst_of}"
    share = "no pair" if row.share is None else str(row.share)
    return row.gpu, row.windows, f"{row.floor:g}", row.way, share, f"{row.failed:.2f}", f"{row.unfit:.3f}", worst


if __name__ == "__main__":
    sys.exit(main())
