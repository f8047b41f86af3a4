"""``clusterctl jobs``, and the commands that change jobs and drain nodes."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from cluster_agent.budget.tag_sources import in_words
from cluster_agent.commands.nodes import json_option, socket_option
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.fabric.ask import Place, ask
from cluster_agent.fabric.people import Request
from cluster_agent.jobs.component_nodes import requested_nodes
from cluster_agent.jobs.job import STATES, Job, Partner
from cluster_agent.serve.people_protocol import (
    MOST_ROWS,
    Cancel,
    Drain,
    JobRow,
    ListJobs,
    Requeue,
    Resume,
    ShowJob,
    SwitchPower,
)
from foundation.shell.duration import shown
from foundation.shell.plain_text import echo, echo_block, json_text
from foundation.shell.text_table import render
from foundation.wire.dispatch_messages import FIRST_JOB

Ended = TypeVar("Ended", bound=Any)
"""A row with ``ended_s``."""

HEADINGS = ("job", "user", "name", "state", "nodes", "took", "of", "kJ", "tag", "where and why")


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also jobs that have ended.")
@click.option("--user", default="", help="Only jobs of this user, a name or a uid.")
@click.option("--state", "states", multiple=True, help=f"Only jobs in this state: {', '.join(STATES)}.")
@click.option(
    "--export", type=click.Path(path_type=Path), metavar="FILE", help="Write these jobs to FILE.csv or FILE.parquet."
)
@json_option
@socket_option
@click.argument("job", type=click.IntRange(1), required=False)
def jobs(
    job: int | None,
    everything: bool,
    user: str,
    states: tuple[str, ...],
    export: Path | None,
    as_json: bool,
    socket: Place,
) -> None:
    """Jobs that wait or run; with a number, all details of that JOB."""
    if job is not None:
        if everything or user or states or export:
            raise WrongUseError("give either a job's number or options that choose jobs")
        _show(ask(socket, ShowJob(job)), as_json)
        return
    rows = rows_of(socket, ListJobs(everything or export is not None, list(states), user))
    if export:
        echo(f"{write_rows(export, rows, JobRow, '--export')} jobs in {export}")
    elif as_json:
        echo(json_text(list(rows)))
    elif lines := [cells(row) for row in rows]:
        echo_block(render(HEADINGS, lines))
    else:
        echo("no jobs" + ("" if everything or states else " wait or run (--all shows those that have ended)"))


@click.command()
@click.argument("job", type=click.IntRange(1), nargs=-1, required=True)
@click.option("--key", default="", metavar="FILE", help="A job of the nodes' own, of any user: an administrator's key.")
@click.option("--keys", default="/etc/nodectl/dispatch", help="With --key: the directory of nodes.toml and allowed.")
@socket_option
def cancel(job: tuple[int, ...], key: str, keys: str, socket: Place) -> int:
    """End JOB...: SIGTERM, and SIGKILL after the grace time.

    A job of `submit --dispatch dardis`, whose number has sixteen digits, is ended by its node: this command waits
    for that, or goes on later if it is called again. With --key an administrator ends such a job of any user.
    """
    dispatched = [one for one in job if one >= FIRST_JOB]
    queued = [one for one in job if one < FIRST_JOB]
    if key and queued:
        raise WrongUseError(f"--key is for jobs of `submit --dispatch`, and job {queued[0]} is the cluster agent's")
    if queued:
        echo(*ask(socket, Cancel(queued)))
    if not dispatched:
        return 0
    if key:
        from cluster_agent.dispatch.live.administration import Administration

        made = Administration(Path(keys), Path(key), echo)
        return max(map(made.end, dispatched))
    from cluster_agent.dispatch.live.submission import cancelled, files_of

    return cancelled(dispatched, files_of(Path.home()), echo)


@click.command()
@click.argument("job", type=click.IntRange(1), nargs=-1, required=True)
@socket_option
def requeue(job: tuple[int, ...], socket: Place) -> None:
    """Run JOB... again from the start; a job that runs is ended first."""
    echo(*ask(socket, Requeue(list(job))))


@click.command()
@click.argument("node")
@click.option("--reason", default="", help="Why; `clusterctl nodes` shows it.")
@socket_option
def drain(node: str, reason: str, socket: Place) -> None:
    """Start no more jobs on NODE; the one that it has goes on. For administrators."""
    echo(*ask(socket, Drain(node, reason)))


@click.command()
@click.argument("node")
@socket_option
def resume(node: str, socket: Place) -> None:
    """Let NODE get jobs again. For administrators."""
    echo(*ask(socket, Resume(node)))


@click.command()
@click.argument("state", type=click.Choice(["on", "off"]))
@click.argument("node")
@socket_option
def power(state: str, node: str, socket: Place) -> None:
    """Switch NODE off, or on when there are watts for its boot. For administrators."""
    echo(*ask(socket, SwitchPower(node, state == "on")))


def rows_of(socket: Place, request: ListJobs) -> Iterator[JobRow]:
    """All of them: a thousand at a time, or fewer where they are huge."""
    while rows := ask(socket, request):
        yield from rows
        request = msgspec.structs.replace(request, after=rows[-1].job)


def rows_since(place: Place, request: Request[list[Ended]]) -> list[Ended]:
    """All rows of jobs that ended after the request's ``since_s``, in as many answers as that takes."""
    found: list[Ended] = []
    while True:
        part = ask(place, request)
        found += part
        if len(part) < MOST_ROWS:
            return found
        request = msgspec.structs.replace(request, since_s=found[-1].ended_s)


def cells(row: JobRow) -> tuple[str, ...]:
    """The cells of a row, under ``HEADINGS``."""
    took = "-" if row.took_s is None else shown(row.took_s)
    energy = "-" if row.energy_j is None else f"{row.energy_j / 1000:.1f}"
    tag = in_words(row.tag, row.tag_source)
    more = [part for part in (row.node_names, row.reason, row.waits_for) if part]
    if row.status:
        more.append(f"status {row.status}")
    return (
        str(row.job), row.user, row.title, row.state, str(row.nodes), took, shown(row.walltime_s), energy, tag,
        "; ".join(more) or "-",
    )  # fmt: skip


def _show(found: tuple[JobRow, Job], as_json: bool) -> None:
    row, job = found
    if as_json:
        echo(json_text({"row": row, "job": job}))
        return
    spec, account = job.spec, job.account
    command = " ".join(spec.command) if not spec.script else f"a script of {len(spec.script)} characters"
    lines = [
        ("state", row.state + (f": {row.reason}" if row.reason else "")),
        *([("waits", row.waits_for)] if row.waits_for else []),
        ("user", f"{row.user} (uid {row.uid})"),
        ("name", row.title),
        ("command", command),
        ("workdir", spec.workdir),
        ("nodes", _nodes(row)),
        *([("shares", _sharing(job))] if job.placed_why else []),
        ("submitted", _when(row.submitted_s)),
        ("started", _when(row.started_s)),
        ("ended", _when(row.ended_s)),
        ("walltime", shown(row.walltime_s)),
        ("attempts", f"{row.attempts}" + (f", lost {job.losses} times" if job.losses else "")),
        *([("components", requested_nodes(job.spec))] if job.spec.components else []),
        *([("best-effort", "yes: preempted when another job needs its nodes")] if spec.best_effort else []),
        ("exit status", "-" if row.status is None else str(row.status)),
        ("tag", in_words(row.tag, row.tag_source)),
        ("energy", _energy(row)),
        ("cap", _cap(row, account.bound_s)),
        ("slowdown", "-" if row.slowdown is None else f"{100 * row.slowdown:.1f} %, {row.slowdown_from}"),
    ]
    echo(f"job {row.job}", *(f"  {name:<12}{text}" for name, text in lines))


def _nodes(row: JobRow) -> str:
    """How many, of how many requested if it got another number, and which."""
    words = f"{row.nodes}" + (f" ({row.requested} requested)" if row.requested not in (0, row.nodes) else "")
    return words + (f": {row.node_names}" if row.node_names else "")


def _sharing(job: Job) -> str:
    """Which halves of which nodes it has, and who had the others, and why."""
    halves = ", ".join(f"half {half} of {name}" for name, half in job.halves.items())
    met = "; ".join(_next_to(one) for one in job.partners)
    return "; ".join(filter(None, (halves or "whole nodes", met or job.placed_why)))


def _next_to(one: Partner) -> str:
    """A partner, with the speeds for which the policy put the two together."""
    speeds = [f"{speed:.2f}" if speed is not None else "unknown" for speed in (one.speed, one.its_speed)]
    return f"next to job {one.job}, since the two are known to run at {speeds[0]} and {speeds[1]} of their speeds alone"


def _energy(row: JobRow) -> str:
    if row.energy_j is None:
        return "-"
    words = f"{row.energy_j:.0f} J, {row.method}; {100 * (row.measured or 0):.0f} % measured"
    return words + (f", {100 * row.covered:.0f} % of its time covered" if row.covered is not None else "")


def _cap(row: JobRow, bound_s: dict[str, float]) -> str:
    if row.cap_w is None:
        return "-"
    words = f"{row.cap_w:.1f} W a node on average"
    for by, bound in sorted(bound_s.items(), key=lambda one: -one[1]):
        words += f"; bound for {bound:.0f} node seconds by {by}"
    return words


def _when(unix_s: float | None) -> str:
    return "-" if unix_s is None else datetime.fromtimestamp(unix_s).astimezone().isoformat(sep=" ", timespec="seconds")


def write_rows(path: Path, rows: Iterable[Any], kind: type[msgspec.Struct], option: str) -> int:
    """Write rows of a ``kind`` to FILE.csv or FILE.parquet, completely or not at all; returns how many. A column of
    several values, such as seconds by cause, is JSON text. ``option``: who names the file, for messages."""
    if path.suffix not in (".csv", ".parquet"):
        raise WrongUseError(f"{option} {path}: the name must end in .csv or .parquet")
    found = [
        {name: msgspec.json.encode(value).decode() if isinstance(value, dict) else value for name, value in one.items()}
        for one in map(msgspec.structs.asdict, rows)
    ]
    with exported(path) as part:
        if path.suffix == ".csv":
            write_csv(part, found, kind.__struct_fields__)
        else:
            _write_parquet(part, found, kind)
    return len(found)


@contextmanager
def exported(path: Path) -> Iterator[Path]:
    """The file to write, which has this path once the block has ended; ``ClusterError`` if it cannot be written."""
    part = path.with_name(path.name + ".part")
    try:
        yield part
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ClusterError(f"{path}: cannot write: {error.strerror}") from None


def write_csv(path: Path, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    """With a line of the names of the columns."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def _write_parquet(path: Path, rows: list[dict[str, Any]], kind: type[msgspec.Struct]) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise ClusterError(f"{path}: writing Parquet needs pyarrow; pip install 'nodectl[export]'") from None
    kinds = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
    fields = [(field.name, kinds[_plain(field.type)]) for field in msgspec.structs.fields(kind)]
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(fields)), path)


def _plain(kind: Any) -> type:
    """int, float, bool or str, also where there may be none, or bounds."""
    found = msgspec.inspect.type_info(kind)
    first = found.types[0] if isinstance(found, msgspec.inspect.UnionType) else found
    plain = {msgspec.inspect.IntType: int, msgspec.inspect.FloatType: float, msgspec.inspect.BoolType: bool}
    return plain.get(type(first), str)
