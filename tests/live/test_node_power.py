"""Nodes that are switched off while nobody needs them, in virtual time, on made-up nodes and a made-up site."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cluster_agent.cluster import Machine, NodeGroup, Topology
from cluster_agent.jobs.job import Component
from cluster_agent.jobs.owned_watts.live_owner import NodeBudget
from cluster_agent.jobs.power_switching import PowerTimes, Switched
from cluster_agent.scheduler.configurations.table import Configuration
from cluster_agent.scheduler.policies.registry import choose
from tests.live.fakes import Fake
from tests.live.test_owned_nodes import MACHINE as MIXED

TIMES = PowerTimes(idle_off_s=60.0, off_within_s=30.0, boot_within_s=100.0, retries=1)
BOOT_S = 20.0


class Site:
    """What switches the nodes of ``fake``. ``ran``: every command; ``works``: whether it does what it is for."""

    def __init__(self, nodes: int, times: PowerTimes = TIMES, **given: Any) -> None:
        self.fake = Fake(nodes, power=times, **given)
        self.ran: list[tuple[str, str]] = []
        self.works: Callable[[Switched], bool] = lambda one: True
        self.has_watts: Callable[[], bool] = lambda: True
        self.boots_s: dict[str, float] = {}

    @property
    def states(self) -> dict[str, str]:
        return {name: node.state for name, node in self.fake.partition.nodes.items()}

    def count(self, state: str) -> int:
        return list(self.states.values()).count(state)

    def step(self, seconds: float = 1.0) -> None:
        for name, at_s in list(self.boots_s.items()):
            if self.fake.now_s >= at_s:
                self.fake.nodes[name].is_cut = False
                del self.boots_s[name]
        self.fake.step(seconds)
        self.serve()

    def serve(self) -> None:
        power, nodes = self.fake.partition.power, self.fake.partition.nodes
        for node in nodes.values():
            power.confirm_off(node)
            one = node.switched
            if one and one.is_wanted and one.state in ("off", "failed") and self.has_watts():
                power.boot(node)
        for one in power.to_run(nodes.values()):
            self.ran.append((one.name, one.state))
            if not self.works(one):
                power.ended(one, "the BMC does not answer")
                continue
            power.ended(one, "")
            made = self.fake.nodes[one.name]
            if one.state == "powering-off":
                made.is_cut = True
                self.boots_s.pop(one.name, None)
            else:
                made.reboot()
                self.boots_s[one.name] = self.fake.now_s + BOOT_S

    def until(self, holds: Callable[[], object], most_s: int = 600) -> None:
        for _ in range(most_s):
            if holds():
                return
            self.step()
        raise AssertionError(f"in vain: {self.states}; said: {self.fake.said}")


def test_nodes_stay_on_when_nothing_says_that_they_are_switched_off() -> None:
    site = Site(2, PowerTimes())
    for _ in range(100):
        site.step(60.0)
    assert site.ran == []


def test_idle_nodes_are_switched_off_but_for_those_that_are_to_stay() -> None:
    site = Site(4, PowerTimes(idle_off_s=60.0, keep_idle=1))
    site.until(lambda: site.count("off") == 3)
    assert site.states["n00"] == "idle"
    assert sorted(site.ran) == [(f"n0{n}", "powering-off") for n in (1, 2, 3)]
    for _ in range(100):
        site.step(10.0)
    assert len(site.ran) == 3


def test_a_node_that_has_a_job_or_is_drained_is_not_switched_off() -> None:
    site = Site(2)
    site.fake.submit(run_s=500)
    site.fake.partition.drain("n01", "a fan", 0)
    for _ in range(200):
        site.step()
    assert site.ran == []


def test_each_component_of_a_job_has_its_own_nodes_booted() -> None:
    """The first nodes that some component could have are of one kind, and the other kind was never booted."""
    site = Site(6, composition=choose("easy-capped").live, machine=MIXED)
    site.fake.set_budget((0.0, 5000.0))
    site.until(lambda: site.count("off") == 6)
    job = site.fake.submit(run_s=50, components=[Component(1, cores=16), Component(1, gpus=1)])
    site.until(lambda: job.state == "done", 300)
    assert job.nodes == ["n00", "n04"] and {name for name, state in site.ran if state == "booting"} == {*job.nodes}


def test_a_job_boots_the_nodes_that_it_lacks_and_starts_when_they_are_back() -> None:
    site = Site(4)
    site.until(lambda: site.count("off") == 4)
    job = site.fake.submit(run_s=50, nodes=3)
    site.until(lambda: site.count("booting") == 3)
    site.until(lambda: job.state == "done")
    assert job.nodes == ["n00", "n01", "n02"] and job.attempt == 1
    assert [name for name, state in site.ran if state == "booting"] == ["n00", "n01", "n02"]


GROUPS = (
    NodeGroup(1, 8, idle_w=30, busy_w=(100.0,), frequency_mhz=(2000,), name="plain"),
    NodeGroup(1, 8, gpus=2, idle_w=50, busy_w=(150.0,), frequency_mhz=(2000,), name="gpu", hosts=("n0[23]",)),
)


@pytest.mark.parametrize("policy", ["prb", "easy-capped", "planned"])
def test_a_job_boots_nodes_that_have_what_it_requests(policy: str) -> None:
    machine = Machine("mixed", GROUPS, Topology(), {})
    site = Site(4, composition=choose(policy).live, machine=machine)
    site.fake.set_budget((site.fake.now_s, 1000.0))
    site.until(lambda: site.count("off") == 4)
    gpu = site.fake.submit(run_s=50, gpus=1)
    site.until(lambda: gpu.state == "running")
    assert gpu.nodes == ["n02"] and site.count("off") == 3
    named = site.fake.partition.submit(1000, "someone", gpu.spec, on=["n03"])
    site.until(lambda: named.state == "done")
    assert (named.nodes, {name for name, state in site.ran if state == "booting"}) == (["n03"], {"n02", "n03"})


@pytest.mark.parametrize("policy", ["rmap:policy=naive", "rmap", "moldable"])
def test_a_job_that_may_get_more_nodes_than_it_requests_boots_them(policy: str) -> None:
    node = NodeGroup(4, 16, idle_w=30, rest_w=10, frequency_mhz=(2000,), busy_w=(100.0,))
    table = {"lu": tuple(Configuration(width, 16, 115.0, 80.0 / width, 60.0 * width) for width in (1, 2, 3))}
    machine = Machine("small", (node,), Topology(), {})
    site = Site(4, composition=choose(policy).live, machine=machine, configurations=table)
    site.fake.set_budget((site.fake.now_s, 400.0))
    site.until(lambda: site.count("off") == 4)
    job = site.fake.submit(run_s=20, nodes=1, walltime_s=100, name="lu")
    site.until(lambda: job.state == "done")
    assert len({name for name, state in site.ran if state == "booting"}) == 3


def test_a_boot_waits_for_its_watts() -> None:
    site = Site(1)
    site.until(lambda: site.count("off") == 1)
    site.has_watts = lambda: False
    job = site.fake.submit(run_s=50)
    for _ in range(50):
        site.step()
    assert site.states == {"n00": "off"} and ("n00", "booting") not in site.ran
    site.has_watts = lambda: True
    site.until(lambda: job.state == "done")


def test_a_request_to_boot_ends_with_the_job_that_it_was_for() -> None:
    site = Site(1)
    site.until(lambda: site.count("off") == 1)
    site.has_watts = lambda: False
    job = site.fake.submit(run_s=50)
    site.step()
    site.fake.partition.cancel(job)
    site.step()
    site.has_watts = lambda: True
    for _ in range(50):
        site.step()
    assert site.states == {"n00": "off"}


def test_nodes_that_boot_for_a_wide_job_are_planned_on_so_that_others_do_not_take_its_place() -> None:
    site = Site(4, PowerTimes(idle_off_s=60.0, boot_within_s=100.0, keep_idle=2))
    site.until(lambda: site.count("off") == 2)
    wide = site.fake.submit(run_s=50, nodes=4)
    site.until(lambda: site.count("booting") == 2)
    long = [site.fake.submit(run_s=900, walltime_s=1000) for _ in range(4)]
    site.until(lambda: wide.state == "running", most_s=60)
    assert all(job.state == "queued" for job in long)


@pytest.mark.parametrize("state", ["powering-off", "booting"])
def test_a_command_that_fails_is_tried_again_and_then_the_node_is_down_with_the_reason(state: str) -> None:
    site = Site(1)
    if state == "booting":
        site.until(lambda: site.count("off") == 1)
        site.fake.submit(run_s=50)
    site.works = lambda one: False
    site.until(lambda: site.states == {"n00": "down"})
    switched = site.fake.partition.nodes["n00"].switched
    assert switched is not None and "failed 2 times: the BMC does not answer" in switched.reason
    assert site.ran.count(("n00", state)) == 2
    site.works = lambda one: True
    site.fake.nodes["n00"].is_cut = False
    site.fake.partition.resume("n00")
    site.step()
    assert site.states["n00"] in ("idle", "allocated")


def test_a_node_that_never_comes_back_is_switched_on_again_and_then_down() -> None:
    site = Site(1)
    site.until(lambda: site.count("off") == 1)
    site.fake.submit(run_s=50)
    site.until(lambda: site.count("booting") == 1)
    site.boots_s.clear()
    for _ in range(250):
        site.step()
        site.boots_s.clear()
    assert site.states == {"n00": "down"} and site.ran.count(("n00", "booting")) == 2


def test_a_node_that_speaks_on_after_it_was_switched_off_is_not_taken_for_off() -> None:
    site = Site(1)
    site.works = lambda one: True
    for _ in range(400):
        site.step()
        site.fake.nodes["n00"].is_cut = False
        assert site.count("off") == 0
    assert site.states == {"n00": "down"}


def test_a_node_that_is_heard_although_it_was_off_gets_jobs_again() -> None:
    site = Site(1)
    site.until(lambda: site.count("off") == 1)
    site.fake.nodes["n00"].reboot()
    site.fake.nodes["n00"].is_cut = False
    site.step()
    assert site.states == {"n00": "idle"}


def test_what_is_off_by_hand_stays_off_until_it_is_switched_on_by_hand() -> None:
    site = Site(1)
    partition = site.fake.partition
    partition.power.switch_off(partition.nodes["n00"], is_by_hand=True)
    site.until(lambda: site.count("off") == 1)
    job = site.fake.submit(run_s=10)
    for _ in range(100):
        site.step()
    assert site.states == {"n00": "off"}
    partition.power.switch_on(partition.nodes["n00"])
    site.until(lambda: job.state == "done")


def test_what_was_off_before_the_machine_of_the_agent_went_down_is_switched_off_again() -> None:
    site = Site(1)
    site.until(lambda: site.count("off") == 1)
    site.fake.kill_and_restart()
    site.fake.partition.power.doubt(site.fake.partition.nodes["n00"])
    site.until(lambda: site.count("off") == 1)
    assert site.ran == [("n00", "powering-off")] * 2


class Killed(RuleBasedStateMachine):
    """Jobs come, nodes are switched, and the agent is killed between any two things."""

    def __init__(self) -> None:
        super().__init__()
        self.site = Site(3)
        self.jobs: list[Any] = []

    @rule(nodes=st.integers(1, 3), run_s=st.integers(1, 90))
    @precondition(lambda self: len(self.jobs) < 6)
    def submit(self, nodes: int, run_s: int) -> None:
        self.jobs.append(self.site.fake.submit(run_s=run_s, nodes=nodes).id)

    @rule(seconds=st.integers(1, 80))
    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.site.step()

    @rule()
    def kill_before_commands(self) -> None:
        self.site.fake.partition.turn()
        self.site.fake.kill_and_restart()

    @invariant()
    def an_off_node_has_no_power_and_a_node_with_a_job_has(self) -> None:
        for name, node in self.site.fake.partition.nodes.items():
            if node.state == "off":
                assert self.site.fake.nodes[name].is_cut
            assert node.switched is None or not node.runs

    def teardown(self) -> None:
        fake = self.site.fake
        self.site.until(lambda: all(job.state == "done" for job in fake.store.find(self.jobs)) or not self.jobs, 3000)
        assert all(job.attempt == 1 for job in fake.store.find(self.jobs))
        self.site.until(lambda: self.site.count("off") == 3)
        starts = [state for _, state in self.site.ran]
        assert starts.count("powering-off") - starts.count("booting") == 3  # none twice without need
        fake.database.close()


Killed.TestCase.settings = settings(max_examples=12, stateful_step_count=12, suppress_health_check=list(HealthCheck))
TestKilled = Killed.TestCase


def test_nodes_that_a_policy_has_off_for_a_cap_stay_off_for_its_window_also_over_a_restart() -> None:
    node = NodeGroup(
        4, 1, off_w=5, idle_w=30, frequency_mhz=(2000,), busy_w=(100.0,), switch_off_s=5, boot_s=25
    )  # fmt: skip
    machine = Machine("small", (node,), Topology(), {})
    given = {"composition": choose("powercap:mode=shut").composition, "machine": machine}
    site = Site(4, PowerTimes(off_within_s=30.0, boot_within_s=100.0), **given)
    begin_s = site.fake.now_s
    budget = NodeBudget(((begin_s, 400.0), (begin_s + 60, 210.0), (begin_s + 160, 400.0)))
    site.fake.partition.set_budget(budget)
    wide = site.fake.submit(run_s=20, nodes=4, walltime_s=30)
    site.until(lambda: wide.state == "done")
    long = [site.fake.submit(run_s=200, walltime_s=300) for _ in range(4)]
    site.until(lambda: site.count("off") == 2)
    assert begin_s + 55 <= site.fake.now_s <= begin_s + 80
    assert [job.state for job in long] == ["running", "running", "queued", "queued"], "the queue does not boot them"
    site.fake.kill_and_restart()
    site.fake.partition.set_budget(budget)
    site.step()
    jobs = site.fake.partition.jobs
    assert (site.count("off"), sorted(job.state for job in jobs.values())) == (2, [*2 * ["queued"], *2 * ["running"]])
    site.until(lambda: site.count("off") == 0)
    assert begin_s + 160 <= site.fake.now_s <= begin_s + 170
    site.until(lambda: not site.fake.partition.jobs)
    site.until(lambda: site.count("idle") == 4)
    site.fake.partition.set_budget(NodeBudget(((begin_s, 210.0),)))
    site.until(lambda: site.count("off") == 2)
    site.fake.partition.set_budget(NodeBudget(((begin_s, 400.0),)))
    last = site.fake.submit(run_s=5, nodes=4)
    site.until(lambda: last.state == "running")
