"""The CPU time of real threads is load on emulated CPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.command_load import CommandLoad

MS = 1_000_000


class Processes:
    """A /proc of processes with threads that the test lets run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def ran(self, process: int, thread: int, ms: float) -> None:
        path = self.folder / str(process) / "task" / str(thread)
        path.mkdir(parents=True, exist_ok=True)
        (path / "schedstat").write_text(f"{round(ms * MS)} 0 1\n")


@pytest.fixture
def twin() -> Twin:
    return Twin(load_machine("skylake-6146"))


def busy_share(twin: Twin, seconds: float = 0.5) -> list[float]:
    before = twin.busy_idle_us()[0]
    twin.advance(seconds)
    return [float(us) / seconds * 1e-6 for us in twin.busy_idle_us()[0] - before]


def test_a_loaded_cpu_is_busy_raises_its_clock_and_takes_power(twin: Twin) -> None:
    twin.advance(0.5)
    idle_j = twin.node_j
    twin.advance(0.5)
    idle_j = twin.node_j - idle_j
    assert twin.cpu_khz(5) == 1_200_000
    twin.set_load([1.0 if cpu == 5 else 0.0 for cpu in range(24)])
    twin.advance(0.1)
    assert (twin.cpu_khz(5), twin.cpu_khz(6)) == (3_200_000, 1_200_000)  # the governor follows the load
    before_j = twin.node_j
    shares = busy_share(twin)
    assert shares[5] == pytest.approx(1.0, abs=0.01) and shares[6] < 0.01
    assert twin.node_j - before_j > idle_j + 1.0
    twin.set_load([0.0] * 24)
    assert busy_share(twin)[5] < 0.01


def test_a_running_workload_comes_before_load(twin: Twin) -> None:
    from twin.programs.workload import load_workload

    twin.start_workload(load_workload("hpl", twin.machine))
    twin.advance(0.2)
    before = twin.counters(["instructions"])[0, 0]
    twin.advance(0.2)
    alone = twin.counters(["instructions"])[0, 0] - before
    twin.set_load([1.0] * 24)
    before = twin.counters(["instructions"])[0, 0]
    twin.advance(0.2)
    assert twin.counters(["instructions"])[0, 0] - before == pytest.approx(alone, rel=0.1)


def test_each_thread_loads_a_cpu_of_its_own_for_the_share_it_ran(twin: Twin, tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    for thread in (10, 11):
        processes.ran(10, thread, 0)
    processes.ran(1, 1, 0)
    load = CommandLoad(twin, frozenset((1,)), str(tmp_path))
    began_ns = load._at_ns
    load.follow(began_ns + 20 * MS)
    processes.ran(10, 10, 50)
    processes.ran(10, 11, 25)
    processes.ran(1, 1, 100)  # the server
    load.follow(began_ns + 120 * MS)
    shares = busy_share(twin)
    assert sorted(shares, reverse=True)[:2] == pytest.approx([0.5, 0.25], abs=0.01)
    assert sum(shares) < 0.8
    load.follow(began_ns + 220 * MS)
    assert sum(busy_share(twin)) < 0.1


def test_a_cpu_is_free_again_when_its_thread_has_ended(twin: Twin, tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.ran(9, 9, 5000)  # long ago
    load = CommandLoad(twin, frozenset(), str(tmp_path))
    began_ns = load._at_ns
    processes.ran(10, 10, 50)
    load.follow(began_ns + 100 * MS)
    (tmp_path / "10" / "task" / "10" / "schedstat").unlink()
    (tmp_path / "10" / "task" / "10").rmdir()
    processes.ran(20, 20, 80)
    load.follow(began_ns + 200 * MS)
    assert busy_share(twin)[0] == pytest.approx(0.8, abs=0.01)
