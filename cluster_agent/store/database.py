"""The cluster agent's database: SQLite with a write-ahead log (WAL); every commit is on the disk when it returns.

The schema grows by migrations, applied in order, each in a transaction with its number, so a store always has exactly
one version. A store of a newer version is refused: its rows may mean more than this program knows.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from cluster_agent.errors import ClusterError
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
)
"""Migration n takes a store from version n to n + 1. Never edit one that has been released: append."""

BUSY_S: Final = 2.0
"""Ours: how long another process (a backup, a standby taking over) may keep the write lock."""


class Database:
    """The open store. A method that fails raises ``ClusterError`` with a one-line message, and nothing has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            make_directory(str(path.parent))
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise ClusterError(f"{path}: cannot open the store: {error.strerror}") from None
        with self._saying("open"):
            self._connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
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

    def close(self) -> None:
        """Close it."""
        self._connection.close()

    def _migrate(self) -> None:
        with self.writing() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)")
            found = connection.execute("SELECT version FROM schema_version").fetchone()
            version = found[0] if found else 0
            if version > len(MIGRATIONS):
                raise ClusterError(
                    f"{self.path}: the store has version {version}, and this clusterctl knows only {len(MIGRATIONS)}:"
                    " start the newer clusterctl, or put back a copy of the store from before it"
                )
            for script in MIGRATIONS[version:]:
                for statement in filter(str.strip, script.split(";")):
                    connection.execute(statement)
            connection.execute("DELETE FROM schema_version")
            connection.execute("INSERT INTO schema_version VALUES (?)", (len(MIGRATIONS),))

    @contextlib.contextmanager
    def _saying(self, verb: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            # a full disk is an I/O error where SQLite only maps a file: the -shm of the log
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            fixes = {sqlite3.SQLITE_IOERR: "; is the disk full?", sqlite3.SQLITE_FULL: ": make room there"}
            fix = fixes.get(code, "")
            raise ClusterError(f"{self.path}: cannot {verb} the store: {error}{fix}") from None
