"""Jobs of another manager: notices that are stored, checked, and seen by the sharer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.fabric.people import Caller, Later
from cluster_agent.jobs.foreign_jobs import ForeignJob, ForeignJobs
from cluster_agent.serve.config import BudgetSettings, NodeSettings, Settings
from cluster_agent.serve.people_protocol import Noticed, NotifyEnd, NotifyStart
from cluster_agent.serve.server import Server
from cluster_agent.slurm.foreign_starts import ForeignStarts
from cluster_agent.slurm.job_joules import JobJoules
from foundation.wire.power_messages import Declaration, Grant
from lab.cluster_demo.emulated_partition import free_port
from tests.fabric.links import S, report
from tests.fabric.test_alarms import Capped

NODES = ["n0", "n1"]
ADMIN = Caller(0, "root", "admin")


def test_a_notice_is_stored_and_the_last_one_of_a_job_counts(tmp_path: Path) -> None:
    jobs = ForeignJobs(tmp_path / "notices")
    assert jobs.start(ForeignJob("a7", ["n0"], "memory"), NODES) == "job a7 runs on 1 node"
    assert jobs.start(ForeignJob("b", ["n1"]), NODES) == "job b runs on 1 node"
    assert jobs.start(ForeignJob("a7", NODES, "compute"), NODES) == "job a7 runs now on 2 nodes"
    again = ForeignJobs(tmp_path / "notices")
    assert [(job.name, job.nodes, job.tag and job.tag.name, job.tag_source) for job in again.for_sharer()] == [
        ("a7", NODES, "COMPUTE", "job manager"), ("b", ["n1"], None, ""),
    ]  # fmt: skip
    assert (again.end("a7"), again.end("a7")) == ("job a7 has ended", "job a7 was not known")
    assert len(ForeignJobs(tmp_path / "notices")) == 1


def test_what_cannot_be_is_one_line_and_changes_nothing(tmp_path: Path) -> None:
    jobs = ForeignJobs(tmp_path / "notices")
    for job, why in (
        (ForeignJob("a", []), "runs on no nodes"),
        (ForeignJob("a", ["n0"], "memroy"), "nearest: MEMORY"),
    ):
        with pytest.raises(WrongUseError, match=why):
            jobs.start(job, NODES)
    (tmp_path / "notices").mkdir()
    with pytest.raises(ClusterError, match="cannot store the notice"):
        jobs.start(ForeignJob("a", ["n0"]), NODES)
    assert len(jobs) == 0
    (tmp_path / "damaged").write_text("[{")
    with pytest.raises(ClusterError, match="cannot read the jobs of another manager"):
        ForeignJobs(tmp_path / "damaged")


def test_the_sharer_gives_a_foreign_job_the_watts_of_its_tag(tmp_path: Path) -> None:
    settings = Settings(
        listen=f"tcp://127.0.0.1:{free_port()}", insecure=True, keys=str(tmp_path), store=str(tmp_path / "a.db"),
        socket=str(tmp_path / "s"), mode="observe", sharer="aapc", budget=BudgetSettings(w=700.0),
        nodes=NodeSettings(tdp_w=500.0),
    )  # fmt: skip
    server = Server(settings, lambda line: None)
    try:
        now_s = server._now_s()
        declared = Declaration(tdp_mw=500_000, mop_mw=200_000, safe_mw=200_000, boot_mw=200_000, lease_class="hw")
        server.partition.hear(now_s, [report(name, declaration=declared) for name in NODES])
        server.partition.replan(now_s)
        assert server.partition.plan.caps_mw == {"n0": 200_000, "n1": 200_000}, "idle"
        time.sleep(0.1)  # between any two plans (``LEAST_S``)
        server.handlers[NotifyStart](ADMIN, NotifyStart("a7", ["n1"], "memory"))
        assert server.partition.plan.caps_mw["n1"] > 200_000
        assert server.partition.sharing.tag("n1") == ("MEMORY", "job manager")
        server.handlers[NotifyEnd](ADMIN, NotifyEnd("a7"))
        server.partition.replan(server._now_s())
        assert server.partition.plan.caps_mw["n1"] == 200_000
        assert NotifyStart.role == NotifyEnd.role == "notifier"
    finally:
        server.close()


def test_nodes_that_call_themselves_otherwise_than_the_job_manager_are_named(tmp_path: Path) -> None:
    """A host with its domain in its name is no node of Slurm's: no job of it would ever be counted, without a word."""
    jobs = ForeignJobs(tmp_path / "jobs.json")
    said = jobs.start(ForeignJob("7", ["n1", "n2"]), ["n1.example.org", "n2.example.org"])
    assert said.endswith(
        "no node of this cluster agent: n1 calls itself n1.example.org here (name it with [cluster] name)"
    )
    assert "calls itself N3" in jobs.start(ForeignJob("8", ["n3"]), ["N3"])
    assert jobs.start(ForeignJob("9", ["n4"]), ["n5.example.org"]) == "job 9 runs on no node of this cluster agent"


def test_a_start_is_in_force_when_the_newest_grant_is_confirmed_whatever_an_older_cap_allows(tmp_path: Path) -> None:
    """The node n1 has 400 W in force. It is lowered to 300 W and, before it hears of that, raised again for a job."""
    capped = Capped()
    lease, partition = capped.leases[1], capped.made
    sent: list[Grant] = []
    jobs, joules = ForeignJobs(tmp_path / "notices"), JobJoules(tmp_path / "joules")
    starts = ForeignStarts(jobs, lambda: partition, sent.extend, lambda: capped.now_s, joules)

    def state_at(later: Later) -> str:
        found = later.look(capped.now_s)
        return found.state if found else "waiting"

    def start(job: str) -> Later | Noticed:
        found: Later | Noticed = starts.handlers[NotifyStart](ADMIN, NotifyStart(job, ["n1"], wait_s=5.0))
        return found

    def hear_of(power_mw: int = 100_000) -> None:
        capped.now_s += 0.1
        sent.extend(partition.hear(capped.now_s, [lease.report(round(capped.now_s * S), power_mw)]))

    hear_of()
    capped.lower_to(600.0)
    lowered = [grant for grant in partition.turn(capped.now_s) if grant.node == "n1"]
    assert [grant.cap_mw for grant in lowered] == [300_000]
    falls = start("a7")
    assert isinstance(falls, Later) and state_at(falls) == "in force", "a fall is not waited for"
    partition.ledger.budget.set(800_000)
    capped.now_s += 0.2
    raised = start("b8")
    assert isinstance(raised, Later) and [grant.cap_mw for grant in sent if grant.node == "n1"] == [400_000]
    assert partition.ledger.accounts["n1"].limit_mw == 400_000, "of the grant before the last two"
    assert state_at(raised) == "waiting"
    lease.take(round(capped.now_s * S), lowered[0])
    lease.confirm("seen")
    hear_of()
    assert state_at(raised) == "waiting"
    lease.take(round(capped.now_s * S), sent[0])
    hear_of()
    assert partition.ledger.accounts["n1"].limit_mw == 400_000, "it may be in force from now on"
    assert state_at(raised) == "waiting", "it is taken, and has no effect yet"
    lease.confirm("seen")
    hear_of()
    assert state_at(raised) == "in force"
    lease.lapse(round((capped.now_s + 60) * S))
    lease.confirm("seen")
    hear_of()
    assert state_at(raised) == "waiting", "it has fallen to its safe cap by itself"
    partition.hear(capped.now_s, [report("n1", round(capped.now_s * S) + 5, boot_id="boot-2", limit_mw=500_000)])
    assert state_at(raised) == "waiting", "a new boot has no grant, whatever its limit"
