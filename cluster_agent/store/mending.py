"""A store that is damaged, of version 0.2.0, or put back from a backup: what is found, and how it is opened.

The log (``commit_log``) says what is in force, and SQLite is derived from it. So the cluster agent compares the two
when it opens the store, and there are two ways to mend:

    the log is whole    SQLite is emptied, and made again from it
    it is not           a new log is written, of every record that is right in the old one or in SQLite (``salvage``);
                        then SQLite is made again from that

The damaged files are kept (``cluster.db.damaged-1``). Whatever ends the mending, the next start does it again: the log
is replaced by a rename, and SQLite is emptied only after that.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.store.commit_log import CommitLog, Logged
from cluster_agent.store.database import BUSY_S, VERSION, Database, last_job, refuse_newer, tables_of
from cluster_agent.store.records import LEDGER, LOST_JOBS, TABLES, Row, Rows, read_rows, text_of
from cluster_agent.store.salvage import Findings, write_salvaged
from foundation.directories import sync_directory

CHECKED_SINCE: Final = 5
"""The first version whose records have checksums. Versions 5 and 6 (nodectl 0.2.0) had no log: SQLite alone says what
was in force."""

FULLY_CHECKED: Final = 1 << 28
"""Ours: of a larger store only the small tables are examined at a start, since all of it would take more than a second
or two; ``store check`` examines all of it."""

MOST_KEPT: Final = 5
"""Ours: so many damaged stores are kept. A disk that damages one again and again must not be filled by them."""

NEVER_DROPPED: Final = frozenset(("owner", "member", "budget", "job"))
"""The tables whose rows stay for ever."""

OLD_COPIES: Final = ("-copy", "-jobs", "-ended")
"""What 0.2.0 kept next to its SQLite. Only the number of a commit is read of it."""

_LOCKS: Final = 0x40000000
"""Where SQLite's locks on a file begin ("pending byte"); in WAL mode every open connection has one there."""

_NOT_DAMAGE: Final = frozenset(
    (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM,
     sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_IOERR)
)  # fmt: skip


# --- examining


def examine(path: Path, is_start: bool = False) -> Findings:
    """Read the store and compare everything with its checksums and with the log. It may be in use. ``ClusterError`` if
    it is not there, is locked, may not be read, or is of another version than this program can read. ``is_start``: an
    agent waits for it."""
    _must_be_there(path)
    found = Findings()
    try:
        with contextlib.closing(_connection(path)) as connection:
            connection.text_factory = text_of
            connection.execute("BEGIN")
            _examine(path, connection, found, is_start and path.stat().st_size > FULLY_CHECKED)
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite's words may quote what is damaged
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        if code & 0xFF in _NOT_DAMAGE and code != sqlite3.SQLITE_IOERR_SHORT_READ:
            is_theirs = code & 0xFF == sqlite3.SQLITE_CANTOPEN and not _may_write(path)
            reason = "who may not write next to it can read it only while nobody has it open" if is_theirs else error
            raise ClusterError(f"{path}: cannot open the store: {reason}") from None
        found.damage(f"it cannot be read: {error}")
        if not found.log.is_there:
            found.log = CommitLog(path).read()
    if found.has_lost_commits:
        found.damage(f"{max(found.log.number - found.number, 1)} commits are missing: it is an older copy, or damaged")
    _say_log(path, found)
    _compare(found)
    if found.rows_of("lost_jobs"):
        found.lines.append(LOST_JOBS)
    return found


def _connection(path: Path) -> sqlite3.Connection:
    """SQLite makes two files next to a store of which nobody has any open; who may only read does without them, which
    is right as long as no agent writes."""
    is_at_rest = not path.with_name(f"{path.name}-wal").exists()
    options = "?immutable=1" if is_at_rest and not _may_write(path) else ""
    return sqlite3.connect(path.absolute().as_uri() + options, timeout=BUSY_S, isolation_level=None, uri=True)


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def _say_log(path: Path, found: Findings) -> None:
    """What is wrong with the log, where there was one."""
    log = found.log
    missing = max(found.number - log.number, 0)
    if log.damaged and found.version in (0, VERSION):
        found.lines.append(f"{path.name}-log: {log.damaged} lines are damaged or missing")
    elif missing and log.is_there:
        found.lines.append(f"{path.name}-log: the last {missing} commits are missing")
    log.damaged += missing


def _must_be_there(path: Path) -> None:
    """One line for who may not look; a file may not be opened for that, since closing it would drop SQLite's locks."""
    try:
        is_there = path.is_file()
    except OSError as error:
        raise ClusterError(f"{path}: cannot open the store: {error.strerror}") from None
    if not is_there:
        raise ClusterError(f"{path}: there is no store")
    if not os.access(path, os.R_OK):
        raise ClusterError(f"{path}: cannot open the store: Permission denied: it is for the agent's user and root")


def _examine(path: Path, connection: sqlite3.Connection, found: Findings, is_large: bool) -> None:
    schema = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    names = {row[1] for row in schema}
    if not schema or "last_commit" not in names:
        # after the transaction has begun: what is committed meanwhile is more in the log, and not less
        found.log = CommitLog(path).read()
    if not schema:  # the machine went down, or the agent was killed, while the store was made
        if found.log.is_there or found.log.rows:
            found.damage(*["the store is empty"][found.log.is_whole :])
        return
    _judge_version(path, set(schema), _version(connection), found)
    found.number = _number(connection, found)
    if found.version < VERSION:
        copied = _copied_commit(path)
        found.log = Logged(is_there=copied > found.number, damaged=1, number=copied)
    _read_tables(connection, found, names, LEDGER if is_large and found.log.is_whole else TABLES)
    found.last_job = last_job(connection)


def _read_tables(connection: sqlite3.Connection, found: Findings, names: set[str], tables: Collection[str]) -> None:
    for of in (f"('{table}')" for table in LEDGER) if tables is LEDGER else ("",):
        _examine_structure(connection, found, of)
    for table in filter(names.__contains__, tables):
        found.rows[table] = rows = read_rows(connection, table)
        found.damage(*rows.named(table))
    if "owner" in found.rows and not found.rows["owner"].good and not found.rows["owner"].bad:
        found.damage("the epoch is missing")


def _judge_version(path: Path, schema: set[Row], version: object, found: Findings) -> None:
    """By its tables, since the number may be damaged."""
    names = {row[1] for row in schema}
    if {"owner", "member"} <= names and names & {"applied", "last_commit"}:
        found.version = VERSION if "applied" in names else VERSION - 1
    elif isinstance(version, int) and 0 < version < CHECKED_SINCE:
        raise ClusterError(
            f"{path}: a store of version {version}: start clusterctl 0.2.0 on it once, which brings it to 6"
        )
    else:
        refuse_newer(path, version)
        raise sqlite3.DatabaseError("its tables are not those of a store")
    if schema != tables_of() and found.version == VERSION:
        refuse_newer(path, version)
        found.damage("its tables are damaged")
    elif version not in (range(CHECKED_SINCE, VERSION) if found.version < VERSION else (VERSION,)):
        found.damage(f"its version is damaged: {str(version)[:20]}")


def _version(connection: sqlite3.Connection) -> object:
    with contextlib.suppress(sqlite3.OperationalError, UnicodeDecodeError):  # no such table, or a damaged name
        return (connection.execute("SELECT version FROM schema_version").fetchone() or (0,))[0]
    return None


def _number(connection: sqlite3.Connection, found: Findings) -> int:
    table = "applied" if found.version == VERSION else "last_commit"
    numbers: list[Row] = []
    with contextlib.suppress(sqlite3.Error, UnicodeDecodeError):
        numbers = connection.execute(f"SELECT number FROM {table}").fetchall()
    if len(numbers) == 1 and isinstance(numbers[0][0], int):
        return int(numbers[0][0])
    found.damage("the number of its last commit is damaged")
    return 0


def _copied_commit(path: Path) -> int:
    """The last commit that a store of 0.2.0 had, by the first line of its copy; 0 if that does not say."""
    with contextlib.suppress(OSError, ValueError):
        line = Path(f"{path}-copy").read_bytes().split(b"\n", 1)[0]
        return int(line[9:]) if int(line[:8], 16) == zlib.crc32(line[9:]) else 0
    return 0


def _examine_structure(connection: sqlite3.Connection, found: Findings, of: str) -> None:
    try:
        lines = [str(line) for (line,) in connection.execute(f"PRAGMA integrity_check{of}")]
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        lines = [str(error)]
    if lines != ["ok"]:
        found.damage(*(f"SQLite: {' '.join(line.split())[:200]}" for line in lines))


def _compare(found: Findings) -> None:
    """SQLite with the log: what both have must be the same. A damaged log only says what cannot have been dropped."""
    for table, rows in found.rows.items():
        good = {row[0]: row[:-1] for row in rows.good}
        bad = {row[0] for row, _ in rows.bad}
        for key, number, row in found.log.of(table):
            if number > found.number or key in bad or good.get(key) == row:
                continue
            if found.log.is_whole or (key not in good and table in NEVER_DROPPED):
                what = "is missing" if key not in good else "differs from the log" if row else "is gone by the log"
                found.damage(*Rows(bad=[((key,), f"its record {what}")]).named(table))


# --- opening and mending


def open_store(path: Path, say: Callable[[str], None]) -> Database:
    """The store, mended if it is damaged: ``say`` gets a line for each thing that was wrong."""
    for line in _mended(path, is_start=True):
        say(f"ALARM: {path}: {line}")
    database = Database(path)
    for line in database.notes:
        say(line)
    for suffix in OLD_COPIES:
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    return database


def repair(path: Path, gives_up_jobs: bool = False) -> list[str]:
    """Mend the store while no agent uses it; returns what was found and done. ``gives_up_jobs``: all jobs are lost, and
    new ones may be submitted."""
    if _is_there(path):
        _must_be_there(path)
    elif not _has_log(path):
        raise ClusterError(f"{path}: there is no store")
    done = _mended(path, is_start=False)
    with _alone(path) if done or gives_up_jobs else contextlib.nullcontext():
        database = Database(path)
        if gives_up_jobs:
            with database.writing() as writing:
                writing.drop("lost_jobs", 1)
            done.append("the jobs before are given up: jobs are accepted again")
        database.close()
    return done


def backup(path: Path, target: Path) -> Findings:
    """Copy the store, which may be in use, to ``target``; returns what is wrong with the copy."""
    _must_be_there(path)
    part = target.with_name(f"{target.name}.new")
    try:
        if target.exists():
            raise WrongUseError(f"{target}: exists already; a backup replaces nothing")
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        with (
            contextlib.closing(sqlite3.connect(path, timeout=BUSY_S)) as source,
            contextlib.closing(sqlite3.connect(part)) as copy,
        ):
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, not three
        found = examine(part)
        os.replace(part, target)
        sync_directory(target.parent)
    except OSError as error:
        raise ClusterError(f"{target}: cannot write the backup: {error.strerror}") from None
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise ClusterError(f"{path}: cannot be backed up: {error}") from None
    return found


def mend(path: Path, found: Findings) -> list[str]:
    """Bring log and SQLite in order with all that could be read; returns a line for each thing that was wrong, and what
    was done. ``ClusterError`` if an agent uses it, or too little is left."""
    with _alone(path):
        has_rows = any(rows.good or rows.bad for rows in found.rows.values())
        if not has_rows and not found.log.rows and not found.log.is_whole:
            raise ClusterError(
                f"{path}: {found.lines[0]}; nothing in it can be read, and it has no log: put back a backup, or move"
                " it away for a new store, in which only nodes of the list of keys count"
            )
        lines = list(found.lines)
        aside = _keep(path) if lines else None
        older = [row[:-1] for row in found.rows.get("change", Rows()).good if ("change", row[0]) not in found.log.rows]
        if not found.log.is_whole:
            lines += write_salvaged(CommitLog(path), found)
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)  # they must not be applied to the new one
        os.truncate(path, 0)  # in its place: it stays the file that others lock
        Database(path, older).close()
    if not lines:
        return []
    return [*lines, f"mended; the damaged one is {aside}" if aside else "made again from its log"]


def _mended(path: Path, is_start: bool) -> list[str]:
    """Mend what must be; returns what was wrong and what was done."""
    if not _is_there(path) and not _has_log(path):
        return []  # a new one
    found = examine(path, is_start) if path.exists() else _without_sqlite(path)
    is_new = not (found.version or found.lines or found.log.is_there)  # and an agent was killed while it made it
    is_older = 0 < found.version < VERSION
    must_be = found.is_damaged or is_older or not found.log.is_whole
    return mend(path, found) if must_be and not is_new else found.lines


def _without_sqlite(path: Path) -> Findings:
    """Somebody has removed it: no flipped bit does that, so a damaged log says all that is known of jobs."""
    found = Findings(log=CommitLog(path).read(), rows={"job": Rows()})
    if not found.log.is_whole:
        found.damage("the store is missing")
    _say_log(path, found)
    return found


def _is_there(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size > 0
    except OSError as error:
        raise ClusterError(f"{path}: cannot open the store: {error.strerror}") from None


def _has_log(path: Path) -> bool:
    log = CommitLog(path)
    has_past = log.past.exists() and log.past.stat().st_size > 0
    return log.path.exists() or has_past or any(Path(f"{path}{suffix}").exists() for suffix in OLD_COPIES)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Nobody else has the store open, or can open it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ClusterError(f"{path}: cannot open the store: {error.strerror}") from None
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 512, _LOCKS)
        yield
    except BlockingIOError:
        raise ClusterError(f"{path}: is damaged, and a cluster agent uses it: stop that first") from None
    finally:
        os.close(descriptor)


def _keep(path: Path) -> Path:
    """Copy the damaged files to names of their own; the oldest make room."""
    kept = sorted(int(one.suffix.removeprefix(".damaged-")) for one in path.parent.glob(f"{path.name}.damaged-*[0-9]"))
    aside = path.with_name(f"{path.name}.damaged-{max(kept, default=0) + 1}")
    suffixes = ("", "-wal", "-log", "-past", *OLD_COPIES)
    try:
        for n in kept[: max(0, len(kept) + 1 - MOST_KEPT)]:
            for suffix in suffixes:
                path.with_name(f"{path.name}.damaged-{n}{suffix}").unlink(missing_ok=True)
        for suffix in suffixes:
            with contextlib.suppress(FileNotFoundError):
                shutil.copy2(f"{path}{suffix}", f"{aside}{suffix}")
    except OSError as error:
        raise ClusterError(f"{aside}: cannot keep the damaged store: {error.strerror}") from None
    return aside
