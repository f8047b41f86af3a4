"""``clusterctl history``: what each job did, in watts, counters and time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from cluster_agent.cluster import load_machine
from cluster_agent.commands.jobs import exported, rows_since, write_csv
from cluster_agent.commands.nodes import json_option, socket_option
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.fabric.ask import Place, ask
from cluster_agent.history.job_history import HistoryRow, Pseudonyms
from cluster_agent.history.measured_configurations import MeasuredConfiguration, NodeParts, measured_configurations
from cluster_agent.history.usage import Measured
from cluster_agent.scheduler.configurations.table import COLUMNS
from cluster_agent.serve.people_protocol import ForgetHistory, ListHistory, ListPhases
from foundation.shell.duration import seconds, shown
from foundation.shell.plain_text import echo, echo_block, json_text
from foundation.shell.text_table import render

since_option = click.option(
    "--since", default="7d", show_default=True, metavar="DURATION", help="Jobs that ended within 90s, 12h, 7d."
)
FRONT_HEADINGS: Final = ("application", "nodes", "cores", "cap W", "runs", "took", "W", "kJ", "front")
HEADINGS: Final = ("job", "user", "name", "nodes", "took", "W a node", "95 %", "most", "IPC", "GB/s", "stalled", "tag")


@click.group()
def history() -> None:
    """What each job that has ended did: our jobs and another manager's (docs/predictions.md)."""


@history.command()
@click.option("--user", default="", help="Of this user alone.")
@since_option
@json_option
@socket_option
def show(user: str, since: str, as_json: bool, socket: Place) -> None:
    """The jobs, the oldest first: watts of a node (mean, below it for 95 % of the time, most), and counters."""
    rows = rows_since(socket, ListHistory(time.time() - seconds(since), user))
    if as_json:
        echo(json_text(rows))
    elif rows:
        echo_block(render(HEADINGS, [_cells(one) for one in rows]))
    else:
        echo("no job has ended in that time")


@history.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--user", default="", help="Of this user alone.")
@since_option
@click.option(
    "--pseudonyms",
    metavar="KEYFILE",
    type=click.Path(path_type=Path),
    help="Words in place of the names of users and programs, the same with the same key; made if missing.",
)
@socket_option
def export(file: Path, user: str, since: str, pseudonyms: Path | None, socket: Place) -> None:
    """Write the jobs to FILE (CSV), completely or not at all."""
    if file.suffix != ".csv":
        raise WrongUseError(f"{file}: the name must end in .csv")
    rows = rows_since(socket, ListHistory(time.time() - seconds(since), user))
    if pseudonyms is not None:
        words = Pseudonyms.of(pseudonyms)
        rows = [words.row(one) for one in rows]
    with exported(file) as part:
        write_csv(part, [_flat(one) for one in rows], _names())
    echo(f"{file}: {len(rows)} jobs")


@history.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--machine", required=True, help="The machine file: cores, highest watts and rest_w of its first nodes.")
@click.option("--packages", default=1, show_default=True, help="Processors of a node.")
@click.option("--user", default="", help="Of this user's jobs alone.")
@click.option("--least", default=3, show_default=True, help="Runs that a configuration is from.")
@click.option("--step", default=10.0, show_default=True, help="Caps of a node within so many watts count as one.")
@click.option("--front", is_flag=True, help="Write those alone that no other beats in time and joules.")
@since_option
@socket_option
def configurations(
    file: Path, machine: str, packages: int, user: str, least: int, step: float, front: bool, since: str, socket: Place
) -> None:
    """Write how long each application took on so many nodes below such a cap, and with which watts, to FILE (CSV).

    `rmap` and `moldable` choose among these rows: --configurations FILE of a replay, or `configurations` of [jobs].
    """
    if file.suffix != ".csv":
        raise WrongUseError(f"{file}: the name must end in .csv")
    if packages < 1 or least < 1 or not 0.0 < step < float("inf"):
        raise WrongUseError("--packages, --least and --step must be above 0")
    group = load_machine(machine).groups[0]
    parts = NodeParts(group.cores, max(group.busy_w, default=0.0), group.rest_w, packages)
    if not parts.cap_w:
        raise WrongUseError(f"--machine {machine}: its first nodes have no busy_w")
    rows = rows_since(socket, ListHistory(time.time() - seconds(since), user))
    found = measured_configurations(rows, parts, least, step)
    chosen = [one for one in found if one.is_on_front or not front]
    if not chosen:
        raise ClusterError(
            f"no application ran {least} times with metered watts in that time; look further back: --since"
        )
    with exported(file) as part:
        rows_of_table = [{"application": one.application} | msgspec.structs.asdict(one.row) for one in chosen]
        write_csv(part, rows_of_table, COLUMNS)
    echo_block(render(FRONT_HEADINGS, [_configuration(one) for one in chosen]))
    echo(f"{file}: {len(chosen)} configurations of {len({one.application for one in chosen})} applications")


@history.command()
@click.option("--user", default="", help="Of this user alone.")
@json_option
@socket_option
def phases(user: str, as_json: bool, socket: Place) -> None:
    """Phases of programs on GPUs, which nodes have measured, for the next node that runs such a program."""
    rows = ask(socket, ListPhases(user))
    if as_json:
        echo(json_text(rows))
    elif rows:
        cells = [
            (one.user, one.card, str(one.phases), str(one.runs), one.used_at[:16].replace("T", " "), one.node,
             one.program)
            for one in rows
        ]  # fmt: skip
        echo_block(render(("user", "card", "phases", "runs", "last run", "on", "program"), cells))
    else:
        echo("no phases are kept")


@history.command()
@click.argument("user")
@socket_option
def forget(user: str, socket: Place) -> None:
    """Remove what is kept of USER's jobs, and keep nothing of those that run now. For administrators.

    Phases of the user's programs are deleted on nodes, too: on one that is away as soon as it is back.
    """
    echo(*ask(socket, ForgetHistory(user)))


def _names() -> Sequence[str]:
    return [*(name for name in HistoryRow.__struct_fields__ if name != "measured"), *Measured.__struct_fields__]


def _flat(one: HistoryRow) -> dict[str, Any]:
    values = msgspec.structs.asdict(one)
    return values | msgspec.structs.asdict(values.pop("measured"))


def _cells(one: HistoryRow) -> tuple[str, ...]:
    found = one.measured
    mean_w = found.mean_w if one.watts is None else one.watts / max(one.nodes, 1)
    bytes_per_s = None if found.bytes_per_s is None else found.bytes_per_s / 1e9
    stalled = "-" if found.stalled is None else f"{100 * found.stalled:.0f} %"
    return (
        one.job, one.user, one.application[:30], str(one.nodes), shown(one.run_s), _number(mean_w, 1),
        _number(found.p95_w, 1), _number(found.highest_w, 1), _number(found.ipc, 2), _number(bytes_per_s, 1), stalled,
        one.tag or "-",
    )  # fmt: skip


def _configuration(one: MeasuredConfiguration) -> tuple[str, ...]:
    row = one.row
    return (
        one.application[:30], str(row.nodes), str(row.cores), f"{row.cap_w:.0f}", str(one.runs), shown(row.time_s),
        f"{row.watts:.0f}", f"{row.energy_j / 1e3:.1f}", "yes" if one.is_on_front else "-",
    )  # fmt: skip


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
