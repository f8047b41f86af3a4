"""``clusterctl replay``: what a policy would have done with a job log. Options, a world, a run, its files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import click
import msgspec

from cluster_agent.errors import WrongUseError
from cluster_agent.replay import outputs
from cluster_agent.replay.event_log import ReplayMeter, Setting, write_log
from cluster_agent.scheduler.policies import registry
from cluster_agent.scheduler.policies.registry import Choice
from cluster_agent.workloads.job_log import LONGEST_S
from cluster_agent.workloads.text_tables import has_nodes
from foundation import __version__
from foundation.shell.plain_text import echo, echo_block, json_text

if TYPE_CHECKING:
    from cluster_agent.replay.simulated import SimulatedMachine
    from cluster_agent.scheduler.job_columns import Int64s
    from cluster_agent.scheduler.native.native_scheduler import NativeScheduler

Stepped: TypeAlias = "tuple[str, NativeScheduler, SimulatedMachine, Int64s, ReplayMeter | None]"
"""For the loop in Python: the trace's SHA-256, a scheduler, a machine, when the replay started each job, and the meter
of the scheduler."""


class Options(msgspec.Struct, frozen=True):
    """The options of the command, as they were given."""

    trace: str | None
    policy: str
    machine: str | None
    cap: str | None
    instance: str | None
    configurations: str | None
    job_watts: str | None
    plan_from: str | None
    out: str | None
    swf_file: str | None
    closed_loop: str | None
    seed: int
    state: str | None
    state_out: str | None
    state_at: int | None
    log_file: str | None
    strict: bool
    as_json: bool

    @property
    def setting(self) -> Setting:
        """The inputs of the replay."""
        inputs = {name: getattr(self, name) for name in Setting.__struct_fields__}
        return Setting(**inputs | {"trace": self.trace or self.state or ""})


class World(Protocol):
    """The jobs and the machine of a replay, and then its result; one for each kind of resources."""

    def run(self) -> None:
        """Replay, and say on stderr what was found."""
        ...

    def stepped(self) -> Stepped:
        """For the loop in Python."""
        ...

    def follow(self) -> None:
        """Write the state, and leave out what was before the one that it starts from."""
        ...

    @property
    def state_sha256(self) -> str:
        """Of the state that it starts from; empty: it starts from none, or the log does not say it."""
        ...

    @property
    def unstarted(self) -> int:
        """Jobs that never started."""
        ...

    def measured(self) -> dict[str, Any]:
        """The content of ``metrics.json``."""
        ...

    def timed(self) -> dict[str, float]:
        """What differs from run to run, and so is printed alone."""
        ...

    def write_swf(self, path: str) -> None:
        """The schedule as a job log."""
        ...

    def made_from(self) -> outputs.MadeFrom:
        """What the manifest has."""
        ...

    def write(self, directory: str, measured: dict[str, Any], manifest: dict[str, Any]) -> list[str]:
        """All files; returns lines about those that need a package that is missing."""
        ...

    def lines(self, measured: Mapping[str, Any]) -> str:
        """The results in words."""
        ...


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
def replay(**given: Any) -> int:
    """Schedule the jobs of TRACE again under a policy, from the start or from a state.

    TRACE is a log in Standard Workload Format (plain, .gz, .bz2 or .xz), a table of Eurora's jobs, or the text of
    `sacct --parsable2`. Lines that had to be dropped or corrected are counted on stderr.
    """
    options = Options(**given)
    _check(options)
    choice = registry.choose(options.policy)
    if options.plan_from is not None and choice.composed.plan is None:
        raise WrongUseError(
            f"--plan-from {options.plan_from}: {choice.policy.name} makes no plan; leave it out, or choose a policy"
            " that does, such as planned"
        )
    return _carry_out(options, choice, world_of(options, choice))


def _check(options: Options) -> None:
    """Refuse what cannot be, whatever the policy and the trace are."""
    files = {
        "--out": options.out,
        "--swf": options.swf_file,
        "--log": options.log_file,
        "--state-out": options.state_out,
        "--state": options.state,
        "--plan-from": options.plan_from,
    }
    for option, value in files.items():
        if value == "":
            raise WrongUseError(f"{option} is empty: give a path, or leave it out")
    if options.trace is None and options.state is None:
        raise WrongUseError("give a TRACE, or --state FILE to replay the jobs of a state alone")
    if (options.state_out is None) != (options.state_at is None):
        raise WrongUseError("--state-out FILE and --state-at SECONDS go together: give both, or none")


def world_of(options: Options, choice: Choice) -> World:
    """The world of the trace and the policy: jobs with configurations, on nodes that differ, or on processors.

    A short replay is as long as its imports: each world is imported where it is chosen."""
    trace, name = options.setting.trace, choice.policy.name
    if choice.has_configurations and not has_nodes(trace):
        given = {"--instance": options.instance, "--job-watts": options.job_watts}
        _refuse(given, f"not with {options.policy}, which chooses configurations; leave it out")
        from cluster_agent.commands.replays.replay_moldable import WithConfigurations

        return WithConfigurations(options, choice)
    fix = "leave it out, or choose rmap or moldable"
    _refuse({"--configurations": options.configurations}, f"{name} runs jobs as requested; {fix}")
    if trace != options.state and has_nodes(trace):
        _refuse({"--job-watts": options.job_watts}, "a trace with nodes has its own; leave it out")
        _refuse({"--swf": options.swf_file}, "a schedule on nodes does not fit that format; use --out")
        from cluster_agent.commands.replays.replay_nodes import OnNodes

        return OnNodes(options, choice)
    _refuse({"--instance": options.instance}, "only for traces with nodes; leave it out for a log of processors")
    from cluster_agent.commands.replays.replay_processors import OnProcessors

    return OnProcessors(options, choice)


def _refuse(given: Mapping[str, str | None], why: str) -> None:
    for option, value in given.items():
        if value is not None:
            raise WrongUseError(f"{option} {value}: {why}")


def _carry_out(options: Options, choice: Choice, world: World) -> int:
    """Run and write; returns the exit status."""
    world.run()
    if options.log_file:
        sha256, scheduler, machine, start_s, meter = world.stepped()
        of_state = choice.origin, world.state_sha256
        write_log(options.log_file, options.setting, sha256, scheduler, machine, start_s, meter, *of_state)
    world.follow()
    measured = world.measured()
    if options.swf_file:
        world.write_swf(options.swf_file)
    if options.out:
        command = ["clusterctl", *sys.argv[1:]]
        manifest = outputs.manifest(world.made_from(), options.setting, choice, command, __version__)
        for note in world.write(options.out, measured, manifest):
            echo(note, to_stderr=True)
    measured |= world.timed()
    echo_block(json_text(measured, indent=2) if options.as_json else world.lines(measured))
    return 1 if world.unstarted else 0
