"""``clusterctl replay`` of a log of processors, with watts or without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cluster_agent.cap_steps import FOREVER_S, Cap, read_caps
from cluster_agent.cluster import load_machine
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.replay import measures, outputs
from cluster_agent.replay.log_run import Result
from cluster_agent.replay.log_run import replay as run_replay
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.policies.registry import Choice
from cluster_agent.scheduler.policy_phases import ON_PROCESSORS, Composition, clash
from cluster_agent.scheduler.recorded import Recorded
from cluster_agent.workloads.job_log import Workload, machine_of, not_modelled, prepare
from cluster_agent.workloads.swf import Finding, Log, read_swf
from foundation.shell.plain_text import echo
from foundation.shell.progress_bar import progress

if TYPE_CHECKING:
    from cluster_agent.commands.replays.replay import Options, Stepped
    from cluster_agent.replay.closed_loop import ClosedLoop
    from cluster_agent.replay.event_log import Setting
    from cluster_agent.workloads.warm_log import Start

MOST_PROCESSORS = 2**31 - 1


class OnProcessors:
    """The world and the result of a replay (``replay.World``)."""

    def __init__(self, options: Options, choice: Choice) -> None:
        self._options, self._choice, self._setting = options, choice, options.setting
        self._composition = choice.composition
        self._at_s = [] if options.state_at is None else [options.state_at]
        self._start: Start | None = None
        self._recorded: Recorded | None = None
        self._caps: list[Cap] = []

    def run(self) -> None:
        """Replay from the start, or from the jobs of a state."""
        setting, composition, result = self._setting, self._composition, None
        if setting.state is None:
            workload, watts, self._caps, loop = world(setting, composition, self._options.strict)
        else:
            from cluster_agent.commands.replays import (
                replay_warm,  # only here: a short replay is as long as its imports
            )

            warmed, result = replay_warm.replayed(setting, self._choice, self._options.strict, at_s=self._at_s)
            workload, watts, self._caps = warmed.warm.workload, warmed.watts, warmed.caps
            self._start, self._recorded = warmed.start, warmed.warm.recorded
            replay_warm.say(warmed.start, warmed.warm.in_no_log)
        self._say_limits(watts)
        self._say(workload.findings)
        if result is None:
            with progress(len(workload.jobs)) as advance:
                result = run_replay(workload, composition, advance, watts, self._caps, loop, at_s=self._at_s)
        self._say(result.workload.findings[len(workload.findings) :])
        if result.unstarted == len(workload.jobs):
            raise ClusterError(
                f"{setting.trace}: no job was ever started under {setting.policy}: the allowed watts or joules are too"
                f" few for any of {len(workload.jobs)}; give more"
            )
        if remark := _outside(result.schedule.watts, self._caps, result):
            echo(f"{setting.trace}: {remark}", to_stderr=True)
        self.result = result

    def _say_limits(self, watts: Watts | None) -> None:
        if self._caps and self._composition.power is None:
            echo(f"{self._setting.policy} does not know watts: the cap is only measured", to_stderr=True)
        if watts is not None and (remark := _below_idle(watts, self._caps)):
            echo(f"{self._setting.policy}: {remark}", to_stderr=True)

    def _say(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            echo(f"{self._setting.trace}: {finding}", to_stderr=True)

    def stepped(self) -> Stepped:
        """For the loop in Python."""
        from cluster_agent.replay.event_log import ReplayMeter  # as above
        from cluster_agent.replay.simulated import SimulatedMachine
        from cluster_agent.scheduler.interfaces import unmetered
        from cluster_agent.scheduler.native.native_scheduler import NativeScheduler

        workload, watts = self.result.workload, self.result.schedule.watts
        meter = ReplayMeter(self.result.schedule.power_uw) if watts is not None else None
        scheduler = NativeScheduler(
            self._composition, workload.jobs, workload.processors, watts, self._caps, meter or unmetered,
            workload.users, recorded=self._recorded,
        )  # fmt: skip
        slowdown, requeues = (watts.slowdown, watts.requeues) if watts else ((1.0,), True)
        simulated = SimulatedMachine(workload.jobs, self._composition.ties, slowdown, requeues, self._recorded)
        return workload.log.sha256, scheduler, simulated, self.result.schedule.start_s, meter

    def follow(self) -> None:
        """Write the state, and leave out what was before the one that it starts from."""
        if self._options.state_out is not None and self._options.state_at is not None:
            from cluster_agent.commands.replays import replay_warm  # as above

            at = self._options.state_out, self._options.state_at
            replay_warm.save(*at, self.result, self._choice, self._start)
        if self._start is not None:
            self.result = self.result.since(self._start.state.t0_s)

    @property
    def state_sha256(self) -> str:
        """Of the state that it starts from; empty: it starts from none."""
        return self._start.sha256 if self._start is not None else ""

    @property
    def unstarted(self) -> int:
        """Jobs that never started."""
        return self.result.unstarted

    def measured(self) -> dict[str, Any]:
        """The content of ``metrics.json``."""
        return measures.measure(self.result)

    def timed(self) -> dict[str, float]:
        """How long deciding took is not measured."""
        return {}

    def write_swf(self, path: str) -> None:
        """The schedule as a job log."""
        start_s = self.result.schedule.start_s
        outputs.write_swf(path, self.result.workload, start_s, self.result.run_s, self._setting.policy)

    def made_from(self) -> outputs.MadeFrom:
        """What the manifest has."""
        workload, setting = self.result.workload, self._setting
        of_trace = workload.log.path, workload.log.sha256, len(workload.jobs), workload.findings
        given_by = "--machine" if setting.machine else "MaxProcs" if self._start is None else "--state"
        more: dict[str, Any] = {"job_watts": setting.job_watts} if setting.job_watts else {}
        if self._start is not None:
            from cluster_agent.commands.replays import replay_warm  # as above

            more["state"] = replay_warm.manifest_of(self._start)
        machine = {"processors": workload.processors, "given_by": given_by}
        return outputs.MadeFrom(of_trace, machine, setting.cap, not_modelled(workload), more)

    def write(self, directory: str, measured: dict[str, Any], manifest: dict[str, Any]) -> list[str]:
        """All files; returns lines about those that need a package that is missing."""
        return outputs.write(directory, self.result, measured, manifest)

    def lines(self, measured: Mapping[str, Any]) -> str:
        """The results in words."""
        return _lines(measured)


def _below_idle(watts: Watts, caps: Sequence[Cap]) -> str:
    """That a budget, or the lowest cap, is no more than idle nodes draw; "" where it is not so."""
    limits = [("budget", watts.budget.limit_w)] if watts.budget is not None else []
    limits += [("lowest cap", min(cap.watts for cap in caps))] if caps else []
    idle_w = watts.machine.idle_w
    for what, limit_w in limits:
        if limit_w <= idle_w:
            draws = f"the {what} is {limit_w:.0f} W, and the idle machine draws {idle_w:.0f} W"
            return f"{draws}: it cannot be kept with all nodes on"
    return ""


def _outside(watts: Watts | None, caps: Sequence[Cap], result: Result) -> str:
    """That a cap or budget is in force only while there is no job; "" where it is not so."""
    submit_s = result.workload.jobs.submit_s
    first_s, last_s = int(submit_s.min()), int(max(submit_s.max(), result.schedule.end_s.max()))
    windows = [("cap", one.from_s, one.to_s) for one in caps]
    if watts is not None and watts.budget is not None:
        windows.append(("budget", watts.budget.from_s, watts.budget.to_s))
    if not windows or any(from_s < last_s and to_s > first_s for _, from_s, to_s in windows):
        return ""
    what, from_s, to_s = windows[0]
    return f"the {what} from {from_s} to {to_s} s limits nothing: jobs come and run from {first_s} to {last_s} s"


def world(
    setting: Setting, composition: Composition, is_strict: bool = False
) -> tuple[Workload, Watts | None, list[Cap], ClosedLoop | None]:
    """The jobs and the machine of a replay on processors, and the closed loop if there is one."""
    machine = setting.machine
    watts, caps = watts_of(setting, composition)
    given = watts.machine.processors if watts else processors_of(machine) if machine else None
    log = read_swf(setting.trace)
    needs_requests = composition.needs_requests or composition.power is not None
    workload = prepare(log, given or _machine_of(log), needs_requests, is_strict)
    watts = with_jobs(setting, composition, watts, workload)
    loop = None
    if setting.closed_loop:
        from cluster_agent.replay.closed_loop import closed_loop  # only here: a short replay is as long as its imports

        loop = closed_loop(setting.closed_loop, setting.seed)
    return workload, watts, caps, loop


def with_jobs(setting: Setting, composition: Composition, watts: Watts | None, workload: Workload) -> Watts | None:
    """The machine with the watts of these jobs."""
    if watts is not None:
        from cluster_agent.workloads.job_watts import of_jobs, read_job_watts  # as above

    if setting.job_watts is not None:
        if watts is None:
            raise WrongUseError(
                f"--job-watts {setting.job_watts}: needs a machine that has watts, such as --machine curie"
            )
        job_watts = read_job_watts(setting.job_watts, workload, watts)
        for finding in job_watts.findings:
            echo(f"--job-watts: {finding}", to_stderr=True)
        watts = replace(watts, job_busy_uw=job_watts.uw)
    if watts is not None and composition.power is not None:
        watts = of_jobs(watts, workload, composition.power)
    return watts


def as_submitted(setting: Setting, composition: Composition) -> tuple[Workload, Watts | None, list[Cap]]:
    """The inputs of a scheduler; with a closed loop, the submissions that it led to."""
    workload, watts, caps, loop = world(setting, composition)
    if loop is not None:
        result = run_replay(workload, composition, watts=watts, caps=caps, loop=loop)
        workload, watts = result.workload, result.schedule.watts
    return workload, watts, caps


def watts_of(setting: Setting, composition: Composition) -> tuple[Watts | None, list[Cap]]:
    """The machine's watts, if it was given by name or as a file, and the caps."""
    machine, cap = setting.machine, setting.cap
    if machine is None or machine.isdecimal():
        if cap is not None:
            raise WrongUseError(f"--cap {cap}: watts are needed; give a machine that has them, such as --machine curie")
        if reason := clash([*composition.declared, ON_PROCESSORS]):
            raise WrongUseError(f"--policy {setting.policy}: {reason}")
        return None, []
    watts = Watts.of(load_machine(machine), composition.power)
    if cap is None:
        return watts, []
    try:
        constant_w = float(cap)
    except ValueError:
        return watts, _read_caps(cap)
    if not 0 < constant_w < float("inf"):
        raise WrongUseError(f"--cap {cap}: give watts above 0, or a file")
    return watts, [Cap(0, FOREVER_S, constant_w)]


def _read_caps(text: str) -> list[Cap]:
    """Caps of a file, or from the load of a country."""
    from cluster_agent.workloads.rte import is_rte, rte_caps  # see ``world``

    return rte_caps(text) if is_rte(text) else read_caps(text)


def processors_of(text: str) -> int:
    """``--machine`` as a number."""
    try:
        processors = int(text)
    except ValueError:
        processors = 0
    if not 0 < processors <= MOST_PROCESSORS:
        raise WrongUseError(f"--machine {text}: give a number of processors, 1 to {MOST_PROCESSORS}")
    return processors


def _machine_of(log: Log) -> int:
    processors = machine_of(log)
    if processors is None:
        raise WrongUseError(f"{log.path}: its header states no MaxProcs; give the processors with --machine NUMBER")
    return processors


def _lines(measured: Mapping[str, Any]) -> str:
    rows = [
        f"{measured['ended']} of {measured['jobs']} jobs ended, {measured['overtook']} of them backfilled",
        f"bounded slowdown  mean {measured['AVEbsld']:.3f}  max {measured['max_bsld']:.1f}  (tau = 10 s)",
        "wait              mean {mean:.0f} s  median {median:.0f} s  max {max:.0f} s".format(**measured["wait_s"]),
        "stretch           mean {mean:.3f}  median {median:.3f}  max {max:.1f}".format(**measured["stretch"]),
        f"utilisation       {100 * measured['utilisation']:.1f} %",
        f"throughput        {measured['throughput_jobs_per_h']:.2f} jobs/h",
    ]
    if measured["energy_j"] is not None:
        mean = "unknown" if measured["mean_w"] is None else f"{measured['mean_w']:.0f} W"
        rows += [
            f"energy            {measured['energy_j'] / 3.6e6:.1f} kWh, of which idle {measured['idle_j'] / 3.6e6:.1f},"
            f" off {measured['off_j'] / 3.6e6:.1f}, switching {measured['switching_j'] / 3.6e6:.1f}",
            f"power             mean {mean}  highest {measured['peak_w']:.0f} W"
            f"  above the cap {measured['over_cap_ws']:.0f} W s",
            f"killed            {measured['kills']} times, {measured['lost_processor_s']} processor-seconds lost",
        ]
    if measured["window_j"] is not None:
        rows.append(
            f"budget            {measured['window_j'] / 3.6e6:.1f} kWh drawn in its window,"
            f" {measured['over_budget_j'] / 3.6e6:.1f} above it"
        )
    return "\n".join(rows)
