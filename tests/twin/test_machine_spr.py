"""The node with two Sapphire Rapids and eight H100: its laws together."""

import numpy as np
import pytest

from twin.files.sysfs_tree import SysfsTree
from twin.machine import Machine, load_machine
from twin.msr.registers import Registers
from twin.physics.model import Twin
from twin.programs.workload import load_workload


@pytest.fixture(scope="module")
def spr() -> Machine:
    return load_machine("spr-h100")


def _package_w(twin: Twin, seconds: float) -> float:
    before = twin.report().energy_j["package-0"]
    twin.advance(seconds)
    return (twin.report().energy_j["package-0"] - before) / seconds


def test_its_turbo_registers_are_those_that_turbostat_printed(spr: Machine) -> None:
    """github.com/intel/svr-info, issue 26: a node with two 8480+ and H100."""
    registers = Registers(SysfsTree(Twin(spr)))
    assert registers.read(0, 0x1AD) == 0x1E1E1F1F20222426
    assert registers.read(0, 0x1AE) == 0x383632302C28221C
    assert registers.read(0, 0xCE) >> 8 & 0xFF == 20


def test_hpl_runs_at_the_package_limit_below_its_turbo_clock(spr: Machine) -> None:
    twin = Twin(spr, load_workload("hpl", spr))
    twin.advance(0.02)
    assert twin.cpu_khz(0) == 2_600_000
    twin.advance(40.0)
    assert _package_w(twin, 5.0) == pytest.approx(350.0, rel=0.01)
    assert 1_800_000 < np.mean([twin.cpu_khz(cpu) for cpu in range(56)]) < 2_600_000


def test_triad_takes_the_bandwidth_of_a_package_and_no_more(spr: Machine) -> None:
    twin = Twin(spr, load_workload("triad", spr, bias=0.0))
    before = [twin.traffic_bytes(package) for package in (0, 1)]
    twin.advance(2.0)
    for package in (0, 1):
        gbs = (twin.traffic_bytes(package) - before[package]) / 2e9
        assert 0.97 * 266 < gbs <= 266 * 1.0001


def test_it_sleeps_when_idle_and_its_uncore_slows(spr: Machine) -> None:
    twin = Twin(spr)
    twin.advance(1.0)
    assert twin.uncore_khz(0) == 800_000
    assert {twin.idle_state(core) for core in range(spr.cores)} == {3}
    registers, before = Registers(SysfsTree(twin)), twin.zone_energy_uj(0)
    in_c6 = registers.read(5, 0x3FD)
    twin.advance(1.0)
    assert registers.read(5, 0x3FD) - in_c6 == pytest.approx(2e9, rel=1e-3)  # ticks of the time-stamp counter
    assert (twin.zone_energy_uj(0) - before) / 1e6 == pytest.approx(
        55 - 30 * (1 - (0.8 / 2.5) ** 2) + 56 * 0.05, abs=1.0
    )


def test_the_register_of_c6_counts_no_shallower_state(spr: Machine) -> None:
    twin = Twin(spr)
    registers = Registers(SysfsTree(twin))
    twin.set_idle_states(5, [True, True, True, False])
    twin.advance(0.5)
    assert registers.read(5, 0x3FD) == 0
    assert registers.read(6, 0x3FD) == pytest.approx(1e9, rel=0.01)


def test_gpus_work_next_to_it(spr: Machine) -> None:
    twin = Twin(spr, load_workload("mixed-gpu:1", spr, duration_s=5.0))
    while not twin.finished:
        twin.advance(0.5)
    assert twin.report().time_s == pytest.approx(5.0, rel=0.2)
    assert twin.report().energy_j["gpu-7"] > 5.0 * 100
