"""What a replay was given, as one policy gets it: which jobs its machine can run, its watts, its caps, its ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

from cluster_agent.cap_steps import as_kept, read_caps
from cluster_agent.cluster import MOST_PROCESSORS, Machine, load_machine
from cluster_agent.errors import WrongUseError
from cluster_agent.library.given import World
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.policies.registry import Choice
from cluster_agent.scheduler.policy_phases import ON_PROCESSORS, Composition, clash
from cluster_agent.scheduler.power_cap import UNCAPPED, PowerCap, constant
from cluster_agent.scheduler.world import Kind
from cluster_agent.scheduler.world import World as Fitted
from cluster_agent.workloads.job_log import Workload, machine_of, prepare
from cluster_agent.workloads.swf import Finding
from cluster_agent.workloads.text_tables import first_line

if TYPE_CHECKING:
    from cluster_agent.scheduler.plans.looks import Look

Say: TypeAlias = Callable[[str], None]
"""Gets what was found on the way, in words."""

Progress: TypeAlias = Callable[[int, int], None]
"""Is called from time to time with how many jobs have ended, and of how many."""


def fitted(given: World, choice: Choice, kind: Kind, say: Say) -> Fitted:
    """For a policy; ``say`` gets what was found on the way. A short replay is as long as its imports: readers are
    imported where they read."""
    read = {"processors": _on_processors, "nodes": _on_nodes, "configurations": _with_configurations}[kind]
    world = read(given, choice, say)
    if given.has_switches:
        from cluster_agent.library.site_switches import on_nodes_with_switches, with_switches

        world = (with_switches if kind == "processors" else on_nodes_with_switches)(world, given, choice)
    if not given.closed_loop:
        return world
    from cluster_agent.replay.closed_loop import closed_loop

    if world.jobs.components is not None:
        raise WrongUseError(f"--closed-loop {given.closed_loop}: not with heterogeneous jobs (of several components)")
    loop = closed_loop(given.closed_loop, given.seed)
    if not (loop.queue or loop.is_preceding or kind != "nodes" or any(world.node_trace.user)):
        fix = "give queue=JOBS" if given.is_eurora else "give queue=JOBS, or export the column User"
        raise WrongUseError(f"--closed-loop {given.closed_loop}: {given.path} does not say whose the jobs are; {fix}")
    return msgspec.structs.replace(world, loop=loop)


def of_all(progress: Progress | None, jobs: int) -> Callable[[int], None]:
    """Calls ``progress``, if there is one, with how many there are in all."""
    return lambda ended: progress(ended, jobs) if progress else None


# --- a log of processors


def _on_processors(given: World, choice: Choice, say: Say) -> Fitted:
    composition = choice.on("processors")
    watts, caps = machine_with_watts(given, choice)
    number, log = processors_of(given), given.log
    assert log is not None
    processors = watts.machine.processors if watts else number or machine_of(log)
    if processors is None and given.partitions is not None:
        from cluster_agent.library.site_switches import partitioned

        processors = partitioned(given, log)
    if processors is None:
        stated, fix = log.header.get("MaxProcs"), "give the processors with --machine NUMBER"
        if stated:
            odd = f"MaxProcs {stated[:40]!r}, which is no number of processors"
            raise WrongUseError(f"{log.path}: its header states {odd}; {fix}")
        raise WrongUseError(f"{log.path}: its header states no MaxProcs; {fix}")
    workload = prepare(log, processors, plans_requests(composition), given.strict)
    looks = recorded_looks(given, choice, workload.sha256)
    return Fitted(*with_job_watts(given, watts, workload, say), caps=caps, looks=looks)


def recorded_looks(given: World, choice: Choice, sha256: str) -> list[Look] | None:
    """Those of ``plan_from`` for a portfolio, on a trace with this SHA-256; None: it looks itself."""
    portfolio = choice.composed.portfolio
    if given.plan_from is None or portfolio is None:
        return None
    from cluster_agent.replay import plan_file

    return plan_file.read_looks(given.plan_from, given.setting(choice.text), sha256, len(portfolio.members))


def plans_requests(composition: Composition) -> bool:
    """Whether a log has to have requested times."""
    return composition.needs_requests or composition.power is not None


def machine_with_watts(given: World, choice: Choice) -> tuple[Watts | None, PowerCap]:
    """The machine's watts, if it was given by name or as a file, and the caps."""
    composition, machine = choice.on("processors"), given.load_machine()
    if machine is None:
        if given.cap is not None:
            raise WrongUseError(
                f"--cap {given.cap}: watts are needed; give a machine that has them, such as --machine curie"
            )
        if reason := clash([*composition.declared, ON_PROCESSORS]):
            raise WrongUseError(f"--policy {choice.text}: {reason}")
        return None, UNCAPPED
    watts = Watts.of(machine, composition.power)
    return watts, _as_kept(read_cap(given.cap), watts.machine, 0.0)


def with_job_watts(
    given: World, watts: Watts | None, workload: Workload, say: Say
) -> tuple[Workload, Watts | None]:  # fmt: skip
    """The jobs and the machine, with what ``job_watts`` has of single jobs."""
    of_jobs = given.watts_of_jobs()
    if of_jobs is None:
        return workload, watts
    from cluster_agent.workloads.job_watts import read_job_watts

    if watts is None:
        what = f"--job-watts {given.job_watts}" if isinstance(given.job_watts, str) else "watts of jobs"
        raise WrongUseError(f"{what}: needs a machine that has watts, such as --machine curie")
    job_watts = read_job_watts(of_jobs, workload, watts)
    for finding in job_watts.findings:
        say(f"--job-watts: {finding}")
    return replace(workload, words=job_watts.words), replace(watts, job_busy_uw=job_watts.uw)


def processors_of(given: World) -> int | None:
    """``machine`` as a number."""
    if given.processors is None:
        return None
    processors = int(given.processors)
    if not 0 < processors <= MOST_PROCESSORS:
        raise WrongUseError(f"--machine {given.machine}: give a number of processors, 1 to {MOST_PROCESSORS}")
    return processors


# --- caps


def read_cap(cap: str | float | PowerCap | None) -> PowerCap:
    """``2000`` (watts, always), a file of caps, ``FILE:PROFILE`` of a table of cap profiles, or a country's load."""
    if cap is None or isinstance(cap, PowerCap):
        return UNCAPPED if cap is None else cap
    try:
        watts = float(cap)
    except ValueError:
        return _caps_of_file(str(cap))
    if not 0 < watts < float("inf"):
        raise WrongUseError(f"--cap {cap}: give watts above 0, or a file")
    return constant(watts)


def _caps_of_file(text: str) -> PowerCap:
    from cluster_agent.workloads.rte import is_rte, rte_caps

    if is_rte(text):
        return PowerCap.of(rte_caps(text))
    path, colon, profile = text.partition(":")
    if first_line(path).startswith("profile,"):
        from cluster_agent.workloads.eurora import read_cap_profile

        return read_cap_profile(path, profile if colon else None)
    return PowerCap.of(read_caps(text))


def known_from_the_start(given: str | float | PowerCap | None, machine: Machine) -> PowerCap:
    """The caps on nodes, kept as the machine file says; ``WrongUseError`` for those that are announced."""
    caps = read_cap(given)
    if any(cap.announced_s for cap in caps):
        raise WrongUseError(f"--cap {given}: this policy knows all caps from the start: remove announced_s")
    return _as_kept(caps, machine, machine.idle_w if machine.kept.counts_idle else 0.0)


def _as_kept(caps: PowerCap, machine: Machine, idle_w: float) -> PowerCap:
    """As the machine file says that a live partition keeps them; ``idle_w`` of each is for idle nodes."""
    settle_s, aside_w = machine.kept.settle_s, machine.kept.aside_w + idle_w
    if not (settle_s or aside_w):
        return caps
    return PowerCap.of(as_kept([cap for cap in caps if cap.watts < float("inf")], settle_s, aside_w))


# --- nodes that differ


def _on_nodes(given: World, choice: Choice, say: Say) -> Fitted:
    from cluster_agent.scheduler.unlike_nodes.node_jobs import Nodes, nodes_of
    from cluster_agent.workloads.node_power import PredictedPower
    from cluster_agent.workloads.node_trace import NodeTrace

    if given.is_shared:
        return _with_shares(given, choice)
    composition, eurora = choice.on("nodes"), given.is_eurora
    power = composition.power
    machine = given.load_machine()
    if machine is None and given.machine is None and not eurora:
        raise WrongUseError(
            f"{given.path}: sacct's text does not describe the machine; give --machine NAME or FILE.toml"
        )
    machine = machine or load_machine("eurora" if given.machine is None else str(given.machine))
    caps, nodes = known_from_the_start(given.cap, machine), nodes_of(machine)
    if machine.kept.counts_idle:  # the cap is above that of idle nodes, and so is what a job draws
        nodes = msgspec.structs.replace(nodes, unit_w=nodes.unit_w - min(group.idle_w for group in machine.groups))
    if given.instance is not None and not eurora:
        raise WrongUseError(f"--instance {given.instance}: only Eurora's tables have instances; leave it out")
    _check_places(given, choice, composition)
    trace = given.table.on(nodes, caps if power is not None else UNCAPPED, given.strict)

    def predictor(trace: NodeTrace, nodes: Nodes) -> PredictedPower:
        guard, model = (None, None) if power is None else (power.guard, power.model)
        return PredictedPower(trace, nodes, composition.admitted, guard, model)

    plan = None
    if given.plan_from is not None:
        from cluster_agent.replay import plan_file

        plan = plan_file.read(given.plan_from, given.setting(choice.text), trace.sha256)
    predicts = power is not None and composition.admitted != "given"
    return Fitted(trace, nodes=nodes, caps=caps, new_predictor=predictor if predicts else None, plan=plan)


def _with_shares(given: World, choice: Choice) -> Fitted:
    """Jobs that may share nodes, two on each."""
    from cluster_agent.scheduler.unlike_nodes.shared_nodes import SHARES

    trace, shared = given.table_and_shares
    nodes = shared.nodes(int(str(given.processors)))
    most = len(nodes) * (SHARES if shared.are_halves else 1)
    if len(large := np.flatnonzero(trace.jobs.units > most)):
        needs, of = trace.jobs.units[large[0]], "halves of nodes" if shared.are_halves else "cards"
        raise WrongUseError(f"{given.path}: job {trace.jobs.name[large[0]]} needs {needs} {of}, and there are {most}")
    plan = None
    if given.plan_from is not None:
        from cluster_agent.replay import plan_file

        plan = plan_file.read(given.plan_from, given.setting(choice.text), trace.sha256)
    return Fitted(trace.on(nodes, UNCAPPED, given.strict), nodes=nodes, plan=plan, shared=shared)


def _check_places(given: World, choice: Choice, composition: Composition) -> None:
    """``WrongUseError`` for a plan that would place jobs on nodes on which they may not run."""
    if composition.plan is not None and any(given.table.within):
        raise WrongUseError(
            f"--policy {choice.text}: it plans with all nodes, and {given.path} says where jobs may run"
        )


# --- jobs with configurations


def _with_configurations(given: World, choice: Choice, say: Say) -> Fitted:
    """Jobs that fit in none of their configurations are dropped and counted."""
    from cluster_agent.workloads.moldable_trace import GENERATED, moldable, read_tables

    machine, log = given.load_machine(), given.log
    if machine is None:
        raise WrongUseError(
            f"--policy {choice.text}: nodes are needed; give a machine that has them, such as --machine cab64"
        )
    assert log is not None
    caps = _cap_of_sockets(given.cap, machine)
    tables = read_tables(given.configurations or GENERATED)
    if machine.kept.counts_idle:
        tables = tables.above_idle(machine.node)
    workload = prepare(log, machine.processors, is_strict=given.strict)
    jobs, ways, rows, findings = moldable(workload, tables, machine.node.cores, given.strict)
    workload = replace(
        workload.only(np.array(rows)), processors=machine.nodes, findings=(*workload.findings, *findings)
    )
    world = Fitted(workload, caps=caps, ways=ways).with_jobs(jobs)
    return _that_can_start(world, choice.on("configurations"), given.strict)


def _that_can_start(world: Fitted, composition: Composition, is_strict: bool) -> Fitted:
    from cluster_agent.replay.world_run import impossible

    never, trace = impossible(world, composition), world.workload
    if not len(never):
        return world
    lines = trace.line[never]
    what, fix = "jobs whose share of the watts is too small for any configuration", "give a higher --cap"
    if is_strict or len(never) == len(world.jobs):
        raise WrongUseError(f"{trace.path}:{lines.min()}: {what} (first of {len(never)}): {fix}")
    finding = Finding(what, "dropped", len(never), int(lines.min()), fix)
    world = msgspec.structs.replace(world, source=replace(trace, findings=(*trace.findings, finding)))
    return world.only(np.setdiff1d(np.arange(len(world.jobs)), never))


def _cap_of_sockets(given: str | float | PowerCap | None, machine: Machine) -> PowerCap:
    """Watts of all sockets together; where there is no cap the most that all nodes draw."""
    if len(machine.groups) > 1:
        raise WrongUseError(f"{machine.name}: configurations are for machines of one kind of nodes, not several")
    cap, node = known_from_the_start(given, machine), machine.node
    if max(cap.watts) < float("inf"):
        return cap
    if not machine.has_watts:
        raise WrongUseError(f"{machine.name}: the machine has no watts; give --cap WATTS")
    most_w = machine.nodes * max(node.busy_max_w or node.busy_w)
    return PowerCap(cap.time_s, tuple(most_w if watts == float("inf") else watts for watts in cap.watts))
