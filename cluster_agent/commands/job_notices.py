"""``clusterctl notify``: what another job manager starts and ends on the nodes, for the sharer."""

from __future__ import annotations

import click

from cluster_agent.commands.nodes import socket_option
from cluster_agent.fabric.ask import Place, ask
from cluster_agent.serve.people_protocol import ListForeign, NotifyEnd, NotifyStart
from foundation.shell.names import expanded
from foundation.shell.plain_text import echo, echo_block, json_text
from foundation.shell.text_table import render


@click.group()
def notify() -> None:
    """Say what another job manager runs on the nodes, from its prolog and epilog: the sharer then gives its jobs watts
    by their tags. For administrators and notifiers; running jobs are stored. Hooks of Slurm call `nodectl-hook`, which
    costs less and waits for the caps (docs/slurm.md)."""


cluster_option = click.option("--cluster", default="", help="The other manager's name, where there are several.")


@notify.command()
@click.argument("job")
@click.argument("nodes", nargs=-1, required=True)
@click.option("--tag", default="", help="memory, mixed or compute; default: what the nodes measure.")
@cluster_option
@socket_option
def start(job: str, nodes: tuple[str, ...], tag: str, cluster: str, socket: Place) -> None:
    """JOB, its number or name there, runs on NODES from now on: names, or lists of them such as n[01-04,7], as in
    SLURM_JOB_NODELIST. Names of nodes that are not of this cluster agent are left out, and named."""
    names = dict.fromkeys(name for text in nodes for name in expanded(text))
    echo(*ask(socket, NotifyStart(job, list(names), tag, cluster=cluster)).words)


@notify.command()
@click.argument("job")
@cluster_option
@socket_option
def end(job: str, cluster: str, socket: Place) -> None:
    """JOB has ended."""
    echo(*ask(socket, NotifyEnd(job, cluster)))


@notify.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@socket_option
def list_noticed(as_json: bool, socket: Place) -> None:
    """What another job manager runs, by its notices."""
    found = ask(socket, ListForeign())
    if as_json:
        echo(json_text(found))
    elif found:
        rows = [(one.name, one.user, one.tag, str(one.restarts), ",".join(one.nodes)) for one in found]
        echo_block(render(("job", "user", "tag", "restarts", "nodes"), rows))
    else:
        echo("no job of another manager is known here")
