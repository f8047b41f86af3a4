"""``nodectl calibrate gpus``: our kernels, or a program of the user's, under each clock of this node's GPUs."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from calibration.commands.calibrate_kernels import gpu_kernel_port
from calibration.commands.calibrate_run import own_writer, through_writer
from calibration.commands.result_files import out_option, refuse_existing
from calibration.gpu_table.clock_sweep import LEAST_S, GpuSweep, clocks_of
from calibration.gpu_table.command_runs import CommandPort, KernelRuns, ShellCommand
from calibration.gpu_table.gpu_table import GPU_TABLE, SCHEMA, GpuTable, gpu_lines, write_gpu_table
from calibration.kernels.emulated import is_served
from calibration.kernels.port import GPU_KERNELS, Kernel, KernelPort
from calibration.limits.session_probes import Knobs, KnobWriter
from calibration.measure.node_session import SessionError
from calibration.measure.refusals import refuse_other_use
from foundation.shell.command_line import FloatRange
from foundation.shell.errors import UsageError
from foundation.shell.plain_text import echo
from nodectl.calibrated.node_calibration import expiry
from nodectl.calibrated.node_identity import identity
from nodectl.commands.run import configure
from nodectl.config import Config, GpuSettings
from nodectl.loop.interruptions import Interruptions
from nodectl.loop.survey import Survey, survey
from pmu.layout import Gpu
from pmu.node import Instruments
from pmu.ports import Clock, Ports
from pmu.system import system_ports

FEWEST_CLOCKS: Final = 3

RUN_S: Final = 20.0
"""Ours: in shorter runs a card has not warmed up (EMULATED: 3 % fewer watts in 8 s)."""


@click.command()
@click.option(
    "--command", "text", metavar="COMMAND",
    help="A program in place of kernels. It runs to its end at every clock, for 5 s or more.",
)  # fmt: skip
@click.option(
    "--kernel", "names", type=click.Choice([kernel.name for kernel in GPU_KERNELS]), multiple=True,
    help="One of the kernels; may be repeated (default: both).",
)  # fmt: skip
@click.option(
    "--seconds", type=FloatRange(LEAST_S, 3600), default=RUN_S, show_default=True, metavar="S",
    help="Of each run of a kernel.",
)  # fmt: skip
@out_option(GPU_TABLE)
@click.option(
    "--clocks", "number", type=click.IntRange(FEWEST_CLOCKS, 64), default=6, show_default=True, help="How many."
)
@click.option("--floor", type=FloatRange(0.1, 0.95), default=0.5, show_default=True, help="The lowest, of the highest.")
@click.option(
    "--precision", type=FloatRange(0.001, 0.5), default=0.02, show_default=True,
    help="Until no 95 % interval is wider than this to either side, or four runs of each.",
)  # fmt: skip
@click.option(
    "--gpu-locked-mhz", type=int, metavar="MHZ", help="The clock that the site has locked its GPUs to; 0: not locked."
)
@click.option("--state-dir", metavar="DIR", default=Config().state_dir, show_default=True, help="Where a lock is kept.")
@click.option("--again", is_flag=True, help="Replace a table.")
def gpus(
    text: str | None, names: tuple[str, ...], seconds: float, out: Path, number: int, floor: float, precision: float,
    gpu_locked_mhz: int | None, state_dir: str, again: bool,
) -> int:  # fmt: skip
    """Measure what kernels, or a program of yours, draw on this node's GPUs, and how fast they are, at some clocks.

    A program's speed is by its run time, or by the progress that it reports. Nothing else may run on the node. Clock
    locks are moved by a process that puts them back at the end, on Ctrl-C and after a kill.
    """
    refuse_existing(out, again)
    if text is not None and names:
        raise UsageError("--kernel: there is a --command in place of kernels")
    command = ShellCommand(text) if text is not None else None
    given: dict[tuple[str, ...], tuple[str, Any]] = {}
    if gpu_locked_mhz is not None:
        given["gpu", "locked_clock_mhz"] = "--gpu-locked-mhz", gpu_locked_mhz
    settings = configure(None, given).gpu
    ports = system_ports()
    refuse_other_use(ports.files)
    with contextlib.ExitStack() as opened:
        interruptions = opened.enter_context(Interruptions(ports.clock))
        writer = opened.enter_context(contextlib.closing(own_writer(state_dir)))
        writer.start()
        seen = through_writer(ports, writer)
        found = survey(seen)
        locks = site_locks(found, settings)
        writer.know_site_locks(locks)

        def wait(until_ns: int) -> None:
            interruptions.wait(until_ns)
            if interruptions.is_over():
                raise KeyboardInterrupt

        try:
            if command is None:  # after the writer's start, which would keep the connection of a kernel open
                port = opened.enter_context(gpu_kernel_port(ports))
                chosen = [kernel for kernel in port.kernels() if not names or kernel.name in names]
                programs = kernel_programs(port, chosen, ports.clock, seconds)
            else:
                programs = {"": command}
            locked_mhz = min((mhz for mhz in locks.values() if mhz), default=0)  # all cards have the same clock
            clocks = clocks_of(found.layout.gpus[0], number, floor, locked_mhz)
            return measure(seen, found, writer, programs, text or "", clocks, precision, out, wait)
        except KeyboardInterrupt:
            raise SessionError("stopped: nothing is written, and every lock is back") from None
        finally:
            writer.restore_all()


def kernel_programs(
    port: KernelPort, kernels: Sequence[Kernel], clock: Clock, seconds: float
) -> dict[str, CommandPort]:
    """By its name each kernel as a program that runs for so long on all GPUs of ``port``."""
    return {kernel.name: KernelRuns(port, kernel, clock, seconds) for kernel in kernels}


def site_locks(found: Survey, settings: GpuSettings) -> Mapping[str, int]:
    """What the site has locked its cards to. ``SessionError`` where they cannot be measured, ``UsageError`` where their
    lock is not declared: it could not be put back."""
    _check(found)
    locks = {_name(gpu): settings.baseline_mhz(gpu.index, gpu.uuid) for gpu in found.layout.gpus}
    if min(locks.values()) < 0:
        raise UsageError("--gpu-locked-mhz: NVML cannot say what the site has locked its GPUs to: declare it, 0: none")
    return locks


def _check(found: Survey) -> None:
    """``SessionError`` unless there are cards of one model whose clocks can be locked."""
    gpus, movable = found.layout.gpus, {knob.name for knob in found.knobs}
    if not gpus or not all(gpu.clocks_mhz for gpu in gpus):
        why = next((row.why for row in found.sensor_rows if row.kind == "gpu" and row.why), "none found")
        raise SessionError(f"no GPU clocks to measure: {why} (see `nodectl doctor`)")
    if len({(gpu.name, gpu.clocks_mhz) for gpu in gpus}) > 1:
        raise SessionError("the GPUs of this node are of several models: hide all but one from the driver")
    if missing := [_name(gpu) for gpu in gpus if _name(gpu) not in movable]:
        why = next((row.why for row in found.knob_rows if row.name == missing[0]), "not found")
        raise SessionError(f"{missing[0]} cannot be moved: {why} (see `nodectl doctor`)")


def _name(gpu: Gpu) -> str:
    return f"gpu/{gpu.index}/sm_clock_mhz"


def measure(
    ports: Ports, found: Survey, writer: KnobWriter, programs: Mapping[str, CommandPort], text: str,
    clocks: tuple[int, ...], precision: float, out: Path, wait: Callable[[int], None] | None = None,
    say: Callable[[str], None] = echo, is_emulated: bool | None = None,
) -> int:  # fmt: skip
    """Measure, and write the table. ``programs``: by kernel, "": a command; ``text``: it as people know it."""
    gpus = found.layout.gpus
    with contextlib.closing(Instruments(ports, found.layout)) as instruments:
        sweep = GpuSweep(Knobs(ports, writer, wait), instruments, found.layout, lambda line: echo(line, to_stderr=True))
        idle_w = sweep.idle_w()
        rows = [row for kernel, program in programs.items() for row in sweep.run(program, clocks, precision, kernel)]
    now = datetime.datetime.now(datetime.UTC)
    table = GpuTable(
        schema=SCHEMA, command=text, model=gpus[0].name, cards=len(gpus),
        is_emulated=is_served() if is_emulated is None else is_emulated,
        has_units=all(row.units_per_s > 0 for row in rows), idle_w=idle_w,
        measured_at=now.isoformat(timespec="seconds"), expires_at=expiry(now),
        identity=identity(ports, found.layout), gpu_rows=tuple(rows),
    )  # fmt: skip
    write_gpu_table(out, table)
    for line in "\n".join(gpu_lines(table)).splitlines():
        say(line)
    say(f"written: {out}")
    return 0
