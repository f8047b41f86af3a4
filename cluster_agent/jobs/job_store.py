"""Jobs on the disk: a job is stored before its submitter gets the answer, and a start before it is sent to nodes.

A job is one row of the cluster agent's database: columns for searches, and the whole record as JSON. What is changed
here goes to a second copy, too (``store.job_copy``), before a method returns.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from cluster_agent.errors import ClusterError
from cluster_agent.jobs.job import ACTIVE, OVER, Job, State
from cluster_agent.jobs.power_switching import Switched
from cluster_agent.scheduler.energy_window import Stored
from cluster_agent.store.database import Database
from cluster_agent.store.job_copy import COPIED, Record
from cluster_agent.store.ledger_store import begin_epoch, check_epoch
from cluster_agent.store.records import LOST_JOBS, TABLES, Row, problem_of


class JobStore:
    """All jobs. A method that the disk fails raises ``ClusterError`` and changes nothing; those that write raise
    ``DeposedError`` once another cluster agent has taken over (``own``)."""

    def __init__(self, database: Database, say: Callable[[str], None] = lambda line: None) -> None:
        """``say`` takes a line for each record that cannot be read; the job is left out, its record as it is."""
        self._database, self._say = database, say
        self._damaged: set[int] = set()
        self._trouble, self._is_copied = "", False
        self._epoch: int | None = None
        self._writing: sqlite3.Connection | None = None
        self._changed: dict[tuple[str, Any], Record] = {}

    def own(self, epoch: int | None = None) -> None:
        """Write under this epoch only; None: take a new one."""
        if epoch is None:
            with self._database.writing() as connection:
                epoch, _ = begin_epoch(connection)
        self._epoch = epoch
        if not self._is_copied:
            self._complete_copy()
            self._is_copied = True

    @contextmanager
    def together(self) -> Iterator[sqlite3.Connection]:
        """One transaction for all that is done inside: at the end all of it is on the disk, or nothing."""
        if self._writing is not None:
            yield self._writing
            return
        with self._database.writing() as connection:
            if self._epoch is not None:
                check_epoch(self._database, self._epoch)
            self._writing, self._changed = connection, {}
            try:
                yield connection
            finally:
                self._writing = None
            if self._changed:
                number = self._database.number_of_jobs() + 1
                connection.execute(f"PRAGMA user_version = {number}")
        if self._changed:
            self._copy(number, self._changed.values())

    def add(self, job: Job) -> None:
        """Store a new job and give it its number, which is never used again."""
        with self.together() as connection:
            cursor = connection.execute(
                "INSERT INTO job (uid, state, body) VALUES (?, ?, ?)", (job.uid, job.state, b"")
            )
            assert cursor.lastrowid is not None
            job.id = cursor.lastrowid
            self.save(job)

    def save(self, job: Job) -> None:
        """Store the present state of a job."""
        row = (job.id, job.state, job.ended_s, _ENCODER.encode(job))
        with self.together() as connection:
            connection.execute(
                "UPDATE job SET state = ?2, ended_s = ?3, body = ?4,"
                " checksum = record_checksum('job', id, uid, ?2, ?3, ?4) WHERE id = ?1",
                row,
            )
            self._changes("job", job.id, job.uid, *row[1:])

    def alive(self) -> list[Job]:
        """Jobs that wait or run, in the order in which they joined the queue. ``ClusterError`` if all were lost: nodes
        may run some that are not known here, and would be sent orders to end them."""
        if self._database.rows("SELECT 1 FROM set_aside WHERE why = ?", (LOST_JOBS,)):
            raise ClusterError(f"{self._database.path}: {LOST_JOBS}: put back a backup, or `clusterctl store repair`")
        marks = ", ".join("?" * (len(ACTIVE) + 1))
        found = self._select(f"WHERE state IN ({marks})", ("queued", *ACTIVE))
        return sorted(found, key=lambda job: (job.queued_s, job.id))

    def ended(self, limit: int) -> list[Job]:
        """The jobs that ended last, in the order of their ends."""
        return self._select("WHERE ended_s IS NOT NULL ORDER BY ended_s DESC, id DESC LIMIT ?", (limit,))[::-1]

    def find(self, numbers: Iterable[int] = (), states: Iterable[State] = (), uid: int | None = None,
             after: int = 0, limit: int = 1_000_000) -> list[Job]:  # fmt: skip
        """Jobs by number, by state, by owner, in the order of their numbers, beginning after number ``after``."""
        wheres = ["id > ?"]
        values: list[object] = [after]
        for column, wanted in (("id", list(numbers)), ("state", list(states)), ("uid", [] if uid is None else [uid])):
            if wanted:
                wheres.append(f"{column} IN ({', '.join('?' * len(wanted))})")
                values += wanted
        return self._select(f"WHERE {' AND '.join(wheres)} ORDER BY id LIMIT ?", (*values, limit))

    def state(self, number: int) -> State | None:
        """Of one job; None: there is none with this number."""
        rows = self._database.rows("SELECT state FROM job WHERE id = ?", (number,))
        return rows[0][0] if rows else None

    def tally(self) -> dict[str, int]:
        """How many jobs there are by state, of all that were ever submitted."""
        return dict(self._database.rows("SELECT state, COUNT(*) FROM job GROUP BY state"))

    def drained(self) -> dict[str, str]:
        """Drained nodes, and why."""
        return dict(self._database.rows("SELECT name, reason FROM drained_node"))

    def drain(self, node: str, reason: str, uid: int) -> None:
        """Give the node no more jobs."""
        with self.together() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO drained_node VALUES (?1, ?2, ?3, record_checksum('drained_node', ?1, ?2, ?3))",
                (node, reason, uid),
            )
            self._changes("drained_node", node, reason, uid)

    def resume(self, node: str) -> None:
        """Let the node get jobs again."""
        with self.together() as connection:
            connection.execute("DELETE FROM drained_node WHERE name = ?", (node,))
            self._changes("drained_node", node)

    def switched(self) -> list[Switched]:
        """Nodes that are off, powering off or booting."""
        return [_SWITCHED.decode(body) for (body,) in self._database.rows("SELECT body FROM node_power")]

    def switch(self, node: Switched) -> None:
        """Store the state of the node's power."""
        row = (node.name, _ENCODER.encode(node))
        with self.together() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO node_power VALUES (?1, ?2, record_checksum('node_power', ?1, ?2))", row
            )
            self._changes("node_power", *row)

    def is_on(self, name: str) -> None:
        """The node is on: forget its switching."""
        with self.together() as connection:
            connection.execute("DELETE FROM node_power WHERE name = ?", (name,))
            self._changes("node_power", name)

    def stored_joules(self) -> Stored | None:
        """What the budget of joules had stored that a scheduler had last."""
        rows = self._database.rows("SELECT body FROM stored_joules")
        return _STORED.decode(rows[0][0]) if rows else None

    def forget_joules(self) -> None:
        """Another policy decides meanwhile: what was stored says nothing any more."""
        with self.together() as connection:
            connection.execute("DELETE FROM stored_joules")
            self._changes("stored_joules", 1)

    def store_joules(self, stored: Stored) -> None:
        """Store that."""
        row = (1, _ENCODER.encode(stored))
        with self.together() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO stored_joules VALUES (?1, ?2, record_checksum('stored_joules', ?1, ?2))", row
            )
            self._changes("stored_joules", *row)

    def _changes(self, table: str, *row: Any) -> None:
        """Inside ``together``: this row is changed, or gone where there is only its key."""
        self._changed[table, row[0]] = table, row

    def _copy(self, number: int, records: Iterable[Record]) -> None:
        """The store has them already: where the copy cannot be written, that is said, and tried again at the next
        change."""
        try:
            if self._database.job_copy.append(number, records):
                self._copy_all(with_ended=False)
            self._trouble = ""
        except ClusterError as error:
            if str(error) != self._trouble:
                self._say(f"ALARM: {error}; until it can, jobs have no second copy")
            self._trouble = str(error)

    def _complete_copy(self) -> None:
        """The copy lacks what the last agent had no time to add, or all of it."""
        number, copied = self._database.number_of_jobs(), self._database.job_copy.number()
        if copied is not None and copied > number:  # `open_store` would have found this
            raise ClusterError(
                f"{self._database.path}: {copied - number} changes of jobs are missing: `clusterctl store repair`"
            )
        if copied != number:
            self._copy_all(with_ended=True)

    def _copy_all(self, with_ended: bool) -> None:
        def rows(table: str, where: str = "") -> Iterator[Row]:
            for row in self._database.each(f"SELECT {TABLES[table].listed} FROM {table} {where}"):
                if not problem_of(table, row):
                    yield row[:-1]

        over = f"state IN ({', '.join(map(repr, OVER))})"
        live = {table: rows(table, f"WHERE NOT {over}" if table == "job" else "") for table in COPIED}
        records = ((table, row) for table, found in live.items() for row in found)
        ended = rows("job", f"WHERE {over}") if with_ended else None
        self._database.job_copy.write(self._database.number_of_jobs(), records, ended)

    def _select(self, rest: str, values: tuple[object, ...]) -> list[Job]:
        found = []
        for row in self._database.rows(f"SELECT {TABLES['job'].listed} FROM job {rest}", values):
            if not (problem := problem_of("job", row)):
                found.append(_DECODER.decode(row[4]))
            elif row[0] not in self._damaged:
                self._damaged.add(row[0])
                self._say(f"ALARM: job {row[0]} is left out: its record in {self._database.path} is damaged: {problem}")
        return found


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Job)
_SWITCHED: Final = msgspec.json.Decoder(Switched)
_STORED: Final = msgspec.json.Decoder(Stored)
