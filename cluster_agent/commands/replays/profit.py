"""``clusterctl profit``: what plans of a log's days earn, next to rules, and the profile of the best."""

from __future__ import annotations

import math
from typing import Any, Final

import click
import numpy as np
from msgspec.structs import replace

from cluster_agent.cluster import Machine, load_machine
from cluster_agent.errors import WrongUseError
from cluster_agent.prices.cooling import our_table, our_temperatures, read_pue, read_temperatures
from cluster_agent.prices.price_profile import Step, written
from cluster_agent.prices.price_table import Spell, begin_of, read_spells, zone_of
from cluster_agent.prices.profit_days import DAY_S, KNOWLEDGE, Carried, Work, hours, work_of
from cluster_agent.prices.profit_model import EXPENSIVE, POWER, Site, Tariff
from cluster_agent.prices.profit_rows import Row, compared
from cluster_agent.prices.profit_search import SEARCHES
from cluster_agent.replay.written_whole import check_one_file, one_file
from cluster_agent.workloads.job_log import prepare
from cluster_agent.workloads.swf import read_swf
from foundation.shell.plain_text import echo, echo_block, json_text, say
from foundation.shell.progress_bar import progress
from foundation.shell.text_table import render

MOST_JOBS: Final = 60_000
"""Ours: of all days together; they are kept in memory several times."""


@click.command()
@click.argument("log", metavar="LOG.swf")
@click.option("--machine", default="curie-fat", metavar="NAME|FILE", help="Of one kind of nodes (default: curie-fat).")
@click.option("--from-day", type=click.IntRange(0), default=0, help="The first, counted from the log's second 0.")
@click.option("--days", type=click.IntRange(1, 366), default=1, help="How many (default: 1).")
@click.option("--cooling", type=click.Choice(["air", "hybrid"]), default="air", help="Our table of PUE.")
@click.option("--season", type=click.Choice(["summer", "winter"]), default="summer", help="Our temperatures.")
@click.option("--pue", metavar="FILE.csv", help="Instead of --cooling: celsius,watts,pue.")
@click.option("--temperature", metavar="FILE.csv", help="Instead of --season: from_s,celsius, from the first day on.")
@click.option("--core-hour", type=float, default=EXPENSIVE, metavar="EUR", help=f"Earned (default: {EXPENSIVE:g}).")
@click.option("--kwh", type=float, default=POWER, metavar="EUR", help=f"Paid for power (default: {POWER:g}).")
@click.option("--prices", metavar="FILE", help="Instead of --kwh: time,price in EUR/kWh, as `budget from-price` reads.")
@click.option("--begin", metavar="TIME", help="When the first day begins, in --prices.")
@click.option("--zone", metavar="NAME", help="Time zone of times without an offset (default: this machine's).")
@click.option("--durations", type=click.Choice(KNOWLEDGE), multiple=True, help="As known to plans (default: all).")
@click.option("--search", type=click.Choice(list(SEARCHES)), multiple=True, help="How plans are made (default: all).")
@click.option("--iterations", type=click.IntRange(0, 100_000), default=40, help="More schedules per plan and search.")
@click.option("--profile", metavar="FILE.csv", help="Write the last day of the last search: from_s,watts,cores.")
@click.option("--json", "json_path", metavar="FILE.json", help="Write the table.")
def profit(log: str, machine: str, **given: Any) -> None:
    """Plan days of LOG for profit: what jobs pay, less power and cooling.

    Each line has the profit of one search with durations as they are known: true (an oracle), requested, or predicted.
    Arrivals of a day are known in all of them. Gains are over the best of six rules with the same knowledge: as Bridi's
    thesis counts (Bologna 2018, ch. 6), and with idle nodes and boots, which it leaves out. The table of PUE, the
    temperatures and the watts of jobs are ours.

    The profile is what comes of a plan, in seconds of LOG: give it to `clusterctl replay --cap`.
    """
    if given["json_path"] is not None and given["json_path"] == given["profile"]:
        raise WrongUseError(f"--json and --profile {given['profile']}: would both write it; give two files")
    for option, path in (("--json", given["json_path"]), ("--profile", given["profile"])):
        if path is not None:
            check_one_file(path, option)
    nodes = load_machine(machine)
    if len(nodes.groups) != 1 or not nodes.has_watts:
        raise WrongUseError(f"--machine {machine}: one kind of nodes with watts is needed, such as curie-fat")
    days = given["days"]
    work = _work(log, nodes, given["from_day"], days)
    site = _site(nodes, **given)
    durations, searches = _each_once(given["durations"]) or KNOWLEDGE, _each_once(given["search"]) or tuple(SEARCHES)
    with progress(days * len(durations) * len(searches), "planning") as step:
        rows, last = compared(work, site, nodes, days, durations, searches, given["iterations"], step)
    echo(f"{len(work)} jobs of {days} days, {nodes.name}; EUR; EMULATED")
    echo_block(_table(rows))
    if given["json_path"]:
        with one_file(given["json_path"], "--json") as made:
            made.write_text(json_text({"emulated": True, "log": log, "rows": rows}, 1) + "\n")
    if given["profile"]:
        steps = _profile(work, nodes, last, given["from_day"], days)
        with one_file(given["profile"], "--profile") as made:
            made.write_text(written(steps, [f"{rows[-1].name}, durations {rows[-1].durations}, seconds of the log"]))
        say(f"{len(steps) - 1} hours in {given['profile']}; then all that the machine may draw")


def _each_once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))


def _profile(work: Work, nodes: Machine, carried: Carried, first: int, days: int) -> list[Step]:
    """The last day in seconds of the log. At its end it goes on with all that the machine may draw, since nothing is
    planned there."""
    zero_s = first * DAY_S
    planned = [Step(zero_s + at_s, watts, cores) for at_s, watts, cores in hours(work, nodes, carried, days - 1)]
    most_w = math.ceil(nodes.nodes * max(nodes.node.busy_w))
    return [*planned, Step(zero_s + days * DAY_S, float(most_w), nodes.processors)]


def _work(log: str, nodes: Machine, first: int, days: int) -> Work:
    """The jobs that are submitted on these days; second 0 is when the first begins."""
    workload = prepare(read_swf(log), nodes.processors)
    for finding in workload.findings:
        say(f"{log}: {finding}")
    begin_s, submit_s = first * DAY_S, workload.jobs.submit_s
    rows = np.flatnonzero((submit_s >= begin_s) & (submit_s < begin_s + days * DAY_S))
    if not len(rows):
        last = int(submit_s[-1]) // DAY_S
        raise WrongUseError(f"{log}: no job on days {first} to {first + days - 1}; the last is of day {last}")
    if len(rows) > MOST_JOBS:
        raise WrongUseError(f"{log}: {len(rows)} jobs on these days, and at most {MOST_JOBS} are planned: give fewer")
    jobs = workload.jobs.only(rows)
    return work_of(replace(jobs, submit_s=jobs.submit_s - begin_s), nodes)


def _site(
    nodes: Machine,
    days: int,
    cooling: Any,
    season: Any,
    pue: str | None,
    temperature: str | None,
    core_hour: float,
    kwh: float,
    **given: Any,
) -> Site:
    for name, value in (("--core-hour", core_hour), ("--kwh", kwh)):
        if not 0 <= value < 1000:
            raise WrongUseError(f"{name} {value:g}: give EUR from 0 to 1000")
    highest_w = nodes.nodes * max(nodes.node.busy_w)
    spells = _prices(days, **given)
    return Site(
        Tariff(core_hour, kwh, spells),
        read_pue(pue) if pue else our_table(cooling, highest_w),
        read_temperatures(temperature) if temperature else our_temperatures(season, days * DAY_S),
    )


def _prices(days: int, prices: str | None, begin: str | None, zone: str | None, **_: Any) -> tuple[Spell, ...]:
    if prices is None:
        if begin is not None or zone is not None:
            raise WrongUseError("--begin and --zone say when --prices are: give prices, or leave them out")
        return ()
    of = zone_of(zone)
    begin_s = begin_of(begin, of) or 0
    spells = [
        Spell(one.from_s - begin_s, one.to_s - begin_s, one.value)
        for one in read_spells(prices, "price", of)
        if one.to_s > begin_s and one.from_s < begin_s + days * DAY_S
    ]
    if negative := next((one for one in spells if one.value < 0), None):
        say(f"{prices}: negative prices, the first at second {negative.from_s} of day 0: power that is paid for")
    if not spells:
        raise WrongUseError(f"{prices}: no price on these days; say with --begin when the first begins")
    return tuple(spells)


def _table(rows: list[Row]) -> str:
    names = ("durations", "plan", "profit", "gain", "G", "W", "J", "with idle", "gain", "boots", "used", "CPU s a day")
    shown = [
        (
            *(row.durations, row.name, f"{row.profit:.1f}", f"{row.gain_pct:+.2f} %"),
            *(f"{row.earned:.1f}", f"{row.power:.1f}", f"{row.cooling:.1f}"),
            *(f"{row.with_idle:.1f}", f"{row.gain_with_idle_pct:+.2f} %", str(row.boots)),
            *(f"{row.used_pct:.1f} %", f"{row.day_s:.1f}"),
        )
        for row in rows
    ]
    return render(names, shown)
