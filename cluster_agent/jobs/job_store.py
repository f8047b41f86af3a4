"""Jobs on the disk: what was accepted is there before its submitter is told, what is started before its nodes are.

A job is one row of the cluster agent's database: the columns that are searched for, and the whole record as JSON.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from cluster_agent.jobs.job import ACTIVE, Job, State
from cluster_agent.jobs.power_switching import Switched
from cluster_agent.store.database import Database
from cluster_agent.store.ledger_store import check_epoch


class JobStore:
    """All jobs. Every method raises ``ClusterError`` when the disk refuses, and then did nothing; those that write
    raise ``DeposedError`` once another cluster agent has taken the epoch (``own``)."""

    def __init__(self, database: Database, say: Callable[[str], None] = lambda line: None) -> None:
        """``say`` takes a line for each record that cannot be read; the job is left out, its record as it is."""
        self._database, self._say = database, say
        self._damaged: set[int] = set()
        self._epoch: int | None = None
        self._writing: sqlite3.Connection | None = None

    def own(self, epoch: int | None = None) -> None:
        """Write for this epoch only; None: for a new one, which is taken here."""
        if epoch is None:
            with self._database.writing() as connection:
                connection.execute("UPDATE owner SET epoch = epoch + 1")
                (epoch,) = connection.execute("SELECT epoch FROM owner").fetchone()
        self._epoch = epoch

    @contextmanager
    def together(self) -> Iterator[sqlite3.Connection]:
        """What is done inside is on the disk at the end, all of it or nothing."""
        if self._writing is not None:
            yield self._writing
            return
        with self._database.writing() as connection:
            if self._epoch is not None:
                check_epoch(self._database, self._epoch)
            self._writing = connection
            try:
                yield connection
            finally:
                self._writing = None

    def add(self, job: Job) -> None:
        """A new job; gives it its number, which is never given again."""
        with self.together() as connection:
            cursor = connection.execute(
                "INSERT INTO job (uid, state, body) VALUES (?, ?, ?)", (job.uid, job.state, b"")
            )
            assert cursor.lastrowid is not None
            job.id = cursor.lastrowid
            self.save(job)

    def save(self, job: Job) -> None:
        """The job as it is now."""
        with self.together() as connection:
            connection.execute(
                "UPDATE job SET state = ?, ended_s = ?, body = ? WHERE id = ?",
                (job.state, job.ended_s, _ENCODER.encode(job), job.id),
            )

    def alive(self) -> list[Job]:
        """Jobs that wait or run, in the order in which they joined the queue."""
        marks = ", ".join("?" * (len(ACTIVE) + 1))
        found = self._select(f"WHERE state IN ({marks})", ("queued", *ACTIVE))
        return sorted(found, key=lambda job: (job.queued_s, job.id))

    def ended(self, limit: int) -> list[Job]:
        """The jobs that ended last, in the order of their ends."""
        return self._select("WHERE ended_s IS NOT NULL ORDER BY ended_s DESC, id DESC LIMIT ?", (limit,))[::-1]

    def find(self, numbers: Iterable[int] = (), states: Iterable[State] = (), uid: int | None = None,
             after: int = 0, limit: int = 1_000_000) -> list[Job]:  # fmt: skip
        """Jobs by number, by state, by owner, in order of their numbers from behind ``after`` on."""
        wheres = ["id > ?"]
        values: list[object] = [after]
        for column, wanted in (("id", list(numbers)), ("state", list(states)), ("uid", [] if uid is None else [uid])):
            if wanted:
                wheres.append(f"{column} IN ({', '.join('?' * len(wanted))})")
                values += wanted
        return self._select(f"WHERE {' AND '.join(wheres)} ORDER BY id LIMIT ?", (*values, limit))

    def tally(self) -> dict[str, int]:
        """How many jobs there are by state, of all that were ever submitted."""
        return dict(self._database.rows("SELECT state, COUNT(*) FROM job GROUP BY state"))

    def drained(self) -> dict[str, str]:
        """Nodes that are to get no more jobs, and why."""
        return dict(self._database.rows("SELECT name, reason FROM drained_node"))

    def drain(self, node: str, reason: str, uid: int) -> None:
        """The node is to get no more jobs."""
        with self.together() as connection:
            connection.execute("INSERT OR REPLACE INTO drained_node VALUES (?, ?, ?)", (node, reason, uid))

    def resume(self, node: str) -> None:
        """It may get jobs again."""
        with self.together() as connection:
            connection.execute("DELETE FROM drained_node WHERE name = ?", (node,))

    def switched(self) -> list[Switched]:
        """Nodes that are off, or on their way there or back."""
        return [_SWITCHED.decode(body) for (body,) in self._database.rows("SELECT body FROM node_power")]

    def switch(self, node: Switched) -> None:
        """What has become of the node's power."""
        with self.together() as connection:
            connection.execute("INSERT OR REPLACE INTO node_power VALUES (?, ?)", (node.name, _ENCODER.encode(node)))

    def is_on(self, name: str) -> None:
        """The node is on like any other."""
        with self.together() as connection:
            connection.execute("DELETE FROM node_power WHERE name = ?", (name,))

    def _select(self, rest: str, values: tuple[object, ...]) -> list[Job]:
        found = []
        for number, body in self._database.rows(f"SELECT id, body FROM job {rest}", values):
            try:
                found.append(_DECODER.decode(body))
            except msgspec.DecodeError as error:
                if number not in self._damaged:
                    self._damaged.add(number)
                    self._say(
                        f"ALARM: job {number} is left out: its record in {self._database.path} is damaged: {error}"
                    )
        return found


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Job)
_SWITCHED: Final = msgspec.json.Decoder(Switched)
