"""The ledger's part of the store: the epoch, the highest power of each node, the budget, and who changed it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from cluster_agent.budget.accounts import NONE, Ints
from cluster_agent.budget.kept_counts import DeposedError, Snapshot
from cluster_agent.store.database import Database
from nodectl.wire.power_messages import Declaration

_DECLARATIONS = msgspec.json.Decoder(Declaration)
_COUNTS = msgspec.json.Decoder(list[int])
_STEPS = msgspec.json.Decoder(list[tuple[float, int]])

_REPLACE_MEMBER: Final = "INSERT OR REPLACE INTO member VALUES (?1, ?2, ?3, record_checksum('member', ?1, ?2, ?3))"
_REPLACE_COUNT: Final = "INSERT OR REPLACE INTO count VALUES (?1, ?2, record_checksum('count', ?1, ?2))"

BLOCK: Final = 256
"""Places in a row of the table ``count``. Existing stores have this number: another one needs a migration."""


def begin_epoch(connection: sqlite3.Connection, at_least: int = 0, boot_id: str | None = None) -> tuple[int, str]:
    """Inside ``writing``: a new epoch, above all before it. Returns it, and the boot in which the last one began;
    ``boot_id``: in which this one does (None: as the last)."""
    epoch, before = connection.execute("SELECT epoch, boot_id FROM owner").fetchone()
    epoch = max(epoch + 1, at_least)
    boot_id = before if boot_id is None else boot_id
    connection.execute(
        "UPDATE owner SET epoch = ?1, boot_id = ?2, checksum = record_checksum('owner', one, ?1, ?2)", (epoch, boot_id)
    )
    return epoch, before


def check_epoch(database: Database, epoch: int) -> None:
    """``DeposedError`` if this is not the newest epoch. Inside ``writing`` the epoch cannot change until its end."""
    newest = database.rows("SELECT epoch FROM owner")[0][0]
    if newest != epoch:
        raise DeposedError(f"{database.path}: another cluster agent has taken over (epoch {newest}, ours was {epoch})")


class SqliteLedgerStore:
    """A ``LedgerStore``. ``boot_id``: of this machine; if the store was written in another boot, commits may be lost.

    Counts are stored in blocks of ``BLOCK`` places, a JSON array each, since a change of the budget changes all counts
    and writing a row per node would take longer than all the rest.
    """

    def __init__(self, database: Database, boot_id: str) -> None:
        self._database, self._boot_id = database, boot_id

    def take_over(self, at_least: int = 0) -> Snapshot:
        """The write lock makes this one step, also against a standby on the same disk."""
        with self._database.writing() as connection:
            epoch, boot_id = begin_epoch(connection, at_least, self._boot_id)
            members = connection.execute("SELECT name, declaration FROM member ORDER BY place").fetchall()
            blocks = connection.execute("SELECT block, counts_mw FROM count ORDER BY block").fetchall()
            counts_mw = _counts_mw({block: _COUNTS.decode(stored) for block, stored in blocks})
            declarations = [_DECLARATIONS.decode(declaration) for _, declaration in members]
            names = [name for name, _ in members]
            write_copy(self._database, epoch, zip(names, declarations, strict=True))
        return Snapshot(epoch, names, declarations, counts_mw, boot_id in ("", self._boot_id))

    def commit(self, epoch: int, nodes: Mapping[int, tuple[str, Declaration]], changed: Ints, counts_mw: Ints) -> None:
        """Under the write lock, so that nobody can take over in between."""
        if not nodes and not len(changed):
            check_epoch(self._database, epoch)
            return
        members = [(place, name, msgspec.json.encode(declared)) for place, (name, declared) in nodes.items()]
        blocks = [
            (block, msgspec.json.encode(counts_mw[block * BLOCK : (block + 1) * BLOCK].tolist()))
            for block in np.unique(changed // BLOCK).tolist()
        ]
        with self._database.writing() as connection:
            check_epoch(self._database, epoch)
            connection.executemany(_REPLACE_MEMBER, members)
            connection.executemany(_REPLACE_COUNT, blocks)
        if nodes:
            self._database.copy.append(*(("member", place, *node) for place, node in nodes.items()))


def _counts_mw(blocks: Mapping[int, list[int]]) -> Ints:
    """Of all places. A block of which no node has ever been granted anything is not stored."""
    counts_mw = np.full(max((block * BLOCK + len(stored) for block, stored in blocks.items()), default=0), NONE)
    for block, stored in blocks.items():
        counts_mw[block * BLOCK : block * BLOCK + len(stored)] = stored
    return counts_mw


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the budget."""

    unix_s: float
    who: str
    what: str


class BudgetStore:
    """The budget, by hand and by schedule, as of the last change, and all changes. Times are wall-clock (Unix)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def load(self) -> tuple[int, list[tuple[float, int]]] | None:
        """The budget in mW and the steps to come; None before the first change."""
        rows = self._database.rows("SELECT budget_mw, steps FROM budget")
        return (rows[0][0], _STEPS.decode(rows[0][1])) if rows else None

    def change(self, change: Change, budget_mw: int, steps: list[tuple[float, int]]) -> None:
        """Store a new budget, and who set it."""
        with self._database.writing() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO budget VALUES (1, ?1, ?2, record_checksum('budget', 1, ?1, ?2))",
                (budget_mw, msgspec.json.encode(steps)),
            )
            _note(connection, change)
            self._database.copy.append(("budget", budget_mw, steps))

    def note(self, change: Change) -> None:
        """Record who did something else that the budget rests on."""
        with self._database.writing() as connection:
            _note(connection, change)

    def changes(self, n: int = 20) -> list[Change]:
        """The last n changes, newest first."""
        query = "SELECT unix_s, who, what FROM change ORDER BY id DESC LIMIT ?"
        return [Change(*row) for row in self._database.rows(query, (n,))]


def write_copy(database: Database, epoch: int, members: Iterable[tuple[str, Declaration]]) -> None:
    """Inside ``writing``: make the copy say what the store does."""
    number = database.rows("SELECT number FROM last_commit")[0][0]  # the commit before this one, which may yet fail
    schema = database.rows("SELECT type, name, tbl_name, rootpage FROM sqlite_master")
    budget = database.rows("SELECT budget_mw, steps FROM budget")
    database.copy.write(
        number,
        ("epoch", epoch),
        *(("member", place, *one) for place, one in enumerate(members)),
        *(("budget", budget_mw, _STEPS.decode(steps)) for budget_mw, steps in budget),
        ("schema", schema),
    )


def _note(connection: sqlite3.Connection, change: Change) -> None:
    row = (change.unix_s, change.who, change.what)
    (number,) = connection.execute(
        "INSERT INTO change (unix_s, who, what) VALUES (?, ?, ?) RETURNING id", row
    ).fetchone()
    connection.execute(
        "UPDATE change SET checksum = record_checksum('change', ?1, ?2, ?3, ?4) WHERE id = ?1", (number, *row)
    )
