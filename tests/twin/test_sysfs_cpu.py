"""What programs read about processors: caches, idle states, energy bias, NUMA nodes, thermal zones, the CPU bus."""

from __future__ import annotations

import errno
import re

import pytest

from twin.errors import TwinError
from twin.files.sysfs_tree import SysfsTree
from twin.machine import MACHINES, load_machine
from twin.physics.model import Twin

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"
ZONE = "/sys/class/thermal/thermal_zone1"


@pytest.fixture(scope="module")
def blade() -> SysfsTree:
    return SysfsTree(Twin(load_machine("xh2415")))


@pytest.fixture
def curie() -> SysfsTree:
    return SysfsTree(Twin(load_machine("curie")))


def read(tree: SysfsTree, path: str) -> str:
    return tree.read(path).decode().strip()


def refusal(tree: SysfsTree, path: str, text: bytes) -> int:
    with pytest.raises(OSError) as refused:
        tree.write(path, text)
    return refused.value.errno or 0


def test_a_core_complex_of_three_cores_shares_16_mib(blade: SysfsTree) -> None:
    """An EPYC 7402 has 128 MiB in eight complexes; AMD's product page."""
    folder = f"{CPU}/cpu50/cache/index3"
    assert read(blade, f"{folder}/shared_cpu_list") == "0-2,48-50"
    assert read(blade, f"{folder}/shared_cpu_map") == "00000000,00070000,00000007"
    assert [read(blade, f"{folder}/{name}") for name in ("level", "type", "size")] == ["3", "Unified", "16384K"]
    sets, ways = int(read(blade, f"{folder}/number_of_sets")), int(read(blade, f"{folder}/ways_of_associativity"))
    assert sets * ways * int(read(blade, f"{folder}/coherency_line_size")) == 16 << 20
    assert len({read(blade, f"{CPU}/cpu{cpu}/cache/index3/id") for cpu in range(96)}) == 16


def test_cpuinfo_names_the_cache_that_the_kernel_names(blade: SysfsTree, curie: SysfsTree) -> None:
    sizes = [re.findall(r"cache size\t: (.*)", tree.read("/proc/cpuinfo").decode()) for tree in (blade, curie)]
    assert sizes == [["512 KB"] * 96, ["20480 KB"] * 16]  # AMD: the second level; Intel: the last


def test_caches_that_do_not_add_up_are_refused(tmp_path: object) -> None:
    path = f"{tmp_path}/odd.toml"
    text = (MACHINES / "curie.toml").read_text().replace("kib = 20480, ways = 20", "kib = 20480, ways = 19")
    with open(path, "w") as file:
        file.write(text)
    with pytest.raises(TwinError, match=r"level 3 Unified: its ways or cores do not divide"):
        load_machine(path)


def test_a_disabled_idle_state_gathers_no_more_time(curie: SysfsTree) -> None:
    states = [f"{CPU}/cpu3/cpuidle/state{number}" for number in range(3)]
    other = f"{CPU}/cpu4/cpuidle/state2"

    def times_us() -> list[int]:
        return [int(read(curie, f"{folder}/time")) for folder in (*states, other)]

    curie.twin.advance(1.0)
    curie.write(f"{states[2]}/disable", b"1")
    assert [read(curie, f"{folder}/disable") for folder in (*states, other)] == ["0", "0", "1", "0"]
    before = times_us()
    curie.twin.advance(1.0)
    poll, shallow, deep, untouched = (now - then for now, then in zip(times_us(), before, strict=True))
    assert (poll, deep) == (0, 0)
    assert 0.9e6 < shallow <= 1e6
    assert shallow == pytest.approx(untouched, rel=0.01)
    curie.write(f"{states[2]}/disable", b"0")
    before = times_us()
    curie.twin.advance(1.0)
    assert [now > then for now, then in zip(times_us(), before, strict=True)] == [False, False, True, True]
    assert refusal(curie, f"{states[2]}/disable", b"yes") == errno.EINVAL


def test_an_idle_state_that_a_fault_keeps_enabled_shows_what_was_written(curie: SysfsTree) -> None:
    path = f"{CPU}/cpu3/cpuidle/state2"
    curie.faults.add_line(f"no-effect {path}/disable")
    curie.write(f"{path}/disable", b"1")
    before = int(read(curie, f"{path}/time"))
    curie.twin.advance(1.0)
    assert read(curie, f"{path}/disable") == "1"
    assert int(read(curie, f"{path}/time")) > before


@pytest.mark.parametrize(
    ("text", "shown"), [(b"power\n", "15"), (b"balance-performance", "4"), (b"0", "0"), (b"7\n", "7")]
)
def test_the_energy_bias_takes_names_and_numbers(curie: SysfsTree, text: bytes, shown: str) -> None:
    path = f"{CPU}/cpu5/power/energy_perf_bias"
    assert read(curie, path) == "6"
    curie.write(path, text)
    assert read(curie, path) == shown
    assert read(curie, path.replace("cpu5", "cpu6")) == "6"
    assert refusal(curie, path, b"16") == refusal(curie, path, b"fast") == errno.EINVAL


def test_processors_of_amd_have_no_energy_bias(blade: SysfsTree) -> None:
    assert blade.kind(f"{CPU}/cpu5/power/energy_perf_bias") is None


def test_the_memory_of_a_node_adds_up(blade: SysfsTree) -> None:
    rows = dict(re.findall(r"Node 1 (\w+): +(\d+) kB", read(blade, f"{NODE}/node1/meminfo")))
    total, free, used = (int(rows[name]) for name in ("MemTotal", "MemFree", "MemUsed"))
    assert total == free + used
    assert free / total == pytest.approx(63 / 64, rel=1e-4)
    assert 0.97 * (128 << 20) < total < 128 << 20
    assert read(blade, f"{NODE}/node1/distance") == "21 10"
    assert "numa_hit 0" in read(blade, f"{NODE}/node1/numastat")


def test_a_thermal_zone_reads_what_coretemp_reads(curie: SysfsTree) -> None:
    assert read(curie, f"{ZONE}/type") == "x86_pkg_temp"
    assert read(curie, f"{ZONE}/temp") == read(curie, "/sys/class/hwmon/hwmon1/temp1_input")
    curie.write(f"{ZONE}/trip_point_0_temp", b"60000")
    assert read(curie, f"{ZONE}/trip_point_0_temp") == "60000"
    assert refusal(curie, f"{ZONE}/trip_point_0_temp", b"200000") == errno.EINVAL
    assert refusal(curie, f"{ZONE}/policy", b"bang_bang") == errno.EINVAL


def test_the_bus_lists_every_cpu_with_its_driver(blade: SysfsTree) -> None:
    assert blade.realpath("/sys/bus/cpu/devices/cpu95") == f"{CPU}/cpu95"
    assert len(blade.listdir("/sys/bus/cpu/drivers/processor")) == 96
    assert blade.realpath(f"{CPU}/cpu95/driver") == "/sys/bus/cpu/drivers/processor"
