"""``clusterctl replay``: what a policy would have done with a job log. Options, the library, files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import click

from cluster_agent.errors import WrongUseError
from cluster_agent.library.given import World
from cluster_agent.library.remarks import in_words
from cluster_agent.library.replaying import replay as replayed
from cluster_agent.library.results import Result, check_files
from cluster_agent.scheduler.policies import registry
from cluster_agent.workloads.job_log import LONGEST_S
from foundation.shell.plain_text import echo_block, json_text, say
from foundation.shell.progress_bar import progress


@click.command()
@click.argument("trace", type=click.Path(), required=False)
@click.option(
    "--policy",
    metavar="NAME|FILE.py[:NAME][:KEY=VALUE,...]",
    help="Default: easy; see `clusterctl policies`.",
)
@click.option(
    "--scheduler",
    metavar="batsim[:KEY=VALUE,...]",
    help="In place of a policy: a scheduler of Batsim's in another process.",
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
@click.option("--seed", type=click.IntRange(0), default=0, help="Draws for --closed-loop and --failures (default: 0).")
@click.option(
    "--limit", "limits", multiple=True, metavar="user|queue|group[=NAME]:processors=N|jobs=N",
    help="What each user or queue, or one, may run at once; can be given several times.",
)  # fmt: skip
@click.option(
    "--partitions",
    metavar="[queue:]log|NUMBER=PROCESSORS,...",
    help="Jobs run in their own partition; sizes from the log's header, or given.",
)
@click.option("--memory", metavar="GIB|machine", help="Memory of a log of processors counts: so much each has.")
@click.option("--failures", metavar="FILE|mtbf=HOURS,repair=HOURS[,processors=N]", help="Nodes fail; jobs wait again.")
@click.option("--reservations", metavar="FILE", help="Processors that are kept for some jobs in some hours.")
@click.option("--pairs", metavar="FILE.csv[:GPU]", help="Speeds next to partners, for jobs that share nodes.")
@click.option("--windows", metavar="QUEUE=WINDOW,...", help="In which hours of the week jobs of a queue may run.")
@click.option("--best-effort", metavar="queue=N,...", help="Jobs of these queues run on what no other job can use.")
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
    _check(given)
    policy, scheduler = given.pop("policy"), given.pop("scheduler")
    out, swf_file, log_file = (given.pop(name) for name in ("out", "swf_file", "log_file"))
    state_out, state_at, as_json = (given.pop(name) for name in ("state_out", "state_at", "as_json"))
    given["limits"] = " ".join(given["limits"]) if given["limits"] else None
    world = World(given.pop("trace") or None, **given)
    if scheduler is not None:
        result = _by(scheduler, world)
    else:
        choice = registry.choose("easy" if policy is None else policy)
        check_files(choice, world.kind(choice), world, swf=swf_file, log=log_file)
        with _bar() as advance:
            at_s = [] if state_at is None else [state_at]
            result = replayed(world, choice, progress=advance, say=say, at_s=at_s)
    if log_file:
        result.write_log(log_file)
    if state_out is not None:
        result.write_state(state_out, state_at)
    measured = result.metrics
    if swf_file:
        result.write_swf(swf_file)
    for note in result.write(out, ["clusterctl", *sys.argv[1:]]) if out else ():
        say(note)
    measured |= result.timings
    echo_block(json_text(measured, indent=2) if as_json else in_words(measured))
    return 1 if result.unstarted else 0


def _by(scheduler: str, world: World) -> Result:
    """Under a scheduler in another process."""
    from cluster_agent.stepping import batsim  # only here: most replays need no ZeroMQ

    with _bar() as advance:
        return batsim.replay(world, scheduler, progress=advance, say=say)


def _check(given: dict[str, Any]) -> None:
    """Refuse what cannot be, whatever the policy and the trace are."""
    for name in ("out", "swf_file", "log_file", "state_out", "state", "plan_from"):
        if given[name] == "":
            raise WrongUseError(
                f"--{name.removesuffix('_file').replace('_', '-')} is empty: give a path, or leave it out"
            )
    if (given["state_out"] is None) != (given["state_at"] is None):
        raise WrongUseError("--state-out FILE and --state-at SECONDS go together: give both, or none")
    for name in ("policy", "log_file", "state_out") if given["scheduler"] is not None else ():
        if given[name] is not None:
            option = name.removesuffix("_file").replace("_", "-")
            raise WrongUseError(f"--{option} {given[name]}: not with --scheduler; leave one of them out")


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """A bar of progress, another one when the replay begins again."""
    with ExitStack() as bars:
        seen, draw = 0, None

        def advance(ended: int, jobs: int) -> None:
            nonlocal seen, draw
            if draw is None or ended < seen:
                bars.close()
                draw = bars.enter_context(progress(jobs))
            seen = ended
            draw(ended)

        yield advance
