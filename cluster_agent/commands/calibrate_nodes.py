"""``clusterctl calibrate``: measure nodes of the partition, one chassis after the other, within the budget.

Each node is measured by a job of its own, ``nodectl calibrate run --through-agent``: its agent keeps the cap. The job
asks for the node's full power, which the ledger grants when the budget has it; until then, and when it is lost
midway, the measurement pauses. What a node has measured is kept next to its table, so the same command goes on from
there. Nodes on which Slurm runs jobs are taken from it meanwhile (``--slurm``).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Final

import click

from cluster_agent.commands.nodes import socket_option
from cluster_agent.errors import ClusterError, WrongUseError, no_such_node
from cluster_agent.fabric.ask import Place, ask
from cluster_agent.jobs.admission import CALIBRATION
from cluster_agent.jobs.job import OVER
from cluster_agent.serve.people_protocol import Cancel, ListForeign, ListNodes, MeasureNode, NodeRow, ShowJob, Submit
from cluster_agent.slurm.taken_nodes import HOW, How, taken
from foundation.shell.duration import seconds
from foundation.shell.names import expanded
from foundation.shell.plain_text import echo

PATH: Final = "/usr/local/bin:/usr/bin:/bin"

LOOK_S: Final = 0.5
"""Ours: a person watches, and each look asks for every job of a chassis."""


@dataclass(slots=True)
class _Measuring:
    """A node that is measured. ``shown``: what was printed of its log."""

    node: str
    job: int
    log: Path
    state: str = ""
    shown: int = 0
    lines: list[str] = field(default_factory=list)


@click.command()
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, file_okay=False), required=True,
    help="Folder for NODE.toml and NODE.log, which the nodes reach too.",
)  # fmt: skip
@click.option(
    "--nodes-per-chassis", type=click.IntRange(1), default=1, show_default=True,
    help="Nodes of a chassis, by the order of all names. One chassis is measured at a time.",
)  # fmt: skip
@click.option("--time-budget", default="", metavar="TIME", help="As of `nodectl calibrate run`.")
@click.option("--precision", default="", metavar="SHARE", help="As of `nodectl calibrate run`.")
@click.option("--kernel", "kernels", multiple=True, metavar="NAME", help="As of `nodectl calibrate run`.")
@click.option("--time", "walltime", default="4h", show_default=True, metavar="TIME", help="Longest time of a node.")
@click.option(
    "--slurm", type=click.Choice(HOW), default=None,
    help="Take the nodes of a chassis from Slurm meanwhile, by a reservation or drained; waits for their jobs.",
)  # fmt: skip
@click.option("--again", is_flag=True, help="Also nodes that have a table; it is replaced.")
@socket_option
def calibrate(
    nodes: tuple[str, ...],
    out: Path,
    nodes_per_chassis: int,
    time_budget: str,
    precision: str,
    kernels: tuple[str, ...],
    walltime: str,
    slurm: How | None,
    again: bool,
    socket: Place,
) -> int:
    """Measure the P-state tables of idle NODEs, such as n[0-7], within the partition's budget. For administrators.

    Status 1: some node has got no table. Ctrl-C ends the measurements; what was measured is kept.
    """
    wanted = [name for text in nodes for name in expanded(text)]
    rows = {row.name: row for row in ask(socket, ListNodes())}
    if unknown := [name for name in wanted if name not in rows]:
        raise no_such_node(unknown[0], rows)
    if not out.is_dir():
        raise WrongUseError(f"{out}: there is no such folder: make one that every node reaches")
    words = _words(time_budget, precision, kernels, again)
    place = {name: number // nodes_per_chassis for number, name in enumerate(sorted(rows))}
    is_whole = True
    for _, chassis in groupby(sorted(set(wanted), key=lambda name: (place[name], name)), place.__getitem__):
        free = list(_free(socket, chassis, out, again, is_taken=slurm is not None))
        with _given_up(free, slurm, walltime):
            is_whole &= _chassis(socket, free, out.absolute(), words, walltime)
    missing = [name for name in dict.fromkeys(wanted) if not (out / f"{name}.toml").exists()]
    if missing:
        echo(f"without a table: {', '.join(missing)}")
    return 0 if is_whole and not missing else 1


def _given_up(names: Sequence[str], slurm: How | None, walltime: str) -> contextlib.AbstractContextManager[None]:
    """Within, Slurm runs nothing on these nodes, if it is to be so."""
    return taken(names, slurm, seconds(walltime), echo) if slurm and names else contextlib.nullcontext()


def _words(time_budget: str, precision: str, kernels: Sequence[str], again: bool) -> list[str]:
    """The command of a node, but for its result."""
    options = [("--time-budget", time_budget), ("--precision", precision), *(("--kernel", name) for name in kernels)]
    given = [word for name, value in options if value for word in (name, value)]
    return [*CALIBRATION, "--through-agent", *given, *(["--again"] if again else [])]


def _free(socket: Place, names: Iterable[str], out: Path, again: bool, is_taken: bool) -> Iterator[str]:
    """Those that can be measured now; a line for each of the others. ``is_taken``: another manager's jobs there will
    have ended."""
    rows: dict[str, NodeRow] = {row.name: row for row in ask(socket, ListNodes())}
    theirs = {} if is_taken else {name: job.job for job in ask(socket, ListForeign()) for name in job.nodes}
    for name in names:
        row = rows[name]
        if (out / f"{name}.toml").exists() and not again:
            echo(f"{name}: has a table (--again measures it again)")
        elif row.jobs != "idle":
            what = f"has job {row.job}" if row.job else f"is {row.jobs or 'not one that runs jobs'}"
            echo(f"{name}: {what}: not measured" + (f" ({row.jobs_why})" if row.jobs_why else ""))
        elif name in theirs:
            echo(f"{name}: has job {theirs[name]} of another manager: not measured (of Slurm: --slurm reservation)")
        else:
            yield name


def _chassis(socket: Place, names: Sequence[str], out: Path, words: list[str], walltime: str) -> bool:
    """Measure these nodes at the same time; whether all of them have ended well."""
    running: list[_Measuring] = []
    is_whole = True
    try:
        for name in names:
            running.append(_submitted(socket, name, out, words, walltime))
        while running:
            time.sleep(LOOK_S)
            for one in list(running):
                row, _ = ask(socket, ShowJob(one.job))
                _report(one, row.state, row.waits_for or row.reason)
                if row.state in OVER:
                    running.remove(one)
                    is_whole &= row.state == "done"
    except KeyboardInterrupt:
        raise ClusterError("ended: the same command goes on from what was measured") from None
    finally:
        if running:
            ask(socket, Cancel([one.job for one in running]))
    return is_whole


def _submitted(socket: Place, name: str, out: Path, words: list[str], walltime: str) -> _Measuring:
    log = out / f"{name}.log"
    log.unlink(missing_ok=True)
    table = str(out / f"{name}.toml")
    spec = Submit(  # of which no default is sent, as of any request
        command=[*words, "-o", table], walltime_s=max(round(seconds(walltime)), 1), workdir=str(out),
        name=f"calibrate {name}", output=str(log), env={"PATH": PATH}, tag="compute",
    )  # fmt: skip
    return _Measuring(name, ask(socket, MeasureNode(name, spec)), log)


def _report(one: _Measuring, state: str, why: str) -> None:
    """Print what is new: the job's state, and lines of its log."""
    if state != one.state:
        one.state = state
        echo(f"{one.node}: {state}" + (f": {why}" if why else ""))
    try:
        lines = one.log.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines[one.shown :]:
        echo(f"{one.node}: {line}")
    one.shown = len(lines)
