"""``clusterctl reserve``: nodes that are kept free for the jobs of some users."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, TypeVar

import click
import msgspec

from cluster_agent.commands.nodes import json_option, socket_option
from cluster_agent.commands.submit import begin_s
from cluster_agent.errors import WrongUseError, without_types
from cluster_agent.fabric.ask import Place, ask
from cluster_agent.scheduler.switches.live_reservations import LONGEST_S, NAME, PERIODS, Reservation, clock
from cluster_agent.serve.people_protocol import ListReservations, ReservationRow, Reserve, Unreserve
from foundation.shell.duration import seconds, shown
from foundation.shell.names import expanded, first_of
from foundation.shell.plain_text import echo, echo_block, json_text
from foundation.shell.text_table import render

MAY_LACK: Final = ("--every", "--on")
HEADINGS: Final = ["name", "nodes", "from", "for", "every", "users", "jobs"]


Valid = TypeVar("Valid")


@click.command()
@click.argument("name", required=False)
@click.option("-N", "--nodes", type=click.IntRange(1), help="How many nodes are kept free.")
@click.option("--on", default="", metavar="NODES", help="These nodes, in place of a number: n[01-04].")
@click.option("--start", default="", metavar="TIME", help="From when: 2h from now, 20:00 or 2030-01-31T20:00.")
@click.option("--for", "duration", default="", metavar="TIME", help="For how long: 4h, 01:30:00.")
@click.option("--users", default="", metavar="NAME,...", help="Whose jobs may run there.")
@click.option("--every", type=click.Choice(list(PERIODS)), help="Again every day, or week, until it is deleted.")
@click.option("--delete", is_flag=True, help="Delete it; no job may wait or run in it.")
@json_option
@socket_option
def reserve(
    name: str | None,
    nodes: int | None,
    on: str,
    start: str,
    duration: str,
    users: str,
    every: str | None,
    delete: bool,
    as_json: bool,
    socket: Place,
) -> None:
    """Keep nodes free for jobs of `submit --reservation NAME`; without NAME: list what is reserved. For administrators.

    No other job starts on them if its walltime reaches into that time. Jobs of the reservation start and end in it.
    """
    given = {"--nodes": nodes, "--on": on, "--start": start, "--for": duration, "--users": users, "--every": every}
    if name is None:
        _refuse({"--delete": delete} | given, "give the NAME of the reservation")
        _list(ask(socket, ListReservations()), as_json)
    elif delete:
        _refuse(given, "not with --delete; leave one of them out")
        echo(*ask(socket, _valid({"name": name}, Unreserve)))
    else:
        echo(*ask(socket, Reserve(_reservation(name, given))))


def _refuse(given: dict[str, Any], why: str) -> None:
    """``WrongUseError`` for the first of these options that is given."""
    if option := next((option for option, value in given.items() if value), ""):
        raise WrongUseError(f"{option}: {why}")


def _reservation(name: str, given: dict[str, Any]) -> Reservation:
    """``WrongUseError`` for one that lacks something, or cannot be."""
    if given["--on"] and given["--nodes"]:
        raise WrongUseError("--nodes: not with --on; leave one of them out")
    on = expanded(given["--on"]) if given["--on"] else []
    given = given | {"--nodes": len(on) or given["--nodes"]}
    if missing := next((option for option, value in given.items() if not value and option not in MAY_LACK), ""):
        raise WrongUseError(
            f"{missing} is missing: clusterctl reserve NAME --nodes N --start TIME --for TIME --users A,B"
        )
    length_s = seconds(given["--for"])
    if not 0 < length_s <= LONGEST_S:
        raise WrongUseError(f"--for {given['--for']}: a reservation needs some time, and lasts a year at most")
    if NAME.fullmatch(name) is None:
        raise WrongUseError(f"{name!r} is no name of a reservation: 64 letters, digits, dots and hyphens at most")
    new = {
        "name": name,
        "nodes": given["--nodes"],
        "from_s": begin_s("--start", given["--start"], datetime.now()),
        "length_s": length_s,
        "users": [user for user in given["--users"].split(",") if user],
        "every_s": PERIODS.get(given["--every"], 0),
        "on": on,
    }
    return _valid(new, Reservation)


def _valid(found: dict[str, Any], kind: type[Valid]) -> Valid:
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise WrongUseError(f"not a valid reservation: {without_types(str(error)).replace('`', '')}") from None


def _list(rows: list[ReservationRow], as_json: bool) -> None:
    if as_json:
        echo(json_text(rows))
    elif rows:
        echo_block(render(HEADINGS, [_cells(row) for row in rows]))
    else:
        echo("nothing is reserved")


def _cells(row: ReservationRow) -> list[str]:
    every = {every_s: period for period, every_s in PERIODS.items()}.get(row.every_s, "")
    begins = clock(row.next_s) + (" (now)" if row.is_open else "")
    jobs = ",".join(map(str, row.jobs[:5])) + (",..." if row.jobs[5:] else "")
    return [
        row.name,
        first_of(row.on, 3) or str(row.nodes),
        begins,
        shown(row.length_s),
        every,
        ",".join(row.users),
        jobs,
    ]
