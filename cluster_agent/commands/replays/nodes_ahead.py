"""``clusterctl nodes-ahead``: which nodes to keep on, from what a log's past had at the same hour of the week."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Final

import click

from cluster_agent.cluster import Machine, load_machine
from cluster_agent.errors import WrongUseError
from cluster_agent.prices.cooling import our_table, our_temperatures
from cluster_agent.prices.node_forecast import Past, extracted, kept_profile, spares
from cluster_agent.prices.price_profile import Step, written
from cluster_agent.prices.price_table import begin_of, zone_of
from cluster_agent.prices.profit_days import DAY_S
from cluster_agent.prices.profit_model import HOUR_S, Site, Tariff
from cluster_agent.replay.world_run import run
from cluster_agent.replay.written_whole import check_one_file, one_file
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.world import World
from cluster_agent.workloads.job_log import prepare
from cluster_agent.workloads.swf import read_swf
from foundation.shell.command_line import FloatRange
from foundation.shell.plain_text import say

LATE_S: Final = 600.0
"""Ours: a plan of a day that takes longer is late."""


@click.command("nodes-ahead")
@click.argument("log", metavar="LOG.swf")
@click.option("--machine", required=True, metavar="NAME|FILE", help="Of one kind of nodes, with watts.")
@click.option("--policy", default="easy", metavar="NAME", help="Under which the log's past has run (default: easy).")
@click.option("--from-day", type=click.IntRange(0), help="The first of the profile (default: the day after the log).")
@click.option("--days", type=click.IntRange(1, 3660), default=1, help="How many (default: 1).")
@click.option("--weeks", type=click.IntRange(1, 520), default=8, help="Of the past that are looked at (default: 8).")
@click.option("--quantile", type=FloatRange(0, 1), default=0.9, help="Of them (default: 0.9).")
@click.option("--offset", type=FloatRange(0, 100), help="Extract it from a plan, as printed: 70 or 50 there.")
@click.option("--begin", metavar="TIME", help="When day 0 of LOG begins: seconds are then Unix seconds.")
@click.option("--zone", metavar="NAME", help="Time zone of --begin (default: this machine's).")
@click.option("--out", required=True, metavar="FILE.csv", help="The profile: from_s,watts,cores.")
def nodes_ahead(log: str, machine: str, policy: str, begin: str | None, zone: str | None, **given: Any) -> None:
    """Write which nodes to keep on, made at each midnight from what was before it.

    Without --offset the cores are those of nodes without a job: give the file to `clusterctl replay --policy
    easy:idle_off_s=300,keep_idle=FILE`. With it they are those of all nodes that stay on, as Bridi's thesis extracts
    them (Bologna 2018, ch. 7), for `keep_on=FILE` and `[jobs.power] keep_on`. Watts are what these nodes draw at most.
    """
    check_one_file(given["out"], "--out")
    nodes = load_machine(machine)
    if len(nodes.groups) != 1 or not nodes.has_watts:
        raise WrongUseError(f"--machine {machine}: one kind of nodes with watts is needed, such as curie-fat")
    past = _past(log, nodes, policy, given["weeks"], given["quantile"])
    last = int(past.jobs.submit_s[-1]) // DAY_S
    first = last + 1 if given["from_day"] is None else given["from_day"]
    if first * DAY_S <= past.jobs.submit_s[0]:
        raise WrongUseError(f"--from-day {first}: {log} has nothing before it; choose a later day")
    steps, is_in_all = _steps(past, first, given["days"], given["offset"]), given["offset"] is not None
    zero_s = begin_of(begin, zone_of(zone)) or 0
    node, what = nodes.node, "that stay on" if is_in_all else "without a job"
    rows = [Step(at_s + zero_s, count * max(node.busy_w), count * node.cores) for at_s, count in steps]
    with one_file(given["out"], "--out") as made:
        made.write_text(written(rows, [f"nodes {what}, from the weeks before, {log}"]))
    say(f"{len(rows)} steps of nodes {what} in {given['out']}: at most {max(count for _, count in steps)}")


def _past(log: str, nodes: Machine, policy: str, weeks: int, quantile: float) -> Past:
    workload = prepare(read_swf(log), nodes.processors)
    for finding in workload.findings:
        say(f"{log}: {finding}")
    if not len(workload.jobs):
        raise WrongUseError(f"{log}: has no job that fits on {nodes.name}; choose another --machine")
    schedule = run(World(workload), choose(policy).composition).schedule
    return Past(workload.jobs, schedule.start_s, nodes, weeks, quantile)


def _steps(past: Past, first: int, days: int, offset: float | None) -> list[tuple[int, int]]:
    if offset is None:
        return spares(past, first * DAY_S, days)
    nodes, last = past.machine, None
    site = Site(Tariff(), our_table("air", nodes.nodes * max(nodes.node.busy_w)), our_temperatures("summer", DAY_S))
    found: list[tuple[int, int]] = []
    for midnight_s in range(first * DAY_S, (first + days) * DAY_S, DAY_S):
        make = partial(extracted, past, site, midnight_s, offset / 100)
        last, why = kept_profile(make, last, nodes.nodes, LATE_S, time.monotonic)
        if why:
            say(f"day {midnight_s // DAY_S}: {why}")
        found += [(midnight_s + hour * HOUR_S, count) for hour, count in enumerate(last)]
    return [one for at, one in enumerate(found) if not at or one[1] != found[at - 1][1]]
