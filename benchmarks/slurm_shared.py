"""Jobs that share a node: the joules that nodectl books to each, next to the truth of an emulated node.

One emulated node in virtual time with the real agent; two jobs of Slurm on it, each with cores of its own, by a prolog
file and a cgroup as Slurm makes them. Joules are those of meters: packages, and DRAM where it has a zone. All watts are
EMULATED. Two truths: what the job's cores draw (`cores`), and that with what their traffic costs in the uncore and in
DRAM (`traffic`), which no meter of a processor shows by core. The rest of packages and DRAM is nobody's own, and is
shared by processor time in both.

`by time`: what the processor time of the jobs alone would say of the same joules, against the truth of cores. `meters`:
the node shows the energy of each core (hwmon ``amd_energy``). Where it does not, the agent's model of the cores divides
(``nodectl.site_jobs.core_watts``), which knows what ran on this node before: `none`, `others` (the three programs that
are none of the two), `one` of the two as well, or `both`, each alone on the node for some seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from benchmarks.experiment import save
from foundation.shell.text_table import render
from lab.emulated.emulated_cgroups import EmulatedCgroups, OwnJoules
from nodectl.config import build_config
from nodectl.loop.agent import Agent
from nodectl.site_jobs.core_watts import KEPT, MOST_GROUPS, MOST_JOBS
from nodectl.site_jobs.job_folder import FOLDER, SiteJob
from nodectl.site_jobs.job_parts import JobParts
from nodectl.site_jobs.joules_page import NAME
from pmu.decode import decode
from pmu.node import Instruments, discover
from twin.in_process_node import InProcess
from twin.machine import Machine, Sensor, load_machine
from twin.physics.model import Twin
from twin.programs.side_by_side import on_cpus, together
from twin.programs.workload import load_workload

BIG: Final = "genoa-h100"
TICKS: Final = 20
BEFORE_TICKS: Final = 40
type_jobs = Sequence[tuple[str, Sequence[int]]]
"""Of each job: its workload and its CPUs."""


class Case(NamedTuple):
    """``has_meters``: whether cores have meters; ``seen``: programs that ran on the node before, each alone."""

    machine: str
    has_meters: bool
    jobs: type_jobs
    place: str
    seen: str = ""


PROGRAMS: Final = ("hpl", "stream", "gromacs", "imb", "nas")
SEEN: Final = ("none", "others", "one", "both")


def _halves(cores: int) -> tuple[list[int], list[int]]:
    """CPUs of two packages without SMT, half of each package for each job."""
    packages = range(cores), range(cores, 2 * cores)
    return [cpu for one in packages for cpu in one[: cores // 2]], [
        cpu for one in packages for cpu in one[cores // 2 :]
    ]


def _unmetered(machine: str, cores: int) -> list[Case]:
    first, second = _halves(cores)
    pairs = [("hpl", "stream"), ("hpl", "gromacs"), ("stream", "nas"), ("hpl", "imb"), ("gromacs", "imb")]
    cases = [Case(machine, False, ((one, first), (two, second)), "mixed", seen) for one, two in pairs for seen in SEEN]
    small, large = first[:2], [cpu for cpu in range(2 * cores) if cpu not in first[:2]]
    return cases + [Case(machine, False, (("hpl", small), ("stream", large)), "mixed", seen) for seen in SEEN]


CASES: Final = (
    Case("curie", False, (("hpl", range(8)), ("stream", range(8, 16))), "a socket each"),
    Case("curie", False, (("gromacs", range(8)), ("imb", range(8, 16))), "a socket each"),
    *_unmetered("curie", 8),
    *_unmetered("skylake-6146", 12),
    Case("rome", False, (("hpl", range(16)), ("stream", range(16, 32))), "one socket"),
    Case("rome", False, (("hpl", range(16)), ("stream", range(16, 32))), "one socket", "both"),
    Case("rome", True, (("hpl", range(16)), ("stream", range(16, 32))), "one socket"),
    Case("rome", True, (("hpl", range(4)), ("stream", range(4, 32))), "one socket"),
    Case("rome", True, (("gromacs", range(16, 48)), ("imb", (*range(16), *range(48, 64)))), "mixed"),
)


def history(case: Case) -> list[str]:
    """The programs that ran on the node before."""
    names = [name for name, _ in case.jobs]
    others = [name for name in PROGRAMS if name not in names]
    return {"others": others, "one": [*others, names[1]], "both": [*others, *names]}.get(case.seen, [])


class Booked(NamedTuple):
    """Joules of a job by meters: as nodectl says, in both truths, and by processor time alone."""

    nodectl_j: float
    cores_j: float
    traffic_j: float
    by_time_j: float


def with_core_meters(machine: Machine) -> Machine:
    """The same machine under a kernel with ``amd_energy``."""
    meters = [Sensor("amd_energy", 0, f"Ecore{core:03d}", "energy", "core", core, 0.0, 0.0)
              for core in range(machine.cores)]  # fmt: skip
    return msgspec.structs.replace(machine, sensors=(*machine.sensors, *meters))


def measure(case: Case, ticks: int = TICKS) -> list[Booked]:
    """Run the jobs of a case for so many periods."""
    machine = load_machine(case.machine)
    machine = with_core_meters(machine) if case.has_meters else machine
    has_dram = any(zone.kind == "dram" for zone in machine.zones)
    placed = [on_cpus(load_workload(name, machine, duration_s=3600.0), machine, cpus) for name, cpus in case.jobs]
    names = [str(number) for number in range(17, 17 + len(placed))]
    with contextlib.ExitStack() as opened:
        at = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        inside = opened.enter_context(InProcess(Twin(machine)))
        cgroups = EmulatedCgroups(inside.ports.files, inside.twin)
        ports = replace(inside.ports, files=cgroups, lock_path=str(at / "lock-1"))
        settings = {"mode": "monitor", "state_dir": str(at), "journal": {"max_bytes": 0}}
        agent = opened.enter_context(Agent.open(ports, build_config(settings, lambda key: ".".join(key))))
        agent.tick()
        (at / FOLDER).mkdir()
        for program in history(case):
            (at / FOLDER / program).write_text("user=alice\ncomment=\n")
            inside.twin.start_workload(load_workload(program, machine, duration_s=3600.0))
            for _ in range(BEFORE_TICKS):
                agent.tick()
            (at / FOLDER / program).unlink()
        inside.twin.start_workload(together(placed))
        for name, (_, cpus) in zip(names, case.jobs, strict=True):
            cgroups.begin(name, cpus)
            (at / FOLDER / name).write_text("user=alice\ncomment=\n")
        agent.tick()  # from here on the agent knows them, and its meters of cores have a first reading
        before_j = _page(agent, at, names)
        before, parts = cgroups.truth(), inside.twin.parts_j()
        for _ in range(ticks):
            agent.tick()
        after_j = _page(agent, at, names)
        after, now = cgroups.truth(), inside.twin.parts_j()
        own = [after[name].since(before[name]) for name in names]
        package_j, dram_j = (
            sum(now[part] - parts[part] for part in parts if part.startswith(of)) for of in ("package-", "dram-")
        )
        all_j = package_j + (dram_j if has_dram else 0.0)
        cores_j = _with_rest([one.cores_j for one in own], own, all_j)
        traffic = [one.cores_j + one.uncore_j + (one.dram_j if has_dram else 0.0) for one in own]
        traffic_j, by_time_j = _with_rest(traffic, own, all_j), _with_rest([0.0] * len(own), own, all_j)
        nodectl_j = [after_j[name] - before_j[name] for name in names]
        return [Booked(*row) for row in zip(nodectl_j, cores_j, traffic_j, by_time_j, strict=True)]


def _with_rest(joules: Sequence[float], own: Sequence[OwnJoules], all_j: float) -> list[float]:
    """Each job's own joules and its part of all others, by processor time."""
    used_s = sum(one.processor_s for one in own)
    return [of_it + (all_j - sum(joules)) * one.processor_s / used_s for of_it, one in zip(joules, own, strict=True)]


def _page(agent: Agent, at: Path, names: Sequence[str]) -> dict[str, float]:
    """Joules of meters of each job, on a page that has just been written."""
    before = (at / NAME).read_text()
    while (text := (at / NAME).read_text()) == before:
        agent.tick()
    lines = [line.split() for line in text.splitlines()[1:]]
    return {words[0]: float(words[3]) for words in lines if words[0] in names}


class _Cpus(dict[str, frozenset[int]]):
    """The CPUs of each job."""

    def cpus(self, job: str) -> frozenset[int]:
        return self[job]


def cost_ms(jobs: int) -> float:
    """Processor time of a tick of 100 ms for whose the joules are, with all examples that the model keeps, fits
    included."""
    machine = load_machine(BIG)
    with InProcess(Twin(machine)) as inside:
        layout = discover(inside.ports)[0]
        instruments = Instruments(inside.ports, layout)
        first = instruments.sweep()
        inside.twin.start_workload(load_workload("hpl", machine))
        inside.twin.advance(0.1)
        sample = decode(layout, first, instruments.sweep())
    cores = max(layout.core_of) + 1

    def of(count: int) -> _Cpus:
        return _Cpus({
            str(job): frozenset(cpu for cpu, core in enumerate(layout.core_of) if core * count // cores == job)
            for job in range(count)
        })  # fmt: skip

    def drawn(of_jobs: _Cpus, factor: float) -> None:
        """A tick in which programs are another, so that no two examples are alike."""
        cpu = replace(sample.cpu, instructions=sample.cpu.instructions * factor)
        here = {name: SiteJob(name, "alice", "", 0.0) for name in of_jobs}
        parts._cgroups = of_jobs
        whole = parts.drawn(replace(sample, cpu=cpu), here)
        if len(here) > 1:
            parts.split(whole, dict.fromkeys(here, 1.0))

    teaching, asking = of(MOST_GROUPS * (max(layout.package_of) + 1)), of(jobs)
    parts = JobParts(inside.ports, layout, build_config({}, str), teaching)
    for second in range(KEPT):
        for _ in range(10):
            drawn(teaching, 0.01 * 1.2**second)
    began_s = time.process_time()
    for second in range(5):
        for _ in range(10):
            drawn(asking, 1.5 + 0.2 * second)
    return 1000 * (time.process_time() - began_s) / 50


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args(arguments)
    rows, found = [], []
    for case in CASES:
        booked = measure(case)
        found.append({"case": case._replace(jobs=[(name, list(cpus)) for name, cpus in case.jobs])._asdict(),
                      "booked": [one._asdict() for one in booked]})  # fmt: skip
        for (name, cpus), one in zip(case.jobs, booked, strict=True):
            off = (one.nodectl_j / one.cores_j, one.nodectl_j / one.traffic_j, one.by_time_j / one.cores_j)
            seen = "" if case.has_meters else case.seen or "none"
            rows.append((case.machine, "yes" if case.has_meters else "no", seen, case.place, name, str(len(cpus)),
                         f"{one.cores_j:.0f}", *(f"{ratio - 1:+.1%}" for ratio in off)))  # fmt: skip
    print("EMULATED: two jobs that share a node, joules of meters")
    print(
        render(
            ("machine", "meters", "seen", "place", "job", "CPUs", "J cores", "off cores", "off traffic", "by time"),
            rows,
        )
    )
    costs = {jobs: cost_ms(jobs) for jobs in (2, MOST_JOBS, 96)}
    words = ", ".join(f"{jobs} jobs {ms:.2f} ms" for jobs, ms in costs.items())
    print(f"processor time of a tick, {load_machine(BIG).cpus} CPUs: {words} (load {os.getloadavg()[0]:.0f})")
    save("slurm_shared", {"cases": found, "cost_ms": costs})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
