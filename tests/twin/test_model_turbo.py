"""Turbo bins by active cores and vectors, and the limit that a package's own firmware keeps."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from twin.errors import TwinError
from twin.files.sysfs_tree import SysfsTree
from twin.machine import Machine, Turbo, load_machine
from twin.msr.registers import Registers
from twin.physics.model import Twin
from twin.programs.workload import Workload, load_workload

TURBO = Turbo(
    cores=(2, 4, 8, 12),
    scalar=(3200, 3100, 2800, 2600),
    avx2=(3000, 2800, 2400, 2200),
    avx512=(2800, 2400, 1900, 1700),
)


@pytest.fixture
def skylake() -> Machine:
    return msgspec.structs.replace(load_machine("skylake-6146"), turbo=TURBO, governor="performance")


def _work(folder: Path, machine: Machine, *groups: tuple[str, str], wait: str = "spin") -> Workload:
    text = 'name = "x"\nsummary = "x"\nsource = "test"\n'
    for number, (cpus, vectors) in enumerate(groups):
        text += f'[[cpu]]\ncpus = "{cpus}"\nwait = "{wait}"\n[[cpu.phase]]\nname = "p{number}"\nvectors = "{vectors}"\n'
        text += "seconds = 1000.0\nbeta = 1.0\ntraffic_gbs = 0.0\n"
    path = folder / "work.toml"
    path.write_text(text)
    return load_workload(str(path), machine, bias=0.0)


def _cpus(numbers: range) -> str:
    return ",".join(str(cpu) for cpu in numbers)


@pytest.mark.parametrize("vectors", ["scalar", "avx2", "avx512"])
@pytest.mark.parametrize("active", range(1, 13))
def test_the_highest_clock_is_that_of_the_active_cores_and_their_vectors(
    active: int, vectors: str, skylake: Machine, tmp_path: Path
) -> None:
    twin = Twin(skylake, _work(tmp_path, skylake, (_cpus(range(active)), vectors)))
    twin.advance(0.01)
    row = getattr(TURBO, vectors)
    expected = next(mhz for cores, mhz in zip(TURBO.cores, row, strict=True) if active <= cores)
    assert {twin.cpu_khz(cpu) for cpu in range(active)} == {expected * 1000}
    assert twin.cpu_khz(12) == 3_200_000  # the other package has its own count


def test_each_core_has_the_clock_of_its_own_vectors(skylake: Machine, tmp_path: Path) -> None:
    twin = Twin(skylake, _work(tmp_path, skylake, ("0,1", "scalar"), ("2", "avx2"), ("3", "avx512")))
    twin.advance(0.01)
    assert [twin.cpu_khz(cpu) // 1000 for cpu in range(4)] == [3100, 3100, 2800, 2400]
    twin.stop_workload()
    twin.advance(0.01)
    assert twin.cpu_khz(0) == 3_200_000


def test_cores_of_one_clock_have_that_of_the_widest_vectors(tmp_path: Path) -> None:
    shared = load_machine("curie")
    turbo = Turbo(cores=(4, 8), scalar=(2700, 2500), avx2=(2400, 2200), avx512=(2000, 1800))
    machine = msgspec.structs.replace(shared, turbo=turbo, governor="performance")
    twin = Twin(machine, _work(tmp_path, machine, ("0,1,2", "scalar"), ("5", "avx512")))
    twin.advance(0.01)
    assert twin.cpu_khz(0) == 2_000_000


def test_cores_that_poll_or_run_programs_of_the_host_are_active_and_sleeping_ones_are_not(
    skylake: Machine, tmp_path: Path
) -> None:
    text = 'name = "x"\nsummary = "x"\nsource = "test"\n[[cpu]]\nwait = "WAIT"\ncpus = "CPUS"\nimbalance = 0.9\n'
    text += '[[cpu.phase]]\nname = "p"\nseconds = 100.0\nbeta = 1.0\n'
    clocks, busy = {}, {}
    for wait in ("spin", "sleep"):
        path = tmp_path / f"{wait}.toml"
        path.write_text(text.replace("WAIT", wait).replace("CPUS", _cpus(range(8))))
        twin = Twin(skylake, load_workload(str(path), skylake, bias=0.0))
        twin.advance(85.0)
        clocks[wait] = max(twin.cpu_khz(cpu) for cpu in range(8))
        busy[wait] = sum(twin.busy_idle_us()[0][:8] > 80e6)
    assert clocks["spin"] == 2_800_000
    assert clocks["sleep"] > 2_800_000
    assert busy["spin"] == 8 > busy["sleep"]
    loaded = Twin(skylake, _work(tmp_path, skylake, ("0", "scalar")))
    loaded.set_load([0.0] + [0.3] * 8 + [0.0] * 15)
    loaded.advance(0.01)
    assert loaded.cpu_khz(0) == 2_600_000


def test_files_counters_and_registers_show_the_bins(skylake: Machine, tmp_path: Path) -> None:
    twin = Twin(skylake, _work(tmp_path, skylake, (_cpus(range(8)), "avx512")))
    twin.advance(0.1)
    tree = SysfsTree(twin)
    assert tree.read("/sys/devices/system/cpu/cpu3/cpufreq/scaling_cur_freq") == b"1900000\n"
    assert tree.read("/sys/devices/system/cpu/cpu3/cpufreq/cpuinfo_max_freq") == b"3200000\n"
    registers = Registers(tree)
    before = [registers.read(3, number) for number in (0xE8, 0xE7)]
    counted = twin.counters(["cycles"])[3, 0]
    twin.advance(0.5)
    aperf, mperf = (registers.read(3, number) - was for number, was in zip((0xE8, 0xE7), before, strict=True))
    assert aperf / mperf == pytest.approx(1900 / 3200, rel=1e-3)
    assert twin.counters(["cycles"])[3, 0] - counted == pytest.approx(0.5 * 1.9e9, rel=1e-3)
    ratios, cores = (list(int(registers.read(0, number)).to_bytes(8, "little")) for number in (0x1AD, 0x1AE))
    assert ratios == [32, 31, 28, 26, 26, 26, 26, 26]
    assert cores == [2, 4, 8, 12, 12, 12, 12, 12]


def test_a_lower_request_is_in_force_below_the_bin(skylake: Machine, tmp_path: Path) -> None:
    twin = Twin(skylake, _work(tmp_path, skylake, (_cpus(range(12)), "scalar")))
    for domain in range(12):
        twin.set_domain(domain, max_khz=1_500_000 if domain < 6 else 3_200_000)
    twin.advance(0.01)
    assert [twin.cpu_khz(cpu) // 1000 for cpu in range(12)] == [1500] * 6 + [2600] * 6


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"cores": [2, 4, 8, 10]}, "cores must ascend to the cores of a package"),
        ({"avx2": [3000, 2800]}, "as many clocks as cores"),
        ({"scalar": [2600, 2800, 3100, 3200]}, "none above the one before"),
        ({"scalar": [3300, 3100, 2800, 2600]}, "above max_khz"),
    ],
)
def test_bins_that_do_not_fit_the_machine_are_refused(
    changed: dict[str, list[int]], problem: str, tmp_path: Path
) -> None:
    bins = {key: list(row) for key, row in msgspec.structs.asdict(TURBO).items()} | changed
    lines = "\n".join(f"{key} = {row}" for key, row in bins.items())
    path = tmp_path / "m.toml"
    path.write_text(Path(load_machine("skylake-6146").path).read_text() + f"\n[frequency.turbo]\n{lines}\n")
    with pytest.raises(TwinError, match=problem):
        load_machine(str(path))


@pytest.mark.parametrize("limit_w", [0.0, 360.0, 250.0])
def test_a_package_keeps_the_limit_of_its_own_firmware(limit_w: float) -> None:
    shipped = load_machine("genoa-h100")
    assert shipped.power.package_limit_w == 360.0
    machine = msgspec.structs.replace(shipped, power=msgspec.structs.replace(shipped.power, package_limit_w=limit_w))
    twin = Twin(machine, load_workload("hpl", machine))
    twin.advance(30.0)
    before = twin.report().energy_j
    watts, clocks = [], []
    for _ in range(50):
        twin.advance(0.1)
        now = twin.report().energy_j
        watts.append((now["package-1"] - before["package-1"]) / 0.1)
        clocks.append(twin.cpu_khz(machine.cores - 1))
        before = now
    if not limit_w:
        assert np.mean(watts) > 365.0
        assert set(clocks) == {machine.max_khz}
    else:
        assert np.mean(watts) == pytest.approx(limit_w, rel=0.01)
        assert max(watts) < 1.03 * limit_w
        assert np.mean(clocks) < 0.99 * machine.max_khz
