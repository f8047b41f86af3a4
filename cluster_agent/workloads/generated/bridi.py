"""Bridi's generated workload (PhD thesis, Bologna 2018, ch. 4): a day of jobs as on CINECA's Eurora.

He calibrated it on 12,000 jobs of Eurora (December 2014); the hours of submission and the ratio of run time to walltime
are Fermi's (2013). What he leaves open, or this machine has not, is ours:

- a job's nodes are those with what it needs of cards, so no job is wider than there are such nodes;
- no job has GPUs and MICs, since no node has both;
- the job's numbers follow the submissions; nobody waits in the log itself.

``np_longpar`` starts at any hour here; there it starts at night alone.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.unlike_nodes.node_jobs import CORES, GPUS, KIB_PER_GIB, MICS, Nodes

HOUR_S: Final = 3600
DAY: Final = datetime(2014, 12, 1)
BY_DAY, DAY_FROM_H, DAY_TO_H = 0.89, 8, 18
"""The share of jobs that are submitted between these hours, evenly; the others in the other hours, evenly."""

AT_WALLTIME, LEAST_RUN = 0.2, 0.2
"""The share of jobs that run for their whole walltime; others run for this share of it, or more, evenly."""

MEMORY_GIB: Final = (1, 4, 8, 14)
MOST_CORES: Final = 16


class JobClass(msgspec.Struct, frozen=True):
    """The jobs of a queue. ``core_s``: of nodes x cores x walltime. The shares are of 0, 1 and 2 cards a node, and of
    ``MEMORY_GIB`` a node."""

    queue: str
    share: float
    promise_s: int
    most_nodes: int
    core_s: int
    gpus: tuple[float, float, float]
    mics: tuple[float, float, float]
    memory: tuple[float, float, float, float]


CLASSES: Final = (
    JobClass("debug", 0.27, HOUR_S, 2, 6465, (0.96, 0.03, 0.01), (0.99, 0.0, 0.01), (0.05, 0.77, 0.03, 0.15)),
    JobClass("parallel", 0.72, 5 * HOUR_S, 32, 147145, (0.31, 0.04, 0.65), (0.99, 0.01, 0.0), (0.22, 0.17, 0.55, 0.06)),
    JobClass("np_longpar", 0.01, 24 * HOUR_S, 32, 111372, (0.19, 0.0, 0.81), (1.0, 0.0, 0.0), (0.88, 0.0, 0.04, 0.08)),
)
"""As printed: shares, promised waits, widths and mean volumes."""

COLUMNS: Final = (
    *("job", "queue", "submit", "start", "end", "req_nodes", "req_cores", "cores", "gpus", "mics", "mem_kb"),
    *("walltime_s", "app", "nodes", "max_wait_s"),
)
"""Those of ``workloads.eurora``."""


def generate(jobs: int, seed: int, nodes: Nodes) -> list[dict[str, str]]:
    """The rows of a table of jobs, by submission, for these nodes; ``WrongUseError`` if they lack what jobs need."""
    draw, has = random.Random(seed), nodes.has[:, [CORES, GPUS, MICS]]
    having = {cards: int((has >= (MOST_CORES, *cards)).all(axis=1).sum()) for cards in _CARDS}
    if lacking := [cards for cards, count in having.items() if not count]:
        gpus, mics = lacking[0]
        raise WrongUseError(
            f"no node of the machine has {MOST_CORES} cores, {gpus} GPUs and {mics} MICs, which this workload's jobs"
            " need: give --machine eurora, or a file with such nodes"
        )
    rows = sorted((_job(draw, having) for _ in range(jobs)), key=lambda row: row[0])
    return [{"job": str(at), **row} for at, (_, row) in enumerate(rows, 1)]


def write(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """As CSV. ``OSError`` if it cannot be written."""
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


_CARDS: Final = [(0, 0), (1, 0), (2, 0), (0, 1), (0, 2)]


def _job(draw: random.Random, having: dict[tuple[int, int], int]) -> tuple[int, dict[str, str]]:
    """Its submission in seconds of the day, and its row."""
    submit_s = _submit_s(draw)
    kind = CLASSES[_one_of(draw, [one.share for one in CLASSES])]
    gpus, mics, memory = (_one_of(draw, shares) for shares in (kind.gpus, kind.mics, kind.memory))
    cards = (gpus, 0 if gpus else mics)
    nodes = 1 + int(draw.random() * min(kind.most_nodes, having[cards]))
    cores = 1 + int(draw.random() * MOST_CORES)
    walltime_s = math.ceil(kind.core_s / (nodes * cores))
    run_s = walltime_s
    if draw.random() >= AT_WALLTIME:
        run_s = max(round(walltime_s * (LEAST_RUN + (1 - LEAST_RUN) * draw.random())), 1)
    start = DAY + timedelta(seconds=submit_s)
    values = {
        "queue": kind.queue,
        "submit": start,
        "start": start,
        "end": start + timedelta(seconds=run_s),
        "req_nodes": nodes,
        "req_cores": cores,
        "cores": nodes * cores,
        "gpus": nodes * cards[0],
        "mics": nodes * cards[1],
        "mem_kb": nodes * MEMORY_GIB[memory] * KIB_PER_GIB,
        "walltime_s": walltime_s,
        "app": "",
        "nodes": " ".join(map(str, range(1, nodes + 1))),
        "max_wait_s": kind.promise_s,
    }
    return submit_s, {name: str(value) for name, value in values.items()}


def _submit_s(draw: random.Random) -> int:
    is_by_day, place = draw.random() < BY_DAY, draw.random()
    lasts_h = DAY_TO_H - DAY_FROM_H
    from_h, lasts_h = (DAY_FROM_H, lasts_h) if is_by_day else (DAY_TO_H, 24 - lasts_h)
    return int((from_h + place * lasts_h) * HOUR_S) % (24 * HOUR_S)


def _one_of(draw: random.Random, shares: Sequence[float]) -> int:
    """An index, each by its share."""
    value, last = draw.random() * sum(shares), len(shares) - 1
    for at, share in enumerate(shares):
        value -= share
        if value < 0:
            return at
    return last
