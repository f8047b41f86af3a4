"""The machine of the engine's loop when a real Slurm runs the jobs: what happens is read from Slurm's queue, and starts
are releases, as those of ``clusterctl slurm schedule`` (``cluster_agent.slurm.queue_schedule``).

A job is submitted at its time with a begin time that is far ahead, so Slurm starts it only when it is released: its
begin time becomes now, and its node list that of the release. Without a scheduler jobs have no such begin time, and
Slurm's own backfilling decides.

    log's time = from_s + (real time - origin) x speed

The jobs are one program. It puts a workload on each of its nodes and stays for as long as its file says, which the
release writes: the run time of the log, longer at a lower clock, in real seconds. It notes when it began and ended.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from cluster_agent.errors import ClusterError
from cluster_agent.jobs.times import EngineClock
from cluster_agent.scheduler.interfaces import Event, Kind
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.slurm.queue_table import QueueTable
from lab.riplay.fast_nodes import FastNodes
from lab.riplay.ran_jobs import Part, Ran
from lab.riplay.real_site import Site, SiteError

PROGRAM: Final = """#!/usr/bin/python3 -ISE
import os, socket, sys, time
at, name = sys.argv[1:]

def note(*words):
    with open(f"{at}/ran/{name}.new", "w") as file:
        file.write(" ".join(map(str, words)))
    os.rename(f"{at}/ran/{name}.new", f"{at}/ran/{name}")

note(began_s := time.time())
sockets = []
for part in os.environ["SLURM_JOB_NODELIST"].replace("n", "").strip("[]").split(","):
    first, _, last = part.partition("-")
    for number in range(int(first), int(last or first) + 1):
        one = socket.socket(socket.AF_UNIX)
        one.connect(f"{at}/sockets/n{number:0{len(first)}d}")
        one.sendall(b"hpl\\n")
        sockets.append(one)
refused = {one.recv(200) for one in sockets} - {b"ok\\n"}
while not os.path.exists(f"{at}/origin"):
    time.sleep(0.02)
note(began_s := max(began_s, float(open(f"{at}/origin").read())))
time.sleep(max(began_s + float(open(f"{at}/jobs/{name}").read()) - time.time(), 0))
note(began_s, time.time(), *refused)
"""
AHEAD: Final = "--begin=now+30days"
"""Ours: the begin time of a job that waits for the engine. Nothing moves it on, since the Slurm ends before."""

AT_ONCE: Final = 50
"""Ours: jobs that are submitted by one shell; meanwhile nothing else is looked at."""

MINUTE_S: Final = 60
"""In which Slurm counts time limits."""

SPARE_S: Final = 5.0
"""Ours: real seconds that a job may be late before its limit ends it."""

PARTITION: Final = "all"


@dataclass(frozen=True, slots=True)
class _Submission:
    """``limit_s``: real seconds; ``more``: options of sbatch."""

    job: int
    width: int
    limit_s: float
    more: str


class SlurmMachine:
    """``turn`` looks once, decides and releases. ``scheduler`` None: Slurm decides."""

    def __init__(
        self, site: Site, nodes: FastNodes, names: Sequence[str], part: Part, speed: float,
        scheduler: NativeScheduler | None,
    ) -> None:  # fmt: skip
        self._site, self._nodes, self._part, self._speed, self._scheduler = site, nodes, part, speed, scheduler
        self._table = QueueTable(PARTITION, site.programs("squeue", "sinfo", "scontrol"))
        self._free, self._off = list(names), list[str]()
        self.ran: dict[int, Ran] = {}
        self._key: dict[str, int] = {}  # Slurm's number: the job
        self._next = part.came
        self._ends: list[int] = []
        self._end_s: dict[int, int] = {}
        self._overruns: list[tuple[int, int]] = []
        self._submitted: list[int] = []
        self._is_first, self._commands = True, list[str]()
        self._origin_s: float | None = None
        self._clock = EngineClock(self.now)
        for folder in ("jobs", "ran", "sockets"):
            (site.at / folder).mkdir(exist_ok=True)
        self._program = site.at / "program"
        self._program.write_text(PROGRAM)
        self._program.chmod(0o755)

    def now(self) -> float:
        """The log's time."""
        return self.logged_s(time.time())

    def logged_s(self, unix_s: float) -> float:
        """The same of another moment."""
        ran_s = 0.0 if self._origin_s is None else unix_s - self._origin_s
        return self._part.from_s + max(ran_s, 0.0) * self._speed

    # --- before the part begins

    def probe(self, times: int) -> list[float]:
        """Real seconds from the release of a job of one node to its first line, one after the other."""
        took_s = []
        (self._site.at / "origin").write_text("0")
        for number in range(-times, 0):
            self._write(number, 0.0)
            (key,) = self._sbatch([_Submission(number, 1, 1.0, AHEAD)])
            began_s = time.time()
            self._release([f"update jobid={key} starttime=now nodelist={self._free[-1]}"])
            self._site.until(lambda: len(self._noted(number)) > 1)  # noqa: B023
            took_s.append(self._noted(number)[0] - began_s)
        (self._site.at / "origin").unlink()
        self._site.until(lambda: not self._table.read()[0])
        return took_s

    def prepare(self) -> None:
        """Bring in the jobs that run and wait when the part begins. Those that run have their nodes, and do not
        advance."""
        part, has_come = self._part, list[_Submission]()
        for job in sorted(part.left_s):
            self._take(job, int(part.jobs.width[job]), 0)
            self._write(job, part.left_s[job] / self._speed)
            done_s = int(part.jobs.run_s[job]) - part.left_s[job]
            has_come.append(self._submission(job, f"-w {','.join(self.ran[job].nodes)}", done_s))
            self.ran[job].decided_s = float(part.from_s)
        waiting = [job for job in range(part.came) if job not in part.left_s and job not in part.ended]
        has_come += [self._waiting(job) for job in waiting]
        while has_come:
            self._sbatch(has_come[:AT_ONCE])
            del has_come[:AT_ONCE]
        self._site.until(lambda: sum(row.state == "R" for row in self._table.read()[0]) >= len(part.left_s))

    def begin(self) -> None:
        """The part's time begins."""
        self._nodes.begin_meter()
        self._origin_s = time.time()
        made = self._site.at / "origin.new"
        made.write_text(f"{self._origin_s}")
        made.rename(self._site.at / "origin")
        if self._scheduler is not None:
            for job in self._part.left_s:
                self.expect(self._part.from_s, job, self._scheduler.expected_end_s(job))

    # --- while it lasts

    def turn(self) -> None:
        """One look at Slurm's queue, and what follows from it."""
        self._nodes.check()
        there = {row.key: row for row in self._table.read()[0]}
        for key, job in list(self._key.items()):
            row = there.get(key)
            if row is None:
                self._gone(key, job)
            elif row.has_nodes and job not in self.ran:  # Slurm has chosen when, and where
                self.ran[job] = Ran(nodes=row.nodes)
        due = int(self._part.jobs.submit_s.searchsorted(self.now(), "right"))
        if self._next < due:
            some = range(self._next, min(due, self._next + AT_ONCE))
            self._sbatch([self._waiting(job) for job in some])
            self._submitted += some
            self._next = some.stop
        if self._scheduler is not None:
            self._clock.due_s = None
            self._switch()
            run(self._scheduler, self._clock, self)
            self._release(self._commands)
            self._commands = []

    def finish(self) -> None:
        """The part is over: jobs that go on have begun."""
        for job, ran in self.ran.items():
            if ran.start_s is None and (noted := self._noted(job)):
                ran.start_s = self.logged_s(noted[0])

    def _gone(self, key: str, job: int) -> None:
        """A job that Slurm does not have any more."""
        noted, ran = self._noted(job), self.ran.setdefault(job, Ran())
        if len(noted) != 2:
            raise SiteError(f"job {self._part.jobs.number[job]} of the log did not run to its end: {self._words(job)}")
        ran.start_s, ran.end_s = map(self.logged_s, noted)
        ran.seen_s = self.now()
        self._free += ran.nodes if self._scheduler is not None else ()
        self._end_s.pop(job, None)
        del self._key[key]
        self._ends.append(job)

    def _words(self, job: int) -> list[str]:
        try:
            return (self._site.at / "ran" / str(job)).read_text().split()
        except OSError:
            return []

    def _noted(self, job: int) -> list[float]:
        """When it began, and ended, in Unix time; of a job that was refused by a node as many as there are."""
        words = self._words(job)
        return [float(word) for word in words] if len(words) <= 2 else []

    def _switch(self) -> None:
        """As many nodes are off as the plan has for now, as soon as so many are free."""
        assert self._scheduler is not None
        nodes_off = self._scheduler.nodes_off(self._clock.now_s())[0]
        due = nodes_off - len(self._off)
        if due > 0:
            some = self._free[-due:]
            self._free, self._off = self._free[: len(self._free) - len(some)], [*self._off, *some]
        else:
            some = self._off[nodes_off:]
            self._free, self._off = [*self._free, *some], self._off[:nodes_off]
        if some:
            self._nodes.set_off(some, due > 0)
            state = "drain reason=nodectl:off" if due > 0 else "resume"
            self._commands.insert(0, f"update nodename={','.join(some)} state={state}")

    # --- the engine's machine (``scheduler.interfaces.Machine``)

    def events(self, now_s: int) -> Sequence[Event]:
        """Ends, overruns, submissions; at first that a pass is due."""
        found = [Event(Kind.ENDED, job) for job in self._ends]
        self._ends = []
        while self._overruns and self._overruns[0][0] <= now_s:
            end_s, job = heapq.heappop(self._overruns)
            if self._end_s.get(job) == end_s:
                found.append(Event(Kind.OVERRUN, job))
        found += [Event(Kind.SUBMITTED, job) for job in self._submitted]
        self._submitted = []
        if self._is_first:
            self._is_first = False
            found.append(Event(Kind.ROOM, -1))
        return found

    def next_event_s(self) -> int | None:
        """The next expected end."""
        return self._overruns[0][0] if self._overruns else None

    def start(self, at_s: int, job: int, expected_end_s: int, level: int = 0) -> None:
        """Release the job on nodes that are free."""
        self._switch()  # nodes may be on again since this second
        self._take(job, int(self._part.jobs.width[job]), level)
        self.ran[job].decided_s = self.now()
        self._write(job, int(self._part.jobs.run_s[job]) * self._part.slowdown[level] / self._speed)
        (key,) = (key for key, its_job in self._key.items() if its_job == job)
        self._commands.append(f"update jobid={key} starttime=now nodelist={','.join(self.ran[job].nodes)}")
        self.expect(at_s, job, expected_end_s)

    def expect(self, now_s: int, job: int, expected_end_s: int) -> None:
        """Note the job's expected end."""
        self._end_s[job] = expected_end_s
        if expected_end_s > now_s:
            heapq.heappush(self._overruns, (expected_end_s, job))

    def kill(self, now_s: int, job: int) -> None:
        """Policies that react to caps are refused."""
        raise RuntimeError("defect: a policy without a reaction kills a job")

    def set_level(self, now_s: int, job: int, level: int, expected_end_s: int) -> None:
        """The same."""
        raise RuntimeError("defect: a policy without a reaction sets a level")

    # --- inside

    def _take(self, job: int, width: int, level: int) -> None:
        if len(self._free) < width:
            raise SiteError(f"{width} nodes are needed, and {len(self._free)} are free")
        nodes, self._free = tuple(self._free[:width]), self._free[width:]
        self.ran[job] = Ran(level=level, nodes=nodes)
        self._nodes.set_clock(nodes, self._part.machine.node.frequency_mhz[level])

    def _write(self, job: int, real_s: float) -> None:
        (self._site.at / "jobs" / str(job)).write_text(f"{real_s:.3f}")

    def _waiting(self, job: int) -> _Submission:
        if self._scheduler is not None:
            return self._submission(job, AHEAD)
        self._write(job, int(self._part.jobs.run_s[job]) / self._speed)
        return self._submission(job, "")

    def _submission(self, job: int, more: str, done_s: int = 0) -> _Submission:
        jobs = self._part.jobs
        return _Submission(job, int(jobs.width[job]), (int(jobs.request_s[job]) - done_s) / self._speed, more)

    def _sbatch(self, some: Sequence[_Submission]) -> list[str]:
        """Submit them; the numbers that Slurm gives them. Limits are for Slurm's own backfilling; with the engine jobs
        end by themselves."""
        at, lines = self._site.at, list[str]()
        for one in some:
            limit = f"-t {ceil((one.limit_s + SPARE_S) / MINUTE_S)}" if self._scheduler is None else ""
            words = f"-J riplay-{one.job} -N {one.width} {limit} {one.more} -D / -o /dev/null"
            lines.append(f"sbatch --parsable {words} {self._program} {at} {one.job}")
        keys = self._site.shell("\n".join(lines)).split()
        self._key |= {key: one.job for key, one in zip(keys, some, strict=True) if one.job >= 0}  # else it is a probe
        return keys

    def _release(self, commands: Sequence[str]) -> None:
        for complaint in self._table.update(commands) if commands else ():
            raise ClusterError(f"scontrol: {complaint}")
