"""The log of commits and SQLite: whichever one file is damaged, nothing that was answered is lost, and nothing else is
in force."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cluster_agent.budget.kept_counts import DeposedError
from cluster_agent.cli import main
from cluster_agent.errors import ClusterError
from cluster_agent.jobs.job import Job, JobSpec
from cluster_agent.jobs.power_switching import Switched
from cluster_agent.store import commit_log
from cluster_agent.store.database import Database
from cluster_agent.store.job_store import JobStore
from cluster_agent.store.ledger_store import SqliteLedgerStore
from cluster_agent.store.mending import examine, mend, open_store
from cluster_agent.store.records import LOST_JOBS
from tests.cluster_agent.test_damaged_store import bit, byte, end, header, page

FILES = ("", "-wal", "-log", "-past")
JOBS = 40


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little is reserved, since the files are copied often."""
    monkeypatch.setattr(commit_log, "CHUNK", 16_384)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory, if possible: hundreds of stores are synced."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as at:
        yield Path(at)


def new_job(number: int = 0) -> Job:
    spec = JobSpec(["run", "x" * (number % 7 * 200)], 100, "/w")
    return Job(id=0, uid=1000, user="u", spec=spec, submitted_s=1.0 * number)


def opened(path: Path, said: list[str]) -> tuple[Database, JobStore]:
    """As the cluster agent does at its start."""
    database = open_store(path, said.append)
    jobs = JobStore(database, said.append)
    jobs.own(SqliteLedgerStore(database, "boot-1").take_over().epoch)
    return database, jobs


def all_of(jobs: JobStore) -> tuple[dict[int, Job], dict[str, str], list[Switched]]:
    switched = sorted(jobs.switched(), key=lambda node: node.name)
    return {job.id: job for job in jobs.find()}, jobs.drained(), switched


def lived(path: Path, is_logged: bool) -> tuple[dict[str, bytes], Any]:
    """The files that a killed agent left, and what they say. ``is_logged``: all of it is in the log."""
    database, jobs = opened(path, [])
    database.rows("PRAGMA wal_autocheckpoint = 0")
    for n in range(JOBS):
        jobs.add(job := new_job(n))
        jobs.drain(f"n{n}", "fan", 0)
        if n == JOBS // 2 and not is_logged:
            database.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        for state in ("starting", "running", "done")[: n % 4]:
            job.state = state
            job.ended_s = 100.0 + n if state == "done" else None
            jobs.save(job)
        if n % 3:
            jobs.resume(f"n{n}")
        jobs.switch(Switched(name=f"n{n % 5}", state="off", since_s=1.0 * n, tried_s=0.0))
    jobs.is_on("n3")
    truth = all_of(jobs)
    assert {job.state for job in truth[0].values()} == {"queued", "starting", "running", "done"}
    files = {suffix: Path(f"{path}{suffix}").read_bytes() for suffix in FILES}
    database.close()
    return files, truth


@pytest.fixture(scope="module", params=[False, True], ids=["some in the log", "all in the log"])
def left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], Any]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(commit_log, "CHUNK", 16_384)
        patched.setattr(commit_log, "LONG", 2_000)  # so that some ended jobs are in the file for those
        found = lived(tmp_path_factory.mktemp("lived") / "a.db", request.param)
    assert len(found[0]["-past"]) > 400
    return found


def put(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, data in files.items():
        (folder / f"a.db{suffix}").write_bytes(data)
    return folder / "a.db"


@pytest.mark.parametrize("damage", [bit, byte, page, end, header])
@pytest.mark.parametrize("suffix", FILES)
def test_whichever_file_is_damaged_all_records_of_jobs_are_as_they_were(
    suffix: str,
    damage: Callable[[random.Random, bytearray, int], None],
    left: tuple[dict[str, bytes], Any],
    tmp_path: Path,
) -> None:
    files, truth = left
    rng = random.Random(f"{damage.__name__}{suffix}")
    for n in range(8):
        raw = bytearray(files[suffix].rstrip(b"\0") if suffix == "-log" else files[suffix])
        at = rng.randrange(len(raw))
        damage(rng, raw, at)
        zeros = bytes(9 if suffix == "-log" and damage is not end else 0)
        path, said = put(tmp_path / str(n), files | {suffix: bytes(raw) + zeros}), list[str]()
        database, jobs = opened(path, said)
        assert all_of(jobs) == truth, (at, said)
        jobs.add(job := new_job())
        assert job.id > max(truth[0]), "no number is given twice"
        database.close()
        assert examine(path).lines == [], "it is in order again, and so is its copy"


@pytest.mark.parametrize("suffix", FILES)
def test_whichever_file_is_gone_all_records_of_jobs_are_as_they_were(
    suffix: str, left: tuple[dict[str, bytes], Any], tmp_path: Path
) -> None:
    files, truth = left
    path = put(tmp_path, {other: data for other, data in files.items() if other != suffix})
    if not suffix:
        Path(f"{path}-wal").unlink()  # it says nothing without its database
    database, jobs = opened(path, [])
    assert all_of(jobs) == truth
    database.close()


def test_of_a_database_that_lost_its_end_at_any_commit_the_log_knows_the_rest(tmp_path: Path) -> None:
    files, truth = lived(tmp_path / "a.db", is_logged=True)
    frame = 4096 + 24
    wal = files["-wal"]
    n_frames = (len(wal) - 32) // frame
    assert n_frames > 200
    for n in range(0, n_frames, n_frames // 25):
        path, said = put(tmp_path / str(n), files | {"-wal": wal[: 32 + n * frame]}), list[str]()
        database, jobs = opened(path, said)
        assert all_of(jobs) == truth
        database.close()
        assert not any("ALARM" in line for line in said), "nothing is damaged, and nothing lost"


def test_of_a_log_that_lost_its_end_at_any_line_the_database_knows_the_rest(tmp_path: Path) -> None:
    files, truth = lived(tmp_path / "a.db", is_logged=True)
    lines = files["-log"].rstrip(b"\0").splitlines(keepends=True)
    for n in range(0, len(lines), len(lines) // 12):
        path, said = put(tmp_path / str(n), files | {"-log": b"".join(lines[:n])}), list[str]()
        database, jobs = opened(path, said)
        assert all_of(jobs) == truth
        database.close()
        assert said[0].startswith(f"ALARM: {path}: a.db-log: ") and "mended" in said[1]


def killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_kill_between_the_log_and_the_database_loses_nothing_and_the_next_start_completes_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.db"
    database, jobs = opened(path, [])
    jobs.add(job := new_job())
    for state, ended_s in (("running", None), ("done", 5.0)):
        append = database.log.append

        def append_and_die(*given: Any, append: Callable[..., None] = append) -> None:
            append(*given)
            raise KeyboardInterrupt

        monkeypatch.setattr(database.log, "append", append_and_die)
        job.state, job.ended_s = state, ended_s  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            jobs.save(job)
        database.close()
        said: list[str] = []
        database, jobs = opened(path, said)
        assert said == [] and jobs.find() == [job]
    database.close()


def test_what_was_rolled_back_is_in_neither(tmp_path: Path) -> None:
    database, jobs = opened(tmp_path / "a.db", [])
    number = database.log.number
    with pytest.raises(RuntimeError), jobs.together():
        jobs.add(new_job())
        raise RuntimeError
    assert jobs.find() == []
    assert database.log.read().number == number == database.rows("SELECT number FROM applied")[0][0]
    database.close()


def test_a_log_that_has_grown_long_is_written_again_with_what_is_of_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "LONG", 3000)
    path = tmp_path / "a.db"
    database, jobs = opened(path, [])
    for n in range(30):
        jobs.add(job := new_job())
        job.state, job.ended_s = "done", 1.0 * n
        jobs.save(job)
        assert len(database.log.path.read_bytes().rstrip(b"\0")) < 5000
    jobs.add(job := new_job())
    for n in range(100):
        job.queued_s = 1.0 * n
        jobs.save(job)
    assert len(database.log.path.read_bytes().rstrip(b"\0")) < 8000
    found = database.log.read()
    assert found.is_whole and len(list(found.of("job"))) == 31
    database.close()


def test_a_job_that_runs_again_after_its_end_is_found_as_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "LONG", 1000)
    path = tmp_path / "a.db"
    database, jobs = opened(path, [])
    jobs.add(job := new_job())
    for state, ended_s in (("done", 1.0), ("queued", None), ("running", None), ("failed", 9.0), ("queued", None)):
        job.state, job.ended_s = state, ended_s  # type: ignore[assignment]
        jobs.save(job)
        for n in range(8):
            jobs.drain(f"n{n}", "x" * 100, 0)  # the log is written again
        found = database.log.read()
        assert found.is_whole and found.rows["job", 1][1] == (1, 1000, state, ended_s, msgspec.json.encode(job))
    database.close()
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    database, jobs = opened(path, [])
    assert jobs.find() == [job]
    database.close()


def test_what_the_log_has_of_a_damaged_record_is_put_back_and_check_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.db"
    database, jobs = opened(path, [])
    jobs.add(job := new_job())
    jobs.add(new_job())
    database.rows("UPDATE job SET uid = 5 WHERE id = 1")
    database.rows("DELETE FROM job WHERE id = 2")
    database.close()
    assert main(["store", "check", "--store", str(path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{path}: job 1: its checksum is wrong",
        f"{path}: job 2: its record is missing",
    ]
    assert mend(path, examine(path))[-1] == f"mended; the damaged one is {path}.damaged-1"
    database, jobs = opened(path, [])
    assert [one.id for one in jobs.find()] == [1, 2] and jobs.find([1]) == [job]
    database.close()


def test_a_damaged_line_of_the_log_is_said_and_written_again(tmp_path: Path) -> None:
    path, said = tmp_path / "a.db", list[str]()
    database, jobs = opened(path, [])
    jobs.add(new_job())
    jobs.add(new_job())
    database.close()
    at = Path(f"{path}-log")
    at.write_bytes(at.read_bytes().replace(b'"user":"u"', b'"user":"v"', 1))
    assert examine(path).lines == ["a.db-log: 1 lines are damaged or missing"]
    database, _ = opened(path, said)
    assert said == [
        f"ALARM: {path}: a.db-log: 1 lines are damaged or missing",
        f"ALARM: {path}: mended; the damaged one is {path}.damaged-1",
    ]
    assert database.log.read().is_whole and at.stat().st_mode & 0o777 == 0o600
    database.close()


def test_a_last_line_that_was_cut_short_was_never_answered_and_is_overwritten(tmp_path: Path) -> None:
    database, jobs = opened(tmp_path / "a.db", [])
    jobs.add(new_job())
    database.close()
    files = {suffix: (tmp_path / f"a.db{suffix}").read_bytes() for suffix in ("", "-log", "-past")}
    end = len(files["-log"].rstrip(b"\0"))
    line = commit_log._line(database.log.number + 1, [("drained_node", ("n1", "why", 0))])
    for cut in range(1, len(line), 7):
        torn = files["-log"][:end] + line[:cut] + files["-log"][end + cut :]
        path, said = put(tmp_path / str(cut), files | {"-log": torn}), list[str]()
        database, jobs = opened(path, said)
        assert said == [] and jobs.drained() == {}
        assert database.log.read().is_torn is False
        database.close()


def test_the_second_agent_on_a_store_goes_on_after_the_first_ones_last_line(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    first, jobs = opened(path, [])
    second = Database(path)
    jobs.add(new_job())  # after the second has opened it
    others = JobStore(second)
    others.own(SqliteLedgerStore(second, "boot-1").take_over().epoch)
    others.add(new_job())
    with pytest.raises(DeposedError):
        jobs.add(new_job())
    assert [job.id for job in others.find()] == [1, 2]
    first.close()
    second.close()
    database, jobs = opened(path, [])
    assert [job.id for job in jobs.find()] == [1, 2] and database.log.read().is_whole
    database.close()


def test_ended_jobs_are_kept_where_log_and_database_are_empty(
    left: tuple[dict[str, bytes], Any], tmp_path: Path
) -> None:
    path, said = put(tmp_path, {"": b"", "-log": b"", "-past": left[0]["-past"]}), list[str]()
    database = open_store(path, said.append)
    assert {job.state for job in JobStore(database).find()} == {"done"}
    with pytest.raises(ClusterError, match=LOST_JOBS):
        JobStore(database).alive()
    assert any("its jobs are lost" in line for line in said)
    database.close()


def test_a_missing_file_of_ended_jobs_is_noticed(left: tuple[dict[str, bytes], Any], tmp_path: Path) -> None:
    """Else the next ones would be written after a gap, and a damaged database would lose those before."""
    files, truth = left
    path, said = put(tmp_path, {suffix: data for suffix, data in files.items() if suffix != "-past"}), list[str]()
    assert examine(path).lines == ["a.db-log: 1 lines are damaged or missing"]
    database, jobs = opened(path, said)
    assert all_of(jobs) == truth and "mended" in said[-1]
    database.close()
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    database, jobs = opened(path, said)
    assert all_of(jobs) == truth, "from log and file alone"
    database.close()
