"""The cluster agent's store after a crash at any point: its log is synced wherever somebody relies on it.

A program that owns a store is run under strace: a real ledger, which grants caps and writes down each grant after
``Ledger.grants`` has returned it, that is, when it would be sent; and one that carries out each command and writes down
when it is answered. Their system calls are the record. Each point of it is then taken for the last one, with all that
POSIX lets a crash lose or tear of what was not synced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pytest

from cluster_agent.budget.kept_counts import Change
from cluster_agent.errors import StoreError
from cluster_agent.jobs.job import Job, JobSpec
from cluster_agent.jobs.power_switching import Switched
from cluster_agent.store import commit_log, ledger_store
from cluster_agent.store.database import Database
from cluster_agent.store.job_store import JobStore
from cluster_agent.store.ledger_store import BudgetStore, SqliteLedgerStore
from cluster_agent.store.mending import open_store
from foundation.wire.power_messages import Declaration
from tests.crashing_disk import STRACE, Create, Disk, MakeDirectory, Mark, Operation, Sync, Unlink, Write, put, traced
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
SAMPLED = (".db", "-wal")
"""SQLite's files, which are not synced at each commit."""

PROGRAM = """
import os, sys
from pathlib import Path
import msgspec, numpy as np
import cluster_agent.store.ledger_store as stored
from cluster_agent.budget.ledger import Ledger, Terms
from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.store import commit_log
from cluster_agent.store.database import Database
from foundation.wire.power_messages import Declaration, Report

commit_log.CHUNK, commit_log.RESERVE = 2048, 512  # so each tree is small
ONE = Declaration(tdp_mw=500, mop_mw=100, safe_mw=100, boot_mw=450, lease_class="os", watchdog_ms=8000)
stored.BLOCK = 4  # so few nodes are several rows of counts
marks = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT)

def say(kind, value):
    os.write(marks, msgspec.json.encode([kind, value]))

def life(now_s, limits_mw, steps):
    database = Database(Path(sys.argv[1]))
    ledger = Ledger(stored.SqliteLedgerStore(database, "boot-1"), Terms(0, 0), BudgetLine(10**6), now_s)
    say("epoch", ledger.epoch)
    now_s += 60.0
    sequences = {}
    for wanted_mw in steps:
        limits_mw = {name: limits_mw.get(name, 500) for name in limits_mw | wanted_mw}
        epochs = {name: ledger.epoch if name in sequences else 0 for name in limits_mw}
        ledger.hear(now_s, *(
            Report(name, "b1", int(now_s * 1e9), epoch, epoch, sequences.get(name, 0), limits_mw[name], "seen", -1, ONE)
            for name, epoch in epochs.items()
        ))
        ledger.want(ledger.accounts.at(list(wanted_mw)), np.array(list(wanted_mw.values())))
        granted = ledger.grants(now_s, list(limits_mw))
        say("sent", {one.node: one.cap_mw for one in granted})
        sequences |= {one.node: one.sequence for one in granted}
        limits_mw |= {one.node: one.cap_mw for one in granted}
        say("stored", dict(zip(ledger.accounts, ledger.accounts.stored_mw.tolist())))
        now_s += 1.0
    database.close()
    return limits_mw

NAMES = [f"n{number}" for number in range(10)]
limits_mw = life(0.0, {}, [
    dict.fromkeys(NAMES, 100),
    {"late1": 100},  # what is stored of the others falls to what they count
    {"n0": 200, "n5": 250, "n9": 300},
    {"n0": 100, "n9": 400},
])
life(200.0, limits_mw, [{"late2": 100}, {"n1": 350, "n8": 360}])  # another cluster agent, on the same store
"""


COMMANDS = """
import os, sys
from pathlib import Path
import msgspec, numpy as np
from cluster_agent.budget.kept_counts import Change
from cluster_agent.jobs.job import Job, JobSpec
from cluster_agent.store.job_store import JobStore
from cluster_agent.jobs.power_switching import Switched
from cluster_agent.store import commit_log
from cluster_agent.store.database import Database
from cluster_agent.store.ledger_store import BudgetStore, SqliteLedgerStore
from foundation.wire.power_messages import Declaration
from tests.cluster_agent.test_store_after_a_crash import in_force

commit_log.LONG, commit_log.CHUNK, commit_log.RESERVE = 1500, 2048, 512  # it is written again on the way
ONE = Declaration(tdp_mw=500, mop_mw=100, safe_mw=100, boot_mw=450, lease_class="os", watchdog_ms=8000)
marks = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT)

def say(kind, value=None):
    os.write(marks, msgspec.json.encode([kind, value]))

def run(command, *given):
    say("begins")
    command(*given)
    say("answered", in_force(database))

say("begins")
database = Database(Path(sys.argv[1]))
say("answered", in_force(database))
ledger, budget, jobs = SqliteLedgerStore(database, "boot-1"), BudgetStore(database), JobStore(database)
run(ledger.take_over)
jobs.own(1)
run(budget.change, Change(1.0, "root", "set 7 W"), 7000, [])
run(ledger.commit, 1, {0: ("a", ONE), 1: ("b", ONE)}, np.array([0, 1]), np.array([200, 300]))
job = Job(id=0, uid=1, user="u", spec=JobSpec(["a"], 1, "/"), submitted_s=0.0)
run(jobs.add, job)
for state, ended_s in (("starting", None), ("running", None), ("done", 5.0), ("queued", None), ("cancelled", 6.0)):
    job.state, job.ended_s = state, ended_s
    run(jobs.save, job)
    run(budget.change, Change(2.0, "root", f"schedule of {state}"), 9000, [(1e9, 8000)], state == "done")
run(jobs.drain, "a", "fan", 0)
run(jobs.switch, Switched(name="b", state="powering-off", since_s=1.0, tried_s=0.0))
run(ledger.commit, 1, {0: ("a", ONE)}, np.array([0]), np.array([-1, 300]), Change(3.0, "root", "forgot node a"))
run(jobs.resume, "a")
run(jobs.is_on, "b")
database.close()
"""


def in_force(database: Database) -> list[object]:
    """All that commands have set."""
    jobs, budget = JobStore(database), BudgetStore(database)
    return [
        budget.load(), [change.what for change in budget.changes()], jobs.drained(),
        [[job.id, job.state, job.ended_s] for job in jobs.find()], sorted(one.name for one in jobs.switched()),
        database.rows("SELECT epoch FROM owner"), [row[1].decode() for row in database.latest("count", 9)],
    ]  # fmt: skip


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Operation]]:
    return recorded(tmp_path_factory.mktemp("store"), PROGRAM)


def recorded(root: Path, program: str) -> tuple[Path, list[Operation]]:
    """What the program does to the disk."""
    if not shutil.which("strace"):
        pytest.skip("strace is missing: install strace")
    (root / "there").mkdir()
    store, marks, log = root / "there" / "new" / "cluster.db", root / "marks", root / "log"
    done = subprocess.run(
        [*STRACE, "-o", str(log), sys.executable, "-c", program, str(store), str(marks)],
        cwd=ROOT, capture_output=True, text=True, timeout=3 * PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with log.open() as lines:
        operations = traced(list(lines), root / "there", str(marks))
    # SQLite makes that again
    return store, [one for one in operations if isinstance(one, Mark) or not one.path.endswith("-shm")]


@dataclass(slots=True)
class Point:
    """The record up to some operation: what was said by then, and what is said next of the store."""

    disk: Disk
    epoch: int = 0
    sent_mw: dict[str, int] = field(default_factory=dict)
    stored_mw: list[dict[str, int]] = field(default_factory=lambda: [{}])

    def check(self, path: Path) -> None:
        """The store opens, and has all that was sent; it is as before a commit or as after it."""
        database = Database(path)
        with mock.patch.object(ledger_store, "BLOCK", 4):  # as in the program
            snapshot = SqliteLedgerStore(database, "boot-2").take_over()
        database.close()
        counts_mw = dict(zip(snapshot.names, snapshot.counts_mw.tolist(), strict=True))
        assert counts_mw in self.stored_mw
        assert snapshot.epoch > self.epoch
        assert all(counts_mw[name] >= cap_mw for name, cap_mw in self.sent_mw.items())


def points(store: Path, operations: list[Operation]) -> Iterator[Point]:
    """Before each sync, which narrows what may be lost, and before and after each mark."""
    said = [msgspec.json.decode(one.what) for one in operations if isinstance(one, Mark)]
    point = Point(Disk(store.parents[1], SAMPLED))
    for one in operations:
        if isinstance(one, Mark | Sync):
            yield point
        point.disk.saw(one)
        if isinstance(one, Mark):
            kind, value = said.pop(0)
            if kind == "epoch":
                point.epoch = value
            elif kind == "sent":
                point.sent_mw |= value
            else:
                point.stored_mw = [value]
            if kind != "sent":  # a commit may begin
                point.stored_mw = [*point.stored_mw[:1], *(value for kind, value in said if kind == "stored")][:2]
    yield point


def test_the_order_is_commit_then_sync_then_send(record: tuple[Path, list[Operation]]) -> None:
    store, operations = record
    log, n_synced = f"{store}-log", 0
    is_synced, n_raises = True, 0
    for one in operations:
        if isinstance(one, Sync) and one.path == log:
            is_synced, n_synced = True, n_synced + 1
        elif isinstance(one, Write) and one.path == log:
            is_synced = False
        elif isinstance(one, Mark):
            assert is_synced, f"sent before it was on the disk: {one.what}"
            n_raises += "sent" in one.what
    assert n_raises == 6 and n_synced >= 6


def test_whatever_a_crash_leaves_of_the_store_counts_all_that_was_sent_and_is_before_a_commit_or_after_it(
    record: tuple[Path, list[Operation]],
) -> None:
    store, operations = record
    assert {Create, MakeDirectory, Write, Sync, Unlink, Mark} <= {type(one) for one in operations}
    n = 0
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as left:
        for point in points(store, operations):
            for at_tree, tree in enumerate(point.disk.after_crash()):
                if at_tree > 6 and at_tree % 13:
                    continue  # most are one line of the log, cut at each byte
                n += 1
                at = Path(left) / str(n)
                put(tree, at)
                point.check(at / str(store).lstrip("/"))
                shutil.rmtree(at)
    assert n >= 300


def test_whatever_a_crash_leaves_a_command_is_in_force_exactly_if_its_line_is_whole(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Of every command: once it is answered it is in force; before, all of it is or nothing."""
    store, operations = recorded(tmp_path_factory.mktemp("commands"), COMMANDS)
    said = [msgspec.json.decode(one.what) for one in operations if isinstance(one, Mark)]
    answers = [state for kind, state in said if kind == "answered"]
    disk, n_begun, n_answered, n_trees = Disk(store.parents[1], SAMPLED), 0, 0, 0
    seen: set[tuple[int, frozenset[tuple[str, bytes]]]] = set()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as left:
        for one in operations:
            if isinstance(one, Mark | Sync):
                for tree in disk.after_crash():
                    key = n_answered, frozenset(tree.items())
                    n_trees += key not in seen
                    if key in seen or n_trees % (3 if isinstance(one, Mark) else 25):
                        seen.add(key)
                        continue  # most are one line of the log, cut at each byte
                    seen.add(key)
                    at = Path(left) / str(n_trees)
                    put(tree, at)
                    alarms: list[str] = []
                    database = open_store(at / str(store).lstrip("/"), alarms.append)
                    found = msgspec.json.decode(msgspec.json.encode(in_force(database)))
                    database.close()
                    may_be = [*answers[max(n_answered - 1, 0) : n_answered], *answers[n_answered:n_begun]]
                    assert found in (may_be or answers[:1]), (n_begun, n_answered, alarms)
                    assert not [line for line in alarms if "ALARM" in line], "a crash damages nothing"
                    shutil.rmtree(at)
            disk.saw(one)
            if isinstance(one, Mark):
                n_begun += "begins" in one.what
                n_answered += "answered" in one.what
    assert n_answered == len(answers) == 20 and n_trees > 2000


CHANGING = ("pwrite", "fdatasync", "fsync", "posix_fallocate", "replace")


class FailingOs:
    """``os``, of which the ``n``-th call that changes a file fails, and maybe all after it; or those named alone."""

    def __init__(self, n: int, code: int, is_lasting: bool, names: tuple[str, ...] = CHANGING) -> None:
        self.n, self.code, self.is_lasting, self.names = n, code, is_lasting, names
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        original = getattr(os, name)
        if name not in self.names:
            return original

        def call(*given: Any) -> Any:
            at = len(self.calls)
            self.calls.append(name)
            if at == self.n or (self.is_lasting and at > self.n):
                if name == "pwrite" and not self.is_lasting:
                    original(given[0], given[1][: len(given[1]) // 2], given[2])
                if name == "fdatasync":
                    original(*given)  # it is on the disk, and nobody knows
                raise OSError(self.code, os.strerror(self.code))
            return original(*given)

        return call


class FailingConnection:
    """SQLite's connection, whose commits fail."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statement: str, *given: Any) -> Any:
        if statement == "COMMIT":
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return self._connection.execute(statement, *given)


def commands(database: Database) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each kind that a person may give, on a store that ``prepared`` has made."""
    budget, jobs, ledger = BudgetStore(database), JobStore(database), SqliteLedgerStore(database, "boot-1")
    job = jobs.find([1])[0]
    cancelled = msgspec.structs.replace(job, state="cancelled", ended_s=5.0)
    change = Change(9.0, "root", "anything")
    new = Job(id=0, uid=1, user="u", spec=JobSpec(["a", "x" * 5000], 1, "/"), submitted_s=0.0)
    off = Switched(name="n2", state="powering-off", since_s=1.0, tried_s=0.0)
    yield "budget set, higher", lambda: budget.change(change, 9000, [])
    yield "budget set, lower", lambda: budget.change(change, 5000, [], only_lowers=True)
    yield "budget schedule", lambda: budget.change(change, 7000, [(1e9, 8000)])
    yield "submit", lambda: jobs.add(new)
    yield "cancel", lambda: jobs.save(cancelled)
    yield "drain", lambda: jobs.drain("n1", "fan", 0)
    yield "resume", lambda: jobs.resume("n0")
    yield "power off", lambda: jobs.switch(off)
    yield "power on", lambda: jobs.is_on("n3")
    yield "nodes forget", lambda: ledger.commit(1, {}, np.array([0]), np.array([-1]), change)


def prepared(at: Path) -> None:
    """A store with one of each."""
    database = Database(at)
    SqliteLedgerStore(database, "boot-1").take_over()
    one = Declaration(tdp_mw=500, mop_mw=100, safe_mw=100, boot_mw=450, lease_class="os", watchdog_ms=8000)
    SqliteLedgerStore(database, "boot-1").commit(1, {0: ("n0", one)}, np.array([0]), np.array([400]))
    BudgetStore(database).change(Change(1.0, "root", "set 7 W"), 7000, [])
    jobs = JobStore(database)
    jobs.add(Job(id=0, uid=1, user="u", spec=JobSpec(["a"], 1, "/"), submitted_s=0.0))
    jobs.drain("n0", "fan", 0)
    jobs.switch(Switched(name="n3", state="off", since_s=1.0, tried_s=0.0))
    database.close()


CALLS = {"disk full": 3, "disk full, no room reserved": 1, "sync fails": 4, "all fails": 4, "database": 1}
"""How many calls there are to fail: with room a write and a sync, else room is made and synced first."""


@pytest.mark.parametrize("failing", CALLS)
def test_a_command_that_was_refused_is_not_in_force_after_a_kill_and_one_that_was_not_is(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever fails at whichever call; the files that a killed agent leaves are those that others see now."""
    with monkeypatch.context() as patched:
        patched.setattr(commit_log, "CHUNK", 16_384)  # copied 150 times
        prepared(tmp_path / "a.db")
    files = {suffix: (tmp_path / f"a.db{suffix}").read_bytes() for suffix in ("", "-log", "-past")}
    code = errno.ENOSPC if "full" in failing else errno.EIO
    n_refused, n_done, n_doubtful = 0, 0, 0
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as left:
        for which in range(10):
            for n in range(CALLS[failing]):
                at = Path(left) / f"{which}-{n}"
                at.mkdir()
                monkeypatch.setattr(commit_log, "CHUNK", 16_384)
                for suffix, data in files.items():
                    is_reserved = suffix == "-log" and failing != "disk full"
                    (at / f"a.db{suffix}").write_bytes(data.rstrip(b"\0") + bytes(9) if is_reserved else data)
                database = Database(at / "a.db")
                before = in_force(database)
                _, command = list(commands(database))[which]
                fake = FailingOs(n, code, failing == "all fails")
                if failing == "disk full, no room reserved":
                    fake = FailingOs(0, code, True, ("posix_fallocate",))
                if failing == "database":
                    database._connection = FailingConnection(database._connection)  # type: ignore[assignment]
                else:
                    monkeypatch.setattr(commit_log, "os", fake)
                is_refused, words = False, ""
                try:
                    command()
                except StoreError as error:
                    is_refused, words = True, str(error)
                monkeypatch.undo()
                killed = at / "killed"
                killed.mkdir()
                for suffix in ("", "-wal", "-log", "-past"):
                    with contextlib.suppress(FileNotFoundError):
                        shutil.copy2(at / f"a.db{suffix}", killed / f"a.db{suffix}")
                alarms: list[str] = []
                again = open_store(killed / "a.db", alarms.append)
                after = in_force(again)
                again.close()
                if "a restart may find" in words:
                    n_doubtful += 1
                else:
                    assert (after == before) == is_refused, (which, n, words)
                assert alarms == []
                n_refused, n_done = n_refused + is_refused, n_done + (not is_refused)
                database.close()
    assert (n_refused > 0) == (failing != "database") and (n_done > 0) == (failing in ("disk full", "database"))
    assert (n_doubtful > 0) == (failing == "all fails"), "only where not even a line can be overwritten"
