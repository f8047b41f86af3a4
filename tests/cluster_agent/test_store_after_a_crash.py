"""The cluster agent's store after a crash at any point: SQLite really syncs where the ledger relies on it.

A program that owns a store is run under strace: a real ledger, which grants caps and writes down each grant after
``Ledger.grants`` has returned it, that is, when it would be sent. Its system calls are the record. Each point of it is
then taken for the last one, with all that POSIX lets a crash lose or tear of what was not synced.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from cluster_agent.store import ledger_store
from cluster_agent.store.database import Database
from cluster_agent.store.ledger_store import SqliteLedgerStore
from tests.crashing_disk import STRACE, Create, Disk, MakeDirectory, Mark, Operation, Sync, Unlink, Write, put, traced
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
FULL = 2
"""Of ``PRAGMA synchronous``."""

PROGRAM = """
import os, sys
from pathlib import Path
import msgspec, numpy as np
import cluster_agent.store.ledger_store as stored
from cluster_agent.budget.ledger import Ledger, Terms
from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.store.database import Database
from nodectl.wire.power_messages import Declaration, Report

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


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Operation]]:
    if not shutil.which("strace"):
        pytest.skip("strace is missing: install strace")
    root = tmp_path_factory.mktemp("store")
    (root / "there").mkdir()
    store, marks, log = root / "there" / "new" / "cluster.db", root / "marks", root / "log"
    done = subprocess.run(
        [*STRACE, "-o", str(log), sys.executable, "-c", PROGRAM, str(store), str(marks)],
        cwd=ROOT, capture_output=True, text=True, timeout=3 * PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with log.open() as lines:
        operations = traced(list(lines), root / "there", str(marks))
    unread = ("-shm", "-copy", "-copy.new")  # SQLite makes the first again; the copy is read where the store is damaged
    return store, [one for one in operations if isinstance(one, Mark) or not one.path.endswith(unread)]


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
    point = Point(Disk(store.parents[1]))
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
    log, n_synced = f"{store}-wal", 0
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
            for tree in point.disk.after_crash():
                n += 1
                at = Path(left) / str(n)
                put(tree, at)
                point.check(at / str(store).lstrip("/"))
                shutil.rmtree(at)
    assert n > 300


def test_the_database_syncs_each_commit(tmp_path: Path) -> None:
    database = Database(tmp_path / "cluster.db")
    assert database.rows("PRAGMA journal_mode") == [("wal",)]
    assert database.rows("PRAGMA synchronous") == [(FULL,)]
    database.close()
