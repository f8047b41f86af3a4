"""``clusterctl slurm schedule``: a policy of ours orders Slurm's queue."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.slurm import site_files
from foundation.shell.command_line import FloatRange
from foundation.shell.plain_text import say

conf_option = click.option(
    "--conf", type=click.Path(path_type=Path), default="/etc/slurm/slurm.conf", show_default=True, envvar="SLURM_CONF",
    help="Slurm's configuration.",
)  # fmt: skip


def end_on_signals() -> None:
    """SIGTERM and Ctrl-C end this process well: nothing has to be put back."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))


@click.command()
@click.option("--policy", default="easy", show_default=True, metavar="NAME[:key=value,...]",
              help="Which jobs start, and when: any live policy that owns no watts.")  # fmt: skip
@click.option("--every", "every_s", type=FloatRange(0.05, 60), default=0.5, show_default=True,
              metavar="SECONDS", help="How often to look at the queue.")  # fmt: skip
@click.option("--log", type=click.Path(path_type=Path), help="Add all inputs, decisions and commands to this file.")
@conf_option
def schedule(policy: str, every_s: float, log: Path | None, conf: Path) -> None:
    """Decide which of the jobs start that `slurm install --schedule` defers, and on which nodes. Runs until it is
    stopped, as SlurmUser; jobs are then Slurm's again, when their begin times come."""
    # only here: the other commands next to Slurm need no engine
    from cluster_agent.scheduler.policies import registry
    from cluster_agent.slurm.queue_schedule import QueueSchedule
    from cluster_agent.slurm.queue_table import QueueTable

    end_on_signals()
    site_files.read_slurm_conf(conf)
    given = site_files.deferred(conf)
    if given is None:
        raise WrongUseError(f"{conf}: no jobs are deferred: `clusterctl slurm install --schedule PARTITION` first")
    composition = registry.choose(policy).composed
    with contextlib.ExitStack() as closing:
        more: dict[str, Any] = {} if log is None else _logging(closing, log)
        made = QueueSchedule(
            QueueTable(given.partition), composition, given.partition, given.defer_s, time.time, say, **more
        )
        say(f"schedules partition {given.partition} by {policy}; without it jobs are Slurm's after {given.defer_s} s")
        trouble = ""
        while True:
            began_s = time.monotonic()
            try:
                made.turn()
                if trouble:
                    say("Slurm answers again")
                trouble = ""
            except ClusterError as error:
                if str(error) != trouble:
                    say(f"{error}; nothing is started meanwhile")
                trouble = str(error)
            time.sleep(max(every_s - (time.monotonic() - began_s), 0.02))


def _logging(closing: contextlib.ExitStack, log: Path) -> dict[str, Callable[..., Any]]:
    """A line for each input and decision (``replay.event_log``), and for each note of the schedule."""
    from cluster_agent.replay.event_log import LoggedScheduler

    try:
        file = closing.enter_context(log.open("ab", buffering=0))
    except OSError as error:
        raise WrongUseError(f"{log}: cannot write the log: {error.strerror}") from None
    return {
        "logged": lambda scheduler, clock: LoggedScheduler(scheduler, clock, file),
        "note": lambda *values: file.write(msgspec.json.encode(values) + b"\n"),
    }
