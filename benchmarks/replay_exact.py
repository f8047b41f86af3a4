"""Published schedules, repeated: every job's wait where that is published, else the mean bounded slowdown.

The inputs and the published results are those of the SC'15 backfilling campaign (../shared/data/sc15-backfilling). Of
the published metrics only rows over the whole log count; the others are runs that were broken off.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow.parquet as pq

from cluster_agent.replay.measures import bounded_slowdown
from cluster_agent.replay.world_run import run as run_replay
from cluster_agent.scheduler.job_columns import Int64s
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.world import World
from cluster_agent.workloads.job_log import Workload, machine_of, prepare
from cluster_agent.workloads.swf import read_swf

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data" / "sc15-backfilling"
OUT = ROOT / "out" / "bench" / "replay_exact.json"

LOGS = ("KTH-SP2", "CTC-SP2", "SDSC-SP2", "SDSC-BLUE", "CEA-Curie")
QUICK = LOGS[:2]

JOB_BY_JOB = {
    "easy_request": "easy:ties=sc15",
    "easy_clairvoyant": "easy:estimate=clairvoyant,ties=sc15",
    "sjbf_clairvoyant": "easy-sjbf:estimate=clairvoyant,ties=sc15",
    "sjbf_tsafrir": "easy-sjbf:estimate=mean2,correct=incremental,ties=sc15",
}
"""The columns of LOG.schedules.parquet. SDSC-SP2 has none."""

FCFS = {"KTH-SP2": 6814.973, "CTC-SP2": 3651.566, "SDSC-BLUE": 3280.356, "CEA-Curie": 5959.099}
"""AVEbsld of strict FCFS, on which three independent codes agree."""

IN_ORDER, SHORTEST = "easy_prediction_backfill_scheduler", "easy_plus_plus_scheduler"
CORRECTORS = {"requested": "reqtime", "incremental": "tsafrir", "doubling": "recursive_doubling"}
ON_AVERAGE = {
    "easy:ties=sc15": {"scheduler": "easy_backfill_scheduler"},
    "easy-sjbf:ties=sc15": {"scheduler": "easy_sjbf_scheduler"},
    **{
        f"{name}:estimate=clairvoyant,ties=sc15": {"scheduler": scheduler, "predictor": "predictor_clairvoyant"}
        for name, scheduler in (("easy", IN_ORDER), ("easy-sjbf", SHORTEST))
    },
    **{
        f"{name}:estimate=mean2,correct={correct},ties=sc15": {
            "scheduler": scheduler,
            "predictor": "predictor_tsafrir",
            "corrector": corrector,
        }
        for name, scheduler in (("easy", IN_ORDER), ("easy-sjbf", SHORTEST))
        for correct, corrector in CORRECTORS.items()
    },
}
"""The rows of published-metrics.parquet."""

TOLERANCE = 1e-6
"""Relative. The published means have six or seven digits."""


class Row(msgspec.Struct, frozen=True):
    """One policy on one log. ``differing`` is None where no schedule is published, ``published`` where no mean is."""

    log: str
    policy: str
    jobs: int
    differing: int | None
    ave_bsld: float
    published: float | None
    is_met: bool


def rows(log: str) -> Iterator[Row]:
    read = read_swf(str(DATA / f"{log}.swf.gz"))
    processors = machine_of(read)
    assert processors, f"{log} states no MaxProcs"
    workload = prepare(read, processors)
    assert not workload.findings, f"{log} is not as published: {workload.findings[0]}"
    for column, policy in JOB_BY_JOB.items():
        if published := published_waits(log, column):
            number, expected_s = published
            assert (workload.jobs.number == number).all()
            wait_s = waits(workload, policy)
            differing = int((wait_s != expected_s).sum())
            yield row(workload, log, policy, wait_s, differing, None, not differing)
    if log in FCFS:
        wait_s = waits(workload, "fcfs")
        is_met = round(mean_bsld(workload, wait_s), 3) == FCFS[log]
        yield row(workload, log, "fcfs", wait_s, None, FCFS[log], is_met)
    for policy, wanted in ON_AVERAGE.items():
        published_mean = published_mean_bsld(log, len(workload.jobs), wanted)
        if published_mean is not None:
            wait_s = waits(workload, policy)
            is_met = abs(mean_bsld(workload, wait_s) / published_mean - 1) <= TOLERANCE
            yield row(workload, log, policy, wait_s, None, published_mean, is_met)


def row(
    workload: Workload,
    log: str,
    policy: str,
    wait_s: Int64s,
    differing: int | None,
    published: float | None,
    is_met: bool,
) -> Row:
    return Row(log, policy, len(workload.jobs), differing, mean_bsld(workload, wait_s), published, is_met)


def waits(workload: Workload, policy: str) -> Int64s:
    return run_replay(World(workload), choose(policy).composition).schedule.start_s - workload.jobs.submit_s


def mean_bsld(workload: Workload, wait_s: Int64s) -> float:
    return float(bounded_slowdown(wait_s, workload.jobs.run_s).mean())


def published_waits(log: str, column: str) -> tuple[Int64s, Int64s] | None:
    path = DATA / f"{log}.schedules.parquet"
    if not path.exists():
        return None
    table = pq.read_table(path, columns=["job", f"wait__{column}"])
    job, wait_s = (one.to_numpy() for one in table.columns)
    return job, wait_s


def published_mean_bsld(log: str, jobs: int, wanted: dict[str, str]) -> float | None:
    table = pq.read_table(DATA / "published-metrics.parquet", filters=[("trace", "=", log), ("length", "=", jobs)])
    found = {line["avgbsld"] for line in table.to_pylist() if all(line[key] == value for key, value in wanted.items())}
    assert len(found) <= 1, f"{log}: several published values for {wanted}"
    return found.pop() if found else None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"only {' and '.join(QUICK)}")
    options = parser.parse_args(arguments)
    if not DATA.exists():
        print("replay_exact: the logs of ../shared/data/sc15-backfilling are not here", file=sys.stderr)
        return 1
    found = []
    print(f"{'log':10} {'policy':56} {'jobs':>7} {'waits differ':>12} {'AVEbsld':>12} {'published':>12}")
    for log in QUICK if options.quick else LOGS:
        for one in rows(log):
            found.append(one)
            differing = "" if one.differing is None else str(one.differing)
            published = "" if one.published is None else f"{one.published:.6f}"
            print(
                f"{one.log:10} {one.policy:56} {one.jobs:7} {differing:>12} {one.ave_bsld:12.6f} {published:>12}"
                f"{'' if one.is_met else '   NOT MET'}",
                flush=True,
            )
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_bytes(msgspec.json.format(msgspec.json.encode({"rows": found}), indent=1))
    missed = sum(not one.is_met for one in found)
    print(f"{len(found) - missed} of {len(found)} are as published; {OUT.relative_to(ROOT)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
