"""Machines and workloads as structs of the C model.

One struct for the node, one for each group of units; identities of the GPUs go straight into the shared region.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from twin._model import ffi, lib
from twin.machine import Gpu, HeatConstants, Machine, Zone
from twin.physics import curves
from twin.physics.variation import Parts
from twin.programs.workload import Group

_ARCHITECTURE = {"volta": 5, "ampere": 7, "hopper": 9}  # NVML_DEVICE_ARCH_*
_KIND = {
    "package": lib.TWIN_ZONE_PACKAGE,
    "core": lib.TWIN_ZONE_CORE,
    "uncore": lib.TWIN_ZONE_UNCORE,
    "dram": lib.TWIN_ZONE_DRAM,
    "psys": lib.TWIN_ZONE_PSYS,
}
_SAME_NAME = (
    *(
        "idle_leak_share",
        "uncore_idle_w",
        "uncore_sleep_w",
        "uncore_busy_w",
        "uncore_w_per_gbs",
        "dram_idle_w",
        "dram_w_per_gbs",
    ),
    *("package_limit_w", "rest_w", "spin_activity", "spin_ipc", "tick_share"),
)
"""Constants with the same name in the machine file and the C struct."""


def _array(kind: str, values: Any, keep: list[Any]) -> Any:
    array = ffi.new(f"{kind}[]", [x.item() if hasattr(x, "item") else x for x in values])
    keep.append(array)
    return array


def node_struct(machine: Machine, seed: int, start_ns: int, parts: Parts, keep: list[Any]) -> Any:
    """The machine, of these parts, as twin_node_t; ``keep`` owns the memory that its pointers refer to."""
    power, clock = machine.power, np.asarray(machine.clock_hz)
    volt = curves.volts(power.volts, machine.clock_hz)
    zones = ffi.new("twin_zone_t[]", max(len(machine.zones), 1))
    for number, zone in enumerate(machine.zones):
        _fill_zone(zones[number], zone, seed, number)
    cards = ffi.new("twin_gpu_card_t[]", max(machine.gpus, 1))
    for number in range(machine.gpus):
        assert machine.gpu is not None
        _fill_card(cards[number], machine.gpu, keep)
        cards[number].power_scale, cards[number].power_jitter = parts.gpu_w[number], parts.power_jitter
    keep += [zones, cards]
    node = ffi.new("twin_node_t *")
    node.n_cpus, node.n_cores, node.n_packages = machine.cpus, machine.cores, machine.sockets
    node.n_domains, node.n_policies, node.n_levels = len(machine.domains), len(machine.policies), len(clock)
    node.n_zones, node.n_gpus = len(machine.zones), machine.gpus
    node.core_of = _array("int32_t", machine.core_of, keep)
    node.domain_of = _array("int32_t", machine.domain_of, keep)
    node.policy_of = _array("int32_t", machine.policy_of, keep)
    node.package_of = _array("int32_t", machine.package_of[: machine.cores], keep)
    node.clock_hz = _array("double", clock, keep)
    node.label_khz = _array("double", machine.steps_khz, keep)
    node.volt = _array("double", volt, keep)
    node.tsc_hz, node.smt_throughput = machine.tsc_khz * 1e3, machine.smt_throughput
    node.latency_s, node.governor_s = machine.latency_us * 1e-6, 0.010  # ours: dynamic governors act each 10 ms
    node.update_s = machine.update_us * 1e-6
    node.switch_up_s, node.switch_down_s = (us * 1e-6 for us in machine.switch_us)
    node.dynamic_w = power.dynamic_w / (volt[-1] ** 2 * clock[-1])
    node.leak_k0_w, node.leak_k1_w_per_v = power.leak_w, power.leak_w_per_v
    node.leak_per_v, node.leak_per_k, node.leak_offset = power.leak_per_v, power.leak_per_k, power.leak_offset
    for name in _SAME_NAME:
        setattr(node, name, getattr(power, name))
    node.package_scale = _array("double", parts.package_w, keep)
    node.iteration_jitter = parts.iteration_jitter
    _fill_heat(node.thermal, machine.heat)
    node.core_k_per_w, node.core_tau_s = machine.heat.core_k_per_w, machine.heat.core_tau_s
    node.throttle_c = machine.heat.throttle_c
    node.memory_k_per_w, node.memory_tau_s = machine.heat.memory_k_per_w, machine.heat.memory_tau_s
    _fill_options(node, machine, keep)
    node.zones, node.cards = zones, cards
    node.seed, node.origin_ns = seed, start_ns
    return node


def _fill_options(node: Any, machine: Machine, keep: list[Any]) -> None:
    """The laws that a machine file may ask for; without its table each is off."""
    if bandwidth := machine.memory.bandwidth:
        node.core_gbs, node.package_gbs = bandwidth.core_gbs, bandwidth.package_gbs
        node.link_cores, node.link_gbs = bandwidth.link_cores, bandwidth.link_gbs
        node.link_loss = bandwidth.link_loss
    node.n_idle = len(machine.idle)
    node.idle_latency_s = _array("double", [state.latency_us * 1e-6 for state in machine.idle], keep)
    node.idle_residency_s = _array("double", [state.residency_us * 1e-6 for state in machine.idle], keep)
    node.idle_core_w = _array("double", [state.core_w for state in machine.idle], keep)
    if uncore := machine.uncore:
        node.uncore_min_khz, node.uncore_khz = uncore.min_khz, uncore.max_khz
        node.uncore_cap_low_w, node.uncore_cap_high_w = uncore.cap_low_w, uncore.cap_high_w
        node.uncore_wait, node.uncore_clock_w = uncore.wait_share, uncore.clock_w
    if turbo := machine.turbo:
        node.n_bins, node.bin_cores = len(turbo.cores), _array("int32_t", turbo.cores, keep)
        levels = [[sum(hz <= mhz * 1e6 for hz in machine.clock_hz) - 1 for mhz in row] for row in turbo.rows]
        node.bin_level = _array("int32_t", [level for row in levels for level in row], keep)


def _fill_card(card: Any, gpu: Gpu, keep: list[Any]) -> None:
    clocks = gpu.clocks_khz
    card.n_levels = len(clocks)
    card.idle_level = max(i for i, khz in enumerate(clocks) if khz <= gpu.idle_khz)
    card.clock_khz = _array("double", clocks, keep)
    ready = curves.gpu_ready_w(gpu)
    card.idle_w = _array("double", gpu.power.idle_w + 0.7 * (ready - gpu.power.idle_w), keep)  # ours
    card.leak_per_k, card.memory_over_die_c = gpu.power.leak_per_k, gpu.memory_over_die_c
    _fill_heat(card.thermal, gpu.heat)
    sensors = gpu.sensors
    card.lock_latency_s, card.lock_spread = sensors.lock_latency_ms * 1e-3, sensors.lock_spread
    card.idle_after_s, card.wake_s = gpu.idle_after_ms * 1e-3, gpu.wake_ms * 1e-3
    card.limit_share, card.limit_settle_s = gpu.limit_share, gpu.limit_settle_ms * 1e-3
    card.limit_ripple = gpu.limit_ripple
    card.power_update_s, card.power_window_s = sensors.power_update_ms * 1e-3, sensors.power_window_ms * 1e-3
    card.energy_update_s = sensors.energy_update_ms * 1e-3
    card.utilization_window_s = sensors.utilization_window_ms * 1e-3
    card.power_gain, card.power_offset_w = sensors.power_gain, sensors.power_offset_w
    card.instant_window_s = sensors.instant_window_ms * 1e-3


def group_struct(group: Group, work_scale: float, keep: list[Any], instance: tuple[int, int]) -> dict[str, Any]:
    """A group as twin_group_t, its work multiplied by ``work_scale``; ``keep`` owns the memory that its pointers refer
    to. ``instance``: its GPU instance and compute instance, -1 for none."""
    phases = []
    for phase in group.phases:
        tables = np.ascontiguousarray(phase.tables, np.float64)
        keep.append(tables)
        phases.append(
            {
                "tables": ffi.from_buffer("double[]", tables),
                "activity": phase.activity,
                "memory_s": phase.memory_s,
                "license": phase.license,
                "gap_share": phase.gap_share,
                "gap_active": phase.gap_active,
                "sm_active": phase.sm_active,
                "occupancy": phase.occupancy,
                "fp_active": phase.fp_active,
                "free_level": phase.free_level,
                "free_loss": phase.free_loss,
            }
        )
    parts = [{"phase": p, "iterations": n, "work_s": work * work_scale} for p, n, work in group.program]
    return {
        "on_gpu": group.on_gpu,
        "n_units": len(group.units),
        "n_phases": len(phases),
        "n_parts": len(parts),
        "repeat": group.repeat,
        "spins": group.spins,
        "units": _array("int32_t", group.units, keep),
        "weight": _array("double", group.weight, keep),
        "nominal_share": group.nominal_share,
        "memory_mib": group.memory_mib,
        "instance": instance[0],
        "compute": instance[1],
        "mps_share": group.mps_share,
        "phases": _array("twin_phase_t", phases, keep),
        "parts": _array("twin_part_t", parts, keep),
    }


def _fill_heat(network: Any, heat: HeatConstants) -> None:
    for name in ("ambient_c", "die_k_per_w", "die_j_per_k", "sink_k_per_w", "sink_j_per_k"):
        setattr(network, name, getattr(heat, name))


def _fill_zone(out: Any, zone: Zone, seed: int, number: int) -> None:
    out.kind, out.package = _KIND[zone.kind], zone.package
    out.range_uj, out.unit_uj = zone.range_uj, zone.unit_uj
    # A counter has run since boot: it starts anywhere below half of its range.
    out.start_uj = float(curves.stream(seed, "zone", number).uniform(0.0, 0.5)) * zone.range_uj
    out.enabled = 1
    for place, constraint in enumerate(zone.constraints):
        out.limit_w[place], out.window_s[place] = constraint.limit_w, constraint.window_us * 1e-6


def write_identity(memory: Any, machine: Machine) -> None:
    """Set the identity fields of twin_gpus_t. UUIDs are derived from machine and index."""
    memory.magic, memory.version, memory.size = lib.TWIN_GPU_MAGIC, lib.TWIN_GPU_VERSION, ffi.sizeof("twin_gpus_t")
    memory.n_gpus = machine.gpus
    if machine.gpu is None:
        return
    gpu = machine.gpu
    memory.driver, memory.driver_cuda = gpu.driver.encode(), gpu.driver_cuda
    clocks = gpu.clocks_mhz[::-1]
    for index in range(gpu.count):
        card = memory.gpu[index]
        random = curves.stream("uuid", machine.name, index)
        digits = "".join(f"{int(x):x}" for x in random.integers(0, 16, 32))
        card.name = gpu.name.encode()
        card.uuid = f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}".encode()
        card.serial = f"{int(random.integers(10**12, 10**13))}".encode()
        card.pci_bus_id = f"00000000:{0x07 + 0x10 * index:02X}:00.0".encode()
        card.vbios = gpu.vbios.encode()
        card.architecture = _ARCHITECTURE[gpu.architecture]
        card.cuda_major, card.cuda_minor = gpu.compute_capability
        card.cores, card.n_clocks = gpu.cores, len(clocks)
        card.clocks_mhz[0 : len(clocks)] = list(clocks)
        card.memory_clock_mhz, card.memory_mib = gpu.memory_mhz, gpu.memory_mib
        card.memory_bus_bits = gpu.memory_bus_bits
        card.power_limit_default_mw = round(gpu.power_limit_w * 1e3)
        card.power_limit_min_mw = round(gpu.power_limit_min_w * 1e3)
        card.power_limit_max_mw = round(gpu.power_limit_max_w * 1e3)
        card.power_limit_mw = card.power_limit_default_mw
        card.has_gpm = gpu.has_gpm
        card.slowdown_c, card.shutdown_c = gpu.slowdown_c, gpu.shutdown_c
        card.node_numa = index * machine.sockets // gpu.count
        for cpu, package in enumerate(machine.package_of):
            if package == card.node_numa:
                card.near_cpus[cpu // 64] |= 1 << cpu % 64
        card.pcie_gen, card.pcie_width = gpu.pcie_gen, gpu.pcie_width
