"""A course: one run of the partition with one owner of its watts, a sharer or a policy of the scheduler, always with
the same backlog, budget, announced drop and time.

The backlog is more work than can be done. So courses differ in how much is done, by the clocks that the caps allow.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from cluster_agent.errors import WrongUseError
from cluster_agent.jobs.job import JobSpec
from cluster_agent.serve.people_protocol import ExplainCap, JobRow, ListJobs, SetSchedule, Submit
from lab.cluster_demo.account import (
    Over,
    Steps,
    caps_w,
    joules,
    mean_w,
    over_budget,
    over_limits,
    read_trace,
    work_of,
)
from lab.cluster_demo.emulated_partition import EmulatedPartition
from lab.emulated.emulated_jobs import COMMAND, Work
from nodectl.loop.summary import Summary

WORKLOADS: Final = {"compute": "hpl", "mixed": "nas", "memory": "stream"}
"""Per tag. Their degradations are published for the emulated machine (Curie), as are the sharer's tables."""

SIZES: Final = (1, 2, 4)
SHORTEST, LONGEST = 0.12, 0.36
"""Ours: a job's work at the highest clock, as parts of the run's length: jobs start and end all the time."""

SHARE, DROP_TO = 0.75, 0.65
DROP_FROM, DROP_UNTIL = 0.4, 0.7
"""The budget as a part of the TDP of all nodes; the same during the drop; the drop's begin and end as parts of the
run."""

LEVELS: Final = 6
"""Caps that a policy may choose from, evenly from TDP to MOP."""

PLOT_S: Final = 1.0
"""Power in plots is averaged over this time."""

LATE_SHARE: Final = 0.05
"""Ours: if an agent missed more of its ticks than this, its results are not those of an agent on its own node."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What is the same for all sharers. ``window_s``: the window over which the nodes' limits are averaged."""

    machine: str
    nodes: int
    seconds: float
    tdp_w: float
    mop_w: float
    window_s: float
    seed: int = 1

    @property
    def names(self) -> list[str]:
        """Names of the nodes."""
        return [f"n{number:02d}" for number in range(1, self.nodes + 1)]

    @property
    def budget_w(self) -> float:
        """The budget before and after the drop."""
        return SHARE * self.nodes * self.tdp_w

    @property
    def dropped_w(self) -> float:
        """The budget during the drop: every node at its MOP must fit."""
        return max(DROP_TO * self.tdp_w, 1.02 * self.mop_w) * self.nodes

    @property
    def levels_w(self) -> list[float]:
        """The caps among which a policy chooses."""
        return [round(float(watts), 1) for watts in np.linspace(self.tdp_w, self.mop_w, LEVELS)]

    def backlog(self) -> list[JobSpec]:
        """Half as much again as could be done without a cap, a third of the work per tag, from the seed."""
        dice = np.random.default_rng(self.seed)
        jobs: list[JobSpec] = []
        left_s = 1.5 * self.nodes * self.seconds
        sizes = [size for size in SIZES if size <= max(self.nodes // 2, 1)]
        while left_s > 0:
            for tag in dice.permutation(list(WORKLOADS)):
                nodes = int(dice.choice(sizes))
                work_s = round(self.seconds * dice.uniform(SHORTEST, LONGEST))
                jobs.append(self._job(str(tag), nodes, work_s))
                left_s -= nodes * work_s
        return jobs

    def _job(self, tag: str, nodes: int, work_s: int) -> JobSpec:
        command = [COMMAND, WORKLOADS[tag], f"{work_s}s"]
        return JobSpec(command, 4 * work_s, os.curdir, name=WORKLOADS[tag], nodes=nodes, tag=tag)


class Timing(msgspec.Struct, frozen=True):
    """How well this machine kept up: the share of all agents' ticks that was missed, and the worst agent's lateness."""

    missed: float
    p99_ms: float

    @property
    def is_late(self) -> bool:
        """Whether so much was missed that the results are those of slower agents."""
        return self.missed > LATE_SHARE


class Line(msgspec.Struct, frozen=True):
    """Once a second: true power over that second, the budget, the sum of the caps, and each node's."""

    s: float
    power_w: float
    budget_w: float
    caps_w: list[float]


class Course(msgspec.Struct, frozen=True):
    """The results, by the twins' truth. ``throughput``: work done, in seconds at the highest clock, per node and
    second; ``slowdown``: by tag, extra time as a share. ``over``: true power above the budget, both as means over
    ``window_s``; ``over_limits``: the same of each node above its own highest cap. ``why``: during the drop."""

    sharer: str
    seconds: float
    throughput: float
    slowdown: dict[str, float | None]
    work: dict[str, Work]
    ended: int
    failed: int
    energy_j: float
    window_s: float
    over: Over
    over_limits: Over
    timing: Timing
    why: list[str]
    lines: list[Line]
    alarms: list[str]


def check(scene: Scene, sharer: str, at: Path, policy: str = "") -> None:
    """``WrongUseError`` if ``run`` with these could not start. ``at``: a new folder, which stays."""
    if problem := _partition(scene, sharer, at, policy).refusal():
        raise WrongUseError(f"{policy or sharer} cannot run here: {problem}")


def _partition(scene: Scene, sharer: str, at: Path, policy: str) -> EmulatedPartition:
    owner = ("none", policy, scene.levels_w) if policy else (sharer,)
    return EmulatedPartition(at, scene.names, scene.machine, scene.tdp_w, scene.budget_w, *owner)


def run(
    scene: Scene, sharer: str, at: Path, say: Callable[[str], None] = lambda line: None, policy: str = ""
) -> Course:
    """Run it in a new folder ``at``, which stays; with a ``policy`` that owns the watts it knows the drop before any
    job, and every other job is a volunteer's. ``ClusterError`` if the partition cannot be made or breaks."""
    with _partition(scene, sharer, at, policy) as partition:
        say("all nodes capped; submitting")
        begin_s = time.monotonic()
        budget = _announce(scene, partition, begin_s) if policy else None
        for number, job in enumerate(scene.backlog()):
            own = {"workdir": str(partition.workdir), "eco": bool(policy) and number % 2 == 0}
            partition.ask(Submit(**(msgspec.structs.asdict(job) | own)))
        if budget is None:
            begin_s = time.monotonic()
            budget = _announce(scene, partition, begin_s)
        why = _watch(scene, partition, begin_s)
        rows = partition.ask(ListJobs(everything=True))
        log = partition.log("serve")
    return _course(scene, policy or sharer, partition, budget, (begin_s, begin_s + scene.seconds), rows, why, log)


def _announce(scene: Scene, partition: EmulatedPartition, begin_s: float) -> Steps:
    at_s = [begin_s + part * scene.seconds for part in (DROP_FROM, DROP_UNTIL)]
    watts = [scene.dropped_w, scene.budget_w]
    to_unix_s = time.time() - time.monotonic()
    steps = [(when + to_unix_s, round(w * 1000)) for when, w in zip(at_s, watts, strict=True)]
    partition.ask(SetSchedule(steps, "the demo's drop"))
    return Steps(np.array([begin_s - 3600.0, *at_s]), np.array([scene.budget_w, *watts]))


def _watch(scene: Scene, partition: EmulatedPartition, begin_s: float) -> list[str]:
    """Wait until the time is over; returns why one node has its cap in the middle of the drop."""
    why: list[str] = []
    ask_s = begin_s + (DROP_FROM + DROP_UNTIL) / 2 * scene.seconds
    while (now_s := time.monotonic()) < begin_s + scene.seconds:
        partition.check()
        if not why and now_s >= ask_s:
            why = partition.ask(ExplainCap(scene.names[0])).lines
        time.sleep(min(0.5, max(begin_s + scene.seconds - now_s, 0.0)))
    return why


def _course(
    scene: Scene, sharer: str, partition: EmulatedPartition, budget: Steps, span_s: tuple[float, float],
    rows: list[JobRow], why: list[str], log: list[str],
) -> Course:  # fmt: skip
    traces = [read_trace(partition.trace / f"{name}.jsonl") for name in partition.names]
    begin_s, end_s = span_s
    work = work_of(traces, begin_s, end_s)
    seconds_s = np.arange(begin_s + PLOT_S, end_s, PLOT_S)
    power_w, budget_w = mean_w(traces, seconds_s, PLOT_S), budget.mean(seconds_s, PLOT_S)
    caps = caps_w(traces, seconds_s)
    energy_j = joules(traces, np.array([begin_s, end_s]))
    return Course(
        sharer=sharer,
        seconds=scene.seconds,
        throughput=sum(one.done_s for one in work.values()) / (scene.nodes * scene.seconds),
        slowdown={tag: one.slowdown for tag, one in work.items()},
        work=work,
        ended=sum(row.state == "done" for row in rows),
        failed=sum(row.state in ("failed", "timeout", "lost") for row in rows),
        energy_j=float(energy_j[1] - energy_j[0]),
        window_s=scene.window_s,
        over=over_budget(traces, budget, begin_s, end_s, scene.window_s),
        over_limits=over_limits(traces, begin_s, end_s, scene.window_s),
        timing=_timing(partition),
        why=why,
        lines=[
            Line(round(float(at - begin_s), 3), float(power), float(most), [float(cap) for cap in column])
            for at, power, most, column in zip(seconds_s, power_w, budget_w, caps.T, strict=True)
        ],
        alarms=[line for line in log if "ALARM" in line],
    )


def _timing(partition: EmulatedPartition) -> Timing:
    """Of the agents that ended properly."""
    files = [partition.trace / f"{name}.json" for name in partition.names]
    found = [msgspec.json.decode(file.read_bytes(), type=Summary) for file in files if file.exists()]
    missed = sum(one.missed_periods for one in found)
    ticks = sum(one.ticks for one in found) + missed
    late_ms = max((one.lateness.p99_ms or 0.0 for one in found), default=math.inf)
    return Timing(missed / ticks if len(found) == len(files) else 1.0, late_ms)
