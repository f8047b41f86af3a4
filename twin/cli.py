"""``nodectl twin``: serve an emulated node to programs, and control a served one."""

from __future__ import annotations

import functools
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from foundation.shell.command_line import FloatRange
from twin.errors import TwinError

_PASSED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}
_POLL_S = 0.05
_REPORT_S = 0.01
"""Ours: units are reported at most this late, a tenth of the agent's usual period."""


def _reports_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Prints a TwinError, which means wrong use, as one line on stderr; exit status 2."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except TwinError as error:
            click.echo(f"nodectl twin: {error}", err=True)
            sys.exit(2)

    return wrapped


_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_run = click.option("--run", "number", type=int, help="Number of the run (its launcher), if several are alive.")


@click.group()
def twin() -> None:
    """Serve an emulated node to unmodified programs."""


@twin.command(context_settings=_PASSED_ON)
@click.option("--machine", required=True, help="Name of a shipped machine, or a TOML file.")
@click.option("--workload", help="The workload of the emulated node; it starts with the command.")
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=1, show_default=True, help="Seed of all random values."
)
@click.option("--bias", default=0.2, show_default=True, help="Half-width of the random error of counters, 0 to 0.9.")
@click.option(
    "--counter-error",
    default="uniform",
    show_default=True,
    metavar="KIND",
    help="How DRAM activity of GPUs errs over the clock: uniform (by --bias), measured (drawn from measured "
    "applications) or measured:APPLICATION.",
)
@click.option(
    "--duration",
    metavar="TIME",
    help="Length of the workload at the highest clocks, e.g. 30s or 2min (default: its own).",
)
@click.option(
    "--progress",
    metavar="TIME",
    help="Make the workload report progress (by `nodectl twin wait`), in units of about this much work.",
)
@click.option(
    "--fault", "faults", multiple=True, help='"KIND TARGET [at=S] [for=S] [value=V] [every=S]"; may be repeated.'
)
@click.option(
    "--report", type=click.Path(path_type=Path), help="Write the truth about the workload to this JSON file at the end."
)
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="PATH",
    help="Give COMMAND access to this device of the host; may be repeated.",
)
@click.option(
    "--command-load", is_flag=True, help="Let the CPU time of COMMAND be load on emulated CPUs that have no workload."
)
@click.option(
    "--keep", is_flag=True, help="Serve what COMMAND leaves running, such as a daemon, until it has ended, or Ctrl-C."
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@_reports_errors
def run(
    machine: str,
    workload: str | None,
    seed: int,
    bias: float,
    counter_error: str,
    duration: str | None,
    progress: str | None,
    faults: tuple[str, ...],
    report: Path | None,
    devices: tuple[str, ...],
    command_load: bool,
    keep: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND (default: a shell) with /sys, NVML and hardware counters of an emulated machine.

    The exit status is that of the command, or 2 if the twin cannot be served; the command is then not started.
    """
    from twin.serve.host_needs import require

    require()
    from twin.faults.fault import parse_line
    from twin.machine import load_machine
    from twin.physics.error_curves import choices
    from twin.programs.workload import check_bias, load_workload
    from twin.serve import launcher
    from twin.serve.node_server import Plan

    check_bias(bias)
    choices(counter_error)
    seconds = None if duration is None else _duration_s(duration, "--duration")
    unit_s = None if progress is None else _duration_s(progress, "--progress")
    if report and not report.absolute().parent.is_dir():
        raise TwinError(f"--report {report}: there is no directory {report.absolute().parent}")
    model = load_machine(machine)
    plan = Plan(
        machine=model,
        workload=load_workload(
            workload,
            model,
            seed=seed,
            bias=bias,
            duration_s=seconds,
            progress_s=unit_s,
            counter_error=counter_error,
        )
        if workload
        else None,
        seed=seed,
        faults=tuple(parse_line(line) for line in faults),
        report=(os.open(report.absolute().parent, os.O_PATH), report.name) if report else None,
        command_load=command_load,
    )
    if not command:
        click.echo(f"emulated {model.name}: {model.summary}; `exit` ends it", err=True)
    sys.exit(launcher.run(plan, command or launcher.shell(), devices, keep=keep))


@twin.command()
@_json
@_reports_errors
def machines(as_json: bool) -> None:
    """List the machines that can be emulated."""
    from twin.machine import load_machine, machine_names

    rows = []
    for name in machine_names():
        each = load_machine(name)
        rows.append({"machine": name, "cpus": each.cpus, "gpus": each.gpus, "summary": each.summary})
    _print(rows, as_json)


@twin.command()
@click.option("--machine", required=True, help="The machine whose file is copied: a shipped one, or a TOML file.")
@click.option(
    "--output", required=True, type=click.Path(path_type=Path), help="The file to write; its name is the machine's."
)
@click.option("--card", help="The card of the sweep, if it has several.")
@click.option(
    "--part", type=click.Choice(["gpu", "package"]), help="What was measured (default: the GPU, if there is one)."
)
@click.option(
    "--rate",
    type=click.Choice(["work", "clock"]),
    help="What the cores' switching follows (default: work on GPUs, the clock on packages).",
)
@click.option("--idle", "idle_w", type=FloatRange(min=0), metavar="WATTS", help="Watts without any work.")
@click.option("--power", "power_column", metavar="COLUMN", help="The column of watts, if there are several.")
@click.argument("file", type=click.Path(path_type=Path))
@_reports_errors
def fit(
    file: Path,
    machine: str,
    output: Path,
    card: str | None,
    part: Any,
    rate: Any,
    idle_w: float | None,
    power_column: str | None,
) -> None:
    """Fit a machine's power to the measured sweep in FILE, a CSV of workload, clock, watts and speed or time.

    Writes a copy of the machine's file with fitted volts, watts and shares, and with the errors of the fit: over all
    points, and for each workload left out of it.
    """
    from twin.fit.command import fitted_machine

    for line in fitted_machine(
        file, machine, output, part=part, card=card, rate=rate, idle_w=idle_w, power_column=power_column
    ):
        click.echo(line)


@twin.command()
@_json
@_reports_errors
def workloads(as_json: bool) -> None:
    """List the workloads that machines can run."""
    from twin.programs.workload import workload_summaries

    _print([{"workload": name, "runs on": side, "summary": text} for name, side, text in workload_summaries()], as_json)


@twin.command()
@_json
@_run
@_reports_errors
def status(number: int | None, as_json: bool) -> None:
    """Show the served twin: machine, time, workload, faults."""
    _print([_request(number, "status")], as_json)


@twin.command()
@_run
@_reports_errors
def report(number: int | None) -> None:
    """Print the truth about the workload so far, as JSON."""
    click.echo(msgspec.json.format(msgspec.json.encode(_request(number, "report"))))


@twin.command()
@click.option("--timeout", "timeout_s", default=math.inf, help="Give up after this many seconds, with status 1.")
@_run
@_reports_errors
def wait(number: int | None, timeout_s: float) -> None:
    """Wait until the served twin's workload has ended, and report its progress, if it has any.

    The load runs inside the twin, so this command reports for it: NODECTL_PROGRESS gets the finished units.
    """
    from twin._serve import lib

    deadline = time.monotonic() + timeout_s
    reported: int | None = None  # units finished before this command began are not reported
    while True:
        now = _request(number, "status")
        units = now["told_units"] or 0
        lib.process_report(units - (units if reported is None else reported))
        reported = units
        if now["finished"]:
            return
        if not now["has_workload"]:
            raise TwinError("the served twin runs no workload that ends")
        if time.monotonic() > deadline:
            sys.exit(1)
        time.sleep(_POLL_S if now["told_units"] is None else _REPORT_S)


@twin.group()
def fault() -> None:
    """Add, list and remove faults of the served twin."""


@fault.command()
@click.argument("words", nargs=-1, required=True)
@_run
@_reports_errors
def add(words: tuple[str, ...], number: int | None) -> None:
    """Add a fault: KIND TARGET [at=S] [for=S] [value=V] [every=S]; prints its number.

    \b
    TARGET is one of
      /sys/GLOB        files; `*` also crosses `/`, a directory means all below it
      perf:EVENT[:CPU] a counter, of one CPU or of all
      gpu:N[:READING]  a GPU (`*`: all), or a reading of it: power, energy,
                       temperature, sm-clock, gpu-utilization,
                       memory-utilization, event-reasons, gpm-graphics,
                       gpm-sm-active, gpm-sm-occupancy, gpm-dram-active, gpm-fp64, or a glob
                       such as gpm-*; foreign-writer: clock, power-limit

    \b at=S begin in S seconds (default now) for=S last S seconds (default until removed) every=S foreign-writer: write
    each S seconds (default 1) value=V see `nodectl twin fault kinds`
    """
    import shlex

    click.echo(_request(number, "fault-add", line=shlex.join(words)))


@fault.command()
@click.argument("fault_number", type=int)
@_run
@_reports_errors
def remove(fault_number: int, number: int | None) -> None:
    """End the fault with this number."""
    _request(number, "fault-remove", fault=fault_number)


@fault.command("list")
@_json
@_run
@_reports_errors
def list_(number: int | None, as_json: bool) -> None:
    """List the faults, and whether each is active now."""
    rows = [{"number": n, "fault": line, "stands": stands} for n, line, stands in _request(number, "fault-list")]
    _print(rows, as_json)


@fault.command()
@_json
def kinds(as_json: bool) -> None:
    """Describe each kind of fault."""
    from twin.faults.fault import KINDS

    _print([{"kind": kind, "what": what} for kind, what in KINDS.items()], as_json)


@twin.command()
@_reports_errors
def clean() -> None:
    """Remove the files that killed runs have left on this host, and list them."""
    from twin.serve.registered_runs import Register

    for line in Register().clean() or ["nothing to remove"]:
        click.echo(line)


def _request(number: int | None, do: str, **arguments: Any) -> Any:
    from twin.serve.control import send_request
    from twin.serve.registered_runs import find

    return send_request(find(number), do, **arguments)


def _duration_s(text: str, option: str) -> float:
    from twin.programs.workload import duration_s

    try:
        return duration_s(text)
    except TwinError as error:
        raise TwinError(f"{option} {error}") from None


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    """A table whose columns are as wide as their longest cell, or JSON."""
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(rows)))
        return
    if not rows:
        return
    cells = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    for line in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


if __name__ == "__main__":
    twin(prog_name="nodectl twin")
