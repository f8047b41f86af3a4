"""``clusterctl state``: the jobs of a live partition as a file from which a replay starts."""

from __future__ import annotations

import shlex

import click

from cluster_agent.commands.nodes import socket_option
from cluster_agent.errors import WrongUseError
from cluster_agent.fabric.ask import Place, ask
from cluster_agent.replay import written_whole
from cluster_agent.replay.replay_files import arguments
from cluster_agent.serve.people_protocol import ExportReplay, ExportState
from cluster_agent.workloads.state_file import encode
from foundation.shell.plain_text import echo, echo_block


@click.group()
def state() -> None:
    """The jobs of the partition, for `clusterctl replay --state`."""


@state.command()
@click.option("--out", metavar="FILE", help="Write it there, whole or not at all (default: stdout).")
@click.option("--replay", metavar="DIR", help="Write all that a replay needs to repeat the partition, in its place.")
@socket_option
def export(out: str | None, replay: str | None, socket: Place) -> None:
    """The jobs that wait and run now, and the last thousand that ended, as JSON.

    With --replay the same jobs as a log, the machine as the policy counts it, and the budget, as files for `clusterctl
    replay`.
    """
    if replay is not None:
        _export_replay(replay, out, socket)
        return
    found = ask(socket, ExportState())
    content = encode(found)
    if out is None:
        echo_block(content.decode().rstrip("\n"))
        return
    with written_whole.one_file(out, "--out") as file:
        file.write_bytes(content)
    counted = found.count()
    echo(f"{counted['queued']} jobs that wait, {counted['running']} that run, {counted['ended']} ended ones in {out}")


def _export_replay(directory: str, out: str | None, socket: Place) -> None:
    if out is not None:
        raise WrongUseError("--replay writes several files, and --out one: give one of them")
    files = ask(socket, ExportReplay())
    with written_whole.folder(directory, "--replay") as folder:
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    command = f"clusterctl replay {shlex.join(arguments(directory, files))} --policy ..."
    echo(f"{', '.join(sorted(files))} in {directory}: {command}")
