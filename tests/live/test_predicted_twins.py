"""Emulated nodes under a live partition that admits by predicted watts and forecasts its own: meters, caps and ends of
jobs are the twin's, in virtual time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cluster_agent.budget.ledger import Terms
from cluster_agent.history.job_history import HistoryRow
from cluster_agent.history.watts_ahead import WattsAhead, alive
from cluster_agent.jobs.job import Job, JobSpec
from cluster_agent.prediction.system_forecast import EVERY_S
from cluster_agent.serve.config import JobSettings
from foundation.wire.job_messages import JobStart, Message
from foundation.wire.power_messages import Declaration
from tests.live.budgeted import Budgeted
from tests.live.test_live_as_replay import FROM_S, alike, exported, replayed
from tests.live.test_twin_jobs import CURIE, Node, start

NODES = 3
REST_W = 129.0
DECLARED = Declaration(378_000, 223_000, 230_000, 300_000, "hw", settle_ms=500)
SITE = """name = "curie3"
summary = ""
[[nodes]]
count = 3
cores = 16
idle_w = 223
frequency_mhz = [2700, 1800]
busy_w = [378, 300]
"""
PROGRAMS = ("hpl", "nas", "stream")


class OnTwins(Budgeted):
    """Each node is a twin: it draws what that draws under its cap, and a job ends when its work is done there."""

    def __init__(self, *given: Any, at: Path) -> None:
        self.at = at / "home"
        self.at.mkdir()
        self.twins: dict[str, Node] = {}
        self.drawn_mw: dict[str, int] = {}
        self.twins_s: float = given[-1]
        super().__init__(*given)
        for name in self.nodes:
            self.twins[name] = Node(package_w=100.0)

    def submit(self, run_s: int, **given: Any) -> Job:
        program = given["name"]
        spec = JobSpec([program], 300, "/", env={"RUN_S": str(run_s)}, **given)
        return self.partition.submit(1000, "ada", spec)

    def _send(self, name: str, message: Message | Any) -> bool:
        if isinstance(message, JobStart) and (message.job, message.attempt) not in self.nodes[name].parts:
            work, more = f"{message.env['RUN_S']}s", {"job": message.job, "attempt": message.attempt}
            self.twins[name].jobs.start(start(self.at, "twin-workload", message.command[0], work, **more))
        return super()._send(name, message)

    def deliver(self) -> bool:
        is_new = super().deliver()
        for node in self.nodes.values():
            for key, part in node.parts.items():
                if part.phase == "running":
                    node.ends_s[key] = math.inf, 0
        return is_new

    def report(self) -> None:
        passed_s, self.twins_s = self.now_s - self.twins_s, self.now_s
        for name, one in self.twins.items() if passed_s else ():
            package_uw = round((self.caps[name].cap_mw / 1000 - REST_W) / 2 * 1e6)
            for number, zone in enumerate(CURIE.zones):
                if zone.kind == "package":
                    one.twin.set_zone_limit(number, 0, package_uw, 100_000, True)
            before_j = one.twin.node_j
            one.twin.advance(passed_s)
            self.drawn_mw[name] = round((one.twin.node_j - before_j) / passed_s * 1000)
        super().report()

    def _drawn_mw(self, name: str) -> int:
        return self.drawn_mw.get(name, DECLARED.mop_mw)

    def end_due_all(self) -> None:
        for name, node in self.nodes.items():
            ended = {(part.job, part.attempt) for part in self.twins[name].jobs.parts() if part.phase == "ended"}
            for key in [key for key, part in node.parts.items() if part.phase == "running" and key in ended]:
                self.end(node, key)


def row_of(job: Job) -> HistoryRow:
    assert job.started_s is not None and job.ended_s is not None and job.account.joules
    watts = job.account.joules / job.account.covered_s * len(job.nodes)
    return HistoryRow(str(job.id), job.user, job.title, len(job.nodes), job.submitted_s, job.started_s, job.ended_s,
                      job.ended_s - job.started_s, request_s=300, watts=watts)  # fmt: skip


def played(at: Path, jobs: Sequence[tuple[int, dict[str, Any]]], policy: str) -> OnTwins:
    (at / "site.toml").write_text(SITE)
    settings = JobSettings(policy, str(at / "site.toml"), "")
    terms = Terms(fixed_mw=50_000, failing_together=0, lease_s=4.0)
    made = OnTwins(NODES, settings, [(0, 1150.0)], lambda name: DECLARED, terms, FROM_S, at=at)
    made.play(jobs, most_s=900)
    return made


def test_emulated_nodes_are_admitted_by_learned_watts_forecast_and_replayed(tmp_path: Path) -> None:
    policy = "easy-power:levels=highest,of=expected"
    jobs = [(5 * at, {"run_s": 20 + at % 5, "name": PROGRAMS[at % 3]}) for at in range(24)]
    made = played(tmp_path, jobs, policy)
    ended = sorted(made.store.ended(24), key=lambda job: job.id)
    planned_w = {name: [job.planned_uw / 1e6 for job in ended if job.title == name] for name in PROGRAMS}
    for name in PROGRAMS:
        drawn_w = [row_of(job).watts or 0.0 for job in ended if job.title == name]
        assert planned_w[name][0] > 370.0, "nothing is known of the first"
        assert planned_w[name][-1] == pytest.approx(sum(drawn_w[:-1]) / len(drawn_w[:-1]), rel=0.05), (
            planned_w,
            drawn_w,
        )
    assert planned_w["hpl"][-1] > planned_w["stream"][-1] + 10.0
    assert made.most_over_mw <= 0
    zero_s = int(min(job.queued_s for job in ended))
    assert alike(replayed(tmp_path, exported(made, tmp_path), policy), 0) == alike(made.decisions, zero_s)

    ahead = WattsAhead(1000.0, [row_of(job) for job in ended], made.now_s)
    last = made.submit(30, name="hpl")
    made.settle()
    made.now_s += 1
    made.settle()
    ahead.step(made.now_s + EVERY_S, lambda: alive([last], (), lambda at_s: at_s))
    assert ahead.hours[0].now_w == pytest.approx(row_of(ended[-3]).watts, rel=0.1), "as an hpl of before"
