"""One run of the real agent on an emulated node in virtual time, and its true cost and saving.

The agent is the product's own (``nodectl.loop.agent.Agent``), behind the ports of ``twin.in_process_node``: it sees
sysfs, counters and NVML of the emulated node and nothing else. The truth is read from the node model, which the agent
cannot reach.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from lab.node_demo.emulated_hints import EmulatedHints
from nodectl.config import Budget, Config, GpuSettings, JournalSettings, PolicyChoice
from nodectl.loop.agent import Agent
from nodectl.policies.registry import NONE
from pmu.ports import Clock, Ports
from pmu.readings import NO_RAW_PROGRESS, RawProgress
from twin.errors import TwinError
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.physics.variation import NONE as ALIKE
from twin.physics.variation import Variation
from twin.programs.workload import Workload, load_workload

LONGEST = 12.0
"""A run that takes this many times the seconds of its work is given up. Shared bandwidth makes `triad` six times as
long as it is with the memory to itself."""


class Experiment(msgspec.Struct, frozen=True):
    """One run. ``bias``: half-width of the random error between counters and truth; ``duration_s``: the length at the
    highest clock (None: the workload's own); ``progress_s``: the work of one unit of the progress that programs report
    (None: the workload's own, mostly none); ``variation``: how the node and the run differ from the machine file (None:
    not at all); ``counter_error``: where the error of DRAM activity comes from (``load_workload``); ``others``: the
    policies of other domains."""

    machine: str
    workload: str
    seed: int = 1
    bias: float = 0.2
    duration_s: float | None = None
    cpu_policy: str = NONE
    gpu_policy: str = NONE
    cpu_params: dict[str, Any] = {}
    gpu_params: dict[str, Any] = {}
    period_ms: float = 100.0
    progress_s: float | None = None
    variation: Variation | None = None
    counter_error: str = "uniform"
    others: dict[str, PolicyChoice] = {}


class Result(msgspec.Struct, frozen=True):
    """The truth about one run, and the agent's own estimate of it.

    ``energy_j`` by part as ``twin.physics.model.Report`` has it, and its ``slowdown``: that against work at the highest
    clock with the memory to itself. What a policy costs is ``slowdown_against`` a run without it. The estimates are the
    agent's (None if its policy gives none); ``cost_s`` is real time.
    """

    experiment: Experiment
    time_s: float
    finished: bool
    slowdown: float
    energy_j: dict[str, float]
    estimated_slowdown: float | None
    estimated_saved_j: float | None
    ticks: int
    cost_s: float
    notices: list[str]

    def slowdown_against(self, reference_s: float) -> float:
        """Extra time as a share of the reference's: the same run (seed) on the same node without the policy."""
        if not self.finished:
            raise TwinError(f"{self.experiment.workload} on {self.experiment.machine} was given up unfinished")
        return self.time_s / reference_s - 1.0

    def joules(self, side: str) -> float:
        """Energy of one side: ``gpu`` (boards), ``cpu`` (packages and DRAM) or ``node``."""
        parts = {"gpu": ("gpu-",), "cpu": ("package-", "dram-"), "node": ("node",)}[side]
        return sum(joules for name, joules in self.energy_j.items() if name.startswith(parts))


def run(
    experiment: Experiment,
    replace_ports: Callable[[Twin, Ports], Ports] | None = None,
    hints: Callable[[Twin, Clock], EmulatedHints] | None = None,
) -> Result:
    """Run the workload to its end. ``replace_ports`` may wrap the emulated instruments for the agent. ``hints``: makes
    those of the program, if it gives any."""
    with tempfile.TemporaryDirectory(prefix="nodectl-experiment-") as state_dir:
        return run_again(
            experiment, workload_of(experiment), experiment.seed, state_dir, replace_ports=replace_ports, hints=hints
        )


def run_again(
    experiment: Experiment,
    workload: Workload,
    noise: int,
    state_dir: str,
    program: str | None = None,
    replace_ports: Callable[[Twin, Ports], Ports] | None = None,
    hints: Callable[[Twin, Clock], EmulatedHints] | None = None,
) -> Result:
    """The same of a given workload, with the noise of another seed, by an agent with this state directory: it finds
    there what runs of ``program`` have left."""
    begin = time.perf_counter()
    twin = Twin(load_machine(experiment.machine), workload, seed=noise, variation=experiment.variation or ALIKE)
    with InProcess(twin) as node:
        seen = replace_ports(twin, node.ports) if replace_ports else node.ports
        config = _config(experiment, state_dir)
        given = hints(twin, seen.clock) if hints else None
        with Agent.open(
            seen, config, wait=given.wait if given else None, progress=lambda: _reported(twin),
            program=lambda: program, hints=given,
        ) as agent:  # fmt: skip
            latest_ns = twin.time_ns + round(LONGEST * workload.seconds * 1e9)
            agent.run(until_ns=latest_ns, is_over=lambda: twin.finished)
        summary, report = agent.summary(), twin.report()
    estimates = [estimate for estimate in (summary.gpu, summary.cpu) if estimate is not None]
    return Result(
        experiment=experiment,
        time_s=report.time_s,
        finished=report.finished,
        slowdown=report.slowdown,
        energy_j=report.energy_j,
        estimated_slowdown=estimates[0].worst_slowdown if estimates else None,
        estimated_saved_j=estimates[0].saved_j if estimates else None,
        ticks=summary.ticks,
        cost_s=time.perf_counter() - begin,
        notices=summary.notices,
    )


def _reported(twin: Twin) -> RawProgress:
    units = twin.progress_units()
    return NO_RAW_PROGRESS if units is None else RawProgress(1, units)


def workload_of(experiment: Experiment) -> Workload:
    """The workload of an experiment, whose ``truth`` an oracle may use."""
    return load_workload(
        experiment.workload,
        load_machine(experiment.machine),
        seed=experiment.seed,
        bias=experiment.bias,
        duration_s=experiment.duration_s,
        progress_s=experiment.progress_s,
        counter_error=experiment.counter_error,
    )


def run_all(experiments: Iterable[Experiment], processes: int = 2) -> Iterator[Result]:
    """Run many, in order, in processes that each do several: NVML can be attached to one twin per process."""
    context = multiprocessing.get_context("fork")
    with context.Pool(processes) as pool:
        yield from pool.imap(run, experiments)


def _config(experiment: Experiment, state_dir: str) -> Config:
    return Config(
        mode="optimize",
        period_ms=experiment.period_ms,
        cpu_policy=PolicyChoice(experiment.cpu_policy, experiment.cpu_params),
        gpu_policy=PolicyChoice(experiment.gpu_policy, experiment.gpu_params),
        policies=experiment.others,
        journal=JournalSettings(max_bytes=0),
        budget=Budget(core_share=0.0),
        gpu=GpuSettings(0),
        state_dir=state_dir,
        calibration="",
    )
