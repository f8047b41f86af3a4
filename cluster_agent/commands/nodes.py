"""``clusterctl nodes`` and ``clusterctl why``: which cap every node has, and why."""

from __future__ import annotations

from pathlib import Path

import click

from cluster_agent.budget.tag_sources import in_words
from cluster_agent.fabric.ask import Place, ask, link_of
from cluster_agent.serve.config import DEFAULT_SOCKET
from cluster_agent.serve.people_protocol import ExplainCap, ForgetNode, ListNodes, NodeRow
from foundation.shell.plain_text import echo, echo_block, json_text
from foundation.shell.text_table import render


def _place(context: click.Context, parameter: click.Parameter, value: str) -> Place:
    """A path, or a link for tcp://HOST:PORT."""
    return link_of(value) if value.startswith("tcp://") else Path(value)


socket_option = click.option(
    "--socket", callback=_place, default=DEFAULT_SOCKET, show_default=True, envvar="CLUSTERCTL_SOCKET",
    metavar="PATH|tcp://HOST:PORT", help="The cluster agent; from another machine with a key of role admin or viewer.",
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

HEADINGS = (
    "node",
    "state",
    "wanted W",
    "granted W",
    "in force W",
    "counts W",
    "draws W",
    "tag",
    "class",
    "heard",
    "jobs",
)


@click.group(invoke_without_command=True)
@json_option
@socket_option
@click.pass_context
def nodes(context: click.Context, as_json: bool, socket: Place) -> None:
    """Every node: its state, the cap wanted, granted and in force, what it counts, its power, its job."""
    if context.invoked_subcommand:
        return
    rows = ask(socket, ListNodes())
    if as_json:
        echo(json_text(rows))
    elif rows:
        echo_block(render(HEADINGS, [cells(row) for row in rows]))
    else:
        echo("no nodes: allow one (`clusterctl keys new NAME --role node`) and start its agent")


@nodes.command()
@click.argument("node", metavar="NAME")
@click.option("--is-off", is_flag=True, help="You state that the node has no power.")
@socket_option
def forget(node: str, is_off: bool, socket: Place) -> None:
    """Stop counting a node that is gone: its key is revoked, it is silent, and it has no power.

    Nobody but you can know that it has none; who said so, and when, is in `clusterctl budget log`.
    """
    echo(*ask(socket, ForgetNode(node, is_off)))


@click.command()
@click.argument("node")
@json_option
@socket_option
def why(node: str, as_json: bool, socket: Place) -> None:
    """Why NODE has its cap: the budget, the reserve, the sharer's reason, and what a pending raise waits for."""
    answer = ask(socket, ExplainCap(node))
    echo(*([json_text(answer)] if as_json else [node, *(f"  {sentence}" for sentence in answer.lines)]))


def cells(row: NodeRow) -> tuple[str, ...]:
    """The cells of a row, under ``HEADINGS``."""
    watts = [row.wanted_w, row.granted_w, row.in_force_w, row.counts_w, row.draws_w]
    heard = "-" if row.heard_s_ago is None else f"{row.heard_s_ago:.1f} s ago"
    shown = ["-" if one is None else f"{one:.1f}" for one in watts]
    jobs = f"job {row.job}" if row.job and row.jobs == "allocated" else row.jobs or "-"
    if row.job and row.jobs not in ("allocated", "idle"):
        jobs += f", job {row.job}"
    if row.jobs_why:
        jobs += f": {row.jobs_why}"
    return (row.name, row.state, *shown, in_words(row.tag, row.tag_source), row.lease_class, heard, jobs)
