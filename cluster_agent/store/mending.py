"""A damaged store: what is found, how it is opened all the same, how it is backed up.

One bad bit must neither stop budget control nor widen a count. The store is there twice: as a log of commits, whose
lines have checksums, and as SQLite, whose rows have. So the cluster agent examines both when it opens them:

    SQLite lacks the last commits    no damage: it gets them from the log (``Database``)
    the log is damaged               SQLite has all commits, and the log is written again from it
    SQLite is damaged                a new one is built from the log
    both are                         a new one is built from every record that is right in one or the other

Where both are damaged nothing is guessed downwards, and one line is said for each thing that is lost:

    a node's name or declaration     a node of its own name takes the place, and counts the largest TDP known until it
                                     is forgotten by hand
    a count                          the node's TDP, until it reports
    the epoch                        nodes report it (rule 9 of docs/ledger.md)
    the budget                       the one of the settings, with an alarm
    commits                          no count is believed: TDP
    a job, a change                  set aside in the store's table ``set_aside``
    all jobs                         no job is started or ended until ``clusterctl store repair --give-up-jobs``

The damaged files are kept (``cluster.db.damaged-1``). The new SQLite takes the old one's place in one rename, then the
log is written from it; an agent that is killed in between begins again or finishes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.store.commit_log import CommitLog, Logged
from cluster_agent.store.database import (
    BUSY_S,
    CHECKED_SINCE,
    LOGGED_SINCE,
    MIGRATIONS,
    VERSION_TABLE,
    Database,
    last_job,
    migrate,
    set_last_job,
    what_is_wrong,
)
from cluster_agent.store.ledger_store import BLOCK
from cluster_agent.store.old_copies import read_old_copies, remove_old_copies
from cluster_agent.store.records import LEDGER, LOST_JOBS, TABLES, Row, Rows, define, put_row, read_rows, text_of
from foundation.directories import sync_directory
from foundation.wire.power_messages import Declaration

FULLY_CHECKED: Final = 1 << 28
"""Ours: of a larger store only the small tables are examined at a start, since all of it would take more than a second
or two; ``store check`` examines all of it."""

MOST_KEPT: Final = 5
"""Ours: so many damaged stores are kept. A disk that damages one again and again must not be filled by them."""

SKIPPED: Final = 10_000
"""Ours: so many jobs may have been submitted of which nothing is known any more."""

UNCERTAIN: Final = "?"
"""As the boot in which the store was written: its counts are not believed once older leases have run out."""

_LOCKS: Final = 0x40000000
"""Where SQLite's locks on a file begin ("pending byte"); in WAL mode every open connection has one there."""

_NOT_DAMAGE: Final = frozenset(
    (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM,
     sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_IOERR)
)  # fmt: skip


@dataclass(slots=True)
class Findings:
    """What an examination found. ``lines``: one for each thing that is wrong. ``is_damaged``: whether SQLite is, so
    that a new one must be built. ``rows``: by table, what can be read of it. ``log``: the log, or, of a store that had
    none, what its copies know. ``version``: of the store; 0: not known. ``number``: of SQLite's last commit;
    ``last_job``: the highest number that a job has got."""

    lines: list[str] = field(default_factory=list)
    is_damaged: bool = False
    rows: dict[str, Rows] = field(default_factory=dict)
    asides: list[Row] = field(default_factory=list)
    log: Logged = field(default_factory=Logged)
    version: int = 0
    number: int = 0
    last_job: int = 0

    def damage(self, *lines: str) -> None:
        """SQLite is damaged in this way."""
        self.lines += lines
        self.is_damaged |= bool(lines)

    @property
    def has_lost_commits(self) -> bool:
        """Whether neither has all commits, as far as is known."""
        is_less = self.number < self.log.number or (self.log.is_cut and self.number == self.log.number)
        return self.log.is_there and not self.log.is_whole and is_less

    @property
    def has_lost_jobs(self) -> bool:
        """Whether there were jobs, as far as is known, and none of them can be read."""
        jobs = self.rows.get("job")
        is_lost = not self.log.knows_jobs and (jobs is None or (bool(jobs.torn) and not jobs.good))
        return is_lost or any(row[2] == LOST_JOBS for row in self.asides)

    def rows_of(self, table: str) -> dict[object, Row]:
        """By key, the rows of a table: the log's where it is whole, newer, or has the only one."""
        is_kept = not self.log.is_whole or table in ("job", "change")  # of which a log need not have all
        rows = {row[0]: row[:-1] for row in self.rows.get(table, Rows()).good} if is_kept else {}
        for key, number, row in self.log.of(table):
            is_newer = self.log.is_whole or number > self.number
            if row is not None and (is_newer or key not in rows):
                rows[key] = row
            elif row is None and is_newer:
                rows.pop(key, None)
        return rows


# --- examining


def examine(path: Path, is_start: bool = False) -> Findings:
    """Read the store and compare everything with its checksums. It may be in use. ``ClusterError`` if it is not there,
    is locked, may not be read, or is of a newer version. ``is_start``: an agent waits for it."""
    _must_be_there(path)
    found = Findings()
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)) as connection:
            connection.text_factory = text_of
            connection.execute("BEGIN")
            _examine(path, connection, found, is_start and path.stat().st_size > FULLY_CHECKED)
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite's words may quote what is damaged
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        if code & 0xFF in _NOT_DAMAGE and code != sqlite3.SQLITE_IOERR_SHORT_READ:
            raise ClusterError(f"{path}: cannot open the store: {error}") from None
        found.damage(f"it cannot be read: {error}")
    if not found.log.is_there:
        found.log = _log_of(path, found)
    log = found.log
    if found.has_lost_commits:
        found.damage(f"{max(log.number - found.number, 1)} commits are missing: it is an older copy, or damaged")
    is_logged = not 0 < found.version < LOGGED_SINCE
    if is_logged and log.is_there and (log.damaged or log.number < found.number):
        found.lines.append(f"{path.name}-log: {what_is_wrong(log, found.number)}")
        log.damaged += max(found.number - log.number, 0)
    return found


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


def _log_of(path: Path, found: Findings, job_number: int = 0) -> Logged:
    log = CommitLog(path).read()
    if log.is_there or found.version >= LOGGED_SINCE:
        return log
    old = read_old_copies(path)
    return old.next_to(found.number, job_number) if old.is_there else log


def _examine(path: Path, connection: sqlite3.Connection, found: Findings, is_large: bool) -> None:
    version, schema = _version(connection), _schema(connection)
    known = _version_with(schema)
    if not schema:  # the machine went down, or the agent was killed, while the store was made
        found.log = _log_of(path, found)
        if found.log.is_whole or not _has_log(path):
            return
    found.version = known or (version if isinstance(version, int) else len(MIGRATIONS))
    if known is None:
        _examine_other(path, connection, found)
        return
    if version != found.version:
        found.damage(f"its version is damaged: {str(version)[:20]}")
    found.number = _number(connection, found)
    # after the transaction has begun: what is committed meanwhile is more in the log, and not less
    found.log = _log_of(path, found, connection.execute("PRAGMA user_version").fetchone()[0])
    for table in LEDGER if is_large else ("",):
        _examine_structure(connection, found, f"('{table}')" if table else "")
    for table in LEDGER if is_large else filter({row[1] for row in schema}.__contains__, TABLES):
        found.rows[table] = rows = read_rows(connection, table)
        found.damage(*rows.named(table))
    _examine_ledger(found)
    if is_large:
        found.rows["job"] = Rows()
    else:
        _examine_jobs(connection, found)


def _number(connection: sqlite3.Connection, found: Findings) -> int:
    table = "applied" if found.version >= LOGGED_SINCE else "last_commit"
    numbers: list[Row] = []
    with contextlib.suppress(sqlite3.Error, UnicodeDecodeError):
        numbers = connection.execute(f"SELECT number FROM {table}").fetchall()
    if len(numbers) == 1 and isinstance(numbers[0][0], int):
        return int(numbers[0][0])
    found.damage("the number of its last commit is damaged")
    return 0


def _examine_other(path: Path, connection: sqlite3.Connection, found: Findings) -> None:
    """A store of another version, if it is one."""
    if found.version > len(MIGRATIONS):
        Database(path).close()  # says that it is newer
    if not 0 < found.version < CHECKED_SINCE:
        found.version = 0
        raise sqlite3.DatabaseError("its tables are not those of a store")
    _examine_structure(connection, found, "")


def _examine_ledger(found: Findings) -> None:
    """What must be there, and is not."""
    if not found.rows["owner"].good and not found.rows["owner"].bad:
        found.damage("the epoch is missing")
    stored = [row for _, number, row in found.log.of("budget") if row is not None and number <= found.number]
    if stored and not found.rows["budget"].good and not found.rows["budget"].bad and found.version >= LOGGED_SINCE:
        found.damage("the budget is missing")
    _examine_members(found)


def _examine_members(found: Findings) -> None:
    """Each place has a node."""
    members = {row[0] for row in found.rows["member"].good}
    bad = {row[0] for row, _ in found.rows["member"].bad}
    logged = {key: row for key, number, row in found.log.of("member") if row and number <= found.number}
    places = {*logged, *range(max([*members, -1]) + 1), *_by_place(found.rows["count"].good)}
    for place in sorted(places - members - bad):
        found.damage(f"node {logged[place][1] if place in logged else f'at place {place}'}: its record is missing")


def _examine_jobs(connection: sqlite3.Connection, found: Findings) -> None:
    """What is missing of jobs, what was set aside before, and the number of the last job."""
    rows = found.rows["job"]
    if not rows.torn:
        known = {row[0] for row in (*rows.good, *(row for row, _ in rows.bad))}
        missing = [key for key, number, _ in found.log.of("job") if number <= found.number and key not in known]
        found.damage(*(f"job {key}: its record is missing" for key in sorted(missing)))
    with contextlib.suppress(sqlite3.Error, UnicodeDecodeError):
        found.asides = connection.execute("SELECT unix_s, of_table, why, record FROM set_aside").fetchall()
    if any(why == LOST_JOBS for _, _, why, _ in found.asides):
        found.lines.append(LOST_JOBS)
    try:
        found.last_job = last_job(connection)
    except (TypeError, ValueError):
        found.damage("the number of the last job is damaged")


def _examine_structure(connection: sqlite3.Connection, found: Findings, of: str) -> None:
    try:
        lines = [str(line) for (line,) in connection.execute(f"PRAGMA integrity_check{of}")]
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        lines = [str(error)]
    if lines != ["ok"]:
        found.damage(*(f"SQLite: {' '.join(line.split())[:200]}" for line in lines))


def _version(connection: sqlite3.Connection) -> object:
    with contextlib.suppress(sqlite3.OperationalError, UnicodeDecodeError):  # no such table, or a damaged name
        return (connection.execute("SELECT version FROM schema_version").fetchone() or (0,))[0]
    return None


def _schema(connection: sqlite3.Connection) -> list[Row]:
    return sorted(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall(), key=str)


def _version_with(schema: list[Row]) -> int | None:
    """Which version has these tables, of those that have checksums."""
    return next((one for one in range(CHECKED_SINCE, len(MIGRATIONS) + 1) if schema == _schema_of(one)), None)


def _schema_of(version: int) -> list[Row]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        define(connection)
        connection.execute(VERSION_TABLE)
        migrate(connection, 0, version)
        return _schema(connection)


# --- opening and mending


def open_store(path: Path, say: Callable[[str], None]) -> Database:
    """The store, mended if it is damaged: ``say`` gets a line for each thing that was wrong."""
    for line in _mended(path, is_start=True):
        say(f"ALARM: {path}: {line}")
    database = Database(path)
    for line in database.notes:
        say(line)
    remove_old_copies(path)
    return database


def repair(path: Path, gives_up_jobs: bool = False) -> list[str]:
    """Mend the store while no agent uses it; returns what was found and done. ``gives_up_jobs``: all jobs are lost, and
    new ones may be submitted."""
    if not _is_there(path) and not _has_log(path):
        raise ClusterError(f"{path}: there is no store")
    if _is_there(path):
        _must_be_there(path)
    done = _mended(path, is_start=False)
    with _alone(path) if done or gives_up_jobs else contextlib.nullcontext():
        database = Database(path)
        if gives_up_jobs:
            database.rows("DELETE FROM set_aside WHERE why = ?", (LOST_JOBS,))
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
    """Replace the store by one that has all that could be read; returns a line for each thing that was wrong, and what
    was done. ``ClusterError`` if an agent uses it, or too little is left."""
    if 0 < found.version < CHECKED_SINCE:
        raise ClusterError(
            f"{path}: {found.lines[0]}; a store of version {found.version} has no checksums to mend it by: put back a"
            " backup"
        )
    with _alone(path):
        if not found.rows and not found.log.rows and not found.log.knows_jobs:
            raise ClusterError(
                f"{path}: {found.lines[0]}; nothing in it can be read, and it has no log: put back a backup, or move"
                " it away for a new store, in which only nodes of the list of keys count"
            )
        aside = _keep(path)
        lines = [*found.lines, *_build(path, found)]
        _finish(path)
        Database(path).close()  # writes the log from it
    return [*lines, f"mended; the damaged one is {aside}" if aside else "made again from its log"]


def _mended(path: Path, is_start: bool) -> list[str]:
    """Mend what must be; returns what was wrong and what was done, without what opening the store mends."""
    _finish(path)
    if _is_there(path):
        found = examine(path, is_start)
        if 0 < found.version < CHECKED_SINCE and not found.lines:
            Database(path).close()  # from now on its records have checksums, and what cannot be is found
            found = examine(path, is_start)
    elif _has_log(path):
        found = _all_lost(path)
        if found.log.is_whole:
            return []  # opening it makes it again
    else:
        return []
    if not found.is_damaged:
        return [line for line in found.lines if line == LOST_JOBS or not is_start]
    is_partial = is_start and path.is_file() and path.stat().st_size > FULLY_CHECKED
    return mend(path, examine(path) if is_partial else found)


def _is_there(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size > 0
    except OSError as error:
        raise ClusterError(f"{path}: cannot open the store: {error.strerror}") from None


def _has_log(path: Path) -> bool:
    log = CommitLog(path)
    has_past = log.past.exists() and log.past.stat().st_size > 0
    return log.path.exists() or has_past or read_old_copies(path).is_there


def _all_lost(path: Path) -> Findings:
    found = Findings()
    found.log = _log_of(path, found)
    if path.exists():
        found.damage("the store is empty")
    else:
        found.damage("the store is missing")
        found.rows["job"] = Rows()  # somebody has removed it
    if found.log.damaged:
        found.lines.append(f"{path.name}-log: {what_is_wrong(found.log, 0)}")
    return found


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


def _keep(path: Path) -> Path | None:
    """Copy the damaged files to names of their own; the oldest make room."""
    if not path.stat().st_size:
        return None
    kept = sorted(int(one.suffix.removeprefix(".damaged-")) for one in path.parent.glob(f"{path.name}.damaged-*[0-9]"))
    aside = path.with_name(f"{path.name}.damaged-{max(kept, default=0) + 1}")
    try:
        for n in kept[: max(0, len(kept) + 1 - MOST_KEPT)]:
            _unlink(path.with_name(f"{path.name}.damaged-{n}"))
        for suffix in ("", "-wal", "-log"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy2(f"{path}{suffix}", f"{aside}{suffix}")
    except OSError as error:
        raise ClusterError(f"{aside}: cannot keep the damaged store: {error.strerror}") from None
    return aside


def _build(path: Path, found: Findings) -> list[str]:
    """Build the new SQLite; returns what could not be kept as it was. Its commit is a new one, which no log has: the
    log is written from it when it is opened."""
    part = path.with_name(f"{path.name}-building")
    _unlink(part)
    members, lines = _members(found)
    with contextlib.closing(sqlite3.connect(part, isolation_level=None)) as connection:
        define(connection)
        connection.execute("BEGIN")
        connection.execute(VERSION_TABLE)
        migrate(connection, 0)
        for table in TABLES.keys() - set(LEDGER):
            for row in found.rows_of(table).values():
                put_row(connection, table, row)
        for place, (name, declared) in enumerate(members):
            put_row(connection, "member", (place, name, msgspec.json.encode(declared)))
        for block, counts_mw in _counts(found, len(members)):
            put_row(connection, "count", (block, msgspec.json.encode(counts_mw)))
        put_row(connection, "owner", (1, *_owner(found)))
        budget, problem = _budget(found)
        lines += problem
        if budget:
            put_row(connection, "budget", budget)
        _set_aside(connection, found)
        connection.execute("UPDATE applied SET number = ?", (max(found.number, found.log.number) + 1,))
        if found.has_lost_jobs:
            lines.append("its jobs are lost: put back a backup, or `clusterctl store repair --give-up-jobs`")
        set_last_job(connection, _last_job(found))
        connection.execute("COMMIT")
    _give_to_owner(part, path)
    os.replace(part, path.with_name(f"{path.name}-mended"))
    sync_directory(path.parent)
    return lines


def _members(found: Findings) -> tuple[list[tuple[str, Declaration]], list[str]]:
    """Names and declarations by place, and what is not known of them."""
    known = {
        row[0]: (row[1], msgspec.json.decode(row[2], type=Declaration)) for row in found.rows_of("member").values()
    }
    counts_mw = _stored_counts(found)
    bad = [row[0] for row, _ in found.rows.get("member", Rows()).bad if _is_place(row[0])]
    places = max([*known, *counts_mw, *bad, -1]) + 1
    largest_mw = max([one.tdp_mw for _, one in known.values()], default=0)
    members, lines, names = [], [], set[str]()
    for place in range(places):
        name, declared = known.get(place, ("", None))
        if declared is None or name in names:
            most_mw = max(largest_mw, counts_mw.get(place, 0), 1)
            name, declared = f"lost-{place}", Declaration(most_mw, most_mw, most_mw, most_mw, "sticky")
            lines.append(
                f"the name of the node at place {place} is lost: {name} counts for it, at most {most_mw / 1000:g} W,"
                f" until `clusterctl nodes forget {name} --is-off`"
            )
        names.add(name)
        members.append((name, declared))
    return members, lines


def _is_place(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 20


def _stored_counts(found: Findings) -> dict[int, int]:
    """By place, what can be relied on: of a damaged log no count, since the line that raised it may be the one that is
    damaged; of SQLite none if commits are lost."""
    if found.log.is_whole:
        return _by_place(row for _, _, row in found.log.of("count") if row is not None)
    return {} if found.has_lost_commits else _by_place(found.rows.get("count", Rows()).good)


def _by_place(rows: Iterable[Row]) -> dict[int, int]:
    blocks = [(row[0], msgspec.json.decode(row[1], type=list[int])) for row in rows]
    return {block * BLOCK + n: mw for block, stored in blocks for n, mw in enumerate(stored)}


def _counts(found: Findings, places: int) -> Iterator[tuple[int, list[int]]]:
    """Blocks and their counts; -1 for a node whose count is not known: it counts its TDP."""
    counts_mw = _stored_counts(found)
    for block in range(0, places, BLOCK):
        yield block // BLOCK, [counts_mw.get(place, -1) for place in range(block, min(block + BLOCK, places))]


def _owner(found: Findings) -> tuple[int, str]:
    stored = found.rows.get("owner", Rows()).good
    epochs = [row[1] for row in (*stored, *found.rows_of("owner").values())]
    if found.log.is_whole or (stored and not found.has_lost_commits):
        newest = found.rows_of("owner")[1]
        return newest[1], newest[2]
    return max(epochs, default=0), UNCERTAIN


def _budget(found: Findings) -> tuple[Row | None, list[str]]:
    if row := found.rows_of("budget").get(1):
        return row, []
    is_lost = bool(found.rows.get("budget", Rows()).bad)
    return None, ["the budget that was set last is lost: the one of the settings is in force"] if is_lost else []


def _set_aside(connection: sqlite3.Connection, found: Findings) -> None:
    now_s = time.time()
    bad = ((table, row, why) for table, rows in found.rows.items() for row, why in rows.bad)
    aside = [(now_s, table, why, row) for table, row, why in bad if (table, row[0]) not in found.log.rows]
    kept = [(at_s, table, why, record) for at_s, table, why, record in found.asides if why != LOST_JOBS]
    query = "INSERT INTO set_aside (unix_s, of_table, why, record) VALUES (?, ?, ?, ?)"
    connection.executemany(query, [(*one, msgspec.msgpack.encode(row)) for *one, row in aside])
    with contextlib.suppress(sqlite3.Error):  # of records that were set aside before, those that can be read
        connection.executemany(query, kept)
    if found.has_lost_jobs:
        connection.execute(query, (now_s, "job", LOST_JOBS, b""))


def _last_job(found: Findings) -> int:
    """No number is given twice, since nodes know jobs by it. Where none is known, seconds since 1970 are above all."""
    jobs = found.rows.get("job", Rows())
    numbers = [row[0] for row, _ in jobs.bad if isinstance(row[0], int) and 0 < row[0] < 1 << 48]
    logged = [key for key, _, _ in found.log.of("job")]
    last: int = max([found.last_job, found.log.last_job, *numbers, *(row[0] for row in jobs.good), *logged])
    if found.has_lost_jobs and not last:
        return int(time.time())
    is_unsure = (found.has_lost_commits or bool(jobs.torn) or not found.rows) and not found.log.knows_jobs
    return last + SKIPPED if is_unsure else last


def _finish(path: Path) -> None:
    """Let the new store take the place of the damaged one."""
    mended = path.with_name(f"{path.name}-mended")
    try:
        if not mended.exists():
            return
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)  # the old one's: it must not be applied to the new one
        os.replace(mended, path)
        sync_directory(path.parent)
    except OSError as error:
        raise ClusterError(f"{path}: cannot put the mended store in its place: {error.strerror}") from None


def _give_to_owner(made: Path, path: Path) -> None:
    """Root mends what belongs to the agent's user."""
    status = path.stat()
    os.chmod(made, 0o600)
    if os.geteuid() == 0:
        os.chown(made, status.st_uid, status.st_gid)


def _unlink(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-log", "-copy"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
