"""The records of the store: each row carries a checksum over its table's name and all of its other columns.

SQLite notices damage to its own structures, not to what a row says: one flipped bit in a count would load silently.
So each row's checksum (CRC-32) is written with it and compared when the store is opened, and a row must decode to what
its table is for.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from cluster_agent.jobs.job import Job
from cluster_agent.jobs.power_switching import Switched
from cluster_agent.scheduler.energy_window import Stored
from cluster_agent.scheduler.switches.live_reservations import Reservation
from foundation.wire.power_messages import Count, Declaration

Row: TypeAlias = tuple[Any, ...]

Place: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 31)]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=96)]
Number: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 62)]
Seconds: TypeAlias = Annotated[float, Meta(ge=-1e300, le=1e300)]
StoredCount: TypeAlias = Annotated[int, Meta(ge=-1, lt=1 << 62)]

_COUNTS: Final = msgspec.json.Decoder(list[StoredCount])
_STEPS: Final = msgspec.json.Decoder(list[tuple[float, Number]])
_DECLARATION: Final = msgspec.json.Decoder(Declaration)
_JOB: Final = msgspec.json.Decoder(Job)
_SWITCHED: Final = msgspec.json.Decoder(Switched)
_STORED: Final = msgspec.json.Decoder(Stored)
_RESERVATION: Final = msgspec.json.Decoder(Reservation)


def _is_member(place: int, name: str, declaration: bytes) -> None:
    msgspec.convert((place, name), tuple[Place, Name])
    _DECLARATION.decode(declaration)


def _is_count(block: int, counts_mw: bytes) -> None:
    msgspec.convert(block, Place)
    _COUNTS.decode(counts_mw)


def _is_owner(one: int, epoch: int, boot_id: str) -> None:
    msgspec.convert((one, epoch, boot_id), tuple[Literal[1], Count, str])


def _is_budget(one: int, budget_mw: int, steps: bytes) -> None:
    msgspec.convert((one, budget_mw), tuple[Literal[1], Number])
    _STEPS.decode(steps)


def _is_job(number: int, uid: int, state: str, ended_s: float | None, body: bytes) -> None:
    job = _JOB.decode(body)
    if (job.id, job.uid, job.state, job.ended_s) != (number, uid, state, ended_s):
        raise ValueError("its columns differ from its record")


def _is_change(*row: object) -> None:
    msgspec.convert(row, tuple[int, Seconds, str, str])


def _is_drained_node(*row: object) -> None:
    msgspec.convert(row, tuple[Name, str, int])


def _is_node_power(name: str, body: bytes) -> None:
    if _SWITCHED.decode(body).name != name:
        raise ValueError("its column differs from its record")


def _is_stored_joules(one: int, body: bytes) -> None:
    msgspec.convert(one, Literal[1])
    _STORED.decode(body)


def _is_reservation(name: str, body: bytes) -> None:
    if _RESERVATION.decode(body).name != name:
        raise ValueError("its column differs from its record")


def _is_loss(*row: object) -> None:
    msgspec.convert(row, tuple[Literal[1], Seconds])


@dataclass(frozen=True, slots=True)
class Table:
    """``columns``: all but the checksum; the first is the key. ``check`` takes a row of them, and raises for one that
    cannot be. ``noun``: what a row is about, for a finding."""

    noun: str
    columns: tuple[str, ...]
    check: Callable[..., object]

    @property
    def listed(self) -> str:
        """The columns for a statement, the checksum last."""
        return ", ".join((*self.columns, "checksum"))


TABLES: Final[Mapping[str, Table]] = {
    "owner": Table("the epoch", ("one", "epoch", "boot_id"), _is_owner),
    "member": Table("node", ("place", "name", "declaration"), _is_member),
    "count": Table("block of counts", ("block", "counts_mw"), _is_count),
    "budget": Table("the budget", ("one", "budget_mw", "steps"), _is_budget),
    "change": Table("change of the budget", ("id", "unix_s", "who", "what"), _is_change),
    "job": Table("job", ("id", "uid", "state", "ended_s", "body"), _is_job),
    "drained_node": Table("drained node", ("name", "reason", "uid"), _is_drained_node),
    "node_power": Table("power of node", ("name", "body"), _is_node_power),
    "stored_joules": Table("the joules that a budget has stored", ("one", "body"), _is_stored_joules),
    "reservation": Table("reservation", ("name", "body"), _is_reservation),
    "lost_jobs": Table("the loss of all jobs", ("one", "unix_s"), _is_loss),
}  # fmt: skip
"""The tables whose rows carry a checksum."""

BLOBS: Final = frozenset(("declaration", "counts_mw", "steps", "body"))
"""The columns that are JSON, as bytes."""

LEDGER: Final = ("owner", "member", "count", "budget")
"""Those without which no budget is kept; they are small."""

LOST_JOBS: Final = "all jobs are lost"
"""With a row in ``lost_jobs`` no job may be started or ended: nodes may still run jobs of which nothing is known, and
would be sent orders to end them."""


def checksum(table: str, *values: Any) -> int:
    """Of a row. SQLite returns a whole number of a REAL column as a float, whatever was stored."""
    same = [int(one) if isinstance(one, float) and abs(one) < 2**53 and one.is_integer() else one for one in values]
    return zlib.crc32(msgspec.msgpack.encode((table, *same)))


def put_row(connection: sqlite3.Connection, table: str, row: Row) -> None:
    """Insert it, or replace the one of its key; it gets its checksum."""
    connection.execute(_PUT[table], (*row, checksum(table, *row)))


def drop_row(connection: sqlite3.Connection, table: str, key: Any) -> None:
    """Delete it, if it is there."""
    connection.execute(f"DELETE FROM {table} WHERE {TABLES[table].columns[0]} = ?", (key,))


def _put_statement(table: str) -> str:
    columns = TABLES[table].listed.split(", ")
    replaced = ", ".join(f"{one} = excluded.{one}" for one in columns[1:])
    return (
        f"INSERT INTO {table} ({TABLES[table].listed}) VALUES ({', '.join('?' * len(columns))})"
        f" ON CONFLICT ({columns[0]}) DO UPDATE SET {replaced}"
    )


_PUT: Final = {table: _put_statement(table) for table in TABLES}


def problem_of(table: str, row: Row) -> str:
    """What is wrong with this row, its checksum last; "" if nothing is."""
    *values, found = row
    try:
        if checksum(table, *values) != found:
            return "its checksum is wrong"
        TABLES[table].check(*values)
    except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        return f"it cannot be: {str(error).splitlines()[0][:100]}"
    return ""


@dataclass(slots=True)
class Rows:
    """What could be read of a table. ``bad``: rows, and what is wrong with them. ``torn``: SQLite could not read
    through the table; what is missing is not known."""

    good: list[Row] = field(default_factory=list)
    bad: list[tuple[Row, str]] = field(default_factory=list)
    torn: str = ""

    def named(self, table: str) -> Iterator[str]:
        """A line for each bad row and for the gap."""
        noun = TABLES[table].noun
        for row, problem in self.bad:
            key = str(row[0])[:40]
            key = "" if TABLES[table].columns[0] == "one" else f" {key if key.isprintable() else ascii(key)}"
            yield f"{noun}{key}: {problem}"
        if self.torn:
            yield f"table {table}: some records cannot be read: {self.torn}"


def read_rows(connection: sqlite3.Connection, table: str) -> Rows:
    """Every row of the table that can be read: from its beginning to the first that cannot, and from its end."""
    found = Rows()
    seen: set[int] = set()
    for order in ("ASC", "DESC"):
        try:
            query = f"SELECT rowid, {TABLES[table].listed} FROM {table} NOT INDEXED ORDER BY rowid {order}"
            for number, *row in connection.execute(query):
                if number in seen:
                    continue
                seen.add(number)
                if problem := problem_of(table, tuple(row)):
                    found.bad.append((tuple(row), problem))
                else:
                    found.good.append(tuple(row))
            return found
        except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
            found.torn = str(error)
    return found


def text_of(raw: bytes) -> str | bytes:
    """A ``text_factory`` that leaves text that is none as bytes: the row's checksum then finds it."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw
