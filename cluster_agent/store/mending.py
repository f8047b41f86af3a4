"""A damaged store: what is found, how it is opened all the same, how it is backed up.

One bad bit must neither stop budget control nor widen a count. So the cluster agent examines its store when it opens
it. If anything is damaged, it keeps the files as they are next to the store (``cluster.db.damaged-1``), builds a new
store from every record that can be read and is right, and says one line for each that is not:

    a node's name or declaration   from the copy (``ledger_copy``); if that is damaged, too, the place gets a node of
                                   its own name, which counts the largest TDP known until it is forgotten by hand
    a count                        the node's TDP, until it reports
    the epoch                      from the copy; else nodes report it (rule 9 of docs/ledger.md)
    the budget                     from the copy; else the one of the settings, with an alarm
    lost commits                   no count is believed: TDP
    a job, a drained node          from the copy (``job_copy``), also where only its last changes are lost
    all else (a change)            set aside in the store's table ``set_aside``, as is a job that the copy has not
    all jobs, the copy too         no job is started or ended until ``clusterctl store repair --give-up-jobs``

The new store takes the old one's place in one rename; an agent that is killed before it begins again, one that is
killed after it finishes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.store.database import BUSY_S, CHECKED_SINCE, MIGRATIONS, VERSION_TABLE, Database, copy_of, migrate
from cluster_agent.store.job_copy import COPIED, Copied, JobCopy
from cluster_agent.store.ledger_copy import Copy, sync_directory
from cluster_agent.store.ledger_store import BLOCK, write_copy
from cluster_agent.store.records import LEDGER, LOST_JOBS, TABLES, Row, Rows, define, read_rows, text_of
from nodectl.wire.power_messages import Declaration

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
    """What an examination found. ``lines``: one for each thing that is wrong. ``rows``: by table, what can be read.
    ``version``: of the store; 0: not known. ``job_number``: of the last transaction that changed jobs. ``sequence``:
    the highest number that a job has got."""

    lines: list[str] = field(default_factory=list)
    rows: dict[str, Rows] = field(default_factory=dict)
    asides: list[Row] = field(default_factory=list)
    copy: Copy = field(default_factory=Copy)
    jobs: Copied = field(default_factory=Copied)
    version: int = 0
    job_number: int = 0
    commit: int = 0
    has_lost_commits: bool = False
    sequence: int = 0

    @property
    def is_damaged(self) -> bool:
        """Whether the store itself is, and not only its copies, which a start writes again."""
        return len(self.lines) > (self.copy.damaged > 0) + (self.jobs.damaged > 0) + (LOST_JOBS in self.lines)

    @property
    def has_lost_jobs(self) -> bool:
        """Whether there were jobs, as far as is known, and none of them can be read."""
        jobs = self.rows.get("job")
        is_lost = not self.jobs.is_whole and (jobs is None or (bool(jobs.torn) and not jobs.good))
        return is_lost or any(row[2] == LOST_JOBS for row in self.asides)

    def rows_of(self, table: str) -> dict[object, Row]:
        """By key, the rows of a table that is not the ledger's: the copy's where it is newer, or the only one."""
        rows = {row[0]: row[:-1] for row in self.rows.get(table, Rows()).good}
        for key, number, row in self.jobs.of(table):
            if row is not None and (number > self.job_number or key not in rows):
                rows[key] = row
            elif row is None and number > self.job_number:
                rows.pop(key, None)
        return rows


# --- examining


def examine(path: Path, is_start: bool = False) -> Findings:
    """Read the store and compare everything with its checksums. It may be in use. ``ClusterError`` if it is not there,
    is locked, or is of a newer version. ``is_start``: an agent waits for it."""
    if not path.is_file():
        raise ClusterError(f"{path}: there is no store")
    # the copies before the store, which may be committed to meanwhile
    found = Findings(copy=copy_of(path).read() or Copy(), jobs=JobCopy(path).read())
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)) as connection:
            connection.text_factory = text_of
            connection.execute("BEGIN")
            _examine(path, connection, found, is_start and path.stat().st_size > FULLY_CHECKED)
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite's words may quote what is damaged
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        if code & 0xFF in _NOT_DAMAGE and code != sqlite3.SQLITE_IOERR_SHORT_READ:
            raise ClusterError(f"{path}: cannot open the store: {error}") from None
        found.lines.append(f"it cannot be read: {error}")
    if found.copy.damaged:
        found.lines.append(f"{found.copy.damaged} lines of {path.name}-copy are damaged")
    if found.jobs.damaged:
        found.lines.append(f"{found.jobs.damaged} lines of {path.name}-jobs or -ended are damaged or missing")
    return found


def _examine(path: Path, connection: sqlite3.Connection, found: Findings, is_large: bool) -> None:
    version, schema = _version(connection), _schema(connection)
    known = _version_with(schema)
    found.version = known or (version if isinstance(version, int) else len(MIGRATIONS))
    if known is None:
        _examine_other(path, connection, found)
        return
    if version != found.version:
        found.lines.append(f"its version is damaged: {str(version)[:20]}")
    for table in LEDGER if is_large else ("",):
        _examine_structure(connection, found, f"('{table}')" if table else "")
    for table in LEDGER if is_large else filter({row[1] for row in schema}.__contains__, TABLES):
        found.rows[table] = rows = read_rows(connection, table)
        found.lines += rows.named(table)
    _examine_ledger(connection, found)
    if is_large:
        found.rows["job"] = Rows()
    else:
        _examine_jobs(connection, found)


def _examine_other(path: Path, connection: sqlite3.Connection, found: Findings) -> None:
    """A store of another version, if it is one."""
    if found.version > len(MIGRATIONS):
        Database(path).close()  # says that it is newer
    if not 0 < found.version < CHECKED_SINCE:
        raise sqlite3.DatabaseError("its tables are not those of a store")
    _examine_structure(connection, found, "")


def _examine_jobs(connection: sqlite3.Connection, found: Findings) -> None:
    """What is missing of jobs, what was set aside before, and the number of the last job."""
    rows = found.rows["job"]
    if not rows.torn:
        known = {row[0] for row in (*rows.good, *(row for row, _ in rows.bad))}
        missing = [key for key, number, _ in found.jobs.of("job") if number <= found.job_number and key not in known]
        found.lines += [f"job {key}: its record is missing" for key in sorted(missing)]
    with contextlib.suppress(sqlite3.Error, UnicodeDecodeError):
        found.asides = connection.execute("SELECT unix_s, of_table, why, record FROM set_aside").fetchall()
    if any(why == LOST_JOBS for _, _, why, _ in found.asides):
        found.lines.append(LOST_JOBS)
    numbers = [number for (number,) in connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'job'")]
    if all(isinstance(number, int) for number in numbers):
        found.sequence = max(numbers, default=0)
    else:
        found.lines.append("the number of the last job is damaged")


def _examine_structure(connection: sqlite3.Connection, found: Findings, of: str) -> None:
    try:
        lines = [str(line) for (line,) in connection.execute(f"PRAGMA integrity_check{of}")]
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        lines = [str(error)]
    if lines != ["ok"]:
        found.lines += [f"SQLite: {' '.join(line.split())[:200]}" for line in lines]


def _examine_ledger(connection: sqlite3.Connection, found: Findings) -> None:
    """What must be there, and is not."""
    if not found.rows["owner"].good and not found.rows["owner"].bad:
        found.lines.append("the epoch is missing")
    if found.copy.budget and not found.rows["budget"].good and not found.rows["budget"].bad:
        found.lines.append("the budget is missing")
    members = {row[0]: row[1] for row in found.rows["member"].good}
    bad = {row[0] for row, _ in found.rows["member"].bad}
    places = {*found.copy.members, *range(max([*members, -1]) + 1), *range(len(_stored_counts(found)))}
    for place in sorted(places - members.keys() - bad):
        name = found.copy.members[place][0] if place in found.copy.members else f"at place {place}"
        found.lines.append(f"node {name}: its record is missing")
    numbers: list[Row] = []
    with contextlib.suppress(sqlite3.Error, UnicodeDecodeError):  # not known: as if all had been lost
        numbers = connection.execute("SELECT number FROM last_commit").fetchall()
    if len(numbers) == 1 and isinstance(numbers[0][0], int):
        found.commit = numbers[0][0]
    if found.commit < found.copy.commit:
        found.has_lost_commits = True
        found.lines.append(
            f"{found.copy.commit - found.commit} commits are missing: its log is damaged, or it is an older copy"
        )
    found.job_number = connection.execute("PRAGMA user_version").fetchone()[0]
    if found.job_number < found.jobs.number:
        found.has_lost_commits = True
        found.lines.append(f"{found.jobs.number - found.job_number} changes of jobs are missing")


def _stored_counts(found: Findings) -> dict[int, int]:
    """By place, what the blocks that are right say."""
    blocks = [(row[0], msgspec.json.decode(row[1], type=list[int])) for row in found.rows["count"].good]
    return {block * BLOCK + n: mw for block, stored in blocks for n, mw in enumerate(stored)}


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
    _finish(path)
    if path.is_file() and path.stat().st_size:
        found = examine(path, is_start=True)
        if 0 < found.version < CHECKED_SINCE:
            Database(path).close()  # from now on its records have checksums, and what cannot be is found
            found = examine(path, is_start=True)
    elif _has_copy(path):
        found = _all_lost(path)
    else:
        return Database(path)
    lines = found.lines
    if found.is_damaged:
        is_partial = path.is_file() and path.stat().st_size > FULLY_CHECKED
        lines = mend(path, examine(path) if is_partial else found)
    for line in lines:
        say(f"ALARM: {path}: {line}")
    if found.jobs.damaged:
        JobCopy(path).forget()
    return Database(path)


def repair(path: Path, gives_up_jobs: bool = False) -> list[str]:
    """Mend the store while no agent uses it; returns what was found and done. ``gives_up_jobs``: all jobs are lost, and
    new ones may be submitted."""
    _finish(path)
    if path.is_file() and path.stat().st_size:
        found = examine(path)
        if 0 < found.version < CHECKED_SINCE and not found.lines:
            return []
    elif _has_copy(path):
        found = _all_lost(path)
    else:
        raise ClusterError(f"{path}: there is no store")
    done = mend(path, found) if found.is_damaged or found.copy.damaged else []
    if found.jobs.damaged:
        JobCopy(path).forget()
    if gives_up_jobs:
        with _alone(path), contextlib.closing(Database(path)) as database, database.writing() as connection:
            connection.execute("DELETE FROM set_aside WHERE why = ?", (LOST_JOBS,))
        done.append("the jobs before are given up: jobs are accepted again")
    return done


def backup(path: Path, target: Path) -> Findings:
    """Copy the store, which may be in use, to ``target``; returns what is wrong with the copy."""
    if not path.is_file():
        raise ClusterError(f"{path}: there is no store")
    if target.exists():
        raise WrongUseError(f"{target}: exists already; a backup replaces nothing")
    part = target.with_name(f"{target.name}.new")
    try:
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
        aside = _keep(path)
        if "job" not in found.rows and aside:
            found = _with_a_new_first_page(aside, found)
        if not found.rows and not found.copy.members and not found.copy.epoch and not found.jobs.is_there:
            raise ClusterError(
                f"{path}: {found.lines[0]}; nothing in it can be read, and it has no copy: put back a backup, or move"
                " it away for a new store, in which only nodes of the list of keys count"
            )
        lines = [*found.lines, *_build(path, found)]
        _finish(path)
    return [*lines, f"mended; the damaged one is {aside}" if aside else "made again from its copy"]


def _has_copy(path: Path) -> bool:
    return copy_of(path).read() is not None or JobCopy(path).read().is_there


def _all_lost(path: Path) -> Findings:
    lines = ["the store is missing, but its copy is there"]
    found = Findings(copy=copy_of(path).read() or Copy(), jobs=JobCopy(path).read(), lines=lines)
    if path.exists():
        found.lines = ["the store is empty"]
    else:
        found.rows["job"] = Rows()  # somebody has removed it
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
        for suffix in ("", "-wal", "-copy"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy2(f"{path}{suffix}", f"{aside}{suffix}")
    except OSError as error:
        raise ClusterError(f"{aside}: cannot keep the damaged store: {error.strerror}") from None
    return aside


def _with_a_new_first_page(aside: Path, found: Findings) -> Findings:
    """The first page says where the tables are; if that is lost, the copy knows it. Only reading works that way."""
    if not found.copy.schema:
        return found
    scratch = aside.with_name(f"{aside.name}-first-page")
    read = aside.with_name(f"{aside.name}-read")
    scripts = {(kind, name): sql for kind, name, _, sql in _schema_of(len(MIGRATIONS))}
    try:
        with contextlib.closing(sqlite3.connect(scratch, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE t (a)")
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute("DELETE FROM sqlite_master")
            rows = [(*one, scripts.get((one[0], one[1]))) for one in found.copy.schema]
            connection.executemany(
                "INSERT INTO sqlite_master (type, name, tbl_name, rootpage, sql) VALUES (?, ?, ?, ?, ?)", rows
            )
        first = bytearray(scratch.read_bytes()[:4096])
        first[24:28], first[92:96] = b"\0\0\0\1", b"\0\0\0\2"  # the number of pages in it is not valid
        shutil.copy2(aside, read)
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(f"{aside}-wal", f"{read}-wal")
        with open(read, "r+b") as file:
            file.write(first)
        again = examine(read)
        again.copy, again.jobs = found.copy, found.jobs
        again.lines = found.lines + [one for one in again.lines if not one.startswith("SQLite:")]
        again.job_number = again.jobs.number  # it stood on that page; what can be read is not older
        again.has_lost_commits = again.commit < again.copy.commit
        return again
    except (sqlite3.Error, UnicodeDecodeError, OSError, ClusterError):
        return found
    finally:
        for left in (scratch, read):
            _unlink(left)


def _build(path: Path, found: Findings) -> list[str]:
    """Build the new store; returns what could not be kept as it was."""
    part = path.with_name(f"{path.name}-building")
    _unlink(part)
    members, lines = _members(found)
    with contextlib.closing(Database(part)) as database:
        with database.writing() as connection:
            for table in TABLES.keys() - set(LEDGER):
                connection.executemany(_insert(table), list(found.rows_of(table).values()))
            connection.executemany(
                _insert("member"),
                [(place, name, msgspec.json.encode(declared)) for place, (name, declared) in enumerate(members)],
            )
            counts_mw = {} if found.has_lost_commits or "count" not in found.rows else _stored_counts(found)
            for block in range(0, len(members), BLOCK):
                block_mw = [counts_mw.get(place, -1) for place in range(block, min(block + BLOCK, len(members)))]
                connection.execute(_insert("count"), (block // BLOCK, msgspec.json.encode(block_mw)))
            epoch, boot_id = _owner(found)
            connection.execute("DELETE FROM owner")
            connection.execute(_insert("owner"), (1, epoch, boot_id))
            budget, problem = _budget(found)
            lines += problem
            if budget:
                connection.execute(_insert("budget"), budget)
            _set_aside(connection, found)
            commit = max(found.commit, found.copy.commit)
            connection.execute("UPDATE last_commit SET number = ?", (commit,))
            connection.execute(f"PRAGMA user_version = {max(found.job_number, found.jobs.number) + 1}")
            if found.has_lost_jobs:
                lines.append("its jobs are lost: put back a backup, or `clusterctl store repair --give-up-jobs`")
            _number_jobs(connection, found)
        _give_to_owner(part, path)
    with contextlib.closing(Database(part)) as database, database.writing():
        write_copy(database, epoch, members)
    _give_to_owner(copy_of(part).path, path)
    os.replace(copy_of(part).path, copy_of(path).path)
    os.replace(part, path.with_name(f"{path.name}-mended"))
    sync_directory(path.parent)
    return lines


def _members(found: Findings) -> tuple[list[tuple[str, Declaration]], list[str]]:
    """Names and declarations by place, and what is not known of them."""
    rows = found.rows.get("member", Rows())
    known = {row[0]: (row[1], msgspec.json.decode(row[2], type=Declaration)) for row in rows.good}
    for place, member in found.copy.members.items():
        if place not in known or found.has_lost_commits:
            known[place] = member
    counts_mw = _stored_counts(found) if "count" in found.rows else {}
    places = max([*known, *counts_mw, *(row[0] for row, _ in rows.bad if _is_place(row[0])), -1]) + 1
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


def _owner(found: Findings) -> tuple[int, str]:
    rows = found.rows.get("owner", Rows())
    if not rows.good:
        return found.copy.epoch, UNCERTAIN
    _, epoch, boot_id, _ = rows.good[0]
    return (max(epoch, found.copy.epoch), UNCERTAIN) if found.has_lost_commits else (epoch, boot_id)


def _budget(found: Findings) -> tuple[tuple[int, int, bytes] | None, list[str]]:
    rows = found.rows.get("budget", Rows())
    if rows.good and not (found.has_lost_commits and found.copy.budget):
        return rows.good[0][:3], []
    if found.copy.budget:
        budget_mw, steps = found.copy.budget
        return (1, budget_mw, msgspec.json.encode(steps)), []
    return None, ["the budget that was set last is lost: the one of the settings is in force"] if rows.bad else []


def _set_aside(connection: sqlite3.Connection, found: Findings) -> None:
    now_s = time.time()
    copied = {table: {key for key, _, _ in found.jobs.of(table)} for table in COPIED}
    bad = ((table, row, why) for table, rows in found.rows.items() for row, why in rows.bad)
    aside = [(now_s, table, why, row) for table, row, why in bad if row[0] not in copied.get(table, ())]
    kept = [(at_s, table, why, record) for at_s, table, why, record in found.asides if why != LOST_JOBS]
    query = "INSERT INTO set_aside (unix_s, of_table, why, record) VALUES (?, ?, ?, ?)"
    connection.executemany(query, [(*one, msgspec.msgpack.encode(row)) for *one, row in aside])
    with contextlib.suppress(sqlite3.Error):  # of records that were set aside before, those that can be read
        connection.executemany(query, kept)
    if found.has_lost_jobs:
        connection.execute(query, (now_s, "job", LOST_JOBS, b""))


def _number_jobs(connection: sqlite3.Connection, found: Findings) -> None:
    """No number is given twice, since nodes know jobs by it. Where none is known, seconds since 1970 are above all."""
    jobs = found.rows.get("job", Rows())
    numbers = [row[0] for row, _ in jobs.bad if isinstance(row[0], int) and 0 < row[0] < 1 << 48]
    last = max([found.sequence, *numbers, *(row[0] for row in jobs.good), *(key for key, _, _ in found.jobs.of("job"))])
    if found.has_lost_jobs and not last:
        last = int(time.time())
    elif (found.has_lost_commits or jobs.torn) and not found.jobs.is_whole:
        last += SKIPPED
    connection.execute("DELETE FROM sqlite_sequence WHERE name = 'job'")
    connection.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('job', ?)", (last,))


def _insert(table: str) -> str:
    marks = [f"?{n + 1}" for n in range(len(TABLES[table].columns))]
    values = ", ".join([*marks, f"record_checksum('{table}', {', '.join(marks)})"])
    return f"INSERT INTO {table} ({TABLES[table].listed}) VALUES ({values})"


def _finish(path: Path) -> None:
    """Let the new store take the place of the damaged one."""
    mended = path.with_name(f"{path.name}-mended")
    if not mended.exists():
        return
    try:
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
    for suffix in ("", "-wal", "-shm", "-copy"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
