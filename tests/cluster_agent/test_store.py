"""The cluster agent's store, alone: what it keeps, what it refuses, and how it says so."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cluster_agent.budget.kept_counts import Change, DeposedError
from cluster_agent.errors import ClusterError
from cluster_agent.store.database import BUSY_S, VERSION, Database
from cluster_agent.store.ledger_store import BLOCK, BudgetStore, SqliteLedgerStore, begin_epoch
from foundation.wire.power_messages import Declaration

DECLARED = Declaration(tdp_mw=500, mop_mw=100, safe_mw=100, boot_mw=450, lease_class="os", watchdog_ms=8000)
FILES = ["cluster.db", "cluster.db-log", "cluster.db-past"]
NO_PLACE = np.array([], np.int64)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cluster.db"


def counts_mw(path: Path) -> list[int]:
    database = Database(path)
    found = SqliteLedgerStore(database, "boot-1").take_over().counts_mw
    database.close()
    assert found.dtype == np.int64
    return found.tolist()


def test_a_new_store_has_no_node_and_its_first_epoch_is_one(path: Path) -> None:
    snapshot = SqliteLedgerStore(Database(path), "boot-1").take_over()
    assert (snapshot.epoch, snapshot.names, snapshot.declarations, snapshot.is_certain) == (1, [], [], True)
    assert snapshot.counts_mw.tolist() == [] and snapshot.counts_mw.dtype == np.int64


def test_an_epoch_is_above_the_last_one_and_at_least_what_was_requested(path: Path) -> None:
    store = SqliteLedgerStore(Database(path), "boot-1")
    assert [store.take_over(at_least).epoch for at_least in (0, 2, 3, 10, 5, 0)] == [1, 2, 3, 10, 11, 12]


def test_counts_are_certain_only_where_the_last_owner_ran_in_this_boot(path: Path) -> None:
    boots = ("boot-1", "boot-1", "boot-2", "boot-2", "boot-1")
    found = [SqliteLedgerStore(Database(path), boot).take_over().is_certain for boot in boots]
    assert found == [True, True, False, True, False]


def test_a_commit_of_nodes_alone_and_one_of_counts_alone_are_stored(path: Path) -> None:
    store = SqliteLedgerStore(Database(path), "boot-1")
    epoch = store.take_over().epoch
    store.commit(epoch, {0: ("b", DECLARED), 1: ("a", DECLARED)}, NO_PLACE, np.array([1, 2]))
    snapshot = store.take_over()
    assert (snapshot.names, snapshot.declarations) == (["b", "a"], [DECLARED] * 2), "in the order of their places"
    assert snapshot.counts_mw.tolist() == []
    store.commit(snapshot.epoch, {}, np.array([1]), np.array([1, 2]))
    assert counts_mw(path) == [1, 2]


def test_a_commit_writes_the_blocks_of_the_changed_places_and_no_other(path: Path) -> None:
    store = SqliteLedgerStore(Database(path), "boot-1")
    epoch = store.take_over().epoch
    assert BLOCK == 256, "stores are written with it"
    n = 3 * BLOCK
    store.commit(epoch, {}, np.arange(n), np.arange(n))
    store.commit(epoch, {}, np.array([BLOCK, 2 * BLOCK - 1]), np.full(n, 7))
    assert counts_mw(path) == [*range(BLOCK), *([7] * BLOCK), *range(2 * BLOCK, n)]


@pytest.mark.parametrize("changed", [[], [0]])
def test_who_was_deposed_gets_both_epochs_and_has_stored_nothing(path: Path, changed: list[int]) -> None:
    store = SqliteLedgerStore(Database(path), "boot-1")
    store.take_over()
    message = re.escape(f"{path}: another cluster agent has taken over (epoch 2, ours was 1)") + "$"
    SqliteLedgerStore(Database(path), "boot-1").take_over()
    with pytest.raises(DeposedError, match=message):
        store.commit(1, {}, np.array(changed, np.int64), np.array([5]))
    assert counts_mw(path) == []


def test_of_the_budgets_changes_the_last_twenty_are_listed_newest_first(path: Path) -> None:
    store = BudgetStore(Database(path))
    made = [Change(float(n), f"who-{n}", f"what-{n}") for n in range(25)]
    for n, change in enumerate(made):
        store.change(change, 1000 + n, [(float(n), n)])
    assert store.changes() == made[:4:-1]
    assert store.changes(2) == made[:-3:-1]
    assert BudgetStore(Database(path)).load() == (1024, [(24.0, 24)])


def test_the_store_and_its_directory_are_private(tmp_path: Path) -> None:
    path = tmp_path / "one" / "two" / "cluster.db"
    umask = os.umask(0)
    try:
        Database(path)
    finally:
        os.umask(umask)
    assert [one.stat().st_mode & 0o777 for one in (path, path.parent)] == [0o600, 0o700]
    assert all(one.stat().st_mode & 0o077 == 0 for one in path.parent.iterdir())


def test_where_no_store_can_be_made_one_line_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "cluster.db"
    with pytest.raises(ClusterError, match=re.escape(f"{path}: cannot open the store: File exists") + "$"):
        Database(path)


def test_a_write_waits_so_long_for_another_process_and_no_longer(path: Path) -> None:
    database = Database(path)
    assert database.rows("PRAGMA busy_timeout") == [(BUSY_S * 1000,)]
    assert 0 < BUSY_S < 5, "an agent that waits for its disk must go on granting leases"
    database.rows("PRAGMA busy_timeout = 0")
    message = r"cannot write the store: database is locked$"
    with Database(path).writing(), pytest.raises(ClusterError, match=message), database.writing():
        pass


def test_opening_a_store_twice_in_one_process_leaves_the_first_ones_locks(path: Path) -> None:
    """A process that opens a file and closes it again loses all its POSIX locks on it, which keep the log in use."""
    database = Database(path)
    Database(path)
    script = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('PRAGMA journal_mode = DELETE')"
    other = subprocess.run([sys.executable, "-c", script, path], stderr=subprocess.PIPE, text=True, check=False)
    assert "database is locked" in other.stderr
    assert database.rows("PRAGMA journal_mode") == [("wal",)]


def test_a_transaction_that_fails_changes_nothing_and_the_next_one_is_stored(path: Path) -> None:
    database = Database(path)
    with pytest.raises(ZeroDivisionError), database.writing() as writing:
        writing.put("owner", 1, 7, "")
        raise ZeroDivisionError
    assert Database(path).rows("SELECT epoch FROM owner") == [(0,)]
    with database.writing() as writing:
        writing.put("owner", 1, 8, "")
    assert Database(path).rows("SELECT epoch FROM owner") == [(8,)]


def test_a_transaction_that_sqlite_has_ended_itself_fails_with_what_went_wrong(path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Database(path).writing() as writing:
        assert writing.connection is not None
        writing.connection.execute("ROLLBACK")
        raise ZeroDivisionError


def test_a_store_that_is_refused_is_closed_and_the_line_says_which_program_can_read_it(path: Path) -> None:
    Database(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE schema_version SET version = 99")
    connection.close()
    with pytest.raises(ClusterError) as raised:
        Database(path)
    assert str(raised.value).startswith(
        f"{path}: the store has version 99, and this clusterctl knows only {VERSION}: start the newer "
    )
    assert sorted(os.listdir(path.parent)) == FILES, "an open one has files of its write-ahead log"


def test_a_store_that_is_opened_again_keeps_its_version(path: Path) -> None:
    for _ in range(3):
        database = Database(path)
        assert database.rows("SELECT version FROM schema_version") == [(VERSION,)]
        database.close()
    assert sorted(os.listdir(path.parent)) == FILES


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        (sqlite3.SQLITE_FULL, ": make room there"),
        (sqlite3.SQLITE_IOERR, "; is the disk full?"),
        (sqlite3.SQLITE_IOERR_SHMSIZE, "; is the disk full?"),  # one of the kinds of SQLITE_IOERR
        (sqlite3.SQLITE_CORRUPT, ""),
    ],
)
def test_what_sqlite_says_is_one_line_with_the_file_and_a_fix(path: Path, code: int, fix: str) -> None:
    error = sqlite3.OperationalError("what it says")
    error.sqlite_errorcode = code
    message = re.escape(f"{path}: cannot write the store: what it says{fix}") + "$"
    with pytest.raises(ClusterError, match=message), Database(path).writing():
        raise error


def test_a_store_that_is_closed_says_so(path: Path) -> None:
    database = Database(path)
    database.close()
    with pytest.raises(ClusterError, match=re.escape(f"{path}: cannot read the store: Cannot operate on a closed")):
        database.rows("SELECT 1")


def test_before_the_first_change_there_is_no_budget(path: Path) -> None:
    store = BudgetStore(Database(path))
    assert store.load() is None and store.changes() == []


def test_what_is_no_store_cannot_be_opened(path: Path) -> None:
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(ClusterError, match=re.escape(f"{path}: cannot open the store: file is not a database") + "$"):
        Database(path)


def test_text_that_is_none_is_said_in_one_line(path: Path) -> None:
    database = Database(path)
    with pytest.raises(ClusterError, match=r"cluster\.db: cannot read the store: Could not decode"):
        database.rows("SELECT CAST(x'ff' AS TEXT)")
    with pytest.raises(ClusterError, match=r"cluster\.db: cannot read the store: no such table: nowhere$"):
        database.rows("SELECT a FROM nowhere")
    database.close()


def test_commits_are_numbered_in_log_and_database(path: Path) -> None:
    database = Database(path)
    store = SqliteLedgerStore(database, "boot-1")
    for epoch in (1, 2, 3):
        assert store.take_over().epoch == epoch
        assert database.rows("SELECT number FROM applied") == [(epoch,)] and database.log.read().number == epoch
    database.close()


def test_who_did_what_else_is_in_the_list_of_changes(path: Path) -> None:
    database, change = Database(path), Change(5.0, "alice", "forgot node n1")
    store, budget = SqliteLedgerStore(database, "boot-1"), BudgetStore(database)
    store.commit(store.take_over().epoch, {}, np.array([0]), np.array([-1]), change)
    assert budget.changes() == [change] and budget.load() is None


def test_an_epoch_that_begins_for_the_jobs_is_of_the_same_boot(path: Path) -> None:
    database = Database(path)
    SqliteLedgerStore(database, "boot-1").take_over()
    with database.writing() as writing:
        assert begin_epoch(database, writing) == (2, "boot-1")
    assert SqliteLedgerStore(database, "boot-1").take_over().is_certain
    database.close()


def test_each_row_of_counts_has_those_of_its_block_only(path: Path) -> None:
    database, n = Database(path), 2 * BLOCK + 5
    store = SqliteLedgerStore(database, "boot-1")
    nodes = {place: (f"n{place}", DECLARED) for place in range(n)}
    store.commit(store.take_over().epoch, nodes, np.arange(n), np.arange(n))
    rows = [(block, json.loads(counts)) for block, counts in database.rows("SELECT block, counts_mw FROM count")]
    assert [(block, counts[0], len(counts)) for block, counts in rows] == [
        (0, 0, BLOCK), (1, BLOCK, BLOCK), (2, 2 * BLOCK, 5),
    ]  # fmt: skip
    database.close()
