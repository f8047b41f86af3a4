"""What the CPU policies save and cost on emulated nodes that differ, next to the oracle.

Parameters of `bdpo-cpu-bounded` were chosen on `mixed-cpu:1` to `:10`, as was what a policy's change is judged by while
it is made (`--chosen`); everything else here is judged only. Each workload runs on three nodes of its type with other
parts, other work and other counter errors (`twin.physics.variation`); every policy has the same nodes and runs.

Savings and slowdowns are the whole node's truth against the same run on the same node at the highest clocks without a
policy. *Share* = saving of the policy / saving of the oracle (best clock per phase, same bound, same node); a second
oracle may share a phase's work between two clocks, as the policy can. Intervals are 95 %, over workloads: what another
choice of workloads would give (`clustered`).
Where programs report progress, a unit is about so much work, unlike in each phase (`twin.physics.emulated_progress`).
All results are emulated.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import multiprocessing
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.clustered import Within, mean_over, median_over, together
from benchmarks.experiment import Experiment, run, save
from benchmarks.oracle_cpu import Truth, oracle
from twin.machine import load_machine
from twin.physics.variation import Variation

BOUND = 0.03
KEPT = 0.035
"""Slowdown up to which the bound counts as kept."""

WORTH = 0.02
"""Where the oracle saves at least this, the share counts; elsewhere only the slowdown."""

POLICIES = ("bdpo-cpu-bounded", "bdpo-cpu")
UNIT_S = 0.01
"""Of the progress that programs report: time steps."""

NODES = (1, 2, 3)
DURATION_S = 120.0
TRIAD_S = 24.0
"""It takes two minutes or more where cores share the bandwidth."""

CHOSEN_ON = tuple(f"mixed-cpu:{number}" for number in range(1, 11))
JUDGED_MIXED = tuple(f"mixed-cpu:{number}" for number in range(31, 36))
CODES = ("hpl", "stream", "imb", "gromacs", "nas")
SHARED = ("triad", "mixed-cpu-threads:41", "mixed-cpu-threads:42")
"""Where cores share bandwidth and have siblings: all the bandwidth that there is, and work on both siblings."""

CPU_NODES = ("curie", "skylake-6146", "rome")
UNSEEN_MIXED = tuple(f"mixed-cpu:{number}" for number in range(36, 41))
UNSEEN = (
    *((machine, name, node) for machine, node in zip(CPU_NODES, (4, 5, 6), strict=True) for name in UNSEEN_MIXED),
    ("rome", "triad", 6),
    ("rome", "mixed-cpu-threads:44", 6),
)
"""Workloads and nodes that nothing was chosen on, and that no row of the table has. Once a change is made by them, take
others."""

GPU_NODE = "spr-h100"
"""Fewer workloads, since its oracle takes ten times as long."""


class Line(NamedTuple):
    """One line of the table. ``own_rest``: the policy is given the watts that no meter of it shows, as settings can."""

    policy: str
    bias: float
    progress_s: float | None = None
    own_rest: bool = True

    @property
    def title(self) -> str:
        reported = ", progress reported" if self.progress_s else ""
        return f"{self.policy}, bias {self.bias:.0%}{reported}" + ("" if self.own_rest else ", default `rest_w`")


MAIN = Line(POLICIES[0], 0.2)
LINES = (
    MAIN,
    Line(POLICIES[0], 0.2, own_rest=False),
    Line(POLICIES[0], 0.4),
    Line(POLICIES[0], 0.2, UNIT_S),
    Line(POLICIES[1], 0.2),
)
"""The second is on the node with GPUs alone, the others but the first on five sequences on the others."""


class Row(msgspec.Struct, frozen=True):
    """One workload on one node under one policy. ``node``: number of the node, and seed of the run."""

    machine: str
    workload: str
    node: int
    bias: float
    policy: str
    progress_s: float | None
    own_rest: bool
    oracle_saving: float
    oracle_slowdown: float
    two_clocks_saving: float
    two_clocks_slowdown: float
    saving: float
    slowdown: float

    @property
    def share(self) -> float:
        return self.saving / self.oracle_saving if self.oracle_saving > 0 else float("nan")

    @property
    def line(self) -> Line:
        return Line(self.policy, self.bias, self.progress_s, self.own_rest)


class Task(NamedTuple):
    machine: str
    workload: str
    node: int
    line: Line
    params: str = "{}"


def cases(line: Line, chosen: bool, quick: bool) -> Iterator[tuple[str, str]]:
    """(machine, workload) pairs of a line: those that parameters were chosen on, or those that judge them."""
    if chosen or (line != MAIN and line.own_rest):
        mixed = CHOSEN_ON if chosen else JUDGED_MIXED
        yield from ((machine, name) for machine in CPU_NODES for name in mixed)
        return
    if line == MAIN:
        names = (*JUDGED_MIXED[: 2 if quick else None], *CODES)
        yield from ((machine, name) for machine in CPU_NODES for name in names)
        yield from (("rome", name) for name in SHARED)
        yield "taurus", "taurus"
    yield from ((GPU_NODE, name) for name in ("stream", "gromacs", JUDGED_MIXED[0], *SHARED[:2]))


@functools.lru_cache(maxsize=4)
def truth(machine: str, workload: str, node: int) -> Truth:
    """Of a node. Bias concerns counters alone."""
    return oracle(machine, workload, node, 0.2, _duration_s(workload), BOUND, Variation(node=node))


def rest_w(machine: str) -> float:
    """What a node draws outside of its packages and DRAM while its GPUs idle: what a meter at the wall shows an
    administrator."""
    node = load_machine(machine)
    return node.power.rest_w + (node.gpu.count * node.gpu.power.idle_w if node.gpu else 0.0)


def judge(task: Task) -> Row:
    machine, workload, node, line, params = task
    known = truth(machine, workload, node)
    given = json.loads(params)
    if line.policy == POLICIES[0] and line.own_rest:
        given = {"rest_w": rest_w(machine)} | given
    result = run(
        Experiment(
            machine,
            workload,
            node,
            line.bias,
            _duration_s(workload),
            cpu_policy=line.policy,
            cpu_params=given,
            progress_s=line.progress_s,
            variation=Variation(node=node),
        )
    )
    return Row(
        machine,
        workload,
        node,
        line.bias,
        line.policy,
        line.progress_s,
        line.own_rest,
        known.best.saving,
        known.best.slowdown,
        known.shared.saving,
        known.shared.slowdown,
        1.0 - result.energy_j["node"] / known.node_j,
        result.slowdown_against(known.time_s),
    )


def judge_all(tasks: Sequence[Task]) -> list[Row]:
    """Tasks of one workload on one node, which share the oracle."""
    return [judge(task) for task in tasks]


def _duration_s(workload: str) -> float | None:
    """Seconds of work with the memory to itself."""
    return None if workload == "taurus" else TRIAD_S if workload == "triad" else DURATION_S


# --- figures of a line


class Figures(msgspec.Struct, frozen=True):
    """Of some runs; ``worth``: runs in which the oracle saves at least ``WORTH``. ``saving`` and ``slowdown``: means;
    shares are None where nothing is worth it. *Elsewhere* are the runs that are not."""

    runs: int
    worth: int
    oracle_saving: float
    saving: Within
    slowdown: Within
    median_share: Within | None
    worst_share: float | None
    kept: float
    worst_slowdown: float
    elsewhere_slowdown: float
    elsewhere_saving: float
    two_clocks_share: float | None


def figures(rows: Sequence[Row]) -> Figures:
    """The requested figures of one line."""
    worth = [row for row in rows if row.oracle_saving >= WORTH]
    other = [row for row in rows if row.oracle_saving < WORTH]
    two = [row.saving / row.two_clocks_saving for row in rows if row.two_clocks_saving >= WORTH]
    return Figures(
        runs=len(rows),
        worth=len(worth),
        oracle_saving=float(np.mean([row.oracle_saving for row in rows])),
        saving=mean_over(together((row.workload, row.saving) for row in rows)),
        slowdown=mean_over(together((row.workload, row.slowdown) for row in rows)),
        median_share=median_over(together((row.workload, row.share) for row in worth)) if worth else None,
        worst_share=min((row.share for row in worth), default=None),
        kept=float(np.mean([row.slowdown <= KEPT for row in rows])),
        worst_slowdown=max(row.slowdown for row in rows),
        elsewhere_slowdown=max((row.slowdown for row in other), default=0.0),
        elsewhere_saving=min((row.saving for row in other), default=0.0),
        two_clocks_share=float(np.median(two)) if two else None,
    )


HEAD = (
    f"{'':46}{'runs':>5}{'worth':>6}{'oracle':>7}{'saved':>12}{'slower':>12}{'median':>15}{'worst':>7}{'<=3.5%':>7}"
    f"{'slowest':>8}  elsewhere"
)


def text(title: str, f: Figures) -> str:
    """One line, in per cent."""
    share = f"{'-':>15}{'-':>7}"
    if f.median_share is not None and f.worst_share is not None:
        share = f"{f.median_share.ends():>15}{100 * f.worst_share:7.0f}"
    return (
        f"{title:46}{f.runs:5}{f.worth:6}{100 * f.oracle_saving:7.1f}{f.saving.plus_minus():>12}"
        f"{f.slowdown.plus_minus():>12}{share}{100 * f.kept:7.0f}{100 * f.worst_slowdown:8.1f}"
        f"  {100 * f.elsewhere_slowdown:.1f} slower, {100 * f.elsewhere_saving:.1f} saved"
    )


def show(line: Line, rows: Sequence[Row], every: bool) -> None:
    """All runs of a workload in one line if ``every``, then the machines, then all."""
    machines = list(dict.fromkeys(row.machine for row in rows))
    if every:
        for (machine, workload), own in itertools.groupby(rows, lambda row: (row.machine, row.workload)):
            print(text(f"  {machine} {workload}", figures(list(own))))
    for machine in machines if len(machines) > 1 else ():
        print(text(f"    {machine}", figures([row for row in rows if row.machine == machine])))
    print(text(line.title, figures(rows)), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_savings", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer workloads, the first line only")
    parser.add_argument("--chosen", action="store_true", help="the workloads that parameters were chosen on")
    parser.add_argument("--unseen", action="store_true", help="workloads and nodes that the table does not have")
    parser.add_argument("--machine", help="only this machine")
    parser.add_argument("--line", type=int, help=f"only one line, from 1 to {len(LINES)}")
    parser.add_argument("--params", default="{}", help="JSON parameters of bdpo-cpu-bounded, to try others")
    options = parser.parse_args(argv)
    is_short = options.quick or options.chosen or options.unseen
    lines = [LINES[options.line - 1]] if options.line else LINES[:1] if is_short else LINES
    wanted = {line: list(cases(line, options.chosen, options.quick)) for line in lines}
    pairs = dict.fromkeys(pair for line in lines for pair in wanted[line] if options.machine in (None, pair[0]))
    tasks = [
        Task(*pair, node, line, options.params if line.policy == POLICIES[0] else "{}")
        for pair in pairs
        for node in NODES
        for line in lines
        if pair in wanted[line]
    ]
    if options.unseen:
        tasks = [Task(*run, MAIN, options.params) for run in UNSEEN if options.machine in (None, run[0])]
    print(
        f"CPU policies on emulated nodes, bound {BOUND:.0%}, whole node, in per cent of the run at the highest clocks"
    )
    print(HEAD, flush=True)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        each_node = [list(group) for _, group in itertools.groupby(tasks, lambda task: task[:3])]
        table = list(itertools.chain.from_iterable(pool.imap(judge_all, each_node)))
    for line in lines:
        show(line, [row for row in table if row.line == line], every=line == lines[0])
    print("targets for bdpo-cpu-bounded at bias 20 %: median share >= 80, worst >= 55; slowdown <= 3.5 % on >= 95")
    if not options.chosen and not options.unseen:
        summary = {line.title: figures([row for row in table if row.line == line]) for line in lines}
        print("JSON:", save("cpu_savings", {"summary": summary, "rows": table}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
