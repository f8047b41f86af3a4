"""Phases of programs that nodes have measured, for the next node that begins a job of that program.

A table is of a user's program on a model of card with a driver and a power limit (``Key``), the newest alone, a file
each (``foundation.phase_files``). What program it is, the job's own record says, and only a node that has the job, or
had it until a moment ago, may send one: a node that was taken over can spoil tables of the programs that it runs,
within ``phase_messages.problem_of``, and no other. Nor can it crowd out those of others by cards that do not exist:
there are ``MOST_KINDS`` of a user's program. Users do not get each other's tables.

``forget`` deletes a user's tables here and on all nodes: a node that cannot be reached does so when it is back. That
list is on the disk too, by digests, which name nobody; it ends when nodes would have dropped the tables anyway.
"""

from __future__ import annotations

import contextlib
import datetime
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from cluster_agent.errors import ClusterError
from cluster_agent.jobs.job import Job
from foundation.phase_files import LASTS_DAYS, PhaseFiles, Remembered
from foundation.planted_links import replacing, write_durably
from foundation.program_name import program_name
from foundation.sealed_file import SealedFileError
from foundation.wire.phase_messages import (
    MOST_DIGESTS,
    Card,
    FromNode,
    Key,
    PhasesForget,
    PhasesForgotten,
    PhasesFound,
    PhasesKept,
    PhasesWanted,
    Table,
    ToNode,
)

MOST_TABLES: Final = 1000
"""Ours: some 10 KB each; those used longest ago go."""

MOST_KINDS: Final = 8
"""Ours: kinds of cards on which a user's program has tables; the one that was measured last takes the place of the one
measured longest ago."""

AT_ONCE: Final = 50
"""Ours: messages that are handled in a second, each some milliseconds, and as many reminders. A node that gets no
answer repeats what it wants, and a table that is dropped costs one run. The link lets no node send so many."""

AGAIN_S: Final = 60.0
"""Ours: how often a node is reminded of what it has to forget."""

SAVE_EVERY_S: Final = 30.0

MOST_WANTED: Final = 10_000
"""Ours: jobs of which it is known what their nodes wanted, so that a user can be forgotten whose first job runs."""

DAY_S: Final = 86_400.0

Send = Callable[[str, ToNode], bool]


class PhaseRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One table, for people. ``node``: where it was measured last."""

    user: str
    program: str
    card: str
    phases: int
    runs: int
    used_at: str
    node: str


class _Forgotten(msgspec.Struct):
    """What nodes have to forget: by number, when that was (Unix seconds) and which files; and how far each node is.
    ``jobs``: those that ran then, of which nothing is kept."""

    last: int = 0
    sets: dict[int, tuple[float, list[str]]] = {}
    done: dict[str, Annotated[int, Meta(ge=0)]] = {}
    jobs: list[int] = []


class _AtOnce:
    """No more than ``AT_ONCE`` in a second."""

    def __init__(self) -> None:
        self._times_s: deque[float] = deque(maxlen=AT_ONCE)

    def may(self, now_s: float) -> bool:
        """Whether one more is within that; then it counts."""
        if len(self._times_s) == AT_ONCE and now_s - self._times_s[0] < 1.0:
            return False
        self._times_s.append(now_s)
        return True


class PhaseTables:
    """``hear`` messages of nodes, ``step`` at their reports. ``job``: one of ours by its number, None for one that no
    node has any more; ``send`` queues a message for a node, false where that is impossible; ``wall_s``: Unix seconds;
    ``is_on``: whether the site wants tables to be kept. Those of before can be forgotten in any case."""

    def __init__(
        self, folder: Path, job: Callable[[int], Job | None], send: Send, wall_s: Callable[[], float],
        say: Callable[[str], None] = lambda line: None, is_on: bool = True,
    ) -> None:  # fmt: skip
        self._files, self._job, self._send = PhaseFiles(folder, MOST_TABLES), job, send
        self._wall_s, self._say, self._said, self._is_on = wall_s, say, "", is_on
        self._list = folder.with_name(f"{folder.name}-forgotten")
        self._forgotten = _Forgotten()
        with contextlib.suppress(OSError, msgspec.MsgspecError, RecursionError):
            self._forgotten = msgspec.json.decode(self._list.read_bytes(), type=_Forgotten)
        self._wanted: dict[int, set[str]] = {}
        self._heard, self._reminders = _AtOnce(), _AtOnce()
        self._reminded_s: dict[str, float] = {}
        self._saved_s, self._is_unsaved = 0.0, False
        self._kinds: dict[tuple[str, str], list[Key]] = {}  # by user and program, in the order in which they were kept
        before = self._files.all()[0] if is_on else []
        for one in sorted(before, key=lambda one: one.tables[0].used_at if one.tables else ""):
            self._kinds.setdefault((one.key.user, one.key.program), []).append(one.key)

    def hear(self, now_s: float, messages: Iterable[FromNode]) -> None:
        """Messages of nodes, under the names of their keys."""
        for message in messages:
            if isinstance(message, PhasesForgotten):
                self._done(message)
            elif not self._is_on or not self._heard.may(now_s) or (job := self._of(message)) is None:
                continue
            elif isinstance(message, PhasesWanted):
                self._answer(job, message)
            else:
                self._keep(job, message)

    def step(self, now_s: float, nodes: Iterable[str]) -> None:
        """Remind these nodes, which have just reported, of what they have to forget."""
        if self._is_unsaved and now_s - self._saved_s >= SAVE_EVERY_S:
            self._saved_s, self._is_unsaved = now_s, False
            with contextlib.suppress(OSError), replacing(self._list, 0o600) as file:
                file.write(msgspec.json.encode(self._forgotten))
        if not self._forgotten.sets:
            return
        for node in nodes:
            done = self._forgotten.done.get(node, 0)
            is_due = done < self._forgotten.last and now_s - self._reminded_s.get(node, -AGAIN_S) >= AGAIN_S
            if is_due and self._reminders.may(now_s):
                self._reminded_s[node] = now_s
                number, digests = self._next(done)
                self._send(node, PhasesForget(number, digests))

    def rows(self, user: str) -> list[PhaseRow]:
        """The tables, of all users if ``user`` is empty; files that cannot be used are left out."""
        return [
            PhaseRow(
                one.key.user, one.key.program, one.key.card, len(table.phases), table.runs, table.used_at, table.node
            )
            for one in self._files.all()[0] if user in ("", one.key.user) for table in one.tables[:1]
        ]  # fmt: skip

    def forget(self, now_s: float, user: str, running: Iterable[int], nodes: Iterable[str]) -> str:
        """Delete what is kept of the user's programs, here and on all of these nodes, and keep nothing of the jobs that
        run now. A sentence on what was done. ``ClusterError`` if files cannot be deleted."""
        doomed = [one.key for one in self._files.all()[0] if one.key.user == user]
        try:
            self._files.forget(key.digest for key in doomed)
        except OSError as error:
            raise ClusterError(f"phases of {user}'s programs cannot be removed: {error.strerror}") from None
        self._kinds = {key: kinds for key, kinds in self._kinds.items() if key[0] != user}
        jobs = list(running)
        digests = {msgspec.structs.replace(key, user="").digest for key in doomed}
        digests.update(digest for job in jobs for digest in self._wanted.get(job, ()))
        self._keep_forgotten(sorted(digests), jobs)
        known = sorted(set(nodes))
        self._reminded_s.clear()
        self.step(now_s, known)
        if not digests:
            return f"no phases of {user}'s programs are kept"
        count = f"{len(doomed)} tables of phases of {user}'s programs are deleted here"
        return f"{count}; {len(known)} nodes delete theirs, each when it is reached"

    def _keep_forgotten(self, digests: Sequence[str], jobs: Sequence[int]) -> None:
        """What nodes have to delete, on the disk. ``ClusterError`` if it cannot be written."""
        forgotten = self._forgotten
        forgotten.jobs = [*forgotten.jobs, *jobs][-MOST_WANTED:]
        for at in range(0, len(digests), MOST_DIGESTS):
            forgotten.last += 1
            forgotten.sets[forgotten.last] = self._wall_s(), list(digests[at : at + MOST_DIGESTS])
        before_s = self._wall_s() - LASTS_DAYS * DAY_S
        forgotten.sets = {number: one for number, one in forgotten.sets.items() if one[0] >= before_s}
        try:
            write_durably(self._list, msgspec.json.encode(forgotten))
        except OSError as error:
            raise ClusterError(f"{self._list}: cannot be written: {error.strerror}; try again") from None

    def pending(self, nodes: Iterable[str]) -> list[str]:
        """Which of these nodes have not confirmed yet that they have deleted what they had to."""
        return [node for node in nodes if self._forgotten.done.get(node, 0) < self._forgotten.last]

    def _of(self, message: PhasesWanted | PhasesKept) -> Job | None:
        """The job, if that node has it, and something may be kept of it."""
        job = self._job(message.job)
        is_there = job is not None and job.attempt == message.attempt and message.node in job.nodes
        return job if is_there and message.job not in self._forgotten.jobs else None

    def _answer(self, job: Job, message: PhasesWanted) -> None:
        if len(self._wanted) >= MOST_WANTED:
            del self._wanted[next(iter(self._wanted))]
        keys = [_key(job, card) for card in message.cards]
        self._wanted[job.id] = {msgspec.structs.replace(key, user="").digest for key in keys}
        found: list[tuple[Card, Table]] = []
        for key in keys:
            try:
                kept = self._files.read(key, self._now())
            except SealedFileError as error:
                self._complain(str(error))
                continue
            if kept is not None:
                found.append((key.hardware, kept.tables[0]))
        if found:
            self._send(message.node, PhasesFound(message.job, message.attempt, found))

    def _keep(self, job: Job, message: PhasesKept) -> None:
        """The time is ours: a node whose clock is wrong would have its table dropped at once, or never."""
        used_at = self._now().isoformat(timespec="seconds")
        table = msgspec.structs.replace(message.table, used_at=used_at, node=message.node)
        key = _key(job, message.card)
        of = key.user, key.program
        self._kinds[of] = kinds = [*(one for one in self._kinds.pop(of, []) if one != key), key]
        if len(self._kinds) > MOST_TABLES:  # those longest ago have no table any more
            del self._kinds[next(iter(self._kinds))]
        try:
            while len(kinds) > MOST_KINDS:
                self._files.forget([kinds.pop(0).digest])
            self._files.write(Remembered(key, (table,)), is_synced=False)
            self._said = ""
        except (SealedFileError, OSError) as error:
            self._complain(str(error))

    def _done(self, message: PhasesForgotten) -> None:
        forgotten = self._forgotten
        if forgotten.done.get(message.node, 0) < message.number <= forgotten.last:
            forgotten.done[message.node] = message.number
            self._reminded_s.pop(message.node, None)
            self._is_unsaved = True

    def _next(self, done: int) -> tuple[int, list[str]]:
        """The first set that a node has not forgotten yet."""
        sets = self._forgotten.sets
        for number in sorted(sets):
            if number > done:
                return number, sets[number][1]
        return self._forgotten.last, []

    def _now(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self._wall_s(), datetime.UTC)

    def _complain(self, line: str) -> None:
        if line != self._said:
            self._say(f"phases: {line}")
        self._said = line


def _key(job: Job, card: Card) -> Key:
    spec = job.spec
    return Key(program_name(spec.command, spec.workdir, spec.script), card.card, card.driver, card.limit_w, job.user)
