"""``clusterctl plan``: the plan in force at an instant of a replay, as a table, a CSV, a picture."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from cluster_agent.library.fitting import fitted
from cluster_agent.library.given import World
from cluster_agent.replay.plan_in_force import Line, PlanInForce, plan_at
from cluster_agent.replay.written_whole import one_file
from cluster_agent.scheduler.policies import registry
from cluster_agent.workloads.job_log import LONGEST_S
from foundation.shell.plain_text import echo, echo_block, json_text, say
from foundation.shell.text_table import render

HEADINGS = ("job", "state", "starts", "ends by", "promised", "nodes")


@click.command()
@click.argument("trace", type=click.Path())
@click.option("--at", "at_s", metavar="SECONDS", type=click.IntRange(0, LONGEST_S), required=True, help="The instant.")
@click.option("--policy", default="planned", metavar="NAME|FILE.py[:NAME][:KEY=VALUE,...]", help="Default: planned.")
@click.option("--machine", metavar="NAME|FILE", help="The machine (default: eurora for its tables).")
@click.option("--cap", metavar="WATTS|FILE[:PROFILE]", help="Power cap.")
@click.option("--instance", metavar="NAME", help="Which instance of a table of jobs (Eurora).")
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), metavar="FILE", help="Write the plan as CSV.")
@click.option("--svg", "svg_file", type=click.Path(path_type=Path), metavar="FILE", help="Draw it: nodes over time.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(at_s: int, policy: str, csv_file: Path | None, svg_file: Path | None, as_json: bool, **given: Any) -> None:
    """Show who runs in a replay of TRACE at an instant, and who is planned to start when and where.

    The promised start of a job is that of the first plan that had it. The last lines say how many jobs of the whole
    replay started by then. (In a live partition `clusterctl jobs` shows planned starts.)
    """
    choice = registry.choose(policy)
    world = World(given.pop("trace"), **given)
    kind = world.kind(choice)
    found = plan_at(fitted(world, choice, kind, say), choice.on(kind), at_s)
    if csv_file is not None:
        _csv(csv_file, found.lines)
    if svg_file is not None:
        _svg(svg_file, found)
    if as_json:
        echo_block(json_text(msgspec.to_builtins(found), indent=2))
    else:
        _print(found)


def _csv(path: Path, lines: Sequence[Line]) -> None:
    with one_file(str(path), "--csv") as made, made.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(Line._fields)
        table.writerows(lines)


def _svg(path: Path, found: PlanInForce) -> None:
    from cluster_agent.replay.plan_picture import plan_svg  # matplotlib is large

    with one_file(str(path), "--svg") as made:
        made.write_text(plan_svg(found))


def _print(found: PlanInForce) -> None:
    made = "no plan was made yet" if found.made_s is None else f"the plan was made at {found.made_s} s"
    echo(f"at {found.at_s} s; {made}")
    rows = [
        (
            *(line.job, line.state, str(line.start_s), str(line.end_s)),
            "-" if line.promised_s is None else str(line.promised_s),
            line.nodes or "-",
        )
        for line in found.lines
    ]
    echo_block(render(HEADINGS, rows) if rows else "nobody runs or waits")
    kept = found.promises
    late = f"; the others {kept.late_mean_s:.0f} s later in the mean, {kept.late_max_s} s at most"
    echo(
        f"{kept.on_time} of {kept.jobs} jobs that were in a plan started by the time first promised"
        + (late if kept.on_time < kept.jobs else "")
    )
