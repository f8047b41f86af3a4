"""Energy: parts sum up, meters integrate the truth, limits are kept."""

import numpy as np
import pytest

from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

# Glesser, thesis, Table 4.2: highest watts of a Curie node at each clock.
CURIE_W = {1200: 193, 1400: 213, 1600: 234, 1800: 248, 2000: 269, 2200: 289, 2400: 317, 2700: 358}
CURIE_IDLE_W = 117
# Batsim tools/energy_pform_generator_homo_nonet.py: mean watts and seconds of NAS EP class C on a Taurus node.
TAURUS = {2301: (190.738, 28.2), 2300: (171.02, 31.7), 1900: (151.3, 38.9), 1500: (135.368, 48.1), 1200: (125.88, 62.7)}
TAURUS_IDLE_W = 95


def _fix_clock(twin: Twin, khz: int) -> None:
    for domain in range(len(twin.machine.domains)):
        twin.set_domain(domain, governor="userspace", setspeed_khz=khz)


def _steady_w(twin: Twin) -> float:
    twin.advance(500.0)
    before = twin.report().energy_j["node"]
    twin.advance(10.0)
    return (twin.report().energy_j["node"] - before) / 10.0


@pytest.mark.parametrize(("mhz", "watts"), CURIE_W.items())
def test_curie_draws_its_published_watts(mhz: int, watts: float) -> None:
    machine = load_machine("curie")
    twin = Twin(machine, load_workload("hpl", machine, duration_s=2000.0))
    _fix_clock(twin, mhz * 1000)
    assert _steady_w(twin) == pytest.approx(watts, rel=0.01)


@pytest.mark.parametrize(("name", "watts"), [("curie", CURIE_IDLE_W), ("taurus", TAURUS_IDLE_W)])
def test_idle_nodes_draw_their_published_watts(name: str, watts: float) -> None:
    assert _steady_w(Twin(load_machine(name))) == pytest.approx(watts, rel=0.01)


@pytest.mark.parametrize(("mhz", "row"), TAURUS.items())
def test_taurus_runs_as_it_was_measured(mhz: int, row: tuple[float, float]) -> None:
    watts, seconds = row
    machine = load_machine("taurus")
    twin = Twin(machine, load_workload("taurus", machine))
    _fix_clock(twin, mhz * 1000)
    twin.advance(100.0)
    assert twin.report().time_s == pytest.approx(seconds, rel=0.001)
    long = Twin(machine, load_workload("taurus", machine, duration_s=2000.0))
    _fix_clock(long, mhz * 1000)
    assert _steady_w(long) == pytest.approx(watts, rel=0.01)


@pytest.mark.parametrize("name", ["curie", "genoa-h100"])
def test_the_parts_sum_to_the_node(name: str) -> None:
    machine = load_machine(name)
    twin = Twin(machine, load_workload("mixed-gpu:2" if machine.gpus else "nas", machine, duration_s=5.0))
    twin.advance(6.0)
    energy = twin.report().energy_j
    assert energy["node"] == pytest.approx(sum(joules for part, joules in energy.items() if part != "node"))
    assert {"package-0", "package-1", "dram-0", "dram-1", "rest"} <= energy.keys()


def test_phase_energies_sum_to_the_node() -> None:
    machine = load_machine("curie")
    twin = Twin(machine, load_workload("mixed-cpu:5", machine, duration_s=30.0))
    twin.advance(31.0)
    report = twin.report()
    assert report.finished
    assert sum(phase.node_j for phase in report.phases) == pytest.approx(report.energy_j["node"])
    assert sum(phase.seconds for phase in report.phases) == pytest.approx(report.time_s)


def test_zone_counters_integrate_the_truth() -> None:
    machine = load_machine("curie")
    twin = Twin(machine)
    zones = {zone.label: number for number, zone in enumerate(machine.zones)}
    before = {label: twin.zone_energy_uj(number) for label, number in zones.items()}
    twin.start_workload(load_workload("stream", machine, duration_s=10.0))
    twin.advance(4.0)
    truth = twin.report().energy_j
    for label, part in {"package-0": "package-0", "package-1/dram": "dram-1"}.items():
        counted = (twin.zone_energy_uj(zones[label]) - before[label]) * 1e-6
        assert counted == pytest.approx(truth[part], rel=1e-3)
    core = twin.zone_energy_uj(zones["package-0/core"]) - before["package-0/core"]
    assert 0 < core < twin.zone_energy_uj(zones["package-0"]) - before["package-0"]


def test_energy_moves_in_steps_of_a_millisecond_and_whole_units() -> None:
    machine = load_machine("curie")
    twin = Twin(machine, load_workload("hpl", machine))
    twin.advance(0.1)
    seen = []
    for _ in range(400):
        twin.advance(50e-6)
        seen.append(twin.zone_energy_uj(0))
    changes = np.flatnonzero(np.diff(seen))
    assert set(np.diff(changes)) == {20}
    units = np.array(seen) / machine.zones[0].unit_uj
    assert np.abs(units - np.round(units)).max() < 0.07  # shown as whole microjoules


def test_a_counter_wraps_at_its_range() -> None:
    machine = load_machine("curie")
    twin = Twin(machine, load_workload("hpl", machine))
    twin.set_zone_energy_uj(0, machine.zones[0].range_uj - 1_000_000)
    twin.advance(0.001)
    before = twin.zone_energy_uj(0)
    twin.advance(0.1)
    after = twin.zone_energy_uj(0)
    assert before > after
    assert after - before + machine.zones[0].range_uj == pytest.approx(12e6, rel=0.3)


def _cap(watts: float) -> tuple[float, int, float]:
    machine = load_machine("skylake-6146")
    twin = Twin(machine, load_workload("hpl", machine, duration_s=1000.0))
    _fix_clock(twin, machine.max_khz)
    for zone in (number for number, zone in enumerate(machine.zones) if zone.kind == "package"):
        twin.set_zone_limit(zone, 0, limit_uw=round(watts * 1e6))
    twin.advance(20.0)
    before = twin.report()
    twin.advance(10.0)
    after = twin.report()
    return (after.energy_j["package-0"] - before.energy_j["package-0"]) / 10.0, twin.cpu_khz(0), after.slowdown


def test_a_package_limit_throttles() -> None:
    free_w, free_khz, free_slowdown = _cap(165.0)
    capped_w, capped_khz, slowdown = _cap(100.0)
    assert free_khz == 3_200_000
    assert free_slowdown == pytest.approx(0.0, abs=1e-3)
    assert capped_w == pytest.approx(100.0, rel=0.01)
    assert capped_w < free_w
    assert capped_khz < free_khz
    assert slowdown > 0.1


def test_a_limit_allows_a_burst_until_its_window_has_filled() -> None:
    machine = load_machine("skylake-6146")
    twin = Twin(machine)
    twin.set_zone_limit(0, 0, limit_uw=90_000_000, window_us=4_000_000)
    twin.advance(30.0)
    twin.start_workload(load_workload("hpl", machine, duration_s=100.0))
    twin.set_domain(0, governor="performance")
    twin.advance(0.5)
    early = twin.report().energy_j["package-0"] / 0.5
    twin.advance(40.0)
    before = twin.report().energy_j["package-0"]
    twin.advance(5.0)
    late = (twin.report().energy_j["package-0"] - before) / 5.0
    assert early > 120.0
    assert late == pytest.approx(90.0, rel=0.02)


def test_the_lower_of_two_interfaces_binds() -> None:
    machine = load_machine("client")
    twin = Twin(machine, load_workload("hpl", machine, duration_s=1000.0))
    mmio = next(number for number, zone in enumerate(machine.zones) if zone.mmio)

    def settled_w() -> float:
        twin.advance(150.0)
        before = twin.report().energy_j["package-0"]
        twin.advance(5.0)
        return (twin.report().energy_j["package-0"] - before) / 5.0

    assert settled_w() == pytest.approx(15.0, rel=0.02)
    twin.set_zone_limit(0, 0, limit_uw=25_000_000)  # the other one, higher: no effect
    assert settled_w() == pytest.approx(15.0, rel=0.02)
    twin.set_zone_limit(mmio, 0, limit_uw=20_000_000)
    assert settled_w() == pytest.approx(20.0, rel=0.02)
    twin.set_zone_limit(mmio, 0, enabled=False)
    assert settled_w() == pytest.approx(25.0, rel=0.02)


def test_a_hot_die_leaks_more() -> None:
    machine = load_machine("curie")
    twin = Twin(machine, load_workload("hpl", machine, duration_s=1000.0))
    _fix_clock(twin, machine.max_khz)
    twin.advance(1.0)
    cold_w, cold_mc = twin.report().energy_j["package-0"], twin.temperature_mc(0)
    twin.advance(400.0)
    before = twin.report().energy_j["package-0"]
    twin.advance(1.0)
    assert twin.temperature_mc(0) > cold_mc + 20_000
    assert twin.report().energy_j["package-0"] - before > 1.02 * cold_w


def test_heat_throttles_where_cooling_is_weak() -> None:
    machine = load_machine("controlpulp")
    twin = Twin(machine, load_workload("hpl", machine, duration_s=1000.0))
    for domain in range(len(machine.domains)):
        twin.set_domain(domain, governor="performance")
    twin.advance(120.0)
    hottest = max(twin.temperature_mc(sensor) for sensor in range(machine.cores))
    assert 83_000 < hottest < 88_000
    assert twin.cpu_khz(0) < machine.max_khz


def test_memory_modules_heat_over_minutes_with_the_traffic_and_cool_at_lower_clocks() -> None:
    machine = load_machine("genoa-h100")
    module = next(row for row, sensor in enumerate(machine.sensors) if sensor.of == "memory")
    twin = Twin(machine, load_workload("stream", machine, duration_s=2000.0))
    assert twin.temperature_mc(module) == 1000 * machine.heat.ambient_c
    twin.advance(60.0)
    after_a_minute_c = twin.temperature_mc(module) / 1000
    twin.advance(360.0)
    before_j = twin.report().energy_j["dram-0"]
    twin.advance(10.0)
    dram_w = (twin.report().energy_j["dram-0"] - before_j) / 10.0
    steady_c = machine.heat.ambient_c + machine.heat.memory_k_per_w * dram_w
    assert twin.temperature_mc(module) / 1000 == pytest.approx(steady_c, abs=0.5)
    share = (after_a_minute_c - machine.heat.ambient_c) / (steady_c - machine.heat.ambient_c)
    assert share == pytest.approx(1 - np.exp(-1), abs=0.05)
    for domain in range(len(machine.domains)):
        twin.set_domain(domain, max_khz=machine.min_khz)
    twin.advance(360.0)
    assert twin.temperature_mc(module) / 1000 < steady_c - 15.0
