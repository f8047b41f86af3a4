"""Stores of older versions: what SQLite says there is in force, whatever ends the program that takes them over.

``stores/0.2.0.tar.gz`` are the files of a cluster agent of nodectl 0.2.0 (commit 439d6a93) that was killed: five nodes,
a budget with a step, six jobs, a drained node and one that is off; all of it is in SQLite's log.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster_agent.errors import ClusterError
from cluster_agent.store.commit_log import CommitLog
from cluster_agent.store.database import VERSION, Database
from cluster_agent.store.job_store import JobStore
from cluster_agent.store.ledger_store import BudgetStore, SqliteLedgerStore
from cluster_agent.store.mending import OLD_COPIES, examine, open_store

KILLED = Path(__file__).parent / "stores" / "0.2.0.tar.gz"


def of_0_2_0(at: Path) -> Path:
    at.mkdir(parents=True, exist_ok=True)
    with tarfile.open(KILLED) as archive:
        archive.extractall(at, filter="data")
    return at / "cluster.db"


def changed(path: Path, *statements: str) -> None:
    """By hand."""
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
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
    assert not any(Path(f"{path}{suffix}").exists() for suffix in OLD_COPIES)
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    assert says(path, said) == TRUTH, "from its log alone"


@pytest.mark.parametrize("gone", OLD_COPIES)
def test_a_store_of_0_2_0_needs_no_copy(gone: str, tmp_path: Path) -> None:
    path, said = of_0_2_0(tmp_path), list[str]()
    Path(f"{path}{gone}").unlink()
    assert (says(path, said), said) == (TRUTH, [])


def test_a_store_of_0_2_0_that_lacks_commits_believes_no_count(tmp_path: Path) -> None:
    path, said = of_0_2_0(tmp_path), list[str]()
    Path(f"{path}-wal").unlink()  # it had all tables, so that the database is an older, or no, store
    changed(path, "CREATE TABLE any (a)")
    with pytest.raises(ClusterError, match="nothing in it can be read"):
        says(path, said)
    path = of_0_2_0(tmp_path / "with tables")
    changed(path, "UPDATE last_commit SET number = number - 1")
    found = says(path, said)
    assert (found[0], found[2], found[3]) == (TRUTH[0], [-1] * 5, False), "they count their TDP"
    assert "1 commits are missing: it is an older copy, or damaged" in said[0]
    assert Path(f"{path}.damaged-1-jobs").exists(), "for 0.2.0"


def test_where_only_the_copies_of_0_2_0_are_left_nothing_is_begun(tmp_path: Path) -> None:
    path = of_0_2_0(tmp_path)
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    with pytest.raises(ClusterError, match=r"the store is missing; nothing in it can be read.*put back a backup"):
        says(path, [])
    assert Path(f"{path}-jobs").exists()


def test_whatever_ends_the_first_start_on_a_store_of_0_2_0_the_next_one_finds_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def after(function: Callable[..., Any]) -> Callable[..., Any]:
        def then_ended(*given: Any, **named: Any) -> Any:
            function(*given, **named)
            raise KeyboardInterrupt

        return then_ended

    owners: tuple[tuple[Any, str], ...] = (
        (CommitLog, "write"), (os, "truncate"), (Database, "_take_state"), (Path, "unlink"),
    )  # fmt: skip
    for owner, name in owners:
        for is_after in (False, True):
            path = of_0_2_0(tmp_path / f"{name}{is_after}")
            with monkeypatch.context() as patched:
                patched.setattr(owner, name, after(getattr(owner, name)) if is_after else ended)
                with pytest.raises(KeyboardInterrupt):
                    says(path, [])
            said: list[str] = []
            assert says(path, said) == TRUTH
            assert [line for line in said if "ALARM" in line] == [], "nothing is lost or damaged"


def test_an_older_program_refuses_the_store_and_leaves_it_as_it_is(tmp_path: Path) -> None:
    """By the version, and because it finds no version of its own with these tables."""
    path = of_0_2_0(tmp_path)
    says(path, [])
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT version FROM schema_version").fetchall() == [(VERSION,)]
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    connection.close()
    assert "last_commit" not in tables and "applied" in tables


def test_a_refused_budget_of_0_2_0_which_only_the_copy_has_is_not_in_force(tmp_path: Path) -> None:
    path, said = of_0_2_0(tmp_path), list[str]()
    changed(path, "DELETE FROM budget", "DELETE FROM change")
    assert says(path, said)[4:6] == (None, []) and said == []


def test_a_store_from_before_its_records_had_checksums_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    changed(tmp_path / "a.db", "CREATE TABLE schema_version (version)", "INSERT INTO schema_version VALUES (4)")
    before = (tmp_path / "a.db").read_bytes()
    with pytest.raises(ClusterError, match=r"a store of version 4: start clusterctl 0\.2\.0 on it once"):
        says(tmp_path / "a.db", [])
    assert (tmp_path / "a.db").read_bytes() == before


@pytest.mark.parametrize("version", [5, 6])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_store_of_a_version_without_a_log_is_not_taken_for_a_damaged_one(
    is_damaged: bool, version: int, tmp_path: Path
) -> None:
    path, said = of_0_2_0(tmp_path), list[str]()
    if version == 5:
        changed(path, "DROP TABLE stored_joules", "UPDATE schema_version SET version = 5")
    if is_damaged:
        changed(path, "UPDATE change SET who = 'mallory'")
    lines = ["change of the budget 1: its checksum is wrong"] if is_damaged else []
    assert examine(path).lines == lines
    found = says(path, said)
    mended = [f"mended; the damaged one is {path}.damaged-1"] if is_damaged else []
    assert said == [f"ALARM: {path}: {line}" for line in [*lines, *mended]]
    assert found == (*TRUTH[:5], [] if is_damaged else TRUTH[5], *TRUTH[6:])
    assert examine(path).lines == []


def test_the_copies_of_a_store_of_0_2_0_can_be_anything(tmp_path: Path) -> None:
    """One process for all: it must end by itself, whatever they are."""
    path = of_0_2_0(tmp_path)
    for n, suffix in enumerate(OLD_COPIES):
        Path(f"{path}{suffix}").write_bytes([b"\xff\x00" * 40, b"00000000 [1]\n" * 3, b""][n])
    done = subprocess.run(
        [sys.executable, "-c", "import sys, pathlib; from cluster_agent.store.mending import open_store;"
         " open_store(pathlib.Path(sys.argv[1]), print).close()", str(path)],
        capture_output=True, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
