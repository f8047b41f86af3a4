"""Nodes that dispatch jobs among themselves while the head is there, while it is gone, and when it is back.

Every part is a process of the product's own: ``clusterctl serve``, which is killed and begun again; an agent and a node
manager on each emulated node; and a ``clusterctl submit --dispatch dardis`` for each job. What ran is counted by what
the jobs have written, not by what anybody says.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from cluster_agent.commands.keys import new
from cluster_agent.errors import ClusterError
from cluster_agent.serve.people_protocol import ListForeign
from foundation.shell.text_table import render
from lab.cluster_demo.account import Steps, over_budget, read_trace
from lab.cluster_demo.emulated_partition import LEASE_S, PATIENCE_S, EmulatedPartition, free_port
from lab.cluster_demo.folder import note_process
from lab.emulated.emulated_jobs import COMMAND
from lab.emulated.watts import watts_of

SHARE: Final = 0.95
"""The budget as a part of the TDP of all nodes: a node is granted more than its safe cap."""
WORK_S: Final = 12
SLOT_S, REPLY_S, PAUSE_S = 2.0, 1.0, 5.0
"""Ours: as short as busy machines bear; a real partition has slots of a minute."""
USER: Final = "alice"


class Phase(msgspec.Struct, frozen=True):
    """Jobs that were submitted in one part of the demo. ``most_s``: from a submission until a lead had the job, at
    most; ``ran``: those that wrote what they should, once on each of their nodes."""

    name: str
    jobs: int
    dispatched: int
    most_s: float
    ran: int


class Without(msgspec.Struct, frozen=True):
    """What happened. ``counted``: the jobs that the head counted when it was back, ``running``: those that ran.
    ``hungry_s``: how long the job waited that no node may run under its safe cap."""

    nodes: int
    budget_w: float
    phases: list[Phase]
    counted: int
    running: int
    twice: int
    hungry_s: float
    over_ws: float
    lines: list[str]

    @property
    def is_kept(self) -> bool:
        """Whether all that docs/dardis.md promises was kept."""
        ran = all(one.jobs == one.dispatched == one.ran for one in self.phases)
        waited = math.isfinite(self.hungry_s)
        return ran and waited and not self.twice and self.counted == self.running and not self.over_ws


HEADINGS: Final = ("part", "jobs", "dispatched", "slowest s", "ran")


def table(found: Without) -> list[str]:
    """For people."""
    rows = [(one.name, str(one.jobs), str(one.dispatched), f"{one.most_s:.1f}", str(one.ran)) for one in found.phases]
    return [
        "", *render(HEADINGS, rows).splitlines(), "",
        f"{found.nodes} nodes, budget {found.budget_w:.0f} W. slowest: from a submission until a node had the job.",
        f"The head counted {found.counted} of the {found.running} jobs that ran when it was back; "
        f"{found.twice} ran twice; {found.over_ws:.1f} W·s were drawn above the budget.",
        f"A job that needs more than a safe cap waited {found.hungry_s:.0f} s, until the head granted its watts."
        if math.isfinite(found.hungry_s) else "A job that needs more than a safe cap was NOT kept back.",
    ]  # fmt: skip


class _Task:
    """A task manager, and what it has said so far."""

    def __init__(self, at: Path, number: int, units: int, watts: float) -> None:
        self.units, self.begun_s = units, time.monotonic()
        self._log = at / f"task-{number}.log"
        self.placed_s: float | None = None
        command = [
            sys.executable, "-m", "cluster_agent.cli", "submit", "--dispatch", "dardis", "--keys", str(at / "keys"),
            "--key", str(at / "keys" / f"{USER}.key"), "--nodes", str(units), "--time", "2min", "--watts", f"{watts:g}",
            "--workdir", str(at / "jobs"), "--", COMMAND, "hpl", f"{WORK_S}s",
        ]  # fmt: skip
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=at
            )
        note_process(at, self.process.pid)

    def look(self) -> None:
        """Note when a lead has the job."""
        if self.placed_s is None and any(" starts at " in line for line in self.lines):
            self.placed_s = time.monotonic() - self.begun_s

    @property
    def lines(self) -> list[str]:
        return self._log.read_text(errors="replace").splitlines()

    @property
    def job(self) -> str:
        return next((line.removeprefix("job ") for line in self.lines if line.removeprefix("job ").isdigit()), "")


class HeadGone:
    """One run of the demo in a new folder ``at``."""

    def __init__(self, at: Path, machine: str, nodes: int, say: Callable[[str], None]) -> None:
        self._at, self._say = at, say
        self._watts, self._window_s = watts_of(machine)
        self.names = [f"n{number:02d}" for number in range(1, nodes + 1)]
        self.budget_w = SHARE * nodes * self._watts.tdp_w
        own = machine, self._watts.tdp_w, self.budget_w
        self._partition = EmulatedPartition(at, self.names, *own, "fspc", dispatch=at / "keys")
        self._tasks: list[_Task] = []

    def run(self) -> Without:
        """``ClusterError`` if a process ends, or nothing happens for long."""
        self._prepare()
        jobs = max(len(self.names) // 2, 2)
        try:
            with self._partition as partition:
                self._say(f"all {len(self.names)} nodes capped; {jobs} jobs with the head")
                self._until("the node managers listen", lambda: self._listening() == len(self.names))
                begin_s = time.monotonic()
                first = self._submitted(jobs)
                self._until("jobs are dispatched", lambda: all(one.placed_s is not None for one in first))
                partition.kill_head()
                gone_s = time.monotonic()
                self._say("the head is killed")
                time.sleep(LEASE_S + 1)  # leases lapse; the nodes' safe caps are in force
                self._say(f"leases are over; {jobs} jobs, and one that needs more watts than a safe cap")
                hungry = self._submitted(1, (self._watts.safe_w + SHARE * self._watts.tdp_w) / 2)[0]
                second = self._submitted(jobs)
                self._until("jobs are dispatched without the head", lambda: _all_placed(second))
                self._until("a job runs without the head", lambda: bool(self._running()))
                is_early = hungry.placed_s is not None
                partition.start_head()
                self._say(f"the head is back after {time.monotonic() - gone_s:.0f} s")
                third = self._submitted(max(jobs // 2, 1))
                counted, running = self._counted()
                self._until("all jobs are over", lambda: all(one.process.poll() is not None for one in self._tasks))
                end_s = time.monotonic()
            phases = [
                self._phase("with the head", first), self._phase("head gone", second), self._phase("head back", third)
            ]  # fmt: skip
            lines = [line for one in self._tasks for line in one.lines if " starts at " not in line]
            return Without(
                len(self.names), self.budget_w, phases, counted, running, self._twice(),
                math.nan if is_early else hungry.placed_s or math.nan, self._over_ws(begin_s, end_s),
                [f"{line} ({count} times)" for line, count in Counter(lines).most_common() if "again in" in line][:5],
            )  # fmt: skip
        finally:
            for one in self._tasks:
                if one.process.poll() is None:
                    one.process.kill()
                    one.process.wait()

    def _prepare(self) -> None:
        keys = self._at / "keys"
        keys.mkdir(parents=True)
        lines = [f"slot_s = {SLOT_S}", f"reply_s = {REPLY_S}", f"pause_s = {PAUSE_S}", "grace_s = 30.0"]
        for name in self.names:
            lines += ["[[nodes]]", f"name = {json.dumps(name)}", f'url = "tcp://127.0.0.1:{free_port()}"']
        (keys / "nodes.toml").write_text("\n".join(lines) + "\n")
        with contextlib.redirect_stdout(io.StringIO()):
            new.main([USER, "--role", "submitter", "--dir", str(keys)], standalone_mode=False)

    def _submitted(self, count: int, watts: float = 0.0) -> list[_Task]:
        """Every third job has two nodes."""
        made = []
        for _ in range(count):
            number = len(self._tasks)
            units = 2 if number % 3 == 2 and not watts else 1
            made.append(_Task(self._at, number, units, watts))
            self._tasks.append(made[-1])
        return made

    def _until(self, what: str, is_done: Callable[[], bool]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not is_done():
            self._partition.check()
            for one in self._tasks:
                one.look()
                if one.process.poll() not in (None, 0):
                    raise ClusterError(f"a job failed: {(one.lines or ['it said nothing'])[-1]}")
            if time.monotonic() > end_s:
                raise ClusterError(f"waited {PATIENCE_S:g} s until {what}")
            time.sleep(0.1)

    def _listening(self) -> int:
        return sum(": node manager " in line for line in self._partition.log("nodes"))

    def _running(self) -> set[str]:
        """Jobs that have begun and not ended, by the clock of their starts."""
        now = time.strftime("%H:%M:%S")
        found = set()
        for one in self._tasks:
            starts = [line for line in one.lines if " starts at " in line]
            if starts and one.process.poll() is None and starts[-1].split(" starts at ")[1][:8] < now:
                found.add(one.job)
        return found

    def _counted(self) -> tuple[int, int]:
        """Jobs that the head counts, once these are those that run; both numbers, equal or not, after a while."""
        end_s = time.monotonic() + PATIENCE_S / 4
        while True:
            counted = {job.job for job in self._partition.ask(ListForeign())}
            running = self._running()
            if (counted and counted == running) or time.monotonic() > end_s:
                return len(counted & running), len(running)
            time.sleep(0.2)

    def _phase(self, name: str, tasks: list[_Task]) -> Phase:
        waits = [one.placed_s for one in tasks if one.placed_s is not None]
        ran = sum(self._outputs(one) == one.units for one in tasks)
        return Phase(name, len(tasks), len(waits), max(waits, default=math.nan), ran)

    def _outputs(self, task: _Task) -> int:
        """Lines that its units have written."""
        files = (self._at / "jobs").glob(f"job-{task.job}*.out")
        return sum(len(path.read_text().splitlines()) for path in files)

    def _twice(self) -> int:
        return sum(self._outputs(one) > one.units for one in self._tasks)

    def _over_ws(self, begin_s: float, end_s: float) -> float:
        traces = [read_trace(self._partition.trace / f"{name}.jsonl") for name in self.names]
        budget = Steps(np.array([begin_s - 3600.0]), np.array([self.budget_w]))
        return over_budget(traces, budget, begin_s, end_s, self._window_s).ws


def _all_placed(tasks: list[_Task]) -> bool:
    return all(one.placed_s is not None for one in tasks)
