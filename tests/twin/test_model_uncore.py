"""The uncore's clock: its limits, and what follows it."""

from pathlib import Path

import msgspec
import pytest

from tests.oracle.bandwidth import Thread, paces
from twin.errors import TwinError
from twin.files.sysfs_tree import SysfsTree
from twin.machine import Machine, Uncore, load_machine
from twin.machine_tables import Bandwidth
from twin.msr.registers import Registers
from twin.physics.model import Twin
from twin.programs.workload import Workload, load_workload

UNCORE = Uncore(min_khz=800_000, max_khz=2_400_000, wait_share=0.6, clock_w=15.0)
FOLDER = "/sys/devices/system/cpu/intel_uncore_frequency/package_0{}_die_00"


@pytest.fixture
def skylake() -> Machine:
    return msgspec.structs.replace(load_machine("skylake-6146"), uncore=UNCORE, governor="performance")


def _work(folder: Path, machine: Machine, beta: float, gbs: float = 0.0, cpus: str = "cores") -> Workload:
    path = folder / f"{beta}-{gbs}.toml"
    path.write_text(
        f'name = "x"\nsummary = "x"\nsource = "test"\nnoise = 0.0\n[[cpu]]\ncpus = "{cpus}"\n'
        f'[[cpu.phase]]\nname = "p"\n'
        f"seconds = 1000.0\nbeta = {beta}\ntraffic_gbs = {gbs}\n"
    )
    return load_workload(str(path), machine, bias=0.0)


def _rates(twin: Twin, seconds: float = 0.2) -> tuple[float, float, float]:
    """Instructions a second of CPU 0, GB/s and watts of package 0."""
    before = twin.counters(["instructions"])[0, 0], twin.traffic_bytes(0), twin.report().energy_j["package-0"]
    twin.advance(seconds)
    after = twin.counters(["instructions"])[0, 0], twin.traffic_bytes(0), twin.report().energy_j["package-0"]
    instructions, traffic, joules = ((b - a) / seconds for a, b in zip(before, after, strict=True))
    return float(instructions), traffic / 1e9, joules


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("khz", [800_000, 1_500_000, 2_400_000])
def test_waiting_for_memory_goes_with_the_uncores_clock_by_its_share(
    khz: int, beta: float, skylake: Machine, tmp_path: Path
) -> None:
    twin = Twin(skylake, _work(tmp_path, skylake, beta, gbs=1.0))
    fast, gbs, _ = _rates(twin)
    twin.set_uncore(0, 800_000, khz)
    slow, less_gbs, _ = _rates(twin)
    waiting = (1 - beta) * (0.6 * 2_400_000 / khz + 0.4)
    assert slow / fast == pytest.approx(1 / (beta + waiting), rel=1e-6)
    assert less_gbs / gbs == pytest.approx(slow / fast, rel=1e-6)


def test_a_packages_watts_go_with_the_square_of_its_uncores_clock(skylake: Machine, tmp_path: Path) -> None:
    twins = [Twin(skylake, _work(tmp_path, skylake, 1.0)) for _ in range(2)]
    twins[1].set_uncore(0, 800_000, 1_200_000)
    (_, _, high), (_, _, low) = (_rates(twin) for twin in twins)
    assert high - low == pytest.approx(15.0 * (1 - 0.5**2), abs=0.02)
    others = [twin.report().energy_j["package-1"] for twin in twins]
    assert others[0] == others[1]


def test_an_idle_package_has_its_lower_limit_and_an_active_one_its_upper(skylake: Machine, tmp_path: Path) -> None:
    twin = Twin(skylake)
    twin.advance(0.01)
    assert [twin.uncore_khz(package) for package in (0, 1)] == [800_000, 800_000]
    twin.start_workload(_work(tmp_path, skylake, 0.5, cpus="12"))
    twin.advance(0.01)
    assert [twin.uncore_khz(package) for package in (0, 1)] == [800_000, 2_400_000]
    twin.set_uncore(1, 2_000_000, 1_000_000)
    assert twin.uncore_khz(1) == 1_000_000


def test_files_and_registers_set_the_clock_and_show_it(skylake: Machine, tmp_path: Path) -> None:
    twin = Twin(skylake, _work(tmp_path, skylake, 0.0))
    tree = SysfsTree(twin)
    registers, folder = Registers(tree), FOLDER.format(0)
    twin.advance(0.01)
    assert tree.read(f"{folder}/initial_max_freq_khz") == b"2400000\n"
    assert tree.read(f"{folder}/current_freq_khz") == b"2400000\n"
    fast = _rates(twin)[0]
    tree.write(f"{folder}/max_freq_khz", b"1600000")
    assert tree.read(f"{folder}/current_freq_khz") == b"1600000\n"
    assert registers.read(0, 0x621) == 16
    assert _rates(twin)[0] / fast == pytest.approx(1 / (0.6 * 1.5 + 0.4), rel=1e-6)
    registers.write(0, 0x620, 12 | 8 << 8)
    assert twin.uncore_khz(0) == 1_200_000
    assert twin.uncore_khz(1) == 2_400_000


def test_a_slower_uncore_asks_less_of_a_shared_bandwidth(skylake: Machine, tmp_path: Path) -> None:
    shared = msgspec.structs.replace(skylake.memory, bandwidth=Bandwidth(core_gbs=20.0, package_gbs=60.0))
    machine = msgspec.structs.replace(skylake, memory=shared)
    twin = Twin(machine, _work(tmp_path, machine, 0.0, gbs=10.0))
    assert _rates(twin)[1] == pytest.approx(60.0, rel=1e-6)
    twin.set_uncore(0, 800_000, 1_200_000)
    assert _rates(twin)[1] == pytest.approx(60.0, rel=1e-6)  # 12 cores ask for 120 / 1.6 = 75
    twin.set_uncore(0, 800_000, 800_000)
    assert _rates(twin)[1] == pytest.approx(120.0 / 2.2, rel=1e-6)


def test_unlike_threads_share_a_bandwidth_below_a_slow_uncore_as_the_oracle_says(
    skylake: Machine, tmp_path: Path
) -> None:
    memory = msgspec.structs.replace(skylake.memory, bandwidth=Bandwidth(core_gbs=20.0, package_gbs=40.0))
    machine = msgspec.structs.replace(skylake, memory=memory)
    demand = [(0.9, 9.0)] * 6 + [(0.2, 8.0)] * 6  # beta, GB/s
    groups = [
        _work(tmp_path, machine, beta, gbs, cpus)
        for (beta, gbs), cpus in zip(((0.9, 9.0), (0.2, 8.0)), ("0,1,2,3,4,5", "6,7,8,9,10,11"), strict=True)
    ]
    both = msgspec.structs.replace(groups[0], groups=(*groups[0].groups, *groups[1].groups))
    alone, together = Twin(skylake, both), Twin(machine, both)
    together.set_uncore(0, 800_000, 1_200_000)
    counts = []
    for twin in (alone, together):
        twin.advance(0.2)
        counts.append(twin.counters(["instructions"])[:12, 0])
    slower = 0.6 * 2 + 0.4
    paces_alone = [1 / (beta + slower * (1 - beta)) for beta, _ in demand]
    threads = [
        Thread(gbs * pace, slower * (1 - beta) * pace, core)
        for core, ((beta, gbs), pace) in enumerate(zip(demand, paces_alone, strict=True))
    ]
    shared = paces(threads, core_gbs=20.0, package_gbs=40.0)
    expected = [one * other for one, other in zip(paces_alone, shared, strict=True)]
    assert counts[1] / counts[0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("limit_w", "khz"),
    [(30, 800_000), (50, 800_000), (75, 1_600_000), (90, 2_100_000), (100, 2_400_000), (160, 2_400_000)],
)
def test_a_power_limit_of_the_package_lowers_it(limit_w: int, khz: int, skylake: Machine, tmp_path: Path) -> None:
    capped = msgspec.structs.replace(UNCORE, cap_low_w=50.0, cap_high_w=100.0)
    machine = msgspec.structs.replace(skylake, uncore=capped)
    twin = Twin(machine, _work(tmp_path, machine, 0.5))
    zone = next(n for n, each in enumerate(machine.zones) if each.kind == "package" and each.package == 0)
    twin.set_zone_limit(zone, 0, limit_uw=limit_w * 1_000_000)
    assert twin.uncore_khz(0) == khz
    assert twin.uncore_khz(1) == 2_400_000
    twin.set_zone_limit(zone, 0, enabled=False)
    assert twin.uncore_khz(0) == 2_400_000
    twin.set_zone_limit(zone, 0, enabled=True)
    twin.set_uncore(0, 800_000, 1_000_000)
    assert twin.uncore_khz(0) == min(khz, 1_000_000)


def test_a_low_cap_can_be_kept_because_the_uncore_slows() -> None:
    machine = load_machine("spr-h100")
    twin = Twin(machine, load_workload("hpl", machine))
    for zone in (0, 2):
        twin.set_zone_limit(zone, 0, limit_uw=130_000_000)
    twin.advance(20.0)
    before = twin.report().energy_j["package-0"]
    twin.advance(5.0)
    watts = (twin.report().energy_j["package-0"] - before) / 5.0
    assert twin.uncore_khz(0) == 1_100_000
    assert watts == pytest.approx(130.0, rel=0.02)


def test_without_the_table_limits_are_stored_without_effect(tmp_path: Path) -> None:
    machine = load_machine("skylake-6146")
    twin = Twin(machine, _work(tmp_path, machine, 0.0))
    tree = SysfsTree(twin)
    before = _rates(twin)
    tree.write(f"{FOLDER.format(0)}/max_freq_khz", b"1200000")
    assert tree.read(f"{FOLDER.format(0)}/current_freq_khz") == b"1200000\n"
    assert _rates(twin)[0] == pytest.approx(before[0], rel=1e-9)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("min_khz = 2500000\nclock_w = 1.0", "above max_khz"), ("min_khz = 800000\nclock_w = 99.0", "of which")],
)
def test_uncore_numbers_that_do_not_fit_are_refused(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    shipped = Path(load_machine("skylake-6146").path).read_text()
    path.write_text(f"{shipped}\n[uncore]\nmax_khz = 2400000\nwait_share = 0.6\n{text}\n")
    with pytest.raises(TwinError, match=problem):
        load_machine(str(path))
