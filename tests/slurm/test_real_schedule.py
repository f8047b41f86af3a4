"""Our engine orders the queue of a real Slurm: its users cannot overtake, nobody starts twice, and without the schedule
jobs are Slurm's again. Takes some 50 s, since a Slurm has to come up and jobs to run and to wait for begin times."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.site import ROOT, Site, why_no_slurm
from tests.slurm.test_schedule import decided_again

if why_no_slurm():
    pytest.skip(why_no_slurm(), allow_module_level=True)

DEFER_S = 20
CLUSTERCTL = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "cluster_agent.cli"]


class Scheduled:
    """A Slurm of four nodes, and the schedule as a process there; ``ran`` has a file for each run of each job."""

    def __init__(self, site: Site) -> None:
        self.site, self.ran, self.log = site, site.at / "ran", site.at / "log" / "schedule"
        self.ran.mkdir()
        self.ran.chmod(0o777)
        (self.ran / "job.sh").write_text(
            f"#!/bin/sh\necho >>{self.ran}/$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}; sleep $1\n"
        )
        (self.ran / "job.sh").chmod(0o755)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["setpriv", "--pdeathsig", "KILL", *CLUSTERCTL, "slurm", "schedule", "--every", "0.3"]
        said, line = self.site.at / "log" / "schedule.err", "schedules partition all by easy"
        before = said.read_text().count(line) if said.exists() else 0
        with open(said, "ab") as file:
            self.process = subprocess.Popen(
                [*self.site.within, *words, "--log", str(self.log)], stdout=file, stderr=file, start_new_session=True
            )
        self.site.until(lambda: said.read_text().count(line) > before)

    def kill(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def submit(self, *options: str, seconds: float = 0.5, user: str = "alice") -> str:
        words = ["sbatch", "--parsable", "-t", "2", "-o", "/dev/null", *options, str(self.ran / "job.sh"), str(seconds)]
        return self.site.run(*words, user=user).strip()

    def show(self, job: str) -> dict[str, str]:
        words = self.site.run("scontrol", "-o", "show", "job", job).split()
        return dict(word.partition("=")[::2] for word in words)

    def runs(self) -> dict[str, int]:
        return {path.name: path.read_text().count("\n") for path in self.ran.glob("[0-9]*")}

    def until_empty(self) -> None:
        self.site.until(lambda: not self.site.run("squeue", "-h").strip())


@pytest.fixture(scope="module")
def there() -> Iterator[Scheduled]:
    with Site(4, accounting=False) as site:
        made = Scheduled(site)
        words = ["slurm", "install", "--yes", "--schedule", "all", "--defer", str(DEFER_S), "--hook", "/bin/true"]
        assert f"+local DEFER = {DEFER_S}" in site.run(*CLUSTERCTL, *words)
        site.restart_controller()
        yield made
        if made.process is not None and made.process.poll() is None:
            made.kill()
        assert "Traceback" not in (site.at / "log" / "schedule.err").read_text()


def refused(there: Scheduled, *command: str) -> str:
    """What Slurm says to alice's command, which fails."""
    said = there.site.shell(f"runuser -u alice -- {' '.join(command)} 2>&1 && echo done || true")
    assert not said.endswith("done\n"), said
    return said


def test_a_user_can_edit_a_deferred_job_and_not_release_it(there: Scheduled) -> None:
    job = there.submit()
    shown = there.show(job)
    assert shown["JobState"] == "PENDING" and shown["AdminComment"] == "nodectl:"
    assert "Job is in held state, pending scheduler release" in refused(
        there, f"scontrol update jobid={job} starttime=now"
    )
    there.site.run("scontrol", "update", f"jobid={job}", "timelimit=1", "starttime=now+1000", user="alice")
    there.site.run("scontrol", "release", job, user="alice")
    ahead_s = int(there.site.shell(f"SLURM_TIME_FORMAT=%s squeue -h -j {job} -O EligibleTime")) - time.time()
    assert 1000 + DEFER_S - 60 < ahead_s <= 1000 + DEFER_S + 1, "its own begin time, and the deferral on top"
    assert there.show(job)["TimeLimit"] == "00:01:00"
    there.site.run("scancel", job)


def test_jobs_start_as_the_policy_decides_and_the_log_repeats_it(there: Scheduled) -> None:
    there.start()
    jobs = [there.submit("-N3", seconds=3.0)]
    there.site.until(lambda: f"{jobs[0]}.0" in there.runs())
    jobs += [there.submit(f"-N{width}") for width in (4, 1, 2)]
    there.submit("-N1", "--array=1-3", user="bob")
    after = there.submit("-N1", f"--dependency=afterok:{jobs[1]}")
    jobs += [there.submit("-N1", "-w", "n04"), there.submit("-N1", "-x", "n[01-03]")]
    comments = [there.site.shell(f"scontrol -o show job {job}").count(" (requires nodes)") for job in jobs[-2:]]
    there.site.until(lambda: len(there.runs()) == 6 + 3 + 1)
    assert comments == [1, 0] and {there.show(job)["BatchHost"] for job in jobs[-2:]} == {"n04"}
    lines = [json.loads(line) for line in there.log.read_text().splitlines()]
    released = [line[2].split()[1:] for line in lines if line[0] == "command" and line[2].split()[2] == "starttime=now"]
    assert released[0] == [f"jobid={jobs[0]}", "starttime=now", "nodelist=n01,n02,n03"]
    assert [words[0] for words in released].index(f"jobid={after}") > [words[0] for words in released].index(
        f"jobid={jobs[1]}"
    )
    runs = there.runs()
    assert set(runs.values()) == {1}
    assert decided_again(there.log.read_bytes(), "easy") >= 10


def test_a_slurmctld_that_restarts_in_the_middle_of_releases_starts_nothing_twice(there: Scheduled) -> None:
    """With SIGTERM: what Slurm itself makes of jobs that a SIGKILL catches is in benchmarks/slurm_schedule.py."""
    before = there.runs()
    jobs = [there.submit("-N2", seconds=0.3) for _ in range(4)]
    there.site.until(lambda: len(there.runs()) > len(before))
    there.site.restart_controller()
    there.until_empty()
    runs = {name: count for name, count in there.runs().items() if name.split(".")[0] in jobs}
    assert runs == dict.fromkeys((f"{job}.0" for job in jobs), 1)


def test_without_the_schedule_jobs_start_by_slurm_within_the_deferral_and_requeued_ones_too(there: Scheduled) -> None:
    job = there.submit("-N2", seconds=60)
    there.site.until(lambda: there.show(job)["JobState"] == "RUNNING")
    there.kill()
    gone_s = time.monotonic()
    jobs = [there.submit("-N2") for _ in range(3)]
    there.site.run("scontrol", "requeue", job, user="alice")
    there.site.until(lambda: there.show(job)["Restarts"] == "1" and there.show(job)["JobState"] == "PENDING")
    assert there.show(job)["Reason"] in ("BeginTime", "None")
    names = [*(f"{one}.0" for one in jobs), f"{job}.1"]
    there.site.until(lambda: all(name in there.runs() for name in names), patience_s=DEFER_S + 40)
    assert time.monotonic() - gone_s > DEFER_S - 3
    there.site.run("scancel", job)
    there.start()
    last, both = there.submit("-N1"), there.submit("-N1", ":", "-N1", seconds=0.1, user="bob")
    there.until_empty()
    runs = there.runs()
    assert runs[f"{last}.0"] == 1, "a schedule that comes back goes on"
    assert runs[f"{both}.0"] == 1, "a heterogeneous job is Slurm's to start"
    assert {runs[name] for name in names} == {1}


def test_remove_gives_the_jobs_back(there: Scheduled) -> None:
    there.kill()
    assert "-local DEFER" in there.site.run(*CLUSTERCTL, "slurm", "remove", "--yes")
    there.site.restart_controller()
    job = there.submit()
    eligible_s, submitted_s = there.site.shell(
        f"SLURM_TIME_FORMAT=%s squeue -h -j {job} -O EligibleTime,SubmitTime"
    ).split()
    assert int(eligible_s) <= int(submitted_s) + 1
    assert not Path("/etc/slurm").exists()
