"""Jobs as real processes: their ends, their output, and the deaths of those who look after them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster_agent.jobs.job import JobSpec
from foundation.digest import sha256_hex
from foundation.wire.job_messages import JobForget, JobPart, JobSignal, JobStart
from nodectl.jobs.cgroups import mounts
from nodectl.jobs.job_runner import JobThread
from nodectl.jobs.proc import descendants, start_time
from nodectl.jobs.processes import JobRunner
from nodectl.jobs.run_files import STEP
from pmu.readings import NO_RAW_PROGRESS, PmuError, RawProgress
from tests.live.agent import Agent
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]


def start(at: Path, text: str, job: int = 1, **given: Any) -> JobStart:
    values: dict[str, Any] = {
        "job": job, "attempt": 1, "uid": os.geteuid(), "command": ["/bin/sh", "-c", text], "script": "",
        "workdir": str(at), "output": "out", "error": "", "env": {}, "walltime_s": 60, "grace_s": 1, "prolog": "",
        "epilog": "", "rank": 0, "nodes": ["n0"],
    }  # fmt: skip
    return JobStart(**values | given)


def until(holds: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    until_s = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < until_s, "in vain"
        time.sleep(0.01)


def is_over(runner: JobRunner, job: int = 1) -> bool:
    return all(part.phase not in ("running", "ending") for part in runner.parts() if part.job == job)


def ended(runner: JobRunner) -> JobPart:
    until(lambda: is_over(runner))
    return runner.parts()[0]


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[JobRunner]:
    made = JobRunner(tmp_path / "jobs", "n0")
    yield made
    for part in made.parts():
        made.signal(JobSignal(part.job, part.attempt, signal.SIGKILL))


def test_a_job_leaves_its_output_its_status_and_what_prolog_and_epilog_said(tmp_path: Path, runner: JobRunner) -> None:
    runner.start(start(tmp_path, "echo job $NODECTL_JOB_ID on $NODECTL_NODE; exit 3", prolog="echo a", epilog="echo z"))
    part = ended(runner)
    assert (part.phase, part.status, part.cause) == ("ended", 3, "")
    assert (tmp_path / "out").read_text() == "a\njob 1 on n0\nz\n"
    runner.forget(JobForget(1, 1))
    assert runner.parts() == []
    runner.start(start(tmp_path, "echo again"))
    assert runner.parts() == []


def test_jobs_run_below_a_state_directory_that_was_given_relative_to_where_the_agent_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runner = JobRunner(Path("n16/jobs"), "n0")
    runner.start(start(tmp_path, "echo here"))
    assert (ended(runner).phase, (tmp_path / "out").read_text()) == ("ended", "here\n")


def test_a_script_gets_the_command_as_its_arguments(tmp_path: Path, runner: JobRunner) -> None:
    runner.start(start(tmp_path, "", script="#!/bin/sh\necho $1-$X\n", command=["a"], env={"X": "b"}))
    assert ended(runner).status == 0
    assert (tmp_path / "out").read_text() == "a-b\n"


def test_a_failed_prolog_keeps_the_job_from_running(tmp_path: Path, runner: JobRunner) -> None:
    runner.start(start(tmp_path, "touch ran", prolog="exit 1"))
    part = ended(runner)
    assert part.status == 1
    assert "prolog" in part.detail
    assert not (tmp_path / "ran").exists()


def test_at_the_end_of_its_walltime_a_job_gets_a_signal_and_after_its_grace_is_killed_with_all_it_started(
    tmp_path: Path, runner: JobRunner
) -> None:
    command = "trap 'echo told' TERM; setsid sleep 1000 & echo $! >pid; while :; do sleep 0.1; done"
    runner.start(start(tmp_path, command, walltime_s=1, grace_s=1))
    part = ended(runner)
    assert (part.status, part.cause) == (-signal.SIGKILL, "walltime")
    assert part.ended_s - part.started_s > 1.9
    assert "told" in (tmp_path / "out").read_text()
    assert start_time(int((tmp_path / "pid").read_text())) is None


def test_processes_that_end_while_a_job_is_looked_through_are_no_error() -> None:
    forking = subprocess.Popen(["/bin/sh", "-c", "while :; do (/bin/true & /bin/true); done"], start_new_session=True)
    try:
        until_s, seen = time.monotonic() + 2.0, 0
        while time.monotonic() < until_s:
            found = descendants(os.getpid())
            seen += len(found) > 1
            assert forking.pid in found
        assert seen
    finally:
        os.killpg(forking.pid, signal.SIGKILL)
        forking.wait()


def test_a_cancelled_job_may_clean_up(tmp_path: Path, runner: JobRunner) -> None:
    runner.start(start(tmp_path, "trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.05; done", grace_s=30))
    until(lambda: (tmp_path / "out").exists() and "up" in (tmp_path / "out").read_text())
    runner.signal(JobSignal(1, 1, signal.SIGTERM))
    part = ended(runner)
    assert (part.status, part.cause) == (5, "told")


@pytest.mark.parametrize("stream", ["output", "error"])
@pytest.mark.parametrize(("special", "is_a"), [("fifo", "a FIFO"), ("link", "a FIFO"), ("/dev/zero", "a device")])
def test_a_job_whose_output_is_a_fifo_or_a_device_ends_at_once_and_says_so(
    tmp_path: Path, runner: JobRunner, special: str, is_a: str, stream: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    os.symlink("fifo", tmp_path / "link")
    runner.start(start(tmp_path, "touch ran", **{stream: special}))
    until(lambda: is_over(runner), 20.0)
    (part,) = runner.parts()
    assert (part.phase, part.status) == ("ended", 1)
    assert part.detail == f"{tmp_path / special}: is {is_a}; it must be a regular file or /dev/null"
    assert not (tmp_path / "ran").exists()


def test_a_jobs_output_may_be_the_null_device(tmp_path: Path, runner: JobRunner) -> None:
    runner.start(start(tmp_path, "echo lost; touch ran", output="/dev/null"))
    assert (ended(runner).status, (tmp_path / "ran").exists()) == (0, True)


def test_a_job_that_puts_fifos_in_the_place_of_its_records_holds_nobody_up(tmp_path: Path) -> None:
    runner = JobRunner(tmp_path / "jobs", "n0")
    own = "cd $(dirname $NODECTL_PROGRESS); rm -f ended.json.part; "
    runner.start(start(tmp_path, own + "mkfifo ended.json.part; exit 3"))
    runner.start(start(tmp_path, own + "mkfifo ended.json; exec sleep 1000", job=2))
    own_session = own + "rm -f session; mkfifo session script"
    runner.start(start(tmp_path, "", prolog=own_session, job=3, script="true", command=[]))
    thread = JobThread(runner, "n0", "boot")
    until(lambda: all(part.is_over for part in thread.news().parts if part.job != 2))
    assert thread.news().parts[1].phase == "running", "whatever is in the place of its record, it runs"
    thread.post(JobSignal(2, 1, signal.SIGKILL))
    until(lambda: all(part.is_over for part in thread.news().parts))
    thread.close()
    found = {part.job: (part.phase, part.status) for part in thread.news().parts}
    assert found == {1: ("ended", 3), 2: ("ended", -signal.SIGKILL), 3: ("ended", 0)}


def test_a_job_of_another_user_is_refused(tmp_path: Path, runner: JobRunner) -> None:
    runner.start(start(tmp_path, "touch ran", uid=os.geteuid() + 1))
    assert runner.parts()[0].phase == "refused"
    assert not (tmp_path / "ran").exists()


def test_a_command_that_is_not_there_says_so(tmp_path: Path, runner: JobRunner) -> None:
    runner.start(start(tmp_path, "", command=["/no/such/program"]))
    part = ended(runner)
    assert (part.status, part.detail) == (127, "/no/such/program: No such file or directory")


def test_an_agent_that_comes_back_knows_its_job_again_and_its_end(tmp_path: Path, runner: JobRunner) -> None:
    runner.start(start(tmp_path, "sleep 0.5; exit 4"))
    runner.start(start(tmp_path, "sleep 1000", job=2))
    until(lambda: (tmp_path / "jobs/2.1" / STEP).exists() and (tmp_path / "jobs/1.1" / STEP).exists())
    again = JobRunner(tmp_path / "jobs", "n0")
    until(lambda: is_over(again))
    assert [(part.job, part.phase, part.status) for part in again.parts()] == [(1, "ended", 4), (2, "running", 0)]
    again.signal(JobSignal(2, 1, signal.SIGTERM))
    until(lambda: is_over(again, 2))
    assert again.parts()[1].status == -signal.SIGTERM


def test_a_job_whose_own_process_was_killed_is_lost_and_leaves_nothing_running(
    tmp_path: Path, runner: JobRunner
) -> None:
    runner.start(start(tmp_path, "echo $$ >pid; sleep 1000"))
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    os.kill(json.loads((tmp_path / "jobs/1.1" / STEP).read_text())["pid"], signal.SIGKILL)
    assert ended(runner).phase == "lost"
    until(lambda: start_time(int((tmp_path / "pid").read_text())) is None)


def test_agents_killed_while_jobs_run_lose_none_and_run_none_twice(tmp_path: Path) -> None:
    seeded = random.Random(1)
    agent = Agent(tmp_path, 3)
    for i in range(10):
        text = f"echo {i} >>ran; sleep 0.{seeded.randint(1, 5)}; exit {i % 2}"
        agent.partition.submit(os.geteuid(), "me", JobSpec(["/bin/sh", "-c", text], 60, str(tmp_path)))
    del agent
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for _ in range(4):
        command = [sys.executable, "-m", "tests.live.agent", str(tmp_path), "3"]
        process = subprocess.Popen(command, env=environment, cwd=ROOT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(seeded.uniform(0.6, 1.2))
        process.kill()
        process.wait()
    last = Agent(tmp_path, 3)
    last.until_over()
    assert sorted((tmp_path / "ran").read_text().split(), key=int) == [str(i) for i in range(10)]
    found = [(job.state, job.status, job.attempt) for job in last.store.find()]
    assert found == [("failed", 1, 1) if i % 2 else ("done", 0, 1) for i in range(10)]


KILLS = 100
KILLED = f"""
import json, os, random, signal, sys, time
from pathlib import Path
from foundation.wire.job_messages import JobStart
from nodectl.jobs.processes import JobRunner
at, wanted, seeded = Path(sys.argv[1]), json.loads(sys.argv[2]), random.Random(2)
for number in range({KILLS}):
    heard, says = os.pipe()
    child = os.fork()
    if not child:
        runner = JobRunner(at / "jobs", "n0", halves=({{0}}, {{1}}))
        for one in wanted:
            runner.start(JobStart(**one))
        os.write(says, b".")
        while True:
            runner.parts()
    os.close(says)
    if number % 2:  # the others are killed wherever they are
        os.read(heard, 1)
    os.close(heard)
    time.sleep(seeded.uniform(0, 0.02))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two CPUs are needed")
def test_two_jobs_of_one_user_on_a_node_keep_their_halves_and_ends_apart_through_a_hundred_kills_of_the_runner(
    tmp_path: Path,
) -> None:
    allowed = "$(sed -n 's/Cpus_allowed_list:.//p' /proc/self/status)"
    text = f"while [ ! -e go ]; do sleep 0.05; done; echo $NODECTL_JOB_ID on {allowed} >>ran; exit $NODECTL_JOB_ID"
    wanted = [start(tmp_path, text, job, output=f"out{job}", half=job - 1) for job in (1, 2)]
    given = json.dumps([{name: getattr(one, name) for name in one.__struct_fields__} for one in wanted])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), given], env=environment, cwd=ROOT, check=True)
    runner = JobRunner(tmp_path / "jobs", "n0")
    assert [(part.job, part.phase) for part in runner.parts()] == [(1, "running"), (2, "running")]
    (tmp_path / "go").touch()
    until(lambda: is_over(runner) and is_over(runner, 2))
    assert [(part.job, part.phase, part.status) for part in runner.parts()] == [(1, "ended", 1), (2, "ended", 2)]
    assert sorted((tmp_path / "ran").read_text().splitlines()) == ["1 on 0", "2 on 1"]
    for job in (1, 2):
        runner.forget(JobForget(job, 1))
    name = sha256_hex(os.fsencode(tmp_path / "jobs"))[:12]
    assert not [at for at, _ in mounts("cpuset") if list(at.glob(f"*{name}*"))], "a cpuset was left"


TICKS = f"PYTHONPATH={ROOT} {sys.executable} -c 'from nodectl.progress import tick; tick(7)'"


def test_a_job_reports_its_progress_in_a_file_that_is_gone_when_it_has_ended(tmp_path: Path, runner: JobRunner) -> None:
    runner.start(start(tmp_path, f"{TICKS}; {TICKS}; touch told; while [ ! -e go ]; do sleep 0.01; done"))
    until((tmp_path / "told").exists)
    counter = runner.counter(1, 1)
    assert counter is not None and counter.read() == 14
    path = tmp_path / "jobs" / "1.1" / "progress"
    assert path.stat().st_size == 64 and path.stat().st_mode & 0o777 == 0o600
    (tmp_path / "go").touch()
    assert ended(runner).status == 0
    assert not path.exists() and runner.counter(1, 1) is None


def test_a_job_gives_hints_on_a_page_that_is_gone_when_it_has_ended(tmp_path: Path, runner: JobRunner) -> None:
    gives = f"PYTHONPATH={ROOT} {sys.executable} -c 'from nodectl import hints; hints.kernel()'"
    desk = JobThread(runner, "n0", "boot")
    try:
        assert desk.hint_page() is None
        desk.post(start(tmp_path, f"{gives}; touch told; while [ ! -e go ]; do sleep 0.01; done"))
        until((tmp_path / "told").exists)
        until(lambda: desk.hint_page() is not None)
        page = desk.hint_page()
        assert page is not None and page.read(1).kernels == 1
        path = tmp_path / "jobs" / "1.1" / "hints"
        assert path.stat().st_size == 64 and path.stat().st_mode & 0o777 == 0o600
        os.rename(path, path.with_name("mine"))  # it runs as the agent's own user, who may do that
        path.symlink_to("mine")
        with pytest.raises(PmuError, match="symbolic links"):
            runner.hint_page(1, 1)
        (tmp_path / "go").touch()
        until(lambda: desk.hint_page() is None)
        until(lambda: not path.is_symlink() and not path.exists())
    finally:
        (tmp_path / "go").touch()
        desk.close()


def test_the_loop_hears_the_only_running_job_and_neither_of_two(tmp_path: Path, runner: JobRunner) -> None:
    desk = JobThread(runner, "n0", "boot")
    try:
        assert desk.progress() == NO_RAW_PROGRESS
        for job in (1, 2):
            text = f"{TICKS}; touch told{job}; while [ ! -e go{job} ]; do sleep 0.01; done"
            desk.post(start(tmp_path, text, job=job, output=f"out{job}"))
            if job == 1:
                until((tmp_path / "told1").exists)
                until(lambda: desk.progress() == RawProgress(1, 7))
        until((tmp_path / "told2").exists)
        until(lambda: len([part for part in desk.news().parts if part.phase == "running"]) == 2)
        assert desk.progress() == NO_RAW_PROGRESS
        (tmp_path / "go1").touch()
        until(lambda: desk.progress() == RawProgress(2, 7))  # another run of another program: another source
        (tmp_path / "go2").touch()
        until(lambda: desk.progress() == NO_RAW_PROGRESS)
    finally:
        for job in (1, 2):
            (tmp_path / f"go{job}").touch()
        desk.close()
