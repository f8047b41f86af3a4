"""Policies that own watts, live: the decisions of a replay one by one, kills that take their time, and restarts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster_agent.cap_steps import FOREVER_S, Cap
from cluster_agent.cluster import UW, Machine, NodeGroup, Topology
from cluster_agent.jobs.job import Job
from cluster_agent.jobs.live_jobs import Partition
from cluster_agent.jobs.owned_watts.live_counts import at_lowest
from cluster_agent.jobs.owned_watts.live_levels import CAPPED
from cluster_agent.jobs.power_switching import PowerTimes
from cluster_agent.prediction.job_power import PowerPredictor, Submission
from cluster_agent.replay.simulated import JumpingClock, SimulatedMachine
from cluster_agent.scheduler.interfaces import Meter
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.orders.priority import Account
from cluster_agent.scheduler.policies import registry
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Composition
from tests.cluster_agent.traces import PROCESSORS, traces
from tests.live.fakes import Fake
from tests.live.test_owned_configurations import POLICIES as CHOOSING
from tests.live.test_owned_nodes import POLICIES as ON_NODES

UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)

NODE = NodeGroup(PROCESSORS, 1, idle_w=30, frequency_mhz=(2000, 1500, 1000), busy_w=(100, 80, 65))
MACHINE = Machine("small", (NODE,), Topology(), {})
FULL_W = PROCESSORS * 100.0

CHOSEN = (
    *("powercap:mode=dvfs", "powercap:mode=idle", "powercap:mode=dvfs,kill=true,floor_mhz=1500"),
    *("powercap:mode=shut", "powercap:mode=shut,kill=true"),
    *("fcfs-killer:killed=lost,queue=easy,victim=least-lost", "fcfs-killer:ahead=true"),
    *(
        f"energy-budget:joules=15000,from_s=5,to_s=45,tick_s=7,{more}"
        for more in ("test=path", "rule=reducepc,test=job", "backfill=conservative")
    ),
    "energy-budget:rule=powercap,joules=15000,from_s=5,to_s=45",
    *("easy-power:rule=est,meter=end", "easy-power:rule=est,meter=end,margin=1.2"),
    *("eco:start=full,queue=easy", "eco:raised=together,freed=eco-first", "eco:freed=queue-first"),
)

BY_NAME = tuple(
    name
    for name in registry.names()
    if name not in ("easy-power", "shared", *CHOOSING, *ON_NODES) and registry.runs_live(registry.policy(name))
)
POLICIES = (*BY_NAME, *CHOSEN, "score:lowest=unicep", "score:lowest=f1")

Decision = tuple[int, str, int, int]
"""When, what, the job's number from 0, its level."""


@st.composite
def budgets(draw: st.DrawFn) -> list[tuple[int, float]]:
    """Steps of the budget, the first from the start on."""
    watts = st.sampled_from([360.0, 425.0, 510.0, 580.0, 700.0, FULL_W])
    times_s = sorted(draw(st.sets(st.integers(1, 60), max_size=4)))
    return [(at_s, draw(watts)) for at_s in (0, *times_s)]


def meter(now: Callable[[], float]) -> Callable[[], int]:
    """Of a cluster that draws as much at any time."""
    read_s = 0.0

    def read() -> int:
        nonlocal read_s
        since_s, read_s = now() - read_s, now()
        return round(since_s * 380e6)

    return read


def volunteers(seed: int, count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).random(count) < 0.5


def true_w(user: int) -> int:
    """What a node draws for a user's jobs."""
    return 45 + 15 * user


class RecordedPredictor:
    """The live partition's predictor, on the jobs of a log."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._predictor = PowerPredictor(lambda job: job.units * 100.0)

    def _submission(self, job: int) -> Submission:
        jobs, width = self._jobs, int(self._jobs.width[job])
        text = f"run  run {jobs.run_s[job]}"
        return Submission(str(jobs.user[job]), text, width, width, 0, 0, 0, int(jobs.request_s[job]))

    def predict(self, job: int) -> float:
        return self._predictor.predict(self._submission(job)).typical_w

    def learn(self, job: int, watts: float) -> None:
        self._predictor.learn(self._submission(job), watts)


class RecordedMachine(SimulatedMachine):
    decisions: list[Decision]

    def start(self, at_s: int, job: int, expected_end_s: int, level: int = 0) -> None:
        self.decisions.append((at_s, "start", job, level))
        super().start(at_s, job, expected_end_s, level)

    def kill(self, now_s: int, job: int) -> None:
        self.decisions.append((now_s, "kill", job, 0))
        super().kill(now_s, job)

    def set_level(self, now_s: int, job: int, level: int, expected_end_s: int) -> None:
        self.decisions.append((now_s, "level", job, level))
        super().set_level(now_s, job, level, expected_end_s)


def replayed(composition: Composition, jobs: Jobs, steps: list[tuple[int, float]], is_eco: Any) -> list[Decision]:
    counted = at_lowest(MACHINE) if composition.power is not None and composition.power.lowers_caps else MACHINE
    slowdown = (1.0,) * len(counted.node.busy_w)
    machine = RecordedMachine(jobs, "instant", slowdown, composition.power is None or composition.power.requeue)
    machine.decisions = []
    clock = JumpingClock()
    if composition.power is None:
        run(NativeScheduler(composition, jobs, PROCESSORS), clock, machine)
        return machine.decisions
    watts = Watts.of(counted, composition.power)
    lowest = np.where(is_eco, watts.lowest, 0).astype(np.int32)
    job_lowest = lowest if composition.power.volunteers is not None else None
    watts = replace(watts, slowdown=slowdown, job_lowest=job_lowest)
    if composition.power.admitted is not None:
        watts = replace(
            watts,
            new_predictor=lambda: RecordedPredictor(jobs),
            job_plan_uw=np.full(len(jobs), watts.plan_uw[0], np.int64),
            job_busy_uw=np.array([true_w(int(user)) * UW for user in jobs.user], np.int64),
            margin=composition.power.margin,
        )
    ends_s = [*(at_s for at_s, _ in steps[1:]), FOREVER_S]
    caps = [Cap(at_s, end_s, cap_w) for (at_s, cap_w), end_s in zip(steps, ends_s, strict=True)]
    run(NativeScheduler(composition, jobs, PROCESSORS, watts, caps, meter(clock.now_s)), clock, machine)
    return machine.decisions


class RecordedPartition(Partition):
    decisions: list[Decision]

    def _note(self, now_s: int, what: str, job: Job, level: int) -> None:
        self.decisions.append((now_s, what, job.id - 1, level))

    def start(self, now_s: int, job: int, expected_end_s: int, level: int = 0) -> None:
        self._note(now_s, "start", self._rows.queued[job], level)
        super().start(now_s, job, expected_end_s, level)

    def kill(self, now_s: int, job: int) -> None:
        self._note(now_s, "kill", self.runs.by_row[job].job, 0)
        super().kill(now_s, job)

    def set_level(self, now_s: int, job: int, level: int, expected_end_s: int) -> None:
        self._note(now_s, "level", self.runs.by_row[job].job, level)
        super().set_level(now_s, job, level, expected_end_s)


class RecordedFake(Fake):
    most_off = 0

    def settle(self) -> None:
        """Nodes go off and on at once, as in the replay."""
        before = -1
        while before != len(self.decisions) + 1000 * self.off():
            before = len(self.decisions) + 1000 * self.off()
            super().settle()
            for node in self.partition.nodes.values():
                one = node.switched
                if one is not None and one.is_wanted:
                    node.switched = None
                elif one is not None:
                    one.state = "off"
            self.most_off = max(self.most_off, self.off())

    def off(self) -> int:
        return sum(node.switched is not None for node in self.partition.nodes.values())

    def _partition(self) -> Partition:
        made = RecordedPartition(
            list(self.nodes), self.composition, self.store, lambda: self.now_s, self.said.append, **self.given
        )
        made.decisions = getattr(self, "decisions", [])
        self.decisions = made.decisions
        return made


def test_every_live_policy_is_tried() -> None:
    tried = {policy.partition(":")[0] for policy in (*POLICIES, *ON_NODES, *CHOOSING)}
    tried |= {"shared"}  # in test_live_halves
    assert tried == {name for name in registry.names() if registry.runs_live(registry.policy(name))}
    assert len(set(POLICIES)) == len(POLICIES) > 20


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=12, phases=UNSHRUNK)
@given(jobs=traces(most=14), steps=budgets(), seed=st.integers(0, 9))
def test_the_live_partition_decides_as_the_replay(
    policy: str, jobs: Jobs, steps: list[tuple[int, float]], seed: int
) -> None:
    composition = choose(policy).composition
    if composition.priority is not None:  # a log's users have their shares from the start
        everybody = {user: Account() for user in range(jobs.n_users)}
        composition = replace(composition, priority=replace(composition.priority, accounts=everybody))
    if len(jobs):  # a log begins with its first job
        jobs = replace(jobs, submit_s=jobs.submit_s - jobs.submit_s[0] + 1)
    is_eco, submitted = volunteers(seed, len(jobs)), 0
    expected = replayed(composition, jobs, steps, is_eco)
    fake = RecordedFake(
        PROCESSORS,
        composition,
        now_s=0.0,
        machine=MACHINE,
        power=PowerTimes(),
        meter=meter(lambda: fake.now_s if submitted else 0.0),
    )
    fake.set_budget(*((float(at_s), cap_w) for at_s, cap_w in steps))
    for now_s in range(max([at_s for at_s, *_ in expected], default=0) + 1):
        fake.now_s = float(now_s)
        for one in list(fake.partition.runs.by_row.values()):
            for name in one.parts:
                fake.partition.add_power(name, true_w(one.job.uid) * 1000, "measured")
        fake.end_due()
        fake.report()
        while submitted < len(jobs) and jobs.submit_s[submitted] <= now_s:
            columns = int(jobs.run_s[submitted]), int(jobs.width[submitted]), int(jobs.request_s[submitted])
            fake.submit(*columns, int(jobs.user[submitted]), eco=bool(is_eco[submitted]))
            submitted += 1
        fake.settle()
    assert fake.decisions == expected
    event(f"{fake.most_off} nodes off")


class SlowToEnd(Fake):
    """Jobs take ten seconds to end after SIGTERM."""

    def end(self, node: Any, key: tuple[int, int], status: int = 0, cause: Any = "") -> None:
        if cause == "told":
            node.ends_s[key] = min(node.ends_s[key][0], self.now_s + 10), 0
        else:
            super().end(node, key, status, cause)


def under(policy: str, *steps: tuple[float, float], nodes: int = 4, meter: Meter = lambda: 0) -> SlowToEnd:
    fake = SlowToEnd(nodes, choose(policy).composition, now_s=1000.0, machine=MACHINE, meter=meter)
    fake.set_budget(*steps)
    fake.settle()
    return fake


OWNERS = ("prb", "easy-capped", "planned", "rmap:policy=traditional", "moldable", "powercap:mode=idle", "easy-power")


UNSLOWED = [f"{one}:levels=highest" if one in ("planned", "easy-power") else one for one in OWNERS]


@pytest.mark.parametrize("policy", OWNERS)
def test_a_budget_that_is_announced_to_drop_is_kept_from_that_instant_on_and_ends_no_job(policy: str) -> None:
    fake = Fake(PROCESSORS, choose(policy).live, machine=MACHINE, configurations={})  # type: ignore[arg-type]
    low_w = PROCESSORS * 30 + 75.0
    fake.set_budget((1000.0, FULL_W), (1030.0, low_w))
    short, long = fake.submit(run_s=20, nodes=2, walltime_s=20), fake.submit(run_s=60, nodes=2, walltime_s=60)
    fake.settle()
    assert short.state == "running"
    while fake.now_s < 1100.0:
        fake.step()
        assert fake.now_s < 1030.0 or fake.planned_w() <= low_w
    assert short.state == "done" and long.state in ("queued", "running", "done") and long.attempt <= 1


@pytest.mark.parametrize("policy", UNSLOWED)
def test_a_budget_that_drops_unannounced_starts_no_job_and_ends_none(policy: str) -> None:
    fake = Fake(PROCESSORS, choose(policy).live, machine=MACHINE, configurations={})  # type: ignore[arg-type]
    fake.set_budget((1000.0, FULL_W))
    first = fake.submit(run_s=20, nodes=2)
    fake.settle()
    low_w = PROCESSORS * 30 + 75.0
    fake.set_budget((1000.0, low_w))
    second = fake.submit(run_s=5)
    fake.step()
    assert (first.state, second.state) == ("running", "queued")
    fake.until(lambda: second.state == "running")
    assert first.state == "done" and fake.planned_w() <= low_w


def test_a_job_that_was_predicted_to_draw_more_than_a_lower_cap_allows_does_not_wait_for_ever() -> None:
    fake = under("easy-power:levels=highest", (1000.0, 400.0))
    first, wide = fake.submit(run_s=20), fake.submit(run_s=20, nodes=4)
    fake.settle()
    fake.set_budget((1000.0, 390.0))
    fake.until(lambda: wide.state == "running", most_s=30)
    assert (first.state, fake.planned_w()) == ("done", 390.0)
    fake.kill_and_restart()
    fake.set_budget((1000.0, 380.0))
    fake.report()
    second = fake.submit(run_s=20, nodes=4)
    fake.settle()
    assert fake.planned_w() == 390.0, "it runs as it was admitted"
    fake.until(lambda: second.state == "running", most_s=30)
    assert fake.planned_w() == 380.0
    fake.until(lambda: not fake.partition.jobs)
    fake.set_budget((1000.0, 4 * 64.0))
    low = fake.submit(run_s=20, nodes=4)
    fake.step(30)
    assert low.state == "queued", "busy nodes draw 65 W at their lowest frequency"


def drawn_w(fake: Fake) -> float:
    """The cluster's power, as its scheduler plans."""
    stored = fake.partition._rows.scheduler.stored
    assert stored is not None
    return stored.drawn_uw / UW


def test_a_job_that_is_killed_for_a_cap_keeps_its_nodes_until_it_has_ended_and_its_place_in_the_queue() -> None:
    fake = under("fcfs-killer", (1000.0, 400.0), (1010.0, 260.0))
    first, second = fake.submit(run_s=40, nodes=2), fake.submit(run_s=100, nodes=2)
    fake.settle()
    later = fake.submit(run_s=5, nodes=1)
    assert fake.planned_w() == 400
    fake.until(lambda: second.state == "ending")
    assert (fake.now_s, second.reason, fake.planned_w()) == (1010.0, CAPPED, 260.0)
    assert fake.partition.nodes["n02"].state == "allocated"
    fake.step(9.0)
    assert (later.state, second.state) == ("queued", "ending"), "no job takes what the killed one still has"
    fake.step(1.0)
    assert (second.state, second.reason) == ("queued", f"queued again: {CAPPED}")
    fake.until(lambda: first.state == "done")
    fake.settle()
    assert (second.attempt, second.state, later.state) == (2, "running", "queued"), "it was submitted before"


def test_others_do_not_wait_for_ever_for_a_killed_job_that_does_not_end() -> None:
    fake = under("fcfs-killer:killed=lost", (1000.0, 400.0), (1010.0, 260.0))
    fake.submit(run_s=12, nodes=2)
    second = fake.submit(run_s=100, nodes=2)
    fake.settle()
    for name in ("n02", "n03"):
        fake.nodes[name].is_cut = True
    later = fake.submit(run_s=5, nodes=1)
    fake.until(lambda: later.state == "running")
    assert second.state == "ending"
    assert fake.now_s == 1040.0
    assert "n02" not in later.nodes and "n03" not in later.nodes


def test_a_volunteers_job_is_slowed_where_another_is_killed() -> None:
    fake = under("eco:queue=easy", (1000.0, 400.0), (1010.0, 325.0))
    eco, other = fake.submit(run_s=50, nodes=2, eco=True), fake.submit(run_s=50, nodes=2)
    fake.settle()
    assert (eco.level, fake.planned_w()) == (0, 400.0)
    fake.until(lambda: fake.now_s >= 1010)
    assert (eco.state, eco.level, other.state, fake.planned_w()) == ("running", 0, "ending", 260.0)
    fake = under("eco:queue=easy", (1000.0, 400.0), (1010.0, 330.0))
    both = [fake.submit(run_s=50, nodes=2, eco=True) for _ in range(2)]
    fake.until(lambda: fake.now_s >= 1010)
    assert ([job.state for job in both], fake.planned_w()) == (["running", "running"], 320.0)


def test_levels_and_kills_under_way_survive_a_restart() -> None:
    fake = under("eco:queue=easy", (1000.0, 400.0), (1010.0, 325.0))
    slowed = fake.submit(run_s=500, nodes=2, eco=True)
    killed = fake.submit(run_s=500, nodes=2)
    fake.until(lambda: fake.now_s >= 1010)
    assert (slowed.level, killed.state, fake.planned_w()) == (0, "ending", 260.0)
    fake.set_budget((1000.0, 235.0))
    fake.step()
    assert (slowed.level, fake.planned_w()) == (1, 220.0)
    fake.kill_and_restart()
    fake.set_budget((1000.0, 235.0))
    fake.report()
    fake.settle()
    assert fake.planned_w() == 220.0
    jobs = fake.partition.jobs
    fake.until(lambda: jobs[killed.id].state == "queued")
    assert (jobs[slowed.id].level, jobs[slowed.id].state) == (1, "running")
    fake.set_budget((1000.0, 400.0))
    fake.step()
    assert (jobs[killed.id].attempt, jobs[slowed.id].level, fake.planned_w()) == (2, 0, 400.0)


def test_what_is_set_aside_starts_no_job_and_kills_none() -> None:
    fake = under("fcfs-killer", (1000.0, 400.0))
    first = fake.submit(run_s=500, nodes=2)
    fake.settle()
    fake.set_budget((1000.0, 400.0), aside_w=170.0)
    second = fake.submit(run_s=5, nodes=1)
    fake.step()
    assert (first.state, second.state) == ("running", "queued")
    assert "waits for watts" in fake.partition.why_waiting()[second.id]
    fake.set_budget((1000.0, 400.0), aside_w=60.0)
    fake.step()
    assert second.state == "running"


def test_a_step_that_was_announced_is_no_news_when_it_comes_and_kills_nobody_for_what_is_set_aside_then() -> None:
    fake = under("fcfs-killer", (1000.0, 400.0), (1010.0, 390.0))
    job = fake.submit(run_s=500, nodes=2)
    fake.settle()
    fake.now_s = 1011.0
    fake.set_budget((0.0, 390.0))
    assert not fake.partition.watts.announce(fake.partition._rows.scheduler, 1011), "it calls for no pass"
    fake.set_budget((0.0, 390.0), aside_w=170.0)
    fake.step()
    assert job.state == "running"


def stored_j(fake: Fake) -> float:
    """By now, as planned."""
    power, stored = fake.composition.power, fake.partition._rows.scheduler.stored
    budget = power.budget if power is not None else None
    assert budget is not None and stored is not None
    return stored.at(int(fake.now_s), budget)


WINDOW: Final = "energy-budget:joules=40000,from_s=1000,to_s=1100,tick_s=5"
"""400 W; four idle nodes draw 120 W, a job 70 W more on each of its nodes."""


def test_joules_that_a_budget_has_stored_go_over_to_another_table() -> None:
    fake = under(WINDOW, (1000.0, 400.0))
    fake.submit(run_s=60, nodes=1)
    fake.step()
    for _ in range(12):
        fake.step()
    before_j = stored_j(fake)
    assert before_j > 1000, "it drew less than the 400 W of the budget"
    fake.partition._rows.has_grown = True
    fake.partition.turn()
    assert stored_j(fake) == before_j


def test_a_restart_forgets_no_joules_and_counts_what_runs_meanwhile() -> None:
    fake = under(WINDOW, (1000.0, 400.0))
    fake.submit(run_s=60, nodes=2)
    fake.settle()
    fake.step(7)
    before_j, planned_w = stored_j(fake), drawn_w(fake)
    assert before_j > 0
    fake.now_s += 20
    fake.kill_and_restart()
    assert stored_j(fake) == pytest.approx(before_j + 20 * (400 - planned_w))


def test_an_overdrawn_budget_stays_overdrawn_over_restarts_and_starts_nothing() -> None:
    metered_uj = [0]
    fake = under(WINDOW, (1000.0, 400.0), meter=lambda: metered_uj[0])
    fake.submit(run_s=3, nodes=1)
    fake.settle()
    metered_uj[0] = 5_000_000_000  # what the nodes have drawn by the next reading
    fake.step(5)
    metered_uj[0] = 0
    assert stored_j(fake) < -2500
    for _ in range(2):
        fake.kill_and_restart()
        fake.set_budget((1000.0, 400.0))
        waits = fake.submit(run_s=3, nodes=1)
        fake.report()
        fake.settle()
        assert stored_j(fake) < -2500
        assert waits.state == "queued"
    fake.until(lambda: stored_j(fake) >= 0)
    fake.until(lambda: fake.partition.jobs[waits.id].state == "running")


def test_what_is_set_aside_may_be_drawn_while_no_agent_runs() -> None:
    fake = under(WINDOW, (1000.0, 400.0))
    fake.set_budget((1000.0, 400.0), aside_w=60.0)
    fake.submit(run_s=60, nodes=2)
    fake.step(7)
    before_j, planned_w = stored_j(fake), drawn_w(fake)
    fake.now_s += 20
    fake.kill_and_restart()
    assert stored_j(fake) == pytest.approx(before_j + 20 * (400 - planned_w - 60))


def test_the_joules_of_another_window_do_not_count() -> None:
    fake = under(WINDOW, (1000.0, 400.0))
    fake.step(7)
    assert stored_j(fake) > 0
    fake.composition = choose("energy-budget:joules=40000,from_s=1001,to_s=1101,tick_s=5").composition
    fake.kill_and_restart()
    assert fake.partition._rows.scheduler.stored is None, "it begins at the first turn"
    fake.partition.turn()
    assert stored_j(fake) == 0


def test_joules_stored_before_another_policy_had_the_nodes_do_not_count_after_it() -> None:
    """It may have drawn all that the budget had set aside, and nobody has counted."""
    fake = under(WINDOW, (1000.0, 400.0))
    fake.step(7)
    assert stored_j(fake) > 0
    for policy in ("powercap:mode=idle", WINDOW):
        fake.composition = choose(policy).composition
        fake.kill_and_restart()
        fake.set_budget((1000.0, 400.0))
        fake.report()
        fake.submit(run_s=200, nodes=2)
        fake.settle()
        fake.now_s += 20
    fake.now_s -= 20
    assert stored_j(fake) == 0


def test_a_node_that_is_drained_while_all_are_taken_is_counted_once_its_job_has_ended() -> None:
    fake = under("powercap:mode=idle", (1000.0, 10_000.0), nodes=2)
    first, wide = fake.submit(run_s=5, nodes=2), fake.submit(run_s=5, nodes=1)
    fake.settle()
    fake.partition.drain("n00", "fan", 0)
    fake.until(lambda: first.state == "done")
    assert (wide.state, wide.nodes) == ("running", ["n01"])
    waits = fake.submit(run_s=5)
    fake.step()
    assert waits.state == "queued", "n00 is drained"
    fake.until(lambda: not fake.partition.jobs)


@pytest.mark.parametrize("how", ["drained", "restart", "both"])
def test_a_node_on_which_a_jobs_part_has_ended_is_counted_once(how: str) -> None:
    """While all nodes are taken, since the job goes on elsewhere."""
    fake = under("powercap:mode=idle", (1000.0, 10_000.0), nodes=2)
    wide, waits = fake.submit(run_s=3, nodes=2, others_s=(20,)), fake.submit(run_s=5, nodes=1)
    fake.settle()
    fake.step(5)
    if how != "restart":
        fake.partition.drain("n00", "fan", 0)
        fake.step()
    if how != "drained":
        fake.kill_and_restart()
        fake.set_budget((1000.0, 10_000.0))
        fake.report()
        fake.step()
    jobs = fake.partition.jobs
    assert (jobs[wide.id].state, jobs[waits.id].state) == ("ending", "queued")
    fake.until(lambda: wide.id not in fake.partition.jobs)
    assert jobs[waits.id].nodes == ["n00" if how == "restart" else "n01"]
    fake.until(lambda: not fake.partition.jobs)
