"""``clusterctl generate``: a workload that a paper describes, as a table of jobs for ``clusterctl replay``."""

from __future__ import annotations

from pathlib import Path

import click

from cluster_agent.cluster import MOST_PROCESSORS, load_machine
from cluster_agent.replay.written_whole import one_file
from cluster_agent.scheduler.unlike_nodes.node_jobs import nodes_of
from cluster_agent.workloads.generated import bridi
from foundation.shell.plain_text import echo


@click.command()
@click.argument("workload", type=click.Choice(["bridi"]))
@click.option("--jobs", type=click.IntRange(1, MOST_PROCESSORS), required=True, help="How many jobs, in 24 hours.")
@click.option("--seed", type=click.IntRange(0), required=True, help="Equal seeds give equal jobs.")
@click.option("--machine", default="eurora", metavar="NAME|FILE", help="Its nodes bound the jobs (default: eurora).")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FILE.csv", help="Where to write it.")
def generate(workload: str, jobs: int, seed: int, machine: str, out: Path) -> None:
    """Draw the jobs of WORKLOAD and write them as a table.

    bridi: a day on CINECA's Eurora as in Bridi's thesis (Bologna 2018, ch. 4): debug, parallel and np_longpar jobs of
    1 to 32 nodes with GPUs and MICs, walltimes and promised waits.
    """
    rows = bridi.generate(jobs, seed, nodes_of(load_machine(machine)))
    with one_file(str(out), "--out") as made:
        bridi.write(made, rows)
    echo(f"{jobs} jobs in {out}; replay them with `clusterctl replay {out} --policy planned`")
