"""What an emulated node declares to its cluster, measured on the model, as a calibration would on a real node.

Every shipped workload that the machine can run is run at the highest clock; the one with the highest power also runs
warm, and at the lowest clock too. What an agent cannot measure (DRAM, fans, board) counts as constant, so ``rest_w`` is
its highest value. GPUs count by their boards' limits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from foundation.shell.errors import UsageError
from twin.errors import TwinError
from twin.machine import Machine, load_machine
from twin.physics.model import Report, Twin
from twin.programs.workload import WORKLOADS, Workload, load_workload

WARM_S: Final = 120.0
"""Ours: until then dies and heat sinks are warm, and leakage is at its highest."""

SAMPLE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class NodeWatts:
    """Whole watts, rounded up. ``safe_w``, with which a node may run long without its cluster, is half way."""

    tdp_w: float
    mop_w: float
    safe_w: float
    rest_w: float


def watts_of(machine: str) -> tuple[NodeWatts, float]:
    """The watts of a machine by its name or file, and the window over which its packages' limits are averaged, in
    seconds. ``UsageError`` for a machine that does not exist."""
    try:
        found = load_machine(machine)
    except TwinError as error:
        raise UsageError(str(error)) from None
    windows_us = [zone.constraints[0].window_us for zone in found.zones if zone.kind == "package" and zone.constraints]
    return node_watts(found), max(windows_us, default=1_000_000) / 1e6


def node_watts(machine: Machine) -> NodeWatts:
    """The watts of a node of this machine."""
    cold = [(*_power(machine, workload, machine.max_khz, SAMPLE_S), workload) for workload in _cpu_workloads(machine)]
    rest_w = math.ceil(max(rest for _, rest, _ in cold))
    _, _, hungriest = max(cold, key=lambda run: run[0])
    lowest, highest = (_power(machine, hungriest, khz, WARM_S)[0] for khz in (machine.min_khz, machine.max_khz))
    gpu = machine.gpu
    gpus_w = (gpu.count * gpu.power_limit_min_w, gpu.count * gpu.power_limit_max_w) if gpu else (0.0, 0.0)
    mop_w, tdp_w = math.ceil(rest_w + lowest + gpus_w[0]), math.ceil(rest_w + highest + gpus_w[1])
    return NodeWatts(tdp_w, mop_w, float((mop_w + tdp_w) // 2), rest_w)


def _cpu_workloads(machine: Machine) -> list[Workload]:
    names = sorted(path.stem for path in WORKLOADS.glob("*.toml"))
    found: list[Workload] = []
    for name in names:
        try:
            workload = load_workload(name, machine, duration_s=10 * WARM_S)
        except TwinError:  # it needs something that this machine does not have
            continue
        if not any(group.on_gpu for group in workload.groups):
            found.append(workload)
    return found


def _power(machine: Machine, workload: Workload, khz: int, warm_s: float) -> tuple[float, float]:
    """Watts of the packages, and of all that is neither package nor GPU, at this clock."""
    twin = Twin(machine, workload)
    for domain in range(len(machine.domains)):
        twin.set_domain(domain, max_khz=khz, governor="performance")
    twin.advance(warm_s)
    before = twin.report()
    twin.advance(SAMPLE_S)
    after = twin.report()

    def watts(of: str) -> float:
        return (_sum(after, of) - _sum(before, of)) / (after.time_s - before.time_s)

    return watts("package-"), watts("dram-") + watts("rest")


def _sum(report: Report, of: str) -> float:
    return sum(joules for name, joules in report.energy_j.items() if name.startswith(of))
