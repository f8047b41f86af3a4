"""``clusterctl notify``: what another job manager starts and ends on the nodes, for the sharer."""

from __future__ import annotations

import click

from cluster_agent.commands.nodes import socket_option
from cluster_agent.fabric.ask import Place, ask
from cluster_agent.serve.people_protocol import NotifyEnd, NotifyStart
from foundation.shell.names import expanded
from foundation.shell.plain_text import echo


@click.group()
def notify() -> None:
    """Say what another job manager runs on the nodes, from its prolog and epilog: the sharer then gives its jobs watts
    by their tags. For administrators; running jobs are stored, and only a notice ends one."""


@notify.command()
@click.argument("job")
@click.argument("nodes", nargs=-1, required=True)
@click.option("--tag", default="", help="memory, mixed or compute; default: what the nodes measure.")
@socket_option
def start(job: str, nodes: tuple[str, ...], tag: str, socket: Place) -> None:
    """JOB, its number or name there, runs on NODES from now on: names, or lists of them such as n[01-04,7], as in
    SLURM_JOB_NODELIST."""
    names = dict.fromkeys(name for text in nodes for name in expanded(text))
    echo(*ask(socket, NotifyStart(job, list(names), tag)))


@notify.command()
@click.argument("job")
@socket_option
def end(job: str, socket: Place) -> None:
    """JOB has ended."""
    echo(*ask(socket, NotifyEnd(job)))
