"""powercap as the kernel has it: zones, counters, limits as registers store them, and refusals."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twin.files.sysfs_powercap import register_power_uw, register_window_us
from twin.files.sysfs_tree import SysfsTree
from twin.machine import load_machine, machine_names
from twin.physics.model import Twin
from twin.programs.workload import load_workload

PACKAGE = "/sys/class/powercap/intel-rapl:0"


@pytest.fixture
def tree() -> SysfsTree:
    return SysfsTree(Twin(load_machine("curie")))


def read(tree: SysfsTree, path: str) -> str:
    return tree.read(path).decode().strip()


def errno_of(tree: SysfsTree, path: str, data: bytes) -> int | None:
    with pytest.raises(OSError) as refusal:
        tree.write(path, data)
    return refusal.value.errno


def test_class_entries_are_links_with_a_subsystem_and_a_parent(tree: SysfsTree) -> None:
    assert tree.kind(PACKAGE) == "link"
    assert tree.readlink(PACKAGE) == "../../devices/virtual/powercap/intel-rapl/intel-rapl:0"
    assert tree.realpath(f"{PACKAGE}/subsystem") == "/sys/class/powercap"
    assert tree.readlink(f"{PACKAGE}/device") == "../../intel-rapl"
    assert tree.realpath("/sys/class/powercap/intel-rapl:0:1/device") == tree.realpath(PACKAGE)
    zones = ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl:1")
    names = [read(tree, f"/sys/class/powercap/{zone}/name") for zone in zones]
    assert names == ["package-0", "core", "package-1"]


def test_the_energy_counter_is_for_root_and_cannot_be_reset(tree: SysfsTree) -> None:
    assert tree.mode(f"{PACKAGE}/energy_uj") == 0o400
    assert errno_of(tree, f"{PACKAGE}/energy_uj", b"0") == errno.EACCES


def test_the_energy_counter_grows_by_what_the_package_draws() -> None:
    machine = load_machine("curie")
    twin = Twin(machine, load_workload("hpl", machine))
    tree = SysfsTree(twin)
    before = int(read(tree, f"{PACKAGE}/energy_uj"))
    twin.advance(1.0)
    drawn_w = (int(read(tree, f"{PACKAGE}/energy_uj")) - before) / 1e6
    assert 40 < drawn_w < 140  # a package of 130 W under HPL


def test_the_energy_counter_wraps_at_the_range_it_states(tree: SysfsTree) -> None:
    range_uj = int(read(tree, f"{PACKAGE}/max_energy_range_uj"))
    tree.twin.set_zone_energy_uj(0, range_uj - 1_000_000)
    before = int(read(tree, f"{PACKAGE}/energy_uj"))
    tree.twin.advance(1.0)
    after = int(read(tree, f"{PACKAGE}/energy_uj"))
    assert after < before
    assert 0 < after - before + range_uj < 200_000_000


def test_a_limit_is_kept_in_eighths_of_a_watt(tree: SysfsTree) -> None:
    assert tree.write(f"{PACKAGE}/constraint_0_power_limit_uw", b"100200000\n") == 10
    assert read(tree, f"{PACKAGE}/constraint_0_power_limit_uw") == "100125000"


def test_powercap_utils_may_write_a_nul_and_rubbish_behind_the_number(tree: SysfsTree) -> None:
    data = b"90000000\0" + bytes(range(16))
    assert tree.write(f"{PACKAGE}/constraint_0_power_limit_uw", data) == len(data)
    assert read(tree, f"{PACKAGE}/constraint_0_power_limit_uw") == "90000000"


def test_a_window_is_kept_as_the_register_s_fraction_of_a_power_of_two(tree: SysfsTree) -> None:
    tree.write(f"{PACKAGE}/constraint_0_time_window_us", b"1000000")
    assert read(tree, f"{PACKAGE}/constraint_0_time_window_us") == "999424"  # the kernel's well-known "one second"


@given(st.integers(0, 10**13))
def test_a_registers_value_is_unchanged_when_written_again(value: int) -> None:
    window = register_window_us(value)
    assert register_window_us(window) == window
    power = register_power_uw(value)
    assert register_power_uw(power) == power < 1 << 32


@given(st.integers(1000, 40_000_000))
def test_a_window_loses_less_than_a_fifth_to_the_register(window_us: int) -> None:
    assert 0.8 * window_us - 976 <= register_window_us(window_us) <= window_us


@pytest.mark.parametrize("data", [b"much", b"-5", b"0x10", b"1e6", b"90000000 uW", str(2**64).encode()])
def test_what_is_no_number_of_microwatts_is_einval(tree: SysfsTree, data: bytes) -> None:
    assert errno_of(tree, f"{PACKAGE}/constraint_0_power_limit_uw", data) == errno.EINVAL
    assert read(tree, f"{PACKAGE}/constraint_0_power_limit_uw") == "130000000"


def test_a_lowered_limit_throttles_the_package() -> None:
    machine = load_machine("curie")
    twin = Twin(machine, load_workload("hpl", machine))
    tree = SysfsTree(twin)
    tree.write(f"{PACKAGE}/constraint_0_time_window_us", b"10000")
    tree.write(f"{PACKAGE}/constraint_0_power_limit_uw", b"60000000")
    twin.advance(2.0)
    before = twin.zone_energy_uj(0)
    twin.advance(1.0)
    assert (twin.zone_energy_uj(0) - before) / 1e6 < 62
    tree.write(f"{PACKAGE}/enabled", b"0")
    twin.advance(2.0)
    before = twin.zone_energy_uj(0)
    twin.advance(1.0)
    assert (twin.zone_energy_uj(0) - before) / 1e6 > 70


def test_a_control_type_cannot_be_switched(tree: SysfsTree) -> None:
    assert read(tree, "/sys/class/powercap/intel-rapl/enabled") == "1"
    assert errno_of(tree, "/sys/class/powercap/intel-rapl/enabled", b"0") == errno.ENOSYS
    assert errno_of(tree, f"{PACKAGE}/enabled", b"perhaps") == errno.EINVAL


def test_amd_shows_energy_and_nothing_to_write() -> None:
    tree = SysfsTree(Twin(load_machine("xh2415")))
    names = tree.listdir(PACKAGE)
    assert "energy_uj" in names and not [name for name in names if name.startswith("constraint")]
    assert read(tree, f"{PACKAGE}/enabled") == "0"
    assert errno_of(tree, f"{PACKAGE}/enabled", b"1") == errno.ENOSYS


def test_a_client_shows_its_limits_twice_and_the_lower_one_counts() -> None:
    machine = load_machine("client")
    twin = Twin(machine)
    tree = SysfsTree(twin)
    mmio = "/sys/class/powercap/intel-rapl-mmio:0"
    assert read(tree, f"{mmio}/name") == read(tree, f"{PACKAGE}/name") == "package-0"
    assert tree.readlink(mmio) == "../../devices/virtual/powercap/intel-rapl-mmio/intel-rapl-mmio:0"
    assert int(read(tree, f"{mmio}/constraint_0_power_limit_uw")) < int(
        read(tree, f"{PACKAGE}/constraint_0_power_limit_uw")
    )
    tree.write(f"{mmio}/constraint_0_power_limit_uw", b"20000000")
    assert read(tree, f"{mmio}/constraint_0_power_limit_uw") == "20000000"
    assert read(tree, f"{PACKAGE}/constraint_0_power_limit_uw") == "28000000"


def test_a_peak_limit_has_no_window() -> None:
    tree = SysfsTree(Twin(load_machine("client")))
    assert read(tree, f"{PACKAGE}/constraint_2_name") == "peak_power"
    with pytest.raises(OSError) as refusal:
        tree.read(f"{PACKAGE}/constraint_2_time_window_us")
    assert refusal.value.errno == errno.ENODATA
    assert errno_of(tree, f"{PACKAGE}/constraint_2_time_window_us", b"976") == errno.ENODATA


@pytest.mark.parametrize("name", machine_names())
def test_limits_at_start_are_what_their_registers_can_store(name: str) -> None:
    windows = {(1 << y) * (4 + f) * 976 // 4 for y in range(32) for f in range(4)}
    for limit in [limit for zone in SysfsTree(Twin(load_machine(name))).zones.values() for limit in zone]:
        assert register_power_uw(limit.power_uw) == limit.power_uw
        assert limit.window_us in windows


def test_a_window_set_by_the_firmware_may_not_survive_being_written_back() -> None:
    # the kernel divides by whole units before it looks for the fraction, so 2.5 units become 2
    assert register_window_us(2440) == 1952
