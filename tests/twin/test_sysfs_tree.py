"""The tree as a whole: CPUs and where they sit, sensors, PMUs, and the cost of a read."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import numpy as np
import pytest

from pmu.cpulist import parse_list
from pmu.instruments.event_source import named_event
from tests.yardstick import yardstick_ns
from twin.files import procfs
from twin.files.sysfs_tree import SysfsTree
from twin.in_process_node import TreeFiles
from twin.machine import MACHINES, load_machine, machine_names
from twin.physics.model import Twin
from twin.programs.workload import load_workload

CPU = "/sys/devices/system/cpu"
READS_YARDSTICKS = 7


@pytest.fixture(scope="module")
def blade() -> SysfsTree:
    return SysfsTree(Twin(load_machine("xh2415")))


def read(tree: SysfsTree, path: str) -> str:
    return tree.read(path).decode().strip()


@pytest.mark.parametrize("machine", machine_names())
def test_every_file_of_every_machine_reads_and_lies_below_a_root(machine: str) -> None:
    tree = SysfsTree(Twin(load_machine(machine)))
    for path in set(tree.names().values()):
        assert path in procfs.FILES or path.startswith(tuple(f"{root}/" for root in tree.roots)), path
        if tree.mode(path) & 0o444 and not path.endswith("constraint_2_time_window_us"):  # a peak limit has none
            text = tree.read(path)
            assert not text or text.endswith(b"\n"), path


@pytest.mark.parametrize("machine", machine_names())
def test_every_link_of_the_classes_leads_to_a_directory(machine: str) -> None:
    tree = SysfsTree(Twin(load_machine(machine)))
    folders = ("/sys/class/powercap", "/sys/class/hwmon", "/sys/class/thermal", "/sys/bus/event_source/devices")
    for folder in (*folders, "/sys/bus/cpu/devices", "/sys/bus/cpu/drivers/processor", "/sys/bus/node/devices"):
        for name in tree.listdir(folder):
            assert tree.kind(tree.realpath(f"{folder}/{name}")) == "dir"


def test_smt_siblings_and_packages_are_shown_both_ways(blade: SysfsTree) -> None:
    assert read(blade, f"{CPU}/online") == "0-95"
    assert read(blade, f"{CPU}/smt/active") == "1"
    assert read(blade, f"{CPU}/cpu50/topology/thread_siblings_list") == "2,50"
    assert read(blade, f"{CPU}/cpu2/topology/thread_siblings") == "00000000,00040000,00000004"
    assert read(blade, f"{CPU}/cpu50/topology/core_id") == "2"
    assert read(blade, f"{CPU}/cpu50/topology/physical_package_id") == "0"
    assert read(blade, f"{CPU}/cpu30/topology/package_cpus_list") == "24-47,72-95"
    assert read(blade, "/sys/devices/system/node/node1/cpulist") == "24-47,72-95"
    assert blade.realpath(f"{CPU}/cpu30/node1") == "/sys/devices/system/node/node1"


def test_the_boot_cpu_has_no_switch_and_no_other_can_be_taken_offline(blade: SysfsTree) -> None:
    assert blade.kind(f"{CPU}/cpu0/online") is None
    blade.write(f"{CPU}/cpu1/online", b"1")
    with pytest.raises(OSError) as refusal:
        blade.write(f"{CPU}/cpu1/online", b"0")
    assert refusal.value.errno == errno.EBUSY


def test_an_idle_cpu_gathers_idle_time_in_its_deepest_state() -> None:
    tree = SysfsTree(Twin(load_machine("curie")))
    deepest = f"{CPU}/cpu3/cpuidle/state2/time"
    before = int(read(tree, deepest))
    tree.twin.advance(1.0)
    assert 0.9e6 < int(read(tree, deepest)) - before <= 1e6


def test_coretemp_numbers_its_inputs_by_core_and_heats_up_under_load() -> None:
    machine = load_machine("curie")
    tree = SysfsTree(Twin(machine, load_workload("hpl", machine)))
    assert read(tree, "/sys/class/hwmon/hwmon1/name") == "coretemp"
    assert read(tree, "/sys/class/hwmon/hwmon1/temp1_label") == "Package id 1"
    assert read(tree, "/sys/class/hwmon/hwmon1/temp9_label") == "Core 7"
    assert tree.realpath("/sys/class/hwmon/hwmon1/device") == "/sys/devices/platform/coretemp.1"
    before = int(read(tree, "/sys/class/hwmon/hwmon0/temp1_input"))
    tree.twin.advance(5.0)
    after = int(read(tree, "/sys/class/hwmon/hwmon0/temp1_input"))
    assert 20_000 < before < after < 95_000
    assert before % 1000 == after % 1000 == 0  # a digital sensor of whole degrees


def test_the_board_s_power_meter_is_in_microwatts() -> None:
    tree = SysfsTree(Twin(load_machine("curie")))
    tree.twin.advance(1.0)
    chips = {read(tree, f"/sys/class/hwmon/{name}/name"): name for name in tree.listdir("/sys/class/hwmon")}
    assert 80e6 < int(read(tree, f"/sys/class/hwmon/{chips['power_meter']}/power1_average")) < 160e6


def test_pmu_finds_the_events_that_the_machine_lists() -> None:
    sandy_bridge = TreeFiles(SysfsTree(Twin(load_machine("curie"))))
    stalls = named_event(sandy_bridge, "cpu", "stalled-cycles-backend")
    assert stalls is not None and (stalls.type_id, stalls.config) == (4, 0x18001B1)  # intel/core.c, SNB event map
    zen2 = TreeFiles(SysfsTree(Twin(load_machine("xh2415"))))
    assert named_event(zen2, "cpu", "ref-cycles") is None
    mperf = named_event(zen2, "msr", "mperf")
    assert mperf is not None and mperf.config == 2
    assert zen2.read("/sys/bus/event_source/devices/power/cpumask") == "0,24\n"


def test_a_raw_event_of_a_machine_file_is_listed_by_its_name(tmp_path: Path) -> None:
    text = (MACHINES / "v100.toml").read_text()
    line = next(line for line in text.splitlines() if line.startswith("events = "))
    raw = 'raw_events = { stalls = "cycle_activity.stalls_mem_any/event=0xa3,umask=0x14,cmask=0x14" }'
    events = 'events = ["cycles", "reference-cycles", "instructions", "stalls", "llc-misses"]'
    path = tmp_path / "skylake.toml"
    path.write_text(text.replace(line, f"{events}\n{raw}"))
    files = TreeFiles(SysfsTree(Twin(load_machine(str(path)))))
    stalls = named_event(files, "cpu", "cycle_activity.stalls_mem_any")
    assert stalls is not None and stalls.config == 0x140014A3
    assert named_event(files, "cpu", "stalled-cycles-backend") is None


def test_cpu_lists_parse_as_the_cpus_of_the_machine(blade: SysfsTree) -> None:
    assert parse_list(read(blade, f"{CPU}/present")) == tuple(range(96))


def test_errors_of_paths_are_those_of_the_file_system(blade: SysfsTree) -> None:
    for path, number in ((CPU, errno.EISDIR), (f"{CPU}/cpu500/online", errno.ENOENT)):
        with pytest.raises(OSError) as refusal:
            blade.read(path)
        assert refusal.value.errno == number
    with pytest.raises(NotADirectoryError):
        blade.listdir(f"{CPU}/online")
    with pytest.raises(FileNotFoundError):
        blade.listdir("/sys/class/leds")
    assert blade.kind("/sys/class/leds") is None


def test_a_read_of_96_counters_is_cheap_once_their_paths_are_known(blade: SysfsTree) -> None:
    paths = [f"{CPU}/cpu{cpu}/cpufreq/scaling_cur_freq" for cpu in range(96)]
    costs_ns, yardsticks_ns = [], []
    for _ in range(20):
        yardsticks_ns.append(yardstick_ns())
        begin_ns = time.thread_time_ns()
        for path in paths:
            blade.read(path)
        costs_ns.append(time.thread_time_ns() - begin_ns)
    assert np.median(costs_ns) < READS_YARDSTICKS * np.median(yardsticks_ns)
