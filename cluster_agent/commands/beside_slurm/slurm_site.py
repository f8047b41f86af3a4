"""``clusterctl slurm``: what a site's Slurm needs to work next to the cluster agent, and taking it away again."""

from __future__ import annotations

import re
import time
from pathlib import Path

import click

from cluster_agent.commands.beside_slurm.site_changes import agreed, place_of_hook, repeat, say_lacking, yes_option
from cluster_agent.commands.beside_slurm.slurm_schedule import conf_option, end_on_signals, schedule
from cluster_agent.commands.jobs import rows_since
from cluster_agent.commands.nodes import socket_option
from cluster_agent.errors import WrongUseError
from cluster_agent.fabric.ask import Place, ask
from cluster_agent.serve.people_protocol import ListForeign, ListJoules, ListNodes
from cluster_agent.slurm import site_check, site_files
from cluster_agent.slurm.config_block import carry_out
from cluster_agent.slurm.follow import EVERY_S, Follower
from cluster_agent.slurm.job_comments import JobComments, write
from cluster_agent.slurm.node_drain import NodeDrain, read_reasons, set_state
from cluster_agent.slurm.queue_json import jobs_on_nodes
from cluster_agent.slurm.queue_source import REST, QueueSource
from foundation.shell.command_line import FloatRange
from foundation.shell.plain_text import echo, say


def _partition(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """It is written into scripts."""
    if value and not re.fullmatch(r"[A-Za-z0-9_.-]+", value):
        raise click.BadParameter(f"{value!r} is no name of a partition")
    return value


@click.group()
def slurm() -> None:
    """Work next to a Slurm: hooks notify of jobs and wait for caps, `follow` compares with its queue, and `schedule`
    orders it."""


slurm.add_command(schedule)


@slurm.command()
@conf_option
@click.option("--hook", default=site_files.HOOK, show_default=True, help="The program that the hooks run.")
@socket_option
def check(conf: Path, hook: str, socket: Place) -> None:
    """What this site lacks, one line each; changes nothing. Exit status 1 if anything is lacking."""
    say_lacking(site_check.lacking(conf, hook, socket))


@slurm.command()
@conf_option
@click.option("--wait", "wait_s", type=FloatRange(0.1, 600), default=5.0, show_default=True, metavar="SECONDS",
              help="How long a job waits for its caps at most; Slurm counts it to the job's walltime.")  # fmt: skip
@click.option("--if-late", type=click.Choice(["start", "requeue"]), default="start", show_default=True,
              help="What becomes of a job whose caps are not in force by then.")  # fmt: skip
@click.option("--tags", is_flag=True, help="Also job_submit.lua, which tags jobs by comment, name and partition.")
@click.option(
    "--nodes", is_flag=True, help="Also Prolog and Epilog, for modes and joules on nodes; they must be on each."
)
@click.option(
    "--schedule",
    "partition",
    default="",
    metavar="PARTITION",
    callback=_partition,
    help="Also job_submit.lua, which defers the jobs of this partition until `slurm schedule` starts them.",
)
@click.option(
    "--defer",
    "defer_s",
    type=click.IntRange(20, 86_400),
    default=site_files.DEFER_S,
    show_default=True,
    metavar="SECONDS",
    help="How long jobs wait at most when nothing schedules them any more.",
)
@click.option("--hook", default=site_files.HOOK, show_default=True, help="The program that the hooks run.")
@yes_option
@socket_option
def install(
    conf: Path,
    wait_s: float,
    if_late: str,
    tags: bool,
    nodes: bool,
    partition: str,
    defer_s: int,
    hook: str,
    yes: bool,
    socket: Place,
) -> None:
    """Write the hooks into Slurm's configuration; the diff is shown first."""
    choices = site_files.Choices(wait_s, if_late, place_of_hook(socket), tags, hook, nodes, partition, defer_s)
    changes = site_files.to_install(conf, choices)
    if agreed(changes, yes):
        carry_out(changes, conf)
    echo(*site_files.taken(site_files.read_slurm_conf(conf), choices.scripts))
    if changes:
        echo("slurmctld reads its hooks when it starts: restart it now; running jobs go on")


@slurm.command()
@conf_option
@yes_option
def remove(conf: Path, yes: bool) -> None:
    """Take all of it away; the diff is shown first. Slurm's configuration is then as it was before."""
    changes = site_files.to_remove(conf)
    if agreed(changes, yes):
        carry_out(changes, conf)
        echo("slurmctld runs the hooks until it is restarted, and they do nothing any more")


@slurm.command()
@click.option("--cluster", metavar="NAME", help="Slurm's ClusterName (default: as its configuration has it).")
@conf_option
@click.option("--rest", metavar="PATH|URL", default=str(REST), show_default=True,
              help="slurmrestd's socket (nobody listens there: squeue is run), or http(s)://HOST:PORT.")  # fmt: skip
@click.option("--token", type=click.Path(path_type=Path), metavar="FILE",
              help="The JSON Web Token for that URL, as `scontrol token` writes it.")  # fmt: skip
@click.option("--every", "every_s", type=FloatRange(0.1, 3600), default=EVERY_S, show_default=True,
              metavar="SECONDS", help="How often to compare.")  # fmt: skip
@click.option("--admin-comment", is_flag=True, help="Write each job's joules into Slurm's record of it (sacct).")
@click.option("--drain", is_flag=True, help="Drain nodes whose sensors are broken or whose caps are not confirmed.")
@click.option("--once", is_flag=True, help="Compare once and end, with status 1 if somebody does not answer.")
@socket_option
def follow(
    cluster: str | None,
    conf: Path,
    rest: str,
    token: Path | None,
    every_s: float,
    admin_comment: bool,
    drain: bool,
    once: bool,
    socket: Place,
) -> None:
    """Compare the cluster agent's jobs with Slurm's queue, and notify of what hooks have missed. Runs until it is
    stopped, as SlurmUser or another notifier."""
    end_on_signals()
    cluster = cluster or site_files.setting(site_files.read_slurm_conf(conf), "ClusterName")
    if not cluster:
        raise WrongUseError(f"{conf}: has no ClusterName (--cluster)")
    source = QueueSource(rest, token=token)
    follower = Follower(
        lambda: ask(socket, ListForeign()),
        lambda: jobs_on_nodes(source.read()),
        lambda request: ask(socket, request),
        say,
        cluster,
    )
    comments = JobComments(
        lambda since_s: [row for row in rows_since(socket, ListJoules(since_s)) if row.cluster == cluster],
        write,
        say,
        time.time,
    )
    nodes = NodeDrain(lambda: ask(socket, ListNodes()), read_reasons, set_state, say, time.monotonic)
    turns = [comments.turn] if admin_comment else []
    turns += [nodes.turn] if drain else []
    repeat(follower, turns, lambda: f"follows the queue of {cluster} by {source.way}", every_s, once)
