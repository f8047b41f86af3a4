"""A damaged store: whatever is flipped, torn or cut, the agent starts, and no count is lower than it was."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from cluster_agent.budget.accounts import NONE
from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.kept_counts import Change
from cluster_agent.budget.ledger import Ledger, Terms
from cluster_agent.cli import main
from cluster_agent.errors import ClusterError
from cluster_agent.jobs.job import Job, JobSpec
from cluster_agent.store import commit_log
from cluster_agent.store.database import Database
from cluster_agent.store.job_store import JobStore
from cluster_agent.store.ledger_store import BLOCK, BudgetStore, SqliteLedgerStore
from cluster_agent.store.mending import MOST_KEPT, backup, examine, mend, open_store, repair
from cluster_agent.store.records import LOST_JOBS, checksum
from foundation.wire.power_messages import Declaration
from tests.waiting import PATIENCE_S

NODES, JOBS, ALIVE = BLOCK + 44, 24, 16
NAMES = [f"n{n:03}" for n in range(NODES)]
BUDGET_MW = 60_000_000
FILES = ("", "-wal", "-log", "-past")
PAGE = 4096


def declared(n: int) -> Declaration:
    return Declaration(500_000 + n, 100_000, 150_000, 450_000, "os", watchdog_ms=8000)


def filled(path: Path, is_logged: bool) -> dict[str, bytes]:
    """The files of a store as of a killed agent, with the last commits in its log or all of them."""
    database = Database(path)
    store, rng = SqliteLedgerStore(database, "boot-1"), random.Random(1)
    epoch = store.take_over().epoch
    counts_mw = np.array([rng.randint(100_000, 400_000) for _ in NAMES])
    store.commit(epoch, {n: (name, declared(n)) for n, name in enumerate(NAMES)}, np.arange(NODES), counts_mw)
    jobs = JobStore(database)
    jobs.own(epoch)
    for n in range(JOBS):
        spec = JobSpec(["run", "x" * rng.randint(1, 1500)], 100, "/w")
        jobs.add(job := Job(id=0, uid=1000, user="u", spec=spec, submitted_s=1.0 * n))
        job.state, job.ended_s = ("done", 50.0 + n) if n % 3 == 0 else ("queued", None)
        jobs.save(job)
    jobs.drain("n003", "why", 0)
    BudgetStore(database).change(Change(5.0, "root", "set 60000 W"), BUDGET_MW, [(1e9, 50_000_000)])
    database.rows("CREATE TABLE gone (a)")  # leaves free pages
    for _ in range(6):
        database.rows("INSERT INTO gone VALUES (?)", ("y" * 3000,))
    database.rows("DROP TABLE gone")
    if not is_logged:
        database.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    counts_mw[[5, NODES - 1]] += 7  # a last commit, which is in the log only
    store.commit(epoch, {}, np.array([5, NODES - 1]), counts_mw)
    files = {suffix: Path(f"{path}{suffix}").read_bytes() for suffix in FILES}
    database.close()
    return files


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    """Little is reserved, since the files are copied hundreds of times."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(commit_log, "CHUNK", 16_384)
        yield


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory, if possible: hundreds of stores are synced."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as at:
        yield Path(at)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, dict[str, bytes]]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(commit_log, "LONG", 30_000)  # it is written again once
        return {is_logged: filled(tmp_path_factory.mktemp("filled") / "a.db", is_logged) for is_logged in (False, True)}


def with_a_damaged_log(files: dict[str, bytes]) -> dict[str, bytes]:
    """One bit in the line of a node."""
    raw = bytearray(files["-log"])
    raw[raw.index(b'"n004"') + 2] ^= 4
    return files | {"-log": bytes(raw)}


def put(at: Path, files: dict[str, bytes]) -> Path:
    at.mkdir(exist_ok=True)
    for suffix, data in files.items():
        (at / f"a.db{suffix}").write_bytes(data)
    return at / "a.db"


def counts(path: Path, say: Callable[[str], None], may_lose_budget: bool = False) -> tuple[dict[str, int], int]:
    """What each node counts at a start of the agent on this store, and how many jobs it finds."""
    database = open_store(path, say)
    try:
        ledger = Ledger(SqliteLedgerStore(database, "boot-1"), Terms(), BudgetLine(10**9), 0.0)
        stored = BudgetStore(database).load()
        assert (stored is None and may_lose_budget) or stored == (BUDGET_MW, [(1e9, 50_000_000)]), (
            "no damage sets another"
        )
        try:
            alive = len(JobStore(database).alive())
        except ClusterError as error:
            assert LOST_JOBS in str(error)
            alive = -1
        return dict(zip(ledger.accounts, ledger.accounts.count_mw.tolist(), strict=True)), alive
    finally:
        database.close()


@pytest.fixture(scope="module")
def true_mw(stores: dict[bool, dict[str, bytes]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    said: list[str] = []
    found, alive = counts(put(tmp_path_factory.mktemp("true"), stores[True]), said.append)
    assert (said, alive, len(found)) == ([], ALIVE, NODES)
    return found


def bit(rng: random.Random, raw: bytearray, at: int) -> None:
    raw[at] ^= 1 << rng.randrange(8)


def byte(rng: random.Random, raw: bytearray, at: int) -> None:
    raw[at] ^= rng.randrange(1, 256)


def page(rng: random.Random, raw: bytearray, at: int) -> None:
    raw[at // PAGE * PAGE : at // PAGE * PAGE + PAGE] = rng.randbytes(PAGE)


def end(rng: random.Random, raw: bytearray, at: int) -> None:
    del raw[at:]


def header(rng: random.Random, raw: bytearray, at: int) -> None:
    """Of the first page: of the file, and of its table of tables; of a log: of itself, and of its first frame."""
    bit(rng, raw, at % 400)


@pytest.mark.parametrize("damage", [bit, byte, page, end, header])
@pytest.mark.parametrize("suffix", ["", "-wal", "-log"])
def test_whichever_one_file_is_damaged_nothing_is_lost(
    damage: Callable[[random.Random, bytearray, int], None],
    suffix: str,
    stores: dict[bool, dict[str, bytes]],
    true_mw: dict[str, int],
    tmp_path: Path,
) -> None:
    rng = random.Random(f"{damage.__name__}{suffix}")
    n_said = 0
    for n in range(16):
        files = dict(stores[suffix == "-wal"])
        raw = bytearray(files[suffix].rstrip(b"\0") if suffix == "-log" else files[suffix])
        damage(rng, raw, at := rng.randrange(len(raw)))
        files[suffix] = bytes(raw) + bytes(9 if suffix == "-log" and damage is not end else 0)
        path, said = put(tmp_path / str(n), files), list[str]()
        assert counts(path, said.append) == (true_mw, ALIVE), (at, said)
        behind = f"{path}: is made again from its log, up to commit "  # a cut write-ahead log is as after a crash
        assert all(line.startswith((f"ALARM: {path}", behind)) and line.isprintable() for line in said), said
        n_said += bool(said)
        assert examine(path).lines == [], "what was damaged is in order"
        shutil.rmtree(tmp_path / str(n))
    assert n_said >= 3 or suffix == "-wal", "what is missing at its end is no damage, and is in the log"


@pytest.mark.parametrize("damage", [bit, byte, page, end, header])
def test_where_log_and_database_are_damaged_no_count_is_lower_and_what_is_lost_is_said(
    damage: Callable[[random.Random, bytearray, int], None],
    stores: dict[bool, dict[str, bytes]],
    true_mw: dict[str, int],
    tmp_path: Path,
) -> None:
    """Not where both have lost their last commits and nothing else: nobody can find that out."""
    rng = random.Random(damage.__name__)
    n_mended = 0
    for n in range(16):
        files = dict(stores[n % 2 == 0])
        for suffix in ("-wal" if n % 4 == 0 and damage is not end else "", "-log"):
            raw = bytearray(files[suffix].rstrip(b"\0") if suffix == "-log" else files[suffix])
            last = raw.rindex(b"\n", 0, -1) if suffix == "-log" and n % 4 == 0 and damage is not end else len(raw)
            damage(rng, raw, rng.randrange(last))
            files[suffix] = bytes(raw) + bytes(9 if suffix == "-log" and damage is not end else 0)
        path, said = put(tmp_path / str(n), files), list[str]()
        found_mw, alive = counts(path, said.append, may_lose_budget=True)
        is_short = sum(found_mw.values()) < sum(true_mw.values())
        assert not is_short or any(" damaged" in line for line in said), said
        assert [name for name in found_mw.keys() & true_mw.keys() if found_mw[name] < true_mw[name]] == [], said
        n_mended += any("mended" in line for line in said)
        if not any("jobs are lost" in line or line.endswith(LOST_JOBS) for line in said):
            assert alive >= 0
        assert examine(path).lines in ([], [LOST_JOBS]), "what was mended is in order"
        shutil.rmtree(tmp_path / str(n))
    assert n_mended >= 2


def changed(path: Path, statement: str, *values: object) -> None:
    """By hand, behind the back of the checksums."""
    database = Database(path)
    database.rows(statement, values)
    database.close()


def test_one_bit_in_a_count_and_one_in_the_log_make_the_nodes_of_its_block_count_their_tdp(
    stores: dict[bool, dict[str, bytes]], true_mw: dict[str, int], tmp_path: Path
) -> None:
    path, said = put(tmp_path, stores[False]), list[str]()
    (block,) = Database(path).rows("SELECT counts_mw FROM count WHERE block = 1")[0]
    changed(path, "UPDATE count SET counts_mw = ? WHERE block = 1", b"[1" + block[2:])
    put(tmp_path, {"-log": with_a_damaged_log(stores[False])["-log"]})
    found_mw, alive = counts(path, said.append)
    assert said == [
        f"ALARM: {path}: block of counts 1: its checksum is wrong",
        f"ALARM: {path}: a.db-log: 1 lines are damaged or missing",
        f"ALARM: {path}: mended; the damaged one is {path}.damaged-1",
    ]
    assert alive == ALIVE
    for n, name in enumerate(NAMES):
        assert found_mw[name] == (true_mw[name] if n < BLOCK else 500_000 + n)


def test_a_node_whose_name_is_damaged_is_known_from_the_log_and_without_it_counts_under_another(
    stores: dict[bool, dict[str, bytes]], true_mw: dict[str, int], tmp_path: Path
) -> None:
    for n, files in enumerate((stores[False], stores[False] | {"-log": stores[False]["-log"][3:300]})):
        path, said = put(tmp_path / str(n), stores[False]), list[str]()
        changed(path, "UPDATE member SET name = 'n9' WHERE place = 7")
        put(tmp_path / str(n), {"-log": files["-log"]})
        found_mw, _ = counts(path, said.append)
        assert sum(found_mw.values()) >= sum(true_mw.values())
        assert ("n007" in found_mw, "lost-7" in found_mw) == ((True, False), (False, True))[n]
        assert found_mw["n007" if n == 0 else "lost-7"] == true_mw["n007"]
        assert any("`clusterctl nodes forget lost-7 --is-off`" in line for line in said) == (n == 1)


@pytest.mark.parametrize("has_log", [True, False])
def test_an_older_copy_of_the_store_gets_from_the_log_what_came_later(
    has_log: bool, stores: dict[bool, dict[str, bytes]], true_mw: dict[str, int], tmp_path: Path
) -> None:
    path, said = put(tmp_path, stores[False] if has_log else with_a_damaged_log(stores[False])), list[str]()
    Path(f"{path}-wal").write_bytes(b"")
    found_mw, alive = counts(path, said.append)
    assert alive == ALIVE
    if has_log:
        assert (found_mw, said) == (true_mw, [])
    else:
        assert "commits are missing" in said[0]
        assert found_mw == {name: 500_000 + n for n, name in enumerate(NAMES)}, "each its TDP"


@pytest.mark.parametrize("is_there", [True, False])
def test_a_store_that_is_empty_or_gone_is_made_again_from_its_log(
    is_there: bool, stores: dict[bool, dict[str, bytes]], true_mw: dict[str, int], tmp_path: Path
) -> None:
    for n, files in enumerate((stores[False], with_a_damaged_log(stores[False]))):
        path, said = put(tmp_path / str(n), files | {"": b"", "-wal": b""}), list[str]()
        Path(f"{path}-wal").unlink()
        if not is_there:
            path.unlink()
        found_mw, alive = counts(path, said.append)
        if n == 0:
            assert (found_mw, alive) == (true_mw, ALIVE)
            assert said[0].startswith(f"{path}: is made again from its log, up to commit ")
        else:
            assert sum(found_mw.values()) >= sum(500_000 + n for n in range(NODES) if n != 4)
            assert any("mended" in line or "made again" in line for line in said)
            assert alive == (-1 if is_there else ALIVE), "nobody removes a store by flipping bits"
        database = Database(path)
        assert database.rows("SELECT epoch FROM owner") == [(2,)], "the one after that of the log"
        database.close()


def test_where_nothing_can_be_read_and_no_log_is_there_one_line_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(ClusterError, match=r"nothing in it can be read, and it has no log: put back a backup, or move"):
        open_store(path, print)
    assert path.read_bytes() == b"not a database" * 1000


def test_lost_jobs_are_neither_started_nor_ended_until_somebody_gives_them_up(
    stores: dict[bool, dict[str, bytes]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, said = put(tmp_path, {"": b"", "-log": stores[False]["-log"][3:20_000]}), list[str]()
    assert counts(path, said.append, may_lose_budget=True)[1] == -1
    assert main(["store", "check", "--store", str(path)]) == 1
    assert capsys.readouterr().out == f"{path}: {LOST_JOBS}\n"
    assert main(["store", "repair", "--give-up-jobs", "--store", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{path}: the jobs before are given up: jobs are accepted again"
    assert counts(path, said.append, may_lose_budget=True)[1] == 0
    database = Database(path)
    job = Job(id=0, uid=1, user="u", spec=JobSpec(["a"], 1, "/"), submitted_s=0.0)
    JobStore(database).add(job)
    database.close()
    assert job.id > 1_000_000_000, "a node may still know an older job by any smaller number"


def killed_at(n: int, call: Callable[..., object]) -> Callable[..., object]:
    """The call, before or after which at its n/2-th time the agent is killed."""
    calls: list[object] = []

    def killed(*given: object) -> object:
        calls.append(given)
        is_now = len(calls) - 1 == n // 2
        if is_now and n % 2 == 0:
            raise KeyboardInterrupt
        done = call(*given)
        if is_now:
            raise KeyboardInterrupt
        return done

    return killed


@pytest.mark.parametrize("is_log_damaged", [False, True])
def test_an_agent_that_is_killed_while_it_mends_a_store_mends_it_at_its_next_start(
    is_log_damaged: bool,
    stores: dict[bool, dict[str, bytes]],
    true_mw: dict[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At every call that changes a file, before it and after it."""
    n_killed = 0
    files = with_a_damaged_log(stores[True]) if is_log_damaged else stores[True]
    for name in ("replace", "unlink", "truncate", "fdatasync", "posix_fallocate"):
        for n in range(20):
            path, said = put(tmp_path / f"{name}{n}", files), list[str]()
            if not is_log_damaged:
                changed(path, "UPDATE job SET uid = 5 WHERE id = 3")
            with monkeypatch.context() as patched:
                patched.setattr(os, name, killed_at(n, getattr(os, name)))
                try:
                    open_store(path, said.append).close()
                    break  # there are no more calls
                except KeyboardInterrupt:
                    n_killed += 1
            assert counts(path, said.append) == (true_mw, ALIVE)
            assert examine(path).lines == []
    assert n_killed >= (8 if is_log_damaged else 2)


def test_a_store_that_an_agent_uses_is_checked_and_backed_up_and_not_repaired(
    stores: dict[bool, dict[str, bytes]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put(tmp_path, stores[True])
    script = "import sys; from pathlib import Path; from cluster_agent.store.database import Database\n"
    script += "d = Database(Path(sys.argv[1])); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, path], stdin=-1, stdout=-1, cwd=Path(__file__).parents[2]
    ) as one:
        assert one.stdout is not None and one.stdin is not None
        one.stdout.readline()
        assert main(["store", "check", "--store", str(path)]) == 0
        assert capsys.readouterr().out == f"{path}: in order: {NODES} nodes, {JOBS} jobs\n"
        assert main(["store", "backup", str(tmp_path / "kept.db"), "--store", str(path)]) == 0
        assert main(["store", "backup", str(tmp_path / "kept.db"), "--store", str(path)]) == 2
        assert "exists already; a backup replaces nothing" in capsys.readouterr().err
        found = examine(path)
        found.lines.append("anything")
        with pytest.raises(ClusterError, match="a cluster agent uses it: stop that first"):
            mend(path, found)
        one.stdin.close()
    assert (tmp_path / "kept.db").stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.glob("kept.db[-.]*")), "one file"
    database = open_store(tmp_path / "kept.db", print)
    assert SqliteLedgerStore(database, "boot-1").take_over().names == NAMES
    database.close()


def test_of_many_damaged_stores_the_last_ones_are_kept(stores: dict[bool, dict[str, bytes]], tmp_path: Path) -> None:
    path = put(tmp_path, stores[False])
    for n in range(1, MOST_KEPT + 4):
        changed(path, "UPDATE budget SET checksum = 0")  # it comes from the log each time
        assert repair(path)[-1] == f"mended; the damaged one is {path}.damaged-{n}"
    kept = {one.name for one in tmp_path.glob("*.damaged-*") if not one.name.endswith(("-wal", "-log", "-past"))}
    assert kept == {f"a.db.damaged-{n}" for n in range(4, MOST_KEPT + 4)}
    assert len(list(tmp_path.glob("*.damaged-*-log"))) == MOST_KEPT


def test_check_says_each_finding_and_repair_sets_it_aside(
    stores: dict[bool, dict[str, bytes]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put(tmp_path, stores[False])
    at = ["--store", str(path)]
    assert main(["store", "repair", *at]) == 0
    assert capsys.readouterr().out == f"{path}: in order: nothing to repair\n"
    changed(path, "UPDATE job SET body = ? WHERE id = 4", b"{}")
    changed(path, "UPDATE change SET who = 'bob'")
    changed(path, "UPDATE drained_node SET checksum = 'x'")
    lines = [
        f"{path}: {what}: its checksum is wrong" for what in ("change of the budget 1", "job 4", "drained node n003")
    ]
    assert main(["store", "check", *at]) == 1
    assert capsys.readouterr().out.splitlines() == lines
    assert main(["store", "repair", *at]) == 0
    assert capsys.readouterr().out.splitlines() == [*lines, f"{path}: mended; the damaged one is {path}.damaged-1"]
    assert main(["store", "check", *at]) == 0
    assert capsys.readouterr().out == f"{path}: in order: {NODES} nodes, {JOBS} jobs\n"
    assert main(["store", "check", "--store", str(tmp_path / "none")]) == 1
    assert re.search(r"none: there is no store$", capsys.readouterr().err.strip())


@pytest.mark.skipif(os.geteuid() != 0, reason="to be another user needs root")
def test_a_user_may_check_a_store_that_he_may_read_and_is_told_in_a_line_where_he_may_not(
    stores: dict[bool, dict[str, bytes]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:  # tmp_path is closed to other users
        path = put(Path(directory, "site"), stores[False])
        Database(path).close()
        os.chmod(directory, 0o755)

        def check(mode: int) -> tuple[int, str, str]:
            os.chmod(path.parent, mode)
            command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", sys.executable, "-m"]
            asked = [*command, "cluster_agent.cli", "store", "check", "--store", str(path)]
            at = Path(__file__).parents[2]
            done = subprocess.run(asked, cwd=at, capture_output=True, text=True, timeout=PATIENCE_S)
            return done.returncode, done.stdout, done.stderr

        before = {each.name: each.read_bytes() for each in path.parent.iterdir()}
        for each in path.parent.iterdir():
            each.chmod(0o644)
        assert check(0o755) == (0, f"{path}: in order: {NODES} nodes, {JOBS} jobs\n", "")
        refused = check(0o700)
        assert refused == (1, "", f"clusterctl store: {path}: cannot open the store: Permission denied\n")
        assert {each.name: each.read_bytes() for each in path.parent.iterdir()} == before
        put(path.parent, stores[True])  # as a killed agent leaves it
        status, _, why = check(0o755)
        assert status == 1 and why.endswith("may not write next to it can read it only while nobody has it open\n")


def test_counts_of_nodes_are_theirs_where_a_whole_block_before_them_was_never_granted_anything(tmp_path: Path) -> None:
    """Blocks without any granted node are not stored; the ones after them once moved up, to other nodes."""
    database = Database(tmp_path / "a.db")
    store = SqliteLedgerStore(database, "boot-1")
    epoch, nodes = store.take_over().epoch, {n: (f"n{n}", declared(n)) for n in range(2 * BLOCK + 5)}
    counts_mw = np.full(len(nodes), NONE)
    counts_mw[BLOCK + 3] = 123_000
    store.commit(epoch, nodes, np.array([BLOCK + 3]), counts_mw)
    ledger = Ledger(store, Terms(), BudgetLine(10**9), 0.0)
    accounts = ledger.accounts
    assert np.flatnonzero(accounts.is_leased).tolist() == [BLOCK + 3]
    assert accounts.count_mw[[0, 3, BLOCK + 3, 2 * BLOCK + 4]].tolist() == [500_000, 500_003, 123_000, 500_516]
    database.close()


def test_a_page_that_was_never_written_is_found_though_all_its_checksums_are_right(
    stores: dict[bool, dict[str, bytes]], true_mw: dict[str, int], tmp_path: Path
) -> None:
    """As a disk does that loses a write: an older record of a job, and a change that is gone."""
    path, said = put(tmp_path, stores[True]), list[str]()
    database = Database(path)
    (older,) = database.rows("SELECT uid, state, ended_s, body FROM job WHERE id = 2")
    job = Job(id=2, uid=1000, user="u", spec=JobSpec(["run"], 1, "/"), submitted_s=0.0, state="done", ended_s=3.0)
    row = ("done", 3.0, msgspec.json.encode(job))
    database.rows(
        "UPDATE job SET uid = 1000, state = ?, ended_s = ?, body = ?, checksum = ? WHERE id = 2",
        (*row, checksum("job", 2, 1000, *row)),
    )
    database.rows("DELETE FROM drained_node")
    database.close()
    lines = ["job 2: its record differs from the log", "drained node n003: its record is missing"]
    assert sorted(examine(path).lines) == sorted(lines)
    assert counts(path, said.append) == (true_mw, ALIVE)
    assert said[-1].endswith("mended; the damaged one is " + f"{path}.damaged-1")
    database = Database(path)
    assert database.rows("SELECT uid, state, ended_s, body FROM job WHERE id = 2") == [older]
    assert JobStore(database).drained() == {"n003": "why"}
    database.close()


def test_a_record_that_was_dropped_does_not_come_back_where_the_line_that_dropped_it_is_damaged(
    stores: dict[bool, dict[str, bytes]], tmp_path: Path
) -> None:
    path, said = put(tmp_path, stores[True]), list[str]()
    database = open_store(path, said.append)
    jobs = JobStore(database)
    jobs.drain("n777", "fan", 0)
    jobs.resume("n777")
    jobs.drain("n778", "fan", 0)
    database.close()
    log = Path(f"{path}-log")
    log.write_bytes(log.read_bytes().replace(b'["drained_node","n777"]', b'["drained_node","n776"]'))
    database = open_store(path, said.append)
    assert sorted(JobStore(database).drained()) == ["n003", "n778"] and "1 lines are damaged" in said[0]
    database.close()


def test_a_restored_backup_raises_no_count_that_has_risen_since(
    stores: dict[bool, dict[str, bytes]], true_mw: dict[str, int], tmp_path: Path
) -> None:
    path, said = put(tmp_path, stores[True]), list[str]()
    backup(path, tmp_path / "kept.db")
    database = open_store(path, said.append)
    store = SqliteLedgerStore(database, "boot-1")
    snapshot = store.take_over()
    risen_mw = snapshot.counts_mw.copy()
    risen_mw[0] += 50_000
    store.commit(snapshot.epoch, {}, np.array([0]), risen_mw)
    database.close()
    os.replace(tmp_path / "kept.db", path)
    found_mw, _ = counts(path, said.append)
    assert found_mw[NAMES[0]] == risen_mw[0], "by the log"
    assert said == []


def test_what_cannot_be_mended_while_it_is_whole_stays_as_it_is(
    stores: dict[bool, dict[str, bytes]], tmp_path: Path
) -> None:
    path = put(tmp_path, stores[False])
    assert repair(path) == []
    assert sorted(os.listdir(tmp_path)) == ["a.db", "a.db-log", "a.db-past"]


AS_NOBODY = """
import os, sys
import cluster_agent.commands.store, cluster_agent.store.mending
from cluster_agent.cli import main
os.setgid(65534)
os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("command", [("check",), ("backup", "/tmp/none"), ("repair",)])
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_who_may_not_read_the_store_gets_one_line(
    command: tuple[str, ...], mode: int, stores: dict[bool, dict[str, bytes]]
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        os.chmod(made, 0o755)
        path = put(Path(made) / "store", stores[False])
        os.chmod(path, 0o600)
        os.chmod(path.parent, mode)
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, "store", *command, "--store", str(path)],
            capture_output=True, text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
    assert done.returncode in (1, 2)
    assert re.fullmatch(rf"clusterctl store.*: .*{path}.*(Permission denied|is not readable).*\n", done.stderr)
