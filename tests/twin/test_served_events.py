"""What the numbers of perf_event_attr mean on each machine."""

from __future__ import annotations

import pytest

from twin.files.sysfs_tree import SysfsTree
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.serve.perf_events import EventNames, encode

HARDWARE, CACHE, RAW = 0, 3, 4
CACHE_MISSES, STALLS_BACKEND, REFERENCE_CYCLES = 3, 8, 9


def names(machine: str) -> EventNames:
    node = load_machine(machine)
    return EventNames(SysfsTree(Twin(node)), node)


def test_a_term_goes_where_its_format_file_says() -> None:
    formats = {"event": "config:0-7,32-35", "umask": "config:8-15", "inv": "config:23", "cmask": "config:24-31"}
    assert encode("event=0xb1,umask=0x01,inv,cmask=0x01\n", formats) == 0x018001B1
    assert encode("event=0x120", formats) == 0x1_0000_0020


def test_sandy_bridge_counts_all_generic_events_and_their_raw_codes() -> None:
    curie = names("curie")
    assert curie.event(HARDWARE, 0) == curie.event(RAW, 0x3C) == "cycles"  # Intel SDM: CPU_CLK_UNHALTED
    assert curie.event(HARDWARE, REFERENCE_CYCLES) == "reference-cycles"
    assert curie.event(HARDWARE, STALLS_BACKEND) == "stalls"
    assert curie.event(CACHE, 0x10002) == "llc-misses"


def test_zen_2_counts_reference_cycles_only_through_the_msr_pmu() -> None:
    node = load_machine("xh2415")
    tree = SysfsTree(Twin(node))
    xh2415 = EventNames(tree, node)
    assert xh2415.event(HARDWARE, REFERENCE_CYCLES) is None
    msr = int(tree.read("/sys/bus/event_source/devices/msr/type"))
    assert xh2415.event(msr, 0x02) == "reference-cycles"


@pytest.mark.parametrize("machine", ["xh2415", "genoa-h100"])
def test_amd_counts_cache_misses_but_no_last_level_loads(machine: str) -> None:
    assert names(machine).event(HARDWARE, CACHE_MISSES) == "llc-misses"
    assert names(machine).event(CACHE, 0x10002) is None  # LLC-load-misses


def test_an_event_that_is_not_listed_does_not_exist() -> None:
    assert names("curie").event(RAW, 0xC4) is None  # branches
    assert names("curie").event(HARDWARE, 4) is None


@pytest.mark.parametrize(("cpu", "package"), [(0, 0), (8, 1)])
def test_energy_of_a_cpu_is_that_of_its_package(cpu: int, package: int) -> None:
    node = load_machine("curie")
    tree = SysfsTree(Twin(node))
    power = int(tree.read("/sys/bus/event_source/devices/power/type"))
    energy = EventNames(tree, node).energy(power, 0x02, cpu)
    assert energy is not None
    zone = node.zones[energy.zone]
    assert (zone.kind, zone.package) == ("package", package)
    assert energy.range_uj == zone.range_uj
