"""The P-state table of emulated nodes in virtual time, against the truth: how near, in how much of a full sweep's time.

Each node differs from its machine file (``Variation``), its counters err, its energy counters and its node meter have
a gain of their own that no repetition shows (RAPL +-3 %, meter +-1 %, drawn per node), and jitter with a memory of a
second.
The truth is the model's: watts of packages when their temperature has settled, and units per second, at every clock,
without the noise of iterations, of which a second of one core has 0.3 %.

- *near*: points whose watts and speed are within 2 % of the truth, the gain taken out, which no meter of the node can
  know; *with gain*: with it left in.
- *time*: of measuring every clock of every kernel and level once, in stays of equal length.
- *coverage*: points whose truth lies within the 95 % interval, the gain taken out.
- *repeat*: points of a rerun (other noise, same node) within both intervals of the first.
- *fewest joules*: clocks within 1 % of the fewest joules per unit by the node's meter and by RAPL alone, against the
  truth's: the mean excess of joules at the node when the middle one of each set is chosen.

Machines and seeds of ``TUNED`` were looked at while the constants of calibration were chosen; ``JUDGED`` were not.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np

from benchmarks.experiment import save
from calibration.kernels.port import KERNELS, Kernel
from calibration.measure.node_session import LEVELS, Setting, label, open_session
from calibration.table.adaptive_sweep import Aim, Sweep
from calibration.table.finished_table import package_limits_w
from calibration.table.least_energy import WITHIN
from calibration.table.pstate_table import Point
from lab.emulated.emulated_kernels import emulated_kernels
from pmu.instruments.rapl import POWERCAP
from pmu.ports import Files, KeptFile, Ports
from twin.in_process_node import InProcess
from twin.machine import Machine, load_machine
from twin.physics.model import Twin
from twin.physics.variation import Variation

MACHINES: Final = ("taurus", "skylake-6146", "curie", "a100", "rome", "xh2415", "spr-h100", "genoa-h100")
TUNED: Final = tuple(zip(MACHINES, (11, 12, 13, 16, 17, 18, 14, 15), strict=True))
JUDGED: Final = tuple(zip(MACHINES, range(41, 49), strict=True))
QUICK: Final = JUDGED[:2]

NEAR: Final = 0.02
RAPL_GAIN, METER_GAIN = 0.03, 0.01
JITTER, MEMORY_S = 0.004, 1.0
COUNTER_BIAS: Final = 0.2
FASTER_HEAT: Final = 200.0
"""The truth's own node has so much less heat capacity: it settles sooner, at the same temperature."""


@dataclass(slots=True)
class Jitter:
    """A relative error with a memory: AR(1) in the node's time."""

    random: np.random.Generator
    now_s: float = 0.0
    value: float = 0.0

    def at(self, now_s: float) -> float:
        keep = float(np.exp(-(now_s - self.now_s) / MEMORY_S))
        self.value = keep * self.value + JITTER * float(np.sqrt(1 - keep**2)) * float(self.random.standard_normal())
        self.now_s = now_s
        return self.value


class ErringSensors:
    """Files of a node whose energy counters and node meter have a gain and jitter; limits are in the counters' watts
    (``regulated``)."""

    def __init__(self, ports: Ports, rapl: float, meter: float, seed: int) -> None:
        self._ports, self._rapl, self._meter = ports, rapl, meter
        self._random = np.random.default_rng(seed)
        self._jitter: dict[str, Jitter] = {}
        self._counted: dict[str, tuple[int, float]] = {}

    def read(self, path: str) -> str:
        text = self._ports.files.read(path)
        if path.endswith("/energy_uj"):
            return f"{self._energy(path, int(text))}\n"
        if path.endswith(("_power_limit_uw", "_max_power_uw")):
            return f"{round(int(text) * self._rapl)}\n"
        if "/power" in path and path.endswith(("_input", "_average")):
            return f"{round(int(text) * self._meter * (1 + self._noise(path)))}\n"
        return text

    def keep(self, path: str) -> KeptFile:
        return _Kept(self, path) if path.startswith(POWERCAP) else self._ports.files.keep(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ports.files, name)

    def _noise(self, path: str) -> float:
        jitter = self._jitter.setdefault(path, Jitter(self._random))
        return jitter.at(self._ports.clock.now_ns() * 1e-9)

    def _energy(self, path: str, now_uj: int) -> int:
        range_uj = int(self._ports.files.read(path.replace("energy_uj", "max_energy_range_uj")))
        before_uj, total = self._counted.get(path, (now_uj, 0.0))
        total += ((now_uj - before_uj) % range_uj) * self._rapl * (1 + self._noise(path))
        self._counted[path] = (now_uj, total)
        return int(total) % range_uj


@dataclass(slots=True)
class _Kept:
    files: ErringSensors
    path: str

    def read(self) -> bytes:
        return self.files.read(self.path).encode()

    def close(self) -> None:
        pass


class Truth(msgspec.Struct, frozen=True):
    """``dram_w`` is no part of ``package_w``."""

    package_w: float
    dram_w: float
    node_w: float
    units_per_s: float


class Row(msgspec.Struct, frozen=True):
    """Shares of points, share of time, and excess joules in per cent."""

    machine: str
    seed: int
    clocks: int
    is_judged: bool
    near_watts: float
    near_speed: float
    near_both: float
    with_gain: float
    time: float
    covered_watts: float
    covered_speed: float
    repeat: float
    excess_by_node: float | None
    excess_by_rapl: float
    excess_at_top: float
    worst_watts: float
    worst_speed: float


def variation(seed: int) -> Variation:
    return Variation(node=seed)


def regulated(machine: Machine, gain: float) -> Machine:
    """The machine with RAPL's gain in its limits too: firmware keeps them by the watts that its counters show."""
    zones = tuple(
        msgspec.structs.replace(
            zone,
            constraints=tuple(
                msgspec.structs.replace(one, limit_w=one.limit_w / gain, max_w=one.max_w / gain)
                for one in zone.constraints
            ),
        )
        for zone in machine.zones
    )
    return msgspec.structs.replace(machine, zones=zones)


def measured(
    machine: Machine, seed: int, rerun: int, gains: tuple[float, float], kernels: Sequence[Kernel] = KERNELS
) -> tuple[Sweep, tuple[Point, ...]]:
    """One sweep; ``rerun``: other noise on the same node."""
    twin = Twin(machine, seed=seed, variation=variation(seed))
    with InProcess(twin) as node, tempfile.TemporaryDirectory(prefix="nodectl-calibration-") as state_dir:
        erring = ErringSensors(node.ports, *gains, seed=1000 * seed + rerun)
        files: Files = erring
        port = emulated_kernels(twin, seed, COUNTER_BIAS)
        with open_session(replace(node.ports, files=files), port, state_dir) as session:
            sweep = Sweep(session, kernels, Aim(), limits_w=package_limits_w(files, session.packages))
            return sweep, sweep.run()


def truths(
    machine: Machine,
    seed: int,
    clocks: Sequence[int],
    cpus: Mapping[str, Sequence[int]],
    kernels: Sequence[Kernel] = KERNELS,
) -> dict[Setting, Truth]:
    """What the model draws and does at every clock when its temperature has settled."""
    heat = msgspec.structs.replace(
        machine.heat,
        die_j_per_k=machine.heat.die_j_per_k / FASTER_HEAT,
        sink_j_per_k=machine.heat.sink_j_per_k / FASTER_HEAT,
    )
    quick = msgspec.structs.replace(machine, heat=heat)
    windows_s = [one.window_us * 1e-6 for zone in machine.zones for one in zone.constraints if one.name == "long_term"]
    settle_s = max(3.0, *(5 * window for window in windows_s)) if windows_s else 3.0
    found = {}
    twin = Twin(quick, seed=seed, variation=msgspec.structs.replace(variation(seed), iteration=0.0))
    port = emulated_kernels(twin, seed, COUNTER_BIAS)
    for kernel in kernels:
        for level in cpus:
            port.start(kernel, cpus[level])
            for khz in clocks:
                for domain in range(len(machine.domains)):
                    twin.set_domain(domain, max_khz=khz)
                twin.advance(settle_s)
                before = (twin.report().energy_j, port.units_done(), twin.time_ns)
                twin.advance(1.0)
                after = (twin.report().energy_j, port.units_done(), twin.time_ns)
                seconds = (after[2] - before[2]) * 1e-9
                watts = {name: (joules - before[0][name]) / seconds for name, joules in after[0].items()}
                packages = sum(one for name, one in watts.items() if name.startswith("package"))
                speed = (after[1] - before[1]) / seconds
                dram = sum(one for name, one in watts.items() if name.startswith("dram"))
                found[Setting(label(kernel), level, khz)] = Truth(packages, dram, watts["node"], speed)
            port.stop()
    return found


def judge(name: str, seed: int, is_judged: bool) -> Row:
    machine = load_machine(name)
    drawn = np.random.default_rng(seed).uniform(-1, 1, 2)
    gains = (1 + RAPL_GAIN * float(drawn[0]), 1 + METER_GAIN * float(drawn[1]))
    machine = regulated(machine, gains[0])
    sweep, points = measured(machine, seed, 0, gains)
    _, again = measured(machine, seed, 1, gains)
    session = sweep.session
    truth = truths(machine, seed, session.clocks, {level: session.cpus_of(level) for level in LEVELS})
    errors = [errors_of(point, truth, session.clocks[-1], gains[0]) for point in points]
    watts, speed, raw = (np.array(column) for column in zip(*errors, strict=True))
    half_w = np.array([point.package_half / point.package_w for point in points])
    half_s = np.array([point.speed_half / point.speed for point in points])
    repeats = [
        abs(a.package_w - b.package_w) <= a.package_half + b.package_half
        and abs(a.speed - b.speed) <= a.speed_half + b.speed_half + 1e-9
        for a, b in zip(points, again, strict=True)
    ]
    near_w, near_s = np.abs(watts) <= NEAR, np.abs(speed) <= NEAR
    by_node, by_rapl, at_top = _excess(points, truth)
    return Row(
        machine=name,
        seed=seed,
        clocks=len(session.clocks),
        is_judged=is_judged,
        near_watts=float(near_w.mean()),
        near_speed=float(near_s.mean()),
        near_both=float((near_w & near_s).mean()),
        with_gain=float((np.abs(raw) <= NEAR).mean()),
        time=sweep.spent_s / sweep.full_s,
        covered_watts=float((np.abs(watts) <= half_w).mean()),
        covered_speed=float((np.abs(speed) <= half_s + 1e-4).mean()),
        repeat=float(np.mean(repeats)),
        excess_by_node=by_node,
        excess_by_rapl=by_rapl,
        excess_at_top=at_top,
        worst_watts=float(np.abs(watts).max()),
        worst_speed=float(np.abs(speed).max()),
    )


def errors_of(point: Point, truth: Mapping[Setting, Truth], top_khz: int, gain: float) -> tuple[float, float, float]:
    """Relative: of watts without the gain, of speed, of watts with it."""
    own = truth[Setting(point.kernel, point.level, point.khz)]
    speed = own.units_per_s / truth[Setting(point.kernel, point.level, top_khz)].units_per_s
    return point.package_w / gain / own.package_w - 1, point.speed / speed - 1, point.package_w / own.package_w - 1


def _excess(points: Sequence[Point], truth: Mapping[Setting, Truth]) -> tuple[float | None, float, float]:
    """Mean excess of the node's joules per unit, per cent, when the middle clock of a set is chosen: by the meter, by
    RAPL alone, and always the highest."""
    by_node, by_rapl, at_top = [], [], []
    for kernel, level in dict.fromkeys((point.kernel, point.level) for point in points):
        own = [point for point in points if (point.kernel, point.level) == (kernel, level)]
        joules = {p.khz: (t := truth[Setting(kernel, level, p.khz)]).node_w / t.units_per_s for p in own}
        least = min(joules.values())
        rapl = _middle([(p.khz, (p.package_w + np.nan_to_num(p.dram_w)) / p.speed) for p in own])
        by_rapl.append(joules[rapl] / least - 1)
        at_top.append(joules[own[-1].khz] / least - 1)
        if np.isfinite(own[0].node_w):
            by_node.append(joules[_middle([(p.khz, p.node_w / p.speed) for p in own])] / least - 1)
    mean = statistics.fmean
    return 100 * mean(by_node) if by_node else None, 100 * mean(by_rapl), 100 * mean(at_top)


def _middle(joules: Sequence[tuple[int, float]]) -> int:
    least = min(value for _, value in joules)
    chosen = [khz for khz, value in joules if value <= least * (1 + WITHIN)]
    return chosen[len(chosen) // 2]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two machines that were not tuned on")
    parser.add_argument("--tuned", action="store_true", help="those that constants were chosen on")
    options = parser.parse_args(arguments)
    cases = QUICK if options.quick else TUNED if options.tuned else JUDGED
    print("emulated nodes, virtual time; shares of points in %; the gain of sensors taken out but for `with gain`")
    print(f"{'machine':14} clocks   near  watts  speed  with gain   time  covered W/speed  repeat  worst W/speed"
          "   excess J: meter  RAPL   top")  # fmt: skip
    rows = []
    for name, seed in cases:
        row = judge(name, seed, not options.tuned)
        rows.append(row)
        meter = "none" if row.excess_by_node is None else f"{row.excess_by_node:.1f} %"
        print(
            f"{name:14} {row.clocks:6} {100 * row.near_both:6.1f} {100 * row.near_watts:6.1f}"
            f" {100 * row.near_speed:6.1f} {100 * row.with_gain:10.1f} {100 * row.time:6.1f}"
            f" {100 * row.covered_watts:9.1f} {100 * row.covered_speed:5.1f} {100 * row.repeat:7.1f}"
            f" {100 * row.worst_watts:7.1f} {100 * row.worst_speed:5.1f}"
            f" {meter:>17} {row.excess_by_rapl:5.1f} {row.excess_at_top:5.1f}",
            flush=True,
        )
    save("calibration_table", {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
