"""The ledger's part of the store: the epoch, the highest power of each node, the budget, and who changed it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np

from cluster_agent.budget.accounts import NONE, Ints
from cluster_agent.budget.kept_counts import Change, DeposedError, Snapshot
from cluster_agent.store.database import Database, Writing
from foundation.wire.power_messages import Declaration

_DECLARATIONS = msgspec.json.Decoder(Declaration)
_COUNTS = msgspec.json.Decoder(list[int])
_STEPS = msgspec.json.Decoder(list[tuple[float, int]])

BLOCK: Final = 256
"""Places in a row of the table ``count``. Existing stores have this number: another one needs a migration."""


def begin_epoch(database: Database, writing: Writing, at_least: int = 0, boot_id: str | None = None) -> tuple[int, str]:
    """Inside ``writing``: a new epoch, above all before it. Returns it, and the boot in which the last one began;
    ``boot_id``: in which this one does (None: as the last)."""
    ((_, epoch, before),) = database.latest("owner")
    epoch = max(epoch + 1, at_least)
    writing.put("owner", 1, epoch, before if boot_id is None else boot_id)
    return epoch, before


def check_epoch(database: Database, epoch: int) -> None:
    """``DeposedError`` if this is not the newest epoch. Inside ``writing`` the epoch cannot change until its end."""
    ((_, newest, _),) = database.latest("owner")
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
        with self._database.writing() as writing:
            epoch, boot_id = begin_epoch(self._database, writing, at_least, self._boot_id)
        members = self._database.rows("SELECT name, declaration FROM member ORDER BY place")
        blocks = self._database.rows("SELECT block, counts_mw FROM count ORDER BY block")
        counts_mw = _counts_mw({block: _COUNTS.decode(stored) for block, stored in blocks})
        declarations = [_DECLARATIONS.decode(declaration) for _, declaration in members]
        names = [name for name, _ in members]
        return Snapshot(epoch, names, declarations, counts_mw, boot_id in ("", self._boot_id))

    def commit(
        self, epoch: int, nodes: Mapping[int, tuple[str, Declaration]], changed: Ints, counts_mw: Ints,
        change: Change | None = None,
    ) -> None:  # fmt: skip
        """Under the write lock, so that nobody can take over in between."""
        if not nodes and not len(changed):
            check_epoch(self._database, epoch)
            return
        with self._database.writing() as writing:
            check_epoch(self._database, epoch)
            for place, (name, declared) in nodes.items():
                writing.put("member", place, name, msgspec.json.encode(declared))
            for block in sorted(set((changed // BLOCK).tolist())):
                block_mw = counts_mw[block * BLOCK : (block + 1) * BLOCK]
                writing.put("count", block, msgspec.json.encode(block_mw.tolist()))
            if change is not None:
                _note(self._database, writing, change)

    def trouble(self, is_trial: bool = False) -> str:
        """The database's."""
        if is_trial and self._database.trouble:
            self._database.try_writing()
        return self._database.trouble


def _counts_mw(blocks: Mapping[int, list[int]]) -> Ints:
    """Of all places. A block of which no node has ever been granted anything is not stored."""
    counts_mw = np.full(max((block * BLOCK + len(stored) for block, stored in blocks.items()), default=0), NONE)
    for block, stored in blocks.items():
        counts_mw[block * BLOCK : block * BLOCK + len(stored)] = stored
    return counts_mw


class BudgetStore:
    """The budget, by hand and by schedule, as of the last change, and all changes. Times are wall-clock (Unix)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def load(self) -> tuple[int, list[tuple[float, int]]] | None:
        """The budget in mW and the steps to come; None before the first change."""
        rows = self._database.latest("budget")
        return (rows[0][1], _STEPS.decode(rows[0][2])) if rows else None

    def change(self, change: Change, budget_mw: int, steps: list[tuple[float, int]], only_lowers: bool = False) -> None:
        """Store a new budget, and who set it. ``only_lowers``: at no time is it above the one before, so it is stored
        also where the disk is full."""
        with self._database.writing(only_lowers) as writing:
            writing.put("budget", 1, budget_mw, msgspec.json.encode(steps))
            _note(self._database, writing, change)

    def note(self, change: Change) -> None:
        """Record who changed something that is stored elsewhere."""
        with self._database.writing() as writing:
            _note(self._database, writing, change)

    def changes(self, n: int = 20) -> list[Change]:
        """The last n changes, newest first."""
        return [Change(*row) for _, *row in self._database.latest("change", n)[::-1]]


def _note(database: Database, writing: Writing, change: Change) -> None:
    last = database.latest("change")
    writing.put("change", last[0][0] + 1 if last else 1, change.unix_s, change.who, change.what)
