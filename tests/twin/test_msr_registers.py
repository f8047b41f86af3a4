"""Model-specific registers have the manuals' fields, and show the state that sysfs shows."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from twin.files.sysfs_tree import SysfsTree
from twin.machine import load_machine
from twin.msr.registers import Registers
from twin.physics.model import Twin
from twin.programs.workload import load_workload

CPUFREQ = "/sys/devices/system/cpu/cpu{}/cpufreq"
ZONE = "/sys/class/powercap/intel-rapl:0"
UNCORE = "/sys/devices/system/cpu/intel_uncore_frequency/package_00_die_00"


class Node:
    """A machine with a fifth of a second of its workload behind it."""

    def __init__(self, name: str, workload: str = "hpl") -> None:
        machine = load_machine(name)
        self.twin = Twin(machine, load_workload(workload, machine))
        self.tree = SysfsTree(self.twin)
        self.registers = Registers(self.tree)
        self.twin.advance(0.2)

    def rdmsr(self, number: int, high: int = 63, low: int = 0, cpu: int = 0) -> int:
        return self.registers.read(cpu, number) >> low & (1 << high - low + 1) - 1

    def wrmsr(self, number: int, value: int, cpu: int = 0) -> None:
        self.registers.write(cpu, number, value)

    def file(self, path: str) -> str:
        return self.tree.read(path).decode().strip()

    def khz(self, cpu: int = 0) -> int:
        return int(self.file(f"{CPUFREQ.format(cpu)}/scaling_cur_freq"))


@pytest.fixture
def skylake() -> Node:
    return Node("skylake-6146")


@pytest.fixture
def curie() -> Node:
    return Node("curie")


@pytest.fixture
def genoa() -> Node:
    return Node("genoa-h100")


# ---- energy and limits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "number", "zone"),
    [
        ("skylake-6146", 0x611, "intel-rapl:0"),
        ("skylake-6146", 0x619, "intel-rapl:0:0"),
        ("curie", 0x639, "intel-rapl:0:0"),
        ("client", 0x641, "intel-rapl:0:1"),
        ("client", 0x64D, "intel-rapl:1"),
        ("xh2415", 0xC001029B, "intel-rapl:0"),
    ],
)
def test_an_energy_register_moves_as_its_powercap_zone(machine: str, number: int, zone: str) -> None:
    node = Node(machine)
    unit = 0xC0010299 if number > 1 << 31 else 0x606
    joules_per_count = 2.0 ** -node.rdmsr(unit, 12, 8)
    if (machine, number) == ("skylake-6146", 0x619):
        joules_per_count = 15.3e-6  # DRAM of servers has a unit of its own (Linux intel_rapl_common.c)
    before, before_uj = node.rdmsr(number), int(node.file(f"/sys/class/powercap/{zone}/energy_uj"))
    node.twin.advance(1.0)
    moved_j = (node.rdmsr(number) - before) * joules_per_count
    moved_uj = int(node.file(f"/sys/class/powercap/{zone}/energy_uj")) - before_uj
    assert moved_j == pytest.approx(moved_uj * 1e-6, rel=1e-3)
    assert moved_j > 1.0


def test_an_energy_register_has_32_bits_and_wraps_with_its_zone(skylake: Node) -> None:
    skylake.twin.set_zone_energy_uj(0, skylake.twin.machine.zones[0].range_uj - 1_000_000)
    assert skylake.rdmsr(0x611) > 0xFFFF_0000
    skylake.twin.advance(0.5)
    assert skylake.rdmsr(0x611) * 61.035e-6 == pytest.approx(int(skylake.file(f"{ZONE}/energy_uj")) * 1e-6, rel=1e-3)


def test_the_units_are_an_eighth_watt_and_a_1024th_second(skylake: Node) -> None:
    assert (skylake.rdmsr(0x606, 3, 0), skylake.rdmsr(0x606, 12, 8), skylake.rdmsr(0x606, 19, 16)) == (3, 14, 10)


def test_a_limit_reads_as_its_powercap_files(skylake: Node) -> None:
    assert skylake.rdmsr(0x610, 14, 0) * 125_000 == int(skylake.file(f"{ZONE}/constraint_0_power_limit_uw"))
    assert skylake.rdmsr(0x610, 46, 32) * 125_000 == int(skylake.file(f"{ZONE}/constraint_1_power_limit_uw"))
    assert (skylake.rdmsr(0x610, 15, 15), skylake.rdmsr(0x610, 47, 47), skylake.rdmsr(0x610, 63, 63)) == (1, 1, 0)
    window_us = 2 ** skylake.rdmsr(0x610, 21, 17) * (1 + skylake.rdmsr(0x610, 23, 22) / 4) * 976
    assert window_us == int(skylake.file(f"{ZONE}/constraint_0_time_window_us"))
    assert skylake.rdmsr(0x614, 14, 0) / 8 == 165  # its TDP


def test_a_limit_that_is_written_caps_the_package_and_shows_in_powercap(skylake: Node) -> None:
    value = skylake.rdmsr(0x610)
    skylake.wrmsr(0x610, value & ~0x7FFF | 80 * 8)
    assert skylake.file(f"{ZONE}/constraint_0_power_limit_uw") == "80000000"
    assert skylake.rdmsr(0x610) == value & ~0x7FFF | 80 * 8
    skylake.twin.advance(5.0)
    before = skylake.rdmsr(0x611)
    skylake.twin.advance(2.0)
    assert (skylake.rdmsr(0x611) - before) * 2.0**-14 / 2.0 == pytest.approx(80, rel=0.02)


def test_a_limit_is_disabled_and_its_window_set_by_their_bits(skylake: Node) -> None:
    skylake.wrmsr(0x610, skylake.rdmsr(0x610) & ~(1 << 15 | 0x7F << 17) | (3 << 22 | 4 << 17))
    assert skylake.file(f"{ZONE}/enabled") == "0"
    assert skylake.file(f"{ZONE}/constraint_0_time_window_us") == str(2**4 * 7 * 976 // 4)
    assert (skylake.rdmsr(0x610, 23, 22), skylake.rdmsr(0x610, 21, 17), skylake.rdmsr(0x610, 15, 15)) == (3, 4, 0)


def test_a_locked_limit_faults_when_it_is_written(skylake: Node) -> None:
    locked = skylake.rdmsr(0x610) | 1 << 63
    skylake.wrmsr(0x610, locked)
    with pytest.raises(OSError) as fault:
        skylake.wrmsr(0x610, locked & ~0x7FFF)
    assert fault.value.errno == errno.EIO
    assert skylake.rdmsr(0x610) == locked


def test_a_fault_that_refuses_the_powercap_file_refuses_the_register(skylake: Node) -> None:
    skylake.tree.faults.add_line(f"refused {ZONE}/constraint_0_power_limit_uw")
    with pytest.raises(OSError):
        skylake.wrmsr(0x610, skylake.rdmsr(0x610) & ~0x7FFF | 640)


def test_a_stuck_energy_file_sticks_the_register_and_a_missing_one_faults(skylake: Node) -> None:
    number = skylake.tree.faults.add_line(f"stuck {ZONE}/energy_uj")
    before = skylake.rdmsr(0x611)
    skylake.twin.advance(0.1)
    assert skylake.rdmsr(0x611) == before
    skylake.tree.faults.remove(number)
    assert skylake.rdmsr(0x611) > before
    skylake.tree.faults.add_line(f"missing {ZONE}/energy_uj")
    with pytest.raises(OSError) as fault:
        skylake.rdmsr(0x611)
    assert fault.value.errno == errno.EIO


def test_core_energies_of_amd_add_up_to_less_than_the_package(genoa: Node) -> None:
    first, cores = genoa.rdmsr(0xC001029B), [genoa.rdmsr(0xC001029A, cpu=cpu) for cpu in range(96)]
    genoa.twin.advance(1.0)
    package = genoa.rdmsr(0xC001029B) - first
    moved = [genoa.rdmsr(0xC001029A, cpu=cpu) - before for cpu, before in enumerate(cores)]
    assert min(moved) > 0 and 0.4 * package < sum(moved) < package
    assert genoa.rdmsr(0xC001029A, cpu=192) == genoa.rdmsr(0xC001029A, cpu=0)  # its second thread


# ---- clocks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", ["skylake-6146", "curie", "client", "xh2415", "genoa-h100", "spr-h100"])
def test_aperf_mperf_and_tsc_give_the_clock_that_cpufreq_shows(machine: str) -> None:
    node = Node(machine)
    node.tree.write(f"{CPUFREQ.format(0)}/scaling_max_freq", b"1500000")  # a clock that no limit lowers
    node.twin.advance(0.05)
    numbers = (0xE8, 0xE7, 0x10)
    before = [node.rdmsr(number) for number in numbers]
    node.twin.advance(0.5)
    cycles, reference, ticks = (node.rdmsr(number) - was for number, was in zip(numbers, before, strict=True))
    tsc_khz = node.twin.machine.tsc_khz
    assert ticks == pytest.approx(tsc_khz * 500, rel=1e-3)
    assert cycles / reference * tsc_khz == pytest.approx(node.khz(), rel=0.01)
    assert 0 < reference <= ticks * 1.001


def test_platform_info_and_turbo_ratios_name_the_range_of_cpufreq(skylake: Node) -> None:
    folder = CPUFREQ.format(0)
    assert skylake.rdmsr(0xCE, 15, 8) * 100_000 == skylake.twin.machine.base_khz
    assert skylake.rdmsr(0xCE, 47, 40) * 100_000 == int(skylake.file(f"{folder}/cpuinfo_min_freq"))
    assert skylake.rdmsr(0x1AD, 7, 0) * 100_000 == int(skylake.file(f"{folder}/cpuinfo_max_freq"))
    assert skylake.rdmsr(0x198, 15, 8) == skylake.khz() // 100_000


def test_hardware_p_states_show_and_set_the_range(skylake: Node) -> None:
    skylake.tree.write(f"{CPUFREQ.format(3)}/scaling_max_freq", b"2400000")
    assert skylake.rdmsr(0x774, 15, 8, cpu=3) == 24
    assert skylake.rdmsr(0x771, 7, 0) == 32 and skylake.rdmsr(0x770) == 1
    skylake.wrmsr(0x774, 12 | 15 << 8 | 255 << 24, cpu=3)
    skylake.twin.advance(0.1)
    assert skylake.khz(3) == 1_500_000 and skylake.khz(4) == 3_200_000
    assert skylake.file(f"{CPUFREQ.format(3)}/energy_performance_preference") == "power"
    assert skylake.file(f"{CPUFREQ.format(3)}/scaling_max_freq") == "2400000"  # the kernel's own request stays
    skylake.tree.write(f"{CPUFREQ.format(3)}/scaling_max_freq", b"3200000")
    skylake.twin.advance(0.1)
    assert skylake.khz(3) == 3_200_000


def test_the_energy_preference_of_a_request_lowers_the_clock_that_the_hardware_chooses() -> None:
    client = Node("client")
    client.twin.stop_workload()
    client.twin.set_load([1.0] + [0.0] * 7)
    for preference, khz in ((128, 4_700_000), (255, 2_800_000), (160, 4_200_000)):
        client.wrmsr(0x774, 4 | 47 << 8 | preference << 24)
        client.twin.advance(0.2)
        assert (client.khz(), client.rdmsr(0x774, 15, 8)) == (khz, 47), "the request itself stays"


def test_perf_ctl_sets_the_clock_of_a_processor_without_hardware_p_states(curie: Node) -> None:
    curie.tree.write(f"{CPUFREQ.format(0)}/scaling_governor", b"performance")
    curie.wrmsr(0x199, 15 << 8)
    curie.twin.advance(0.1)
    assert curie.khz() == 1_500_000 and curie.rdmsr(0x199, 15, 8) == curie.rdmsr(0x198, 15, 8) == 15


def test_cppc_of_amd_agrees_with_acpi_cppc_and_sets_the_range(genoa: Node) -> None:
    folder = "/sys/devices/system/cpu/cpu0/acpi_cppc"
    for name, low in (("lowest_perf", 0), ("nominal_perf", 16), ("highest_perf", 24)):
        assert genoa.rdmsr(0xC00102B0, low + 7, low) == int(genoa.file(f"{folder}/{name}"))
    assert genoa.rdmsr(0xC00102B3, 7, 0) == 255
    for cpu in (0, 192):  # each thread of the core has the register, and the higher request counts
        assert genoa.khz() == 3_700_000
        genoa.wrmsr(0xC00102B3, round(255 * 1500 / 3700) | 28 << 8, cpu)
        genoa.twin.advance(0.1)
    assert genoa.khz() == 1_500_000
    genoa.tree.write(f"{CPUFREQ.format(0)}/scaling_governor", b"powersave")
    genoa.tree.write(f"{CPUFREQ.format(0)}/energy_performance_preference", b"power")
    assert genoa.rdmsr(0xC00102B3, 31, 24) == 255


def test_p_states_of_amd_are_the_tables_clocks() -> None:
    node = Node("xh2415", "easywave")
    steps = [int(khz) for khz in node.file(f"{CPUFREQ.format(0)}/scaling_available_frequencies").split()]
    for number, khz in enumerate(steps):
        definition = 0xC0010064 + number
        assert node.rdmsr(definition, 63, 63) == 1
        assert node.rdmsr(definition, 7, 0) * 200_000 // node.rdmsr(definition, 13, 8) == khz
    node.wrmsr(0xC0010062, 2)
    node.twin.advance(0.1)
    commands = [node.rdmsr(0xC0010062, cpu=cpu) for cpu in (0, 48)]
    assert commands == [2, 0] and node.rdmsr(0xC0010063) == 0, "a command for each thread; the core has one state"
    node.wrmsr(0xC0010062, 2, cpu=48)
    node.twin.advance(0.1)
    assert node.khz() == steps[2] and node.rdmsr(0xC0010063) == node.rdmsr(0xC0010063, cpu=48) == 2


def test_turbo_is_switched_by_the_register_and_by_the_file() -> None:
    client = Node("client")
    no_turbo = "/sys/devices/system/cpu/intel_pstate/no_turbo"
    client.wrmsr(0x1A0, client.rdmsr(0x1A0) | 1 << 38)
    assert client.file(no_turbo) == "1"
    client.tree.write(no_turbo, b"0")
    assert client.rdmsr(0x1A0, 38, 38) == 0


def test_the_uncores_ratios_are_the_files_of_its_driver(skylake: Node) -> None:
    skylake.wrmsr(0x620, 14 | 12 << 8)
    assert skylake.file(f"{UNCORE}/max_freq_khz") == "1400000"
    skylake.tree.write(f"{UNCORE}/max_freq_khz", b"1800000")
    assert (skylake.rdmsr(0x620, 6, 0), skylake.rdmsr(0x620, 14, 8), skylake.rdmsr(0x621, 6, 0)) == (18, 12, 18)


def test_an_energy_bias_is_stored_for_the_core(skylake: Node) -> None:
    assert skylake.rdmsr(0x1B0) == 6
    skylake.wrmsr(0x1B0, 15, cpu=2)
    assert (skylake.rdmsr(0x1B0, cpu=2), skylake.rdmsr(0x1B0, cpu=3)) == (15, 6)


# ---- temperatures and the rest -------------------------------------------------------------------------------------


def test_a_readout_counts_degrees_below_the_target(skylake: Node) -> None:
    chip = next(path for path in skylake.tree.names() if path.endswith("/temp1_label"))
    hwmon_c = int(skylake.file(chip.replace("_label", "_input"))) // 1000
    assert skylake.rdmsr(0x1B1, 31, 31) == 1
    assert skylake.rdmsr(0x1A2, 23, 16) - skylake.rdmsr(0x1B1, 22, 16) == hwmon_c


@pytest.mark.parametrize("number", [0x12345, 0xC0010299, 0x4000_0000])
def test_a_register_that_the_machine_lacks_gives_eio(skylake: Node, number: int) -> None:
    for call in (lambda: skylake.rdmsr(number), lambda: skylake.wrmsr(number, 1)):
        with pytest.raises(OSError) as fault:
            call()
        assert fault.value.errno == errno.EIO


@pytest.mark.parametrize("number", [0xCE, 0x611, 0x19C])
def test_a_register_for_reading_gives_eio_when_written(skylake: Node, number: int) -> None:
    with pytest.raises(OSError) as fault:
        skylake.wrmsr(number, 0)
    assert fault.value.errno == errno.EIO


def test_a_machine_that_is_no_x86_has_no_registers() -> None:
    machine = load_machine("controlpulp")
    assert not Registers(SysfsTree(Twin(machine)))


def test_every_register_of_every_shipped_machine_reads(tmp_path: Path) -> None:
    for name in ("client", "curie", "genoa-h100", "rome", "skylake-6146", "spr-h100", "taurus", "v100", "xh2415"):
        machine = load_machine(name)
        registers = Registers(SysfsTree(Twin(machine)))
        values = {number: registers.read(machine.cpus - 1, number) for number in registers.numbers}
        assert len(values) > 20 and all(0 <= value < 1 << 64 for value in values.values())
