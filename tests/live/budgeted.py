"""A partition and its ledger on made-up nodes in virtual time.

Reports, grants, starts and ends are passed on as ``serve`` does it, without sockets. Nodes answer at once, and all that
happens happens on whole seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

from msgspec.structs import replace

from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.ledger import Terms
from cluster_agent.jobs.job import Job, JobSpec
from cluster_agent.jobs.live_jobs import Partition
from cluster_agent.serve import budget_service, job_service
from cluster_agent.serve.config import JobSettings
from cluster_agent.serve.job_service import JobService
from cluster_agent.serve.live_sharing import Sharing
from cluster_agent.serve.policy_watts import caps_sharer, declared_mops, pass_budget
from cluster_agent.store.ledger_store import SqliteLedgerStore
from foundation.wire.job_messages import JobQuery, JobStart, Message, NodeJobs, PartEnergy
from foundation.wire.power_messages import Declaration, Grant, Report
from tests.live.fakes import Fake, FakeNode

LATER_S: Final = 1_000_000.25
"""How far the clock of the jobs is ahead of the ledger's."""
LONGEST_S: Final = 1.0
"""Between two reports of a node: leases are short here, and must not end."""

Decision = tuple[int, str, int, int]
"""When, what ("start", "level" or "kill"), the job's number, its level."""


def true_mw(uid: int) -> int:
    """What a node draws for a user's jobs, if no cap keeps it from that."""
    return 70_000 + 10_000 * (uid % 4)


@dataclass
class Capped:
    """What a node knows of its cap."""

    cap_mw: int
    grant: Grant | None = None


class RecordedPartition(Partition):
    """Notes each decision."""

    decisions: list[Decision]

    def start(self, now_s: int, job: int, expected_end_s: int, level: int = 0) -> None:
        started = self._rows.queued[job]
        super().start(now_s, job, expected_end_s, level)
        self.decisions.append((now_s, "start", started.id, level))

    def kill(self, now_s: int, job: int) -> None:
        self.decisions.append((now_s, "kill", self.runs.by_row[job].job.id, 0))
        super().kill(now_s, job)

    def set_level(self, now_s: int, job: int, level: int, expected_end_s: int) -> None:
        self.decisions.append((now_s, "level", self.runs.by_row[job].job.id, level))
        super().set_level(now_s, job, level, expected_end_s)


class Budgeted(Fake):
    """``steps``: the budget, (seconds from the start, W), the first from the start on, all announced at once."""

    def __init__(
        self,
        nodes: int,
        settings: JobSettings,
        steps: Sequence[tuple[int, float]],
        declared: Callable[[str], Declaration],
        terms: Terms,
        from_s: float = 1_001_000.0,
    ) -> None:
        self.settings, self.steps, self.declared, self.terms, self.from_s = settings, steps, declared, terms, from_s
        self.decisions: list[Decision] = []
        self.reports = 0
        self.caps: dict[str, Capped] = {}
        self.sent: list[tuple[str, Message]] = []
        self.energy_mj: dict[str, float] = {}
        self.metered_s = from_s
        self.grants: list[Grant] = []
        self.most_over_mw = -(10**9)
        super().__init__(nodes, settings.composition, now_s=from_s)

    @property
    def here_s(self) -> float:
        """By the ledger's clock."""
        return self.now_s - LATER_S

    def _partition(self) -> Partition:
        for name in self.nodes:
            self.caps.setdefault(name, Capped(self.declared(name).tdp_mw))
            self.energy_mj.setdefault(name, 0.0)
        first_s = self.from_s - LATER_S
        coming = [(first_s + at_s, round(watts * 1000)) for at_s, watts in self.steps[1:]]
        line = BudgetLine(round(self.steps[0][1] * 1000), coming)
        sharing = Sharing("none", policys=caps_sharer(lambda: self.jobs))
        store = SqliteLedgerStore(self.database, "boot")
        self.budget = budget_service.Partition(store, self.terms, line, sharing, self.here_s, say=self.said.append)
        self.budget.expect(self.here_s, {name: self.declared(name) for name in self.nodes})
        with mock.patch.object(job_service, "Partition", RecordedPartition):
            self.jobs = JobService(
                self.settings, self.store, self.nodes, self._send, lambda name: True, self.said.append,
                lambda: self.now_s, can_switch=self.settings.power is not None,
                mop_mw=declared_mops(self.budget.ledger),
            )  # fmt: skip
        live = self.jobs.live
        assert isinstance(live, RecordedPartition)
        live.decisions = self.decisions
        return live

    def submit(self, run_s: int, nodes: int = 1, walltime_s: int = 1000, uid: int = 1000, others_s: Sequence[int] = (),
               **given: Any) -> Job:  # fmt: skip
        """All jobs have the same command: policies that predict take jobs with like texts for like jobs."""
        spec = JobSpec(["solve"], walltime_s, "/", env={"RUN_S": str(run_s)}, nodes=nodes, **given)
        return self.partition.submit(uid, "someone", spec)

    def _send(self, name: str, message: Message | JobQuery) -> bool:
        if not isinstance(message, JobQuery):
            self.sent.append((name, message))
        return True

    def _drawn_mw(self, name: str) -> int:
        """By a node without a job its MOP; by one with a job what that draws, at most as much as is planned."""
        one = next(iter(self.partition.runs.on(self.partition.nodes[name])), None)
        if one is None or one.parts[name].last is None:
            return self.declared(name).mop_mw
        return min(true_mw(one.job.uid), self.partition.watts.counts.busy_mw(one.job, name))

    def _report(self, name: str) -> Report:
        known, grant = self.caps[name], self.caps[name].grant
        self.reports += 1
        epoch, sequence = (grant.epoch, grant.sequence) if grant else (0, 0)
        return Report(
            name, f"boot{self.nodes[name].boot}", round(self.here_s * 1e9) + self.reports, epoch, epoch, sequence,
            known.cap_mw, "seen", self._drawn_mw(name), self.declared(name), energy_mj=round(self.energy_mj[name]),
            asked_mw=known.cap_mw, quality="measured",
        )  # fmt: skip

    def report(self) -> None:
        """Count what nodes have drawn until now."""
        passed_s, self.metered_s = self.now_s - self.metered_s, self.now_s
        for name, node in self.nodes.items() if passed_s else ():
            drawn_mj = round(passed_s * self._drawn_mw(name))
            self.energy_mj[name] += drawn_mj
            for key, part in node.parts.items():
                if part.phase == "running":
                    before = part.energy or PartEnergy()
                    metered_ms, measured_mj = before.metered_ms + round(passed_s * 1000), before.measured_mj + drawn_mj
                    energy = PartEnergy(metered_ms=metered_ms, measured_mj=measured_mj)
                    node.parts[key] = replace(part, energy=energy)

    def end(self, node: FakeNode, key: tuple[int, int], status: int = 0, cause: Any = "") -> None:
        """What it has drawn is known at its end."""
        energy = node.parts[key].energy
        super().end(node, key, status, cause)
        node.parts[key] = replace(node.parts[key], energy=energy)

    def settle(self) -> None:
        """What the server does in a turn, until nothing is new at this instant."""
        self.report()
        while True:
            now_s, jobs, budget = self.here_s, self.jobs, self.budget
            reports = [self._report(name) for name in self.nodes]
            grants = budget.hear(now_s, reports)
            news = [NodeJobs(name, f"boot{node.boot}", list(node.parts.values())) for name, node in self.nodes.items()]
            jobs.hear(news, reports, lambda report: ("", None))
            pass_budget(budget.ledger, now_s, jobs)
            if happened := jobs.turn(is_urgent=True):
                budget.happened(now_s, *happened)
                grants += budget.turn(now_s)
            for grant in grants:
                self.caps[grant.node].cap_mw, self.caps[grant.node].grant = grant.cap_mw, grant
            self.partition.outbox, self.sent = self.sent, []
            is_new = self.deliver()
            self.most_over_mw = max(self.most_over_mw, self.over_mw())
            if not is_new and not grants:
                return

    def deliver(self) -> bool:
        """A job takes no longer than its walltime, or in a configuration than that is expected to take."""
        starts = [(name, one) for name, one in self.partition.outbox if isinstance(one, JobStart)]
        is_new = super().deliver()
        for name, one in starts:
            ends_s, key = self.nodes[name].ends_s, (one.job, one.attempt)
            configured = self.partition.jobs[one.job].configured
            most_s = one.walltime_s if configured is None else configured.length_s
            if key in ends_s:
                ends_s[key] = min(ends_s[key][0], self.now_s + most_s), ends_s[key][1]
        return is_new

    def over_mw(self) -> int:
        """By how much the caps in force exceed the budget in force: what the ledger promises never happens."""
        in_force_w = [w for at_s, w in self.steps if at_s <= self.now_s - self.from_s][-1]
        return sum(one.cap_mw for one in self.caps.values()) + self.terms.fixed_mw - round(in_force_w * 1000)

    def play(self, submissions: Sequence[tuple[int, dict[str, Any]]], most_s: int) -> list[Job]:
        """Submit each of these, so many seconds from the start, and go on until all jobs have ended."""
        jobs: list[Job] = []
        for second in range(most_s):
            self.now_s = self.from_s + second
            self.report()
            self.end_due_all()
            while len(jobs) < len(submissions) and submissions[len(jobs)][0] <= second:
                jobs.append(self.submit(**submissions[len(jobs)][1]))
            self.settle()
            if len(jobs) == len(submissions) and not self.partition.jobs:
                return jobs
        left = [job.id for job in jobs if job.id in self.partition.jobs]
        raise AssertionError(f"jobs {left} have not ended; said: {self.said}")

    def end_due_all(self) -> None:
        """Parts whose time has come."""
        for node in self.nodes.values():
            for key in [key for key, (end_s, _) in node.ends_s.items() if end_s <= self.now_s]:
                self.end(node, key)
