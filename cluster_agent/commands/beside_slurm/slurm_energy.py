"""``clusterctl energy``: what the jobs of another manager have drawn, by job and by user."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import click

from cluster_agent.commands.jobs import rows_since
from cluster_agent.commands.nodes import json_option, socket_option
from cluster_agent.fabric.ask import Place
from cluster_agent.serve.people_protocol import JoulesRow, ListJoules
from foundation.shell.duration import seconds, shown
from foundation.shell.plain_text import echo, echo_block, json_text
from foundation.shell.text_table import render

J_PER_KWH = 3.6e6


@dataclass(slots=True)
class Sum:
    """Of some jobs: those whose joules are known, and how many are not."""

    jobs: int = 0
    unknown: int = 0
    energy_j: float = 0.0
    node_s: float = 0.0

    def add(self, one: JoulesRow) -> None:
        """Count a job."""
        self.jobs += 1
        if one.energy_j is None:
            self.unknown += 1
        else:
            self.energy_j += one.energy_j
            self.node_s += one.nodes * (one.ended_s - one.began_s)

    @property
    def node_w(self) -> float | None:
        """Mean watts of a node."""
        return self.energy_j / self.node_s if self.node_s > 0 else None


@click.command()
@click.option("--user", default="", help="Of this user alone, with the partition's mean for comparison.")
@click.option(
    "--since", default="7d", show_default=True, metavar="DURATION", help="Jobs that ended within 90s, 12h, 7d."
)
@click.option("--users", "by_user", is_flag=True, help="One line per user.")
@json_option
@socket_option
def energy(user: str, since: str, by_user: bool, as_json: bool, socket: Place) -> None:
    """Joules of the jobs that Slurm, or another manager, has run: kWh and mean watts of a node. Of a job that shared a
    node they are its share, by the nodes' agents; where these do not know it, the line says so."""
    everything = rows_since(socket, ListJoules(time.time() - seconds(since)))
    rows = [one for one in everything if user in ("", one.user)]
    if as_json:
        echo(json_text(rows))
        return
    if not rows:
        echo("no job of another manager has ended in that time")
        return
    echo_block(_users(rows) if by_user else _jobs(rows))
    mine, all_of_them = _sum(rows), _sum(everything)
    echo(_in_words(f"{user}: " if user else "", mine))
    if user:
        echo(_in_words("all users: ", all_of_them))


def _sum(rows: Iterable[JoulesRow]) -> Sum:
    made = Sum()
    for one in rows:
        made.add(one)
    return made


def _jobs(rows: Sequence[JoulesRow]) -> str:
    lines = []
    for one in rows:
        of_it = _sum([one])
        known = "unknown" if one.energy_j is None else f"{one.energy_j / J_PER_KWH:.4f}"
        joules = f"{known} (shared)" if one.is_shared else known
        took = shown(one.ended_s - one.began_s)
        lines.append((one.job, one.user, one.title[:30], one.tag, str(one.nodes), took, joules, _watts(of_it.node_w)))
    return render(("job", "user", "name", "tag", "nodes", "took", "kWh", "W a node"), lines)


def _users(rows: Sequence[JoulesRow]) -> str:
    sums: defaultdict[str, Sum] = defaultdict(Sum)
    for one in rows:
        sums[one.user].add(one)
    lines = [
        (user, str(of_it.jobs), str(of_it.unknown), f"{of_it.energy_j / J_PER_KWH:.4f}", _watts(of_it.node_w))
        for user, of_it in sorted(sums.items(), key=lambda one: -one[1].energy_j)
    ]
    return render(("user", "jobs", "of them unknown", "kWh", "W a node"), lines)


def _in_words(whose: str, of_it: Sum) -> str:
    unknown = f"; the joules of {of_it.unknown} are not known" if of_it.unknown else ""
    return f"{whose}{of_it.jobs} jobs, {of_it.energy_j / J_PER_KWH:.4f} kWh, {_watts(of_it.node_w)} W a node{unknown}"


def _watts(watts: float | None) -> str:
    return "-" if watts is None else f"{watts:.1f}"
