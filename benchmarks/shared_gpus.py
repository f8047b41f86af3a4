"""A queue of training jobs on GPUs that two of them may share, by speeds that were measured in pairs.

Replays of the policy ``shared`` on Gavel's measured pairs (``gpu-pairs``: 26 variants on a V100, 25 on a K80, by time
slicing): a backlog of 300 jobs on 16 cards, each of an application and a batch size drawn alike, most of one card.
Throughput and ``slowest`` as in ``shared_nodes``. No constant was chosen on GPUs: all of these seeds judge.
``--quick``: one seed.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Sequence
from math import log
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from benchmarks.experiment import save
from benchmarks.gpu_pairs import DATA
from benchmarks.nas_programs import JOBS, JUDGING, LONGEST_S, MEDIAN_S
from benchmarks.shared_nodes import Cell, cell_of, print_queue
from cluster_agent import library
from cluster_agent.sharing.pair_table import read_pairs

CARDS: Final = 16
SIZES: Final = ((1, 2, 4), (0.7, 0.2, 0.1))
FLOORS: Final = {"v100": (0.0, 0.6, 0.7, 0.8), "k80": (0.0, 0.5, 0.6)}
SEEDS: Final = JUDGING[:5]


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
    print("JSON:", save("shared_gpus", {"cells": [msgspec.to_builtins(cell) for cell in cells]}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
