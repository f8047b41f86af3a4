"""``nodectl calibrate kernels``: the speed of each kernel on one core, half of the cores and all.

Speeds alone are no P-state table: that needs clocks to set and energy to read. What this node lacks for one is said in
a line each. Speeds of this node's own CPUs never meet emulated watts: on a served node the only port is the node's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import click
import msgspec
import psutil

from calibration.gpu_kernels.native_gpu import gpu_kernels
from calibration.kernels.emulated import EmulatedKernels, ServedHost, is_served
from calibration.kernels.kernel_speed import Speed, measure_speed
from calibration.kernels.native import NativeKernels
from calibration.kernels.port import KernelError, KernelPort, check_cpus
from foundation.shell.command_line import FloatRange
from foundation.shell.errors import UsageError
from foundation.shell.plain_text import echo, echo_block, json_text
from foundation.shell.progress_bar import progress
from foundation.shell.text_table import render
from nodectl.loop.survey import NEEDED_EVENTS, Survey, survey
from pmu import topology
from pmu.cpulist import format_list, parse_list
from pmu.ports import Files, Ports
from pmu.system import system_ports

HEADINGS: Final = ("kernel", "CPUs", "speed", "95 %", "work")

BUSY_PCT: Final = 5.0
"""Ours: other load above this makes speeds too low by more than their intervals."""

MOST_LISTED: Final = 12
"""Ours: characters of a list of CPUs in the table; JSON has all of them."""

_LOOK_S: Final = 0.5


@click.command()
@click.option(
    "--seconds", type=FloatRange(min=0.1), default=2.0, show_default=True, metavar="S",
    help="Measuring time of each kernel on each number of CPUs.",
)  # fmt: skip
@click.option(
    "--cpus", "list_", metavar="LIST", help="CPUs for kernels, as in 0-7,16 (default: one thread of each core)."
)
@click.option("--gpus", "has_gpus", is_flag=True, help="The GPUs in place of the CPUs, by CUDA's driver.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def kernels(seconds: float, list_: str | None, has_gpus: bool, as_json: bool) -> None:
    """Measure how fast this node's CPUs compute, with 95 % intervals, on a node without other load."""
    ports = system_ports()
    if has_gpus:
        _of_gpus(ports, seconds, as_json)
        return
    with kernel_port(ports.files) as (port, width):
        cpus = _given(list_, port) if list_ is not None else one_thread_of_each_core(ports.files, port)
        busy = "" if port.is_emulated else _busy(cpus)
        speeds = _measured(port, ports, cpus, seconds)
    lacks = lacking(survey(ports))
    if as_json:
        echo_block(json_text(_report(port, width, speeds, lacks, busy), indent=2))
        return
    echo("emulated: the served node executes the kernels" if port.is_emulated else f"native: {width} vectors")
    echo_block(render(HEADINGS, [_cells(speed, port) for speed in speeds]))
    for line in [busy, *lacks]:
        if line:
            echo(line)
    if lacks:
        echo("so this node gets no P-state table: it has speeds, but not what they cost at each clock")


def _of_gpus(ports: Ports, seconds: float, as_json: bool) -> None:
    """One GPU, and all of them."""
    with gpu_kernel_port(ports) as port:
        parts = dict.fromkeys((port.cpus[:1], port.cpus))
        work = [(kernel, part) for kernel in port.kernels() for part in parts]
        speeds = [measure_speed(port, ports.clock, kernel, part, seconds) for kernel, part in work]
    if as_json:
        report = {"emulated": port.is_emulated, "speeds": [msgspec.to_builtins(one) for one in speeds]}
        echo_block(json_text(report, indent=2))
        return
    if port.is_emulated:
        echo("emulated: the served node executes the kernels")
    headings = ("kernel", "GPUs", *HEADINGS[2:])
    echo_block(render(headings, [_cells(speed, port) for speed in speeds]))


@contextlib.contextmanager
def gpu_kernel_port(ports: Ports) -> Iterator[KernelPort]:
    """The port of this node's GPUs: a served node's own, else by CUDA's driver. ``KernelError`` if there is none."""
    if is_served():
        with contextlib.closing(ServedHost()) as host:
            if not host.gpus:
                raise KernelError("no GPU: the emulated node has none")
            yield EmulatedKernels(host, on_gpus=True)
    else:
        yield gpu_kernels(ports)


@contextlib.contextmanager
def kernel_port(files: Files) -> Iterator[tuple[KernelPort, str]]:
    """The port of this node and its widest vectors: a served node's own, else native."""
    if is_served():
        with contextlib.closing(ServedHost()) as host:
            yield EmulatedKernels(host), ""
    else:
        native = NativeKernels(files)
        yield native, native.widths()[-1]


def one_thread_of_each_core(files: Files, port: KernelPort) -> tuple[int, ...]:
    """The first logical CPU of each core, among those of ``port``."""
    found = topology.find(files)
    first: dict[int, int] = {}
    for cpu, core in zip(found.cpus, found.core_of, strict=True):
        if cpu in port.cpus:
            first.setdefault(core, cpu)
    return tuple(first.values()) or port.cpus


def lacking(found: Survey) -> list[str]:
    """What this node lacks for a P-state table, each in one line with the reason."""
    lines = []
    if not found.layout.domains:
        lines.append("no clock to set (cpufreq): " + _why(found, "frequency"))
    if not found.layout.zones:
        lines.append("no energy to read (RAPL): " + _why(found, "energy"))
    if absent := [event for event in NEEDED_EVENTS if event not in found.layout.events]:
        lines.append(f"no counters ({', '.join(absent)}): " + _why(found, "counter"))
    return lines


def _why(found: Survey, kind: str) -> str:
    return next((row.why for row in found.sensor_rows if row.kind == kind and row.why), "none found")


def _given(text: str, port: KernelPort) -> tuple[int, ...]:
    try:
        cpus = parse_list(text)
        check_cpus(cpus, port.cpus)
    except ValueError:
        raise UsageError(f"--cpus {text}: not a list of CPUs such as 0-7,16") from None
    except KernelError as error:
        raise UsageError(f"--cpus {text}: {error}") from None
    return cpus


def _measured(port: KernelPort, ports: Ports, cpus: tuple[int, ...], seconds: float) -> list[Speed]:
    """One core, every second one, and all; each number of CPUs once."""
    parts = dict.fromkeys((cpus[:1], cpus[::2], cpus))
    work = [(kernel, part) for kernel in port.kernels() for part in parts]
    speeds = []
    with progress(len(work), "measuring") as advance:
        for kernel, part in work:
            speeds.append(measure_speed(port, ports.clock, kernel, part, seconds))
            advance(len(speeds))
    return speeds


def _busy(cpus: tuple[int, ...]) -> str:
    """A line if other programs use these CPUs now; kernels do not run yet."""
    shares = dict(enumerate(psutil.cpu_percent(_LOOK_S, percpu=True)))
    used_pct = sum(shares.get(cpu, 0.0) for cpu in cpus) / len(cpus)
    if used_pct <= BUSY_PCT:
        return ""
    return f"other programs used {used_pct:.0f} % of these CPUs before the measurement: the speeds are too low"


def _cells(speed: Speed, port: KernelPort) -> tuple[str, ...]:
    name = f"{speed.kernel} {speed.flops_per_byte:g}/B" if speed.flops_per_byte else speed.kernel
    half_pct = 50 * (speed.high_units_per_s - speed.low_units_per_s) / speed.units_per_s
    summary = next(kernel.summary for kernel in port.kernels() if kernel.name == speed.kernel)
    return (name, _counted(speed.cpus), in_words(speed.units_per_s, speed.unit), f"±{half_pct:.1f} %", summary)


def _counted(cpus: tuple[int, ...]) -> str:
    listed = format_list(cpus)
    return f"{len(cpus)} ({listed})" if len(listed) <= MOST_LISTED else str(len(cpus))


def in_words(units_per_s: float, unit: str) -> str:
    """Three digits with a prefix: ``37.7 Gflops/s``."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if units_per_s >= factor:
            return f"{units_per_s / factor:.3g} {prefix}{unit}/s"
    return f"{units_per_s:.3g} {unit}/s"


def _report(port: KernelPort, width: str, speeds: list[Speed], lacks: list[str], busy: str) -> dict[str, Any]:
    return {
        "emulated": port.is_emulated,
        "vectors": width or None,
        "speeds": [msgspec.to_builtins(speed) for speed in speeds],
        "disturbed": busy,
        "lacks_for_a_table": lacks,
    }
