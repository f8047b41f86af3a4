"""What the plain-Python reference of a replay's resources decides, as a record that names no type of the scheduler."""

from __future__ import annotations

from cluster_agent.library.fitting import fitted
from cluster_agent.library.given import World as Given
from cluster_agent.replay.event_log import Setting
from cluster_agent.replay.simulated import JumpingClock, SimulatedMachine
from cluster_agent.scheduler.interfaces import Scheduler
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.policies import registry
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.world import World
from cluster_agent.workloads.job_watts import of_jobs
from tests.oracle.moldable_scheduler import MoldableScheduler, TableMachine, choice_of
from tests.oracle.node_scheduler import NodeScheduler
from tests.oracle.power_scheduler import PowerReferenceScheduler
from tests.oracle.scheduler import ReferenceScheduler


def decided_by_reference(setting: Setting) -> list[tuple[int, int, int]]:
    """(job, start, end) of every job that it has started, by its number."""
    choice = registry.choose(setting.policy)
    given = Given.of(setting)
    kind = given.kind(choice)
    scheduler, machine = _reference(setting.policy, fitted(given, choice, kind, print), choice.on(kind))
    run(scheduler, JumpingClock(), machine)
    return sorted((job, start_s, machine.end_s[job]) for job, start_s in machine.start_s.items())


def _reference(policy: str, world: World, composition: Composition) -> tuple[Scheduler, SimulatedMachine]:
    if world.ways is not None:
        moldable = MoldableScheduler(choice_of(policy), world)
        return moldable, TableMachine(moldable)
    if world.nodes is not None:
        power = None if world.new_predictor is None else world.new_predictor(world.node_trace, world.nodes)
        on_nodes = NodeScheduler(composition, world.jobs, world.nodes, world.caps, power)
        return on_nodes, SimulatedMachine(world.jobs, "instant")
    if world.watts is None:
        plain = ReferenceScheduler(composition, world.jobs, world.workload.processors)
        return plain, SimulatedMachine(world.jobs, composition.ties)
    watts = world.watts if composition.power is None else of_jobs(world.watts, world.workload, composition.power)
    with_watts = PowerReferenceScheduler(composition, world.jobs, watts, world.caps)
    return with_watts, SimulatedMachine(world.jobs, composition.ties, watts.slowdown, watts.requeues)
