"""Faults: what each kind does to a file, a counter and a GPU, when it stands, and how a wrong one is refused."""

from __future__ import annotations

import errno
from collections.abc import Callable

import numpy as np
import pytest

from pmu.readings import RAW_MISSING
from twin.errors import TwinError
from twin.faults.active import Fault, Faults, parse_line, parse_table
from twin.faults.fault import GPU_READINGS
from twin.files.sysfs_tree import SysfsTree
from twin.machine import load_machine
from twin.physics.model import Twin

PACKAGE = "/sys/class/powercap/intel-rapl:0"
ENERGY = f"{PACKAGE}/energy_uj"
LIMIT = f"{PACKAGE}/constraint_0_power_limit_uw"
MAXIMUM = "/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq"


@pytest.fixture
def tree() -> SysfsTree:
    return SysfsTree(Twin(load_machine("curie")))


@pytest.fixture
def gpu_tree() -> SysfsTree:
    return SysfsTree(Twin(load_machine("xh2415")))


def number(tree: SysfsTree, path: str) -> int:
    return int(tree.read(path))


def errno_of(action: Callable[[], object]) -> int | None:
    with pytest.raises(OSError) as refusal:
        action()
    return refusal.value.errno


# ---- readings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "number"),
    [
        (ENERGY, errno.EINVAL),
        (LIMIT, errno.ENODATA),
        (MAXIMUM, errno.EBUSY),
        ("/sys/class/hwmon/hwmon0/temp1_input", errno.EIO),
    ],
)
def test_a_missing_reading_fails_as_its_driver_does(tree: SysfsTree, path: str, number: int) -> None:
    tree.faults.add(Fault("missing", path))
    assert errno_of(lambda: tree.read(path)) == number


def test_a_missing_reading_may_fail_with_a_chosen_errno(tree: SysfsTree) -> None:
    tree.faults.add(Fault("missing", ENERGY, value="EIO"))
    assert errno_of(lambda: tree.read(ENERGY)) == errno.EIO


def test_a_file_missing_with_enoent_is_gone_from_its_directory_too(tree: SysfsTree) -> None:
    fault = tree.faults.add(Fault("missing", ENERGY, value="ENOENT"))
    assert tree.kind(ENERGY) is None and "energy_uj" not in tree.listdir(PACKAGE)
    tree.faults.remove(fault)
    assert tree.kind(ENERGY) == "file" and "energy_uj" in tree.listdir(PACKAGE)


def test_a_fault_stands_from_its_time_for_its_duration(tree: SysfsTree) -> None:
    tree.faults.add(Fault("missing", ENERGY, at_s=1.0, for_s=0.5))
    stands = []
    for _ in range(8):
        try:
            tree.read(ENERGY)
            stands.append(False)
        except OSError:
            stands.append(True)
        tree.twin.advance(0.25)
    assert stands == [False] * 4 + [True] * 2 + [False] * 2


def test_a_stuck_reading_keeps_the_value_it_had(tree: SysfsTree) -> None:
    tree.faults.add(Fault("stuck", ENERGY, at_s=0.1, for_s=1.0))
    tree.twin.advance(0.2)
    first = number(tree, ENERGY)
    tree.twin.advance(0.5)
    assert number(tree, ENERGY) == first
    tree.twin.advance(0.5)
    assert number(tree, ENERGY) > first


def test_an_absurd_reading_is_what_no_such_instrument_shows(tree: SysfsTree) -> None:
    tree.faults.add(Fault("absurd", "/sys/class/hwmon/hwmon0/temp*_input"))
    tree.faults.add(Fault("absurd", ENERGY, value=-7))
    assert number(tree, "/sys/class/hwmon/hwmon0/temp3_input") == 255_000
    assert number(tree, "/sys/class/hwmon/hwmon1/temp3_input") < 100_000
    assert number(tree, ENERGY) == -7


def test_a_forced_wrap_keeps_every_joule_but_the_range(tree: SysfsTree) -> None:
    tree.faults.add(Fault("wrap", ENERGY, value=500_000))
    range_uj = number(tree, f"{PACKAGE}/max_energy_range_uj")
    before, true_before = number(tree, ENERGY), tree.twin.zone_energy_uj(0)
    assert range_uj - before == 500_000
    tree.twin.advance(1.0)
    after, true_after = number(tree, ENERGY), tree.twin.zone_energy_uj(0)
    assert after < before
    assert after - before + range_uj == true_after - true_before


def test_one_glob_may_strike_many_files_by_any_of_their_names(tree: SysfsTree) -> None:
    tree.faults.add(Fault("stuck", "/sys/devices/system/cpu/cpu8/cpufreq", value="gone"))
    assert tree.read("/sys/devices/system/cpu/cpufreq/policy8/scaling_cur_freq") == b"gone\n"
    assert tree.read(MAXIMUM) == b"2700000\n"
    tree.faults.add(Fault("missing", "*/energy_uj"))
    assert (
        errno_of(lambda: tree.read("/sys/devices/virtual/powercap/intel-rapl/intel-rapl:1/energy_uj")) == errno.EINVAL
    )


def test_a_slow_file_is_reported_and_takes_no_virtual_time(tree: SysfsTree) -> None:
    tree.faults.add(Fault("slow", MAXIMUM, value=0.5))
    age_ns = tree.twin.age_ns
    tree.read(MAXIMUM)
    tree.write(MAXIMUM, b"2000000")
    assert tree.delay_s(MAXIMUM) == 0.5 and tree.delay_s(ENERGY) == 0.0
    assert tree.delayed_s == 1.0
    assert tree.twin.age_ns == age_ns


# ---- writes --------------------------------------------------------------------------------------------------------


def test_a_limit_locked_since_boot_refuses_with_enodata_and_reads_disabled(tree: SysfsTree) -> None:
    tree.faults.add(Fault("locked", LIMIT))
    assert errno_of(lambda: tree.write(LIMIT, b"90000000")) == errno.ENODATA
    assert errno_of(lambda: tree.write(f"{PACKAGE}/constraint_1_time_window_us", b"976")) == errno.ENODATA
    assert errno_of(lambda: tree.write(f"{PACKAGE}/enabled", b"1")) == errno.ENOSYS
    assert number(tree, f"{PACKAGE}/enabled") == 0
    assert number(tree, LIMIT) == 130_000_000
    tree.write("/sys/class/powercap/intel-rapl:1/constraint_0_power_limit_uw", b"90000000")


def test_a_limit_locked_later_takes_the_write_and_still_shows_the_old_value(tree: SysfsTree) -> None:
    tree.faults.add(Fault("locked", PACKAGE, at_s=1.0))
    tree.write(LIMIT, b"120000000")
    tree.twin.advance(1.0)
    assert tree.write(LIMIT, b"90000000") == 8
    assert number(tree, LIMIT) == 120_000_000
    assert number(tree, f"{PACKAGE}/enabled") == 1


def test_a_refused_write_fails_and_changes_nothing(tree: SysfsTree) -> None:
    tree.faults.add(Fault("refused", MAXIMUM))
    tree.faults.add(Fault("refused", LIMIT, value="EPERM"))
    assert errno_of(lambda: tree.write(MAXIMUM, b"1500000")) == errno.EINVAL
    assert errno_of(lambda: tree.write(LIMIT, b"90000000")) == errno.EPERM
    assert number(tree, MAXIMUM) == 2_700_000


def test_a_write_without_effect_reads_back_and_the_clock_stays(tree: SysfsTree) -> None:
    tree.write("/sys/devices/system/cpu/cpufreq/policy0/scaling_governor", b"performance")
    fault = tree.faults.add(Fault("no-effect", MAXIMUM))
    tree.write(MAXIMUM, b"1500000")
    tree.twin.advance(0.1)
    assert number(tree, MAXIMUM) == 1_500_000
    assert tree.twin.cpu_khz(0) == 2_700_000
    tree.faults.remove(fault)
    tree.write(MAXIMUM, b"1500000")
    tree.twin.advance(0.1)
    assert tree.twin.cpu_khz(0) == 1_500_000


def test_a_dropped_write_reads_back_the_old_value(tree: SysfsTree) -> None:
    tree.faults.add(Fault("no-effect", MAXIMUM, value="dropped"))
    tree.write(MAXIMUM, b"1500000")
    assert number(tree, MAXIMUM) == 2_700_000


def test_a_foreign_writer_writes_again_and_again_at_its_own_times(tree: SysfsTree) -> None:
    tree.faults.add(Fault("foreign-writer", MAXIMUM, at_s=1.0, for_s=1.0, value="1200000", every_s=0.4))
    seen = []
    for _ in range(12):
        tree.act()
        seen.append(number(tree, MAXIMUM) == 1_200_000)
        tree.write(MAXIMUM, b"2700000")
        tree.twin.advance(0.2)
    assert [round(0.2 * i, 1) for i, struck in enumerate(seen) if struck] == [1.0, 1.4, 1.8]


# ---- counters ------------------------------------------------------------------------------------------------------


def test_a_missing_counter_is_raw_missing_in_a_sweep_and_cannot_be_opened(tree: SysfsTree) -> None:
    tree.faults.add(Fault("missing", "perf:instructions:3"))
    table = np.full((4, 2), 100, np.int64)
    tree.faults.spoil(("cycles", "instructions"), (2, 3, 4, 5), table)
    assert table[1, 1] == RAW_MISSING and np.count_nonzero(table == 100) == 7
    assert tree.faults.counter_errno("instructions", 3) == errno.ENOENT
    assert tree.faults.counter_errno("instructions", 4) == 0
    assert tree.faults.counted("instructions", 3, 5) is None


def test_a_stuck_counter_keeps_its_first_count_and_an_absurd_one_shows_its_value(tree: SysfsTree) -> None:
    faults = tree.faults
    faults.add(Fault("stuck", "perf:cycles"))
    faults.add(Fault("absurd", "perf:stalls", value=3))
    assert [faults.counted("cycles", 0, count) for count in (10, 20, 30)] == [10, 10, 10]
    assert faults.counted("cycles", 1, 40) == 40
    assert faults.counted("stalls", 9, 40) == 3
    fault = faults.counter("cycles", 0)
    assert fault is not None and fault.kind == "stuck"


def test_a_refused_counter_is_busy(tree: SysfsTree) -> None:
    tree.faults.add(Fault("refused", "perf:*"))
    assert tree.faults.counter_errno("cycles", 0) == errno.EBUSY
    assert tree.faults.counted("cycles", 0, 7) == 7  # those already open go on


# ---- GPUs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "bit"),
    [("gpu-lost", None, 0), ("stuck", None, 1), ("refused", None, 2), ("no-effect", None, 3), ("slow", 0.25, 4)],
)
def test_a_gpu_fault_sets_its_bit_while_it_stands(
    gpu_tree: SysfsTree, kind: str, value: float | None, bit: int
) -> None:
    gpus = gpu_tree.twin.gpus
    gpu_tree.faults.add(Fault(kind, "gpu:1", at_s=1.0, for_s=1.0, value=value))
    bits = []
    for _ in range(3):
        gpu_tree.act()
        bits.append([gpus.gpu[i].faults for i in range(4)])
        gpu_tree.twin.advance(1.0)
    assert bits == [[0] * 4, [0, 1 << bit, 0, 0], [0] * 4]
    if kind == "slow":
        assert gpus.slow_ms == 250


@pytest.mark.parametrize("kind", ["missing", "stuck", "absurd"])
@pytest.mark.parametrize("reading", [reading for reading in GPU_READINGS if reading not in ("power", "energy")])
def test_one_reading_of_one_gpu_may_be_struck_while_it_stands(kind: str, reading: str) -> None:
    tree = SysfsTree(Twin(load_machine("genoa-h100")))
    gpus = tree.twin.gpus
    tree.faults.add(Fault(kind, f"gpu:1:{reading}", at_s=0.1, for_s=0.1))
    bit = 1 << GPU_READINGS.index(reading)
    seen = []
    for _ in range(3):
        tree.act()
        seen.append([(gpus.gpu[i].faults, getattr(gpus.gpu[i], kind)) for i in range(3)])
        tree.twin.advance(0.1)
    assert seen == [[(0, 0)] * 3, [(0, 0), (0, bit), (0, 0)], [(0, 0)] * 3]


def test_without_its_power_sensor_a_gpu_counts_no_energy_but_energy_may_be_missing_alone(gpu_tree: SysfsTree) -> None:
    gpu_tree.faults.add(Fault("missing", "gpu:0:power"))
    gpu_tree.faults.add(Fault("missing", "gpu:1:energy"))
    gpu_tree.faults.add(Fault("absurd", "gpu:2:power"))
    gpus = gpu_tree.twin.gpus
    assert [gpus.gpu[i].missing for i in range(3)] == [0b11, 0b10, 0]
    assert gpus.gpu[2].absurd == 0b01


def test_a_glob_strikes_several_readings_and_a_gpu_alone_all_of_them() -> None:
    tree = SysfsTree(Twin(load_machine("genoa-h100")))
    tree.faults.add(Fault("absurd", "gpu:0:*-utilization"))
    tree.faults.add(Fault("absurd", "gpu:1"))
    assert tree.twin.gpus.gpu[0].absurd == 0b110000
    assert tree.twin.gpus.gpu[1].absurd == (1 << len(GPU_READINGS)) - 1


def test_an_absurd_reading_of_a_gpu_shows_the_value_of_the_fault(gpu_tree: SysfsTree) -> None:
    values = {"power": "-1", "energy": str(2**64 - 1), "temperature": "70000", "event-reasons": hex(2**63 + 4)}
    for reading, value in values.items():
        gpu_tree.faults.add_line(f"absurd gpu:1:{reading} value={value}")
    card = gpu_tree.twin.gpus.gpu[1]
    assert card.chosen == card.absurd == 0b1000111
    assert [card.value[n] for n in (0, 1, 2, 6)] == [2**64 - 1, 2**64 - 1, 70000, 2**63 + 4]
    gpu_tree.faults.clear()
    assert (card.chosen, card.absurd) == (0, 0)


def test_a_directory_whose_device_is_gone_is_not_listed_until_it_is_back(tree: SysfsTree) -> None:
    tree.faults.add(Fault("missing", "/sys/class/powercap/intel-rapl:0", at_s=0.1, for_s=0.2, value="ENOENT"))
    seen = []
    for _ in range(4):
        seen.append(("intel-rapl:0" in tree.listdir("/sys/class/powercap"), tree.kind(ENERGY) is not None))
        tree.twin.advance(0.1)
    assert seen == [(True, True), (False, False), (False, False), (True, True)]


def test_the_pci_bus_has_the_cards_and_nothing_of_the_host(gpu_tree: SysfsTree, tree: SysfsTree) -> None:
    bus = "/sys/bus/pci/devices"
    assert gpu_tree.listdir(bus) == [f"0000:{number:02x}:00.0" for number in (0x07, 0x17, 0x27, 0x37)]
    assert gpu_tree.read(f"{bus}/0000:07:00.0/vendor") == b"0x10de\n"
    assert gpu_tree.read(f"{bus}/0000:07:00.0/class") == b"0x030200\n"
    assert gpu_tree.realpath(f"{bus}/0000:07:00.0/driver").endswith("/drivers/nvidia")
    assert tree.listdir(bus) == []


def test_all_gpus_may_be_struck_at_once_and_recover_when_the_fault_is_removed(gpu_tree: SysfsTree) -> None:
    fault = gpu_tree.faults.add(Fault("gpu-lost", "gpu:*"))
    assert [gpu_tree.twin.gpus.gpu[i].faults for i in range(4)] == [1] * 4
    gpu_tree.faults.remove(fault)
    assert [gpu_tree.twin.gpus.gpu[i].faults for i in range(4)] == [0] * 4


def test_a_foreign_writer_locks_a_gpu_s_clock(gpu_tree: SysfsTree) -> None:
    gpu_tree.faults.add(Fault("foreign-writer", "gpu:2:clock", value=1005))
    before = gpu_tree.twin.gpus.gpu[2].lock_seq
    gpu_tree.act()
    assert gpu_tree.twin.gpus.gpu[2].lock_max_mhz == 1005
    assert gpu_tree.twin.gpus.gpu[2].lock_seq == before + 1


# ---- how faults are written ----------------------------------------------------------------------------------------


def test_a_fault_reads_back_from_its_own_line() -> None:
    for fault in (
        Fault("missing", ENERGY, at_s=2.5, for_s=3.0, value="EIO"),
        Fault("foreign-writer", MAXIMUM, value="1200000", every_s=0.25),
        Fault("locked", LIMIT),
    ):
        assert parse_line(str(fault)) == fault


def test_times_of_a_command_count_from_now_and_those_of_a_file_from_the_start(tree: SysfsTree) -> None:
    tree.twin.advance(2.0)
    tree.faults.add_line(f"missing {ENERGY} for=1")
    (_, fault, stands) = tree.faults.listing()[0]
    assert fault.at_s == 2.0 and stands
    assert parse_table({"kind": "stuck", "target": ENERGY, "at_s": 2, "for_s": 1}, "x").at_s == 2.0


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("missing gpu:0:powr", 'knows no GPU reading "powr" (nearest: power)'),
        ("gpu-lost gpu:0:power", "applies to the whole GPU"),
        ("stuck gpu:0:gpm-*", "have no GPM"),
        ("stuck gpu:0:power value=3", "takes no value"),
        ("absurd gpu:0:power value=1e300", "a whole number of 64 bits is needed"),
        ("absurd gpu:0:power value=36893488147419103232", "a whole number of 64 bits is needed"),
        ("no-driver gpu:0", "the target is gpu:*"),
        ("foreign-writer gpu:0:power value=3", "power-limit"),
        ("stuck gpu:4:power", "GPUs 0-3"),
    ],
)
def test_a_gpu_fault_that_cannot_be_is_refused_with_its_reason(gpu_tree: SysfsTree, line: str, reason: str) -> None:
    with pytest.raises(TwinError) as refusal:
        gpu_tree.faults.add_line(line)
    assert reason in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("line", "nearest"),
    [
        (f"mising {ENERGY}", "nearest: missing"),
        (f"missing {ENERGY} form=3", "nearest: for"),
        (f"missing {ENERGY} value=ENODATUM", "nearest: ENODATA"),
        ("missing /sys/class/powercap/intel-rapl:0/energy_uw", f"{PACKAGE}/energy_uj"),
        ("missing /sys/class/powercap/intel-rapl:7/energy_uj", "/sys/class/powercap/intel-rapl:"),
        ("missing perf:instruction", "nearest: instructions"),
        ("missing perf:cycles:99", "CPUs 0-15"),
        ("gpu-lost gpu:0", "no GPU"),
        ("gpu-lost hwmon", "perf:EVENT"),
        (f"gpu-lost {ENERGY}", "missing"),
        (f"wrap {MAXIMUM}", "only energy_uj wraps"),
        (f"locked {MAXIMUM}", "constraint_N_power_limit_uw"),
        (f"slow {MAXIMUM} value=5", "0 to 2 seconds"),
        (f"foreign-writer {MAXIMUM}", "value"),
        (f"stuck {ENERGY} for=soon", "number of seconds"),
        ("stuck", "KIND TARGET"),
        ("stuck 'gpu", "KIND TARGET"),
    ],
)
def test_a_fault_that_cannot_be_is_refused_in_one_line_with_the_nearest_valid_name(
    tree: SysfsTree, line: str, nearest: str
) -> None:
    with pytest.raises(TwinError) as refusal:
        tree.faults.add_line(line)
    message = str(refusal.value)
    assert nearest in message and "\n" not in message
    assert tree.faults.listing() == []


def test_a_fault_of_the_machine_file_is_refused_with_its_place(tree: SysfsTree) -> None:
    with pytest.raises(TwinError, match=r'machine x: \[\[fault\]\] 2: unknown key "targets".*nearest: target'):
        parse_table({"kind": "stuck", "targets": ENERGY}, "machine x: [[fault]] 2")
    with pytest.raises(TwinError, match="at_s"):
        parse_table({"kind": "stuck", "target": ENERGY, "at_s": "soon"}, "machine x: [[fault]] 1")


def test_a_target_that_names_nothing_is_refused_when_the_tree_is_made() -> None:
    twin = Twin(load_machine("curie"))
    faults = Faults(twin, [Fault("stuck", "/sys/class/powercap/intel-rapl:9/energy_uj")])
    with pytest.raises(TwinError, match="no such file"):
        SysfsTree(twin, faults)


def test_removing_a_fault_that_is_not_there_names_those_that_are(tree: SysfsTree) -> None:
    tree.faults.add(Fault("stuck", ENERGY))
    with pytest.raises(TwinError, match="faults now: 1"):
        tree.faults.remove(5)
    tree.faults.clear()
    assert tree.faults.listing() == []
