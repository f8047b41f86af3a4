"""Jobs on the disk: a job is stored before its submitter gets the answer, and a start before it is sent to nodes.

A job is one row of the cluster agent's database: columns for searches, and the whole record as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate, takewhile
from typing import Final

import msgspec

from cluster_agent.errors import ClusterError, StoreError
from cluster_agent.jobs.job import ACTIVE, Job, State, in_queue
from cluster_agent.jobs.power_switching import Switched
from cluster_agent.scheduler.energy_window import Stored
from cluster_agent.scheduler.switches.live_reservations import Reservation
from cluster_agent.store.database import Database, Writing
from cluster_agent.store.ledger_store import begin_epoch, check_epoch
from cluster_agent.store.records import LOST_JOBS, TABLES, problem_of

MOST_PAGE, MOST_EXPORT, MOST_PAST = 4 << 20, 16 << 20, 64 << 20
"""Ours: bytes of records that are read for a list of jobs, for an export, and of the jobs that ended last at a start.
The agent does nothing else meanwhile, and a job may have 256 KiB: a thousand of these took it seconds."""


class JobStore:
    """All jobs. A method that the disk fails raises ``ClusterError`` and changes nothing; those that write raise
    ``DeposedError`` once another cluster agent has taken over (``own``)."""

    def __init__(self, database: Database, say: Callable[[str], None] = lambda line: None) -> None:
        """``say`` takes a line for each record that cannot be read; the job is left out, its record as it is."""
        self._database, self._say = database, say
        self._damaged: set[int] = set()
        self._epoch: int | None = None
        self._writing: Writing | None = None

    def own(self, epoch: int | None = None) -> None:
        """Write under this epoch only; None: take a new one."""
        if epoch is None:
            with self._database.writing() as writing:
                epoch, _ = begin_epoch(self._database, writing)
        self._epoch = epoch

    @contextmanager
    def together(self) -> Iterator[Writing]:
        """One commit for all that is done inside: at the end all of it is on the disk, or nothing."""
        if self._writing is not None:
            yield self._writing
            return
        with self._database.writing() as writing:
            if self._epoch is not None:
                check_epoch(self._database, self._epoch)
            self._writing = writing
            try:
                yield writing
            finally:
                self._writing = None

    def try_writing(self) -> None:
        """``StoreError`` if the store could not be written the last time, and cannot be now."""
        if self._database.trouble and not self._database.try_writing():
            raise StoreError(self._database.trouble)

    def add(self, job: Job) -> None:
        """Store a new job and give it its number, which is never used again."""
        with self.together():
            job.id = self._database.last_job() + 1
            self.save(job)

    def save(self, job: Job) -> None:
        """Store the present state of a job."""
        with self.together() as writing:
            writing.put("job", job.id, job.uid, job.state, job.ended_s, _ENCODER.encode(job))

    def alive(self) -> list[Job]:
        """Jobs that wait or run, in the order in which they joined the queue. ``ClusterError`` if all were lost: nodes
        may run some that are not known here, and would be sent orders to end them."""
        if self._database.rows("SELECT 1 FROM lost_jobs"):
            raise ClusterError(f"{self._database.path}: {LOST_JOBS}: put back a backup, or `clusterctl store repair`")
        marks = ", ".join("?" * (len(ACTIVE) + 1))
        found = self._select(f"WHERE state IN ({marks})", ("queued", *ACTIVE))
        return sorted(found, key=in_queue)

    def ended(self, limit: int, in_a_moment: bool = False) -> list[Job]:
        """The jobs that ended last, in the order of their ends; fewer where their records are huge.
        ``in_a_moment``: for a request."""
        rest = "WHERE ended_s IS NOT NULL ORDER BY ended_s DESC, id DESC LIMIT ?"
        return self._select(rest, (self._fitting(rest, (limit,), MOST_EXPORT if in_a_moment else MOST_PAST),))[::-1]

    def find(self, numbers: Iterable[int] = (), states: Iterable[State] = (), uid: int | None = None,
             after: int = 0, limit: int = 1_000_000) -> list[Job]:  # fmt: skip
        """Jobs by number, by state, by owner, in the order of their numbers, beginning after number ``after``."""
        rest, values = _where(numbers, states, uid, after)
        return self._select(rest, (*values, limit))

    def page(self, states: Iterable[State], uid: int | None, after: int, limit: int) -> list[Job]:
        """The same, but no more than can be read in a moment: the next page begins after the last of these. It is
        empty when there are no more."""
        rest, values = _where((), states, uid, after)
        return self._select(rest, (*values, self._fitting(rest, (*values, limit), MOST_PAGE)))

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
        with self.together() as writing:
            writing.put("drained_node", node, reason, uid)

    def resume(self, node: str) -> None:
        """Let the node get jobs again."""
        with self.together() as writing:
            writing.drop("drained_node", node)

    def switched(self) -> list[Switched]:
        """Nodes that are off, powering off or booting."""
        return [_SWITCHED.decode(body) for (body,) in self._database.rows("SELECT body FROM node_power")]

    def switch(self, node: Switched) -> None:
        """Store the state of the node's power."""
        with self.together() as writing:
            writing.put("node_power", node.name, _ENCODER.encode(node))

    def is_on(self, name: str) -> None:
        """The node is on: forget its switching."""
        with self.together() as writing:
            writing.drop("node_power", name)

    def reservations(self) -> list[Reservation]:
        """Those that are not over."""
        return [_RESERVATION.decode(body) for (body,) in self._database.rows("SELECT body FROM reservation")]

    def reserve(self, reservation: Reservation) -> None:
        """Store a reservation."""
        with self.together() as writing:
            writing.put("reservation", reservation.name, _ENCODER.encode(reservation))

    def unreserve(self, name: str) -> None:
        """Forget it."""
        with self.together() as writing:
            writing.drop("reservation", name)

    def stored_joules(self) -> Stored | None:
        """What the budget of joules had stored that a scheduler had last."""
        rows = self._database.rows("SELECT body FROM stored_joules")
        return _STORED.decode(rows[0][0]) if rows else None

    def forget_joules(self) -> None:
        """Another policy decides meanwhile: what was stored says nothing any more."""
        with self.together() as writing:
            writing.drop("stored_joules", 1)

    def store_joules(self, stored: Stored) -> None:
        """Store that."""
        with self.together() as writing:
            writing.put("stored_joules", 1, _ENCODER.encode(stored))

    def _fitting(self, rest: str, values: tuple[object, ...], most: int) -> int:
        """How many of these rows have no more bytes together than this; at least one."""
        n_bytes = accumulate(size for (size,) in self._database.rows(f"SELECT length(body) FROM job {rest}", values))
        return max(sum(1 for _ in takewhile(lambda sum_: sum_ <= most, n_bytes)), 1)

    def _select(self, rest: str, values: tuple[object, ...]) -> list[Job]:
        found = []
        for row in self._database.rows(f"SELECT {TABLES['job'].listed} FROM job {rest}", values):
            if not (problem := problem_of("job", row)):
                found.append(_DECODER.decode(row[4]))
            elif row[0] not in self._damaged:
                self._damaged.add(row[0])
                self._say(f"ALARM: job {row[0]} is left out: its record in {self._database.path} is damaged: {problem}")
        return found


def _where(
    numbers: Iterable[int], states: Iterable[State], uid: int | None, after: int
) -> tuple[str, tuple[object, ...]]:
    wheres = ["id > ?"]
    values: list[object] = [after]
    for column, wanted in (("id", list(numbers)), ("state", list(states)), ("uid", [] if uid is None else [uid])):
        if wanted:
            wheres.append(f"{column} IN ({', '.join('?' * len(wanted))})")
            values += wanted
    return f"WHERE {' AND '.join(wheres)} ORDER BY id LIMIT ?", tuple(values)


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Job)
_SWITCHED: Final = msgspec.json.Decoder(Switched)
_STORED: Final = msgspec.json.Decoder(Stored)
_RESERVATION: Final = msgspec.json.Decoder(Reservation)
