"""Idle states: watts, time to wake, and what one core awake costs, with the machine `rome` as it was measured."""

import csv
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.recorded import RECORDED, needs_recorded
from twin.errors import TwinError
from twin.files.sysfs_tree import SysfsTree
from twin.machine import IdleState, Machine, load_machine
from twin.physics.model import Twin
from twin.programs.workload import Workload, load_workload

DISABLE = "/sys/devices/system/cpu/cpu{}/cpuidle/state{}/disable"
STATES = (
    IdleState("POLL", "poll", 0, 0, 3.0),
    IdleState("C1", "c1", 10, 20, 1.0),
    IdleState("C6", "c6", 400, 5000, 0.25),
)


@pytest.fixture
def curie() -> Machine:
    return msgspec.structs.replace(load_machine("curie"), idle=STATES, governor="performance")


def _watts(twin: Twin, seconds: float = 0.5) -> np.ndarray:
    """Of each package."""
    packages = range(twin.machine.sockets)
    before = [twin.zone_energy_uj(_zone(twin, package)) for package in packages]
    twin.advance(seconds)
    after = [twin.zone_energy_uj(_zone(twin, package)) for package in packages]
    return np.array([(b - a) / seconds / 1e6 for a, b in zip(before, after, strict=True)])


def _zone(twin: Twin, package: int) -> int:
    return next(
        n for n, zone in enumerate(twin.machine.zones) if zone.kind == "package" and zone.package == package
    )  # fmt: skip


def _forbid(twin: Twin, tree: SysfsTree, *states: int) -> None:
    for cpu in range(twin.machine.cpus):
        for state in states:
            tree.write(DISABLE.format(cpu, state), b"1")


def _work(folder: Path, machine: Machine, iteration_ms: float, wait: str = "sleep") -> Workload:
    """CPU 0 has ten times as much to do in each iteration as CPU 1."""
    path = folder / "work.toml"
    path.write_text(
        f'name = "x"\nsummary = "x"\nsource = "test"\nnoise = 0.0\n[[cpu]]\ncpus = "0,1"\nwait = "{wait}"\n'
        f'[[cpu.phase]]\nname = "p"\nseconds = {iteration_ms * 0.1}\nbeta = 1.0\niterations = 100\ntraffic_gbs = 0.0\n'
    )
    work = load_workload(str(path), machine, bias=0.0)
    group = msgspec.structs.replace(work.groups[0], weight=np.array([1.0, 0.1]))
    return msgspec.structs.replace(work, groups=(group,))


def test_a_core_sleeps_deeper_the_longer_it_is_idle(curie: Machine, tmp_path: Path) -> None:
    twin = Twin(curie, _work(tmp_path, curie, 1000.0))
    twin.advance(0.1 + 0.002)
    assert twin.idle_state(0) is None
    assert twin.idle_state(1) == 1
    twin.advance(0.006)
    assert twin.idle_state(1) == 2


@pytest.mark.parametrize(("allowed", "latency_us"), [((0, 1, 2), 400), ((0, 1), 10), ((0,), 0)])
def test_a_thread_that_wakes_begins_after_the_exit_latency(
    allowed: tuple[int, ...], latency_us: int, curie: Machine, tmp_path: Path
) -> None:
    twin = Twin(curie)
    _forbid(twin, SysfsTree(twin), *({0, 1, 2} - set(allowed)))
    twin.advance(0.1)
    twin.start_workload(_work(tmp_path, curie, 30.0))
    while not twin.finished:
        twin.advance(0.05)
    # CPU 0 leads and never sleeps after its first iteration: its work alone decides the time
    assert twin.report().time_s == pytest.approx(3.0 + latency_us * 1e-6, abs=2e-4)
    busy = twin.busy_idle_us()[0]
    assert busy[0] == pytest.approx(3e6, rel=2e-3)
    assert busy[1] == pytest.approx(3e5, rel=1e-2)


def _barrier_s(weights: tuple[float, ...], iteration_s: float, count: int, states: tuple[IdleState, ...]) -> float:
    """Slowly and obviously: each thread that waited at the barrier, so asleep, begins after its latency."""
    now, arrived = 10.0, [0.0] * len(weights)
    for _ in range(count):
        finish = []
        for weight, since in zip(weights, arrived, strict=True):
            deepest = max(n for n, state in enumerate(states) if state.residency_us * 1e-6 <= now - since)
            finish.append(now + states[deepest].latency_us * 1e-6 * (now > since) + weight * iteration_s)
        now, arrived = max(finish), finish
    return now - 10.0


@pytest.mark.parametrize("weights", [(1.0, 0.99), (1.0, 0.5), (1.0, 1.0), (0.995, 1.0)])
def test_threads_that_slept_at_a_barrier_begin_late_as_the_oracle_says(
    weights: tuple[float, float], curie: Machine, tmp_path: Path
) -> None:
    states = (IdleState("POLL", "", 0, 0, 3.0), IdleState("C1", "", 700, 100, 1.0), IdleState("C6", "", 900, 3000, 0.2))
    machine = msgspec.structs.replace(curie, idle=states)
    work = _work(tmp_path, machine, 40.0)
    group = msgspec.structs.replace(work.groups[0], weight=np.array(weights))
    twin = Twin(machine)
    twin.advance(0.1)
    twin.start_workload(msgspec.structs.replace(work, groups=(group,)))
    while not twin.finished:
        twin.advance(0.01)
    lost_s = _barrier_s(weights, 0.04, 100, states) - 4.0
    assert twin.report().time_s - 4.0 == pytest.approx(lost_s, rel=0.05, abs=1e-4)
    assert twin.busy_idle_us()[0][0] == pytest.approx(4e6 * weights[0], rel=2e-3)  # waking is not busy time


def test_idle_watts_are_those_of_the_states(curie: Machine) -> None:
    twin = Twin(curie)
    tree = SysfsTree(twin)
    twin.advance(1.0)
    deep = _watts(twin)
    _forbid(twin, tree, 2)
    twin.advance(0.01)
    shallow = _watts(twin)
    _forbid(twin, tree, 1)
    twin.advance(0.01)
    poll = _watts(twin)
    cores = curie.cores_per_socket
    assert poll - shallow == pytest.approx(np.full(2, cores * (3.0 - 1.0)), abs=1e-2)
    sleeping = cores * (1.0 - 0.25) + curie.power.uncore_idle_w - curie.power.uncore_sleep_w
    assert shallow - deep == pytest.approx(np.full(2, sleeping), abs=1e-2)


def test_cpuidle_counts_the_time_in_each_state(curie: Machine, tmp_path: Path) -> None:
    twin = Twin(curie)
    tree = SysfsTree(twin)
    twin.advance(1.0)
    for cpu in range(8):
        tree.write(DISABLE.format(cpu, 2), b"1")
    twin.advance(2.0)

    def times_s(cpu: int) -> list[float]:
        path = "/sys/devices/system/cpu/cpu{}/cpuidle/state{}/time"
        return [int(tree.read(path.format(cpu, state))) / 1e6 for state in range(3)]

    assert times_s(0) == pytest.approx([0.0, 2.0, 1.0], abs=0.01)
    assert times_s(12) == pytest.approx([0.0, 0.0, 3.0], abs=0.01)
    twin.start_workload(_work(tmp_path, curie, 1000.0, wait="spin"))
    twin.advance(1.0)
    assert times_s(0) == pytest.approx([0.0, 2.0, 1.0], abs=0.01)
    assert times_s(12) == pytest.approx([0.0, 0.0, 4.0], abs=0.01)
    assert twin.idle_states_us(0) == pytest.approx((0, 2e6, 1e6), abs=1e4)


def test_a_thread_that_is_idle_next_to_a_busy_one_is_in_no_deep_state(tmp_path: Path) -> None:
    machine = load_machine("rome")
    work = _work(tmp_path, machine, 1000.0, wait="spin")
    twin = Twin(machine)
    tree = SysfsTree(twin)
    twin.advance(1.0)
    twin.start_workload(work)
    twin.advance(2.0)
    path = "/sys/devices/system/cpu/cpu{}/cpuidle/state{}/time"
    shown = [int(tree.read(path.format(machine.cores, state))) / 1e6 for state in range(3)]
    assert shown == pytest.approx([0.0, 2.0, 1.0], abs=0.01)


def test_a_core_sleeps_no_deeper_than_both_its_threads_allow() -> None:
    machine = load_machine("rome")
    twin = Twin(machine)
    tree = SysfsTree(twin)
    twin.advance(0.01)
    assert twin.idle_state(3) == 2
    tree.write(DISABLE.format(3 + machine.cores, 2), b"1")
    twin.advance(0.002)
    assert twin.idle_state(3) == 1
    assert twin.idle_state(4) == 2


@needs_recorded("cpu-epyc-rome")
@pytest.mark.parametrize("setting", [0, 1, 2])
def test_an_idle_node_draws_what_was_measured_on_rome(setting: int) -> None:
    with (RECORDED / "cpu-epyc-rome" / "power-by-threads.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["kernel"] == "idle"]
    measured = next(float(row["rapl_package_w"]) for row in rows if int(row["cstate_setting"]) == setting)
    twin = Twin(load_machine("rome"))
    _forbid(twin, SysfsTree(twin), *range(setting + 1, 3))
    twin.advance(1.0)
    assert _watts(twin).sum() == pytest.approx(measured, rel=0.015)


def test_one_core_awake_keeps_both_packages_up_as_measured(tmp_path: Path) -> None:
    machine = load_machine("rome")
    twin = Twin(machine)
    twin.advance(0.5)
    asleep = _watts(twin)
    path = tmp_path / "one.toml"
    path.write_text(
        'name = "x"\nsummary = "x"\nsource = "test"\n[[cpu]]\ncpus = "0"\n[[cpu.phase]]\nname = "p"\nseconds = 100.0\n'
        "beta = 1.0\ntraffic_gbs = 0.0\n"
    )
    twin.start_workload(load_workload(str(path), machine))
    twin.advance(0.1)
    awake = _watts(twin)
    assert (awake - asleep)[1] == pytest.approx(55.8 - 38.5, abs=0.05)
    assert awake.sum() == pytest.approx(113.5, abs=1.5)  # 4 threads that wait: 116.0 W


@pytest.mark.parametrize("states", ["latency_us = 0\nresidency_us = 0", "latency_us = 5\nresidency_us = 0"])
def test_states_without_an_order_are_refused(states: str, tmp_path: Path) -> None:
    text = Path(load_machine("curie").path).read_text()
    path = tmp_path / "m.toml"
    path.write_text(f'{text}\n[[idle]]\nname = "POLL"\ndescription = "x"\ncore_w = 1.0\n{states}\n')
    with pytest.raises(TwinError, match="two to ten states"):
        load_machine(str(path))
