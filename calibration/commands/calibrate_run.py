"""``nodectl calibrate run``: measure this node's P-state table."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from calibration.commands.calibrate_kernels import kernel_port
from calibration.commands.result_files import TABLE, out_option, refuse_existing
from calibration.kernels.port import FMA, KERNELS, STREAM, Kernel, KernelPort, mix
from calibration.measure.node_session import NodeSession, SessionError, label, open_session
from calibration.measure.partial_file import VERSION, PartialFile, Plan
from calibration.measure.refusals import refuse_other_use
from calibration.measure.through_agent import AgentClocks
from calibration.table import uncore_series
from calibration.table.adaptive_sweep import Aim, Progress, Sweep
from calibration.table.balance_series import measure_balance, reserved_s, shares_within
from calibration.table.finished_table import finished_table, package_limits_w
from calibration.table.pstate_table import Table
from calibration.table.table_exchange import windows_path, write_windows
from calibration.table.table_file import write_table
from calibration.table.table_report import show_lines
from foundation.shell.errors import UsageError, nearest
from foundation.shell.plain_text import echo
from nodectl.calibrated.node_identity import identity
from nodectl.config import Config
from nodectl.loop.interruptions import Interruptions
from pmu.ports import Ports
from pmu.system import system_ports

if TYPE_CHECKING:
    from nodectl.writer_process.remote_writer import RemoteWriter

PRECISIONS: Final = (0.005, 0.2)


def _seconds(context: click.Context, option: click.Parameter, text: str | None) -> float:
    if text is None:
        return 0.0
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(s|min|h)\s*", text)
    if not match or not float(match[1]):
        raise click.BadParameter(f"{text!r} is not a time such as 60s, 5min or 1h", context, option)
    return float(match[1]) * {"s": 1, "min": 60, "h": 3600}[match[2]]


def _share(context: click.Context, option: click.Parameter, text: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*%\s*", text)
    share = float(match[1]) / 100 if match else 0.0
    low, high = PRECISIONS
    if not low <= share <= high:
        raise click.BadParameter(f"{text!r} is not from {low:.1%} to {high:.0%}, such as 2%", context, option)
    return share


def kernel_named(text: str) -> Kernel:
    """A kernel by its label; ``UsageError`` for another name."""
    name, _, intensity = text.partition("-")
    if name == "mix" and intensity:
        try:
            return mix(float(intensity))
        except ValueError:
            raise UsageError(f"--kernel: {intensity!r} is no number of flops per byte") from None
    known = {label(kernel): kernel for kernel in KERNELS}
    if text not in known:
        raise UsageError(f"--kernel: no kernel is called {text!r}{nearest(text, known)}")
    return known[text]


@click.command()
@out_option(TABLE)
@click.option("--time-budget", "budget_s", callback=_seconds, metavar="TIME", help="Measure for this long: 60s, 5min.")
@click.option(
    "--precision", callback=_share, default="2%", show_default=True,
    help="Without a time: until no 95 % interval is wider than this to either side.",
)  # fmt: skip
@click.option(
    "--kernel", "names", multiple=True, metavar="NAME",
    help=f"Only these: {', '.join(label(kernel) for kernel in KERNELS)}.",
)  # fmt: skip
@click.option("--state-dir", metavar="DIR", default=Config().state_dir, show_default=True, help="Where a lock is kept.")
@click.option(
    "--through-agent", "is_guest", is_flag=True,
    help="The node's agent runs: it moves the clocks, and keeps the cluster's cap. Waits for full power.",
)  # fmt: skip
@click.option("--again", is_flag=True, help="Replace a table.")
def run(
    out: Path, budget_s: float, precision: float, names: tuple[str, ...], state_dir: str, is_guest: bool, again: bool
) -> int:
    """Measure this node's P-state table. Nothing else may run on it.

    Clock limits are moved by a process that puts them back at the end, on Ctrl-C and after a kill. What was measured so
    far is kept next to the result, in FILE.partial: a run that was stopped goes on where it was.
    """
    kernels = [kernel_named(name) for name in dict.fromkeys(names)] or list(KERNELS)
    aim = Aim(precision, budget_s)
    refuse_existing(out, again, windows_path(out))
    ports = system_ports()
    refuse_other_use(ports.files)
    with Interruptions(ports.clock) as interruptions, kernel_port(ports.files) as (port, _):
        if is_guest:
            with guest_session(ports, port, interruptions.wait, interruptions.is_over) as session:
                return measure(session, kernels, aim, out)
        with contextlib.closing(own_writer(state_dir)) as writer:
            writer.start()
            seen = through_writer(ports, writer)
            with open_session(seen, port, state_dir, writer, interruptions.wait, interruptions.is_over) as session:
                return measure(session, kernels, aim, out)


def guest_session(
    ports: Ports,
    port: KernelPort,
    wait: Callable[[int], None],
    is_over: Callable[[], bool],
    say: Callable[[str], None] = echo,
) -> NodeSession:
    """On a node whose agent moves the clocks."""

    def paused(why: str) -> None:
        say(f"paused: {why}" if why else "full power again: goes on")

    return open_session(ports, port, "", AgentClocks(ports, wait), wait, is_over, paused, moves_uncore=False)


def _partial(output: Path) -> Path:
    return output.with_name(f"{output.name}.partial")


def measure(
    session: NodeSession, kernels: Sequence[Kernel], aim: Aim, output: Path, say: Callable[[str], None] = echo
) -> int:
    """Measure, and write the table and its windows; what was measured before a stop is taken over."""
    partial = _partial(output)
    who, emulated = identity(session.ports, session.found.layout), session.kernels.is_emulated
    plan = Plan(VERSION, who, tuple(map(label, kernels)), session.clocks, emulated)
    with contextlib.closing(PartialFile(partial, plan)) as kept:
        if kept.dwells:
            echo(f"continues with {len(kept.dwells)} stays of {partial}", to_stderr=True)
        session.wait_for_power()
        limits_w = package_limits_w(session.ports.files, session.packages)
        has_mixes = {FMA, STREAM} <= set(kernels)
        shares = shares_within(aim.budget_s) if has_mixes else ()
        for_mixes_s = reserved_s(aim.budget_s) if shares else 0.0
        for_uncore_s = uncore_series.reserved_s(aim.budget_s, len(kernels)) if session.uncore.clocks else 0.0
        own = Aim(aim.precision, aim.budget_s - for_mixes_s - for_uncore_s)
        sweep = Sweep(session, kernels, own, kept, limits_w, _reporter())
        try:
            sweep.run()
            measure_balance(sweep, shares)
            if for_uncore_s or not aim.budget_s:
                uncore_series.measure_uncore(sweep, aim.budget_s)
        except KeyboardInterrupt:
            raise SessionError(f"stopped; the same command goes on from {partial}") from None
        table = finished_table(sweep, who, datetime.datetime.now(datetime.UTC))
        of_windows = _write(output, table, sweep)
        kept.remove()
    for line in show_lines(table)[:3]:
        say(line)
    say(f"written: {output}")
    say(of_windows)
    return 0


def _write(output: Path, table: Table, sweep: Sweep) -> str:
    """The table, then its windows: those of another table are never next to it. A line about the windows."""
    windows = windows_path(output)
    try:
        windows.unlink(missing_ok=True)
    except OSError as error:
        raise SessionError(f"{windows}: cannot be replaced: {error.strerror}") from None
    write_table(output, table)
    return write_windows(windows, table, sweep.idle, sweep.dwells)


def own_writer(state_dir: str) -> RemoteWriter:
    """A writer in a process of its own, not started yet. ``SessionError`` without the rights."""
    from nodectl.writer_process.remote_writer import RemoteWriter
    from nodectl.writer_process.writer_link import start_writer

    if os.geteuid() != 0:
        raise SessionError("no right to move clocks: run it as root")
    return RemoteWriter(lambda: start_writer(state_dir))


def through_writer(ports: Ports, writer: RemoteWriter) -> Ports:
    """This process writes no file: what may be moved, the writer moves."""
    from nodectl.writer_process.root_files import AgentFiles

    return replace(ports, files=AgentFiles(writer.opened, writer.movable))


def _reporter() -> Callable[[Progress], None]:
    """A line that is overwritten on a terminal; elsewhere one line every ten stays."""
    is_terminal = sys.stderr.isatty()

    def report(progress: Progress) -> None:
        widest = f"widest interval {progress.widest:.1%} ({progress.where})" if progress.where else "first look"
        line = f"{progress.stays} stays, {widest}, about {progress.left_s:.0f} s left"
        if is_terminal:
            click.echo(f"\r{line:<100}", nl=False, err=True)
        elif progress.stays % 10 == 1:
            echo(line, to_stderr=True)

    return report
