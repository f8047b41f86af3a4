"""Our engine orders a real Slurm's queue: from its release to a job's start, and kills of each part.

A real Slurm 22.05 (scripts/slurm.sh) with a slurmd for each node on this machine, `clusterctl slurm schedule` with the
policy easy, and one array of jobs of one node. The time is from the release (before scontrol runs) to the first line of
the job's script; then the decisions of the schedule's log are made again by the plain reference (tests/oracle) and
compared one by one. In the second part jobs of one to three nodes come, and slurmctld, a slurmd or the schedule is
killed with SIGKILL at a drawn moment and started again a little later; or the schedule stays away until its jobs have
started by Slurm. What must be true: no run has started twice, every job that Slurm accepted has run (a killed slurmctld
may lose one), and without the schedule none waits longer than the deferral and Slurm's own pass. Slurm's recovery
leaves jobs that only a release starts and nodes that are drained: those are released and resumed, as an administrator
does. Needs root.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from statistics import median
from typing import Any, Final

from benchmarks.experiment import save
from benchmarks.slurm import options
from foundation.shell.text_table import render
from tests.slurm.site import ROOT, Site, SiteError
from tests.slurm.test_schedule import decided_again

DEFER_S: Final = 30
WITHIN_S: Final = 10.0
"""Ours: Slurm's own pass, which is due every two seconds, at this machine's load."""

CLUSTERCTL: Final = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "cluster_agent.cli"]
JOB: Final = """#!/bin/sh
name=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
echo >>%s/$name.${SLURM_RESTART_COUNT:-0}
sleep $1
"""


MEND: Final = """
for job in $(squeue -h -t PD -o '%A %Q' | awk '$2 == 0 { print $1 }'); do scontrol release $job || true; done
for node in $(sinfo -h -N -t drain,down -o %N | sort -u); do scontrol update nodename=$node state=resume || true; done
"""


class Scheduled:
    """A Slurm whose partition the schedule orders. ``ran`` has a file for each run, with a line for each start;
    ``more``: options of `slurm install`."""

    def __init__(self, site: Site, *more: str, defer_s: int = DEFER_S) -> None:
        self.site, self.ran, self.log = site, site.at / "ran", site.at / "log" / "schedule"
        self.ran.mkdir()
        self.ran.chmod(0o777)
        (self.ran / "job.sh").write_text(JOB % self.ran)
        (self.ran / "job.sh").chmod(0o755)
        words = ["slurm", "install", "--yes", "--schedule", "all", "--defer", str(defer_s)]
        site.run(*CLUSTERCTL, *words, *(more or ("--hook", "/bin/true")))
        site.restart_controller()
        self.logs = 0
        self.start()

    def start(self) -> None:
        """Each process has a log of its own."""
        self.logs += 1
        self.log = self.site.at / "log" / f"schedule.{self.logs}"
        words = [*CLUSTERCTL, "slurm", "schedule", "--log", str(self.log)]
        with open(self.site.at / "log" / "schedule.err", "ab") as file:
            command = [*self.site.within, "setpriv", "--pdeathsig", "KILL", *words]
            self.process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        self.site.until(lambda: self.log.exists() and b'"begin"' in self.log.read_bytes())

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def submit(self, *words: str, seconds: float, user: str = "alice") -> str:
        given = [
            "sbatch",
            "--parsable",
            "-t",
            "2",
            "-o",
            "/dev/null",
            *words,
            str(self.ran / "job.sh"),
            f"{seconds:.1f}",
        ]
        return self.site.run(*given, user=user).strip()

    def starts(self) -> dict[str, int]:
        return {path.name: path.read_text().count("\n") for path in self.ran.glob("[0-9]*")}

    def is_empty(self) -> bool:
        done = subprocess.run([*self.site.within, "squeue", "-h"], capture_output=True, check=False)
        return done.returncode == 0 and not done.stdout.strip()

    def mend(self) -> None:
        self.site.shell(MEND)


def act(site: Site, *more: str) -> list[tuple[str, ...]]:
    """Seven jobs of three users, which the policy starts in another order than Slurm's: a row for each, in the order of
    their starts. Of the demonstration (slurm_joules.py)."""
    there = Scheduled(site, *more)
    sizes = [(3, 8.0), (4, 4.0), (2, 4.0), (1, 4.0), (1, 3.0), (3, 3.0), (1, 3.0)]
    limits, users = ("1", "2", "2", "1", "3", "2", "1"), itertools.cycle(("alice", "bob", "carol"))
    jobs = {}
    for (width, seconds), limit in zip(sizes, limits, strict=True):
        user = next(users)
        jobs[there.submit(f"-N{width}", "-t", limit, seconds=seconds, user=user)] = (user, width, limit)
    site.until(there.is_empty, patience_s=600)
    there.kill()
    released = [line for line in map(json.loads, there.log.read_text().splitlines()) if line[0] == "command"]
    words = [dict(word.split("=", 1) for word in line[2].split()[1:]) for line in released]
    found = {one["jobid"]: one["nodelist"] for one in words if one.get("nodelist")}
    began = {path.name.partition(".")[0]: path.stat().st_mtime for path in there.ran.glob("[0-9]*")}
    first_s = min(began.values())
    order = sorted(jobs, key=lambda job: began[job])
    return [
        (job, jobs[job][0], str(jobs[job][1]), f"{jobs[job][2]} min", f"{began[job] - first_s:.1f}", found.get(job, ""))
        for job in order
    ]


def latency(nodes: int, jobs: int) -> dict[str, Any]:
    """Of one array of ``jobs`` of one node each."""
    with Site(nodes, accounting=False) as site:
        there = Scheduled(site, defer_s=600)  # to move 1,000 begin times on takes longer than half of DEFER_S
        began_s = time.monotonic()
        there.submit(f"--array=1-{jobs}", seconds=2.0)
        site.until(there.is_empty, patience_s=3600)
        took_s = time.monotonic() - began_s
        there.kill()
        began = {path.name.rpartition(".")[0]: path.stat().st_mtime for path in there.ran.glob("[0-9]*")}
        waits_s = []
        for line in map(json.loads, there.log.read_text().splitlines()):
            if line[0] == "command" and " starttime=now " in line[2]:
                key = line[2].split()[1].removeprefix("jobid=")
                waits_s.append(began[key] - line[1])
        compared = decided_again(there.log.read_bytes(), "easy")
        twice = sum(count > 1 for count in there.starts().values())
    ordered = sorted(waits_s)
    return {
        "nodes": nodes, "jobs": jobs, "started": len(began), "released": len(ordered), "p50_s": median(ordered),
        "p99_s": ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))], "worst_s": ordered[-1],
        "compared": compared, "twice": twice, "took_s": took_s, "load": os.getloadavg()[0],
    }  # fmt: skip


def kills(times: int, seed: int = 5) -> dict[str, Any]:
    """``times`` of each kind."""
    drawn, kinds = random.Random(seed), ("slurmctld", "slurmd", "schedule", "schedule for good")
    plan = [kind for _ in range(times) for kind in drawn.sample(kinds, len(kinds))]
    latest_s, mended, lost = 0.0, 0, list[tuple[str, str]]()
    with Site(4, accounting=False) as site:
        there = Scheduled(site)
        for kind in plan:
            jobs = [there.submit(f"-N{drawn.randint(1, 3)}", seconds=drawn.uniform(0.5, 2.0)) for _ in range(5)]
            time.sleep(drawn.uniform(0.0, 3.0))
            began_s = time.monotonic()
            if kind == "slurmctld":
                site.shell("kill -9 $(cat /run/slurm/slurmctld.pid)")
                time.sleep(drawn.uniform(0.2, 1.5))
                site.shell("setpriv --reuid slurm --regid slurm --clear-groups slurmctld")
            elif kind == "slurmd":
                name = f"n0{drawn.randint(1, 4)}"
                site.shell(f"kill -9 $(cat /run/slurm/slurmd.{name}.pid)")
                time.sleep(drawn.uniform(0.2, 1.5))
                site.shell(f"slurmd -N {name}")
            else:
                there.kill()
                if kind == "schedule for good":
                    waiting = {job for job in jobs if f"{job}.0" not in there.starts()}
                    site.until(lambda: all(f"{job}.0" in there.starts() for job in waiting), patience_s=300)  # noqa: B023
                    latest_s = max(latest_s, time.monotonic() - began_s)
                there.start()
            mend_s = time.monotonic() + 10.0
            while not there.is_empty():
                time.sleep(0.5)
                if time.monotonic() > mend_s:
                    with contextlib.suppress(SiteError):
                        there.mend()
                    mended, mend_s = mended + 1, time.monotonic() + 10.0
            starts = there.starts()
            lost += [(job, kind) for job in jobs if f"{job}.0" not in starts]
            print(f"{kind}: {time.monotonic() - began_s:.1f} s", file=sys.stderr, flush=True)
        there.kill()
        starts = there.starts()
        text = (site.at / "log" / "schedule.err").read_text()
    return {
        "kills": dict(Counter(plan)), "runs": len(starts),
        "twice": sorted(name for name, count in starts.items() if count > 1),
        "lost": lost, "latest_s": latest_s, "mended": mended, "tracebacks": text.count("Traceback"),
        "load": os.getloadavg()[0],
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    is_quick = options(arguments, __doc__, "8 nodes and 100 jobs instead of 32 and 1,000; 2 kills of each kind, not 20")
    if is_quick is None:
        return 0
    found = latency(*((8, 100) if is_quick else (32, 1000)))
    print("{released} releases of {jobs} jobs on {nodes} nodes: start after p50 {p50_s:.2f} s, p99 {p99_s:.2f} s, "
          "at worst {worst_s:.2f} s".format(**found))  # fmt: skip
    print("{compared} starts are those of the reference fed with the same events (load {load:.0f})".format(**found))
    killed = kills(2 if is_quick else 20)
    print(render(("killed", "times"), [(kind, str(count)) for kind, count in killed["kills"].items()]))
    print("{runs} runs, started twice: {twice}; lost: {lost}; Slurm was mended {mended} times".format(**killed))
    print(f"without the schedule all started by Slurm after {killed['latest_s']:.1f} s, of {DEFER_S} s stated")
    save("slurm_schedule", {"latency": found, "kills": killed})
    is_lost = any(kind != "slurmctld" for _, kind in killed["lost"])
    is_kept = not killed["twice"] and not found["twice"] and not is_lost and not killed["tracebacks"]
    return 0 if is_kept and killed["latest_s"] <= DEFER_S + WITHIN_S and found["compared"] >= found["jobs"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
