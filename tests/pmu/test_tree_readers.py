"""Topology, frequency domains, sensors and busy time, from files."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path

import numpy as np
import pytest

from pmu import topology
from pmu.instruments import busy, cpufreq, hwmon
from pmu.instruments.busy import BusyTime
from pmu.instruments.instrument import ForPeople
from pmu.readings import RAW_MISSING, Quality, type_i64
from pmu.system import OsFiles
from tests.pmu.trees import CPU, HWMON, SetClock, grow, ports_of, type_tree

MS = 1_000_000  # nanoseconds


# ---- topology ------------------------------------------------------------------------------------------------------


def threads(cpu: int, siblings: str, package: int) -> type_tree:
    folder = f"{CPU}/cpu{cpu}/topology"
    return {f"{folder}/core_cpus_list": siblings, f"{folder}/physical_package_id": package}


def test_threads_of_a_core_share_its_number_and_cores_are_unique_over_packages(tmp_path: Path) -> None:
    tree: type_tree = {f"{CPU}/online": "0-3"}
    for cpu, siblings, package in ((0, "0,2", 0), (1, "1,3", 1), (2, "0,2", 0), (3, "1,3", 1)):
        tree |= threads(cpu, siblings, package)
    found = topology.find(grow(tmp_path, tree))
    assert found == topology.Topology((0, 1, 2, 3), (0, 1, 0, 1), (0, 1, 0, 1))


def test_many_more_cpus_than_this_machine_has_are_found_in_the_list(tmp_path: Path) -> None:
    found = topology.find(grow(tmp_path, {f"{CPU}/online": "0-383"}))
    assert len(found.cpus) == 384 and found.core_of == tuple(range(384))


def test_offline_cpus_leave_a_gap_and_positions_count(tmp_path: Path) -> None:
    found = topology.find(grow(tmp_path, threads(8, "8", -1) | {f"{CPU}/online": "0-1,8"}))
    assert found.cpus == (0, 1, 8) and found.core_of == (0, 1, 2) and found.package_of == (0, 0, 0)


def test_no_list_of_cpus_is_an_empty_node(tmp_path: Path) -> None:
    assert topology.find(OsFiles(str(tmp_path))).cpus == ()
    assert topology.find(grow(tmp_path, {f"{CPU}/present": "0-1"})).cpus == (0, 1)


# ---- frequency domains ---------------------------------------------------------------------------------------------


def policy(number: int, cpus: str, **more: str | int) -> type_tree:
    files: type_tree = {
        "related_cpus": cpus,
        "cpuinfo_min_freq": 1_200_000,
        "cpuinfo_max_freq": 3_200_000,
        "scaling_cur_freq": 1_200_000,
        "scaling_max_freq": 3_200_000,
        "scaling_driver": "intel_pstate",
    }
    return {f"{CPU}/cpufreq/policy{number}/{name}": value for name, value in (files | more).items()}


def test_a_domain_lists_positions_not_cpu_numbers(tmp_path: Path) -> None:
    domains, _ = cpufreq.find(grow(tmp_path, policy(8, "8 9") | policy(0, "0 1")), (0, 8, 9))
    assert [(domain.policy, domain.cpus) for domain in domains] == [(0, (0,)), (8, (1, 2))]


def test_policies_whose_cpus_share_a_core_are_one_domain(tmp_path: Path) -> None:
    tree = {key: value for cpu in (0, 1, 8, 9) for key, value in policy(cpu, str(cpu)).items()}
    domains, (finding,) = cpufreq.find(grow(tmp_path, tree), (0, 1, 8, 9), (0, 1, 0, 1))
    assert [(domain.policies, domain.cpus) for domain in domains] == [((0, 8), (0, 2)), ((1, 9), (1, 3))]
    assert finding.name == "cpufreq policy 0-1,8-9"
    assert "; 2 share a clock, which follows the highest request: they are set together" in finding.why


def test_policies_are_one_domain_where_cpufreq_says_that_they_share_a_clock(tmp_path: Path) -> None:
    tied = {0: "0-2", 1: "0-2", 2: "junk", 3: "3 7"}  # CPU 7 is offline
    policies = [policy(cpu, str(cpu), freqdomain_cpus=cpus) for cpu, cpus in tied.items()]
    tree = {key: value for one in policies for key, value in one.items()}
    domains, findings = cpufreq.find(grow(tmp_path, tree), range(4), range(4))
    assert [(domain.policies, domain.cpus) for domain in domains] == [((0, 1, 2), (0, 1, 2)), ((3,), (3,))]
    assert [finding.name for finding in findings] == ["cpufreq policy 0-2", "cpufreq policy 3"]


def test_a_domain_of_several_policies_can_be_set_to_what_the_highest_of_them_allows(tmp_path: Path) -> None:
    tree = policy(0, "0", cpuinfo_max_freq=2_000_000) | policy(1, "1", cpuinfo_min_freq=1_500_000)
    (domain,), _ = cpufreq.find(grow(tmp_path, tree), (0, 1), (0, 0))
    assert (domain.min_khz, domain.max_khz) == (1_500_000, 3_200_000)


def test_the_nominal_clock_is_what_the_driver_reports(tmp_path: Path) -> None:
    intel = grow(tmp_path / "intel", policy(0, "0", base_frequency=2_400_000))
    amd = grow(tmp_path / "amd", policy(0, "0") | {f"{CPU}/cpu0/acpi_cppc/nominal_freq": 2800})
    turbo = grow(tmp_path / "acpi", policy(0, "0", scaling_available_frequencies="2701000 2700000 2600000 1200000"))
    table = grow(tmp_path / "zen2", policy(0, "0", scaling_available_frequencies="2800000 2200000 1500000"))
    silent = grow(tmp_path / "silent", policy(0, "0"))
    bases = [cpufreq.find(files, (0,))[0][0].base_khz for files in (intel, amd, turbo, table, silent)]
    assert bases == [2_400_000, 2_800_000, 2_700_000, 2_800_000, 0]


def test_steps_are_ascending_and_empty_where_any_clock_is_taken(tmp_path: Path) -> None:
    table = grow(tmp_path / "table", policy(0, "0", scaling_available_frequencies="2800000 2200000 1500000 "))
    assert cpufreq.find(table, (0,))[0][0].steps_khz == (1_500_000, 2_200_000, 2_800_000)
    assert cpufreq.find(grow(tmp_path / "any", policy(0, "0")), (0,))[0][0].steps_khz == ()


def test_equal_domains_are_one_finding(tmp_path: Path) -> None:
    tree = {key: value for cpu in range(4) for key, value in policy(cpu, str(cpu)).items()}
    _, findings = cpufreq.find(grow(tmp_path, tree), range(4))
    (finding,) = findings
    assert finding.name == "cpufreq policy 0-3" and finding.readable and finding.writable


@pytest.mark.parametrize(
    "bad",
    [{"cpuinfo_max_freq": "4294967295"}, {"cpuinfo_min_freq": "junk"}, {"cpuinfo_min_freq": 0}, {"related_cpus": "x"}],
)
def test_a_policy_that_makes_no_sense_is_left_out_and_said(tmp_path: Path, bad: type_tree) -> None:
    domains, findings = cpufreq.find(grow(tmp_path, policy(0, "0") | policy(1, "1", **bad)), (0, 1))
    assert [domain.policy for domain in domains] == [0]
    said = findings[-1]
    assert said.name == "cpufreq policy 1" and not said.readable and said.why.endswith("it is left alone")


def test_a_policy_whose_cpus_are_off_line_is_none(tmp_path: Path) -> None:
    domains, (finding,) = cpufreq.find(grow(tmp_path, policy(0, "0") | policy(1, "1")), (0,))
    assert len(domains) == 1 and finding.name == "cpufreq policy 0"


def test_no_cpufreq_is_one_finding_with_the_reason(tmp_path: Path) -> None:
    domains, (finding,) = cpufreq.find(OsFiles(str(tmp_path)), (0,))
    assert domains == () and not finding.present and "no driver" in finding.why


@pytest.mark.parametrize(
    ("tree", "expected_khz"),
    [
        ({f"{CPU}/cpu0/tsc_freq_khz": 2_095_078} | policy(0, "0", base_frequency=2_100_000), 2_095_078),
        (policy(0, "0", base_frequency=2_100_000), 2_100_000),
        ({"/proc/cpuinfo": "model name\t: Intel(R) Xeon(R) CPU E5-2680 0 @ 2.70GHz"} | policy(0, "0"), 2_700_000),
        (policy(0, "0") | {"/proc/cpuinfo": "cpu MHz\t\t: 1200.000"}, 0),
        ({"/proc/cpuinfo": "model name\t: Virtual CPU\ncpu MHz\t\t: 2099.998"}, 2_099_998),
        ({}, 0),
    ],
)
def test_the_rate_of_reference_cycles_comes_from_the_best_source_there_is(
    tmp_path: Path, tree: type_tree, expected_khz: int
) -> None:
    files = grow(tmp_path, tree)
    khz, source = cpufreq.reference_khz(files, cpufreq.find(files, (0,))[0])
    assert khz == expected_khz and source


def test_present_clocks_are_readings_and_an_absurd_one_is_missing(tmp_path: Path) -> None:
    files = grow(tmp_path, policy(0, "0") | policy(1, "1", scaling_cur_freq=(1 << 32) - 1))
    good, absurd = cpufreq.Clocks(files, cpufreq.find(files, (0, 1))[0]).read(time_ns=5)
    assert (good.value, good.unit, good.time_ns, good.quality) == (1_200_000.0, "kHz", 5, Quality.MEASURED)
    assert math.isnan(absurd.value) and absurd.quality is Quality.MISSING and "4294967295 kHz" in absurd.why


# ---- sensors -------------------------------------------------------------------------------------------------------

CHIPS: type_tree = {
    f"{HWMON}/hwmon0/name": "coretemp",
    f"{HWMON}/hwmon0/temp1_input": 45_500,
    f"{HWMON}/hwmon0/temp1_label": "Package id 0",
    f"{HWMON}/hwmon0/temp2_input": 255_000,
    f"{HWMON}/hwmon1/name": "power_meter",
    f"{HWMON}/hwmon1/power1_average": 412_000_000,
    f"{HWMON}/hwmon1/fan1_input": 9000,
}


def sensors_of(files: OsFiles) -> ForPeople:
    return ForPeople(hwmon.INSTRUMENT, ports_of(files, SetClock()))


def test_sensors_are_named_by_chip_and_label_and_have_units(tmp_path: Path) -> None:
    package, absurd, power = sensors_of(grow(tmp_path, CHIPS)).read(time_ns=7)
    assert (package.name, package.value, package.unit) == ("hwmon0/coretemp/Package id 0", 45.5, "C")
    assert (absurd.value, absurd.quality, absurd.why) == (150.0, Quality.CLIPPED, "shows 255 C")
    assert (power.name, power.value, power.unit) == ("hwmon1/power_meter/power1", 412.0, "W")


def test_what_a_sensor_shows_is_reported_when_it_is_found(tmp_path: Path) -> None:
    whys = [finding.why for finding in sensors_of(grow(tmp_path, CHIPS)).findings()]
    assert whys == ["46 C now", "/sys/class/hwmon/hwmon0/temp2_input: shows 255 C", "412 W now"]


def test_a_sensor_that_turns_to_nonsense_is_missing_and_the_others_are_read(tmp_path: Path) -> None:
    sensors = sensors_of(grow(tmp_path, CHIPS))
    (tmp_path / f"{HWMON}/hwmon0/temp1_input".lstrip("/")).write_text("broken")
    readings = sensors.read(time_ns=0)
    assert readings[0].quality is Quality.MISSING and math.isnan(readings[0].value)
    assert readings[2].quality is Quality.MEASURED
    sensors.close()


def test_sensors_of_one_label_have_names_of_their_own_and_a_power_meter_that_of_its_firmware(tmp_path: Path) -> None:
    """Grace servers have a power meter for each part of a module, and no labels."""
    core, meter = f"{HWMON}/hwmon1", f"{HWMON}/hwmon2"
    tree: type_tree = {f"{core}/name": "coretemp", f"{meter}/name": "power_meter"}
    tree |= {f"{core}/temp{at}_{what}": text for at in (2, 3) for what, text in (("label", "Core 0"), ("input", 40000))}
    tree |= {f"{meter}/power1_average": 90_000_000, f"{meter}/power1_oem_info": "Module Power Socket 0"}
    found = hwmon.find(ports_of(grow(tmp_path, tree), SetClock()))
    assert [column.name for column in found.shown] == [
        "hwmon1/coretemp/Core 0", "hwmon1/coretemp/Core 0 (temp3)", "hwmon2/power_meter/Module Power Socket 0",
    ]  # fmt: skip


def test_no_sensors_are_one_finding(tmp_path: Path) -> None:
    (finding,) = sensors_of(OsFiles(str(tmp_path))).findings()
    assert not finding.present and "no temperature or power sensor" in finding.why


# ---- busy time as a stand-in for reference cycles ------------------------------------------------------------------

KHZ = 2_000_000


def idle_tree(idle_us: int) -> type_tree:
    folder = f"{CPU}/cpu0/cpuidle"
    return {
        f"{folder}/state0/name": "POLL",
        f"{folder}/state0/time": 999_999_999,
        f"{folder}/state1/name": "C1",
        f"{folder}/state1/time": idle_us // 2,
        f"{folder}/state2/name": "C6",
        f"{folder}/state2/time": idle_us - idle_us // 2,
    }


def estimate(root: Path, idle_us: list[int], cycles: list[int], period_ns: int = 100 * MS) -> list[float]:
    """Estimated busy share in each interval, one CPU, lowest clock 1 GHz."""
    files = grow(root, idle_tree(idle_us[0]))
    meter = BusyTime(files, (0,), KHZ, np.array([1_000_000]))
    totals = []
    for tick, (idle, count) in enumerate(zip(idle_us, cycles, strict=True)):
        grow(root, idle_tree(idle))
        out: type_i64 = np.zeros(1, np.int64)
        meter.sweep(tick * period_ns, np.array([count]), out)
        totals.append(int(out[0]))
    meter.close()
    return [float(step) / (KHZ * 1e-6 * period_ns) for step in np.diff(totals)]


def test_busy_time_is_what_is_left_of_the_interval_without_polling(tmp_path: Path) -> None:
    plenty = 10**9
    assert estimate(tmp_path, [0, 25_000, 125_000], [0, plenty, 2 * plenty]) == pytest.approx([0.75, 0.0])


def test_a_cpu_asleep_all_along_is_not_taken_for_busy(tmp_path: Path) -> None:
    """cpuidle adds a stay when it ends: two intervals of nothing, then 300 ms at once."""
    shares = estimate(tmp_path, [0, 0, 0, 300_000], [0, 1000, 2000, 3000])
    assert max(shares) < 1e-3 and min(shares) >= 0


def test_without_cpuidle_the_ticks_of_proc_stat_serve(tmp_path: Path) -> None:
    def stat(idle: int) -> type_tree:
        return {"/proc/stat": f"cpu  9 9 9 9 9 0 0 0 0 0\ncpu0 10 0 5 {idle} 2 0 0 0 0 0\nintr 5"}

    files = grow(tmp_path, stat(100))
    assert busy.why_not(files, (0,)) is None and "10 ms" in busy.source(files, (0,))
    meter = BusyTime(files, (0, 7), KHZ, np.array([0, 0]))
    out: type_i64 = np.zeros(2, np.int64)
    missing = np.full(2, RAW_MISSING)
    meter.sweep(0, missing, out)
    grow(tmp_path, stat(104))
    meter.sweep(100 * MS, missing, out)
    assert out[0] == pytest.approx(0.6 * KHZ * 1e-6 * 100 * MS)
    assert out[1] == RAW_MISSING, "a CPU that /proc/stat does not list"
    meter.close()


def test_no_source_of_idle_time_is_said(tmp_path: Path) -> None:
    assert busy.why_not(OsFiles(str(tmp_path)), (0,)) == "neither cpuidle nor /proc/stat has idle time"


# ---- the files themselves ------------------------------------------------------------------------------------------


def test_a_tree_with_a_root_answers_as_the_kernels_files_do(tmp_path: Path) -> None:
    files = grow(tmp_path, {"/sys/class/thing/limit": 5})
    (tmp_path / "sys/class/link").symlink_to("thing")
    assert files.read("/sys/class/link/limit") == "5\n"
    assert files.realpath("/sys/class/link/limit") == "/sys/class/thing/limit"
    assert files.listdir("/sys/class/thing") == ["limit"]
    assert files.exists("/sys/class/thing") and not files.exists("/sys/class/nothing")
    files.write("/sys/class/thing/limit", "12")
    kept = files.keep("/sys/class/thing/limit")
    assert kept.read() == b"12"
    files.write("/sys/class/thing/limit", "7")
    assert kept.read() == b"7"
    kept.close()
    with pytest.raises(FileNotFoundError):
        files.read("/sys/class/nothing")


def test_a_file_without_write_permission_is_not_writable_even_for_root(tmp_path: Path) -> None:
    files = grow(tmp_path, {"/a": 1, "/b": 1})
    (tmp_path / "a").chmod(0o444)
    assert not files.writable("/a") and files.writable("/b") and not files.writable("/c")


def test_long_files_are_read_whole(tmp_path: Path) -> None:
    files = grow(tmp_path, {"/long": "x" * 200_000})
    assert len(files.read("/long")) == 200_001


def test_reading_a_closed_file_is_an_error_with_its_number(tmp_path: Path) -> None:
    kept = grow(tmp_path, {"/a": 1}).keep("/a")
    kept.close()
    with pytest.raises(OSError) as caught:
        kept.read()
    assert caught.value.errno == errno.EBADF and os.strerror(errno.EBADF) in str(caught.value)
