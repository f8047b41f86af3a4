"""Applications whose true time and package watts over (nodes, cores, cap) are those of emulated nodes.

One node is the twin's, with all its laws: turbo bins, shared bandwidth, the uncore's clock and package limits that
throttle. A round of an application is its compute phases, then communication, in which all cores poll. It runs for
``WARM_S`` and is then measured for ``MEASURED_S`` on the packages and cores in question under the cap.

Over nodes a strong-scaling law of ours says how long a round's parts are at the highest clock, as shares of the compute
part on the fewest nodes ``n0`` and cores ``c0``:

    compute(n, c) = n0 c0 / (n c)
    communication(n) = serial + latency log2(n) + halo (n0 / n)^(2/3)

``halo`` is the surface of a cube that is cut into n parts. All nodes are alike, so watts are those of one, n times.
No formula of a fitted model takes part.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import log2, pow
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from twin.machine import Machine, load_machine
from twin.physics.curves import stream
from twin.physics.model import Twin
from twin.programs.workload import Workload, load_workload

type_f64 = npt.NDArray[np.float64]

NODES: Final = (8, 14, 24, 40, 64)
ROUND_S: Final = 0.02
"""Of the compute part on the fewest nodes and cores: short, so that a limit applies to the mean over phases."""
WINDOW_US: Final = 20_000
"""Of the package limit: short, so that the limit has settled after ``WARM_S``."""
WARM_S: Final = 0.6
MEASURED_S: Final = 1.2


@dataclass(frozen=True, slots=True)
class Platform:
    """A machine and the grid on it. ``cores`` are per node, spread evenly over its packages; caps are per package."""

    machine: str
    cores: tuple[int, ...]
    caps_w: tuple[float, ...]

    def grid(self) -> Iterator[tuple[int, int, float]]:
        """All (nodes, cores, cap)."""
        return product(NODES, self.cores, self.caps_w)


SPR: Final = Platform("spr-h100", (56, 70, 84, 98, 112), (150.0, 175.0, 200.0, 225.0, 250.0, 280.0, 315.0, 350.0))
"""Half of the cores to all, caps from 0.43 of the TDP: as on RMAP's Cab (8 to 16 cores, 51 of 115 W)."""
ROME: Final = Platform("rome", (32, 40, 48, 56, 64), (80.0, 90.0, 100.0, 110.0, 125.0, 140.0, 160.0, 180.0))
"""Its caps are ``package_limit_w``, since this processor has none that can be written."""


@dataclass(frozen=True, slots=True)
class Application:
    """Phases are (share of the compute part, keys of a CPU phase); the rest is of the law above."""

    name: str
    phases: tuple[tuple[float, dict[str, str | float]], ...]
    serial: float
    latency: float
    halo: float
    imbalance: float


def drawn(number: int) -> Application:
    """Application ``number``, of 1 to 3 compute phases between clock-bound with wide vectors and bandwidth-bound."""
    random = stream(number, "rmap application")
    phases = []
    for share in random.dirichlet(np.full(int(random.integers(1, 4)), 3.0)):
        beta = float(random.uniform(0.05, 0.98))
        keys: dict[str, str | float] = {
            "beta": beta,
            "activity": float(random.uniform(0.45, 1.0)),
            "ipc": 0.3 + 1.8 * beta,
            "traffic_gbs": float((1.0 - beta) * np.exp(random.uniform(np.log(1.0), np.log(30.0)))),
            "vectors": str(random.choice(["scalar", "avx2", "avx512"])),
        }
        phases.append((float(share), keys))
    serial, latency, halo = np.exp(random.uniform(np.log([0.001, 0.0005, 0.001]), np.log([0.01, 0.08, 0.05])))
    return Application(
        f"app-{number}", tuple(phases), float(serial), float(latency), float(halo), float(random.uniform(0, 0.05))
    )


def communication(one: Application, nodes: int) -> float:
    """Seconds of communication over those of the compute part on the fewest nodes and cores."""
    return one.serial + one.latency * log2(nodes) + one.halo * pow(NODES[0] / nodes, 2 / 3)


@cache
def truth(number: int, platform: Platform) -> tuple[type_f64, type_f64]:
    """Of application ``number``: seconds of a thousand rounds, and watts of the packages of all nodes, at each point of
    the grid."""
    one = drawn(number)
    machine = msgspec.structs.replace(load_machine(platform.machine), gpu=None)
    work = _loaded(one, machine)
    found = np.array([_measured(one, work, machine, *point, platform.cores[0]) for point in platform.grid()])
    return found[:, 0], found[:, 1]


def _measured(
    one: Application, work: Workload, machine: Machine, nodes: int, cores: int, cap_w: float, least_cores: int
) -> tuple[float, float]:
    compute_s = ROUND_S * NODES[0] * least_cores / (nodes * cores)
    parts_s = [share * compute_s for share, _ in one.phases] + [communication(one, nodes) * ROUND_S]
    each, first = cores // machine.sockets, machine.cores // machine.sockets
    units = tuple(package * first + core for package in range(machine.sockets) for core in range(each))
    weight = 1.0 - one.imbalance * stream(one.name, "weights").random(len(units))
    group = msgspec.structs.replace(
        work.groups[0],
        units=units,
        weight=weight / weight.max(),
        program=tuple((phase, 1, seconds) for phase, seconds in enumerate(parts_s)),
        repeat=1_000_000,
        spins=True,
    )
    writable = any(zone.kind == "package" and zone.constraints for zone in machine.zones)
    if not writable:
        power = msgspec.structs.replace(machine.power, package_limit_w=cap_w)
        machine = msgspec.structs.replace(machine, power=power)
    twin = Twin(machine, msgspec.structs.replace(work, groups=(group,)))
    for number, zone in enumerate(machine.zones):
        if zone.kind == "package" and writable:
            twin.set_zone_limit(number, 0, limit_uw=round(cap_w * 1e6), window_us=WINDOW_US)
    twin.advance(WARM_S)
    began = twin.report()
    work_s = twin.progress()[1]
    twin.advance(MEASURED_S)
    ended = twin.report()
    done = (twin.progress()[1] - work_s) / sum(parts_s)
    joules = sum(ended.energy_j[f"package-{p}"] - began.energy_j[f"package-{p}"] for p in range(machine.sockets))
    elapsed_s = ended.time_s - began.time_s
    return 1000 * elapsed_s / done, nodes * joules / elapsed_s


def _loaded(one: Application, machine: Machine) -> Workload:
    """Its phases as a workload; the last one is communication."""
    polling: dict[str, str | float] = {"beta": 0.15, "activity": 0.4, "ipc": 0.8, "traffic_gbs": 0.3}
    rows = [keys | {"unit": "cpu", "phase": f"p{n}", "seconds": 1} for n, (_, keys) in enumerate(one.phases)]
    rows.append(polling | {"unit": "cpu", "phase": "communication", "seconds": 1, "vectors": "scalar"})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "phases.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        return load_workload(f"trace:{path}", machine, bias=0.0)
