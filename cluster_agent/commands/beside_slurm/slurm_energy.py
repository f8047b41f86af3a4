"""``clusterctl energy``: what the jobs of another manager have drawn, by job and by user."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from cluster_agent.commands.jobs import rows_since, write_rows
from cluster_agent.commands.nodes import json_option, socket_option
from cluster_agent.errors import WrongUseError
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
    heard_s: float = 0.0
    bound_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, one: JoulesRow) -> None:
        """Count a job."""
        self.jobs += 1
        self.heard_s += one.heard_s
        for by, bound_s in one.bound_s.items():
            self.bound_s[by] += bound_s
        if one.energy_j is None:
            self.unknown += 1
        else:
            self.energy_j += one.energy_j
            self.node_s += one.nodes * (one.ended_s - one.began_s)

    @property
    def node_w(self) -> float | None:
        """Mean watts of a node."""
        return self.energy_j / self.node_s if self.node_s > 0 else None

    @property
    def bound(self) -> str:
        """For which part of the time that nodes have reported a cap bound them, and what decided it most of that."""
        if self.heard_s <= 0:
            return "-"
        if not (bound_s := sum(self.bound_s.values())):
            return "0 %"
        most = max(self.bound_s, key=lambda by: self.bound_s[by])
        others = f", {100 * self.bound_s[most] / self.heard_s:.0f} %; others" if len(self.bound_s) > 1 else ""
        return f"{100 * bound_s / self.heard_s:.0f} % ({most}{others})"


@click.command()
@click.option("--user", default="", help="Of this user alone, next to the means of the partitions.")
@click.option(
    "--since", default="7d", show_default=True, metavar="DURATION", help="Jobs that ended within 90s, 12h, 7d."
)
@click.option("--users", "by_user", is_flag=True, help="One line per user and partition, next to the partition's mean.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="Write these jobs to FILE.csv or FILE.parquet."
)
@json_option
@socket_option
def energy(user: str, since: str, by_user: bool, out: Path | None, as_json: bool, socket: Place) -> None:
    """Joules of the jobs that Slurm, or another manager, has run: kWh and mean watts of a node. Of a job that shared a
    node they are its share, by the nodes' agents; where these do not know it, the line says so. "bound" is the part of
    the time in which a cap bound the nodes, and what decided that cap."""
    if out and (by_user or as_json):
        raise WrongUseError("--out writes the jobs: give it without --users and --json")
    everything = rows_since(socket, ListJoules(time.time() - seconds(since)))
    rows = [one for one in everything if user in ("", one.user)]
    if out:
        echo(f"{out}: {write_rows(out, rows, JoulesRow, '--out')} jobs")
        return
    if as_json:
        echo(json_text(rows))
        return
    if not rows:
        echo("no job of another manager has ended in that time")
        return
    echo_block(_users(rows, everything) if by_user else _jobs(rows))
    echo(_in_words(f"{user}: " if user else "", _sum(rows)))
    if user:
        _compare(user, rows, everything)


def _compare(user: str, rows: Sequence[JoulesRow], everything: Sequence[JoulesRow]) -> None:
    """A line per partition of these rows, the user's, and one of all users."""
    for where in sorted({one.partition for one in rows} - {""}):
        mine = _watts(_sum(one for one in rows if one.partition == where).node_w)
        echo(_in_words(f"partition {where}, of {user} {mine} W a node: ", _of_partition(everything, where)))
    echo(_in_words("all users: ", _sum(everything)))


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
        lines.append((
            one.job, one.user, one.title[:30], one.tag, str(one.nodes), took, joules, _watts(of_it.node_w), of_it.bound,
        ))  # fmt: skip
    return render(("job", "user", "name", "tag", "nodes", "took", "kWh", "W a node", "bound"), lines)


def _users(rows: Sequence[JoulesRow], everything: Sequence[JoulesRow]) -> str:
    """Each user's mean in a partition next to that of all its jobs; where no notice named one, of all jobs."""
    sums: defaultdict[tuple[str, str], Sum] = defaultdict(Sum)
    for one in rows:
        sums[one.user, one.partition].add(one)
    of_all = {where: _of_partition(everything, where).node_w for where in {where for _, where in sums}}
    lines = [
        (user, where or "-", str(of_it.jobs), str(of_it.unknown), f"{of_it.energy_j / J_PER_KWH:.4f}",
         _watts(of_it.node_w), _watts(of_all[where]), of_it.bound)
        for (user, where), of_it in sorted(sums.items(), key=lambda one: -one[1].energy_j)
    ]  # fmt: skip
    headings = ("user", "partition", "jobs", "of them unknown", "kWh", "W a node", "of all there", "bound")
    return render(headings, lines)


def _of_partition(everything: Iterable[JoulesRow], where: str) -> Sum:
    """Of all its jobs; of all jobs where the partition is not known."""
    return _sum(one for one in everything if where in ("", one.partition))


def _in_words(whose: str, of_it: Sum) -> str:
    unknown = f"; the joules of {of_it.unknown} are not known" if of_it.unknown else ""
    return f"{whose}{of_it.jobs} jobs, {of_it.energy_j / J_PER_KWH:.4f} kWh, {_watts(of_it.node_w)} W a node{unknown}"


def _watts(watts: float | None) -> str:
    return "-" if watts is None else f"{watts:.1f}"
