"""``nodectl twin fit``: a machine file whose power follows a measured sweep."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from foundation.foreign_text import foreign_text
from twin.errors import TwinError
from twin.fit.judge import fit_and_judge
from twin.fit.law import Rate
from twin.fit.machine_file import error_lines, fit_table, named, with_cpu_fit, with_gpu_fit
from twin.fit.sweep import Curve, read_sweep
from twin.machine import Machine, load_machine

Part = Literal["gpu", "package"]


def fitted_machine(
    sweep: Path,
    machine: str,
    output: Path,
    *,
    part: Part | None = None,
    card: str | None = None,
    rate: Rate | None = None,
    idle_w: float | None = None,
    power_column: str | None = None,
) -> list[str]:
    """Write a copy of a machine's file that is fitted to a sweep; lines that say how well. TwinError on bad input.

    ``part``: what the sweep is of (default: the GPU, if the machine has one). ``rate``: what the cores' switching
    follows (default: the work on GPUs, the clock on CPUs). ``idle_w``: watts without any work (default: the machine's
    of a GPU, 0 of a package, whose shares then have it). A GPU's sweep is taken as read from the card itself: where
    the machine's ``[gpu.sensors]`` has a gain or an offset, the law is fitted to true watts.
    """
    base = load_machine(machine)
    part = part or ("gpu" if base.gpu else "package")
    if part == "gpu" and base.gpu is None:
        raise TwinError(f'machine "{base.name}" has no GPU to fit')
    curves = read_sweep(sweep, card, power_column)
    if part == "gpu":
        curves = _true_watts(curves, base)
    idle = idle_w if idle_w is not None else base.gpu.power.idle_w if part == "gpu" and base.gpu else 0.0
    fitted = fit_and_judge(curves, rate or ("work" if part == "gpu" else "clock"), idle)
    digest = hashlib.sha256(sweep.read_bytes()).hexdigest()
    fit = fit_table(fitted, sweep.name, digest, card or "")
    text = named(foreign_text(Path(base.path).read_bytes()), output.stem)
    if part == "gpu":
        text = with_gpu_fit(text, fitted.card, fit, _gpu_ladder(base))
    else:
        clocks = base.clock_hz
        text = with_cpu_fit(text, fitted.card, fit, (clocks[0] / 1e6, clocks[-1] / 1e6), base.cores)
    try:
        output.write_text(text)
    except OSError as error:
        raise TwinError(f"{output}: {error.strerror}") from None
    load_machine(str(output))  # what cannot be read again is an error here, not at the next start
    return [f"{output}: {len(curves)} workloads of {sweep.name}", *error_lines(fit)]


def _true_watts(curves: Sequence[Curve], machine: Machine) -> list[Curve]:
    """Curves whose watts were read from the card's own sensor, with the watts that the card draws."""
    assert machine.gpu is not None
    gain, offset_w = machine.gpu.sensors.power_gain, machine.gpu.sensors.power_offset_w
    return [
        msgspec.structs.replace(curve, power_w=tuple((shown_w - offset_w) / gain for shown_w in curve.power_w))
        for curve in curves
    ]


def _gpu_ladder(machine: Machine) -> tuple[float, float]:
    assert machine.gpu is not None
    return machine.gpu.min_khz / 1e3, machine.gpu.max_khz / 1e3
