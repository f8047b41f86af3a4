"""The cluster agent's database: a log of commits, and SQLite, which is derived from it.

A commit is in force when its line in the log is on the disk (``commit_log``); SQLite, which people's queries and a
start read, gets the same records right after. It syncs only when it moves its write-ahead log (WAL) into its file: what
it lacks after a crash, or while its disk is full, is taken from the log when the store is opened, and before the next
commit.

Rows have checksums (``records``), which count where the log is damaged. ``mending`` opens a store of which one or the
other is, or which an older or newer program has written.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from cluster_agent.errors import ClusterError, StoreError
from cluster_agent.jobs.job import OVER
from cluster_agent.store.commit_log import CommitLog, Logged, Record
from cluster_agent.store.records import TABLES, Row, checksum, drop_row, put_row
from foundation.directories import make_directory

VERSION: Final = 7
"""Of SQLite's tables. Before 7 there was no log (``mending`` takes such a store over). A new table needs a new version,
so that an older program refuses the store; SQLite is then made again from the log."""

SCHEMA: Final = """
    CREATE TABLE schema_version (version INTEGER NOT NULL);
    CREATE TABLE applied (one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL);
    CREATE TABLE owner (one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER NOT NULL, boot_id TEXT NOT NULL,
                        checksum INTEGER NOT NULL);
    CREATE TABLE member (place INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, declaration BLOB NOT NULL,
                         checksum INTEGER NOT NULL);
    CREATE TABLE count (block INTEGER PRIMARY KEY, counts_mw BLOB NOT NULL, checksum INTEGER NOT NULL);
    CREATE TABLE budget (one INTEGER PRIMARY KEY CHECK (one = 1), budget_mw INTEGER NOT NULL, steps BLOB NOT NULL,
                         checksum INTEGER NOT NULL);
    CREATE TABLE change (id INTEGER PRIMARY KEY, unix_s REAL NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL,
                         checksum INTEGER NOT NULL);
    CREATE TABLE job (id INTEGER PRIMARY KEY AUTOINCREMENT, uid INTEGER NOT NULL, state TEXT NOT NULL, ended_s REAL,
                      body BLOB NOT NULL, checksum INTEGER NOT NULL);
    CREATE INDEX job_state ON job (state);
    CREATE INDEX job_ended ON job (ended_s);
    CREATE TABLE drained_node (name TEXT PRIMARY KEY, reason TEXT NOT NULL, uid INTEGER NOT NULL,
                               checksum INTEGER NOT NULL);
    CREATE TABLE node_power (name TEXT PRIMARY KEY, body BLOB NOT NULL, checksum INTEGER NOT NULL);
    CREATE TABLE stored_joules (one INTEGER PRIMARY KEY CHECK (one = 1), body BLOB NOT NULL, checksum INTEGER NOT NULL);
    CREATE TABLE reservation (name TEXT PRIMARY KEY, body BLOB NOT NULL, checksum INTEGER NOT NULL);
    CREATE TABLE lost_jobs (one INTEGER PRIMARY KEY CHECK (one = 1), unix_s REAL NOT NULL, checksum INTEGER NOT NULL);
"""

BUSY_S: Final = 2.0
"""Ours: how long another process (a backup, a standby taking over) may keep the write lock."""

CHANGES: Final = 1000
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

    def __init__(self, path: Path, older: Iterable[Row] = ()) -> None:
        """``older``: changes of the budget that a log no longer has, for a SQLite that is made again."""
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
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = NORMAL")
                self._open(older)
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

    def _open(self, older: Iterable[Row]) -> None:
        """Bring SQLite to the last commit of the log."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            version = self._version()
            refuse_newer(self.path, version)
            logged = self.log.read()
            if not version:
                _create(self._connection)
                if not logged.is_there and not logged.rows:  # a new store
                    self.log.write(0, [("owner", (1, 0, ""))], 0, ())
                    logged = self.log.read()
            number = self._applied() if version in (0, VERSION) else 0
            if version not in (0, VERSION) or not logged.is_whole or logged.number < number:
                raise StoreError(f"{self.path}: does not agree with its log: `clusterctl store repair`")
            if not version or number < logged.first:
                self._take_state(logged, older)
                if logged.number:
                    self.notes.append(f"{self.path}: is made again from its log, up to commit {logged.number}")
            else:
                self._apply(logged, number)
            set_last_job(self._connection, logged.last_job)
            self.log.take(logged)
            self._connection.execute("COMMIT")
            if not version:  # the tables are in the file itself from now on
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except BaseException:
            self._roll_back()
            raise

    def _version(self) -> int:
        """Of SQLite's tables; 0: there are none."""
        if not self._connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            return 0
        found = self._connection.execute("SELECT version FROM schema_version").fetchone()
        return found[0] if found and isinstance(found[0], int) and found[0] > 0 else -1

    def _take_state(self, logged: Logged, older: Iterable[Row]) -> None:
        """Replace all that SQLite has, which is from before the beginning of the log."""
        for table in TABLES:
            if table != "change":
                self._connection.execute(f"DELETE FROM {table}")
        for row in older:
            put_row(self._connection, "change", row)
        for (table, _), (_, row_or_none) in logged.rows.items():
            if row_or_none is not None:
                put_row(self._connection, table, row_or_none)
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
                    self._write_log_again()
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

    def _write_log_again(self) -> None:
        """It has grown long: let it begin with what SQLite has. A damaged record ends that."""

        def rows(table: str, rest: str = "") -> Iterator[Row]:
            for *row, found in self._connection.execute(f"SELECT {TABLES[table].listed} FROM {table} {rest}"):
                if checksum(table, *row) != found:  # no more: this agent has examined or written it
                    raise StoreError(f"{self.path}: cannot write its log again: {table} {row[0]} is damaged")
                yield tuple(row)

        over = f"state IN ({', '.join(map(repr, OVER))})"
        rests = {"job": f"WHERE NOT {over}", "change": f"ORDER BY id DESC LIMIT {CHANGES}"}
        records = ((table, row) for table in TABLES for row in rows(table, rests.get(table, "")))
        try:
            self.log.write(self.log.number, records, last_job(self._connection))
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


def free_bytes(path: Path) -> int | None:
    """What the file system of the store at ``path`` has left for whoever runs this; None: it cannot be read."""
    try:
        found = os.statvfs(path.parent)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def refuse_newer(path: Path, version: object) -> None:
    """``ClusterError`` for SQLite's tables of a version that this program does not know."""
    if isinstance(version, int) and version > VERSION:
        raise ClusterError(
            f"{path}: the store has version {version}, and this clusterctl knows only {VERSION}:"
            " start the newer clusterctl, or put back a copy of the store from before it"
        )


def tables_of() -> set[Row]:
    """What ``sqlite_master`` says of a store."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        _create(connection)
        return set(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"))


def last_job(connection: sqlite3.Connection) -> int:
    """The highest number that a job has got."""
    found = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'job'").fetchone()
    return found[0] if found and isinstance(found[0], int) else 0


def set_last_job(connection: sqlite3.Connection, number: int) -> None:
    """The next job gets a higher number than this one and than all there are."""
    (highest,) = connection.execute("SELECT max(id) FROM job").fetchone()
    connection.execute("DELETE FROM sqlite_sequence WHERE name = 'job'")
    connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('job', ?)", (max(number, highest or 0),))


def _create(connection: sqlite3.Connection) -> None:
    for statement in filter(str.strip, SCHEMA.split(";")):
        connection.execute(statement)
    connection.execute("INSERT INTO schema_version VALUES (?)", (VERSION,))
    connection.execute("INSERT INTO applied VALUES (1, 0)")
