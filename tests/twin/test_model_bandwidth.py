"""Memory bandwidth that cores share: against a slow oracle, and against STREAM measured on an EPYC 7502."""

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.oracle.bandwidth import Thread, paces
from twin.errors import TwinError
from twin.machine import EVENTS, Machine, load_machine
from twin.machine_tables import Bandwidth
from twin.physics.model import Twin
from twin.programs.workload import Workload, load_workload

TRIAD_GBS = {1: 30.4, 2: 39.9, 4: 38.6, 8: 36.5, 32: 145.0}
"""Cores of one socket, the first ones of it: measured (2021-rome-ee, DRAM at 1600 MHz, fabric in its state 0)."""


def _with(bandwidth: Bandwidth | None, name: str = "curie") -> Machine:
    machine = load_machine(name)
    return msgspec.structs.replace(machine, memory=msgspec.structs.replace(machine.memory, bandwidth=bandwidth))


def _group(cpus: str, gbs: float, beta: float, work: str = "seconds = 1000.0\niterations = 1") -> str:
    return f"""
[[cpu]]
cpus = "{cpus}"
[[cpu.phase]]
name = "p{cpus.replace(",", "")}"
{work}
beta = {beta}
traffic_gbs = {gbs}
"""


def _work(folder: Path, machine: Machine, *groups: str) -> Workload:
    path = folder / "work.toml"
    path.write_text('name = "x"\nsummary = "x"\nsource = "test"\nnoise = 0.0\n' + "".join(groups))
    return load_workload(str(path), machine, bias=0.0)


def _traffic_gbs(twin: Twin, package: int = 0, seconds: float = 0.5) -> float:
    before = twin.traffic_bytes(package)
    twin.advance(seconds)
    return (twin.traffic_bytes(package) - before) / seconds / 1e9


def _instructions(twin: Twin, seconds: float = 0.5) -> np.ndarray:
    before = twin.counters(["instructions"])[:, 0]
    twin.advance(seconds)
    return np.asarray((twin.counters(["instructions"])[:, 0] - before) / seconds)


@pytest.mark.parametrize(("cores", "gbs"), TRIAD_GBS.items())
def test_triad_on_a_die_saturates_as_measured_on_rome(cores: int, gbs: float, tmp_path: Path) -> None:
    machine = load_machine("rome")
    work = _work(tmp_path, machine, _group(",".join(str(core) for core in range(cores)), 30.4, 0.208))
    assert _traffic_gbs(Twin(machine, work)) == pytest.approx(gbs, rel=0.03)


@pytest.mark.parametrize("seed", range(12))
def test_unlike_threads_slow_each_other_as_the_slow_oracle_says(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    links = {"link_cores": 4, "link_gbs": 25.0, "link_loss": 0.03} if seed % 3 else {}
    bandwidth = Bandwidth(core_gbs=12.0, package_gbs=float(random.uniform(20.0, 60.0)), **links)  # type: ignore[arg-type]
    machine = _with(bandwidth, "rome") if seed % 2 else _with(bandwidth)
    cpus = [*range(8), *((machine.cores, machine.cores + 1) if machine.threads_per_core > 1 else ())]
    demand = {cpu: (float(random.uniform(0.0, 20.0)), float(random.uniform(0.0, 1.0))) for cpu in cpus}
    work = _work(tmp_path, machine, *(_group(str(cpu), gbs, beta) for cpu, (gbs, beta) in demand.items()))
    alone = _instructions(Twin(_with(None, machine.name), work))
    together = _instructions(Twin(machine, work))
    share = {cpu: machine.smt_throughput / 2 if (cpu in (0, 1) and len(cpus) > 8) or cpu > 8 else 1.0 for cpu in cpus}
    threads = [Thread(gbs * share[cpu], 1 - beta, machine.core_of[cpu]) for cpu, (gbs, beta) in demand.items()]
    expected = paces(threads, **{key: getattr(bandwidth, key) for key in bandwidth.__struct_fields__})
    assert min(expected) < 0.9
    assert together[cpus] / alone[cpus] == pytest.approx(expected, rel=1e-6)


def test_traffic_is_what_flowed_and_the_time_lost_is_stall(tmp_path: Path) -> None:
    bandwidth = Bandwidth(core_gbs=15.0, package_gbs=40.0)
    counted = {}
    for each in (bandwidth, None):
        machine = _with(each)
        twin = Twin(machine, _work(tmp_path, machine, _group("cores", 10.0, 0.2)))
        twin.advance(1.0)
        counted[each] = dict(zip(EVENTS, twin.counters(EVENTS)[3].tolist(), strict=True))
        assert twin.traffic_bytes(0) / 1e9 == pytest.approx(40.0 if each else 80.0, rel=1e-6)
    shared, alone = counted[bandwidth], counted[None]
    assert shared["cycles"] == alone["cycles"]
    assert shared["instructions"] == pytest.approx(alone["instructions"] / 2, rel=1e-6)
    assert shared["llc-misses"] == pytest.approx(alone["llc-misses"] / 2, rel=1e-6)
    assert 1 - shared["stalls"] / shared["cycles"] == pytest.approx(
        (1 - alone["stalls"] / alone["cycles"]) / 2, rel=1e-6
    )


def test_work_takes_longer_by_as_much_as_its_traffic_is_bounded(tmp_path: Path) -> None:
    machine = _with(Bandwidth(core_gbs=15.0, package_gbs=40.0))
    work = "seconds = 4.0\niterations = 40"
    twin = Twin(machine, _work(tmp_path, machine, _group("cores", 10.0, 0.2, work)))
    while not twin.finished:
        twin.advance(0.1)
    assert twin.report().time_s == pytest.approx(8.0, rel=1e-3)
    assert (twin.traffic_bytes(0) + twin.traffic_bytes(1)) / 1e9 == pytest.approx(16 * 10.0 * 4.0, rel=1e-3)


def test_a_lower_clock_costs_no_speed_while_the_package_is_the_bound(tmp_path: Path) -> None:
    machine = _with(Bandwidth(core_gbs=15.0, package_gbs=40.0))
    twin = Twin(machine, _work(tmp_path, machine, _group("cores", 10.0, 0.2)))
    fast = _traffic_gbs(twin)
    twin.set_domain(0, max_khz=1_200_000)
    twin.advance(0.01)
    assert _traffic_gbs(twin) == pytest.approx(fast, rel=1e-6)


def test_threads_that_wait_at_a_barrier_leave_their_bandwidth_to_the_others(tmp_path: Path) -> None:
    machine = _with(Bandwidth(core_gbs=10.0, package_gbs=20.0))
    short, long = (f"seconds = {s}\niterations = 1" for s in (0.5, 100.0))
    groups = [_group(str(cpu), 10.0, 0.0, long if cpu < 2 else short) for cpu in range(8)]
    twin = Twin(machine, _work(tmp_path, machine, *groups))
    first = _instructions(twin, 0.2)
    twin.advance(3.0)
    assert _instructions(twin, 0.2)[:2] == pytest.approx(4 * first[:2], rel=1e-6)


def test_programs_of_the_host_take_their_part(tmp_path: Path) -> None:
    machine = _with(Bandwidth(core_gbs=10.0, package_gbs=20.0))
    twin = Twin(machine, _work(tmp_path, machine, _group("0,1,2,3", 10.0, 0.0)))
    alone = _instructions(twin)[0]
    twin.set_load([0.0] * 4 + [1.0] * 12)
    taken = 4 * 2e-4 * 2.7e9 * 64e-9
    assert _instructions(twin)[0] / alone == pytest.approx((20.0 - taken) / 20.0, rel=1e-6)
    assert _traffic_gbs(twin) == pytest.approx(20.0, rel=1e-6)


@pytest.mark.parametrize(("beta", "gbs"), [(1.0, 1e6), (0.0, 1e6), (1.0, 1e-9), (1.0, 0.0), (0.5, 1e200)])
def test_extreme_demands_stay_finite(beta: float, gbs: float, tmp_path: Path) -> None:
    machine = _with(Bandwidth(core_gbs=1e-3, package_gbs=1e-3, link_cores=4, link_gbs=1e-3, link_loss=1.0))
    twin = Twin(machine, _work(tmp_path, machine, _group("cores", gbs, beta)))
    twin.advance(0.1)
    assert twin.traffic_bytes(0) / 1e9 <= 1e-3 * 0.1 * 1.0001
    assert all(math.isfinite(joules) for joules in twin.report().energy_j.values())
    assert (twin.counters(EVENTS) >= 0).all()


@pytest.mark.parametrize(
    ("text", "problem"),
    [("link_cores = 5\nlink_gbs = 9.0", "do not divide"), ("link_gbs = 9.0", "give both link_cores and link_gbs")],
)
def test_links_that_do_not_fit_a_package_are_refused(text: str, problem: str, tmp_path: Path) -> None:
    shipped = (Path(load_machine("curie").path)).read_text()
    path = tmp_path / "m.toml"
    path.write_text(f"{shipped}\n[memory.bandwidth]\ncore_gbs = 9.0\npackage_gbs = 9.0\n{text}\n")
    with pytest.raises(TwinError, match=problem):
        load_machine(str(path))
