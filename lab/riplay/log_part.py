"""Some hours of a job log, from the jobs that run and wait when they begin: for a real Slurm, and for a replay of the
same hours with the delays of one.

What is there at the beginning comes of a replay of the log by ``easy`` without a cap, as ``clusterctl replay
--state-at`` takes it. The scheduler has seen all of it: what has ended taught it, and what users have used is counted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from cluster_agent.cluster import Machine, Topology, load_machine
from cluster_agent.errors import WrongUseError
from cluster_agent.library.given import World
from cluster_agent.library.replaying import replay
from cluster_agent.library.warm_start import begun
from cluster_agent.replay.simulated import JumpingClock, SimulatedMachine
from cluster_agent.replay.world_run import stepped
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.loop import run
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policies import registry
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_cap import PowerCap
from cluster_agent.scheduler.power_phases import Off
from cluster_agent.scheduler.world import World as Fitted
from cluster_agent.workloads.job_log import prepare
from cluster_agent.workloads.swf import Log
from lab.riplay.ran_jobs import HOUR_S, Part, Ran

BEFORE: Final = "easy"
"""The policy until the part begins."""


class Delays(msgspec.Struct, frozen=True):
    """Of a real Slurm, in the log's seconds: from a decision to the job's first line, and from its last one until the
    scheduler knows that it has ended."""

    start_s: float = 0.0
    end_s: float = 0.0


NO_DELAYS: Final = Delays()


class Hours(msgspec.Struct, frozen=True):
    """Which part of which log, on what, by whom. ``policy`` empty: Slurm's own backfilling."""

    log: str
    from_s: int
    hours: float
    nodes: int
    policy: str = "easy"
    cap: str | float | PowerCap | None = None
    machine: str = "curie"

    @property
    def to_s(self) -> int:
        """When it ends."""
        return self.from_s + round(self.hours * HOUR_S)


class LogPart:
    """Read once; ``new`` makes a scheduler and a part each time. ``WrongUseError`` in one line for what cannot be."""

    def __init__(self, hours: Hours, say: Callable[[str], None]) -> None:
        self.hours = hours
        self.machine = _machine(hours)
        plain = World(hours.log, machine=hours.nodes)
        _check_hours(hours, prepare(_checked(hours, plain.log), hours.nodes).jobs)
        self._choice = registry.choose(hours.policy or BEFORE)
        self.composition = self._choice.on("processors")
        _check_policy(hours.policy, self.composition)
        with tempfile.TemporaryDirectory(prefix="riplay-") as folder:
            state = str(Path(folder) / "state.json")
            replay(plain, BEFORE, say=say, at_s=[hours.from_s]).write_state(state, hours.from_s)
            given = World(hours.log, machine=self.machine, cap=hours.cap, state=state)
            given.take_jobs_of(plain)
            self.world: Fitted = begun(given, self._choice, say)
        self.offs: Sequence[Off] = ()
        power = self.composition.power
        if power is not None and power.idle is not None:
            self.offs = power.idle(self.machine, self.world.caps, hours.from_s)

    def new(self) -> tuple[NativeScheduler, Part]:
        """A scheduler that has seen all until the part begins, and the part."""
        scheduler, machine = self._until_it_begins(SimulatedMachine)
        hours = self.hours
        left_s = {job: end_s - hours.from_s for job, end_s in machine.running.items()}
        part = Part(
            self.world.jobs, self.machine, hours.from_s, hours.to_s, machine.submitted, frozenset(machine.end_s),
            left_s, self.offs, self.world.caps,
        )  # fmt: skip
        return scheduler, part

    def replayed(self, delays: Delays = NO_DELAYS) -> dict[int, Ran]:
        """What a replay makes of the same hours, each start and each end so late."""
        made = partial(_Delayed, since_s=self.hours.from_s, delays=delays)
        scheduler, machine = self._until_it_begins(made)
        run(scheduler, _Until(self.hours.to_s, self.hours.from_s), machine)
        late_s = round(delays.end_s)
        ran = {}
        for job, start_s in machine.start_s.items():
            end_s = machine.end_s.get(job)
            if end_s is None or end_s > self.hours.from_s:
                ran[job] = Ran(start_s=start_s, end_s=end_s and end_s - late_s, level=machine.level(job))
        return ran

    def _until_it_begins(self, made: Callable[..., Any]) -> tuple[NativeScheduler, Any]:
        scheduler, machine = stepped(self.world, self.composition, made=made)
        run(scheduler, _Until(self.hours.from_s), machine)
        return scheduler, machine


def _machine(hours: Hours) -> Machine:
    """So many of its nodes, each a processor of the log. Chassis and racks are not emulated."""
    if ":" in hours.machine:
        raise WrongUseError(f"--machine {hours.machine}: give a machine without options; --nodes says how many nodes")
    load_machine(hours.machine)  # whose error has the name that was given
    machine = load_machine(f"{hours.machine}:nodes={hours.nodes},cores=1")
    machine.check_watts()
    node = machine.node
    if node.boot_s or node.boot_j or node.switch_off_s or node.switch_off_j:
        raise WrongUseError(f"--machine {hours.machine}: its nodes boot, and here they are on or off at once")
    return replace(machine, topology=Topology())


def _checked(hours: Hours, log: Log | None) -> Log:
    if log is None:
        raise WrongUseError(f"{hours.log}: give a log in Standard Workload Format")
    widest = log.header.get("MaxProcs", "")
    if widest.isdecimal() and int(widest) > hours.nodes:
        fix = f"give --nodes {widest}, or a log that is scaled"
        raise WrongUseError(f"{hours.log}: it is of {widest} processors, and there are {hours.nodes} nodes: {fix}")
    return log


def _check_hours(hours: Hours, jobs: Jobs) -> None:
    first_s, last_s = int(jobs.submit_s[0]), int(jobs.submit_s[-1])
    if not first_s < hours.from_s < hours.to_s <= last_s:
        given = f"{hours.from_s} s to {hours.to_s} s"
        raise WrongUseError(f"{hours.log}: {given} is not within its submissions, {first_s} s to {last_s} s")


def _check_policy(policy: str, composition: Composition) -> None:
    """What a riplay has not."""
    power = composition.power
    lacks = {
        "reacts to caps, and jobs of Slurm keep their clocks": power is not None and power.react is not None,
        "has a budget of joules, and nothing meters nodes for it": power is not None and power.budget is not None,
        "boots nodes, and here they are on or off at once": composition.idle_off_s is not None,
        "is for nodes that differ, and these are alike": composition.plan is not None,
    }
    if reason := next((words for words, is_so in lacks.items() if is_so), ""):
        raise WrongUseError(f"--policy {policy}: it {reason}; choose another policy")


class _Until(JumpingClock):
    """Ends before a time."""

    def __init__(self, until_s: int, from_s: int = 0) -> None:
        super().__init__()
        self._now_s, self._until_s = from_s, until_s

    def wait_until(self, time_s: int | None) -> bool:
        return (time_s is None or time_s < self._until_s) and super().wait_until(time_s)


class _Delayed(SimulatedMachine):
    """From a time on starts are late, and what has ended is known late."""

    def __init__(self, *given: Any, since_s: int, delays: Delays) -> None:
        super().__init__(*given)
        self._since_s, self._start_s, self._late_s = since_s, round(delays.start_s), round(delays.end_s)

    def start(self, at_s: int, job: int, expected_end_s: int, level: int = 0) -> None:
        super().start(at_s + (self._start_s if at_s >= self._since_s else 0), job, expected_end_s, level)

    def _end_s(self, now_s: int, job: int) -> int:
        end_s = super()._end_s(now_s, job)
        return end_s + self._late_s if end_s >= self._since_s else end_s
