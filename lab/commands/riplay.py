"""``clusterctl riplay``: a real Slurm replays some hours of a job log."""

from __future__ import annotations

import click

from cluster_agent.errors import WrongUseError
from cluster_agent.replay import written_whole
from foundation.shell.command_line import FloatRange
from foundation.shell.plain_text import echo_block, say
from foundation.shell.progress_bar import progress


@click.command()
@click.argument("log", type=click.Path())
@click.option("--from", "from_s", metavar="SECONDS", type=click.IntRange(1), required=True, help="Of the log.")
@click.option("--hours", metavar="H", type=FloatRange(0.01, 240.0), required=True, help="Of the log.")
@click.option(
    "--nodes", type=click.IntRange(1, 1024), default=128, show_default=True, help="Each a processor of the log."
)
@click.option("--speed", type=FloatRange(1.0, 1000.0), default=10.0, show_default=True, help="Of the log's time.")
@click.option(
    "--policy",
    metavar="NAME[:KEY=VALUE,...]",
    help="Which jobs start, when, at which clocks (default: easy).",
)
@click.option("--by-slurm", is_flag=True, help="Slurm's own backfilling decides.")
@click.option("--machine", default="curie", show_default=True, help="The watts, clocks and slowdowns of a node.")
@click.option("--cap", metavar="WATTS|FILE", help="Power cap of all nodes, as `clusterctl replay` takes it.")
@click.option(
    "--delays", metavar="DIR", help="Compare with a replay that is as late as the riplay of other hours there."
)
@click.option("--out", metavar="DIR", help="Write jobs.csv, power.csv and metrics.json there.")
def riplay(
    log: str, from_s: int, hours: float, nodes: int, speed: float, policy: str | None, by_slurm: bool, machine: str,
    cap: str | None, delays: str | None, out: str | None,
) -> int:  # fmt: skip
    """Replay some hours of LOG, in Standard Workload Format, on a real Slurm over emulated nodes.

    The Slurm is unpacked (`scripts/slurm.sh unpack`), has namespaces of its own and is gone at the end. It begins with
    the jobs that run and wait when `easy` replays the log until then. Prints a table: next to it is `clusterctl replay`
    of the same hours. Needs root. All joules are emulated: a model's, not a machine's.
    """
    try:
        from lab.riplay import riplay_run
        from lab.riplay.log_part import Hours
    except ImportError as error:
        raise WrongUseError(f"riplay needs the extras `cluster` and `twin` ({error})") from None
    if by_slurm and cap is not None:
        raise WrongUseError("--cap with --by-slurm: Slurm's backfilling knows no watts; leave one of them out")
    if by_slurm and policy is not None:
        raise WrongUseError("--policy with --by-slurm: Slurm's backfilling decides; leave one of them out")
    if policy is not None and not policy.strip():
        raise WrongUseError("--policy is empty: give a policy, or --by-slurm")
    if out is not None:
        written_whole.check_folder(out)
    given = Hours(log, from_s, hours, nodes, "" if by_slurm else policy or "easy", cap, machine)
    with progress(given.to_s - from_s, "riplaying") as advance:
        found = riplay_run.riplay(given, speed, say, advance, delays)
    echo_block(found.table())
    if out is not None:
        found.write(out)
    return 0
