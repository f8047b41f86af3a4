"""``clusterctl replay`` of a trace that has nodes: Eurora's tables, or the text of ``sacct``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from cluster_agent.cluster import load_machine
from cluster_agent.commands.replays import replay_warm
from cluster_agent.commands.replays.known_caps import cap_of
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.replay import node_outputs, plan_file
from cluster_agent.replay.closed_loop import ClosedLoop, closed_loop
from cluster_agent.replay.event_log import Setting, write_log
from cluster_agent.replay.node_run import NodeResult, measure_nodes, pass_times
from cluster_agent.replay.node_run import replay_nodes as run_replay
from cluster_agent.replay.outputs import add_loop
from cluster_agent.replay.simulated import SimulatedMachine
from cluster_agent.replay.state_at import on_nodes
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.native.native_unlike import CUnlike
from cluster_agent.scheduler.plans.planning import Outcome
from cluster_agent.scheduler.policies.registry import Choice
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_cap import UNCAPPED, PowerCap
from cluster_agent.scheduler.unlike_nodes.node_aware import PowerSource
from cluster_agent.scheduler.unlike_nodes.node_jobs import Nodes, nodes_of
from cluster_agent.workloads.eurora import read_jobs
from cluster_agent.workloads.node_power import PredictedPower
from cluster_agent.workloads.node_trace import NodeTrace
from cluster_agent.workloads.sacct import read_sacct
from cluster_agent.workloads.swf import Finding
from cluster_agent.workloads.text_tables import is_eurora
from cluster_agent.workloads.warm_nodes import NodeStart, warm_on
from nodectl import __version__
from nodectl.shell.plain_text import echo, echo_block, json_text
from nodectl.shell.progress_bar import progress


def replay_nodes(
    setting: Setting,
    choice: Choice,
    out: str | None,
    log_file: str | None,
    is_strict: bool,
    as_json: bool,
    state_out: str | None = None,
    state_at: int | None = None,
) -> int:
    """Replay the trace and print the results; returns the exit status."""
    composition = choice.on_nodes
    if log_file and composition.plan_time_s is not None and setting.plan_from is None:
        raise WrongUseError(
            f"--log {log_file}: with time_s a plan depends on the machine's speed, so that its log cannot be checked;"
            " replay with --out first, then log with --plan-from DIR/plan.jsonl"
        )
    states = _states(setting, choice, state_out, state_at)
    given, nodes, limit, power = world(setting, composition, is_strict)
    recorded, loop = _recorded_plan(setting, given), _loop(setting, given)
    if setting.cap is not None and composition.power is None:
        echo(f"{setting.policy} does not know watts: the cap is only measured", to_stderr=True)
    _say(given.path, given.findings)
    result, start = _replayed(states, given, nodes, limit, power, recorded, loop)
    jobs = result.trace
    _say(jobs.path, jobs.findings[len(given.findings) :])
    _check_started(result, setting)
    if log_file:
        simulated = SimulatedMachine(jobs.jobs.jobs, "instant", recorded=start.recorded if start else None)
        scheduler = scheduler_of(composition, jobs, nodes, limit, result.outcomes or None, start)
        write_log(log_file, setting, jobs.sha256, scheduler, simulated, result.start_s, origin=choice.origin)
    states.follow(lambda at_s: on_nodes(result, result.moments[at_s]), len(nodes))
    later = result if states.from_s is None else result.since(states.from_s)
    measured = measure_nodes(later)
    if out:
        _write(out, states, result, later, measured)
    measured |= pass_times(result)
    echo_block(json_text(measured, indent=2) if as_json else _lines(measured))
    return 1 if result.unstarted else 0


def _write(
    out: str, states: replay_warm.States, result: NodeResult, later: NodeResult, measured: dict[str, Any]
) -> None:
    """``--out``. ``later``: from the state on, if it starts from one."""
    setting, command = states.setting, ["clusterctl", *sys.argv[1:]]
    given_by = setting.machine or "eurora"
    made_from = node_outputs.manifest(later, given_by, setting.cap, states.choice, command, __version__)
    made_from |= states.manifest
    made_from |= {"plan_from": setting.plan_from} if setting.plan_from else {}
    add_loop(made_from, setting.closed_loop, setting.seed)
    plan = {plan_file.NAME: plan_file.written(result.outcomes, setting, result.trace.sha256)} if result.outcomes else {}
    for note in node_outputs.write(out, later, measured, made_from, plan):
        echo(note, to_stderr=True)


def _say(path: str, findings: Sequence[Finding]) -> None:
    for finding in findings:
        echo(f"{path}: {finding}", to_stderr=True)


def _check_started(result: NodeResult, setting: Setting) -> None:
    """``ClusterError`` if nobody was started: there is nothing to measure."""
    jobs = result.trace
    if result.unstarted == len(jobs.jobs):
        why = "the cap is too low for any; give more" if not setting.plan_from else "its record starts none: plan again"
        raise ClusterError(f"{jobs.path}: none of {len(jobs.jobs)} jobs was ever started under {setting.policy}: {why}")


def world(
    setting: Setting, composition: Composition, is_strict: bool = False
) -> tuple[NodeTrace, Nodes, PowerCap, PowerSource | None]:
    """The jobs and the machine of a replay on nodes, and the predictor if the policy has one."""
    limit = cap_of(setting.cap)
    kept = limit if composition.power is not None else UNCAPPED
    nodes = nodes_of(load_machine(setting.machine or _machine_of(setting.trace)))
    jobs = _read(setting.trace, setting.instance, is_strict).on(nodes, kept, is_strict)
    return jobs, nodes, limit, _power(composition, jobs, nodes)


def _states(
    setting: Setting, choice: Choice, state_out: str | None = None, state_at: int | None = None
) -> replay_warm.States:
    needs = "a closed loop on nodes" if setting.closed_loop else ""
    if choice.on_nodes.plan is not None:
        needs = "a plan"
    if choice.on_nodes.idle_off_s is not None:
        needs = "idle_off_s on nodes"
    return replay_warm.states(setting, choice, state_out, state_at, needs)


def _replayed(
    states: replay_warm.States,
    given: NodeTrace,
    nodes: Nodes,
    limit: PowerCap,
    power: PowerSource | None,
    recorded: Sequence[Outcome] | None,
    loop: ClosedLoop | None,
) -> tuple[NodeResult, NodeStart | None]:
    """The replay; where it starts from the jobs of a state, these."""
    setting, composition = states.setting, states.choice.on_nodes
    if states.is_own:
        with progress(len(given.jobs)) as advance:
            result = run_replay(given, composition, nodes, limit, power, advance, recorded, loop, states.at_s)
        if states.from_s is None:
            return result, None
        departure = states.departure(on_nodes(result, result.moments[states.from_s]))
        if not departure:
            return result, None
        if composition.plan is not None or loop is not None:
            raise replay_warm.other_past(setting, departure)
        replay_warm.say_departure(setting, departure)
    assert states.start is not None
    given, start = warm_on(nodes, states.start.path, states.start.state, given)
    power = _power(composition, given, nodes)
    with progress(len(given.jobs)) as advance:
        return run_replay(given, composition, nodes, limit, power, advance, at_s=states.at_s, start=start), start


def as_submitted(setting: Setting, choice: Choice) -> tuple[int, NativeScheduler]:
    """How many jobs there are, and a scheduler of them; with a closed loop, of the submissions that it led to."""
    composition = choice.on_nodes
    jobs, nodes, limit, power = world(setting, composition)
    recorded, start = _recorded_plan(setting, jobs), None
    if setting.closed_loop or setting.state is not None:
        loop = _loop(setting, jobs)
        result, start = _replayed(_states(setting, choice), jobs, nodes, limit, power, recorded, loop)
        jobs = result.trace
    return len(jobs.jobs), scheduler_of(composition, jobs, nodes, limit, recorded, start)


def _loop(setting: Setting, jobs: NodeTrace) -> ClosedLoop | None:
    """The closed loop; ``WrongUseError`` if it goes by users and there are none."""
    if not setting.closed_loop:
        return None
    loop = closed_loop(setting.closed_loop, setting.seed)
    if not (loop.queue or loop.is_preceding or any(jobs.user)):
        fix = "give queue=JOBS" if is_eurora(setting.trace) else "give queue=JOBS, or export the column User"
        raise WrongUseError(
            f"--closed-loop {setting.closed_loop}: {setting.trace} does not say whose the jobs are; {fix}"
        )
    return loop


def _recorded_plan(setting: Setting, jobs: NodeTrace) -> list[Outcome] | None:
    """The outcomes to repeat; None: the policy plans."""
    return None if setting.plan_from is None else plan_file.read(setting.plan_from, setting, jobs.sha256)


def scheduler_of(
    composition: Composition,
    jobs: NodeTrace,
    nodes: Nodes,
    limit: PowerCap,
    recorded: Sequence[Outcome] | None = None,
    start: NodeStart | None = None,
) -> NativeScheduler:
    """For the loop in Python, with a predictor that has learned nothing yet; ``recorded``: a plan to repeat."""
    power, started = _power(composition, jobs, nodes), start.recorded if start else None
    on = start.on if start else None
    unlike = CUnlike(composition, jobs.jobs, nodes, limit, power, recorded, on=on)
    return NativeScheduler(unlike.phases, jobs.jobs.jobs, unlike.processors, unlike=unlike, recorded=started)


def _power(composition: Composition, jobs: NodeTrace, nodes: Nodes) -> PowerSource | None:
    if composition.power is None or composition.admitted == "given":
        return None
    return PredictedPower(jobs, nodes, composition.admitted, composition.power.guard)


def _read(trace: str, instance: str | None, is_strict: bool) -> NodeTrace:
    if is_eurora(trace):
        return read_jobs(trace, instance, is_strict)
    if instance is not None:
        raise WrongUseError(f"--instance {instance}: only Eurora's tables have instances; leave it out")
    return read_sacct(trace, is_strict)


def _machine_of(trace: str) -> str:
    if is_eurora(trace):
        return "eurora"
    raise WrongUseError(f"{trace}: sacct's text does not describe the machine; give --machine NAME or FILE.toml")


def _lines(measured: dict[str, Any]) -> str:
    used = ", ".join(f"{name} {100 * share:.1f} %" for name, share in measured["utilisation"].items() if share)
    over = measured["above_cap_ws"]
    waits = measured["waits_by_promise"]
    rows = [
        f"{measured['ended']} of {measured['jobs']} jobs ended, makespan {measured['makespan_s']} s",
        f"bounded slowdown  mean {measured['AVEbsld']:.3f}  max {measured['max_bsld']:.1f}"
        f"  (tau = {measured['bsld_tau_s']} s)",
        "wait              mean {mean:.0f} s  median {median:.0f} s  max {max:.0f} s".format(**measured["wait_s"]),
        f"promised waits    {waits['NL']} jobs late, waits over promises sum to {waits['WQT']:.1f}",
        f"utilisation       {used}",
        f"power             highest {measured['highest_w']:.0f} W, above the cap: {over:.0f} W s;"
        f" {100 * measured['watts_known']:.0f} % of the jobs have known watts, the rest are assumed",
        f"scheduling        {measured['passes']} passes, longest {measured['pass_max_s']:.4f} s",
    ]
    if measured["boots"]:
        kwh = {part: measured[f"{part}_j"] / 3.6e6 for part in ("idle", "off", "switching")}
        parts = ", ".join(f"{amount:.1f} kWh {part}" for part, amount in kwh.items())
        rows.append(f"without jobs      {parts}, {measured['boots']} boots")
    if plans := measured.get("plans"):
        why = "".join(f"; {reason}: {count}" for reason, count in plans["reasons"].items())
        rows.append(
            f"plans             {plans['planner']} passes by the planner, {plans['list']} by the list schedule{why};"
            f" longest plan {measured['plan_max_s']:.4f} s"
        )
    return "\n".join(rows)
