"""Small nodes and samples for the CPU policies: what a core with a known beta would show at a given clock."""

from __future__ import annotations

import numpy as np

from pmu.layout import EnergyZone, FrequencyDomain, Layout
from pmu.readings import CpuSample, GpuSample, Sample, type_f64

MAX_KHZ = 3_200_000
MIN_KHZ = 1_200_000


def layout(cpus: int = 4, cpus_per_domain: int = 1, packages: int = 1) -> Layout:
    per_package = cpus // packages
    domains = tuple(
        FrequencyDomain(
            policy=first,
            cpus=tuple(range(first, first + cpus_per_domain)),
            min_khz=MIN_KHZ,
            max_khz=MAX_KHZ,
            base_khz=MAX_KHZ,
            steps_khz=tuple(range(MIN_KHZ, MAX_KHZ + 1, 100_000)),
        )
        for first in range(0, cpus, cpus_per_domain)
    )
    return Layout(
        cpus=tuple(range(cpus)),
        core_of=tuple(range(cpus)),
        package_of=tuple(cpu // per_package for cpu in range(cpus)),
        events=("cycles", "reference-cycles", "instructions", "stalls"),
        reference_khz=MAX_KHZ,
        domains=domains,
        zones=tuple(EnergyZone(f"package-{p}", f"intel-rapl:{p}", "package", p, 2**38) for p in range(packages)),
        gpus=(),
    )


def sample(
    node: Layout,
    khz: type_f64,
    beta: float | type_f64,
    *,
    ipc_at_top: float = 2.0,
    busy: float | type_f64 = 1.0,
    has_stalls: bool = True,
    elapsed_s: float = 0.1,
) -> Sample:
    """What each CPU shows at ``khz`` when a share ``beta`` of its time at the top clock scales with the clock."""
    count = len(node.cpus)
    khz, beta_of, busy_of = (np.broadcast_to(np.asarray(x, float), (count,)).copy() for x in (khz, beta, busy))
    relative = khz / MAX_KHZ
    speed = 1.0 / (beta_of / relative + 1.0 - beta_of)
    stall = (1.0 - beta_of) * speed if has_stalls else np.full(count, np.nan)
    reference = busy_of * elapsed_s * node.reference_khz * 1e3
    ipc = np.where(busy_of > 0, ipc_at_top * speed, np.nan)
    instructions = np.nan_to_num(ipc) * reference
    watts = sum(10.0 + 30.0 * float(r) ** 2.2 for r in relative) / max(len(node.zones), 1)
    cpu = CpuSample(
        instructions, busy_of * elapsed_s * khz * 1e3, reference, ipc, busy_of, stall, np.full(count, np.nan), khz,
        np.zeros(count, np.uint8),
    )  # fmt: skip
    none = np.zeros(0)
    gpu = GpuSample(*([none] * 10), np.zeros(0, np.int64), np.zeros(0, np.uint8), np.zeros(0, np.uint8))  # type: ignore[call-arg]
    zones = len(node.zones)
    return Sample(0, elapsed_s, cpu, gpu, np.full(zones, watts * elapsed_s), np.zeros(zones, np.uint8))
