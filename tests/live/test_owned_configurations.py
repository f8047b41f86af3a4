"""Policies that choose among configurations of a job, live: the decisions of a replay one by one, also over a restart,
and caps that never add up to more than the budget."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st

from cluster_agent.cluster import Machine, NodeGroup, Topology
from cluster_agent.commands.jobs import cells
from cluster_agent.errors import WrongUseError
from cluster_agent.jobs.job import Job, JobSpec
from cluster_agent.jobs.live_jobs import Partition
from cluster_agent.jobs.owned_watts.live_owner import Owner
from cluster_agent.replay.simulated import JumpingClock, SimulatedMachine
from cluster_agent.replay.world_run import stepped
from cluster_agent.scheduler.configurations.table import Configuration, Rows, full_row
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.power_cap import PowerCap
from cluster_agent.serve.job_requests import row
from tests.cluster_agent.traces import jobs_of
from tests.cluster_agent.worlds import with_ways
from tests.live.fakes import Fake
from tests.oracle.moldable_scheduler import MoldableScheduler, choice_of

UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)

POLICIES = (
    *("rmap:policy=traditional", "rmap:policy=naive", "rmap", "rmap:th=0.3", "rmap:th=inf", "rmap:th=1,near=0.2"),
    *("moldable", "moldable:rule=cores-endtime", "moldable:rule=energy", "moldable:rule=energy,slowdown=2.5"),
)

NODES = 6
NODE = NodeGroup(
    NODES, 16, idle_w=30, rest_w=10, frequency_mhz=(2000, 1000), busy_w=(100, 65), slowdown=(1.0, 1.5)
)  # fmt: skip
MACHINE = Machine("small", (NODE,), Topology(), {})
TABLE: dict[str, Rows] = {
    "lu": tuple(
        Configuration(*row)
        for row in (
            *((1, 16, 115.0, 40.0, 88.0), (2, 16, 115.0, 21.0, 176.0), (4, 16, 115.0, 12.0, 340.0)),
            *((2, 16, 65.0, 27.0, 120.0), (2, 8, 115.0, 30.0, 130.0), (4, 8, 65.0, 19.0, 200.0)),
        )
    ),
    "ep": tuple(
        Configuration(*row)
        for row in ((2, 16, 115.0, 10.0, 170.0), (3, 16, 115.0, 7.5, 250.0), (2, 8, 65.0, 16.0, 90.0))
    ),
}
IDLE_W = NODES * 30.0
FULL_W = NODES * 101.0

Row = tuple[int, int, int, int, str]
"""(submit, run, walltime, nodes, name)"""
Decision = tuple[int, int, int, int, float]
"""When, the job's number from 0, its nodes, cores and cap."""

job_rows = st.lists(
    st.tuples(
        st.integers(1, 25),
        st.integers(1, 25),
        st.integers(5, 30),
        st.integers(1, NODES),
        st.sampled_from(["lu", "ep", ""]),
    ),
    min_size=1,
    max_size=12,
).map(lambda rows: sorted(rows, key=lambda row: row[0]))


@st.composite
def budgets(draw: st.DrawFn) -> list[tuple[int, float]]:
    """Steps of the budget, the first from the start on; the last allows every job."""
    watts = st.sampled_from([200.0, 260.0, 330.0, 420.0, FULL_W])
    times_s = sorted(draw(st.sets(st.integers(1, 60), max_size=3)))
    return [*((at_s, draw(watts)) for at_s in (0, *times_s)), (61, FULL_W)]


def rows_of(row: Row) -> Rows:
    """The configurations of a job, with its own times, and the watts above idle."""
    *_, walltime_s, nodes, name = row
    full = full_row(TABLE[name], nodes) if name else None
    if full is None:
        return tuple(
            Configuration(nodes, 16, level_w, times * walltime_s, nodes * (level_w - 30))
            for level_w, times in ((100.0, 1.0), (65.0, 1.5))
        )
    return tuple(
        Configuration(
            one.nodes,
            one.cores,
            one.cap_w,
            one.time_s * (walltime_s / full.time_s),
            one.nodes * (int(1000 * (one.watts / one.nodes + 10)) - 30_000) / 1000,
        )
        for one in TABLE[name]
    )


def replayed(policy: str, rows: list[Row], steps: list[tuple[int, float]]) -> list[Decision]:
    """By the plain scheduler and the native one."""
    columns = [(submit_s, run_s, request_s, nodes, 0) for submit_s, run_s, request_s, nodes, _ in rows]
    times_s, watts = zip(*steps, strict=True)
    cap = PowerCap(times_s, tuple(one_w - IDLE_W for one_w in watts))
    world = with_ways(jobs_of(columns), [rows_of(row) for row in rows], NODES, cap)
    plain, machine = MoldableScheduler(choice_of(policy), world), SimulatedMachine(world.jobs, "instant")
    plain.least_nodes = plain.least_uw = 0  # live, there may be smaller jobs
    run(plain, JumpingClock(), machine)
    native, _ = stepped(world, choose(policy).composed)
    again = SimulatedMachine(world.jobs, "instant")
    run(native, JumpingClock(), again)
    assert again.start_s == machine.start_s
    chosen = plain.chosen
    return sorted(
        (at_s, job, chosen[job].nodes, chosen[job].cores, chosen[job].cap_w) for job, at_s in machine.start_s.items()
    )


class RecordedPartition(Partition):
    decisions: list[Decision]

    def start(self, now_s: int, job: int, expected_end_s: int, level: int = 0) -> None:
        started = self._rows.queued[job]
        super().start(now_s, job, expected_end_s, level)
        assert started.configured is not None and len(started.nodes) == started.configured.nodes
        one = started.configured
        self.decisions.append((now_s, started.id - 1, one.nodes, one.cores, one.cap_w))


class RecordedFake(Fake):
    def _partition(self) -> Partition:
        made = RecordedPartition(
            list(self.nodes), self.composition, self.store, lambda: self.now_s, self.said.append, **self.given
        )
        self.decisions = made.decisions = getattr(self, "decisions", [])
        return made


def live(policy: str, *steps: tuple[float, float], now_s: float = 1000.0) -> RecordedFake:
    composition = choose(policy).live
    fake = RecordedFake(NODES, composition, now_s=now_s, machine=MACHINE, configurations=TABLE)  # type: ignore[arg-type]
    fake.set_budget(*steps)
    return fake


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=20, phases=UNSHRUNK)
@given(rows=job_rows, steps=budgets() | st.just([(0, FULL_W)]), restart_s=st.integers(0, 60))
def test_the_live_partition_starts_the_jobs_of_the_replay_in_the_same_configurations(
    policy: str, rows: list[Row], steps: list[tuple[int, float]], restart_s: int
) -> None:
    expected, submitted = replayed(policy, rows, steps), 0
    announced = [(float(at_s), watts) for at_s, watts in steps]
    fake = live(policy, *announced, now_s=0.0)
    for now_s in range(max((at_s for at_s, *_ in expected), default=0) + 1):
        fake.now_s = float(now_s)
        if now_s == restart_s:
            event("a restart")
            fake.kill_and_restart()
            ahead = [step for step in announced if step[0] > now_s]
            fake.set_budget(announced[-len(ahead) - 1], *ahead)
        fake.end_due()
        fake.report()
        while submitted < len(rows) and rows[submitted][0] <= now_s:
            _, run_s, walltime_s, nodes, name = rows[submitted]
            fake.submit(run_s, nodes, walltime_s, name=name)
            submitted += 1
        before_w = fake.planned_w()
        fake.settle()
        in_force_w = [watts for at_s, watts in steps if at_s <= now_s][-1]
        assert fake.planned_w() <= max(in_force_w, before_w), "a drop that finds jobs running starts none"
    assert sorted(fake.decisions) == expected


def test_a_job_gets_its_nodes_cores_and_caps_and_the_time_of_its_configuration() -> None:
    fake = live("moldable:rule=cores-endtime", (1000.0, FULL_W))
    job = fake.submit(run_s=50, nodes=2, walltime_s=210, name="lu")
    fake.settle()
    assert job.configured is not None
    assert (job.configured.nodes, job.configured.cores, job.configured.cap_w) == (2, 8, 115.0)
    shown = row(job, 0.0, float)
    assert (shown.nodes, shown.requested, shown.node_names) == (2, 2, "n00,n01")
    assert (job.nodes, job.configured.length_s) == (["n00", "n01"], 300), "30/21 of the requested walltime"
    assert fake.partition.caps_mw() == {"n00": 75_000, "n01": 75_000}, "65 W of packages, 10 W of the rest"
    message = job.start_on("n01")
    assert (message.env, message.walltime_s) == ({"NODECTL_CORES": "8"}, 300)


def test_people_see_how_many_nodes_a_moldable_job_holds() -> None:
    fake = live("moldable:rule=cores-endtime", (1000.0, FULL_W))
    job = fake.submit(run_s=50, nodes=3, walltime_s=210, name="lu")
    waiting = row(job, 0.0, float)
    assert (waiting.nodes, waiting.requested) == (3, 3)
    fake.settle()
    running = row(job, 0.0, float)
    assert len(job.nodes) != 3
    assert (running.nodes, running.requested) == (len(job.nodes), 3)
    assert cells(running)[4] == str(len(job.nodes))


def test_a_job_of_no_application_runs_on_the_nodes_that_it_requests_at_a_level_that_it_can_have() -> None:
    fake = live("rmap:th=1", (1000.0, IDLE_W + 40.0 * NODES))
    job = fake.submit(run_s=5, nodes=3, walltime_s=100)
    fake.settle()
    assert job.nodes == ["n00", "n01", "n02"] and set(fake.partition.caps_mw().values()) == {65_000}
    assert job.start_on("n00").walltime_s == 150


def test_a_job_that_cannot_run_at_these_watts_waits_and_blocks_nobody() -> None:
    fake = live("rmap:policy=traditional", (1000.0, IDLE_W + 80.0))
    hungry, small = fake.submit(run_s=5, nodes=3), fake.submit(run_s=5, nodes=1)
    fake.settle()
    assert (hungry.state, small.state) == ("queued", "running")
    fake.set_budget((1000.0, FULL_W))
    fake.step()
    assert hungry.state == "running"


def test_nodes_that_are_away_take_no_watts_from_jobs() -> None:
    fake = live("moldable", (1000.0, IDLE_W + 70.0))
    fake.nodes["n00"].is_cut = fake.nodes["n01"].is_cut = True
    fake.until(lambda: fake.partition.nodes["n01"].state == "down")
    job = fake.submit(run_s=5)
    fake.step()
    assert job.nodes == ["n02"] and fake.partition.caps_mw() == {"n02": 100_000}


def test_a_restart_with_another_table_keeps_jobs_nodes_and_caps_and_counts_no_less() -> None:
    fake = live("moldable:rule=cores-endtime", (1000.0, FULL_W))
    job = fake.submit(run_s=50, nodes=2, walltime_s=210, name="lu")
    fake.settle()
    fake.given["configurations"] = {"ep": TABLE["ep"]}
    fake.kill_and_restart()
    fake.set_budget((1000.0, FULL_W))
    fake.report()
    fake.step()
    found = fake.partition.jobs[job.id]
    assert (found.state, found.nodes) == ("running", ["n00", "n01"])
    assert fake.partition.caps_mw() == {"n00": 100_000, "n01": 100_000}, "its row is not known any more"
    fake.until(lambda: not fake.partition.jobs)


def test_a_node_to_be_measured_has_full_power_and_its_own_node() -> None:
    fake = live("rmap:th=1", (1000.0, FULL_W))
    spec = JobSpec(["nodectl", "calibrate", "run", "5"], 60, "/")
    job: Job = fake.partition.submit(1000, "someone", spec, ["n04"], full_power=True)
    fake.settle()
    assert job.nodes == ["n04"] and fake.partition.caps_mw() == {"n04": 100_000}


@pytest.mark.parametrize("steps", [(), ((1000.0, inf),)])
def test_without_a_budget_a_job_has_its_share_of_what_busy_nodes_draw(steps: tuple[tuple[float, float], ...]) -> None:
    """Two of six nodes, which draw 70 W each above idle: 140 W. Four nodes take 260 W in their fastest row, and
    120 W in the other, which is then the fastest."""
    fake = RecordedFake(NODES, choose("rmap:policy=naive").live, machine=MACHINE, configurations=TABLE)  # type: ignore[arg-type]
    if steps:
        fake.set_budget(*steps)
    job = fake.submit(run_s=10, nodes=2, name="lu")
    fake.settle()
    assert (len(job.nodes), fake.partition.caps_mw()) == (4, dict.fromkeys(job.nodes, 60_000))


def test_a_table_that_does_not_fit_the_machine_is_refused() -> None:
    composition = choose("rmap").composed
    wide = {"lu": (Configuration(1, 32, 115.0, 10.0, 100.0),)}
    with pytest.raises(WrongUseError, match="small: a configuration has 32 cores, a node 16"):
        Owner(composition, MACHINE, wide)


def test_a_job_that_requested_more_nodes_than_are_left_goes_on_after_a_restart_without_its_table() -> None:
    composition = choose("rmap:th=0").live
    fake = RecordedFake(8, composition, machine=MACHINE, configurations=TABLE)  # type: ignore[arg-type]
    fake.set_budget((1000.0, 8 * 101.0))
    job = fake.submit(run_s=50, nodes=8, name="lu")
    fake.settle()
    assert job.nodes == ["n00", "n01", "n02", "n03"], "the table has no row of eight"
    gone = {name: fake.nodes.pop(name) for name in ("n03", "n04", "n05", "n06", "n07")}
    fake.given["configurations"] = {"ep": TABLE["ep"]}
    fake.kill_and_restart()
    fake.nodes["n03"] = gone["n03"]
    fake.set_budget((1000.0, FULL_W))
    fake.report()
    fake.step()
    assert fake.partition.jobs[job.id].state == "running" and len(fake.partition.nodes) == 4
    assert fake.partition.caps_mw() == dict.fromkeys(job.nodes, 100_000)
    fake.until(lambda: not fake.partition.jobs)
