"""A small node made by hand, and samples of it: two frequency domains of two CPUs, one package, two GPUs."""

import numpy as np

from pmu.layout import EnergyZone, FrequencyDomain, Gpu, Layout
from pmu.readings import CpuSample, GpuSample, Quality, Sample

STEPS_KHZ = tuple(range(1_200_000, 3_000_000, 200_000))
CLOCKS_MHZ = tuple(range(1005, 1411, 15))


def gpu(index: int) -> Gpu:
    return Gpu(index, f"GPU-{index}", "A100", CLOCKS_MHZ, 1593, 400.0, 100.0, 400.0, False)


def layout(n_gpus: int = 2, steps_khz: tuple[int, ...] = STEPS_KHZ) -> Layout:
    domain = {"min_khz": 1_200_000, "max_khz": 2_800_000, "base_khz": 2_600_000, "steps_khz": steps_khz}
    return Layout(
        cpus=(0, 1, 2, 3),
        core_of=(0, 1, 2, 3),
        package_of=(0, 0, 0, 0),
        events=("cycles", "reference-cycles", "instructions"),
        reference_khz=2_600_000,
        domains=(FrequencyDomain(policy=0, cpus=(0, 1), **domain), FrequencyDomain(policy=2, cpus=(2, 3), **domain)),
        zones=(
            EnergyZone("package-0", "intel-rapl:0", "package", 0, 1 << 32),
            EnergyZone("package-0/core", "intel-rapl:0:0", "core", 0, 1 << 32),
        ),
        gpus=tuple(gpu(index) for index in range(n_gpus)),
    )


def sample(
    node: Layout,
    elapsed_s: float = 0.1,
    busy: float = 1.0,
    energy_j: float = 10.0,
    gpu_energy_j: float = 30.0,
    temperature_c: float = 60.0,
    cpu_quality: list[int] | None = None,
    gpu_quality: list[int] | None = None,
) -> Sample:
    n, g, z = len(node.cpus), len(node.gpus), len(node.zones)
    cpus, gpus = np.ones(n), np.ones(g)
    measured = int(Quality.MEASURED)
    return Sample(
        time_ns=round(elapsed_s * 1e9),
        elapsed_s=elapsed_s,
        cpu=CpuSample(
            instructions=cpus,
            cycles=cpus,
            reference_cycles=cpus,
            ipc=cpus,
            busy=cpus * busy,
            stall=cpus,
            llc_misses=cpus,
            frequency_khz=cpus * 2.8e6,
            quality=np.array(cpu_quality or [measured] * n, np.uint8),
        ),
        gpu=GpuSample(
            sm_clock_mhz=gpus * 1410,
            memory_clock_mhz=gpus,
            power_w=gpus * 300,
            energy_j=gpus * gpu_energy_j,
            temperature_c=gpus * temperature_c,
            gpu_utilization=gpus,
            memory_utilization=gpus,
            sm_occupancy=gpus,
            sm_active=gpus,
            dram_active=gpus,
            throttle_reasons=np.zeros(g, np.int64),
            occupancy_quality=np.zeros(g, np.uint8),
            quality=np.array(gpu_quality or [measured] * g, np.uint8),
        ),
        energy_j=np.full(z, energy_j),
        energy_quality=np.zeros(z, np.uint8),
    )
