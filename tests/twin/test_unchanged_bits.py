"""Shipped machines run as they did before laws and keys were added that they do not have.

``BITS`` are of a run with changes of clock, limit and load, to the last bit. The last bits of `exp` and `pow` depend on
the mathematical library and the processor, so these are compared where both give the same bits as where the figures
were taken. ``GPU_FIGURES`` are of a run with GPUs, rounded to nine digits, so that they hold everywhere.

Whoever changes a shipped machine or the law of all of them on purpose writes new ones.
"""

import hashlib
import math

import msgspec
import numpy as np
import pytest

from twin.machine import EVENTS, load_machine
from twin.physics import families
from twin.physics.model import Twin
from twin.programs.workload import load_workload

LIBRARY = "cdc203db986da95e"
BITS = {
    "a100": "8a3094a0577f61db543b9bcf4af52948787f67f5dad6a05fc908965c3da5b829",
    "client": "696a548d21c6334979c6a3855f20445e36a7896c08494ad8205def641a414367",
    "controlpulp": "e32ae0e3699345026de521425c9dd509cc5906f11302bdbe447aaa5d4d1bf6ba",
    "curie": "1bde2937c56b1f5be2177a692365b91157ee6b6be1aaebdc7a16bba231613f83",
    "genoa-h100": "9c38fb960d990931892511c2907f7451f62a765c5fb91a65fbb75097f8258606",
    "skylake-6146": "1cf99feb3361933473a6c2e5314201a9f36e3e65b882f0b8b231c9d943bcf0d0",
    "taurus": "4785ffba7c9df8681b61b268eefd9ce23f48025809d01a5af829078eab26861f",
    "v100": "2e1c0d68d9d14a5034a859a522c552154fbf71eabe5e0841f6cdcdeeb1038801",
    "xh2415": "562ade0002bafd47b3c58d21a0ebf77da4d6e492867aa8d1b84e139f0dea880f",
}
"""The shipped machines without shared bandwidth, turbo bins, idle states with a latency and the like."""

GPU_FIGURES = {
    ("a100", "mixed-gpu:1"): "8f11f567cd409156",
    ("v100", "v100:BScholes"): "569a81739093b196",
    ("v100", "v100:3MM"): "bb6b8715f2b90fd4",
    ("xh2415", "qe-pw"): "f9ffe50badf2410a",
    ("genoa-h100", "easywave"): "2e56a4425dedc7fe",
}

FIGURES = (
    "energy_uj",
    "sm_clock_khz",
    "power_mw",
    "power_instant_mw",
    "enforced_limit_mw",
    "gpu_pct",
    "memory_pct",
    "gpm_dram_active_s",
    "gpm_graphics_s",
    "violation_power_us",
    "throttle_reasons",
)


def _library() -> str:
    grid = np.linspace(-3.0, 3.0, 4001)
    made = [math.exp(x) for x in grid], [math.pow(abs(x) + 0.5, 14.0) for x in grid]
    arrays = (np.exp(grid), np.power(np.abs(grid) + 0.5, 14.0), np.power(np.abs(grid) + 0.5, 1 / 14.0))
    return hashlib.sha256(np.array([*made, *arrays]).tobytes()).hexdigest()[:16]


def _run(name: str) -> str:
    """SHA-256 of what the instruments and the truth are in a run with changes of clock, limit and load."""
    machine = load_machine(name)
    seen = hashlib.sha256()
    twin = Twin(machine, seed=3)
    twin.set_load([0.5 if cpu % 3 == 0 else 0.0 for cpu in range(machine.cpus)])
    twin.advance(0.2)
    for workload in ("mixed-cpu:1", *(("mixed-gpu:2",) if machine.gpus else ())):
        twin.start_workload(load_workload(workload, machine, duration_s=4.0))
        twin.advance(0.51)
        twin.set_domain(0, max_khz=machine.steps_khz[len(machine.steps_khz) // 2])
        for zone, each in enumerate(machine.zones):
            if each.writable and each.constraints:
                twin.set_zone_limit(zone, 0, limit_uw=int(each.constraints[0].limit_w * 0.4e6))
        twin.advance(1.4)
        twin.set_domain(0, max_khz=machine.max_khz)
        twin.advance(0.3)
        seen.update(twin.counters(EVENTS).tobytes())
        busy, idle = twin.busy_idle_us()
        seen.update(busy.tobytes() + idle.tobytes())
        truth = twin.report()
        values = [*truth.energy_j.values(), truth.work_done, truth.slowdown]
        values += [twin.core_energy_j(core) for core in range(machine.cores)]
        values += [float(twin.traffic_bytes(package)) for package in range(machine.sockets)]
        values += [float(twin.zone_energy_uj(zone)) for zone in range(len(machine.zones))]
        values += [float(twin.domain_khz(domain)) for domain in range(len(machine.domains))]
        seen.update(np.array(values, np.float64).tobytes())
    return seen.hexdigest()


def _figures(machine: str, name: str) -> list[str]:
    """A run of 9 s with a lock at half of the ladder, in between under the lowest power limit."""
    node = load_machine(machine)
    assert node.gpu is not None
    node = msgspec.structs.replace(node, gpu=msgspec.structs.replace(node.gpu, limit_ripple=0.0))
    sample = families.DATA / "v100-sample.csv" if name.startswith("v100:") else None
    twin = Twin(node, load_workload(name, node, seed=3, duration_s=6.0, data=sample), seed=3)
    figures = []
    for step in range(60):
        twin.advance(0.15)
        for index in range(node.gpus):
            card = twin.gpus.gpu[index]
            if step == 10:
                middle_mhz = card.clocks_mhz[card.n_clocks // 2]
                twin.lock_gpu(index, middle_mhz, middle_mhz)
            if step in (20, 35):
                watts = node.gpu.power_limit_min_w if step == 20 else node.gpu.power_limit_w
                card.power_limit_mw = int(watts * 1e3)
                card.limit_seq += 1
            figures += [f"{getattr(card, figure):.9g}" for figure in FIGURES]
    report = twin.report()
    return [*figures, f"{report.time_s:.9g}", *(f"{joules:.9g}" for joules in report.energy_j.values())]


@pytest.mark.skipif(_library() != LIBRARY, reason="this machine's exp and pow have other last bits")
@pytest.mark.parametrize("name", BITS)
def test_a_machine_without_the_new_laws_gives_the_same_bits_as_before(name: str) -> None:
    assert _run(name) == BITS[name]


@pytest.mark.parametrize(("machine", "workload"), GPU_FIGURES)
def test_a_machine_without_new_keys_runs_as_before(machine: str, workload: str) -> None:
    digest = hashlib.sha256("\n".join(_figures(machine, workload)).encode()).hexdigest()[:16]
    assert digest == GPU_FIGURES[machine, workload]
