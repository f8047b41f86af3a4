"""``clusterctl replay``: what a policy would have done with a job log."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from cluster_agent.cap_steps import FOREVER_S, Cap, read_caps
from cluster_agent.cluster import load_machine
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.replay import measures, outputs
from cluster_agent.replay.event_log import ReplayMeter, Setting, write_log
from cluster_agent.replay.log_run import Result
from cluster_agent.replay.log_run import replay as run_replay
from cluster_agent.replay.simulated import SimulatedMachine
from cluster_agent.scheduler.interfaces import unmetered
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_scheduler import NativeScheduler
from cluster_agent.scheduler.policies import registry
from cluster_agent.scheduler.policies.registry import Choice
from cluster_agent.scheduler.policy_phases import ON_PROCESSORS, Composition, clash
from cluster_agent.scheduler.recorded import Recorded
from cluster_agent.workloads.job_log import LONGEST_S, Workload, machine_of, prepare
from cluster_agent.workloads.job_watts import of_jobs, read_job_watts
from cluster_agent.workloads.swf import Log, read_swf
from cluster_agent.workloads.text_tables import has_nodes
from nodectl import __version__
from nodectl.shell.plain_text import echo, echo_block, json_text
from nodectl.shell.progress_bar import progress

if TYPE_CHECKING:
    from cluster_agent.replay.closed_loop import ClosedLoop

MOST_PROCESSORS = 2**31 - 1


@click.command()
@click.argument("trace", type=click.Path(), required=False)
@click.option(
    "--policy",
    default="easy",
    metavar="NAME|FILE.py[:NAME][:KEY=VALUE,...]",
    help="Default: easy; see `clusterctl policies`.",
)
@click.option("--machine", metavar="PROCESSORS|NAME", help="Processors (default: the log's MaxProcs), or a machine.")
@click.option(
    "--cap",
    metavar="WATTS|FILE[:PROFILE]|rte:FILE:...",
    help="Power cap; needs a machine with watts. With rmap: of all packages.",
)
@click.option("--instance", metavar="NAME", help="Which instance of a table of jobs (Eurora).")
@click.option(
    "--configurations", metavar="cab|FILE[:KEY=VALUE,...]", help="Ways to run each job, for policies that choose them."
)
@click.option(
    "--job-watts", metavar="FILE|generated[:seed=N]", help="The power of each job; needs a machine with watts."
)
@click.option("--plan-from", metavar="FILE", help="Repeat the plan that --out recorded (plan.jsonl), without planning.")
@click.option("--out", metavar="DIR", help="Write jobs.csv, jobs.parquet, metrics.json and manifest.json there.")
@click.option("--swf", "swf_file", metavar="FILE", help="Write the schedule as a job log (.swf or .swf.gz).")
@click.option(
    "--closed-loop",
    metavar="think=log|think=SECONDS|queue=JOBS|preceding",
    help="Submissions follow from the schedule.",
)
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of --closed-loop's random values (default: 0).")
@click.option("--state", metavar="FILE", help="Start with the jobs of a machine (see `clusterctl state export`).")
@click.option("--state-out", metavar="FILE", help="Write such a state from the middle of this replay.")
@click.option("--state-at", metavar="SECONDS", type=click.IntRange(0, LONGEST_S), help="When, in seconds of the log.")
@click.option(
    "--log", "log_file", metavar="FILE", help="Write every event and decision (see check-log); .gz compresses."
)
@click.option("--strict", is_flag=True, help="Stop at the first line that would be dropped or corrected.")
@click.option("--json", "as_json", is_flag=True, help="Print the metrics as JSON.")
def replay(
    trace: str | None,
    policy: str,
    machine: str | None,
    cap: str | None,
    instance: str | None,
    configurations: str | None,
    job_watts: str | None,
    plan_from: str | None,
    out: str | None,
    swf_file: str | None,
    closed_loop: str | None,
    seed: int,
    state: str | None,
    state_out: str | None,
    state_at: int | None,
    log_file: str | None,
    strict: bool,
    as_json: bool,
) -> int:
    """Schedule the jobs of TRACE again under a policy, from the start or from a state.

    TRACE is a log in Standard Workload Format (plain, .gz, .bz2 or .xz), a table of Eurora's jobs, or the text of
    `sacct --parsable2`. Lines that had to be dropped or corrected are counted on stderr.
    """
    written = {"--out": out, "--swf": swf_file, "--log": log_file, "--state-out": state_out}
    for option, value in (written | {"--state": state, "--plan-from": plan_from}).items():
        if value == "":
            raise WrongUseError(f"{option} is empty: give a path, or leave it out")
    if trace is None and state is None:
        raise WrongUseError("give a TRACE, or --state FILE to replay the jobs of a state alone")
    if (state_out is None) != (state_at is None):
        raise WrongUseError("--state-out FILE and --state-at SECONDS go together: give both, or none")
    choice = registry.choose(policy)
    trace = trace or state or ""
    setting = Setting(
        trace, policy, machine, cap, instance, closed_loop, seed, configurations, job_watts, state, plan_from
    )
    if state is not None or state_out is not None:
        from cluster_agent.commands.replays import replay_warm  # see ``world``
    if plan_from is not None and not plans(choice):
        raise WrongUseError(
            f"--plan-from {plan_from}: {choice.policy.name} makes no plan; leave it out, or choose a policy that does,"
            " such as planned"
        )
    if choice.has_configurations and not has_nodes(trace):
        _only_plain(setting)
        from cluster_agent.commands.replays.replay_moldable import replay_with_configurations  # see ``world``

        return replay_with_configurations(
            setting, choice, out, swf_file, log_file, strict, as_json, state_out, state_at
        )
    if configurations is not None:
        raise WrongUseError(
            f"--configurations {configurations}: {choice.policy.name} runs jobs as requested; leave it out, or choose"
            " rmap or moldable"
        )
    if trace != state and has_nodes(trace):
        if job_watts is not None:
            raise WrongUseError(f"--job-watts {job_watts}: a trace with nodes has its own; leave it out")
        from cluster_agent.commands.replays.replay_nodes import replay_nodes  # see ``world``

        if swf_file:
            raise WrongUseError(f"--swf {swf_file}: a schedule on nodes does not fit that format; use --out")
        return replay_nodes(setting, choice, out, log_file, strict, as_json, state_out, state_at)
    if instance is not None:
        raise WrongUseError(f"--instance {instance}: only for traces with nodes; leave it out for a log of processors")
    composition = choice.composition
    warmed: replay_warm.World | None = None
    at_s = [] if state_at is None else [state_at]
    if state is None:
        workload, watts, caps, loop = world(setting, composition, strict)
    else:
        warmed, result = replay_warm.replayed(setting, choice, strict, at_s=at_s)
        workload, watts, caps = warmed.warm.workload, warmed.watts, warmed.caps
        replay_warm.say(warmed.start, warmed.warm.in_no_log)
    start, recorded = (warmed.start, warmed.warm.recorded) if warmed else (None, None)
    if caps and composition.power is None:
        echo(f"{policy} does not know watts: the cap is only measured", to_stderr=True)
    if watts is not None and (remark := _below_idle(watts, caps)):
        echo(f"{policy}: {remark}", to_stderr=True)
    for finding in workload.findings:
        echo(f"{trace}: {finding}", to_stderr=True)
    if warmed is None:
        with progress(len(workload.jobs)) as advance:
            result = run_replay(workload, composition, advance, watts, caps, loop, at_s=at_s)
    for finding in result.workload.findings[len(workload.findings) :]:
        echo(f"{trace}: {finding}", to_stderr=True)
    workload, watts = result.workload, result.schedule.watts
    if result.unstarted == len(workload.jobs):
        raise ClusterError(
            f"{trace}: no job was ever started under {policy}: the allowed watts or joules are too few for any of"
            f" {len(workload.jobs)}; give more"
        )
    if remark := _outside(watts, caps, result):
        echo(f"{trace}: {remark}", to_stderr=True)
    if log_file:
        meter = ReplayMeter(result.schedule.power_uw) if watts is not None else None
        scheduler = NativeScheduler(
            composition, workload.jobs, workload.processors, watts, caps, meter or unmetered, workload.users,
            recorded=recorded,
        )  # fmt: skip
        simulated = simulated_machine(workload, composition, watts, recorded)
        start_s = result.schedule.start_s
        digest = start.sha256 if start is not None else ""
        write_log(log_file, setting, workload.log.sha256, scheduler, simulated, start_s, meter, choice.origin, digest)
    if state_out is not None and state_at is not None:
        replay_warm.save(state_out, state_at, result, choice, start)
    if start is not None:
        result = result.since(start.state.t0_s)
        workload = result.workload
    measured = measures.measure(result)
    if swf_file:
        outputs.write_swf(swf_file, workload, result.schedule.start_s, result.run_s, policy)
    if out:
        given_by = "--machine" if machine else "MaxProcs" if start is None else "--state"
        command = ["clusterctl", *sys.argv[1:]]
        made_from = outputs.manifest(workload, given_by, choice, command, __version__, cap)
        made_from |= {"job_watts": job_watts} if job_watts else {}
        made_from |= {"state": replay_warm.manifest_of(start)} if start is not None else {}
        outputs.add_loop(made_from, closed_loop, seed)
        for note in outputs.write(out, result, measured, made_from):
            echo(note, to_stderr=True)
    echo_block(json_text(measured, indent=2) if as_json else _lines(measured))
    return 1 if result.unstarted else 0


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


def plans(choice: Choice) -> bool:
    """Whether the policy has a planner."""
    return choice.composed.plan is not None


def _only_plain(setting: Setting) -> None:
    """Refuse options for other traces: jobs with configurations are of a job log, and have the watts of those."""
    for option, value in {"--instance": setting.instance, "--job-watts": setting.job_watts}.items():
        if value is not None:
            raise WrongUseError(
                f"{option} {value}: not with {setting.policy}, which chooses configurations; leave it out"
            )


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


def simulated_machine(
    workload: Workload, composition: Composition, watts: Watts | None, recorded: Recorded | None = None
) -> SimulatedMachine:
    """For the loop in Python."""
    slowdown, requeues = (watts.slowdown, watts.requeues) if watts else ((1.0,), True)
    return SimulatedMachine(workload.jobs, composition.ties, slowdown, requeues, recorded)


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


def _lines(measured: dict[str, Any]) -> str:
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
