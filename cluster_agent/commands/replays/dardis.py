"""``clusterctl dardis``: a job log dispatched without a centre, measured like a replay."""

from __future__ import annotations

import math
from typing import Any, Final

import click
from msgspec.structs import replace

from cluster_agent.cap_steps import read_caps
from cluster_agent.dispatch.log_world import SETUPS, Cut, dispatched, lateness, read_world, result_of
from cluster_agent.dispatch.profile_rule import RULES, by_rule
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.library.remarks import in_words
from cluster_agent.replay.measures import measure
from cluster_agent.replay.written_whole import check_one_file, one_file
from foundation.shell.plain_text import echo, echo_block, json_text, say
from foundation.shell.progress_bar import progress

MOST_NOTES: Final = 10
"""Ours: lines about single jobs."""


@click.command()
@click.argument("log", metavar="LOG.swf")
@click.option(
    "--setup",
    type=click.Choice([*SETUPS, *(f"rule-{rule}" for rule in RULES)]),
    default="throughput",
    help="Default: throughput; rule-...: the thesis' central rule within the profile.",
)
@click.option("--machine", default="curie-fat", metavar="NAME|FILE", help="Of one kind of nodes (default: curie-fat).")
@click.option("--from-day", type=click.IntRange(0), default=0, help="The first, counted from the log's second 0.")
@click.option("--days", type=click.IntRange(1, 366), default=1, help="How many (default: 1).")
@click.option("--compress", type=click.IntRange(1, 1000), default=1, help="Arrivals follow so many times faster.")
@click.option("--asks", type=click.IntRange(0), default=4, help="Nodes requested for each unit; 0: all (default: 4).")
@click.option("--profile", metavar="FILE.csv", help="The desired use of the machine: from_s,watts of all busy nodes.")
@click.option("--cap", type=float, metavar="WATTS", help="What all nodes together may draw, as grants to each.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Of all that is random (default: 0).")
@click.option("--json", "json_path", metavar="FILE.json", help="Write the measures.")
def dardis(log: str, setup: str, **given: Any) -> int:
    """Dispatch jobs of LOG as node managers and task managers would, without a queue or a scheduler.

    The measures are those of `clusterctl replay` on nodes, and how jobs keep their windows: the mean wait of their
    width under EASY in the same world. Each job is units of at most a node. See docs/dardis.md.
    """
    if given["json_path"] is not None:
        check_one_file(given["json_path"], "--json")
    if given["cap"] is not None and not 0 < given["cap"] < 1e9:
        raise WrongUseError(f"--cap {given['cap']:g}: give watts above 0")
    profile = read_caps(given["profile"]) if given["profile"] else ()
    part = Cut(given["from_day"], given["days"], given["compress"])
    world = read_world(log, given["machine"], part, say, profile, given["cap"])
    notes: dict[str, int] = {}
    if setup.startswith("rule-"):
        schedule, _ = by_rule(world, next(rule for rule in RULES if setup == f"rule-{rule}"))
    else:
        with progress(len(world.jobs), "dispatching") as step:
            schedule, outcome = dispatched(world, replace(SETUPS[setup], asks=given["asks"]), given["seed"], step)
        notes = dict(outcome.notes)
    for note in sorted(notes)[:MOST_NOTES]:
        say(note)
    if not (schedule.start_s >= 0).any():
        raise ClusterError(f"{log}: none of {len(world.jobs)} jobs was ever started: give a higher {_lowest(given)}")
    measured, late = measure(result_of(world, schedule)), lateness(world, schedule)
    never = int((schedule.start_s < 0).sum())
    if never:
        say(f"{never} jobs were never started, and are in no measure")
    echo(f"{len(world.jobs)} jobs, {world.machine.name}, {setup}; EMULATED")
    echo_block(in_words(measured))
    echo(
        f"windows           {late.late} jobs late, by {late.tardiness_s / 3600:.0f} h together;"
        f" {late.over_core_h:.0f} core-hours above the profile, dissimilarity {_known(late.dissimilarity)}"
    )
    if given["json_path"]:
        with one_file(given["json_path"], "--json") as made:
            content = {"emulated": True, "log": log, "setup": setup, "never": never, "measures": measured}
            made.write_text(json_text(content | {"lateness": late}, 1) + "\n")
    return 1 if never else 0


def _lowest(given: dict[str, Any]) -> str:
    """The options that keep jobs from starting."""
    return " or ".join(f"--{name}" for name in ("cap", "profile") if given[name] is not None) or "--cap"


def _known(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.3f}"
