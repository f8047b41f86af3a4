"""``clusterctl state``: the jobs of a live partition as a file from which a replay starts."""

from __future__ import annotations

import click

from cluster_agent.commands.nodes import socket_option
from cluster_agent.fabric.ask import Place, ask
from cluster_agent.replay import written_whole
from cluster_agent.serve.people_protocol import ExportState
from cluster_agent.workloads.state_file import encode
from foundation.shell.plain_text import echo, echo_block


@click.group()
def state() -> None:
    """The jobs of the partition, for `clusterctl replay --state`."""


@state.command()
@click.option("--out", metavar="FILE", help="Write it there, whole or not at all (default: stdout).")
@socket_option
def export(out: str | None, socket: Place) -> None:
    """The jobs that wait and run now, and the last thousand that ended, as JSON."""
    found = ask(socket, ExportState())
    content = encode(found)
    if out is None:
        echo_block(content.decode().rstrip("\n"))
        return
    with written_whole.one_file(out, "--out") as file:
        file.write_bytes(content)
    counted = found.count()
    echo(f"{counted['queued']} jobs that wait, {counted['running']} that run, {counted['ended']} ended ones in {out}")
