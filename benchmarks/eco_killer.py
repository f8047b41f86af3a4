"""EcoJobs against killing: ten days with a cap every evening from 18:00 to 20:00, over shares of EcoJobs.

The workload is generated: a seed draws jobs like those of a busy general-purpose machine, submitted in a closed loop
that keeps a queue of a given length, as the report has it (REGALE D2.3 §4.1; a fixed trace would reward a backlog). The
machine is 64 nodes with Curie's watts and frequencies, no logged one. The same jobs come in the same order every time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from cluster_agent.cap_steps import Cap
from cluster_agent.cluster import Machine, load_machine
from cluster_agent.replay.closed_loop import ClosedLoop, Looped
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.world import World
from cluster_agent.workloads.job_log import Workload
from cluster_agent.workloads.swf import Log

OUT = Path(__file__).parent.parent / "out" / "bench" / "eco_killer.json"

DAYS: Final = 10
DAY_S: Final = 86400
FROM_H, TO_H = 18, 20
CAP_SHARES: Final = (0.8, 0.6, 0.5)
"""Of the watts that the machine can draw more than idle, plus idle. All nodes at the lowest frequency need 0.32."""
ECO_SHARES: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
QUEUED: Final = 16
NODES: Final = 64
JOBS: Final = 30_000


class Row(msgspec.Struct, frozen=True):
    """One policy, one share of EcoJobs, one cap."""

    policy: str
    cap_share: float
    eco_share: float
    kills: int
    lost_node_h: float
    wasted_kwh: float
    ended: int
    done_node_h: float  # of jobs that ended, at the highest frequency
    eco_slowdown: float | None  # run time over that at the highest frequency, jobs that ran in a window
    over_cap_ws: float
    highest_in_window_w: float


LOG: Final = Log("generated", "", {}, np.full((18, JOBS), -1), np.arange(JOBS), ())


def workload(seed: int, cores: int) -> Jobs:
    """Whole nodes, powers of two up to half the machine; log-uniform run times of 5 min to 8 h."""
    rng = np.random.default_rng(seed)
    nodes = 2 ** rng.choice(6, JOBS, p=[0.35, 0.2, 0.2, 0.12, 0.08, 0.05])
    run_s = np.exp(rng.uniform(np.log(300), np.log(28800), JOBS)).astype(np.int64)
    request_s = np.minimum((run_s * rng.uniform(1, 4, JOBS)).astype(np.int64), 86400)
    zeros = np.zeros(JOBS, np.int64)
    return Jobs(np.arange(JOBS), zeros, run_s, request_s, (nodes * cores).astype(np.int32), zeros.astype(np.int32))


def evenings(watts: float) -> list[Cap]:
    """The daily windows."""
    return [Cap(day * DAY_S + FROM_H * 3600, day * DAY_S + TO_H * 3600, watts) for day in range(DAYS)]


def measured(policy: str, cap_share: float, eco_share: float, machine: Machine, seed: int) -> Row:
    jobs, caps = (
        workload(seed, machine.node.cores),
        evenings(machine.idle_w + cap_share * (machine.full_w - machine.idle_w)),
    )
    composition = choose(policy).composition
    watts = Watts.of(machine, composition.power)
    flags = np.random.default_rng([seed, 1]).random(JOBS) < eco_share
    watts = replace(watts, job_lowest=np.where(flags, watts.lowest, 0).astype(np.int32))
    given = Workload(LOG, machine.processors, jobs, np.arange(JOBS), True, np.zeros(JOBS, np.bool_), ())
    looped = Looped(World(given, watts), ClosedLoop(queue=QUEUED))
    on, answers = looped.world.watts, looped.answers
    replay = NativeReplay(composition, looped.jobs, machine.processors, on, caps, answering=answers)
    while replay.now_s < DAYS * DAY_S and replay.run(replay.ended + 1):
        pass
    start_s, end_s = replay.start_s, replay.end_s
    has_ended = (end_s >= 0) & (end_s <= DAYS * DAY_S)
    times_s, drawn_w, cap_w = replay.power
    lasts_s = np.diff([*times_s, replay.now_s])
    ran_s = (end_s - start_s)[has_ended]
    slowed = has_ended & flags & np.array([in_window(*span, caps) for span in zip(start_s, end_s, strict=True)])
    is_capped = np.isfinite(cap_w) & (lasts_s > 0)
    assert (ran_s >= jobs.run_s[has_ended]).all()
    return Row(
        policy,
        cap_share,
        eco_share,
        int(replay.kills.sum()),
        float(replay.lost.sum()) / machine.node.cores / 3600,
        float(replay.lost_j.sum()) / 3.6e6,
        int(has_ended.sum()),
        float((jobs.run_s * jobs.width)[has_ended].sum()) / machine.node.cores / 3600,
        float(((end_s - start_s) / jobs.run_s)[slowed].mean()) if slowed.any() else None,
        float((np.clip(drawn_w - cap_w, 0, None) * lasts_s).sum()),
        float(drawn_w[is_capped].max(initial=0.0)),
    )


def in_window(start_s: int, end_s: int, caps: Sequence[Cap]) -> bool:
    """Whether a job that ended ran under a cap."""
    return end_s >= 0 and any(start_s < cap.to_s and cap.from_s < end_s for cap in caps)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.eco_killer", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one cap")
    options = parser.parse_args(arguments)
    machine = load_machine(f"curie:nodes={NODES}")
    print(f"generated workload, closed loop of {QUEUED} waiting jobs, {NODES} nodes with Curie's watts")
    print("policy                 cap  eco   kills  lost node-h  wasted kWh  jobs  node-h  eco slowdown  over cap W s")
    rows = []
    for cap_share in CAP_SHARES[:1] if options.quick else CAP_SHARES:
        for policy in ("fcfs-killer", "fcfs-killer:ahead=true", "eco", "eco:freed=eco-first", "eco:victim=least-lost"):
            for eco_share in ECO_SHARES if policy.startswith("eco") else (0.0,):
                row = measured(policy, cap_share, eco_share, machine, 1)
                rows.append(row)
                slowdown = "" if row.eco_slowdown is None else f"{row.eco_slowdown:.3f}"
                print(
                    f"{row.policy:22}{row.cap_share:4.1f}{row.eco_share:6.2f}{row.kills:7}{row.lost_node_h:13.1f}"
                    f"{row.wasted_kwh:12.1f}{row.ended:7}{row.done_node_h:8.0f}{slowdown:>12}{row.over_cap_ws:12.0f}",
                    flush=True,
                )
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_bytes(msgspec.json.encode(rows))
    return 1 if any(row.over_cap_ws > 0 for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
