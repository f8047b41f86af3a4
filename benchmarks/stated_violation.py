"""How often jobs draw more than ``easy-power`` admitted them with, next to the share that its ``violation`` states.

EMULATED. A node of Curie is calibrated by the kernels alone, with erring sensors; its table is the policy's. Jobs are
programs of the twin, none of them a kernel: what each draws on a node is the model's mean over ``PROGRAM_S`` at the
highest clock. Users repeat a few programs on 1 to 16 of 64 nodes; nodes differ by 3 % and runs by 2 %, and the cap is
``CAP`` of what all nodes draw at most. Traces of ``SEEDS`` judge; nothing was chosen on them, nor on others.

The second table is of jobs that ran: Eurora's, with known watts. There is no P-state table of that machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from benchmarks.calibration_table import METER_GAIN, RAPL_GAIN, ErringSensors
from benchmarks.eurora_capped import DATA, PREDICTED_CAP_W
from benchmarks.experiment import save
from calibration.kernels.port import KERNELS
from calibration.measure.node_session import open_session
from calibration.table.adaptive_sweep import Aim, Sweep
from calibration.table.finished_table import finished_table, package_limits_w
from calibration.table.table_file import write_table
from cluster_agent.cluster import load_machine as load_cluster
from cluster_agent.replay.drawn import ROUNDING_W, power_over_time
from cluster_agent.replay.measures import measure
from cluster_agent.replay.world_run import run as run_replay
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.power_cap import PowerCap, constant
from cluster_agent.scheduler.unlike_nodes.node_jobs import Nodes, nodes_of
from cluster_agent.scheduler.world import World
from cluster_agent.workloads.eurora import read_jobs
from cluster_agent.workloads.node_power import PredictedPower
from cluster_agent.workloads.node_trace import NodeTrace, NodeTraceBuilder
from lab.emulated.emulated_kernels import emulated_kernels
from nodectl.calibrated.node_identity import identity
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.physics.variation import Variation
from twin.programs.workload import load_workload

MACHINE: Final = "curie"
SEEDS: Final = (11, 12, 13)
NODES, CORES, NODE_MAX_W = 64, 16, 358.0
CAP: Final = 0.6
JOBS, USERS, PER_USER = 3000, 25, 3
PROGRAMS: Final = ("stream", "gromacs", "hpl", "imb", "nas", *(f"mixed-cpu:{number}" for number in range(51, 66)))
PROGRAM_S: Final = 60.0
NODE_SPREAD, RUN_SPREAD = 0.03, 0.02
STATED: Final = (0.01, 0.02, 0.05, 0.1, 0.2)
BUDGET_S: Final = 150.0
NOW: Final = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Row(msgspec.Struct, frozen=True):
    """Per cent; ``stated``: None where the policy states nothing. ``above``: jobs above what they were admitted with,
    ``time``: time above the cap, ``highest``: the highest watts over the cap."""

    jobs_of: str
    policy: str
    jobs: int
    stated: float | None
    above: float
    time: float
    highest: float
    slowdown: float
    makespan_h: float


def write_node_table(path: Path, node: int = 21) -> None:
    """The table of a node that is none of those of the trace."""
    drawn = np.random.default_rng(node).uniform(-1, 1, 2)
    gains = (1 + RAPL_GAIN * float(drawn[0]), 1 + METER_GAIN * float(drawn[1]))
    twin = Twin(load_machine(MACHINE), seed=node, variation=Variation(node=node))
    with InProcess(twin) as shown, tempfile.TemporaryDirectory(prefix="nodectl-calibration-") as state_dir:
        ports = dataclasses.replace(shown.ports, files=ErringSensors(shown.ports, *gains, seed=node))
        with open_session(ports, emulated_kernels(twin, node), state_dir) as session:
            limits_w = package_limits_w(shown.ports.files, session.packages)
            sweep = Sweep(session, KERNELS, Aim(budget_s=BUDGET_S), limits_w=limits_w)
            sweep.run()
            write_table(path, finished_table(sweep, identity(ports, session.found.layout), NOW))


def program_watts() -> list[float]:
    """What a node of the machine file draws for each program, mean."""
    found = []
    for name in PROGRAMS:
        workload = load_workload(name, load_machine(MACHINE), seed=1, duration_s=2 * PROGRAM_S)
        twin = Twin(load_machine(MACHINE), workload, seed=1)
        twin.advance(PROGRAM_S)
        found.append(twin.report().energy_j["node"] / PROGRAM_S)
    return found


def trace(seed: int, watts: Sequence[float]) -> NodeTrace:
    """Jobs of users with a few programs each, whose names distinguish them."""
    random, builder, now_s = np.random.default_rng(seed), NodeTraceBuilder("drawn", "", is_strict=True), 0.0
    uses = [random.choice(len(PROGRAMS), PER_USER, replace=False) for _ in range(USERS)]
    for at in range(JOBS):
        user = min(int(random.zipf(1.5)) - 1, USERS - 1)
        program, units = int(uses[user][int(random.integers(PER_USER))]), int(2 ** random.integers(5))
        now_s += float(random.exponential(130.0))
        run_s = max(round(float(random.lognormal(7.0, 0.8))), 60)
        spread = float(random.normal(1.0, np.hypot(NODE_SPREAD / units**0.5, RUN_SPREAD)))
        row = {
            "name": str(at),
            "submit_s": round(now_s),
            "wait_s": 0,
            "run_s": run_s,
            "request_s": round(run_s * float(random.uniform(1.1, 4.0))),
            "units": units,
            "cores": units * CORES,
            "gpus": 0,
            "mics": 0,
            "memory_kib": 0,
            "watts": units * watts[program] * spread,
            "queue": "",
            "user": f"user{user}",
            "text": f"{PROGRAMS[program]} {at % 10}",
        }
        builder.add(at + 1, lambda row=row: row)  # type: ignore[misc]
    return builder.finish()


def judged(jobs_of: str, jobs: NodeTrace, nodes: Nodes, cap: PowerCap, policy: str, stated: float | None) -> Row:
    composition = choose(policy).on_nodes
    source = PredictedPower(jobs, nodes, composition.admitted, composition.power.guard if composition.power else None)
    result = run_replay(World(jobs, nodes=nodes, caps=cap, new_predictor=lambda trace, nodes: source), composition)
    found, power = measure(result), power_over_time(result)
    is_over = power.watts[:-1] > power.cap_w[:-1] + ROUNDING_W
    has_run = result.start_s >= 0
    assert result.admitted_w is not None
    return Row(
        jobs_of,
        policy.partition(",table=")[0] + (",table=FILE" if ",table=" in policy else ""),
        len(jobs.jobs),
        None if stated is None else 100 * stated,
        100 * float((jobs.jobs.watts > result.admitted_w + ROUNDING_W)[has_run].mean()),
        100 * float((is_over * np.diff(power.time_s)).sum() / power.time_s[-1]),
        100 * float((power.watts / power.cap_w).max() - 1),
        found["AVEbsld"],
        found["makespan_s"] / 3600,
    )


def policies(table: Path | None, stated: Sequence[float]) -> Iterator[tuple[str, float | None]]:
    yield "easy-power", None
    yield "easy-power:of=maximum", None
    for one in stated:
        yield f"easy-power:violation={one:g}", one
        if table is not None:
            yield f"easy-power:violation={one:g},table={table}", one


def drawn_rows(seeds: Sequence[int], stated: Sequence[float]) -> Iterator[Row]:
    """Means over the traces."""
    nodes = Nodes(np.tile(np.array([CORES, 0, 0, 32 << 20], np.int64), (NODES, 1)), NODE_MAX_W)
    cap, watts = constant(CAP * NODES * NODE_MAX_W), program_watts()
    with tempfile.TemporaryDirectory(prefix="nodectl-table-") as folder:
        table = Path(folder) / "pstates.toml"
        write_node_table(table)
        traces = [trace(seed, watts).on(nodes, cap) for seed in seeds]
        for policy, one in policies(table, stated):
            found = [judged("programs", jobs, nodes, cap, policy, one) for jobs in traces]
            figures = {
                name: float(np.mean([getattr(row, name) for row in found]))
                for name in ("above", "time", "highest", "slowdown", "makespan_h")
            }
            yield msgspec.structs.replace(found[0], jobs=sum(row.jobs for row in found), **figures)


def eurora_rows(stated: Sequence[float]) -> Iterator[Row]:
    nodes, cap = nodes_of(load_cluster("eurora")), constant(PREDICTED_CAP_W)
    whole = read_jobs(str(DATA / "jobs.csv.gz"))
    whole = whole.only(np.flatnonzero(whole.jobs.knows_watts)).on(nodes, cap)
    jobs = msgspec.structs.replace(whole, text=whole.jobs.queue)
    for policy, one in policies(None, stated):
        yield judged("eurora", jobs, nodes, cap, policy, one)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stated_violation", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one trace of programs, 5 %% alone")
    options = parser.parse_args(arguments)
    seeds, stated = (SEEDS[:1], STATED[2:3]) if options.quick else (SEEDS, STATED)
    print("per cent; EMULATED but for the jobs of eurora; above: jobs that drew more than they were admitted with")
    print(
        f"{'jobs':9}{'':6} {'policy':42} {'stated':>7} {'above':>6} {'time over cap':>14} {'highest':>8} {'bsld':>7}"
        f" {'hours':>6}"
    )
    rows = []
    ran = eurora_rows(stated) if DATA.exists() and not options.quick else ()
    for row in itertools.chain(drawn_rows(seeds, stated), ran):
        rows.append(row)
        given = "" if row.stated is None else f"{row.stated:g}"
        print(
            f"{row.jobs_of:9}{row.jobs:6} {row.policy:42} {given:>7} {row.above:6.1f} {row.time:14.1f}"
            f" {row.highest:+8.1f} {row.slowdown:7.1f} {row.makespan_h:6.0f}",
            flush=True,
        )
    save("stated_violation", {"rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
