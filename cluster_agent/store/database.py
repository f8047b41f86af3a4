"""The cluster agent's database: SQLite with a write-ahead log (WAL); every commit is on the disk when it returns.

The schema grows by migrations, applied in order, each in a transaction with its number, so a store always has exactly
one version. A store of a newer version is refused: its rows may mean more than this program knows. Commits are numbered
(``ledger_copy``, ``job_copy``), rows have checksums (``records``); ``mending`` opens a store that may be damaged.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from cluster_agent.errors import ClusterError
from cluster_agent.store.job_copy import JobCopy
from cluster_agent.store.ledger_copy import LedgerCopy
from cluster_agent.store.records import define
from nodectl.write.saves import make_directory

MIGRATIONS: Final[tuple[str, ...]] = (
    """
    CREATE TABLE owner (one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER NOT NULL, boot_id TEXT NOT NULL);
    INSERT INTO owner VALUES (1, 0, '');
    CREATE TABLE node (name TEXT PRIMARY KEY, count_mw INTEGER NOT NULL, declaration BLOB NOT NULL,
                       is_leased INTEGER NOT NULL);
    CREATE TABLE budget (one INTEGER PRIMARY KEY CHECK (one = 1), budget_mw INTEGER NOT NULL, steps BLOB NOT NULL);
    CREATE TABLE change (id INTEGER PRIMARY KEY, unix_s REAL NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL);
    """,
    """
    CREATE TABLE job (id INTEGER PRIMARY KEY AUTOINCREMENT, uid INTEGER NOT NULL, state TEXT NOT NULL, ended_s REAL,
                      body BLOB NOT NULL);
    CREATE INDEX job_state ON job (state);
    CREATE INDEX job_ended ON job (ended_s);
    CREATE TABLE drained_node (name TEXT PRIMARY KEY, reason TEXT NOT NULL, uid INTEGER NOT NULL);
    """,
    """
    CREATE TABLE member (place INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, declaration BLOB NOT NULL);
    INSERT INTO member SELECT row_number() OVER (ORDER BY rowid) - 1, name, declaration FROM node;
    CREATE TABLE count (block INTEGER PRIMARY KEY, counts_mw BLOB NOT NULL);
    INSERT INTO count SELECT place / 256, CAST(json_group_array(mw) AS BLOB) FROM
        (SELECT place, iif(is_leased, count_mw, -1) AS mw FROM member JOIN node USING (name) ORDER BY place)
        GROUP BY place / 256;
    DROP TABLE node;
    """,
    """
    CREATE TABLE node_power (name TEXT PRIMARY KEY, body BLOB NOT NULL);
    """,
    """
    ALTER TABLE owner ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE member ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE count ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE budget ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE change ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE job ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE drained_node ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE node_power ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0;
    UPDATE owner SET checksum = record_checksum('owner', one, epoch, boot_id);
    UPDATE member SET checksum = record_checksum('member', place, name, declaration);
    UPDATE count SET checksum = record_checksum('count', block, counts_mw);
    UPDATE budget SET checksum = record_checksum('budget', one, budget_mw, steps);
    UPDATE change SET checksum = record_checksum('change', id, unix_s, who, what);
    UPDATE job SET checksum = record_checksum('job', id, uid, state, ended_s, body);
    UPDATE drained_node SET checksum = record_checksum('drained_node', name, reason, uid);
    UPDATE node_power SET checksum = record_checksum('node_power', name, body);
    CREATE TABLE last_commit (one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL);
    INSERT INTO last_commit VALUES (1, 0);
    CREATE TABLE set_aside (id INTEGER PRIMARY KEY, unix_s REAL NOT NULL, of_table TEXT NOT NULL, why TEXT NOT NULL,
                            record BLOB NOT NULL);
    """,
    """
    CREATE TABLE stored_joules (one INTEGER PRIMARY KEY CHECK (one = 1), body BLOB NOT NULL, checksum INTEGER NOT NULL);
    """,
)
"""Migration n takes a store from version n to n + 1. Never edit one that has been released: append."""

CHECKED_SINCE: Final = 5
"""The version of the store from which on its commits are numbered and its records have checksums."""

VERSION_TABLE: Final = "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)"

BUSY_S: Final = 2.0
"""Ours: how long another process (a backup, a standby taking over) may keep the write lock."""


class Database:
    """The open store. A method that fails raises ``ClusterError`` with a one-line message, and nothing has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.copy, self.job_copy = copy_of(path), JobCopy(path)
        try:
            make_directory(str(path.parent))
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise ClusterError(f"{path}: cannot open the store: {error.strerror}") from None
        with self._saying("open"):
            self._connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
            define(self._connection)
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = FULL")
                self._migrate()
            except BaseException:
                self._connection.close()
                raise

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction that has the write lock from its start; on the disk when it returns."""
        with self._transaction() as connection:
            yield connection
            is_numbered = connection.in_transaction and len(MIGRATIONS) >= CHECKED_SINCE
            query = "UPDATE last_commit SET number = number + 1 RETURNING number"
            found = connection.execute(query).fetchall() if is_numbered else []
        for (number,) in found:
            self.copy.note(number)

    def number_of_jobs(self) -> int:
        """The number of the last transaction that changed jobs (``job_copy``)."""
        return int(self.rows("PRAGMA user_version")[0][0])

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._saying("write"):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # a full disk may have ended the transaction already
                    self._connection.execute("ROLLBACK")
                raise

    def rows(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        with self._saying("read"):
            return self._connection.execute(query, values).fetchall()

    def each(self, query: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, one by one."""
        with self._saying("read"):
            yield from self._connection.execute(query)

    def close(self) -> None:
        """Close it."""
        self._connection.close()

    def _migrate(self) -> None:
        with self._transaction() as connection:
            connection.execute(VERSION_TABLE)
            found = connection.execute("SELECT version FROM schema_version").fetchone()
            version = found[0] if found else 0
            if version > len(MIGRATIONS):
                raise ClusterError(
                    f"{self.path}: the store has version {version}, and this clusterctl knows only {len(MIGRATIONS)}:"
                    " start the newer clusterctl, or put back a copy of the store from before it"
                )
            migrate(connection, version)

    @contextlib.contextmanager
    def _saying(self, verb: str) -> Iterator[None]:
        try:
            yield
        except UnicodeDecodeError as error:
            raise ClusterError(f"{self.path}: cannot {verb} the store: it is damaged: {error}") from None
        except sqlite3.Error as error:
            # a full disk is an I/O error where SQLite only maps a file: the -shm of the log
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            fixes = {sqlite3.SQLITE_IOERR: "; is the disk full?", sqlite3.SQLITE_FULL: ": make room there"}
            fix = fixes.get(code, "")
            raise ClusterError(f"{self.path}: cannot {verb} the store: {error}{fix}") from None


def migrate(connection: sqlite3.Connection, version: int, to: int | None = None) -> None:
    """Inside a transaction: bring a store of this version to another, or to the newest one."""
    for script in MIGRATIONS[version:to]:
        for statement in filter(str.strip, script.split(";")):
            connection.execute(statement)
    connection.execute("DELETE FROM schema_version")
    connection.execute("INSERT INTO schema_version VALUES (?)", (len(MIGRATIONS) if to is None else to,))


def copy_of(path: Path) -> LedgerCopy:
    """The copy of the store at ``path``."""
    return LedgerCopy(path.with_name(f"{path.name}-copy"))
