"""The cluster agent's database: a log of commits, and SQLite, which is derived from it.

A commit is in force when its line in the log is on the disk (``commit_log``); SQLite, which people's queries and a
start read, gets the same records right after. It syncs only when it moves its write-ahead log (WAL) into its file: what
it lacks after a crash, or while its disk is full, is taken from the log when the store is opened, and before the next
commit.

The schema grows by migrations, applied in order in one transaction, so a store always has exactly one version. A store
of a newer version is refused: its rows may mean more than this program knows. Rows have checksums (``records``);
``mending`` opens a store that may be damaged.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from cluster_agent.errors import ClusterError, StoreError
from cluster_agent.jobs.job import OVER
from cluster_agent.store.commit_log import CommitLog, Logged, Record
from cluster_agent.store.records import TABLES, Row, checksum, define, drop_row, problem_of, put_row
from foundation.directories import make_directory

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
    """
    CREATE TABLE applied (one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL);
    INSERT INTO applied SELECT one, number FROM last_commit;
    DROP TABLE last_commit;
    """,
)
"""Migration n takes a store from version n to n + 1. Never edit one that has been released: append."""

CHECKED_SINCE: Final = 5
"""The version of the store from which on its commits are numbered and its records have checksums."""

LOGGED_SINCE: Final = 7
"""The version from which on its commits are in a log. Before, a commit was in force when SQLite had it."""

VERSION_TABLE: Final = "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)"

BUSY_S: Final = 2.0
"""Ours: how long another process (a backup, a standby taking over) may keep the write lock."""

CHANGES: Final = 100
"""Ours: so many changes of the budget are in what a log begins with. SQLite has all."""


class Writing:
    """What a commit changes. ``connection``: SQLite's, inside its transaction; None: SQLite cannot be written, so that
    the log alone gets it."""

    def __init__(self, connection: sqlite3.Connection | None) -> None:
        self.connection = connection
        self.records: dict[tuple[str, Any], Record] = {}

    def put(self, table: str, *row: Any) -> None:
        """Store this row, in place of the one of its key."""
        self.records[table, row[0]] = table, row
        if self.connection is not None:
            put_row(self.connection, table, row)

    def drop(self, table: str, key: Any) -> None:
        """Remove the row of this key."""
        self.records[table, key] = table, (key,)
        if self.connection is not None:
            drop_row(self.connection, table, key)


class Database:
    """The open store. A method that fails raises ``StoreError`` with a one-line message, and nothing has changed.

    ``trouble``: why it could not be written the last time, "" if it could. ``notes``: lines about what was not as it
    should be when it was opened; all of it is in order now.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.log = path, CommitLog(path)
        self.trouble = ""
        self.notes: list[str] = []
        self._behind: list[Record] = []  # what the log has and SQLite could not be given yet
        try:
            make_directory(str(path.parent))
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise StoreError(f"{path}: cannot open the store: {error.strerror}") from None
        with self._saying("open"):
            self._connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
            try:
                define(self._connection)
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = NORMAL")
                self._open()
            except BaseException:
                self._connection.close()
                raise

    @contextlib.contextmanager
    def writing(self, only_lowers: bool = False) -> Iterator[Writing]:
        """One commit, which has the write lock from its start. When this returns, all that was put is in force and on
        the disk; when it raises, nothing is. ``only_lowers``: it only lowers a budget, so it may use the room that is
        reserved for that, and does not wait for SQLite."""
        try:
            with self._saying("write"):
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    writing = self._begin(only_lowers)
                    yield writing
                    self._commit(writing, only_lowers)
                except BaseException:
                    self._roll_back()
                    raise
        except StoreError as error:
            self.trouble = str(error)
            raise

    def try_writing(self) -> bool:
        """After a failure: whether a commit can be written again."""
        with contextlib.suppress(StoreError), self.writing() as writing:
            if writing.connection is not None:
                writing.connection.execute("UPDATE applied SET number = number")
            self.log.make_room()
            self.trouble = ""
        return not self.trouble

    def rows(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query. ``StoreError`` while SQLite lacks a commit."""
        if self._behind:
            with self.writing():
                pass
        with self._saying("read"):
            return self._connection.execute(query, values).fetchall()

    def latest(self, table: str, n: int = 1) -> list[Row]:
        """The last ``n`` rows of a table by their keys, without their checksums; also while SQLite lacks commits."""
        columns, found = TABLES[table].columns, dict[Any, Row]()
        with self._saying("read"):
            query = f"SELECT {', '.join(columns)} FROM {table} ORDER BY {columns[0]} DESC LIMIT ?"
            found.update((row[0], row) for row in self._connection.execute(query, (n,)))
        found.update((row[0], row) for of, row in self._behind if of == table)
        return [found[key] for key in sorted(found) if len(found[key]) > 1][-n:]

    def last_job(self) -> int:
        """The highest number that a job has got."""
        return last_job(self._connection)

    def close(self) -> None:
        """Close it."""
        self._connection.close()

    # --- opening

    def _open(self) -> None:
        """Bring the schema to its newest version, and SQLite and the log to the same commit."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._connection.execute(VERSION_TABLE)
            found = self._connection.execute("SELECT version FROM schema_version").fetchone()
            version = found[0] if found else 0
            if version > len(MIGRATIONS):
                raise ClusterError(
                    f"{self.path}: the store has version {version}, and this clusterctl knows only {len(MIGRATIONS)}:"
                    " start the newer clusterctl, or put back a copy of the store from before it"
                )
            if version < len(MIGRATIONS):
                migrate(self._connection, version)
            self._join(self.log.read(), version)
            self._connection.execute("COMMIT")
            if version < len(MIGRATIONS):  # the tables are in the file itself from now on
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except BaseException:
            self._roll_back()
            raise

    def _join(self, logged: Logged, version: int) -> None:
        """The log decides; what it cannot say because it is damaged or missing, SQLite says if it has all commits.
        ``version``: of SQLite's tables when it was opened, 0 if they are new."""
        number = self._applied()
        if logged.is_whole and logged.number >= number:
            if number < logged.first or not version:
                self._take_state(logged)
                self.notes.append(f"{self.path}: is made again from its log, up to commit {logged.number}")
            else:
                self._apply(logged, number)
            self.log.take(logged)
            return
        if logged.is_there and (logged.number > number or (logged.is_cut and logged.number == number)):
            raise StoreError(f"{self.log.path}: is damaged: `clusterctl store repair`")
        if logged.is_there and version >= LOGGED_SINCE:
            self.notes.append(f"ALARM: {self.log.path}: {what_is_wrong(logged, number)}; it is written again")
        self._write_log(number, is_compaction=False)

    def _take_state(self, logged: Logged) -> None:
        """Replace all that SQLite has, which is from before the beginning of the log."""
        for table in TABLES:
            if table != "change":
                self._connection.execute(f"DELETE FROM {table}")
        for (table, _), (_, row) in logged.rows.items():
            if row is not None:
                put_row(self._connection, table, row)
        set_last_job(self._connection, logged.last_job)
        self._connection.execute("UPDATE applied SET number = ?", (logged.number,))

    def _apply(self, logged: Logged, number: int) -> None:
        """Give SQLite the commits after this one."""
        for newer, records in logged.commits:
            if newer > number:
                for table, row in records:
                    if len(row) > 1:
                        put_row(self._connection, table, row)
                    else:
                        drop_row(self._connection, table, row[0])
        self._connection.execute("UPDATE applied SET number = ?", (logged.number,))

    # --- a commit

    def _begin(self, only_lowers: bool) -> Writing:
        """Inside SQLite's transaction: give it what it lacks."""
        if self._applied() == self.log.number:
            self._behind.clear()
            if self.log.is_long:
                with contextlib.suppress(StoreError):  # the old one is as good
                    self._write_log(self.log.number, is_compaction=True)
            return Writing(self._connection)
        logged = self.log.read()
        if not logged.is_whole or logged.number < self._applied():
            raise StoreError(f"{self.log.path}: is damaged: `clusterctl store repair`")
        self.log.take(logged)
        connection: sqlite3.Connection | None = self._connection
        try:
            self._apply(logged, self._applied())
            self._connection.execute("COMMIT")
            self._behind.clear()
        except sqlite3.Error:
            if not only_lowers:
                raise
            self._roll_back()
            connection = None
        self._connection.execute("BEGIN IMMEDIATE")
        return Writing(connection)

    def _commit(self, writing: Writing, only_lowers: bool) -> None:
        if not writing.records:
            self._connection.execute("COMMIT")
            return
        number = self.log.number + 1
        if writing.connection is not None:
            self._connection.execute("UPDATE applied SET number = ?", (number,))
        self.log.append(number, writing.records.values(), only_lowers)
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:  # it is in force all the same
            self._roll_back()
            self._behind += writing.records.values()
            self.trouble = f"{self.path}: cannot write the store: {error}{_fix(error)}"
        else:
            if writing.connection is None:
                self._behind += writing.records.values()
            else:
                self.trouble = ""

    def _write_log(self, number: int, is_compaction: bool) -> None:
        """Write the log again, from SQLite. A damaged record is left out, unless the log that is there may have it."""

        def rows(table: str, rest: str = "") -> Iterator[Row]:
            for *row, found in self._connection.execute(f"SELECT {TABLES[table].listed} FROM {table} {rest}"):
                # what this agent has written or examined need not be decoded once more
                if checksum(table, *row) == found and (is_compaction or not problem_of(table, (*row, found))):
                    yield tuple(row)
                elif is_compaction:
                    raise StoreError(f"{self.path}: cannot write its log again: {table} {row[0]} is damaged")

        over = f"state IN ({', '.join(map(repr, OVER))})"
        rests = {"job": f"WHERE NOT {over}", "change": f"ORDER BY id DESC LIMIT {CHANGES}"}
        records = ((table, row) for table in TABLES for row in rows(table, rests.get(table, "")))
        past = None if is_compaction else rows("job", f"WHERE {over}")
        try:
            self.log.write(number, records, last_job(self._connection), past)
        except StoreError:
            self.log.postpone()
            raise

    def _applied(self) -> int:
        number: int = self._connection.execute("SELECT number FROM applied").fetchone()[0]
        return number

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # a full disk may have ended the transaction already
            self._connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def _saying(self, verb: str) -> Iterator[None]:
        try:
            yield
        except UnicodeDecodeError as error:
            raise StoreError(f"{self.path}: cannot {verb} the store: it is damaged: {error}") from None
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: cannot {verb} the store: {error}{_fix(error)}") from None


def _fix(error: sqlite3.Error) -> str:
    # a full disk is an I/O error where SQLite only maps a file: the -shm of its write-ahead log
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return {sqlite3.SQLITE_IOERR: "; is the disk full?", sqlite3.SQLITE_FULL: ": make room there"}.get(code, "")


def what_is_wrong(logged: Logged, number: int) -> str:
    """With a log, where SQLite has this commit."""
    if logged.damaged:
        return f"{logged.damaged} lines are damaged or missing"
    return f"the last {number - logged.number} commits are missing"


def last_job(connection: sqlite3.Connection) -> int:
    """The highest number that a job has got."""
    found = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'job'").fetchone()
    return int(found[0]) if found else 0


def set_last_job(connection: sqlite3.Connection, number: int) -> None:
    """The next job gets a higher number than this one and than all there are."""
    (highest,) = connection.execute("SELECT max(id) FROM job").fetchone()
    connection.execute("DELETE FROM sqlite_sequence WHERE name = 'job'")
    connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('job', ?)", (max(number, highest or 0),))


def migrate(connection: sqlite3.Connection, version: int, to: int | None = None) -> None:
    """Inside a transaction: bring a store of this version to another, or to the newest one."""
    for script in MIGRATIONS[version:to]:
        for statement in filter(str.strip, script.split(";")):
            connection.execute(statement)
    connection.execute("DELETE FROM schema_version")
    connection.execute("INSERT INTO schema_version VALUES (?)", (len(MIGRATIONS) if to is None else to,))
