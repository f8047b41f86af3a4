"""A real arm64 Linux 6.12 in QEMU: its frequency governor drives levels through FastChannels, and the plant shows them.

Run by ``make hil-linux``; elsewhere skipped, since the kernel has to be built first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from firmware_bridge.scmi.messages.codec import decode
from firmware_bridge.scmi.messages.header import Sender
from firmware_bridge.scmi.protocols.performance import LevelGet, LevelSet
from firmware_bridge.scmi.protocols.power_capping import CapGet, CapSet
from hil_tests.linux.guest import POWERCAP, Guest
from hil_tests.linux.rig import ArmLinuxRig

CPUFREQ = "/sys/devices/system/cpu/cpufreq"
PACKAGE = f"{POWERCAP}/arm-scmi:0"
DEBUG = "/sys/kernel/debug"
LOWEST_KHZ, HIGHEST_KHZ = 400_000, 3_660_000
FAST_KHZ = 2_400_000
PATIENCE_S = 120.0
"""For a governor of an emulated CPU on a loaded machine."""


@pytest.fixture(scope="module")
def linux(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArmLinuxRig]:
    missing = ArmLinuxRig.missing()
    if missing:
        pytest.skip(missing)
    one = ArmLinuxRig(tmp_path_factory.mktemp("linux"))
    try:
        one.start()
        yield one
    finally:
        one.stop()


@pytest.fixture
def guest(linux: ArmLinuxRig) -> Guest:
    return linux.guest


def domain_khz(linux: ArmLinuxRig, domain: int) -> int:
    return int(linux.freq_khz()[9 * domain : 9 * domain + 9].max())


def domain_w(linux: ArmLinuxRig, domain: int) -> float:
    return float(linux.plant.power_w[1 + domain])


def level_khz(linux: ArmLinuxRig, domain: int) -> int:
    """As another agent reads it."""
    return linux.client(2).request(LevelGet(domain)).level


def levels_sent_as_messages(linux: ArmLinuxRig) -> list[LevelSet]:
    bodies = [decode(message, sender).body for sender, message in list(linux.passed) if sender is Sender.AGENT]
    return [body for body in bodies if isinstance(body, LevelSet)]


def test_an_arm64_kernel_binds_its_scmi_drivers(guest: Guest) -> None:
    log = guest.log()
    assert "Using scmi_virtio_transport" in log
    assert "Failed to get FC" not in log, "FastChannels could not be mapped"
    assert "WARNING" not in log
    drivers = "/sys/bus/scmi_protocol/drivers"
    for user in ("cpufreq", "perf-domain", "powercap", "hwmon", "clocks", "system-power"):
        assert any(name.startswith("scmi_dev") for name in guest.names(f"{drivers}/scmi-{user}")), user


def test_each_cpu_has_a_policy_of_scmi_cpufreq_with_the_17_levels(guest: Guest) -> None:
    assert guest.names(CPUFREQ) == [f"policy{cpu}" for cpu in range(4)]
    for cpu in range(4):
        policy = f"{CPUFREQ}/policy{cpu}"
        assert guest.read(f"{policy}/scaling_driver") == "scmi"
        assert guest.read(f"{policy}/scaling_governor") == "schedutil"
        levels = [int(khz) for khz in guest.read(f"{policy}/scaling_available_frequencies").split()]
        assert (len(levels), min(levels), max(levels)) == (17, LOWEST_KHZ, HIGHEST_KHZ)


def test_schedutil_drives_levels_through_fast_channels_and_the_plant_follows(linux: ArmLinuxRig, guest: Guest) -> None:
    """Nothing is sent as a message: the governor writes a word of guest memory, and the firmware sees it."""
    # A CPU that sleeps all the time keeps the level that it had: the governor looks when something runs.
    guest.load(2, 600.0, 0)
    assert linux.wait_for(lambda: domain_khz(linux, 2) < 1_000_000, PATIENCE_S), "an idle CPU's domain is slow"
    linux.passed.clear()
    before, before_w = linux.fast_writes(), domain_w(linux, 2)
    guest.load(2, 20.0, 10)
    assert linux.wait_for(lambda: level_khz(linux, 2) == HIGHEST_KHZ, PATIENCE_S), "a busy CPU's domain is to be fast"
    assert linux.wait_for(lambda: domain_khz(linux, 2) > FAST_KHZ, 1.0), "and the chip is, as far as heat allows"
    assert linux.wait_for(lambda: domain_w(linux, 2) > before_w + 5.0, 1.0)
    assert linux.wait_for(lambda: domain_khz(linux, 2) < 1_000_000, PATIENCE_S), "and slow again"
    assert linux.fast_writes() >= before + 2
    assert levels_sent_as_messages(linux) == []


def test_a_cap_written_in_sysfs_goes_through_a_fast_channel_and_is_enforced(linux: ArmLinuxRig, guest: Guest) -> None:
    for cpu in range(4):
        guest.write(f"{CPUFREQ}/policy{cpu}/scaling_governor", "performance")
    assert linux.wait_for(lambda: all(level_khz(linux, d) == HIGHEST_KHZ for d in range(4)), PATIENCE_S)
    before = linux.fast_writes()
    guest.write(f"{PACKAGE}/constraint_0_power_limit_uw", 120_000_000)
    guest.write(f"{PACKAGE}/enabled", 1)
    assert linux.wait_for(lambda: linux.client(2).request(CapGet(0)).cap == 120_000, 20.0)
    assert linux.fast_writes() > before
    linux.pass_slots(100)
    assert 0.9 * 120.0 <= linux.powers_w(400).mean() <= 120.0
    assert int(guest.read(f"{PACKAGE}/power_uw")) == pytest.approx(120e6, rel=0.1)
    linux.client(2).request(CapSet(0, 0, 100_000))
    assert linux.wait_for(lambda: guest.read(f"{PACKAGE}/constraint_0_power_limit_uw") == "100000000", 20.0)
    linux.client(2).request(CapSet(0, 0, 0))
    guest.write(f"{PACKAGE}/enabled", 0)
    for cpu in range(4):
        guest.write(f"{CPUFREQ}/policy{cpu}/scaling_governor", "schedutil")


def test_devices_may_use_the_performance_domains(guest: Guest) -> None:
    summary = guest.read(f"{DEBUG}/pm_genpd/pm_genpd_summary")
    assert all(f"voltage domain {domain}" in summary for domain in range(4))


def test_a_thermal_zone_and_hwmon_show_the_plants_temperature(linux: ArmLinuxRig, guest: Guest) -> None:
    zone = "/sys/class/thermal/thermal_zone0"
    assert guest.read(f"{zone}/type") == "cluster-0"
    hottest_c = float(linux.plant.temperature_c[:9].max())
    assert int(guest.read(f"{zone}/temp")) * 1e-3 == pytest.approx(hottest_c, abs=5.0)
    devices = [f"/sys/class/hwmon/{name}" for name in guest.names("/sys/class/hwmon")]
    sensors = next(device for device in devices if guest.read(f"{device}/name") == "scmi_sensors")
    first_uj = int(guest.read(f"{sensors}/energy1_input"))
    time.sleep(0.2)
    assert int(guest.read(f"{sensors}/energy1_input")) > first_uj


def test_the_clock_framework_shows_the_clocks_in_force(linux: ArmLinuxRig, guest: Guest) -> None:
    def are_shown() -> bool:
        shown = [int(guest.read(f"{DEBUG}/clk/clock-{domain}/clk_rate")) for domain in range(4)]
        return shown == [domain_khz(linux, domain) * 1000 for domain in range(4)]

    assert linux.wait_for(are_shown, PATIENCE_S)


def test_linux_switches_off_when_the_management_controller_asks(linux: ArmLinuxRig, guest: Guest) -> None:
    """The last one: the guest ends."""
    linux.ask_for_an_orderly_end()
    assert guest.has_ended_within(PATIENCE_S)
    assert "Serving shutdown/reboot request" in guest.log()
