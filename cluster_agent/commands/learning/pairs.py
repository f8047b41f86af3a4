"""``clusterctl pairs``: which waiting jobs share a GPU, and what that saves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import click

from cluster_agent.commands.nodes import json_option
from cluster_agent.errors import WrongUseError
from cluster_agent.sharing.gpu_jobs import GpuJob, one_of_each, read_jobs
from cluster_agent.sharing.matching import MOST_JOBS
from cluster_agent.sharing.pair_table import read_pairs
from cluster_agent.sharing.pair_windows import LEAST_CHANCE, Rules, SharedGpu, shared
from foundation.shell.plain_text import echo, echo_block, json_text
from foundation.shell.text_table import render


@click.command()
@click.argument("table", metavar="TABLE.csv")
@click.option("--jobs", "jobs_path", metavar="FILE.csv", help="The queue; default: one job of an hour of each.")
@click.option("--gpu", metavar="NAME", help="Whose pairs, if TABLE has several GPUs.")
@click.option("--floor", type=float, default=0.7, show_default=True, help="Least speed next to a partner; alone is 1.")
@click.option("--window", type=int, default=12, show_default=True, help="How many jobs are matched at once.")
@click.option("--memory", type=float, metavar="GIB", help="What the card has; pairs not measured need it.")
@click.option("--chance", type=float, default=LEAST_CHANCE, show_default=True, help="Least chance of a trial.")
@json_option
def pairs(
    table: str, jobs_path: str | None, gpu: str | None, as_json: bool, memory: float | None, **given: float
) -> None:
    """Say which jobs of a queue share a GPU, and why, from speeds that were measured in pairs (docs/sharing.md).

    TABLE has the speed of each application alone and next to others. Pairs that it lacks are predicted for applications
    with three measured partners, and are marked as trials. No job runs below the floor unless its row of FILE says so.
    """
    rules = _rules(memory, **given)
    known = read_pairs(table, gpu)
    jobs = read_jobs(jobs_path, rules.card_gib) if jobs_path else one_of_each(known.variants)
    found = shared(known, jobs, rules)
    alone_h, saved_h = sum(job.hours for job in jobs), sum(one.saved_h for one in found)
    if as_json:
        numbers = {"gpu": known.gpu, "floor": rules.floor, "window": rules.window}
        totals = {"one_after_the_other_h": alone_h, "saved_h": saved_h, "trials": _trials(found)}
        echo(json_text(numbers | totals | {"gpus": found}))
        return
    echo_block(render(("window", "jobs", "applications", "speeds", "GPU hours", "saved", "why"), [*map(_line, found)]))
    echo(*_sums(jobs, found, alone_h, saved_h))


def _rules(memory: float | None, floor: float, window: float, chance: float) -> Rules:
    for name, value in (("--floor", floor), ("--chance", chance)):
        if not 0 <= value <= 1:
            raise WrongUseError(f"{name} {value:g}: give a number from 0 to 1; alone is 1")
    if not 1 <= window <= MOST_JOBS:
        raise WrongUseError(f"--window {window}: give 1 to {MOST_JOBS} jobs")
    if memory is not None and not 0 < memory < 2**20:
        raise WrongUseError(f"--memory {memory:g}: give the GiB of the card")
    return Rules(floor, int(window), math.nan if memory is None else memory, chance)


def _trials(found: Sequence[SharedGpu]) -> int:
    return sum(one.is_trial for one in found)


def _line(one: SharedGpu) -> tuple[str, ...]:
    return (
        str(one.window),
        " + ".join(one.jobs),
        " + ".join(one.applications),
        " + ".join(f"{speed:.2f}" for speed in one.speeds),
        f"{one.hours - one.saved_h:.2f}",
        f"{one.saved_h:.2f}",
        one.why,
    )


def _sums(jobs: Sequence[GpuJob], found: Sequence[SharedGpu], alone_h: float, saved_h: float) -> list[str]:
    sharing, trials = sum(len(one.jobs) > 1 for one in found), _trials(found)
    return [
        f"{len(jobs)} jobs: one after the other {alone_h:.2f} GPU hours, shared {alone_h - saved_h:.2f}"
        f" ({100 * saved_h / alone_h:.1f} % less)",
        f"pairs: {sharing}, trials among them: {trials}; separate one when its measured speeds are below a floor"
        if trials
        else f"pairs: {sharing}{', each measured' if sharing else ''}",
    ]
