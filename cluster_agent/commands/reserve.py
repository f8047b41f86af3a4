"""``clusterctl reserve``: nodes that are kept free for the jobs of some users."""

from __future__ import annotations

from datetime import datetime

import click
import msgspec

from cluster_agent.commands.nodes import json_option, socket_option
from cluster_agent.commands.submit import begin_s
from cluster_agent.errors import WrongUseError, without_types
from cluster_agent.fabric.ask import Place, ask
from cluster_agent.scheduler.switches.live_reservations import PERIODS, Reservation, clock
from cluster_agent.serve.people_protocol import ListReservations, ReservationRow, Reserve, Unreserve
from foundation.shell.duration import seconds, shown
from foundation.shell.plain_text import echo, echo_block, json_text
from foundation.shell.text_table import render

HEADINGS = ["name", "nodes", "from", "for", "every", "users", "jobs"]


@click.command()
@click.argument("name", required=False)
@click.option("-N", "--nodes", type=click.IntRange(1), help="How many nodes are kept free.")
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
    given = {"--nodes": nodes, "--start": start, "--for": duration, "--users": users}
    if name is None or delete:
        wrong = next((option for option, value in (given | {"--every": every}).items() if value), "")
        if wrong or (delete and name is None):
            raise WrongUseError(f"{wrong or '--delete'}: give the NAME of the reservation" if name is None else
                                f"--delete and {wrong}: leave one of them out")  # fmt: skip
        if name is None:
            _list(ask(socket, ListReservations()), as_json)
        else:
            echo(*ask(socket, msgspec.convert({"name": name}, Unreserve)))
        return
    if missing := next((option for option, value in given.items() if not value), ""):
        raise WrongUseError(
            f"{missing} is missing: clusterctl reserve NAME --nodes N --start TIME --for TIME --users A,B"
        )
    new = {
        "name": name,
        "nodes": nodes,
        "from_s": begin_s("--start", start, datetime.now()),
        "length_s": seconds(duration),
        "users": [user for user in users.split(",") if user],
        "every_s": PERIODS[every] if every else 0,
    }
    if new["length_s"] == 0:
        raise WrongUseError(f"--for {duration}: a reservation needs some time")
    try:
        reservation = msgspec.convert(new, Reservation)
    except msgspec.ValidationError as error:
        raise WrongUseError(f"not a valid reservation: {without_types(str(error)).replace('`', '')}") from None
    echo(*ask(socket, Reserve(reservation)))


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
    return [row.name, str(row.nodes), begins, shown(row.length_s), every, ",".join(row.users), jobs]
