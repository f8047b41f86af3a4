"""A cluster agent made of rows, behind the real socket and protocol: as many nodes and jobs as wanted, nothing real."""

from __future__ import annotations

import math
import os
import random
import select
import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from cluster_agent.budget.kept_counts import Change
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.fabric.admin import AdminSocket
from cluster_agent.fabric.people import Caller, Request
from cluster_agent.history.job_history import HistoryRow
from cluster_agent.jobs.job import Job, JobSpec
from cluster_agent.serve.job_requests import NO_JOBS
from cluster_agent.serve.people_protocol import (
    MOST_ROWS,
    BudgetView,
    Changes,
    ExplainCap,
    ExportState,
    JobRow,
    ListBudgetChanges,
    ListHistory,
    ListJobChanges,
    ListJobs,
    ListNodeChanges,
    ListNodes,
    ListRunning,
    NodeRow,
    RunningJob,
    ShowBudget,
    ShowJob,
)
from cluster_agent.serve.row_changes import RowParts
from cluster_agent.serve.why import Why
from cluster_agent.workloads.state_file import VERSION, MachineState, StateJob

TAGS = ("COMPUTE", "MIXED", "MEMORY")
USERS = ("alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi")


def budget(nodes: int) -> BudgetView:
    """Of so many nodes at 300 W."""
    return BudgetView(
        budget_w=400.0 * nodes, fixed_w=1000.0, counts_w=320.0 * nodes, reserve_w=400.0, free_w=80.0 * nodes - 1400.0,
        over_w=0.0, mop_w=150.0 * nodes, short_w=0.0, nodes=nodes, silent=0, is_young=False, mode="cap", sharer="aapc",
        epoch=7, steps=[(3600.0, 350.0 * nodes)], alarms=[], loop_lag_s=0.01, energy_j=1e9, store_free_bytes=1 << 34,
    )  # fmt: skip


def node(number: int, job: str, rng: random.Random) -> NodeRow:
    """A node that runs, its cap binding every third one."""
    draws_w = rng.uniform(180.0, 320.0)
    return NodeRow(
        name=f"r{number // 100:03d}n{number % 100:02d}", state="capped", wanted_w=320.0, granted_w=320.0,
        in_force_w=320.0, counts_w=320.0, draws_w=round(draws_w, 1), tag=TAGS[number % 3], quality="measured",
        lease_class="os", heard_s_ago=round(rng.uniform(0.0, 1.0), 3), jobs="allocated" if job else "idle", job=job,
        tag_source="user" if number % 2 else "node agent", energy_j=round(draws_w * 1e4), waits_for="",
        bound_by="aapc: proportional to the load" if number % 3 == 0 else "",
    )  # fmt: skip


def job(number: int, is_running: bool, nodes: list[str], now_s: float, users: Sequence[str] = USERS) -> JobRow:
    """One that runs, or waits."""
    user = users[number % len(users)]
    return JobRow(
        job=number, user=user, uid=1000 + number % len(users), title=f"simulation {number}",
        state="running" if is_running else "queued", status=None, reason="", nodes=len(nodes) or 4,
        node_names=",".join(nodes), walltime_s=7200, submitted_s=now_s - 4000.0,
        started_s=now_s - 1800.0 if is_running else None, ended_s=None, attempts=1, tag="MIXED", tag_source="user",
        energy_j=1800.0 * 250.0 * len(nodes) if is_running else None, measured=1.0, method="energy as nodes report it",
        node_s=1800.0 * len(nodes), covered=1.0, cap_w=320.0, capped=1.0, bound_by="", bound=None, slowdown=0.02,
        slowdown_from="the model of its application", requested=4, took_s=1800.0 if is_running else None,
        waits_for="" if is_running else f"number {number} in the queue, behind job {number - 1}: needs 4 nodes, 0 idle",
        planned_s=None if is_running else now_s + 600.0,
    )  # fmt: skip


def ended(number: int, now_s: float, users: Sequence[str] = USERS) -> HistoryRow:
    """A job that ended so many minutes ago."""
    hours = 1.0 + number % 5
    return HistoryRow(
        job=str(number), user=users[number % len(users)], application=f"application {number % 7}", nodes=4,
        submitted_s=now_s - 60.0 * number - 9000.0, began_s=now_s - 60.0 * number - 3600.0 * hours,
        ended_s=now_s - 60.0 * number, run_s=3600.0 * hours, state="done", tag="MIXED",
        energy_j=None if number % 10 == 0 else 4 * hours * 3600.0 * 250.0,
    )  # fmt: skip


class SyntheticHead:
    """Answers at ``path`` from a thread of its own, ``with`` the block. What it says can be changed meanwhile.
    ``answered``: how many requests of each kind it has answered, ``busy_s``: the processor time for them."""

    def __init__(
        self,
        path: Path,
        nodes: int = 20,
        jobs: int = 10,
        ended_jobs: int = 50,
        runs_jobs: bool = True,
        users: int = 0,
        plans: bool = True,
    ) -> None:
        """``users``: as many, called user0 and so on; 0: ``USERS``. ``plans``: whether its policy plans starts."""
        rng, now_s = random.Random(7), time.time()
        named = [f"user{number}" for number in range(users)] or USERS
        self.path, self.runs_jobs = path, runs_jobs
        self.budget = budget(nodes)
        self.changes = [Change(now_s - 600.0, "root", f"set {self.budget.budget_w:g} W by hand")]
        names = [f"r{number // 100:03d}n{number % 100:02d}" for number in range(nodes)]
        n_running = min(jobs // 2, nodes // 4)
        taken = [names[4 * number : 4 * number + 4] for number in range(n_running)] + [[]] * (jobs - n_running)
        self.jobs = [job(number + 1, number < n_running, taken[number], now_s, named) for number in range(jobs)]
        if not plans:
            self.jobs = [replace(row, planned_s=None) for row in self.jobs]
        of_node = {name: str(row.job) for row in self.jobs for name in row.node_names.split(",") if name}
        self.nodes = [node(number, of_node.get(name, ""), rng) for number, name in enumerate(names)]
        self.ended = [ended(number, now_s, named) for number in range(ended_jobs, 0, -1)]
        self.running = [RunningJob("77", "slurm", "alice", names[:1], 5e5, False)]
        self.policy = "easy"
        self.answered: dict[str, int] = {}
        self._began_s = time.monotonic()
        self.busy_s = 0.0
        self._had, self._job_places, self._job_now = set[int](), list[int](), dict[int, JobRow]()
        self._stop_read, self._stop_write = os.pipe()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> SyntheticHead:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Answer, from now on."""
        handlers = {
            ShowBudget: lambda: self.budget, ListBudgetChanges: lambda: self.changes, ListRunning: lambda: self.running,
        }  # fmt: skip
        counted: dict[type[Request[Any]], Any] = {kind: self._counted(kind, give) for kind, give in handlers.items()}
        counted |= {
            ListNodes: self._nodes,
            ListNodeChanges: self._node_changes,
            ListJobs: self._jobs,
            ListJobChanges: self._job_changes,
            ListHistory: self._history,
            ShowJob: self._job,
            ExplainCap: self._why,
            ExportState: self._state,
        }
        self._parts = RowParts[str, NodeRow](self._marks_at, self._row, "heard_s_ago")
        self._job_parts = RowParts[int, JobRow](self._job_marks_at, self._job_row, "took_s")
        socket = AdminSocket(self.path, counted)
        self._thread = threading.Thread(target=self._loop, args=(socket,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Be gone, as after a kill."""
        if self._thread is not None:
            os.write(self._stop_write, b"x")
            self._thread.join()
            os.read(self._stop_read, 1)
            self._thread = None

    def _loop(self, socket: AdminSocket) -> None:
        while True:
            poller = select.poll()
            for descriptor, is_writing in socket.interests().items():
                poller.register(descriptor, select.POLLOUT if is_writing else select.POLLIN)
            poller.register(self._stop_read, select.POLLIN)
            ready = [descriptor for descriptor, _ in poller.poll(1000)]
            if self._stop_read in ready:
                socket.close()
                return
            began_s = time.thread_time()
            socket.serve_all(time.monotonic(), ready, math.inf)
            socket.tidy(time.monotonic())
            self.busy_s += time.thread_time() - began_s

    def _counted(self, kind: type[Request[Any]], give: Any) -> Any:
        def handle(caller: Caller, request: Request[Any]) -> Any:
            self.answered[kind.kind] = self.answered.get(kind.kind, 0) + 1
            return give()

        return handle

    def _nodes(self, caller: Caller, request: ListNodes) -> list[NodeRow]:
        self.answered["nodes"] = self.answered.get("nodes", 0) + 1
        first = bisect_right(self.nodes, request.after, key=lambda row: row.name) if request.after else 0
        return self.nodes[first:][: request.most or None]

    def _node_changes(self, caller: Caller, request: ListNodeChanges) -> Changes[NodeRow, str]:
        self.answered["node-changes"] = self.answered.get("node-changes", 0) + 1
        return self._parts.answer(time.monotonic(), len(self.nodes), request)

    def _marks_at(self, now_s: float, at: range) -> list[list[Any]]:
        rows = self.nodes[at.start : at.stop]
        return [[row.name for row in rows], rows]

    def _row(self, now_s: float, name: str, row: NodeRow) -> NodeRow:
        """No report is newer than this head."""
        return replace(row, heard_s_ago=(row.heard_s_ago or 0.0) + now_s - self._began_s)

    def _jobs(self, caller: Caller, request: ListJobs) -> list[JobRow]:
        self.answered["jobs"] = self.answered.get("jobs", 0) + 1
        if not self.runs_jobs:
            raise ClusterError(f"{NO_JOBS}: a [jobs] table in its settings changes that")
        return [row for row in self.jobs if row.job > request.after][:MOST_ROWS]

    def _job_changes(self, caller: Caller, request: ListJobChanges) -> Changes[JobRow, int]:
        self.answered["job-changes"] = self.answered.get("job-changes", 0) + 1
        if not self.runs_jobs:
            raise ClusterError(f"{NO_JOBS}: a [jobs] table in its settings changes that")
        if request.part == 0:
            alive = {row.job: row for row in self.jobs}
            self._job_places += [number for number in alive if number not in self._had]
            self._had |= alive.keys()
            self._job_now = alive
        return self._job_parts.answer(time.monotonic(), len(self._job_places), request)

    def _job_marks_at(self, now_s: float, at: range) -> list[list[Any]]:
        numbers = self._job_places[at.start : at.stop]
        return [numbers, list(map(self._job_now.get, numbers))]

    def _job_row(self, now_s: float, number: int, row: JobRow | None) -> JobRow | None:
        """As long as this head runs, so do they."""
        return row if row is None or row.took_s is None else replace(row, took_s=row.took_s + now_s - self._began_s)

    def _history(self, caller: Caller, request: ListHistory) -> list[HistoryRow]:
        return [row for row in self.ended if row.ended_s > request.since_s][:MOST_ROWS]

    def _job(self, caller: Caller, request: ShowJob) -> tuple[JobRow, Job]:
        self.answered["job"] = self.answered.get("job", 0) + 1
        row = next((row for row in self.jobs if row.job == request.job), None)
        if row is None:
            raise WrongUseError(f"there is no job {request.job}")
        spec = JobSpec(["./secret-program", "--all"], row.walltime_s, f"/home/{row.user}", nodes=4)
        return row, Job(row.job, row.uid, row.user, spec, row.submitted_s, row.state)

    def _state(self, caller: Caller, request: ExportState) -> MachineState:
        self.answered["state"] = self.answered.get("state", 0) + 1
        jobs = [
            StateJob(
                job=row.job, submit_s=int(row.submitted_s), width=row.nodes, request_s=row.walltime_s, user=row.uid,
                start_s=None if row.started_s is None else int(row.started_s), nodes=row.node_names.split(",")
                if row.node_names else [],
            )
            for row in sorted(self.jobs, key=lambda row: row.submitted_s)
        ]  # fmt: skip
        return MachineState(VERSION, "partition", self.policy, int(time.time()) + 1, len(self.nodes), jobs)

    def _why(self, caller: Caller, request: ExplainCap) -> Why:
        self.answered["why"] = self.answered.get("why", 0) + 1
        row = next((row for row in self.nodes if row.name == request.node), None)
        if row is None:
            raise WrongUseError(f"no node is called {request.node!r}")
        return Why(
            node=row.name, state=row.state, budget_w=self.budget.budget_w, fixed_w=1000.0, reserve_w=400.0,
            failing_together=1, shared_w=3e6, shared_among=len(self.nodes), short_w=0.0, job=row.job, tag=row.tag,
            tag_source=row.tag_source, agent_tag="", agent_tag_source="", wanted_w=row.wanted_w, sharer="aapc",
            reason="load", slowdown=0.02, words="320 W, in proportion to its load", granted_w=row.granted_w,
            in_force_w=row.in_force_w, counts_w=row.counts_w, tdp_w=400.0, mop_w=150.0, safe_w=200.0, boot_w=200.0,
            lease_class="os", heard_s_ago=row.heard_s_ago, is_silent=False, waits_for="", free_w=1000.0, freeing_w={},
            next_plan_s=3.0, gap_s=5.0, alarms=self.budget.alarms,
        )  # fmt: skip

    def moves(self, rng: random.Random) -> None:
        """All nodes draw something else."""
        self.nodes = [replace(row, draws_w=round(rng.uniform(180.0, 320.0), 1)) for row in self.nodes]
