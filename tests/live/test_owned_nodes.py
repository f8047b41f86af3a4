"""Policies that place jobs on nodes that differ, live: the decisions of a replay, one by one and node by node, also
over a restart; what is refused; and caps that never add up to more than the budget."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st

from cluster_agent.cluster import Machine, NodeGroup, Topology
from cluster_agent.errors import WrongUseError
from cluster_agent.jobs.job import Job
from cluster_agent.jobs.live_jobs import Partition
from cluster_agent.jobs.owned_watts.live_owner import Owner
from cluster_agent.replay.simulated import JumpingClock, SimulatedMachine
from cluster_agent.replay.world_run import run_to_end
from cluster_agent.scheduler.configurations.table import Configuration
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.native.native_unlike import CUnlike
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_cap import PowerCap
from cluster_agent.scheduler.unlike_nodes.node_jobs import Nodes
from tests.live.fakes import Fake
from tests.oracle.node_scheduler import NodeScheduler

UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)

POLICIES = (
    *("prb", "prb:rule=est,miss=strict,placing=pack", "prb:rule=profit", "prb:rule=gpus", "prb:rule=promise"),
    *("easy-capped", "easy-capped:rule=est,placing=first", "easy-capped:rule=energy"),
    *("planned", "planned:objective=slowdown,rule=est,placing=pack", "planned:iterations=0,rule=gpus"),
)

LEVELS: dict[str, Any] = {"count": 1, "frequency_mhz": (2000, 1000)}
PLAIN = NodeGroup(cores=16, memory_gb=64, idle_w=30, busy_w=(100, 65), name="plain", **LEVELS)
GPU = NodeGroup(
    cores=8, gpus=2, memory_gb=256, idle_w=50, busy_w=(150, 90), gpu_w=60, name="gpu", hosts=("n04", "n0[5-9]"),
    **LEVELS,
)  # fmt: skip
MACHINE = Machine("mixed", (PLAIN, GPU), Topology(), {})
NAMES = [f"n{number:02}" for number in range(6)]
IDLE_W = 4 * 30.0 + 2 * 50.0
FULL_W = 4 * 100.0 + 2 * (150.0 + 2 * 60.0)

Row = tuple[int, int, int, int, int, int, int]
"""(submit, run, request, nodes, and of each node cores, GPUs, GB)"""
Decision = tuple[int, int, tuple[str, ...]]
"""When, the job's number from 0, its nodes."""


@st.composite
def job_rows(draw: st.DrawFn) -> list[Row]:
    """Jobs that the six nodes can run; few instants and short times, so that ties are common."""
    rows: list[Row] = []
    for _ in range(draw(st.integers(1, 14))):
        run_s, gpus = draw(st.integers(1, 12)), draw(st.sampled_from([0, 0, 1, 2]))
        cores = draw(st.sampled_from([0, 0, 1, 8] if gpus else [0, 0, 8, 9, 16]))
        gb = draw(st.sampled_from([0, 0, 64]))
        wide = gpus or cores > 8
        nodes = draw(st.integers(1, 2 if wide else 5))
        rows.append(
            (draw(st.integers(1, 30)), run_s, run_s + draw(st.sampled_from([0, 1, 5, 50])), nodes, cores, gpus, gb)
        )
    return sorted(rows, key=lambda row: row[0])


@st.composite
def budgets(draw: st.DrawFn) -> list[tuple[int, float]]:
    """Steps of the budget, the first from the start on; the last allows every job."""
    watts = st.sampled_from([300.0, 420.0, 560.0, 700.0, FULL_W])
    times_s = sorted(draw(st.sets(st.integers(1, 60), max_size=4)))
    return [*((at_s, draw(watts)) for at_s in (0, *times_s)), (61, FULL_W)]


def need_of(row: Row) -> list[int]:
    """The columns of the engine: cores, GPUs, MICs, KiB, places."""
    *_, cores, gpus, gb = row
    smallest = 8 if gpus or gb <= 256 else 16  # the GPU nodes have fewest cores, and everything else
    return [cores or smallest, gpus, 0, gb << 20, 1]


def watts_of(row: Row, is_lowest: bool) -> float:
    """The most that the job's nodes can draw above idle, at one of the two frequencies."""
    *_, nodes, cores, gpus, gb = row
    on_gpu = (40.0 if is_lowest else 100.0) + 60 * gpus if cores <= 8 else 0.0
    on_plain = (35.0 if is_lowest else 70.0) if not gpus and gb <= 64 else 0.0
    return nodes * max(on_gpu, on_plain)


def log_of(rows: list[Row], is_lowest: bool) -> Jobs:
    submit_s, run_s, request_s, nodes = (np.array([row[at] for row in rows], np.int64) for at in range(4))
    count = len(rows)
    return Jobs(
        *(np.arange(count), submit_s, run_s, request_s, nodes.astype(np.int32), np.zeros(count, np.int32)),
        name=tuple(map(str, range(count))),
        units=nodes,
        need=np.array([need_of(row) for row in rows], np.int64),
        watts=np.array([watts_of(row, is_lowest) for row in rows]),
        knows_watts=np.ones(count, np.bool_),
        queue=("",) * count,
        max_wait_s=np.zeros(count, np.int64),
    )


HAS = Nodes(np.array([[16, 0, 0, 64 << 20, 1]] * 4 + [[8, 2, 0, 256 << 20, 1]] * 2, np.int64))


def replayed(
    composition: Composition, rows: list[Row], steps: list[tuple[int, float]], plans: bool = False
) -> list[Decision]:
    """By the native replay; the plain scheduler, which has no planner, must agree unless it ``plans``."""
    is_lowest = composition.power is not None and composition.power.lowers_caps
    jobs, cap = (
        log_of(rows, is_lowest),
        PowerCap(tuple(at for at, _ in steps), tuple(watts - IDLE_W for _, watts in steps)),
    )
    unlike = CUnlike(composition, jobs, HAS, cap)
    native = NativeReplay(unlike.phases, jobs, unlike.processors, unlike=unlike)
    run_to_end(native, lambda ended: None)
    start_s = dict(enumerate(native.start_s.tolist()))
    where = {job: native.placed(job).node.tolist() for job in start_s}
    if not plans:
        plain, machine = NodeScheduler(composition, jobs, HAS, cap), SimulatedMachine(jobs, "instant")
        run(plain, JumpingClock(), machine)
        assert start_s == machine.start_s
        assert where == {job: plain.placed[job].node.tolist() for job in start_s}
    return sorted((at_s, job, tuple(sorted(NAMES[node] for node in where[job]))) for job, at_s in start_s.items())


class RecordedPartition(Partition):
    decisions: list[Decision]

    def start(self, now_s: int, job: int, expected_end_s: int, level: int = 0) -> None:
        started = self._rows.queued[job]
        super().start(now_s, job, expected_end_s, level)
        self.decisions.append((now_s, started.id - 1, tuple(started.nodes)))


class RecordedFake(Fake):
    def _partition(self) -> Partition:
        made = RecordedPartition(
            list(self.nodes), self.composition, self.store, lambda: self.now_s, self.said.append, **self.given
        )
        self.decisions = made.decisions = getattr(self, "decisions", [])
        return made

    def submit_row(self, row: Row) -> Job:
        _, run_s, request_s, nodes, cores, gpus, gb = row
        return self.submit(run_s, nodes, request_s, cores=cores, gpus=gpus, memory_gb=float(gb))


def played(
    composition: Composition,
    rows: list[Row],
    steps: list[tuple[int, float]],
    expected: list[Decision],
    restart_s: int = -1,
) -> RecordedFake:
    """Live, second by second up to the last start that is expected."""
    fake, submitted = RecordedFake(len(NAMES), composition, now_s=0.0, machine=MACHINE), 0  # type: ignore[arg-type]
    announced = [(float(at_s), watts) for at_s, watts in steps]
    fake.set_budget(*announced)
    for now_s in range(max(at_s for at_s, *_ in expected) + 1):
        fake.now_s = float(now_s)
        if now_s == restart_s:
            event("a restart")
            fake.kill_and_restart()
            ahead = [step for step in announced if step[0] > now_s]
            fake.set_budget(announced[-len(ahead) - 1], *ahead)
        fake.end_due()
        fake.report()
        while submitted < len(rows) and rows[submitted][0] <= now_s:
            fake.submit_row(rows[submitted])
            submitted += 1
        fake.settle()
        in_force_w = [watts for at_s, watts in steps if at_s <= now_s][-1]
        assert fake.planned_w() <= in_force_w
    return fake


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=20, phases=UNSHRUNK)
@given(rows=job_rows(), steps=budgets(), restart_s=st.integers(0, 60))
def test_the_live_partition_starts_the_jobs_of_the_replay_on_its_nodes(
    policy: str, rows: list[Row], steps: list[tuple[int, float]], restart_s: int
) -> None:
    composition = choose(policy).live
    expected = replayed(composition, rows, steps, plans=composition.plan is not None)
    fake = played(composition, rows, steps, expected, restart_s)
    assert sorted(fake.decisions) == expected
    assert fake.said == [], "no alarm of the rule or the planner"


def under(policy: str, *steps: tuple[float, float]) -> RecordedFake:
    fake = RecordedFake(len(NAMES), choose(policy).live, now_s=1000.0, machine=MACHINE)  # type: ignore[arg-type]
    fake.set_budget(*steps)
    fake.settle()
    return fake


def test_a_job_counts_the_watts_of_the_hungriest_node_that_it_may_get_and_its_nodes_have_caps_of_their_own() -> None:
    fake = under("easy-capped", (1000.0, FULL_W))
    plain, gpu = fake.submit(run_s=50, nodes=2), fake.submit(run_s=50, gpus=2)
    fake.settle()
    assert (plain.nodes, gpu.nodes) == (["n00", "n01"], ["n04"]), "a job without GPUs leaves them to others"
    caps_mw = fake.partition.planned_mw()
    assert caps_mw == {"n00": 100_000, "n01": 100_000, "n02": 30_000, "n03": 30_000, "n04": 270_000, "n05": 50_000}


def test_a_job_starts_where_all_can_be_lowered_for_it_and_wants_the_highest_caps() -> None:
    """An announced drop to what the nodes draw at their lowest frequency keeps nobody waiting."""
    fake = under("planned", (1000.0, IDLE_W + 140.0), (1030.0, IDLE_W + 105.0))
    first, second, third = (fake.submit(run_s=50, cores=16) for _ in range(3))
    fake.settle()
    assert (first.state, second.state, third.state) == ("running", "running", "running")
    fourth = fake.submit(run_s=5, cores=16, walltime_s=100)
    fake.settle()
    assert fourth.state == "queued", "65 W each are too many from 1030 s on"
    assert fake.partition.planned_mw()["n00"] == 65_000 and fake.partition.wanted_mw()["n00"] == 100_000
    assert fake.partition.wanted_mw()["n03"] == fake.partition.planned_mw()["n03"] == 30_000
    fake.until(lambda: first.state == "done")
    high = under("planned:levels=highest", (1000.0, IDLE_W + 140.0), (1030.0, IDLE_W + 105.0))
    one, other = high.submit(run_s=50, cores=16), high.submit(run_s=50, cores=16)
    high.settle()
    assert (one.state, other.state) == ("running", "queued")
    assert high.partition.wanted_mw() == high.partition.planned_mw()


def test_without_watts_for_all_of_its_nodes_a_job_waits_and_says_so() -> None:
    fake = under("easy-capped", (1000.0, IDLE_W + 199.0))
    job = fake.submit(run_s=5, nodes=2)
    fake.settle()
    assert job.state == "queued" and "waits for watts" in fake.partition.why_waiting()[job.id]
    fake.set_budget((1000.0, IDLE_W + 200.0))
    fake.step()
    assert job.state == "running"


def test_a_drop_that_is_announced_is_kept_before_it_comes() -> None:
    fake = under("prb", (1000.0, FULL_W), (1030.0, IDLE_W + 100.0))
    long, short = fake.submit(run_s=20, nodes=2, walltime_s=40), fake.submit(run_s=20, nodes=2, walltime_s=29)
    fake.step()
    assert (long.state, short.state) == ("queued", "running")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"mics": 1}, "1 node with 1 MIC requested, but by its machine file the partition has 0"),
        ({"gpus": 3}, "1 node with 3 GPUs requested, but by its machine file the partition has 0"),
        ({"gpus": 1, "nodes": 3}, "3 nodes with 1 GPU requested, but by its machine file the partition has 2"),
        (
            {"gpus": 1, "cores": 16},
            "1 node with 16 cores, 1 GPU requested, but by its machine file the partition has 0",
        ),
        ({"memory_gb": 257.0}, "1 node with 257 GB requested, but by its machine file the partition has 0"),
    ],
)
def test_a_job_that_requests_what_too_few_nodes_have_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(WrongUseError, match=f"^{reason}$"):
        under("prb", (1000.0, FULL_W)).submit(run_s=5, **given)


def test_where_the_policy_takes_all_nodes_as_alike_a_request_of_a_node_is_refused() -> None:
    with pytest.raises(WrongUseError, match="1 GPU per node requested, but the partition's policy takes"):
        Fake(2).submit(run_s=5, gpus=1)


def test_a_node_of_no_group_gets_no_job() -> None:
    machine = Machine("gpus", (GPU,), Topology(), {})
    fake = Fake(6, choose("prb").live, machine=machine)  # type: ignore[arg-type]
    fake.set_budget((1000.0, FULL_W))
    job = fake.submit(run_s=5, nodes=2)
    fake.settle()
    assert job.nodes == ["n04", "n05"]
    with pytest.raises(WrongUseError, match="3 nodes with 1 core requested, but by its machine file"):
        fake.submit(run_s=5, nodes=3)


def test_a_node_that_is_away_gets_no_job_and_a_job_that_runs_there_keeps_it() -> None:
    fake = under("easy-capped", (1000.0, FULL_W))
    fake.nodes["n05"].is_cut = True
    fake.until(lambda: fake.partition.nodes["n05"].state == "down")
    first, second = fake.submit(run_s=100, gpus=1), fake.submit(run_s=100, gpus=1)
    fake.settle()
    assert (first.nodes, second.state) == (["n04"], "queued")
    why = fake.partition.why_waiting()[second.id]
    assert why.startswith("first in the queue: needs 1 node with 1 GPU, and 0 are idle; enough by")
    fake.partition.drain("n04", "fan", 0)
    fake.nodes["n05"].is_cut = False
    fake.step()
    assert (first.state, second.nodes) == ("running", ["n05"])
    third = fake.submit(run_s=5, gpus=1)
    fake.until(lambda: first.state == second.state == "done")
    fake.until(lambda: third.state == "running")
    assert third.nodes == ["n05"], "n04 is drained"


def test_a_part_that_has_ended_on_a_drained_node_takes_nothing_from_other_nodes() -> None:
    fake = under("prb", (1000.0, FULL_W))
    wide = fake.submit(run_s=3, nodes=2, others_s=(60,), cores=16)
    fake.settle()
    assert wide.nodes == ["n00", "n01"]
    fake.partition.drain("n00", "fan", 0)
    fake.step(4)
    others = [fake.submit(run_s=5, cores=16) for _ in range(2)]
    fake.step()
    assert [job.nodes for job in others] == [["n02"], ["n03"]]
    fake.until(lambda: wide.state == "done")
    fake.partition.resume("n00")
    last = [fake.submit(run_s=5, cores=16) for _ in range(4)]
    fake.step()
    assert sorted(name for job in last for name in job.nodes) == ["n00", "n01", "n02", "n03"]


def test_a_restart_finds_every_job_on_its_nodes_and_plans_around_it() -> None:
    fake = under("easy-capped", (1000.0, FULL_W))
    gpu, plain = fake.submit(run_s=50, gpus=2, walltime_s=60), fake.submit(run_s=80, nodes=3, walltime_s=90)
    fake.step(5)
    before = fake.partition.planned_mw()
    fake.kill_and_restart()
    fake.set_budget((1000.0, FULL_W))
    fake.report()
    both = fake.submit(run_s=5, gpus=1, nodes=2)
    fake.step()
    assert fake.partition.planned_mw() == before
    why = fake.partition.why_waiting()[both.id]
    assert why.startswith("first in the queue: needs 2 nodes with 1 GPU, and 1 is idle; enough by")
    assert why.endswith(f"when job {gpu.id} is to have ended")
    fake.until(lambda: both.state == "running")
    assert (fake.now_s, both.nodes) == (1055.0, ["n04", "n05"])
    assert fake.partition.jobs[plain.id].nodes == ["n00", "n01", "n02"]


def test_a_job_that_names_its_node_is_moved_there_and_no_other_job_gets_that_node() -> None:
    fake = under("prb:rule=est", (1000.0, FULL_W))
    spec = fake.submit(run_s=1).spec
    fake.until(lambda: not fake.partition.jobs)
    named = fake.partition.submit(1000, "someone", spec, on=["n02"])
    others = [fake.submit(run_s=9, cores=16) for _ in range(4)]
    fake.settle()
    assert named.nodes == ["n02"]
    taken = [name for job in (named, *others) for name in job.nodes]
    assert len(taken) == len(set(taken)) == 4, "one waits"
    fake.until(lambda: not fake.partition.jobs)


def test_a_machine_file_that_does_not_say_which_node_is_of_which_group_is_refused() -> None:
    composition = choose("prb").live
    other = NodeGroup(cores=8, idle_w=50, busy_w=(150, 90), **LEVELS)
    with pytest.raises(WrongUseError, match="which nodes are of which of its 2 groups"):
        Owner(composition, Machine("mixed", (PLAIN, other), Topology(), {}))
    dark = NodeGroup(count=1, cores=8, idle_w=50)
    with pytest.raises(WrongUseError, match="the machine has no watts; give busy_w"):
        Owner(composition, Machine("dark", (dark,), Topology(), {}))


def test_a_job_on_nodes_that_a_new_machine_file_has_in_another_group_counts_what_their_caps_are() -> None:
    """Its watts are no less than before, so that no other job gets them."""
    fake = under("easy-capped", (1000.0, FULL_W))
    first = [fake.submit(run_s=50, cores=16) for _ in range(3)]
    fake.settle()
    assert [job.nodes for job in first] == [["n00"], ["n01"], ["n02"]]
    small = NodeGroup(cores=8, idle_w=50, busy_w=(250, 90), name="small", hosts=("n0[0-2]",), **LEVELS)
    fake.given["machine"] = Machine("mixed", (PLAIN, small), Topology(), {})
    fake.kill_and_restart()
    budget_w = 3 * 250.0 + 3 * 30.0
    fake.set_budget((1000.0, budget_w + 70.0))
    fake.report()
    others = [fake.submit(run_s=5, cores=16) for _ in range(2)]
    fake.step()
    assert [job.state for job in others] == ["running", "queued"] and fake.planned_w() == budget_w + 70.0


def test_a_job_for_which_a_new_machine_file_has_no_nodes_stops_no_other() -> None:
    fake = under("prb:miss=strict", (1000.0, 0.0))
    gone = fake.submit(run_s=5, nodes=2, gpus=2)
    fake.step()
    fake.given["machine"] = Machine("plain", (PLAIN,), Topology(), {})
    fake.kill_and_restart()
    fake.set_budget((1000.0, FULL_W))
    fake.report()
    other = fake.submit(run_s=5)
    fake.step()
    assert (fake.partition.jobs[gone.id].state, other.state) == ("queued", "running")
    assert fake.partition.why_waiting()[gone.id] == "needs 2 nodes with 2 GPUs, and the partition has 0"
    fake.given["machine"] = MACHINE
    fake.kill_and_restart()
    fake.set_budget((1000.0, FULL_W))
    fake.report()
    fake.until(lambda: not fake.partition.jobs)


@pytest.mark.parametrize("policy", ["easy", "conservative", "prb", "powercap:mode=dvfs"])
def test_a_job_to_which_another_policy_gave_more_nodes_than_it_requests_has_all_of_them(policy: str) -> None:
    """`moldable` gave four nodes to a job for two; after a restart with this policy two are free, not four."""
    given_more = Fake(
        len(NAMES), choose("moldable").live, machine=Machine("alike", (PLAIN,), Topology(), {}),  # type: ignore[arg-type]
        configurations={"lu": (Configuration(2, 16, 85.0, 21.0, 170.0), Configuration(4, 16, 85.0, 12.0, 340.0))},
    )  # fmt: skip
    given_more.set_budget((1000.0, FULL_W))
    wide = given_more.submit(run_s=50, nodes=2, walltime_s=100, name="lu")
    given_more.settle()
    assert wide.nodes == ["n00", "n01", "n02", "n03"]
    del given_more.given["configurations"]
    given_more.composition = choose(policy).live  # type: ignore[assignment]
    if policy in ("easy", "conservative"):
        del given_more.given["machine"]
    given_more.kill_and_restart()
    given_more.set_budget((1000.0, FULL_W))
    given_more.report()
    others = [given_more.submit(run_s=5) for _ in range(3)]
    given_more.step()
    assert [job.nodes for job in others] == [["n04"], ["n05"], []]
    given_more.until(lambda: not given_more.partition.jobs)
