"""Waiting jobs that want one GPU each: a table ``job,application,batch_size,hours,memory_gib,share``.

For replays it may also have ``nodes`` (GPUs, or nodes in halves such as 2.5; 1 where it is empty), ``submit_s`` (0) and
``request_h``, the requested time (``hours``). ``hours`` is the time alone on the GPU, or on whole nodes. ``memory_gib``
is what the job needs of the card; empty: it is not known. In ``share``, ``exclusive`` means alone, ``auto`` or nothing
the floor of all jobs, and a number from 0 to 1 a floor of the job's own: with 0 its user agrees to any speed.
``hours_are``: ``work`` or nothing, as said; ``run``: for how long the job has run, next to whomever, which no partner
changes any more (``clusterctl state export --replay``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from cluster_agent.errors import WrongUseError
from cluster_agent.sharing.pair_table import Variant, number_from_0
from foundation.shell.plain_text import TextError, read_text, rows_by_name

COLUMNS: Final = ("job", "application", "batch_size", "hours")

OPTIONAL: Final = ("nodes", "submit_s", "request_h")

MOST_NODES: Final = 2**20
"""Ours: of a job."""

LONGEST_H: Final = 24.0 * 366


class GpuJob(NamedTuple):
    """``memory_gib``: NaN, not known. ``floor``: its own, NaN for that of all; above 1: it runs alone. ``request_h``:
    NaN, as many as ``hours``."""

    job: str
    variant: Variant
    hours: float = 1.0
    memory_gib: float = math.nan
    floor: float = math.nan
    nodes: float = 1.0
    submit_s: int = 0
    request_h: float = math.nan
    has_run: bool = False


EXCLUSIVE: Final = math.inf


def one_of_each(variants: Sequence[Variant]) -> list[GpuJob]:
    """A job of an hour for each."""
    return [GpuJob(str(number), variant) for number, variant in enumerate(variants, 1)]


def read_jobs(path: str, card_gib: float = math.nan) -> list[GpuJob]:
    """In the order of the queue. ``WrongUseError`` names file and row. ``card_gib``: of the GPU; NaN: not known."""
    jobs: dict[str, GpuJob] = {}
    try:
        header, rows = rows_by_name(read_text(path), "#")
        if missing := [name for name in COLUMNS if name not in header]:
            raise WrongUseError(f"{path}: lacks the column {missing[0]}; the first line must name {','.join(COLUMNS)}")
        for number, row in rows:
            job = _job(f"{path}:{number}", {name: value.strip() for name, value in row.items()}, card_gib)
            if job.job in jobs:
                raise WrongUseError(f"{path}:{number}: job {job.job} is there twice: give each a name of its own")
            jobs[job.job] = job
    except (TextError, OSError) as error:
        raise WrongUseError(f"{path}: cannot read the jobs: {error.strerror}") from None
    if not jobs:
        raise WrongUseError(f"{path}: has no job below the names {','.join(COLUMNS)}")
    return list(jobs.values())


def _job(where: str, row: dict[str, str], card_gib: float) -> GpuJob:
    for name in ("job", "application"):
        if not row[name]:
            raise WrongUseError(f"{where}: {name} is empty")
    hours = number_from_0(where, "hours", row["hours"])
    if not 0 < hours <= LONGEST_H:
        raise WrongUseError(f"{where}: hours cannot be {row['hours']}: give more than 0, and at most {LONGEST_H:g}")
    memory_gib = number_from_0(where, "memory_gib", row["memory_gib"]) if row.get("memory_gib") else math.nan
    if memory_gib > card_gib:
        raise WrongUseError(f"{where}: job {row['job']} needs {memory_gib:g} GiB, and the card has {card_gib:g} GiB")
    variant = Variant(row["application"], row["batch_size"])
    given = {name: number_from_0(where, name, row[name]) for name in OPTIONAL if row.get(name)}
    nodes, request_h = given.get("nodes", 1.0), given.get("request_h", hours)
    if not 0.5 <= nodes <= MOST_NODES or 2 * nodes % 1:
        raise WrongUseError(f"{where}: nodes cannot be {row['nodes']}: give 0.5, 1, 1.5, or more")
    if not hours <= request_h <= LONGEST_H:
        raise WrongUseError(f"{where}: request_h cannot be {row['request_h']}: give {hours:g} to {LONGEST_H:g}")
    floor, submit_s = floor_of(where, row.get("share", "")), given.get("submit_s", 0.0)
    if submit_s > LONGEST_H * 3600:
        raise WrongUseError(f"{where}: submit_s cannot be {row['submit_s']}: give at most {LONGEST_H * 3600:g}")
    if (hours_are := row.get("hours_are", "")) not in ("", "work", "run"):
        raise WrongUseError(f"{where}: hours_are cannot be {hours_are!r}: give work or run")
    has_run = hours_are == "run"
    return GpuJob(row["job"], variant, hours, memory_gib, floor, nodes, int(submit_s), request_h, has_run)


def floor_of(where: str, share: str) -> float:
    """The least speed of a job that shares so; ``WrongUseError`` for what is none."""
    if share in ("", "auto"):
        return math.nan
    if share == "exclusive":
        return EXCLUSIVE
    try:
        floor = float(share)
    except ValueError:
        floor = math.nan
    if not 0 <= floor <= 1:
        raise WrongUseError(f"{where}: share cannot be {share!r}: give auto, exclusive, or the least speed from 0 to 1")
    return floor
