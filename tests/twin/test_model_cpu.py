"""CPU clocks, work and counters."""

import numpy as np
import pytest

from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import Workload, load_workload

# Run time at 1.2 GHz over run time at 2.7 GHz on Curie (Glesser, thesis, section 3.1).
DEGRADATIONS = {"hpl": 2.14, "imb": 2.13, "nas": 1.5, "stream": 1.26, "gromacs": 1.16}


def _run(twin: Twin, limit_s: float = 300.0) -> float:
    for _ in range(round(limit_s)):
        twin.advance(1.0)
        if twin.finished:
            return twin.report().time_s
    raise AssertionError("the workload did not end")


def _workload(twin_machine: str, name: str, duration_s: float, bias: float = 0.2) -> tuple[Twin, Workload]:
    machine = load_machine(twin_machine)
    workload = load_workload(name, machine, duration_s=duration_s, bias=bias)
    twin = Twin(machine, workload)
    for domain in range(len(machine.domains)):
        twin.set_domain(domain, governor="performance")
    return twin, workload


@pytest.mark.parametrize(("name", "degradation"), DEGRADATIONS.items())
def test_curie_workloads_degrade_as_published(name: str, degradation: float) -> None:
    fast, _ = _workload("curie", name, 20.0)
    slow, _ = _workload("curie", name, 20.0)
    for domain in range(2):
        slow.set_domain(domain, max_khz=1_200_000)
    assert _run(slow) / _run(fast) == pytest.approx(degradation, rel=0.003)
    assert slow.report().slowdown == pytest.approx(degradation - 1.0, abs=0.005)


def test_one_slow_domain_delays_its_group() -> None:
    twin, _ = _workload("curie", "hpl", 20.0)
    twin.set_domain(1, max_khz=1_200_000)
    assert _run(twin) == pytest.approx(20.0 * 2.14, rel=0.01)


def test_an_early_cpu_spins_or_sleeps_at_the_barrier(tmp_path) -> None:  # type: ignore[no-untyped-def]
    text = """
name = "x"
summary = "x"
source = "test"
[[cpu]]
wait = "WAIT"
[[cpu.phase]]
name = "p"
seconds = 4.0
beta = 1.0
iterations = 20
"""
    busy = {}
    for wait in ("spin", "sleep"):
        path = tmp_path / f"{wait}.toml"
        path.write_text(text.replace("WAIT", wait))
        machine = load_machine("curie")
        twin = Twin(machine, load_workload(str(path), machine))
        twin.set_domain(0, governor="performance")
        twin.set_domain(1, governor="powersave")
        twin.advance(4.0)
        busy[wait] = twin.busy_idle_us()[0][0] / 4e6
    assert busy["spin"] == pytest.approx(1.0, abs=0.01)
    assert busy["sleep"] == pytest.approx(1.2 / 2.7, abs=0.02)


def test_a_clock_follows_after_the_latency() -> None:
    machine = load_machine("xh2415")  # 1 ms slots
    twin = Twin(machine)
    twin.advance(0.01)
    twin.set_domain(3, max_khz=1_500_000)
    twin.advance(0.0009)
    assert twin.cpu_khz(3) == 2_800_000
    twin.advance(0.0002)
    assert twin.cpu_khz(3) == 1_500_000
    assert twin.cpu_khz(4) == 2_800_000


def test_siblings_follow_one_clock() -> None:
    machine = load_machine("xh2415")
    twin = Twin(machine)
    twin.set_domain(5, max_khz=1_500_000)
    twin.advance(0.01)
    assert machine.domains[5].cpus == (5, 53)
    assert twin.cpu_khz(53) == 1_500_000


@pytest.mark.parametrize(
    ("governor", "khz"), [("performance", 2_600_000), ("powersave", 1_300_000), ("userspace", 1_900_000)]
)
def test_governors_choose_within_the_limits(governor: str, khz: int) -> None:
    twin = Twin(load_machine("curie"))
    twin.set_domain(0, min_khz=1_300_000, max_khz=2_600_000, setspeed_khz=1_850_000, governor=governor)
    twin.advance(0.001)
    assert twin.cpu_khz(0) == khz


@pytest.mark.parametrize("name", ["curie", "client"])
def test_a_dynamic_governor_follows_load(name: str) -> None:
    machine = load_machine(name)
    twin = Twin(machine)
    twin.set_domain(0, governor="powersave" if name == "client" else "ondemand")
    twin.advance(1.0)
    assert twin.cpu_khz(0) == machine.min_khz
    twin.start_workload(load_workload("stream", machine))
    twin.advance(0.5)
    assert twin.cpu_khz(0) > 0.6 * machine.max_khz


def test_siblings_share_a_cores_throughput(tmp_path) -> None:  # type: ignore[no-untyped-def]
    machine = load_machine("xh2415")
    instructions = {}
    for cpus in ("0", "0,48"):
        path = tmp_path / "w.toml"
        path.write_text(
            f'name = "x"\nsummary = "x"\nsource = "test"\nnoise = 0.0\n[[cpu]]\ncpus = "{cpus}"\n'
            '[[cpu.phase]]\nname = "p"\nseconds = 9.0\nbeta = 1.0\n'
        )
        twin = Twin(machine, load_workload(str(path), machine, bias=0.0))
        twin.advance(1.0)
        instructions[cpus] = twin.counters(["instructions"])[:, 0]
    alone, both = instructions["0"], instructions["0,48"]
    assert both[0] + both[48] == pytest.approx(machine.smt_throughput * alone[0], rel=0.01)
    assert both[0] == both[48]  # each sibling has its own counters
    assert alone[48] < 0.01 * alone[0]


def test_cycles_follow_the_clock_and_reference_cycles_do_not() -> None:
    twin, _ = _workload("skylake-6146", "hpl", 30.0)
    twin.set_domain(2, max_khz=1_600_000)
    twin.advance(0.1)
    before = twin.counters(["cycles", "reference-cycles"])
    twin.advance(1.0)
    cycles, reference = (twin.counters(["cycles", "reference-cycles"]) - before).T
    assert cycles[2] == pytest.approx(1.6e9, rel=0.01)
    assert cycles[3] == pytest.approx(3.2e9, rel=0.01)
    assert reference[2] == pytest.approx(3.2e9, rel=0.01)


def test_memory_bound_work_misses_and_stalls_more() -> None:
    rates = {}
    for name in ("hpl", "stream"):
        twin, _ = _workload("curie", name, 20.0, bias=0.0)
        twin.advance(5.0)
        cycles, instructions, stalls, misses = twin.counters(["cycles", "instructions", "stalls", "llc-misses"])[0]
        rates[name] = (stalls / cycles, misses / instructions, instructions / cycles)
    assert rates["stream"][0] > 0.7
    assert rates["hpl"][0] < 0.15
    assert rates["stream"][1] > 5 * rates["hpl"][1]
    assert rates["stream"][2] < rates["hpl"][2]


def test_work_is_the_same_at_any_clock() -> None:
    done = []
    for khz in (1_200_000, 2_700_000):
        twin, workload = _workload("curie", "mixed-cpu:8", 20.0)
        for domain in range(2):
            twin.set_domain(domain, max_khz=khz)
        seconds = _run(twin)
        report = twin.report()
        done.append(seconds / (1.0 + report.slowdown))
        assert report.work_done == pytest.approx(1.0)
    assert done == pytest.approx([workload.seconds] * 2, rel=1e-3)


def test_the_progress_of_work_is_known_at_any_time() -> None:
    twin, _ = _workload("curie", "nas", 20.0)
    shares = []
    for _ in range(10):
        twin.advance(2.0)
        shares.append(twin.report().work_done)
    assert shares == pytest.approx(np.linspace(0.1, 1.0, 10), abs=0.01)


def test_replacing_a_workload_resets_its_account() -> None:
    machine = load_machine("curie")
    twin = Twin(machine, load_workload("hpl", machine, duration_s=5.0))
    twin.advance(3.0)
    twin.start_workload(load_workload("stream", machine, duration_s=5.0))
    twin.advance(1.0)
    report = twin.report()
    assert report.time_s == pytest.approx(1.0)
    assert report.work_done == pytest.approx(0.2, abs=0.02)
    assert [phase.name for phase in report.phases] == ["triad"]
    twin.advance(10.0)
    assert twin.finished
