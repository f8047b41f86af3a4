"""Heterogeneous jobs live: components that start together on nodes that differ, a node lost in one of them, restarts,
what is refused, `clusterctl submit`, and the replay of what the partition exports."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cluster_agent.cli import main
from cluster_agent.cluster import Kept
from cluster_agent.commands import submit as submitting
from cluster_agent.errors import WrongUseError
from cluster_agent.jobs.component_nodes import distributed
from cluster_agent.jobs.exported_replay import files_of
from cluster_agent.jobs.job import Component, Job, JobSpec
from cluster_agent.jobs.job_nodes import Node
from cluster_agent.jobs.owned_watts import live_nodes
from cluster_agent.jobs.owned_watts.live_nodes import has
from cluster_agent.replay.replay_files import arguments
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.serve.people_protocol import Submit
from foundation.wire.job_messages import JobStart
from tests.live.fakes import Fake
from tests.live.test_owned_nodes import FULL_W, MACHINE, RecordedFake, under

GPU, PLAIN = Component(1, gpus=2), Component(2, cores=16)
ALL = (1000.0, FULL_W)


def running(fake: RecordedFake, components: list[Component], **given: Any) -> Job:
    job = fake.submit(components=components, **{"run_s": 20, "walltime_s": 60} | given)
    fake.settle()
    return job


@pytest.mark.parametrize(
    "policy", ["prb:rule=est,miss=strict,placing=pack", "easy-capped", "planned", "planned:decoder=serial"]
)
def test_a_gpu_component_and_a_cpu_component_start_together_or_not_at_all(policy: str) -> None:
    fake = under(policy, ALL)
    first = running(fake, [PLAIN, GPU])
    assert first.nodes == ["n00", "n01", "n04"], "component after component, as they were submitted"
    second = running(fake, [Component(2, cores=16), Component(2, gpus=1)])
    assert (second.state, second.nodes) == ("queued", []), "one GPU node is free, and two plain ones"
    third = running(fake, [Component(1, cores=16), Component(1, gpus=1)], run_s=2, walltime_s=5)
    caps_mw = fake.partition.planned_mw()
    least_mw = [65_000, 65_000, 210_000] if policy.startswith("planned") else [100_000, 100_000, 270_000]
    assert [caps_mw[name] for name in first.nodes] == least_mw, "each node as its own component needs"
    wanted_mw = fake.partition.wanted_mw()
    assert [wanted_mw[name] for name in first.nodes] == [100_000, 100_000, 270_000], "at most, with its own GPUs"
    if policy != "prb:rule=est,miss=strict,placing=pack":
        assert third.nodes == ["n02", "n05"], "it leaves them to the second before these are due"
    fake.until(lambda: first.state == second.state == third.state == "done")
    starts = {job: (at_s, nodes) for at_s, job, nodes in fake.decisions}
    assert starts[second.id - 1][1][2:] == ("n04", "n05")
    assert fake.store.find([first.id])[0].spec.components == [PLAIN, GPU], "one record, with its components"


def test_of_components_that_could_be_on_equally_many_nodes_the_one_that_requests_most_chooses_first() -> None:
    """Else the first would take the node that both could be on, and the second had too few."""
    nodes = [Node("n0", has=(16, 1, 0, 64)), Node("n1", has=(16, 0, 0, 64)), Node("n2", has=(8, 1, 0, 64))]
    spec = JobSpec(["a"], 60, "/", nodes=3, components=[Component(1, cores=16), Component(2, gpus=1)])
    assert [node.name for node in distributed(spec, nodes)] == ["n1", "n0", "n2"]


def test_a_large_partition_is_not_looked_through_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 2,000 nodes each submission took 12 ms, and one with components seconds."""
    looks = list[object]()
    monkeypatch.setattr(live_nodes, "has", lambda group: looks.append(group) or has(group))
    monkeypatch.setattr(Node, "__eq__", lambda one, other: pytest.fail("compared field by field"))
    fake = Fake(60, choose("easy-capped").live, now_s=1000.0, machine=MACHINE)
    fake.set_budget((1000.0, 60 * FULL_W))
    fake.settle()
    looks.clear()
    for components in ([], [PLAIN, GPU], [Component(20, cores=16), Component(3, gpus=1), Component(10)]):
        fake.submit(run_s=20, components=components)
        fake.settle()
    assert all(job.state == "running" for job in fake.partition.jobs.values())
    assert len(looks) < 60


def test_each_node_knows_its_component() -> None:
    fake = under("easy-capped", ALL)
    job = running(fake, [PLAIN, GPU])
    starts = {name: job.start_on(name) for name in job.nodes}
    assert all(isinstance(start, JobStart) for start in starts.values())
    assert {name: (start.rank, start.env["NODECTL_COMPONENT"]) for name, start in starts.items()} == {
        "n00": (0, "0"), "n01": (1, "0"), "n04": (2, "1")
    }  # fmt: skip


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_node_lost_in_one_component_ends_all_and_the_job_is_queued_again_once(is_restarted: bool) -> None:
    fake = under("easy-capped", ALL)
    job, single = running(fake, [PLAIN, GPU]), running(fake, [PLAIN, GPU], requeue=False)
    assert (job.nodes, single.nodes) == (["n00", "n01", "n04"], ["n02", "n03", "n05"])
    if is_restarted:
        fake.kill_and_restart()
        fake.set_budget(ALL)
        fake.settle()
        job, single = (fake.partition.jobs[one.id] for one in (job, single))
        assert (job.state, job.nodes) == ("running", ["n00", "n01", "n04"])
    for name in ("n04", "n05"):
        fake.nodes[name].reboot()
    fake.settle()
    fake.until(lambda: single.state == "lost")
    fake.until(lambda: job.state == "running" and job.attempt == 2)
    assert job.losses == 1 and len(job.nodes) == 3 and job.nodes[2] in ("n04", "n05")
    fake.until(lambda: job.state == "done")
    assert [node.runs for node in fake.partition.nodes.values()] == [{}] * 6


def test_a_restart_of_the_head_counts_every_component_where_it_is() -> None:
    fake = under("easy-capped", ALL)
    job, waiting = running(fake, [PLAIN, Component(2, gpus=1)]), running(fake, [Component(1), Component(1, gpus=1)])
    before = fake.partition.planned_mw()
    fake.kill_and_restart()
    fake.set_budget(ALL)
    fake.settle()
    job, waiting = fake.partition.jobs[job.id], fake.partition.jobs[waiting.id]
    assert fake.partition.planned_mw() == before and waiting.state == "queued"
    assert "needs 1 node : 1 node with 1 GPU, and" in fake.partition.why_waiting()[waiting.id]
    fake.until(lambda: waiting.state == "running")
    assert job.state == "done" and waiting.nodes[1] in ("n04", "n05")


def test_a_cancelled_job_ends_in_all_components() -> None:
    fake = under("easy-capped", ALL)
    job = running(fake, [PLAIN, GPU])
    fake.partition.cancel(job)
    fake.until(lambda: job.state == "cancelled")
    assert all(part.is_over for part in job.parts.values()) and len(job.parts) == 3


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative"])
def test_where_nodes_are_alike_a_job_gets_the_sum_of_its_components(policy: str) -> None:
    fake = Fake(4, choose(policy).composition)
    job = fake.submit(run_s=5, components=[Component(1), Component(2)])
    fake.settle()
    assert len(job.nodes) == 3
    with pytest.raises(WrongUseError, match="1 core or 1 GPU per node requested, but the partition's policy takes"):
        fake.submit(run_s=5, components=[Component(1), Component(1, gpus=1)])
    with pytest.raises(WrongUseError, match="5 nodes requested, but the partition has 4"):
        fake.submit(run_s=5, components=[Component(2), Component(3)])


@pytest.mark.parametrize(
    ("components", "reason"),
    [
        (
            [Component(1), Component(3, gpus=1)],
            "component 2 of 2: 3 nodes with 1 GPU requested, but the partition has 2",
        ),
        (
            [Component(1, mics=1), Component(1)],
            "component 1 of 2: 1 node with 1 MIC requested, but the partition has 0",
        ),
        (
            [Component(5), Component(1, gpus=1), Component(1, gpus=2)],
            "7 nodes requested, but the partition has 6",
        ),
        (
            [Component(3, cores=16), Component(2, cores=9)],
            "3 nodes with 16 cores : 2 nodes with 9 cores requested, but the partition has no such 5 nodes at once",
        ),
    ],
)
def test_components_that_can_never_run_are_refused_in_one_line_and_stall_nothing(
    components: list[Component], reason: str
) -> None:
    fake = under("prb", ALL)
    with pytest.raises(WrongUseError) as raised:
        fake.submit(run_s=5, components=components)
    assert str(raised.value) == reason
    job = running(fake, [PLAIN, GPU], run_s=2)
    fake.until(lambda: job.state == "done")


def test_submit_takes_components_after_colons(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Submit] = []
    monkeypatch.setattr(submitting, "ask", lambda socket, request: asked.append(request) or 7)
    words = "-N 1 --gpus 2 -t 10min : -N 4 --cores 8 --time 2h : --memory 64 -- solver --fast : x"
    result = CliRunner().invoke(submitting.submit, words.split(), catch_exceptions=False)
    assert result.output == "job 7\n"
    assert asked[0].components == [Component(1, gpus=2), Component(4, cores=8), Component(1, memory_gb=64.0)]
    assert (asked[0].nodes, asked[0].gpus, asked[0].walltime_s) == (6, 0, 7200)
    assert asked[0].command == ["solver", "--fast", ":", "x"]
    CliRunner().invoke(submitting.submit, ["--", "solver"], catch_exceptions=False)
    assert (asked[1].components, asked[1].nodes) == ([], 1)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (": -N 0 -- a", "0 is not in the range x>=1"),
        (": --queue gpu -- a", "No such option '--queue'"),
        (": -N 2", "nothing to run"),
        ("-N 1.5 : -N 1 -- a", "--nodes 1.5: a component has whole nodes"),
        (16 * ": -N 1 " + "-- a", "17 components: a job may have 16"),
        ("--dispatch dardis : -N 1 -- a", "components are for the cluster agent's queue"),
        ("-N 0.5 : -N 1 -- a", "--nodes 0.5: a component has whole nodes"),
        ("-N 1e30 -- a", "a number is larger than any node has"),
        ("-N nan -- a", "nan is not a number"),
        ("-N 1.3 -- a", "give whole nodes, or halves"),
    ],
)
def test_wrong_components_are_refused_in_one_line(words: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", *words.split()]) == 2
    err = capsys.readouterr().err
    assert says in err and len(err.strip().splitlines()) == 1


def test_the_replay_of_what_a_partition_exports_starts_the_same_components(tmp_path: Path) -> None:
    budget = (1000.0, 2 * FULL_W)  # of a job without joules a replay only knows the most that any node draws
    fake, jobs = under("easy-capped:rule=est", budget), list[Job]()
    for components, run_s, walltime_s in (
        ([PLAIN, GPU], 20, 20),
        ([Component(2, cores=16), Component(2, gpus=1)], 7, 9),
        ([Component(2)], 30, 40),
        ([Component(1), Component(1, gpus=1)], 3, 12),
    ):
        jobs.append(running(fake, components, run_s=run_s, walltime_s=walltime_s))
        fake.step(2)
    fake.until(lambda: all(job.state == "done" for job in jobs))
    files = files_of(fake.partition, fake.store, Kept(), [budget], fake.now_s)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    out = tmp_path / "out"
    assert (
        main(["replay", *arguments(str(tmp_path), files), "--policy", "easy-capped:rule=est", "--out", str(out)]) == 0
    )
    with (out / "jobs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    zero_s = min(int(job.queued_s) for job in jobs)
    assert {int(row["job_id"]): int(float(row["starting_time"])) for row in rows} == {
        job.id: int(job.started_s or 0) - zero_s for job in jobs
    }
    assert [int(row["requested_number_of_resources"]) for row in rows] == [job.spec.nodes for job in jobs]
