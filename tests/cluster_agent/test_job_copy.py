"""The second copy of the jobs: whichever one file is damaged, no job is lost, starts twice or is wrongly recorded."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster_agent.cli import main
from cluster_agent.errors import ClusterError
from cluster_agent.jobs.job import Job, JobSpec
from cluster_agent.jobs.job_store import JobStore
from cluster_agent.jobs.power_switching import Switched
from cluster_agent.store import job_copy
from cluster_agent.store.database import Database
from cluster_agent.store.ledger_store import SqliteLedgerStore
from cluster_agent.store.mending import examine, mend, open_store
from tests.cluster_agent.test_damaged_store import bit, byte, end, header, page

FILES = ("", "-wal", "-log", "-past")
JOBS = 40


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
    return lived(tmp_path_factory.mktemp("lived") / "a.db", request.param)


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
        raw = bytearray(files[suffix])
        at = rng.randrange(len(raw))
        damage(rng, raw, at)
        path, said = put(tmp_path / str(n), files | {suffix: bytes(raw)}), list[str]()
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
        Path(f"{path}-wal").unlink()  # a log without its store says nothing
    database, jobs = opened(path, [])
    assert all_of(jobs) == truth
    database.close()


def test_of_a_log_that_lost_its_end_at_any_commit_the_copy_knows_the_rest(tmp_path: Path) -> None:
    files, truth = lived(tmp_path / "a.db", is_logged=True)
    frame = 4096 + 24
    log = files["-wal"]
    n_frames = (len(log) - 32) // frame
    assert n_frames > 200
    n_lost = 0
    for n in range(0, n_frames, n_frames // 25):
        path, said = put(tmp_path / str(n), files | {"-wal": log[: 32 + n * frame]}), list[str]()
        database, jobs = opened(path, said)
        assert all_of(jobs) == truth, said
        database.close()
        n_lost += any("changes of jobs are missing" in line for line in said)
    assert n_lost > 10


def test_a_kill_between_the_store_and_its_copy_loses_nothing_and_the_next_start_completes_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.db"
    database, jobs = opened(path, [])
    jobs.add(job := new_job())

    def killed(*_: object) -> bool:
        raise KeyboardInterrupt

    for state, ended_s in (("running", None), ("done", 5.0)):
        with monkeypatch.context() as patched:
            patched.setattr(job_copy.JobCopy, "append", killed)
            job.state, job.ended_s = state, ended_s  # type: ignore[assignment]
            with pytest.raises(KeyboardInterrupt):
                jobs.save(job)
        database.close()
        said: list[str] = []
        database, jobs = opened(path, said)
        assert said == [] and jobs.find() == [job]
        copied = database.job_copy.read()
        assert (copied.number, copied.damaged) == (database.number_of_jobs(), 0)
        assert [row[2] for _, _, row in copied.of("job") if row] == [state]
    database.close()


def test_what_was_rolled_back_is_in_neither(tmp_path: Path) -> None:
    database, jobs = opened(tmp_path / "a.db", [])
    with pytest.raises(RuntimeError), jobs.together():
        jobs.add(new_job())
        raise RuntimeError
    assert jobs.find() == [] and database.job_copy.read().rows == {}
    assert database.job_copy.read().number == database.number_of_jobs() == 0
    database.close()


def test_a_full_disk_is_said_once_and_the_copy_gets_all_as_soon_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, said = tmp_path / "a.db", list[str]()
    database, jobs = opened(path, said)
    pwrite = os.pwrite

    def full(descriptor: int, data: bytes, at: int) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("-copy"):
            return pwrite(descriptor, data, at)
        if len(data) > 50:
            return pwrite(descriptor, data[:30], at)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = database.job_copy.path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        for n in range(3):
            jobs.add(new_job(n))
    assert said == [
        f"ALARM: {path}-jobs: cannot write the copy of the jobs: No space left on device;"
        " until it can, jobs have no second copy"
    ]
    assert database.job_copy.path.read_bytes() == before, "no line is cut short"
    jobs.add(new_job(3))
    copied = database.job_copy.read()
    assert [key for key, _, _ in copied.of("job")] == [1, 2, 3, 4] and copied.is_whole
    assert len(said) == 1
    database.close()


def test_a_copy_that_has_grown_long_is_written_again_with_what_is_of_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_copy, "LONG", 3000)
    database, jobs = opened(tmp_path / "a.db", [])
    for n in range(30):
        jobs.add(job := new_job())
        job.state, job.ended_s = "done", 1.0 * n
        jobs.save(job)
        assert database.job_copy.path.stat().st_size < 4000
    jobs.add(job := new_job())
    for n in range(100):
        job.queued_s = 1.0 * n
        jobs.save(job)
    assert database.job_copy.path.stat().st_size < 4000
    copied = database.job_copy.read()
    assert copied.is_whole and len(list(copied.of("job"))) == 31
    database.close()


def test_a_store_that_is_older_than_its_copy_is_not_worked_with_until_it_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    database, jobs = opened(path, [])
    jobs.add(new_job())
    database.rows("PRAGMA user_version = 0")
    database.close()
    database = Database(path)
    with pytest.raises(ClusterError, match=r"1 changes of jobs are missing: `clusterctl store repair`$"):
        JobStore(database).own(1)
    database.close()


def test_what_the_copy_has_of_a_damaged_record_is_not_set_aside_and_check_names_it(
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
    assert database.rows("SELECT COUNT(*) FROM set_aside") == [(0,)]
    database.close()


def test_a_damaged_line_of_the_copy_is_said_and_written_again(tmp_path: Path) -> None:
    path, said = tmp_path / "a.db", list[str]()
    database, jobs = opened(path, [])
    jobs.add(new_job())
    jobs.add(new_job())
    database.close()
    at = Path(f"{path}-jobs")
    at.write_bytes(at.read_bytes().replace(b'"user":"u"', b'"user":"v"', 1))
    database, _ = opened(path, said)
    assert said == [f"ALARM: {path}: 1 lines of a.db-jobs or -ended are damaged or missing"]
    assert database.job_copy.read().is_whole and at.stat().st_mode & 0o777 == 0o600
    database.close()
