"""Energy fair-share: what a user gains by taking 30 % fewer joules for the same work, or loses by taking 30 % more.

Glesser, thesis, 2016, ch. 6, experiment 1. Energy is proportional to processor-seconds. For each of the 20 users with
most jobs one replay in which that user's jobs take 0.7 ("green") or 1.3 ("gluttonous") times as much, against one where
all are alike. A user's value is, in two readings, the mean over the user's jobs of stretch over stretch ("per job"), or
mean stretch over mean stretch ("per user"). Statistics are over the 20 users.
The order is that of his simulation: each usage over the highest, decaying with a half-life of a week, charged at the
end of a job; the sum in ascending order, ties by arrival; EASY behind. SDSC-BLUE stands in for PIK, which is not here.
All of it is simulated.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.replay_exact import DATA, ROOT
from benchmarks.sc15_learned import workload_of
from cluster_agent.replay.world_run import run as run_replay
from cluster_agent.scheduler.orders.priority import Account, Priority
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.world import World
from cluster_agent.workloads.job_log import Workload

OUT = ROOT / "out" / "bench" / "energy_fair_share.json"
LOGS = ("SDSC-SP2", "SDSC-BLUE", "CEA-Curie")
USERS = 20
WEIGHTS = {"FS": (1.0, 0.0), "EFS": (0.0, 1.0), "FS+EFS": (1.0, 1.0)}
EFFICIENCIES = {"green": 0.7, "gluttonous": 1.3}
COLUMNS = ("min", "mean", "median", "sd", "max")
PUBLISHED = {
    ("SDSC-SP2", "EFS", "green"): (0.27, 0.91, 0.92, 0.33, 1.82),
    ("SDSC-SP2", "EFS", "gluttonous"): (0.27, 1.10, 1.02, 0.31, 1.66),
    ("SDSC-SP2", "FS+EFS", "green"): (0.27, 0.89, 0.95, 0.24, 1.17),
    ("SDSC-SP2", "FS+EFS", "gluttonous"): (0.27, 1.03, 1.01, 0.34, 1.92),
    ("SDSC-BLUE", "EFS", "green"): (0.73, 0.97, 1.0, 0.07, 1.00),
    ("SDSC-BLUE", "EFS", "gluttonous"): (0.97, 1.03, 1.0, 0.11, 1.47),
    ("SDSC-BLUE", "FS+EFS", "green"): (0.89, 1.00, 1.0, 0.03, 1.00),
    ("SDSC-BLUE", "FS+EFS", "gluttonous"): (1.00, 1.03, 1.0, 0.10, 1.45),
    ("CEA-Curie", "EFS", "green"): (0.14, 1.08, 1.0, 0.64, 3.44),
    ("CEA-Curie", "EFS", "gluttonous"): (0.33, 3.02, 1.02, 6.25, 25.7),
    ("CEA-Curie", "FS+EFS", "green"): (0.14, 1.63, 1.0, 2.45, 13.5),
    ("CEA-Curie", "FS+EFS", "gluttonous"): (0.17, 1.57, 1.0, 2.06, 11.2),
}
"""Those other than SDSC-BLUE are of PIK. FS is 1 throughout."""


class Row(msgspec.Struct, frozen=True):
    """One value per user, who has most jobs first, in both readings."""

    log: str
    weights: str
    efficiency: str
    per_job: tuple[float, ...]
    per_user: tuple[float, ...]


def figures(ratios: Sequence[float]) -> tuple[float, ...]:
    """In the order of ``COLUMNS``; the standard deviation is that of a sample."""
    spread = statistics.stdev(ratios) if len(ratios) > 1 else 0.0
    return min(ratios), statistics.mean(ratios), statistics.median(ratios), spread, max(ratios)


def composition(weights: str, user: int = -1, efficiency: float = 1.0) -> Composition:
    """With one user, by the log's number, unlike the others."""
    cpu, energy = WEIGHTS[weights]
    accounts = {user: Account(1.0, efficiency)}
    return Composition(priority=Priority(cpu=cpu, energy=energy, is_relative=True, accounts=accounts), backfill="easy")


def stretch(workload: Workload, composition: Composition) -> npt.NDArray[np.float64]:
    jobs = workload.jobs
    wait_s = run_replay(World(workload), composition).schedule.start_s - jobs.submit_s
    return (wait_s + jobs.run_s) / jobs.run_s


def busiest(workload: Workload, count: int) -> list[int]:
    """The users with most jobs, as in the log."""
    numbers, jobs = np.unique(np.asarray(workload.users)[workload.jobs.user], return_counts=True)
    order = np.lexsort((numbers, -jobs))
    return [int(number) for number in numbers[order][:count] if number >= 0]


def rows_of(log: str, workload: Workload, weights: str, count: int) -> Iterator[Row]:
    """Green, then gluttonous."""
    baseline = stretch(workload, composition(weights))
    user_of = np.asarray(workload.users)[workload.jobs.user]
    for efficiency, factor in EFFICIENCIES.items():
        per_job, per_user = [], []
        for user in busiest(workload, count):
            before = baseline[user_of == user]
            after = stretch(workload, composition(weights, user, factor))[user_of == user]
            per_job.append(float((after / before).mean()))
            per_user.append(float(after.mean() / before.mean()))
        yield Row(log, weights, efficiency, tuple(per_job), tuple(per_user))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="SDSC-SP2 only")
    parser.add_argument("--log", action="append", choices=LOGS, help="only this log (repeatable)")
    parser.add_argument("--users", type=int, default=USERS, help=f"with most jobs (default: {USERS})")
    options = parser.parse_args(arguments)
    if not DATA.exists():
        print("energy_fair_share: the logs of ../shared/data/sc15-backfilling are not here", file=sys.stderr)
        return 1
    rows: list[Row] = []
    print(f"{'log':10} {'order':7} {'user':10} {'reading':9}", *(f"{name:>7}" for name in COLUMNS))
    for log in options.log or (LOGS[:1] if options.quick else LOGS):
        workload = workload_of(log)
        for weights in WEIGHTS:
            count = options.users if weights != "FS" else 1  # it does not see joules
            for row in rows_of(log, workload, weights, count):
                rows.append(row)
                print(lines(row), flush=True)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_bytes(msgspec.json.format(msgspec.json.encode({"rows": rows}), indent=1))
    unmoved = all(set(one.per_job) == {1.0} for one in rows if one.weights == "FS")
    print(f"FS does not see joules: {'yes' if unmoved else 'NO'}; {OUT.relative_to(ROOT)}")
    return 0 if unmoved else 1


def lines(row: Row) -> str:
    published = PUBLISHED.get((row.log, row.weights, row.efficiency), (1.0, 1.0, 1.0, 0.0, 1.0))
    found = {"per job": figures(row.per_job), "per user": figures(row.per_user), "published": published}
    return "\n".join(
        f"{row.log:10} {row.weights:7} {row.efficiency:10} {reading:9} " + " ".join(f"{one:7.2f}" for one in values)
        for reading, values in found.items()
    )


if __name__ == "__main__":
    sys.exit(main())
