"""``clusterctl replay`` of a trace that has nodes: Eurora's tables, or the text of ``sacct``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cluster_agent.cluster import load_machine
from cluster_agent.commands.replays import replay_warm
from cluster_agent.commands.replays.known_caps import cap_of
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.replay import node_outputs, plan_file
from cluster_agent.replay.closed_loop import ClosedLoop, closed_loop
from cluster_agent.replay.event_log import Setting
from cluster_agent.replay.node_run import NodeResult, measure_nodes, pass_times
from cluster_agent.replay.node_run import replay_nodes as run_replay
from cluster_agent.replay.outputs import MadeFrom
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
from cluster_agent.workloads.node_trace import NodeTrace, not_modelled
from cluster_agent.workloads.sacct import read_sacct
from cluster_agent.workloads.swf import Finding
from cluster_agent.workloads.text_tables import is_eurora
from cluster_agent.workloads.warm_nodes import NodeStart, warm_on
from foundation.shell.plain_text import echo
from foundation.shell.progress_bar import progress

if TYPE_CHECKING:
    from cluster_agent.commands.replays.replay import Options, Stepped


class OnNodes:
    """The world and the result of a replay (``replay.World``)."""

    def __init__(self, options: Options, choice: Choice) -> None:
        self._options, self._choice, self._setting = options, choice, options.setting
        self._composition = choice.on_nodes
        if options.log_file and self._composition.plan_time_s is not None and options.plan_from is None:
            raise WrongUseError(
                f"--log {options.log_file}: with time_s a plan depends on the machine's speed, so that its log cannot"
                " be checked; replay with --out first, then log with --plan-from DIR/plan.jsonl"
            )
        self._states = _states(self._setting, choice, options.state_out, options.state_at)
        self.state_sha256 = ""

    def run(self) -> None:
        """Replay from the start, or from the jobs of a state."""
        setting = self._setting
        given, self._nodes, self._limit, power = world(setting, self._composition, self._options.strict)
        recorded, loop = _recorded_plan(setting, given), _loop(setting, given)
        if setting.cap is not None and self._composition.power is None:
            echo(f"{setting.policy} does not know watts: the cap is only measured", to_stderr=True)
        _say(given.path, given.findings)
        result, self._start = _replayed(self._states, given, self._nodes, self._limit, power, recorded, loop)
        self.result = self._later = result
        _say(result.trace.path, result.trace.findings[len(given.findings) :])
        _check_started(result, setting)

    def stepped(self) -> Stepped:
        """For the loop in Python."""
        result, start = self.result, self._start
        simulated = SimulatedMachine(result.trace.jobs.jobs, "instant", recorded=start.recorded if start else None)
        plan = result.outcomes or None
        scheduler = scheduler_of(self._composition, result.trace, self._nodes, self._limit, plan, start)
        return result.trace.sha256, scheduler, simulated, result.start_s, None

    def follow(self) -> None:
        """Write the state, and leave out what was before the one that it starts from."""
        result, states = self.result, self._states
        states.follow(lambda at_s: on_nodes(result, result.moments[at_s]), len(self._nodes))
        self._later = result if states.from_s is None else result.since(states.from_s)

    @property
    def unstarted(self) -> int:
        """Jobs that never started."""
        return self.result.unstarted

    def measured(self) -> dict[str, Any]:
        """The content of ``metrics.json``."""
        return measure_nodes(self._later)

    def timed(self) -> dict[str, float]:
        """How long deciding took."""
        return pass_times(self.result)

    def write_swf(self, path: str) -> None:
        """Has been refused (``replay.world_of``)."""
        raise AssertionError

    def made_from(self) -> MadeFrom:
        """What the manifest has."""
        setting, trace = self._setting, self._later.trace
        machine = {"nodes": len(self._nodes), "given_by": setting.machine or "eurora"}
        more = self._states.manifest | ({"plan_from": setting.plan_from} if setting.plan_from else {})
        of_trace = trace.path, trace.sha256, len(trace.jobs), trace.findings
        unmeasured = int((~trace.jobs.knows_watts).sum())
        return MadeFrom(of_trace, machine, setting.cap, not_modelled(trace), more, unmeasured)

    def write(self, directory: str, measured: dict[str, Any], manifest: dict[str, Any]) -> list[str]:
        """All files; returns lines about those that need a package that is missing."""
        outcomes, plan = self.result.outcomes, {}
        if outcomes:
            plan = {plan_file.NAME: plan_file.written(outcomes, self._setting, self.result.trace.sha256)}
        return node_outputs.write(directory, self._later, measured, manifest, plan)

    def lines(self, measured: Mapping[str, Any]) -> str:
        """The results in words."""
        return _lines(measured)


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


def _lines(measured: Mapping[str, Any]) -> str:
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
