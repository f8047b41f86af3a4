"""The on-line learner of the SC'15 campaign, repeated: the mean bounded slowdowns of its loss variants.

Each of the 20 variants (two losses of an over-estimate, two of an under-estimate, five weights) under EASY with the
shortest jobs first, with each correction, and in order of submission. Of the published metrics only rows over the
whole log count. Rows of KTH-SP2, CTC-SP2 and SDSC-SP2 are gated; those of SDSC-BLUE and CEA-Curie are shown: many
published runs were broken off there, and the means hang on few jobs. Where the campaign's schedule is at hand (KTH-SP2,
CTC-SP2), every job's first estimate and wait is compared too.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import pyarrow.parquet as pq

from benchmarks.replay_exact import DATA, ROOT, mean_bsld
from cluster_agent.replay.measures import bounded_slowdown
from cluster_agent.replay.world_run import Result
from cluster_agent.replay.world_run import run as run_replay
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.world import World
from cluster_agent.workloads.job_log import Workload, machine_of, prepare
from cluster_agent.workloads.swf import read_swf

OUT = ROOT / "out" / "bench" / "sc15_learned.json"

GATED, SHOWN = ("KTH-SP2", "CTC-SP2", "SDSC-SP2"), ("SDSC-BLUE", "CEA-Curie")
TOLERANCE = 0.1
"""Relative. Where a prediction differs by a second, schedules part from there on."""

LOSSES = {"linear": "abs", "squared": "square"}
WEIGHTS = {
    "equal": "1",
    "short-wide": "5+log(m/r)",
    "long-narrow": "5+log(r/m)",
    "small": "11+log(1/(r*m))",
    "large": "1+log(m*r)",
}
SCANS = {"easy-sjbf": "easy_plus_plus_scheduler", "easy": "easy_prediction_backfill_scheduler"}
CORRECTIONS = {"incremental": "tsafrir", "requested": "reqtime", "doubling": "recursive_doubling"}
LEARNED = "sjbf_learned_tsafrir"
"""The column of LOG.learned.parquet: the variant that the thesis selects."""


class Row(msgspec.Struct, frozen=True):
    """One variant on one log. ``differing``: jobs whose first estimate or wait is not the published one."""

    log: str
    policy: str
    ave_bsld: float
    max_bsld: float
    published: float | None
    published_max: float | None
    differing: int | None
    is_gated: bool

    @property
    def error(self) -> float | None:
        return self.ave_bsld / self.published - 1 if self.published else None

    @property
    def is_met(self) -> bool | None:
        return abs(self.error) <= TOLERANCE if self.error is not None else None


def workload_of(log: str) -> Workload:
    read = read_swf(str(DATA / f"{log}.swf.gz"))
    processors = machine_of(read)
    assert processors is not None
    return prepare(read, processors)


def variants(names: Sequence[str], corrections: Sequence[str]) -> Iterator[tuple[str, str, str, str, str]]:
    """(name, over, under, weight, correction) of every run."""
    return itertools.product(names, LOSSES, LOSSES, WEIGHTS, corrections)


def rows(log: str, names: Sequence[str], corrections: Sequence[str]) -> Iterator[Row]:
    workload = workload_of(log)
    published = pq.read_table(
        DATA / "published-metrics.parquet",
        filters=[
            ("trace", "=", log),
            ("length", "=", len(workload.jobs)),
            ("predictor", "=", "predictor_sgdlinear"),
            ("prightparam", "=", "1"),
            ("pleftparam", "=", "1"),
            ("pthreshold", "=", "0"),
        ],
    ).to_pylist()
    for name, over, under, weight, correct in variants(names, corrections):
        policy = f"{name}:estimate=learned,model=sc15,loss={over}-{under},weight={weight},correct={correct},ties=sc15"
        wanted = {
            "scheduler": SCANS[name],
            "prightside": LOSSES[over],
            "pleftside": LOSSES[under],
            "pweight": WEIGHTS[weight],
            "corrector": CORRECTIONS[correct],
        }
        found = [line for line in published if all(line[key] == value for key, value in wanted.items())]
        result = run_replay(World(workload), choose(policy).composition)
        wait_s = result.schedule.start_s - workload.jobs.submit_s
        is_selected = (name, over, under, weight, correct) == ("easy-sjbf", "squared", "linear", "large", "incremental")
        yield Row(
            log,
            policy,
            mean_bsld(workload, wait_s),
            float(bounded_slowdown(wait_s, workload.jobs.run_s).max()),
            found[0]["avgbsld"] if found else None,
            found[0]["maxbsld"] if found else None,
            differing(log, result) if is_selected else None,
            log in GATED,
        )


def differing(log: str, result: Result) -> int | None:
    """Jobs whose first estimate or wait is not that of the campaign's schedule."""
    path = DATA / f"{log}.learned.parquet"
    if not path.exists():
        return None
    table = pq.read_table(path, columns=[f"predicted__{LEARNED}", f"wait__{LEARNED}"])
    first_s, wait_s = (column.to_numpy() for column in table.columns)
    jobs = result.world.workload.jobs
    is_equal = (result.schedule.first_estimate_s == first_s) & (result.schedule.start_s - jobs.submit_s == wait_s)
    return int(np.count_nonzero(~is_equal))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the gated logs, shortest first, incremental correction")
    parser.add_argument("--log", action="append", choices=GATED + SHOWN, help="only this log (repeatable)")
    options = parser.parse_args(arguments)
    if not DATA.exists():
        print("sc15_learned: the logs of ../shared/data/sc15-backfilling are not here", file=sys.stderr)
        return 1
    found: list[Row] = []
    for log in options.log or (GATED if options.quick else GATED + SHOWN):
        print(f"\n{log}: {'gated, within 10 %' if log in GATED else 'shown, not gated'}")
        print(f"{'variant':70} {'AVEbsld':>9} {'published':>9} {'error':>7} {'max':>9} {'published':>9} {'differ':>6}")
        full = not options.quick and log in GATED
        for row in rows(log, list(SCANS) if full else ["easy-sjbf"], list(CORRECTIONS) if full else ["incremental"]):
            found.append(row)
            print(line(row), flush=True)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_bytes(msgspec.json.format(msgspec.json.encode({"rows": found}), indent=1))
    gated = [row for row in found if row.is_gated and row.is_met is not None]
    missed = [row for row in gated if not row.is_met]
    print(f"\n{len(gated) - len(missed)} of {len(gated)} gated rows are within 10 %; {OUT.relative_to(ROOT)}")
    return 1 if missed else 0


def line(row: Row) -> str:
    shown = row.policy.replace("estimate=learned,model=sc15,", "").replace(",ties=sc15", "")
    error = f"{100 * row.error:+6.1f}%" if row.error is not None else ""
    published = f"{row.published:9.2f}" if row.published else f"{'partial':>9}"
    most = f"{row.published_max:9.0f}" if row.published_max else ""
    differ = "" if row.differing is None else str(row.differing)
    note = "   NOT MET" if row.is_gated and row.is_met is False else ""
    return f"{shown:70} {row.ave_bsld:9.2f} {published} {error:>7} {row.max_bsld:9.0f} {most:>9} {differ:>6}{note}"


if __name__ == "__main__":
    sys.exit(main())
