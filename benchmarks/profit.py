"""Profit of planned days next to the best of six rules, in Bridi's scenarios (PhD thesis, Bologna 2018, ch. 6).

Twelve scenarios: air and hybrid cooling in summer and winter, at three loads. Jobs are those of CEA-Curie of at most
9,600 cores, on 300 nodes of 32: his log of Curie's fat nodes is not published. The loads are days with about as many
jobs a day as he has: low 107 and medium 271 (ch. 7; medium is the low load of ch. 6), high 1,460; these days have 138,
315 and 1,510, and offer 0.17, 0.57 and 4.8 times what the nodes can do. A core-hour earns 0.013 EUR, his cheap price,
at which costs matter more; power costs 0.13 EUR/kWh. Temperatures, PUE, watts, idle watts and boots are ours
(``cluster_agent/prices``).

Gains are in per cent of the best rule's profit at the end of the last day, with run times as both know them; in
brackets with idle nodes and boots counted. ``most`` is what no plan can pass: every core busy, or every submitted job
done, at the power price of the jobs and without cooling. Published: +7.6 to +8.1 % at high load, some 0 at low, in
4,000 s, with true run times.

The decoder and the number of schedules were chosen on days 440 to 443 (high) and 374 to 380 (medium). EMULATED.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, get_args

import msgspec
import numpy as np
from msgspec.structs import replace

from benchmarks.experiment import save
from cluster_agent.cluster import load_machine
from cluster_agent.prices.cooling import Plant, Season, our_table, our_temperatures
from cluster_agent.prices.profit_days import DAY_S, KNOWLEDGE, Knowledge, Work, work_of
from cluster_agent.prices.profit_model import CHEAP, HOUR_S, J_PER_KWH, POWER, Site, Tariff
from cluster_agent.prices.profit_rows import Row, compared, gain_pct
from cluster_agent.prices.profit_search import SEARCHES
from cluster_agent.workloads.job_log import Workload, prepare
from cluster_agent.workloads.swf import read_swf

LOG: Final = Path(__file__).parents[2] / "shared" / "data" / "sc15-backfilling" / "CEA-Curie.swf.gz"
LOADS: Final = {"low": (367, 5), "medium": (386, 5), "high": (537, 4)}
"""The first day of the log, and how many are judged."""

ITERATIONS: Final = 20
PUBLISHED: Final = {"low": "some 0", "medium": "-", "high": "+7.6 to +8.1 %"}


class Scenario(msgspec.Struct, frozen=True):
    """One line of the table, for each search and knowledge."""

    load: str
    plant: Plant
    season: Season
    jobs: int
    most_pct: float
    rows: list[Row]


@cache
def log() -> Workload:
    return prepare(read_swf(str(LOG)), load_machine("curie-fat").processors)


@cache
def work(load: str, days: int) -> Work:
    jobs, first = log().jobs, LOADS[load][0]
    of = np.flatnonzero((jobs.submit_s >= first * DAY_S) & (jobs.submit_s < (first + days) * DAY_S))
    chosen = jobs.only(of)
    return work_of(replace(chosen, submit_s=chosen.submit_s - first * DAY_S), load_machine("curie-fat"))


def most_eur(of: Work, days: int) -> float:
    """What no schedule can pass: every core-second of the nodes, or of the jobs if these have fewer, at their watts."""
    machine = load_machine("curie-fat")
    fit_s = np.minimum(of.jobs.run_s, days * DAY_S - of.jobs.submit_s)
    watts = of.watts / of.jobs.width
    core_s = fit_s * of.jobs.width
    order = np.argsort(watts)  # the cheapest first
    room = machine.nodes * machine.node.cores * days * DAY_S
    gone = np.minimum(np.cumsum(core_s[order]), room)
    each = np.diff(gone, prepend=0)
    return float(each.sum() / HOUR_S * CHEAP - (each @ watts[order]) / J_PER_KWH * POWER)


def site_of(plant: Plant, season: Season, days: int) -> Site:
    machine = load_machine("curie-fat")
    highest_w = machine.nodes * machine.node.busy_w[0]
    return Site(Tariff(CHEAP, POWER), our_table(plant, highest_w), our_temperatures(season, days * DAY_S))


def scenario(load: str, plant: Plant, season: Season, days: int, searches: Sequence[str]) -> Scenario:
    machine, of, site = load_machine("curie-fat"), work(load, days), site_of(plant, season, days)
    rows: list[Row] = []
    for known in KNOWLEDGE:
        rows += compared(of, site, machine, days, [known], searches if known == "true" else searches[:1], ITERATIONS)[0]
    best = max(row.profit for row in rows if row.durations == "true" and not row.schedules)
    return Scenario(load, plant, season, len(of), gain_pct(most_eur(of, days), best), rows)


def shown(one: Scenario) -> str:
    def gain(known: Knowledge, name: str) -> str:
        row = next(row for row in one.rows if row.durations == known and row.name == name)
        return f"{row.gain_pct:+6.2f} ({row.gain_with_idle_pct:+6.2f})"

    columns = [gain("true", name) for name in SEARCHES if any(row.name == name for row in one.rows)]
    best, longest_s = one.rows[0], max(row.day_s for row in one.rows)
    return (
        f"{one.load:7} {one.plant:7} {one.season:7} {one.jobs:6} {best.name:16} {best.used_pct:5.1f} "
        f"{'  '.join(columns)}  {gain('requested', 'multi')}  {gain('predicted', 'multi')}  {one.most_pct:+6.2f}"
        f"  {longest_s:5.1f}  {PUBLISHED[one.load]}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one day of low and medium load, Multi alone")
    parser.add_argument("--loads", nargs="*", choices=LOADS, default=list(LOADS))
    parser.add_argument("--searches", nargs="*", choices=SEARCHES, default=list(SEARCHES), help="multi among them")
    options = parser.parse_args(arguments)
    searches = ["multi"] if options.quick else options.searches
    titles = "  ".join(f"{name:>15}" for name in searches)
    print(
        f"{'load':7} {'cooling':7} {'season':7} {'jobs':>6} {'best rule':16} {'used':>5} {titles}"
        f"  {'requested':>15}  {'predicted':>15}  {'most':>6}  {'s/day':>5}  published"
    )
    found = []
    for load in options.loads[:2] if options.quick else options.loads:
        for plant in get_args(Plant):
            for season in get_args(Season):
                found.append(scenario(load, plant, season, 1 if options.quick else LOADS[load][1], searches))
                print(shown(found[-1]), flush=True)
    save("profit", {"scenarios": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
