"""Two jobs on the halves of one node, live: who is next to whom, through kills and drains, and as a replay has it."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from cluster_agent.budget.sharers.view import Job as SharersJob
from cluster_agent.budget.sharers.view import Tag, View
from cluster_agent.cli import main
from cluster_agent.commands.jobs import _sharing
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.jobs.exported_replay import files_of
from cluster_agent.jobs.job import Job
from cluster_agent.jobs.live_jobs import Partition
from cluster_agent.jobs.owned_watts.live_halves import read_live_pairs
from cluster_agent.replay.replay_files import arguments
from cluster_agent.scheduler.policies import registry
from cluster_agent.serve.config import JobSettings
from foundation.wire.job_messages import JobPart
from tests.live.fakes import EASY, Fake

TABLE = """application,batch_size,partner,partner_batch_size,steps_per_s,partner_steps_per_s
sp,,,,10,
sp,,free,,15,
ep,,,,10,
ep,,free,,10,
cg,,,,10,
cg,,free,,14,
sp,,ep,,14.5,10
sp,,cg,,7,8
sp,,sp,,8,8
cg,,ep,,13,9.9
ep,,ep,,10,10
cg,,cg,,9,9
"""


class Halved(Fake):
    """Under the policy ``shared``, with ``said`` a line for each start."""

    def __init__(self, at: Path, n_nodes: int = 2, rule: str = "matched", share: Any = "opt-in", **given: Any) -> None:
        (at / "pairs.csv").write_text(TABLE)
        self.settings = JobSettings(f"shared:rule={rule}", pairs=str(at / "pairs.csv"), share=share)
        super().__init__(n_nodes, self.settings.composition, pairs=self.settings.live_pairs, **given)

    def start_of(self, name: str, job: Job) -> Any:
        return self.nodes[name].parts.get((job.id, job.attempt))


def halves(*jobs: Job) -> list[dict[str, int]]:
    return [job.halves for job in jobs]


@pytest.fixture
def made(tmp_path: Path) -> Halved:
    return Halved(tmp_path)


def test_two_jobs_that_agree_get_a_half_each_and_their_records_say_why(made: Halved) -> None:
    first, second = (made.submit(20, name=name, halves=1, share="auto") for name in ("sp", "ep"))
    made.settle()
    assert halves(first, second) == [{"n00": 0}, {"n00": 1}]
    assert second.placed_why == "next to job 1 (1.00, 1.45); speeds as known, its own and the partner's"
    assert [(one.job, one.speed, one.its_speed) for one in first.partners] == [(2, 1.45, 1.0)]
    stored = {job.id: job for job in made.store.find()}
    assert (stored[1].partners, stored[2].placed_why) == (first.partners, second.placed_why)
    assert first.start_on("n00").half == 0
    assert second.start_on("n00") == second.start_on("n00")
    assert second.start_on("n00").half == 1
    assert first.walltime_s == 1053, "a twentieth more, since a partner may slow it so"


def test_the_command_says_which_half_a_job_has_and_who_is_next_to_it(made: Halved) -> None:
    jobs = [made.submit(20, name=name, halves=1, share="auto") for name in ("sp", "ep")]
    alone = made.submit(20, name="ep", share="exclusive")
    made.settle()
    assert list(map(_sharing, (*jobs, alone))) == [
        "half 0 of n00; next to job 2, since the two are known to run at 1.45 and 1.00 of their speeds alone",
        "half 1 of n00; next to job 1, since the two are known to run at 1.00 and 1.45 of their speeds alone",
        "whole nodes; alone: exclusive",
    ]


def test_a_job_that_does_not_say_so_has_its_nodes_alone_unless_the_partition_shares(tmp_path: Path) -> None:
    for share, expected in (("opt-in", [{}, {}]), ("all", [{"n00": 0}, {"n00": 1}])):
        made = Halved(tmp_path, share=share)
        jobs = [made.submit(20, name=name) for name in ("ep", "ep")]
        alone = made.submit(20, name="ep", share="exclusive")
        made.settle()
        if share == "opt-in":
            assert halves(*jobs) == expected
            assert jobs[0].placed_why == "alone: exclusive"
        made.until(lambda alone=alone: alone.state == "done")  # type: ignore[misc]
        assert halves(alone) == [{}]
        assert alone.walltime_s == 1000


def test_nobody_is_next_to_a_job_that_would_be_below_its_floor(made: Halved) -> None:
    first, second, third = (made.submit(20, name=name, halves=1, share="auto") for name in ("sp", "sp", "cg"))
    willing = made.submit(20, name="cg", halves=1, share="0.5")
    unknown = made.submit(20, name="mystery", halves=1, share="0")
    made.settle()
    pairs = {frozenset((job.id, one.job)) for job in (first, second, third, willing, unknown) for one in job.partners}
    assert frozenset((first.id, second.id)) not in pairs
    made.until(lambda: not made.partition.jobs)
    assert not unknown.partners
    assert unknown.placed_why == "alone: its application was never measured"
    for job in made.store.find():
        for one in job.partners:
            floor = 0.5 if job.spec.share == "0.5" else 0.95
            assert one.speed is not None
            assert one.speed >= floor


def test_a_killed_agent_finds_both_jobs_on_their_halves(made: Halved) -> None:
    jobs = [made.submit(20, name=name, halves=1, share="auto") for name in ("sp", "ep", "ep", "cg")]
    for _ in range(30):
        made.kill_and_restart()
        made.step()
        there = {(name, half) for job in made.partition.jobs.values() for name, half in job.halves.items()}
        assert len(there) == sum(len(job.halves) for job in made.partition.jobs.values())
    found = made.store.find()
    assert [job.state for job in found] == ["done"] * 4
    assert [len(node.runs) for node in made.nodes.values()] == [2, 2]
    assert [job.attempt for job in jobs] == [0] * 4, "those are of the first agent"


def test_nothing_comes_to_the_free_half_of_a_node_that_is_drained(made: Halved) -> None:
    (first,) = [made.submit(50, name="sp", halves=1, share="auto")]
    made.settle()
    (name,) = first.nodes
    made.partition.drain(name, "to be mended")
    second = made.submit(5, name="ep", halves=1, share="auto")
    third = made.submit(5, name="ep", share="exclusive")
    made.step()
    made.until(lambda: third.state == "done")
    assert name not in (*second.nodes, *third.nodes)
    assert made.partition.nodes[name].state == "draining"
    made.until(lambda: first.state == "done")
    wide = made.submit(5, nodes=2, name="ep", share="exclusive")
    made.step()
    assert wide.state == "queued"
    made.partition.resume(name)
    made.until(lambda: wide.state == "done")


def test_a_node_that_cannot_keep_two_jobs_apart_gets_none(tmp_path: Path) -> None:
    made = Halved(tmp_path, 1)
    made.halves = ""
    made.report()
    job = made.submit(5, name="sp", halves=1, share="auto")
    made.step()
    assert job.state == "queued"
    assert made.partition.nodes["n00"].gets_none.startswith("cannot keep two jobs on halves of its cores")
    made.halves = "affinity"
    made.until(lambda: job.state == "done")


def test_a_job_that_has_left_its_half_has_that_in_its_record(made: Halved) -> None:
    job = made.submit(5, name="sp", halves=1, share="auto")
    made.settle()
    node, key = made.nodes["n00"], (job.id, 1)
    left = "left its half of n00: process 7 took CPUs 0-3 and was put back on 0-1"
    node.parts[key] = JobPart(*key, "ended", started_s=made.now_s, ended_s=made.now_s, detail=left)
    node.ends_s.pop(key)
    made.step()
    assert (job.state, job.reason) == ("done", left)


def test_the_more_sensitive_tag_counts_for_a_node_that_two_jobs_have(made: Halved) -> None:
    for name, tag in (("sp", "memory"), ("ep", "compute")):
        made.submit(20, name=name, halves=1, share="auto", tag=tag)
    made.settle()
    running = made.partition.runs.running()
    assert [nodes for _, nodes in running] == [["n00"], ["n00"]]
    jobs = [SharersJob(str(job.id), nodes, Tag[job.spec.tag.upper()]) for job, nodes in running]
    view = View.of(["n00"], np.array([400_000]), np.array([100_000]), jobs)
    assert view.owners(view.tag).tolist() == [1], "the job that loses most"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"share": "0.7"}, "--share 0.7: the partition's policy gives each job its nodes alone: leave it out"),
        ({"halves": 1}, "half a node: the partition's policy gives each job its nodes alone: leave it out"),
        ({"share": "often"}, "--share: share cannot be 'often': give auto, exclusive, or the least speed from 0 to 1"),
    ],
)
def test_where_nodes_are_not_shared_a_job_that_wants_that_is_refused(given: dict[str, Any], line: str) -> None:
    made = Fake(2, EASY)
    with pytest.raises(WrongUseError) as error:
        made.submit(5, **given)
    assert str(error.value) == line
    assert made.submit(5, share="exclusive").state == "queued"


def test_a_policy_without_halves_does_not_begin_while_two_jobs_share_a_node(made: Halved) -> None:
    for name in ("sp", "ep"):
        made.submit(20, name=name, halves=1, share="auto")
    made.settle()
    with pytest.raises(ClusterError) as error:
        Partition(list(made.nodes), EASY, made.store, lambda: made.now_s)
    assert str(error.value) == (
        "jobs 1 and 2 share n00, and the policy gives each job its nodes alone: start with shared until they have ended"
    )


def test_tables_that_do_not_fit_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "gpus.csv").write_text("\n".join(TABLE.splitlines()[:1]) + "\nsp,,,,10,\nsp,,sp,,8,8\n")
    with pytest.raises(WrongUseError) as error:
        read_live_pairs(str(tmp_path / "gpus.csv"), False)
    assert str(error.value).endswith("has no row with the partner free: a live partition shares halves of nodes alone")
    with pytest.raises(WrongUseError) as error:
        _ = JobSettings("shared").composition
    assert str(error.value) == (
        "a plan of shared nodes needs nodes of two shares, and a live partition without `pairs` knows no speeds of jobs"
        " next to each other: give a file in [jobs]"
    )


@pytest.mark.parametrize("rule", ["matched", "no_preference", "spread", "compact"])
def test_the_replay_of_what_a_partition_exports_decides_as_it_did(rule: str, tmp_path: Path) -> None:
    made, rng = Halved(tmp_path, 6, rule, "all", now_s=1_001_000.0), random.Random(3)
    left = 120
    while left:
        made.now_s += 1
        for _ in range(min(rng.choice([0, 1, 1, 2]), left)):
            left -= 1
            more: dict[str, Any] = {"share": rng.choice(["", "auto", "0.6", "exclusive"])}
            if more["share"] != "exclusive" and rng.random() < 0.4:
                more["halves"] = rng.choice([1, 1, 3])
            run_s, nodes = rng.randint(1, 12), (more.get("halves", 0) + 1) // 2 or rng.choice([1, 1, 2, 3])
            walltime_s, name = run_s + rng.choice([0, 0, 1, 5]) + 1, rng.choice(["sp", "ep", "cg", 'new, "app"'])
            made.submit(run_s, nodes=nodes, walltime_s=walltime_s, name=name, **more)
        made.end_due()  # in one pass with what has come, as in a replay
        made.report()
        made.settle()
    made.until(lambda: not made.partition.jobs)
    files = files_of(made.partition, made.store, None, [], made.now_s)  # type: ignore[arg-type]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    given = arguments(str(tmp_path), files)
    out = tmp_path / "out"
    assert main(["replay", *given, "--policy", f"shared:rule={rule}", "--out", str(out)]) == 0
    live = {str(job.id): job for job in made.store.find()}
    with (out / "jobs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    first_s = min(int(job.queued_s) for job in live.values())
    expected = {number: int(job.started_s or 0) - first_s for number, job in live.items()}
    assert {row["job_id"]: round(float(row["starting_time"])) for row in rows} == expected
    assert len(rows) == 120
    table = parquet.read_table(out / "jobs.parquet").to_pydict()
    partners = {job: set((text or "").split()) for job, text in zip(table["job_id"], table["partners"], strict=True)}
    assert partners == {number: {str(one.job) for one in job.partners} for number, job in live.items()}
    if rule != "compact":
        assert sum(bool(job.partners) for job in live.values()) > 20


def test_every_rule_runs_live() -> None:
    assert registry.runs_live(registry.policy("shared"))
