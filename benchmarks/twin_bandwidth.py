"""How well the twin's law of shared memory bandwidth follows STREAM on two EPYC 7502 (``cpu-epyc-rome``).

STREAM ran at ten settings (state of the fabric, DRAM clock) with four kernels. Of each of these 40, what one core takes
and what a die passes are fitted to 1 to 8 cores of one die, and for all together the share of a die's bandwidth that
each further core costs. Judged is what these say of cores placed otherwise, which the fit never saw: four or eight in
each of four or eight dies, and four as two in each complex of a die.

Left out of the judgement: copy on all 64 cores, which is 0.55 to 0.7 of scale on the same cores, in all settings.
Last, the machine ``rome`` runs triad at its own setting. ``--quick`` changes nothing.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np

from benchmarks.experiment import save
from twin.fit.judge import Errors, summary
from twin.machine import load_machine
from twin.physics.families import SHARED
from twin.physics.model import Twin
from twin.programs.workload import load_workload

TABLE: Final = SHARED / "cpu-epyc-rome" / "stream.csv"
DIE_CORES: Final = 8
DIES: Final = 4  # of a package
OWN: Final = ("0", "1600", "triad")
"""The setting of the machine ``rome``."""

type_key = tuple[str, str, str]


class Point(msgspec.Struct, frozen=True):
    """Cores that ran in each die, and the measured GB/s of all."""

    dies: tuple[int, ...]
    gbs: float
    cores: str
    is_fitted: bool


def read() -> dict[type_key, list[Point]]:
    """The measured points of each setting and kernel."""
    settings: dict[type_key, list[Point]] = {}
    with TABLE.open(newline="") as file:
        for row in csv.DictReader(file):
            key = row["io_pstate"], row["dram_mhz"], row["kernel"]
            cores, sockets, each = int(row["cores"]), int(row["sockets"]), row["cores_per_ccx"]
            if row["kernel"] == "copy" and cores == 64:
                continue
            one_die = each == "all" and cores <= DIE_CORES
            dies = (cores,) if one_die else (cores // (sockets * DIES),) * (sockets * DIES)
            if each == "two" and cores == 4:
                dies = (4,)
            label = f"{cores} on {len(dies)} {'die' if len(dies) == 1 else 'dies'}"
            settings.setdefault(key, []).append(Point(dies, float(row["mean_gbs"]), label, one_die))
    return settings


type_law = Callable[[int, float, float, float], float]
LAWS: Final[dict[str, type_law]] = {
    "each core as one alone": lambda cores, core, die, loss: cores * core,
    "until the die is full": lambda cores, core, die, loss: min(cores * core, die),
    "a fuller die passes less": lambda cores, core, die, loss: min(cores * core, die * (1 - loss * (cores - 1))),
}
"""GB/s of a die with so many busy cores; the last is the twin's."""
LOSSES: Final = {name: (0.0,) if "less" not in name else tuple(np.arange(0.0, 0.0201, 0.0005)) for name in LAWS}


def _fitted(law: type_law, loss: float, points: Sequence[Point]) -> tuple[float, float, float]:
    """Sum of squared relative errors over the fitted points, with the GB/s of a core and of a die."""
    fitted = [(point.dies[0], point.gbs) for point in points if point.is_fitted]
    core = next(gbs for cores, gbs in fitted if cores == 1)
    highest = max(gbs for _, gbs in fitted)
    best = (np.inf, core, highest)
    for die in highest * np.arange(0.90, 1.15, 0.001):
        squares = sum((law(cores, core, die, loss) / gbs - 1) ** 2 for cores, gbs in fitted)
        best = min(best, (squares, core, float(die)))
    return best


def judge(
    name: str, settings: dict[type_key, list[Point]]
) -> tuple[float, Errors, Errors, dict[type_key, list[float]]]:
    """The fitted loss, errors of the fitted and of the judged points; of each setting, core and die GB/s."""
    law = LAWS[name]
    loss = min(LOSSES[name], key=lambda each: sum(_fitted(law, each, points)[0] for points in settings.values()))
    fitted: list[float] = []
    judged: list[float] = []
    constants = {}
    for key, points in settings.items():
        _, core, die = _fitted(law, loss, points)
        constants[key] = [core, die]
        for point in points:
            predicted = sum(law(cores, core, die, loss) for cores in point.dies)
            (fitted if point.is_fitted else judged).append(predicted / point.gbs - 1)
    return float(loss), summary(np.array(fitted)), summary(np.array(judged)), constants


def emulated(dies: Sequence[int], seconds: float = 0.2) -> float:
    """GB/s of triad on ``rome`` with so many busy cores in each die."""
    machine = load_machine("rome")
    work = load_workload("triad", machine, bias=0.0)
    cpus = tuple(die * DIE_CORES + core for die, cores in enumerate(dies) for core in range(cores))
    group = msgspec.structs.replace(work.groups[0], units=cpus, weight=np.ones(len(cpus)))
    twin = Twin(machine, msgspec.structs.replace(work, groups=(group,)))
    twin.advance(seconds)
    return sum(twin.traffic_bytes(package) for package in range(machine.sockets)) / seconds / 1e9


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.twin_bandwidth", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the same; it takes seconds")
    parser.parse_args(argv)
    try:
        settings = read()
    except OSError as error:
        print(f"twin_bandwidth: needs {TABLE}: {error.strerror}")
        return 1
    rows = {}
    print(f"errors of GB/s, per cent: median, 95 %, worst\n{'law':26}{'1 to 8 cores, fitted':>24}{'judged':>24}")
    for name in LAWS:
        loss, fitted, judged, constants = judge(name, settings)
        cells = "".join(f"{e.median_pct:10.2f}{e.p95_pct:7.2f}{e.worst_pct:7.2f}" for e in (fitted, judged))
        print(f"{name:26}{cells}   a core costs {100 * loss:.2f} %")
        rows[name] = {"loss": loss, "fitted": fitted, "judged": judged}
    core, die = constants[OWN]
    print(f"triad, DRAM at 1600 MHz, fabric in its state 0: a core {core:.1f} GB/s, a die {die:.1f} GB/s")
    print(f"\ntriad on the machine rome\n{'cores':>16}{'measured':>10}{'emulated':>10}{'error %':>9}")
    own = []
    for point in sorted(settings[OWN], key=lambda each: (sum(each.dies), each.dies)):
        gbs = emulated(point.dies)
        own.append({"cores": point.cores, "measured_gbs": point.gbs, "emulated_gbs": gbs})
        print(f"{point.cores:>16}{point.gbs:10.1f}{gbs:10.1f}{100 * (gbs / point.gbs - 1):9.1f}")
    print("JSON:", save("twin_bandwidth", {"laws": rows, "rome": own}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
