"""Speed, power and counters as functions of the clock: tables over the machine's clock ladder.

CPU work takes ``beta * fmax / f + 1 - beta`` of its time at the highest clock (Etinoski's beta; published degradations
are the values of this formula at the lowest clock). The speed of GPU kernels is almost flat above a knee clock and
proportional to the clock below it, which that formula cannot express: EasyWave's EDP minimum is at 1095 of 1410 MHz
(REGALE D2.3 §3.4).

Counters are related to beta or knee with random errors that a policy cannot know. Otherwise a policy would only invert
these formulas.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from twin.machine import Gpu, Machine

type_f64 = npt.NDArray[np.float64]

SHARPNESS = 14.0
"""Exponent that joins the flat and the clock-bound part of a kernel's time; 14 rounds the knee over some 10 %. Of 1 to
20 it has the least mean square error on the V100 table, with the knee fitted to the lowest clock: 2.8 % at 14, 2.9 at
9, 3.0 at 20, 4.4 at 4 (``twin/fit/speed_laws.py``). An RTX PRO 6000 and a second V100 have rounder knees (6)."""

CACHE_LINE_B = 64


class CounterError(msgspec.Struct, frozen=True):
    """Counter errors of one phase: of magnitude ``bias / 2`` to ``bias``.

    ``bound``: stalls and traffic imply a beta or knee off by ``1 + bound``. ``loss``: a counter that should fall with
    speed falls ``1 + loss`` times as much. ``level`` and ``level2`` move IPC, occupancy and the like; the size of
    ``level2`` is also the share of a GPU phase's gaps in which small kernels count as activity, so that utilisation
    does not reveal the length of the gaps.
    """

    bound: float
    loss: float
    level: float
    level2: float


def stream(*keys: int | str) -> np.random.Generator:
    """A random stream that depends only on ``keys``."""
    return np.random.default_rng([zlib.crc32(key.encode()) if isinstance(key, str) else key for key in keys])


def random_counter_error(random: np.random.Generator, bias: float) -> CounterError:
    """One phase's counter errors: uniform over [-bias, bias] without the inner half."""
    signs = random.choice((-1.0, 1.0), size=4)
    sizes = random.uniform(bias / 2, bias, size=4) if bias > 0 else np.zeros(4)
    return CounterError(*(float(x) for x in signs * sizes))


def biased_loss(speed: type_f64, loss: float) -> type_f64:
    """A relative speed as a counter shows it: its distance from 1 is multiplied by ``1 + loss``."""
    return np.maximum(1.0 - (1.0 + loss) * (1.0 - speed), 0.02)


def beta_speed(clock_hz: Sequence[float], beta: float) -> type_f64:
    """Work rate relative to the highest clock."""
    clock = np.asarray(clock_hz)
    return np.asarray(1.0 / (beta * clock[-1] / clock + 1.0 - beta))


def knee_speed(clock_khz: Sequence[float], knee_mhz: float, sharpness: float = SHARPNESS) -> type_f64:
    """Kernel speed relative to the highest clock: flat above the knee, proportional to the clock far below it."""
    clock = np.asarray(clock_khz, float) / 1e3
    time = (1.0 + (knee_mhz / clock) ** sharpness) ** (1.0 / sharpness)
    return np.asarray(time[-1] / time)


def measured(clock_khz: Sequence[float], at_mhz: dict[str, float], floor: float = 0.0) -> type_f64:
    """A measured column on the ladder: linear between points, so monotone if they are.

    Below the lowest measured point it falls towards ``floor`` with the clock (ours).
    """
    points = sorted((float(mhz), value) for mhz, value in at_mhz.items())
    mhz, values = (np.array(column) for column in zip(*points, strict=True))
    clock = np.asarray(clock_khz, float) / 1e3
    below = floor + (values[0] - floor) * clock / mhz[0]
    return np.asarray(np.where(clock < mhz[0], below, np.interp(clock, mhz, values)))


def effective_knee(clock_khz: Sequence[float], speed: type_f64) -> float:
    """Clock (MHz) of the knee that fits a speed curve best in the mean square."""
    clock = np.asarray(clock_khz, float) / 1e3
    knees = np.linspace(0.5 * clock[-1] * 0.6, 1.3 * clock[-1], 120)
    errors = [float(np.mean((knee_speed(clock_khz, knee, 8.0) - speed) ** 2)) for knee in knees]
    return float(knees[int(np.argmin(errors))])


def volts(points: Sequence[tuple[float, float]], clock_hz: Sequence[float]) -> type_f64:
    """Voltage at each clock."""
    mhz, volt = zip(*points, strict=True)
    return np.asarray(np.interp(np.asarray(clock_hz) / 1e6, mhz, volt))


def gpu_switching(gpu: Gpu) -> type_f64:
    """V^2 f on the ladder, relative to the top clock."""
    clock = np.asarray(gpu.clocks_khz, float)
    v2f = volts(gpu.power.volts, [khz * 1e3 for khz in gpu.clocks_khz]) ** 2 * clock
    return np.asarray(v2f / v2f[-1])


def gpu_ready_w(gpu: Gpu) -> type_f64:
    """Board watts with a context and no kernel, at each clock."""
    return np.asarray(gpu.power.idle_w + (gpu.power.ready_w - gpu.power.idle_w) * gpu_switching(gpu))


def cpu_tables(
    machine: Machine, speed: type_f64, beta: float, ipc: float, traffic_gbs: float, counter_error: CounterError
) -> type_f64:
    """Rows work rate, instructions/s, stall share, misses/s, GB/s of one thread at each clock."""
    clock = np.asarray(machine.clock_hz)
    seen = min(max(beta * (1.0 + counter_error.bound), 0.01), 0.99)
    stall = (1.0 - seen) / (seen * clock[-1] / clock + 1.0 - seen)
    shown = biased_loss(speed, counter_error.loss)
    instructions = ipc * (1.0 + 1.5 * counter_error.level) * machine.tsc_khz * 1e3 * shown
    traffic_seen = traffic_gbs * (1.0 - seen) / max(1.0 - beta, 0.01)
    misses = traffic_seen * 1e9 / CACHE_LINE_B * shown * (1.0 + counter_error.level2)
    return np.stack([speed, instructions, stall, misses, traffic_gbs * speed])


def boundness(gpu: Gpu, knee_mhz: float) -> float:
    """0 for a knee at half the top clock (memory-bound), 1 for one at the top clock (clock-bound)."""
    top = gpu.max_khz / 1e3
    return min(max(2.0 * knee_mhz / top - 1.0, 0.0), 1.0)


def gpu_tables(
    gpu: Gpu,
    speed: type_f64,
    mean_w: type_f64 | None,
    kernel_w: type_f64,
    gap: float,
    dram: float,
    knee: float,
    counter_error: CounterError,
    implied: type_f64 | None = None,
) -> type_f64:
    """Rows kernel rate, kernel watts, gap watts, mean watts, DRAM-active share while a kernel runs.

    ``speed`` is that of the kernel alone. If ``mean_w`` was measured, it determines the kernel's watts. ``dram`` is the
    share at the top clock. ``implied``: the speed that it implies over the true one, at each clock, in place of
    ``counter_error.loss``.
    """
    ready = gpu_ready_w(gpu)
    kernel_s = (1.0 - gap) / speed
    whole_s = kernel_s + gap
    if mean_w is None:
        gap_w = ready
        mean_w = (kernel_w * kernel_s + gap_w * gap) / whole_s
    else:
        gap_w = np.minimum(ready, 0.9 * mean_w)
        kernel_w = (mean_w * whole_s - gap_w * gap) / kernel_s
    seen = dram + 0.6 * (boundness(gpu, knee) - boundness(gpu, knee * (1.0 + counter_error.bound)))
    seen = min(max(seen, 0.04), 0.92)
    shown = biased_loss(1.0 / whole_s, counter_error.loss) if implied is None else implied / whole_s
    average = seen * (1.0 - gap) * shown
    return np.stack([speed, kernel_w, gap_w, mean_w, np.minimum(average * whole_s / kernel_s, 0.97)])


def gpu_kernel_w(gpu: Gpu, activity: float, dram: float, speed: type_f64) -> type_f64:
    """Board watts while a kernel runs, at each clock: memory follows the speed, the SMs V^2 f; a share of the memory's
    watts may follow nothing, and a share of the SMs' V^2 times the speed."""
    power = gpu.power
    v2 = volts(power.volts, [khz * 1e3 for khz in gpu.clocks_khz]) ** 2
    rate = (1.0 - power.sm_work) * gpu_switching(gpu) + power.sm_work * v2 / v2[-1] * speed
    traffic = power.memory_awake + (1.0 - power.memory_awake) * speed
    return np.asarray(gpu_ready_w(gpu) + power.memory_w * dram * traffic + power.sm_w * activity * rate)
