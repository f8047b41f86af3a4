"""Stores of older versions: what they say is in force, whatever ends the program that takes them over, or is damaged.

``stores/0.2.0.tar.gz`` are the files of a cluster agent of nodectl 0.2.0 (commit 439d6a93) that was killed: five nodes,
a budget with a step, six jobs, a drained node and one that is off; all of it is in SQLite's log.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cluster_agent.jobs.job import Job, JobSpec
from cluster_agent.jobs.job_store import JobStore
from cluster_agent.store import database, mending
from cluster_agent.store.database import MIGRATIONS, VERSION_TABLE, Database, migrate
from cluster_agent.store.ledger_store import BudgetStore, SqliteLedgerStore
from cluster_agent.store.mending import examine, open_store
from cluster_agent.store.old_copies import SUFFIXES
from cluster_agent.store.records import checksum, define
from foundation.wire.power_messages import Declaration

KILLED = Path(__file__).parent / "stores" / "0.2.0.tar.gz"
DECLARED = Declaration(500_000, 100_000, 150_000, 450_000, "os", watchdog_ms=8000)


def of_0_2_0(at: Path) -> Path:
    at.mkdir(parents=True, exist_ok=True)
    with tarfile.open(KILLED) as archive:
        archive.extractall(at, filter="data")
    return at / "cluster.db"


def older(path: Path, version: int, *statements: tuple[str, tuple[Any, ...]]) -> None:
    """A store of that version."""
    connection = sqlite3.connect(path, isolation_level=None)
    define(connection)
    connection.execute(VERSION_TABLE)
    connection.execute("BEGIN")
    migrate(connection, 0, version)
    for statement, values in statements:
        connection.execute(statement, values)
    connection.execute("COMMIT")
    connection.close()


def says(path: Path, said: list[str]) -> Any:
    """All that is in force after a start."""
    opened = open_store(path, said.append)
    snapshot = SqliteLedgerStore(opened, "boot-1").take_over()
    jobs = JobStore(opened)
    found = (
        snapshot.names, [one.tdp_mw for one in snapshot.declarations], snapshot.counts_mw.tolist(), snapshot.is_certain,
        BudgetStore(opened).load(), [change.what for change in BudgetStore(opened).changes()],
        [(job.id, job.state) for job in jobs.find()], jobs.drained(), [one.name for one in jobs.switched()],
    )  # fmt: skip
    opened.close()
    return found


TRUTH = (
    ["n0", "n1", "n2", "n3", "n4"], [500_000 + n for n in range(5)], [300_000 + n for n in range(5)], True,
    (1_400_000, [(2e9, 1_200_000)]), ["set 1400 W by hand"],
    [(1, "queued"), (2, "starting"), (3, "running"), (4, "done"), (5, "queued"), (6, "starting")],
    {"n1": "fan"}, ["n2"],
)  # fmt: skip


def test_a_store_of_0_2_0_says_what_it_said_and_has_a_log_instead_of_copies(tmp_path: Path) -> None:
    path, said = of_0_2_0(tmp_path), list[str]()
    assert says(path, said) == TRUTH
    assert said == [] and examine(path).lines == []
    assert not any(Path(f"{path}{suffix}").exists() for suffix in SUFFIXES)
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    assert says(path, said) == TRUTH, "from its log alone"


@pytest.mark.parametrize("gone", ["", "-wal", "-copy", "-jobs", "-ended"])
def test_of_a_store_of_0_2_0_that_lacks_a_file_the_copies_are_used_once_more(gone: str, tmp_path: Path) -> None:
    path, said = of_0_2_0(tmp_path), list[str]()
    for suffix in (gone, "-wal") if gone == "" else (gone,):
        Path(f"{path}{suffix}").unlink()
    found = says(path, said)
    assert found[6:] == TRUTH[6:] and (found[0], found[4]) == (TRUTH[0], TRUTH[4])
    if gone in ("", "-wal"):
        assert found[2] == [] or found[2] == [-1] * 5, "they count their TDP"
        assert said
    else:
        assert (found, said) == (TRUTH, [])


def test_whatever_ends_the_first_start_on_a_store_of_0_2_0_the_next_one_finds_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_ended = 0

    def ended(*_: object) -> None:
        raise KeyboardInterrupt

    def after(function: Callable[..., Any]) -> Callable[..., Any]:
        def then_ended(*given: Any, **named: Any) -> Any:
            function(*given, **named)
            raise KeyboardInterrupt

        return then_ended

    for n, name in enumerate(("CommitLog.write", "migrate", "Database._join", "remove_old_copies")):
        for is_after in (False, True):
            path = of_0_2_0(tmp_path / f"{n}{is_after}")
            module = "mending" if name.startswith("remove") else "database"
            target = f"cluster_agent.store.{module}.{name}"
            with monkeypatch.context() as patched:
                original: Any = {"database": database, "mending": mending}[module]
                for part in name.split("."):
                    original = getattr(original, part)
                patched.setattr(target, after(original) if is_after else ended)
                with pytest.raises(KeyboardInterrupt):
                    says(path, [])
                n_ended += 1
            said: list[str] = []
            assert says(path, said) == TRUTH
            assert said == [], "nothing is lost or damaged"
    assert n_ended == 8


def test_an_older_program_refuses_the_store_and_leaves_it_as_it_is(tmp_path: Path) -> None:
    """By the version, and because it finds no version of its own with these tables."""
    path = of_0_2_0(tmp_path)
    says(path, [])
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT version FROM schema_version").fetchall() == [(len(MIGRATIONS),)]
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    connection.close()
    assert "last_commit" not in tables and "applied" in tables


def test_a_refused_budget_of_0_2_0_which_only_the_copy_has_is_not_in_force(tmp_path: Path) -> None:
    path, said = of_0_2_0(tmp_path), list[str]()
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM budget")
    connection.execute("DELETE FROM change")
    connection.commit()
    connection.close()
    assert says(path, said)[4:6] == (None, []) and said == []


def test_a_store_from_before_counts_were_stored_in_blocks_keeps_them(tmp_path: Path) -> None:
    declared = msgspec.json.encode(DECLARED)
    rows = [("INSERT INTO node VALUES (?, ?, ?, ?)", (f"n{n}", 1000 + n, declared, n != 7)) for n in range(600)]
    older(tmp_path / "a.db", 2, *rows)
    found = SqliteLedgerStore(Database(tmp_path / "a.db"), "boot-1").take_over()
    assert found.names == [f"n{n}" for n in range(600)]
    assert found.counts_mw.tolist() == [1000 + n if n != 7 else -1 for n in range(600)]


def test_a_store_of_the_version_before_checksums_opens_and_gets_them(tmp_path: Path) -> None:
    path, said = tmp_path / "a.db", list[str]()
    spec, jobs = JobSpec(["a"], 1, "/"), []
    for number in (1, 2):
        job = Job(id=number, uid=1000, user="u", spec=spec, submitted_s=0.0, ended_s=3.0, state="done")
        body = msgspec.json.encode(job)[: 50 if number == 2 else None]
        jobs.append(("INSERT INTO job (uid, state, ended_s, body) VALUES (1000, 'done', 3, ?)", (body,)))
    older(
        path, 4, ("UPDATE owner SET epoch = 7, boot_id = 'boot-1'", ()),
        ("INSERT INTO member VALUES (0, 'a', ?)", (msgspec.json.encode(DECLARED),)),
        ("INSERT INTO count VALUES (0, ?)", (b"[123000]",)), ("INSERT INTO budget VALUES (1, 5000, ?)", (b"[]",)),
        ("INSERT INTO change (unix_s, who, what) VALUES (1, 'alice', 'set 5 W')", ()), *jobs,
    )  # fmt: skip
    opened = open_store(path, said.append)
    assert said[0].startswith(f"ALARM: {path}: job 2: it cannot be: "), "what was damaged before"
    snapshot = SqliteLedgerStore(opened, "boot-1").take_over()
    assert (snapshot.epoch, snapshot.names, snapshot.counts_mw.tolist()) == (8, ["a"], [123000])
    assert snapshot.is_certain
    assert [job.id for job in JobStore(opened).find()] == [1]
    assert BudgetStore(opened).load() == (5000, [])
    opened.close()
    assert examine(path).lines == []


@pytest.mark.parametrize("version", [5, 6])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_store_of_a_version_without_a_log_is_not_taken_for_a_damaged_one(
    is_damaged: bool, version: int, tmp_path: Path
) -> None:
    path, said = tmp_path / "a.db", list[str]()
    rows: list[tuple[Any, ...]] = [
        ("member", 0, "a", msgspec.json.encode(DECLARED)), ("count", 0, b"[123000]"), ("budget", 1, 5000, b"[]"),
        ("change", 1, 5.0, "root", "set 5 W"),
    ]  # fmt: skip
    statements = [
        (f"INSERT INTO {table} VALUES ({', '.join('?' * (len(row) + 1))})", (*row, checksum(table, *row)))
        for table, *row in rows
    ]
    wrong = [("UPDATE change SET who = 'mallory'", ())] if is_damaged else []
    older(path, version, ("UPDATE owner SET epoch = 1, boot_id = 'boot-1',"
                          " checksum = record_checksum('owner', 1, 1, 'boot-1')", ()), *statements, *wrong)  # fmt: skip
    lines = ["change of the budget 1: its checksum is wrong"] if is_damaged else []
    assert examine(path).lines == lines
    found = says(path, said)
    mended = [f"mended; the damaged one is {path}.damaged-1"] if is_damaged else []
    assert said == [f"ALARM: {path}: {line}" for line in [*lines, *mended]]
    assert (found[0], found[2], found[3], found[4]) == (["a"], [123000], True, (5000, []))
    assert examine(path).lines == []


def test_the_copies_of_a_store_of_0_2_0_can_be_anything(tmp_path: Path) -> None:
    """One process for all: it must end by itself, whatever they are."""
    path = of_0_2_0(tmp_path)
    for n, suffix in enumerate(SUFFIXES):
        Path(f"{path}{suffix}").write_bytes([b"\xff\x00" * 40, b"00000000 [1]\n" * 3, b""][n])
    done = subprocess.run(
        [sys.executable, "-c", "import sys, pathlib; from cluster_agent.store.mending import open_store;"
         " open_store(pathlib.Path(sys.argv[1]), print).close()", str(path)],
        capture_output=True, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
