"""``clusterctl oar``: what a site's OAR needs to work next to the cluster agent, and taking it away again."""

from __future__ import annotations

import re
from pathlib import Path

import click

from cluster_agent.commands.beside_slurm.site_changes import agreed, place_of_hook, repeat, say_lacking, yes_option
from cluster_agent.commands.beside_slurm.slurm_schedule import end_on_signals
from cluster_agent.commands.nodes import socket_option
from cluster_agent.errors import WrongUseError
from cluster_agent.fabric.ask import Place, ask
from cluster_agent.oar import oar_check, oar_files
from cluster_agent.oar.oar_queue import read_oar
from cluster_agent.serve.people_protocol import ListForeign
from cluster_agent.slurm.config_block import FileChange, carry_out
from cluster_agent.slurm.follow import EVERY_S, Follower
from cluster_agent.slurm.site_files import HOOK
from foundation.shell.command_line import FloatRange
from foundation.shell.plain_text import echo, say

conf_option = click.option(
    "--conf", type=click.Path(path_type=Path), default="/etc/oar/oar.conf", show_default=True,
    help="OAR's configuration.",
)  # fmt: skip


def _cluster(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """It is written into scripts."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,96}", value):
        raise click.BadParameter(f"{value!r} is no name of a cluster")
    return value


cluster_option = click.option(
    "--cluster", default=oar_files.CLUSTER, show_default=True, metavar="NAME", callback=_cluster,
    help="What this OAR is called here; OAR has no name of its own.",
)  # fmt: skip
hook_option = click.option(
    "--hook", default=HOOK, show_default=True, help="The program that the scripts run."
)  # fmt: skip


@click.group()
def oar() -> None:
    """Work next to an OAR: scripts notify of jobs and wait for caps, and `follow` compares with its jobs."""


@oar.command()
@conf_option
@hook_option
@socket_option
def check(conf: Path, hook: str, socket: Place) -> None:
    """What this site lacks, one line each; changes nothing. Exit status 1 if anything is lacking."""
    say_lacking(oar_check.oar_lacking(conf, hook, socket))


@oar.command()
@conf_option
@click.option("--wait", "wait_s", type=FloatRange(0.1, 600), default=5.0, show_default=True, metavar="SECONDS",
              help="How long a job waits for its caps at most.")  # fmt: skip
@click.option("--nodes", is_flag=True, help="Also modes and joules on nodes, and the job types bdpo=...")
@cluster_option
@hook_option
@yes_option
@socket_option
def install(conf: Path, wait_s: float, nodes: bool, cluster: str, hook: str, yes: bool, socket: Place) -> None:
    """Write the scripts into OAR's configuration, and the job types into its admission rules; the diff is shown
    first."""
    text = oar_files.read_oar_conf(conf)
    for line in oar_files.limits(text, wait_s):
        raise WrongUseError(line)
    choices = oar_files.OarChoices(wait_s, place_of_hook(socket), hook, nodes, cluster)
    _change(conf, oar_files.files_to_install(conf, choices), oar_files.rules_to_install(nodes), yes)
    echo(*oar_files.oar_taken(text))


@oar.command()
@conf_option
@yes_option
def remove(conf: Path, yes: bool) -> None:
    """Take all of it away; the diff is shown first. OAR's configuration and rules are then as they were before."""
    _change(conf, oar_files.files_to_remove(conf), oar_files.rules_to_remove(), yes)


@oar.command()
@cluster_option
@click.option("--every", "every_s", type=FloatRange(0.1, 3600), default=EVERY_S, show_default=True,
              metavar="SECONDS", help="How often to compare.")  # fmt: skip
@click.option("--once", is_flag=True, help="Compare once and end, with status 1 if somebody does not answer.")
@socket_option
def follow(cluster: str, every_s: float, once: bool, socket: Place) -> None:
    """Compare the cluster agent's jobs with those of OAR, and notify of what scripts have missed. Runs until it is
    stopped, as user oar or another notifier."""
    end_on_signals()
    follower = Follower(
        lambda: ask(socket, ListForeign()),
        lambda: read_oar(cluster),
        lambda request: ask(socket, request),
        say,
        cluster,
        "OAR",
    )
    repeat(follower, (), lambda: f"follows the jobs of {cluster} by oarstat", every_s, once)


def _change(conf: Path, files: list[FileChange], rules: list[oar_files.RuleChange], is_sure: bool) -> None:
    if agreed([*files, *rules], is_sure):
        for rule in rules:
            rule.carry_out()
        carry_out(files, conf)
