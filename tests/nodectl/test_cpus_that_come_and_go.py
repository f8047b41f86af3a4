"""CPUs put on line and taken off, RAPL and counters that are there later: the run that goes on has them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nodectl.journal import open_journal
from nodectl.journal.decide_again import replay
from pmu.cpulist import format_list
from pmu.node import discover
from pmu.ports import Ports
from pmu.readings import RAW_MISSING
from tests.nodectl.test_agent import MAX_FREQ, fixed, node, settings
from tests.nodectl.test_late_hardware import CPUFREQ, go_on, gone, whole_run
from twin.faults.active import Fault
from twin.in_process_node import InProcess

CPU = "/sys/devices/system/cpu"
CPUS = 24


class Hotplug:
    """The ports of a node on which some CPUs are off line, as Linux shows it: they are not in ``online``, their
    topology and cpufreq policy are gone, and a counter that was open when its CPU went stays silent."""

    def __init__(self, inside: InProcess) -> None:
        self._inside, self.off, self._been_off = inside, set[int](), dict[int, int]()
        self.ports = replace(inside.ports, files=self, counters=_Counters(self, inside.ports))

    def take_off(self, *cpus: int) -> None:
        """As ``echo 0 > cpuN/online``."""
        self.off |= set(cpus)
        self._been_off |= {cpu: self._been_off.get(cpu, 0) + 1 for cpu in cpus}

    def put_on(self, *cpus: int) -> None:
        """As ``echo 1 > cpuN/online``."""
        self.off -= set(cpus)

    def times_off(self, cpu: int) -> int:
        """How often it has gone."""
        return self._been_off.get(cpu, 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inside.ports.files, name)

    def read(self, path: str) -> str:
        """The whole text."""
        self._refuse(path)
        if path == f"{CPU}/online":
            return format_list(set(range(CPUS)) - self.off) + "\n"
        return self._inside.ports.files.read(path)

    def write(self, path: str, text: str) -> None:
        """In one write."""
        self._refuse(path)
        self._inside.ports.files.write(path, text)

    def keep(self, path: str) -> Any:
        """Open it."""
        self._refuse(path)
        return self._inside.ports.files.keep(path)

    def listdir(self, path: str) -> list[str]:
        """Names in a directory."""
        return [name for name in self._inside.ports.files.listdir(path) if not self._is_gone(f"{path}/{name}")]

    def exists(self, path: str) -> bool:
        """Whether anything is there."""
        return not self._is_gone(path) and self._inside.ports.files.exists(path)

    def _is_gone(self, path: str) -> bool:
        folders = [f"{CPUFREQ}/policy{cpu}" for cpu in self.off] + [f"{CPU}/cpu{cpu}/topology" for cpu in self.off]
        return any(path == folder or path.startswith(f"{folder}/") for folder in folders)

    def _refuse(self, path: str) -> None:
        if self._is_gone(path):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)


class _Counters:
    def __init__(self, plug: Hotplug, ports: Ports) -> None:
        self._plug, self._counters = plug, ports.counters

    def __getattr__(self, name: str) -> Any:
        return getattr(self._counters, name)

    def open(self, cpus: tuple[int, ...], events: tuple[str, ...]) -> Any:
        """From now on."""
        return _CounterSet(self._plug, self._counters.open(cpus, events), cpus)


class _CounterSet:
    def __init__(self, plug: Hotplug, opened: Any, cpus: tuple[int, ...]) -> None:
        self._plug, self._opened, self._cpus = plug, opened, cpus
        self._times = [plug.times_off(cpu) + (cpu in plug.off) for cpu in cpus]
        self.close = opened.close

    def sweep(self, out: Any) -> None:
        """Silent once their CPU has gone since."""
        self._opened.sweep(out)
        gone = [self._plug.times_off(cpu) != times for cpu, times in zip(self._cpus, self._times, strict=True)]
        out[np.array(gone, np.bool_)] = RAW_MISSING


@pytest.fixture
def inside() -> Iterator[InProcess]:
    with node("skylake-6146", "hpl") as made:
        yield made


def limits_khz(inside: InProcess) -> list[int]:
    return [int(inside.ports.files.read(MAX_FREQ.format(cpu))) for cpu in range(CPUS)]


def test_a_cpu_that_is_put_on_line_is_measured_and_capped_by_the_same_run(inside: InProcess, tmp_path: Path) -> None:
    plug = Hotplug(inside)
    plug.take_off(3, 7, 8)
    with whole_run(inside, settings(tmp_path, cpu_policy=fixed(1_500_000)), ports=lambda: plug.ports) as (run, said):
        go_on(run, inside, 1.0)
        assert run.agent.layout.cpus == (0, 1, 2, 4, 5, 6, *range(9, CPUS)), "numbers with holes"
        assert [limits_khz(inside)[cpu] for cpu in (3, 7, 8)] == [3_200_000] * 3
        assert set(limits_khz(inside)) == {1_500_000, 3_200_000}
        plug.put_on(3, 8)
        go_on(run, inside, 12.0)
        assert run.agent.layout.cpus == tuple(cpu for cpu in range(CPUS) if cpu != 7)
        (line,) = [line for line in said if "begins again" in line]
        assert line.startswith("CPU 3,8, cpufreq policy3, policy8 came")
        assert [cpu for cpu, khz in enumerate(limits_khz(inside)) if khz != 1_500_000] == [7]
        assert "healthy" in run.status()
    assert limits_khz(inside) == [3_200_000] * CPUS
    report = replay(open_journal(tmp_path / "journal"))
    assert report.is_equal and report.problems == []


def test_a_cpu_that_is_taken_off_line_costs_the_others_nothing_and_is_back_when_it_is(
    inside: InProcess, tmp_path: Path
) -> None:
    plug = Hotplug(inside)
    with whole_run(inside, settings(tmp_path, cpu_policy=fixed(1_500_000)), ports=lambda: plug.ports) as (run, said):
        go_on(run, inside, 1.0)
        plug.take_off(5)
        go_on(run, inside, 12.0)
        assert not [line for line in said if "begins again" in line], "what goes away is no reason to begin again"
        assert "no counters of CPU 5" in run.status() and "counters of CPU 5 went missing" in said
        assert {khz for cpu, khz in enumerate(limits_khz(inside)) if cpu != 5} == {1_500_000}
        inside.ports.files.write(MAX_FREQ.format(5), "3200000")  # a policy that is made anew has the kernel's limits
        plug.put_on(5)
        go_on(run, inside, 12.0)
        assert len([line for line in said if "begins again" in line]) == 1, said
        assert limits_khz(inside) == [1_500_000] * CPUS and "healthy" in run.status()


def test_rapl_whose_module_is_loaded_later_is_counted_by_the_same_run(inside: InProcess, tmp_path: Path) -> None:
    zones = ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl:1", "intel-rapl:1:0", "intel-rapl")
    for zone in zones:
        inside.faults.add_line(f"missing /sys/class/powercap/{zone} for=4 value=ENOENT")
    with whole_run(inside, settings(tmp_path, cpu_policy=fixed(1_500_000))) as (run, said):
        go_on(run, inside, 1.0)
        assert run.agent.layout.zones == ()
        go_on(run, inside, 12.0)
        layout, _ = discover(inside.ports)
        assert run.agent.layout.zones == layout.zones != ()
        assert [line for line in said if line.startswith("RAPL zone") and "begins again" in line]
        spent = {one.name: one for one in run.summary().energy if one.side == "cpu"}
        assert spent["package-0"].joules > 0 and 3.0 < spent["package-0"].missing_s < 12.0


@pytest.mark.parametrize("kind", ["refused", "missing"])
def test_counters_that_cannot_be_had_at_first_are_had_by_the_same_run(tmp_path: Path, kind: str) -> None:
    """Another program has them (EBUSY), or the kernel does not allow it yet (EACCES)."""
    value = "EBUSY" if kind == "refused" else "EACCES"
    faults = [Fault(kind, f"perf:{event}", for_s=4.0, value=value) for event in ("cycles", "instructions")]
    with (
        node("skylake-6146", "hpl", *faults) as inside,
        whole_run(inside, settings(tmp_path, mode="monitor")) as (run, said),
    ):
        go_on(run, inside, 1.0)
        assert "instructions" not in run.agent.layout.events
        go_on(run, inside, 12.0)
        assert {"cycles", "instructions"} <= set(run.agent.layout.events)
        assert [line for line in said if line.startswith("cycles, instructions can be counted by now")]


def test_a_pmu_whose_module_is_loaded_later_is_found_by_the_same_run(tmp_path: Path) -> None:
    with (
        node("skylake-6146", "hpl", gone("/sys/bus/event_source/devices/power")) as inside,
        whole_run(inside, settings(tmp_path, cpu_policy=fixed(1_500_000))) as (run, said),
    ):
        go_on(run, inside, 12.0)
        (line,) = [line for line in said if "begins again" in line]
        assert line.startswith("PMU power came")
        assert run.agent.layout.events == discover(inside.ports)[0].events
