"""What the numbers of perf_event_attr mean on each machine."""

from __future__ import annotations

import pytest

from twin.files.sysfs_memory_events import memory_events
from twin.files.sysfs_tree import SysfsTree
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.serve.perf_events import EventNames, encode

HARDWARE, CACHE, RAW = 0, 3, 4
CACHE_MISSES, BRANCHES, BUS_CYCLES, STALLS_BACKEND, REFERENCE_CYCLES = 3, 4, 6, 8, 9
LAST_LEVEL_LOADS = 0x2


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
    assert names("curie").event(RAW, 0xD1) is None  # loads by where they hit
    assert names("curie").event(HARDWARE, BUS_CYCLES) is None


@pytest.mark.parametrize("machine", ["curie", "skylake-6146", "client", "xh2415", "genoa-h100"])
def test_branches_are_counted_by_their_number_and_their_raw_code(machine: str) -> None:
    events = names(machine)
    raw = 0xC2 if load_machine(machine).vendor == "AuthenticAMD" else 0xC4  # their manuals: retired branches
    for key in ((HARDWARE, BRANCHES), (RAW, raw), (HARDWARE, RAW << 32 | BRANCHES)):
        assert (events.event(*key), events.scale(*key)) == ("instructions", 0.1)
        assert events.event(key[0], key[1] + 1) == "instructions"  # the next one: mispredicted branches
        assert events.scale(key[0], key[1] + 1) == 0.001
    assert events.scale(HARDWARE, 0) == 1.0


def test_last_level_loads_are_more_than_their_misses_and_intels_alone() -> None:
    curie = names("curie")
    assert curie.event(CACHE, LAST_LEVEL_LOADS) == "llc-misses"
    assert curie.scale(CACHE, LAST_LEVEL_LOADS) > curie.scale(CACHE, 0x10002) == 1.0
    assert names("genoa-h100").event(CACHE, LAST_LEVEL_LOADS) is None


@pytest.mark.parametrize(("machine", "has"), [("curie", True), ("xh2415", True), ("skylake-6146", False)])
def test_front_end_stalls_exist_where_the_kernels_map_has_them(machine: str, has: bool) -> None:
    assert (names(machine).event(HARDWARE, 7) is not None) is has


@pytest.mark.parametrize(
    ("machine", "pmus"),
    [
        ("curie", [f"uncore_imc_{channel}" for channel in range(4)]),
        ("skylake-6146", [f"uncore_imc_{channel}" for channel in range(6)]),
        ("xh2415", ["amd_df"]),
        ("genoa-h100", ["amd_df"]),
        ("client", []),
    ],
)
def test_the_channels_of_a_package_share_its_whole_traffic(machine: str, pmus: list[str]) -> None:
    node = load_machine(machine)
    tree = SysfsTree(Twin(node))
    events = EventNames(tree, node)
    found = list(memory_events(node))
    assert sorted({name for name, _, _ in found}) == pmus
    shares = [
        events.traffic_share(int(tree.read(f"/sys/bus/event_source/devices/{name}/type")), config)
        for name, config, _ in found
    ]
    assert sum(shares) == pytest.approx(1.0 if pmus else 0.0)


def test_amds_channels_have_the_codes_that_perf_builds_from_the_format_files() -> None:
    tree = SysfsTree(Twin(load_machine("genoa-h100")))
    folder = "/sys/bus/event_source/devices/amd_df/format"
    formats = {name: tree.read(f"{folder}/{name}").decode().strip() for name in tree.listdir(folder)}
    configs = [config for _, config, _ in memory_events(load_machine("genoa-h100"))]
    assert configs[:2] == [encode("event=0x1f,umask=0xfe", formats), encode("event=0x1f,umask=0xff", formats)]
    assert configs[-1] == encode("event=0x2df,umask=0xff", formats)  # channel 11, writes


def test_a_channels_listed_events_are_those_that_count() -> None:
    node = load_machine("skylake-6146")
    tree = SysfsTree(Twin(node))
    folder = "/sys/bus/event_source/devices/uncore_imc_3"
    formats = {name: tree.read(f"{folder}/format/{name}").decode().strip() for name in tree.listdir(f"{folder}/format")}
    configs = [
        encode(tree.read(f"{folder}/events/{name}").decode(), formats) for name in ("cas_count_read", "cas_count_write")
    ]
    assert configs == [config for name, config, _ in memory_events(node) if name == "uncore_imc_3"]
    assert tree.read(f"{folder}/cpumask") == b"0,12\n"


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
