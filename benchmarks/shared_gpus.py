"""A queue of training jobs on GPUs that two of them may share, by speeds that were measured in pairs.

Replays of the policy ``shared`` on Gavel's measured pairs (``gpu-pairs``: 26 variants on a V100, 25 on a K80, by time
slicing): a backlog of 300 jobs on 16 cards, each of an application and a batch size drawn alike, most of one card.
Throughput and ``slowest`` as in ``shared_nodes``. No constant was chosen on GPUs: all of these seeds judge.

*Never seen*: each application in turn is known from three measured partners alone (``sharing.completion``), and its
other speeds are predicted; the replay follows the true ones. ``cautious``: predictions count as lower by their error.
Nobody is separated here, as a trial would be, so a pair that was predicted wrongly runs to its end. Who fits into
memory next to whom counts as known. ``--quick``: one seed.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Iterator, Sequence
from math import log
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from benchmarks.experiment import save
from benchmarks.gpu_pairs import DATA
from benchmarks.nas_programs import JOBS, JUDGING, LONGEST_S, MEDIAN_S
from benchmarks.shared_nodes import DONE, Cell, cell_of, print_queue
from cluster_agent import library
from cluster_agent.library.fitting import fitted
from cluster_agent.replay.world_run import run
from cluster_agent.sharing.completion import ERROR, completed, with_measured
from cluster_agent.sharing.pair_table import read_pairs

CARDS: Final = 16
SIZES: Final = ((1, 2, 4), (0.7, 0.2, 0.1))
FLOORS: Final = {"v100": (0.0, 0.6, 0.7, 0.8), "k80": (0.0, 0.5, 0.6)}
SEEDS: Final = JUDGING[:5]
UNSEEN: Final = (("v100", 0.7), ("k80", 0.5))


def write_jobs(path: Path, gpu: str, seed: int) -> None:
    random, variants = np.random.default_rng([seed, *gpu.encode()]), read_pairs(str(DATA), gpu).variants
    run_s = np.clip(random.lognormal(log(MEDIAN_S), 0.8, JOBS), 300, LONGEST_S)
    cards, over = random.choice(SIZES[0], JOBS, p=SIZES[1]), random.uniform(1, 5, JOBS)
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["job", "application", "batch_size", "hours", "nodes", "request_h"])
        for number, at in enumerate(random.integers(len(variants), size=JOBS)):
            hours = run_s[number] / 3600
            out.writerow([number + 1, *variants[at], hours, cards[number], hours * over[number]])


def rules(gpu: str) -> dict[str, str]:
    """By name; the first shares nothing."""
    found = {"never": "shared:rule=compact"}
    for floor in FLOORS[gpu]:
        found[f"in order, floor {floor:g}"] = f"shared:rule=no_preference,floor={floor:g}"
        found[f"matched, floor {floor:g}"] = f"shared:rule=matched,floor={floor:g}"
    return found


class Unseen(msgspec.Struct, frozen=True):
    """Of the throughput that true speeds gain, the share that is left; the share of jobs that are slower than the floor
    by 0.02 or more."""

    gpu: str
    floor: float
    way: str
    share: float
    below: float


def never_seen(world: library.World, gpu: str, seed: int, floor: float) -> Iterator[Unseen]:
    """One backlog, each application left out in turn."""
    table = read_pairs(str(DATA), gpu)
    alone, exact = (library.policy(f"shared:rule={rule},floor={floor}") for rule in ("compact", "matched"))
    given = fitted(world, exact, "nodes", print)
    assert given.shared is not None
    never = cell_of(library.replay(world, alone), "never", gpu, seed, CARDS, 1).rate
    best = cell_of(library.replay(world, exact), "exact", gpu, seed, CARDS, 1).rate
    for application in sorted({variant.application for variant in table.variants}):
        is_new = np.array([variant.application == application for variant in table.variants])
        known, predicted = completed(
            with_measured(table.speed, np.flatnonzero(~is_new), np.flatnonzero(is_new)), table.variants
        )
        known = np.where(table.speed == 0, 0.0, known)
        for way, lower in (("as predicted", 0.0), ("cautious", ERROR)):
            speed = np.column_stack([np.where(predicted, np.maximum(known - lower, 0), known), np.ones(len(known))])
            shared = msgspec.structs.replace(given.shared, known=speed)
            result = run(msgspec.structs.replace(given, shared=shared), exact.on("nodes"))
            order = np.argsort(result.schedule.end_s)
            done = np.cumsum((result.jobs.units * result.jobs.run_s)[order])
            until_s = result.schedule.end_s[order][np.searchsorted(done, DONE * done[-1])]
            rate, pace = DONE * done[-1] / (CARDS * until_s), result.jobs.run_s / result.run_s
            yield Unseen(gpu, floor, way, float((rate - never) / (best - never)), float((pace < floor - 0.02).mean()))


def print_unseen(rows: Sequence[Unseen]) -> None:
    for gpu, floor, way in dict.fromkeys((row.gpu, row.floor, row.way) for row in rows):
        found = [row for row in rows if (row.gpu, row.floor, row.way) == (gpu, floor, way)]
        share, below = np.array([row.share for row in found]), np.mean([row.below for row in found])
        margin = 1.96 * share.std(ddof=1) / len(share) ** 0.5
        print(f"{gpu}, floor {floor:g}, {way}: {100 * share.mean():.0f} ± {100 * margin:.0f} % of the gain,"
              f" {100 * below:.1f} % of jobs below the floor")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shared_gpus", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed")
    options = parser.parse_args(argv)
    if not DATA.exists():
        print(f"shared_gpus: needs {DATA}")
        return 1
    cells: list[Cell] = []
    with tempfile.TemporaryDirectory() as folder:
        for gpu in FLOORS:
            for seed in SEEDS[:1] if options.quick else SEEDS:
                jobs = Path(folder) / f"{gpu}-{seed}.csv"
                write_jobs(jobs, gpu, seed)
                world = library.World(str(jobs), machine=CARDS, pairs=f"{DATA}:{gpu}")
                for rule, policy in rules(gpu).items():
                    cells.append(cell_of(library.replay(world, policy), rule, gpu, seed, CARDS, 1))
    for gpu in FLOORS:
        print_queue([cell for cell in cells if cell.mix == gpu])
    unseen: list[Unseen] = []
    with tempfile.TemporaryDirectory() as folder:
        for gpu, floor in UNSEEN:
            for seed in SEEDS[:1] if options.quick else SEEDS[:2]:
                jobs = Path(folder) / f"{gpu}-{seed}.csv"
                write_jobs(jobs, gpu, seed)
                world = library.World(str(jobs), machine=CARDS, pairs=f"{DATA}:{gpu}")
                unseen += never_seen(world, gpu, seed, floor)
    print_unseen(unseen)
    print("JSON:", save("shared_gpus", msgspec.to_builtins({"cells": cells, "never_seen": unseen})))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
