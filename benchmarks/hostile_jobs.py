"""Jobs that do not want to end: each hostile way, many times, against a node's real job runner and a real partition.

Nodes side by side, each with its job runner, job steps and processes; the queue of the cluster agent gives each node a
hostile job and then a successor. Jobs run as a user of their own, so that what lives of a job is counted by what
nodectl knows nothing of: the owner of each process in /proc. Counted are processes left 5 s after the job had to end
(its first process ended, or its walltime or cancel and the grace were over), records that say what was not, and jobs
that began while a process of the job before lived on their node. The states of nodes are on small disks of their own.

Once more with what a kernel may lack: without cgroup.kill, with version 1, without cgroups; and for the ways that make
sense for it with jobs of the agent's own user.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest import mock

import psutil

from benchmarks.experiment import save
from cluster_agent.jobs.job import OVER, Job, JobSpec
from cluster_agent.jobs.live_jobs import Partition
from cluster_agent.jobs.times import Times
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.store.database import Database
from cluster_agent.store.job_store import JobStore
from foundation.steady_clock import steady_time
from foundation.wire.job_messages import NodeJobs
from nodectl.jobs import cgroups
from nodectl.jobs.cgroups import Cgroup
from nodectl.jobs.job_runner import deliver
from nodectl.jobs.job_user import JobUser, user_of
from nodectl.jobs.processes import JobRunner
from tests.live.hostile import PRELUDE, WAYS, Way

FIRST_UID: Final = 61_000
"""Users that nobody has; jobs need none in the user database."""

LEFT_S: Final = 5.0
WALLTIME_S, GRACE_S = 2, 1
PATIENCE_S: Final = 120.0
DISK: Final = "size=8m,mode=0755"

KINDS: Final = ("cgroup v2", "cgroup v2 without cgroup.kill", "cgroup v1", "no cgroup", "own user, cgroup v2")

EXPECTED: Final = {"own": {"done", "failed"}, "walltime": {"timeout"}, "cancel": {"cancelled"}}


@dataclass
class Found:
    """What one way did, in all its trials."""

    trials: int = 0
    left: int = 0
    false_records: int = 0
    shared: int = 0
    not_over: int = 0
    last_s: list[float] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


class Node:
    """One node, and the trial that runs on it."""

    def __init__(self, at: Path, number: int, kind: str) -> None:
        self.name, self.kind, self.at = f"n{number}", kind, at / f"n{number}"
        self.at.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", str(self.at)], check=True)
        own = user_of(os.geteuid())
        uid = FIRST_UID + number
        self.user = own if kind.startswith("own") else JobUser(f"hostile{number}", uid, uid, (uid,), "/")
        with _having(kind):
            self.runner = JobRunner(self.at / "jobs", self.name, self.user)
        self.hostile: Job | None = None
        self.successor: Job | None = None
        self.way: Way = WAYS[0]
        self.places: list[Path] = []

    def begin(self, partition: Partition, way: Way, trial: int) -> None:
        """Submit the job and its successor."""
        self.way, self.key = way, f".{self.name[1:]}{trial:04}"
        self.begun_s, self.cancelled_s, self.alive_s, self.over_s = time.time(), 0.0, 0.0, 0.0
        shutil.rmtree(self.at / "w", ignore_errors=True)
        self.places = [self.at / "w" / "h", self.at / "w" / "v"]
        for place in self.places:
            place.mkdir(parents=True)
            os.chown(place, self.user.uid, self.user.gid)
        os.chown(self.at / "w", self.user.uid, self.user.gid)
        env = {"K": self.key}
        self.hostile = partition.submit(self.user.uid, "x", JobSpec(
            ["/bin/sh", "-c", PRELUDE + way.text], WALLTIME_S if way.end == "walltime" else 60, str(self.places[0]),
            grace_s=GRACE_S, env=env, output="out", prolog=way.prolog, epilog=way.epilog,
        ), on=[self.name])  # fmt: skip
        self.successor = partition.submit(self.user.uid, "x", JobSpec(
            ["/bin/sh", "-c", PRELUDE], 60, str(self.places[1]), output="out", env=env,
        ), on=[self.name])  # fmt: skip

    def look(self, partition: Partition, lives: bool) -> bool:
        """Note what lives; True when the trial is over."""
        assert self.hostile and self.successor
        now_s = time.time()
        if lives:
            self.alive_s = now_s
        if self.way.end == "cancel" and not self.cancelled_s and (self.places[0] / "ready").exists():
            self.cancelled_s = self.cancelled_s or now_s
            if now_s - (self.places[0] / "ready").stat().st_mtime > 0.3:
                partition.cancel(self.hostile)
            else:
                self.cancelled_s = 0.0
        if self.successor.state in OVER and not self.over_s:
            self.over_s = now_s
        return bool(self.over_s) and now_s - self.over_s > 0.3 and not lives

    def due_s(self) -> float:
        """When nothing of the job must live any more."""
        assert self.hostile
        began_s = self.hostile.started_s or self.begun_s
        if self.cancelled_s:
            return self.cancelled_s + GRACE_S
        if self.way.end == "walltime":
            # from the start of the job's own first process, which its job step had to start first
            with contextlib.suppress(OSError):
                began_s = (self.places[0] / "out").stat().st_ctime if self.hostile.attempt == 1 else began_s
            return self.first_s() + WALLTIME_S + GRACE_S
        with contextlib.suppress(OSError):
            return (self.places[0] / "ended").stat().st_mtime
        return self.hostile.ended_s or began_s

    def first_s(self) -> float:
        """When the job's last attempt began."""
        found = [path.stat().st_mtime for path in self.places[0].glob("others.*")]
        return max(found, default=self.begun_s)

    def judge(self, found: Found) -> None:
        """Count what was wrong."""
        assert self.hostile and self.successor
        found.trials += 1
        last_s = max(self.alive_s - self.due_s(), 0.0)
        found.last_s.append(last_s)
        found.left += last_s > LEFT_S
        expected = EXPECTED[self.way.end] | ({"lost", "failed"} if self.kind.startswith("own") else set())
        is_false = self.hostile.state not in expected or self.successor.state != "done"
        is_false |= self.way.end == "own" and self.hostile.status != self.way.status
        if is_false:
            found.false_records += 1
            found.remarks.append(f"{self.hostile.state} {self.hostile.status}, {self.hostile.reason}; successor"
                                 f" {self.successor.state} {self.successor.reason}")  # fmt: skip
        for place in self.places:
            for file in place.glob("others.*"):
                if self.way.prolog and place == self.places[0]:
                    continue  # what the job itself started before
                if not self.kind.startswith("own") and len(file.read_text().split()) > 2:
                    found.shared += 1
                    found.remarks.append(f"{file.name}: {file.read_text().split()}")


@contextlib.contextmanager
def _having(kind: str) -> Iterator[None]:
    """A node that has this kind of cgroups."""
    version = 1 if kind == "cgroup v1" else 0 if kind == "no cgroup" else 2
    all_mounts = cgroups.mounts
    with mock.patch.object(
        cgroups, "mounts", lambda *of: [mount for mount in all_mounts(*of) if mount.version == version]
    ):
        yield


def run(ways: Sequence[Way], trials: int, kind: str, nodes: int, at: Path) -> dict[str, Found]:
    """Every way so many times, on some nodes at once."""
    found = {way.name: Found() for way in ways}
    waiting = [(way, trial) for trial in range(trials) for way in ways][::-1]
    if kind == "cgroup v2 without cgroup.kill":
        mock.patch.object(Cgroup, "_has_kill", False).start()
    if kind == "no cgroup" or kind.startswith("own"):
        pass
    there = [Node(at, number, kind) for number in range(nodes)]
    store = JobStore(Database(at / "cluster.db"))
    partition = Partition([node.name for node in there], Composition(), store, steady_time(), times=Times(retry_s=0.5))
    by_name = {node.name: node for node in there}
    busy: list[Node] = []
    began_s = time.monotonic()
    while waiting or busy:
        for node in there:
            partition.heard(NodeJobs(node.name, "boot", node.runner.parts(), refuses=node.runner.refuses))
        partition.turn()
        outbox, partition.outbox = partition.outbox, []
        for name, message in outbox:
            deliver(by_name[name].runner, message)
        alive = _alive(there)
        for node in list(busy):
            over = node.look(partition, node.name in alive)
            late = time.time() - node.begun_s > PATIENCE_S
            if over or late:
                found[node.way.name].not_over += not over
                node.judge(found[node.way.name])
                busy.remove(node)
        for node in there:
            if node not in busy and waiting:
                node.begin(partition, *waiting.pop())
                busy.append(node)
        time.sleep(0.02)
    print(f"{kind}: {time.monotonic() - began_s:.0f} s", file=sys.stderr)
    mock.patch.stopall()
    return found


def _alive(nodes: Sequence[Node]) -> set[str]:
    """The nodes on which a process of a hostile job lives: one of its user that is no successor, or, of our own user,
    one with the trial's number in its command line."""
    by_uid = {node.user.uid: node for node in nodes if not node.kind.startswith("own")}
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            owner = by_uid.get(os.stat(f"/proc/{name}").st_uid)
            if owner is not None and owner.name not in found and owner.hostile:
                state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                is_dead = state[0] == "X" or (state[0] == "Z" and int(state[17]) < 2)
                if not is_dead and not _is_successor(owner, int(state[3])):
                    found.add(owner.name)
            elif not by_uid:
                line = Path(f"/proc/{name}/cmdline").read_bytes()
                found.update(node.name for node in nodes if node.hostile and f"1000{node.key}\0".encode() in line)
        except OSError:
            continue
    return found


def _is_successor(node: Node, session: int) -> bool:
    assert node.successor
    with contextlib.suppress(OSError):
        file = node.at / "jobs" / f"{node.successor.id}.{node.successor.attempt}" / "session"
        return str(session) in file.read_text().split()
    return False


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile_jobs", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="each way once of each kind")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this kind of node")
    parser.add_argument("--trials", type=int, help="how often each way is tried")
    parser.add_argument("--nodes", type=int, default=8, help="how many trials run side by side")
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        raise SystemExit("hostile_jobs: needs root, to run jobs as other users and to mount small disks")
    if "HOSTILE_JOBS_INSIDE" not in os.environ:  # mounts of its own, which end with it
        command = ["unshare", "--mount", sys.executable, "-m", "benchmarks.hostile_jobs", *(arguments or sys.argv[2:])]
        return subprocess.run(command, env={**os.environ, "HOSTILE_JOBS_INSIDE": "1"}, check=False).returncode
    rows = []
    for kind in options.kind or KINDS:
        trials = options.trials or (1 if options.quick else 50 if kind == KINDS[0] else 10)
        ways = [way for way in WAYS if not (kind.startswith("own") and way.needs_user)]
        with tempfile.TemporaryDirectory(prefix="hostile-", dir="/dev/shm") as directory:
            os.chmod(directory, 0o755)
            found = run(ways, trials, kind, options.nodes, Path(directory))
            for number in range(options.nodes):
                subprocess.run(["umount", "-l", f"{directory}/n{number}"], check=False)
        rows += [_row(kind, name, one) for name, one in found.items()]
    summary = {
        "rows": rows, "load": round(psutil.getloadavg()[0], 1), "cpus": os.cpu_count(),
        **{key: sum(row[key] for row in rows) for key in ("trials", "left", "false_records", "shared", "not_over")},
    }  # fmt: skip
    save("hostile_jobs", summary)
    print(json.dumps(summary, indent=1))
    return int(any(summary[key] for key in ("left", "false_records", "shared", "not_over")))


def _row(kind: str, name: str, found: Found) -> dict[str, Any]:
    return {
        "kind": kind, "way": name, "trials": found.trials, "left": found.left, "false_records": found.false_records,
        "shared": found.shared, "not_over": found.not_over,
        "median_s": round(statistics.median(found.last_s), 2), "longest_s": round(max(found.last_s), 2),
        "remarks": found.remarks[:3],
    }  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
