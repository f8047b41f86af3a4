"""Two jobs on the halves of a node: what they cost each other, and what that is worth to a queue. EMULATED.

*Pairs*: programs like NAS's (``nas_programs``) on the twin's ``rome``, two EPYC 7502, whose shared bandwidth is fitted
to STREAM. A program alone has all 64 cores; on halves it has half the cores of every die, on twice as many nodes, next
to another program or to nobody. Its speed is that of one thread, relative to alone on whole nodes.

*Queue*: a backlog of 300 jobs on 32 nodes (``nas_programs.mix``, whose SHA-256 was written down before), replayed by
``clusterctl replay`` under each rule of the policy ``shared``. Throughput is the work of all jobs, in node seconds
alone, over the nodes and the time until 95 % of it are done: the tail of a backlog, in which nodes stand empty, is one
long job's. The makespan is given, too. ``slowest`` is the worst job's run time alone over its run time here.

Constants of the matching were chosen on the seeds of ``TUNING``; those of ``JUDGING`` judge. ``--quick``: one seed.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.experiment import save
from benchmarks.nas_programs import JUDGING, MIXES, NODES, PROGRAMS, TUNING, MixedJob, Program, digest, mix
from cluster_agent import library
from foundation.shell.text_table import render
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

Float64s = npt.NDArray[np.float64]

MACHINE: Final = "rome"
DIE_CORES: Final = 8
SECONDS: Final = 0.3
"""Of emulated time for each pair: speeds are constant after a few milliseconds."""
PUBLISHED: Final = {("sp", "ep"): 1.54, ("ep", "sp"): 1.00}
PUBLISHED_MEAN: Final = 1.12
DONE: Final = 0.95

_HEAD: Final = 'name = "shared"\nsummary = "programs on halves"\nsource = "ours"\n'
_GROUP: Final = """[[cpu]]
cpus = "{cpus}"
wait = "spin"
[[cpu.phase]]
name = "work"
seconds = 1000
beta = {beta:.6f}
traffic_gbs = {gbs:.6f}
"""


class Run(NamedTuple):
    """Speeds of the programs of a node, as those of one thread with the memory to itself, and the node's watts."""

    speeds: tuple[float, ...]
    node_w: float


def emulated(programs: Sequence[tuple[Program, Sequence[int]]], faster: float = 1.0) -> Run:
    """Programs on these cores of a node. ``faster``: see ``Program.demand``."""
    machine = load_machine(MACHINE)
    text = _HEAD
    for program, cores in programs:
        gbs, waiting = program.demand(faster)
        text += _GROUP.format(cpus=",".join(map(str, cores)), beta=1 - waiting, gbs=gbs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shared.toml"
        path.write_text(text)
        twin = Twin(machine, load_workload(str(path), machine, bias=0.0))
    twin.advance(SECONDS)
    before, before_j = twin.work_s(), twin.node_j
    twin.advance(SECONDS)
    speeds = [(after - had) / SECONDS for had, after in zip(before, twin.work_s(), strict=True)]
    return Run(tuple(speeds), (twin.node_j - before_j) / SECONDS)


def half(which: int) -> list[int]:
    """Half the cores of every die."""
    cores = load_machine(MACHINE).cores
    return [core for core in range(cores) if core % DIE_CORES // (DIE_CORES // 2) == which]


class Truth(NamedTuple):
    """``speed[i, j]``: of program i next to j, in the last column next to a free half; relative to whole nodes.
    ``watts``: of the node, in the same places; ``whole_w[i]``: of one that i has to itself. ``idle_w``: of no job."""

    speed: Float64s
    watts: Float64s
    whole_w: Float64s
    idle_w: float


def truth(faster: float = 1.0) -> Truth:
    count = len(PROGRAMS)
    speed, watts, whole_w = np.empty((count, count + 1)), np.empty((count, count + 1)), np.empty(count)
    whole = np.empty(count)
    for i, one in enumerate(PROGRAMS):
        run = emulated([(one, range(load_machine(MACHINE).cores))], faster)
        (whole[i],), whole_w[i] = run.speeds, run.node_w
        run = emulated([(one, half(0))], faster)
        speed[i, count], watts[i, count] = run.speeds[0] / whole[i], run.node_w
    for i, one in enumerate(PROGRAMS):
        for j, other in enumerate(PROGRAMS[: i + 1]):
            run = emulated([(one, half(0)), (other, half(1))], faster)
            speed[i, j], speed[j, i] = run.speeds[0] / whole[i], run.speeds[1] / whole[j]
            watts[i, j] = watts[j, i] = run.node_w
    twin = Twin(load_machine(MACHINE), None)
    twin.advance(SECONDS)
    before_j = twin.node_j
    twin.advance(SECONDS)
    return Truth(speed, watts, whole_w, (twin.node_j - before_j) / SECONDS)


def print_pairs(found: Truth) -> None:
    names = [program.name for program in PROGRAMS]
    rows = [(name, *(f"{one:.2f}" for one in row)) for name, row in zip(names, found.speed, strict=True)]
    print(render(("speed of, next to", *names, "free half"), rows))
    pairs = found.speed[:, :-1]
    sp, ep = names.index("sp"), names.index("ep")
    print(f"mean of all pairs {pairs.mean():.3f} (published 1.12); sp next to ep {pairs[sp, ep]:.2f} (1.54),"
          f" ep next to sp {pairs[ep, sp]:.2f} (1.00)")  # fmt: skip


def split_errors(found: Truth) -> dict[str, tuple[float, float]]:
    """Mean and worst error, in % of a job's watts, of two ways to divide the watts of a shared node, over all pairs.

    What a job ought to have is Shapley's value: the mean of what the node draws more for it, alone and next to the
    other, and half of the idle watts. ``processor time``: both have as many busy cores, so half each. ``own half``:
    half of the idle watts, and the rest as the two draw above idle on half a node next to nobody, which history knows.
    """
    free = found.watts[:, -1] - found.idle_w
    pair = found.watts[:, :-1] - found.idle_w
    fair = (free[:, None] + pair - free) / 2 + found.idle_w / 2
    ways = {
        "processor time": found.watts[:, :-1] / 2,
        "own half": pair * free[:, None] / (free[:, None] + free) + found.idle_w / 2,
    }
    errors = {name: 100 * np.abs(way / fair - 1) for name, way in ways.items()}
    return {name: (float(error.mean()), float(error.max())) for name, error in errors.items()}


# --- a queue


class Cell(msgspec.Struct, frozen=True):
    """A replay. ``rate``: nodes' worth of work alone that a node does. ``below``: the share of jobs slower than 95 % of
    alone."""

    rule: str
    mix: str
    seed: int
    rate: float
    makespan_s: int
    slowest: float
    below: float
    mean_speed: float
    wait_s: float


RULES: Final = {
    "never": "shared:rule=compact,floor=0",
    "no_preference": "shared:rule=no_preference,floor=0",
    "always": "shared:rule=spread,floor=0",
    "spread, floor 0.95": "shared:rule=spread",
    "matched": "shared:rule=matched",
    "matched, no floor": "shared:rule=matched,floor=0",
}


def write_pairs(path: Path, speed: Float64s) -> None:
    """As the table that ``--pairs`` takes; a program alone does one step a second."""
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(
            ["application", "batch_size", "partner", "partner_batch_size", "steps_per_s", "partner_steps_per_s"]
        )
        for i, one in enumerate(PROGRAMS):
            out.writerow([one.name, "", "", "", 1, ""])
            out.writerow([one.name, "", "free", "", f"{speed[i, -1]:.6f}", ""])
            for j, other in enumerate(PROGRAMS[: i + 1]):
                out.writerow([one.name, "", other.name, "", f"{speed[i, j]:.6f}", f"{speed[j, i]:.6f}"])


def write_jobs(path: Path, jobs: Sequence[MixedJob]) -> None:
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["job", "application", "batch_size", "hours", "nodes", "request_h"])
        for number, job in enumerate(jobs, 1):
            out.writerow([number, job.program, "", job.run_s / 3600, job.nodes, job.request_s / 3600])


def replay(folder: Path, name: str, seed: int, rule: str, policy: str) -> Cell:
    """One cell; ``folder`` has the pairs."""
    jobs = folder / f"{name}-{seed}.csv"
    if not jobs.exists():
        write_jobs(jobs, mix(name, seed))
    result = library.replay(library.World(str(jobs), machine=NODES, pairs=str(folder / "pairs.csv")), policy)
    return cell_of(result, rule, name, seed, NODES, 2)


def cell_of(result: library.Result, rule: str, name: str, seed: int, nodes: int, shares: int) -> Cell:
    """``shares``: of a node that has one job alone."""
    assert not result.unstarted
    work = result.jobs.units / shares * result.jobs.run_s
    order = np.argsort(result.end_s)
    done = np.cumsum(work[order])
    until_s = result.end_s[order][np.searchsorted(done, DONE * done[-1])]
    speed = result.jobs.run_s / result.run_s
    return Cell(
        rule, name, seed, float(DONE * done[-1] / (nodes * until_s)), int(result.end_s.max()), float(speed.min()),
        float((speed < 0.95 - 1e-3).mean()), float((work * speed).sum() / work.sum()), float(result.wait_s.mean()),
    )  # fmt: skip


def print_queue(cells: Sequence[Cell]) -> None:
    """Against ``never`` on the same jobs, with 95 % intervals over seeds."""
    never = {(cell.mix, cell.seed): cell for cell in cells if cell.rule == "never"}
    rows = []
    for name in dict.fromkeys(cell.mix for cell in cells):
        for rule in dict.fromkeys(cell.rule for cell in cells):
            found = [cell for cell in cells if (cell.rule, cell.mix) == (rule, name)]
            if not found:
                continue
            rate = np.array([100 * (cell.rate / never[name, cell.seed].rate - 1) for cell in found])
            span = np.array([100 * (cell.makespan_s / never[name, cell.seed].makespan_s - 1) for cell in found])
            wait = np.array([100 * (cell.wait_s / never[name, cell.seed].wait_s - 1) for cell in found])
            margin = 1.96 * rate.std(ddof=1) / len(rate) ** 0.5 if len(rate) > 1 else float("nan")
            rows.append((
                name, rule, f"{rate.mean():+.1f} ± {margin:.1f}", f"{span.mean():+.1f}", f"{wait.mean():+.1f}",
                f"{np.mean([cell.mean_speed for cell in found]):.2f}", f"{min(cell.slowest for cell in found):.2f}",
                f"{100 * np.mean([cell.below for cell in found]):.0f} %",
            ))  # fmt: skip
    head = ("mix", "rule", "throughput %", "makespan %", "wait %", "mean speed", "slowest", "below 0.95")
    print(render(head, rows))


def queue(found: Truth, seeds: Sequence[int], rules: Sequence[str] = tuple(RULES)) -> list[Cell]:
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        write_pairs(folder / "pairs.csv", found.speed)
        return [replay(folder, name, seed, rule, RULES[rule]) for name in MIXES for seed in seeds for rule in rules]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shared_nodes", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--tuning", action="store_true", help="the seeds that constants were chosen on")
    options = parser.parse_args(argv)
    print(f"programs and mixes: SHA-256 {digest()}")
    found = truth()
    print_pairs(found)
    for faster in (0.5, 2.0):
        pairs = truth(faster).speed
        print(f"cores {faster:g} times as fast: mean {pairs[:, :-1].mean():.3f}, sp next to ep {pairs[-1, 2]:.2f}")
    errors = split_errors(found)
    for way, (mean, worst) in errors.items():
        print(f"watts of a shared node by {way}: error {mean:.1f} % on average, {worst:.1f} % at most")
    seeds = TUNING if options.tuning else JUDGING[:1] if options.quick else JUDGING
    cells = queue(found, seeds)
    print_queue(cells)
    content = {
        "digest": digest(),
        "speed": found.speed.tolist(),
        "split_errors": errors,
        "cells": [msgspec.to_builtins(cell) for cell in cells],
    }
    print("JSON:", save("shared_nodes", content))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
