"""/proc/cpuinfo and /proc/stat of the emulated node: format, clocks, busy time, and what pmu takes from them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from pmu.instruments import cpufreq
from tests.twin.served_node import ServedNode, why_not_served
from twin.cli import twin as command
from twin.faults.fault import GPU_READINGS
from twin.files import procfs
from twin.files.sysfs_tree import SysfsTree
from twin.in_process_node import TreeFiles
from twin.machine import load_machine, machine_names
from twin.physics.model import Twin
from twin.programs.workload import load_workload


def entries(text: str) -> list[dict[str, str]]:
    """One dictionary per processor."""
    blocks = text.removesuffix("\n\n").split("\n\n")
    lines = [[line.partition(":") for line in block.split("\n")] for block in blocks]
    return [{name.strip(): value.strip() for name, _, value in block} for block in lines]


@pytest.mark.parametrize("name", machine_names())
def test_cpuinfo_has_an_entry_for_each_cpu_of_the_machine(name: str) -> None:
    machine = load_machine(name)
    found = entries(SysfsTree(Twin(machine)).read(procfs.CPUINFO).decode())
    assert [int(entry["processor"]) for entry in found] == list(range(machine.cpus))
    assert {entry["vendor_id"] for entry in found} == {machine.vendor}
    assert {entry["model name"] for entry in found} == {machine.model_name}
    assert len({(entry["physical id"], entry["core id"]) for entry in found}) == machine.cores
    assert len({entry["apicid"] for entry in found}) == machine.cpus
    assert all("constant_tsc" in entry["flags"].split() for entry in found)


@pytest.mark.parametrize("name", sorted(set(machine_names()) - {"controlpulp"}))
def test_flags_are_those_of_the_generation(name: str) -> None:
    machine = load_machine(name)
    assert (machine.vendor, machine.cpu_family, machine.cpu_model) in procfs.GENERATIONS
    flags = entries(SysfsTree(Twin(machine)).read(procfs.CPUINFO).decode())[0]["flags"].split()
    assert ("avx2" in flags) == (machine.cpu_model != 45)  # Sandy Bridge has none
    assert ("svm" if machine.vendor == "AuthenticAMD" else "vmx") in flags
    assert len(flags) == len(set(flags))


def test_cpuinfo_shows_the_clock_that_each_cpu_runs_at() -> None:
    node = Twin(load_machine("xh2415"))
    tree = SysfsTree(node)
    for thread in (3, 51):
        tree.write(f"/sys/devices/system/cpu/cpufreq/policy{thread}/scaling_max_freq", b"1500000")
    tree.write("/sys/devices/system/cpu/cpufreq/policy0/scaling_governor", b"performance")
    node.advance(0.1)
    found = entries(tree.read(procfs.CPUINFO).decode())
    assert [found[cpu]["cpu MHz"] for cpu in (0, 48, 3, 51)] == ["2800.000"] * 2 + ["1500.000"] * 2


@pytest.mark.parametrize("name", machine_names())
def test_reference_cycles_count_at_the_rate_that_pmu_takes_them_for(name: str) -> None:
    machine = load_machine(name)
    files = TreeFiles(SysfsTree(Twin(machine)))
    domains, _ = cpufreq.find(files, range(machine.cpus))
    khz, _ = cpufreq.reference_khz(files, domains)
    assert khz == pytest.approx(machine.tsc_khz, rel=2e-3)


def test_the_processors_name_has_the_rate_where_the_driver_does_not() -> None:
    files = TreeFiles(SysfsTree(Twin(load_machine("curie"))))
    assert cpufreq.reference_khz(files, ()) == (2_700_000, "the processor's name")


def test_stat_counts_busy_and_idle_time_of_the_model_next_to_the_hosts_other_lines() -> None:
    machine = load_machine("curie")
    node = Twin(machine, load_workload("hpl", machine))
    host = "cpu  1 2 3 4\ncpu0 1 2 3 4\nintr 5\nbtime 1700000000\n"
    tree = SysfsTree(node, host_stat=lambda: host)
    node.advance(1.0)
    first, *cpus = tree.read(procfs.STAT).decode().splitlines()
    assert cpus[16:] == ["intr 5", "btime 1700000000"]
    rows = [line.split() for line in cpus[:16]]
    assert [row[0] for row in rows] == [f"cpu{cpu}" for cpu in range(16)]
    assert all(90 <= int(row[1]) <= 100 and 99 <= int(row[1]) + int(row[4]) <= 100 for row in rows)
    assert first.startswith("cpu  ") and int(first.split()[1]) >= sum(int(row[1]) for row in rows)


def test_in_process_stat_has_no_line_of_the_host() -> None:
    text = SysfsTree(Twin(load_machine("v100"))).read(procfs.STAT).decode()
    assert all(line.startswith("cpu") for line in text.splitlines())


@pytest.mark.skipif(bool(why_not_served()), reason=why_not_served())
def test_served_and_in_process_show_the_same_processors() -> None:
    machine = load_machine("genoa-h100")
    ours = entries(SysfsTree(Twin(machine)).read(procfs.CPUINFO).decode())
    with ServedNode("genoa-h100") as node:
        theirs = entries(node.output("cat", procfs.CPUINFO))
        stat = node.output("cat", procfs.STAT)
        count = json.loads(node.python("import psutil; print(psutil.cpu_times(percpu=True).__len__())"))
    for entry in (*ours, *theirs):
        del entry["cpu MHz"]
    assert theirs == ours
    assert count == 384
    assert "\nbtime " in stat and "\nctxt " in stat


# ---- words of the command line -------------------------------------------------------------------------------------


def test_the_help_of_fault_add_lists_every_target_reading_and_setting() -> None:
    text = CliRunner().invoke(command, ["fault", "add", "--help"]).output
    for word in ("/sys/GLOB", "perf:EVENT[:CPU]", "gpu:N[:READING]", "every=", "for=", "at=", "value=", *GPU_READINGS):
        assert word in text, word
