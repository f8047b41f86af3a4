"""A campaign's folder with several workers: each cell is recorded once, whoever dies, stalls or finds no space."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.campaigns import SAMPLE, SLOW, kills, processor_s, written
from cluster_agent.campaigns import campaign_folder
from cluster_agent.campaigns.campaign_folder import MOST_LOST, STATE, CampaignFolder, Part, Watch, key_of, moved
from cluster_agent.campaigns.campaign_grid import Cell
from cluster_agent.campaigns.executors import LocalWorkers
from cluster_agent.campaigns.worker import Worker, name_of_worker, opened
from cluster_agent.cli import main
from cluster_agent.library.results import Result
from cluster_agent.workloads import swf
from tests.waiting import PATIENCE_S, within

LEASE_S = 60.0


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A campaign of four cells that wait."""
    file = written(tmp_path, ("easy", "fcfs"), (32, 34))
    assert main(["campaign", str(file), "--out", str(tmp_path / "out"), "-j", "0"]) == 0
    return tmp_path / "out"


def names(out: Path) -> list[str]:
    return sorted(one.parent.name for one in out.glob("*/campaign.json"))


def after(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Something that happens after a replay, before its results are written."""
    write_into = Result.write_into

    def write(result: Result, folder: Path, command: list[str]) -> list[str]:
        act()
        return write_into(result, folder, command)

    monkeypatch.setattr(Result, "write_into", write)


def test_ctrl_c_while_workers_are_started_ends_those_that_run(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, popen, started = LocalWorkers._start, subprocess.Popen, []  # type: ignore[var-annotated]

    def keep(*given: object, **options: object) -> subprocess.Popen[bytes]:
        started.append(popen(*given, **options))  # type: ignore[call-overload]
        return started[-1]  # type: ignore[no-any-return]

    def start_one(workers: LocalWorkers) -> None:
        if started:
            raise KeyboardInterrupt
        start(workers)

    monkeypatch.setattr(subprocess, "Popen", keep)
    monkeypatch.setattr(LocalWorkers, "_start", start_one)
    with pytest.raises(KeyboardInterrupt):
        LocalWorkers(opened(str(out)), 2).run(lambda _: None)
    assert [one.poll() is not None for one in started] == [True]


def test_a_worker_whose_claim_was_taken_writes_nothing(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It wakes up with its results, when another has claimed its cell, or has recorded it."""
    folder, woken = opened(str(out)), Worker(opened(str(out)))
    taken: list[str] = []

    def take() -> None:
        if not taken:
            ((claim, worker),) = folder.claims()
            assert worker == woken.name and folder.take(claim)
            taken.append(claim)
            assert folder.claim("other", 0) is not None

    after(monkeypatch, take)
    monkeypatch.setattr(campaign_folder.random, "randrange", lambda _: 0)
    monkeypatch.setattr(woken, "_is_over", lambda: woken.recorded + woken.lost == 4 or not folder.has_waiting())
    woken.run()
    assert (woken.lost, woken.recorded) == (1, 3)
    assert not any((out / STATE / "lost").glob("*/*")), "nothing was written where the claim was"
    ((left, _),) = folder.claims()
    assert not any((out / STATE / "running" / left).iterdir()), "nor into the claim of the other"


def test_two_records_of_a_cell_cannot_be(out: Path) -> None:
    folder = opened(str(out))
    first = folder.claim("a", 0)
    assert first is not None
    (first.path.parent.parent / "waiting" / key_of(first.planned.name)).mkdir()  # a second ticket, as a race would make
    second = next(one for one in iter(lambda: folder.claim("b", 0), None) if one.planned == first.planned)
    for claim, text in ((first, "first"), (second, "second")):
        (claim.path / "campaign.json").write_text(text)
    assert folder.record(first) and not folder.record(second)
    assert (out / first.planned.name / "campaign.json").read_text() == "first"
    assert not second.path.exists(), "else everybody would wait for it"


def test_a_lost_answer_of_a_file_server_is_no_lost_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS repeats a rename whose answer was lost, and the second one finds nothing."""
    (tmp_path / "a").mkdir()
    rename = Path.rename

    def twice(source: Path, target: Path) -> None:
        rename(source, target)
        rename(source, target)

    monkeypatch.setattr(Path, "rename", twice)
    assert moved(tmp_path / "a", tmp_path / "b")
    assert not moved(tmp_path / "a", tmp_path / "c")
    (tmp_path / "d").mkdir()
    monkeypatch.setattr(Path, "rename", lambda source, target: os.rename(tmp_path / "none", target))
    assert not moved(tmp_path / "d", tmp_path / "e")


def test_silence_is_a_heartbeat_that_does_not_change_while_one_watches(out: Path) -> None:
    """Whatever the clocks of the machines say: file times of an hour ago, or five minutes ahead, change nothing."""
    folder, watch = opened(str(out)), Watch(LEASE_S)
    folder.beat("a", 1)
    assert not watch.is_silent("a", folder.heartbeat("a"), 0.0)
    assert not watch.is_silent("a", folder.heartbeat("a"), LEASE_S - 1)
    folder.beat("a", 2)
    for wrong_s in (-3600, 300):
        os.utime(out / STATE / "workers" / "a", (time.time() + wrong_s,) * 2)
        assert not watch.is_silent("a", folder.heartbeat("a"), LEASE_S + 1)
    assert not watch.is_silent("a", folder.heartbeat("a"), 2 * LEASE_S)
    assert watch.is_silent("a", folder.heartbeat("a"), 2 * LEASE_S + 1)
    assert not watch.is_silent("none", folder.heartbeat("none"), 0.0), "seen for the first time"
    assert watch.is_silent("none", folder.heartbeat("none"), LEASE_S), "it has left no heartbeat"


def test_no_code_of_campaigns_compares_wall_clocks() -> None:
    folder = Path(campaign_folder.__file__).parent
    sources = {path.name: path.read_text() for path in folder.glob("*.py")}
    assert len(sources) > 5
    wrong = ("time.time", "datetime", "mtime - ", "getmtime")
    assert [(name, word) for name, text in sources.items() for word in wrong if word in text] == []


def test_a_cell_that_ends_its_workers_is_left_out(out: Path) -> None:
    folder = opened(str(out))
    first = next(iter(folder.planned))
    for number in range(MOST_LOST):
        claim = next(one for one in iter(lambda: folder.claim("a", number), None) if one.planned.name == first)  # noqa: B023
        assert folder.take(claim.path.name)
        folder.give_back("a")
    assert folder.failures() == {first: f"its worker has ended {MOST_LOST} times; it is left out"}
    assert not folder.take(claim.path.name), "it was taken"


def test_a_full_disk_ends_the_worker_and_the_cell_waits_again(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def full() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        after(patch, full)
        assert main(["campaign", "--join", str(out)]) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and f"{out}: No space left on device; what is recorded stays" in error
        assert len(names(out)) == 2 and opened(str(out)).unfinished() == 2
    assert main(["campaign", "--join", str(out)]) == 0
    assert len(names(out)) == 4 and len((out / "campaign.csv").read_text().splitlines()) == 5


def test_a_folder_with_another_campaign_is_refused_and_one_that_grew_goes_on(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["campaign", "--join", str(out)]) == 0
    kept = (out / "campaign.csv").read_bytes()
    other = written(out.parent / "other", ("easy",), (32, 36))
    capsys.readouterr()
    assert main(["campaign", str(other), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert "it has another campaign (" in error and "with 3 replays that" in error and error.count("\n") == 1
    assert (out / "campaign.csv").read_bytes() == kept
    larger = written(out.parent / "larger", ("easy", "fcfs"), (32, 34, 36))
    assert main(["campaign", str(larger), "--out", str(out)]) == 0
    assert capsys.readouterr().err.startswith("6 replays, 4 done before")
    assert len((out / "campaign.csv").read_text().splitlines()) == 7


def test_a_part_of_a_campaign_adds_to_the_table(out: Path) -> None:
    assert main(["campaign", "--join", str(out)]) == 0
    whole = (out / "campaign.csv").read_bytes(), (out / "campaign.parquet").read_bytes()
    assert len(whole[0].splitlines()) == 5
    assert main(["campaign", str(out.parent / "c.toml"), "--out", str(out), "--policy", "fcfs"]) == 0
    assert ((out / "campaign.csv").read_bytes(), (out / "campaign.parquet").read_bytes()) == whole


def test_a_log_that_changes_in_mid_campaign_ends_its_cells_and_keeps_what_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, out = tmp_path / "log.swf", tmp_path / "out"
    log.write_bytes(SAMPLE.read_bytes())
    file = written(tmp_path, ("easy",), (32, 34, 36), log)
    is_changed: list[bool] = []

    def change() -> None:
        if not is_changed:
            log.write_text(log.read_text() + "; a remark\n")
        is_changed.append(True)

    with monkeypatch.context() as patch:
        after(patch, change)
        assert main(["campaign", str(file), "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert error.count(f"{log}: it has changed since the campaign was started; start it again") == 2
    assert len(names(out)) == 1
    first = {name: (out / names(out)[0] / name).read_bytes() for name in ("jobs.csv", "campaign.json")}
    assert main(["campaign", str(file), "--out", str(out)]) == 0
    assert len(names(out)) == 3
    (aside,) = (out / STATE / "superseded").iterdir()
    assert {name: (aside / name).read_bytes() for name in first} == first, "the record of the log as it was"


def test_a_folder_of_an_earlier_version_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, ("easy",), (32,))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "campaign.csv").write_text("folder\n")
    assert main(["campaign", str(file), "--out", str(tmp_path / "out")]) == 1
    assert "it has a campaign of an earlier version; choose another --out" in capsys.readouterr().err
    assert os.listdir(tmp_path / "out") == ["campaign.csv"]


def test_a_worker_of_other_code_does_not_join(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster_agent.campaigns.worker.code_sha256", lambda: "0123456789")
    assert main(["campaign", "--join", str(out)]) == 1
    assert "the code here (01234567) is not that of the campaign (" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], "give a FILE and --out DIR; or --join DIR"),
        (["sc15"], "give a FILE and --out DIR"),
        (["sc15", "--join", "x"], "--join x: the folder has the campaign; give -j alone with it"),
        (["--join", "x", "--lease", "9"], "--join x: the folder has the campaign; give -j alone with it"),
        (["--join", "x", "-j", "0"], "-j 0: nobody would work"),
        (["sc15", "--out", "x", "-j", "2", "--slurm", "3"], "-j, --slurm and --dask each say who works"),
        (["sc15", "--out", "x", "--sbatch", "-pall"], "--sbatch goes with --slurm TASKS"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    words: list[str], what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["campaign", *words]) == 2
    error = capsys.readouterr().err
    assert what in error and error.count("\n") == 1 and not os.listdir(tmp_path)


def test_a_folder_without_a_campaign_cannot_be_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["campaign", "--join", str(tmp_path)]) == 1
    assert "no campaign was started here" in capsys.readouterr().err
    plan = tmp_path / STATE / "plan" / "000001"
    plan.mkdir(parents=True)
    (plan / "part.json").write_text("[")
    assert main(["campaign", "--join", str(tmp_path)]) == 1
    assert "part.json: not as a campaign writes it" in capsys.readouterr().err


def test_cells_are_claimed_without_a_list_of_all_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By four workers in turn: lists are read a few times, and every cell is claimed once. The benchmark has 10,000."""
    cells = {f"c{number}": Cell(["replay", "x"], {}, "", "") for number in range(1_000)}
    folder = CampaignFolder(tmp_path)
    folder.add(Part("c.toml", "", "/", LEASE_S, cells))
    folder.issue(cells)
    lists: list[int] = []
    list_waiting = CampaignFolder._list_waiting
    monkeypatch.setattr(CampaignFolder, "_list_waiting", lambda one: (lists.append(1), list_waiting(one))[1])
    workers = [CampaignFolder(tmp_path) for _ in range(4)]
    for one in workers:
        one.read_plan()
    claims = [workers[number % 4].claim(f"w{number % 4}", number) for number in range(1_000)]
    assert len({one.planned.name for one in claims if one}) == 1_000
    assert workers[0].claim("w0", 1_000) is None
    assert len(lists) <= 40


def test_two_hundred_cells_cost_less_than_five_seconds_of_processor_time(tmp_path: Path) -> None:
    """With all files, children included (some 2 s). As processes of their own they took 104 s."""
    file = written(tmp_path, ("easy", "easy-sjbf", "fcfs", "easy:estimate=mean2"), range(32, 132, 2))
    used_s, _ = processor_s(str(file), "--out", str(tmp_path / "out"))
    assert len(names(tmp_path / "out")) == 200
    assert used_s < 5.0


def test_killed_and_stalled_workers_lose_nothing(tmp_path: Path) -> None:
    """Real processes, SIGKILL, SIGSTOP beyond the lease and SIGCONT; the benchmark does it 60 times."""
    found = kills(tmp_path / "kills", cells=4, kill=1, stall=1, workers=2)
    assert (found["kills"], found["stalls"], found["taken"] >= 2) == (1, 1, True)
    assert (found["recorded"], found["odd_files"], found["failed"]) == (4, 0, 0)


def test_workers_end_with_the_command_that_started_them(tmp_path: Path) -> None:
    """Which is killed: they see it at the next heartbeat, and their cells wait again."""
    slow = tmp_path / "slow.py"
    slow.write_text(SLOW)
    file = written(tmp_path, (f"{slow}:ms=1000",), range(32, 432))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "cluster_agent.cli", "campaign", str(file), "--out", str(out), "-j", "2"]
    with subprocess.Popen([*command, "--lease", "1"], stderr=subprocess.DEVNULL) as running:
        assert within(PATIENCE_S, lambda: len(list(out.glob(f"{STATE}/running/*"))) == 2)
        running.send_signal(signal.SIGKILL)
    assert within(PATIENCE_S, lambda: not list(out.glob(f"{STATE}/running/*")))
    assert within(PATIENCE_S, lambda: not list(out.glob(f"{STATE}/workers/*")))
    assert opened(str(out)).unfinished() == 400 - len(names(out)) > 0


def test_the_workers_of_one_command_say_why_they_cannot_work_in_one_line(
    out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (out / STATE / "workers").rmdir()
    assert main(["campaign", "--join", str(out), "-j", "2"]) == 1
    error = capfd.readouterr().err
    assert error.count("\n") == 1 and "No such file or directory; what is recorded stays" in error


def test_a_long_policy_has_a_folder(tmp_path: Path) -> None:
    file = written(tmp_path, ["score:lowest=" + " + ".join(["wait"] * times) for times in (50, 51)], (32,))
    assert main(["campaign", str(file), "--out", str(tmp_path / "out")]) == 0
    assert len(names(tmp_path / "out")) == 2


def test_workers_have_names_of_their_own() -> None:
    assert name_of_worker() != name_of_worker()
    assert name_of_worker().startswith(name_of_worker(os.getpid()))
    assert "." not in name_of_worker()


def test_a_worker_reads_each_log_once(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    read_swf = swf.read_swf
    monkeypatch.setattr(swf, "read_swf", lambda path: (read.append(path), read_swf(path))[1])
    assert main(["campaign", "--join", str(out)]) == 0
    assert len(names(out)) == 4 and read == [str(SAMPLE)]


def test_a_folder_that_is_away_for_some_heartbeats_costs_nothing(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beat, refused = CampaignFolder.beat, list[int]()

    def away(folder: CampaignFolder, worker: str, count: int) -> None:
        if count:
            refused.append(count)
            raise OSError(errno.EIO, "Input/output error")
        beat(folder, worker, count)

    monkeypatch.setattr(CampaignFolder, "beat", away)
    monkeypatch.setattr(CampaignFolder, "lease_s", 0.008)
    after(monkeypatch, lambda: time.sleep(0.05))
    worker = Worker(opened(str(out)))
    worker.run()
    assert (worker.recorded, worker.lost) == (4, 0) and len(refused) > 4
