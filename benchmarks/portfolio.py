"""Does it pay to look before one chooses? ``portfolio`` against its members, on five logs.

Settings are chosen on the first parts of seven logs; for each judged log that has the least geometric mean, over the
parts of the *other* logs, of its mean bounded slowdown over that of the best member there. The same for the member that
a site would choose without looking. So no judged log chooses its own settings. The judged logs are whole. *Hindsight*
is the member that is best on the judged log itself, which nobody knows before.

All members and the portfolio plan with the same estimates (``ESTIMATES``); the table is repeated with true run times,
which nobody has: what is then missing is not the fault of estimates. Differences are per job, with 95 % intervals from
a bootstrap over the weeks of submission. A look costs the processor time of the whole replay, less that of the
members' mean, over the number of looks. EMULATED: all of it are replays.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import product

import msgspec
import numpy as np

from benchmarks.experiment import save
from benchmarks.replay_exact import DATA
from benchmarks.sc15_learned import workload_of
from cluster_agent.replay.measures import bounded_slowdown
from cluster_agent.replay.world_run import Result, run
from cluster_agent.scheduler.job_columns import Float64s
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.world import World
from cluster_agent.workloads.job_log import machine_of, prepare
from cluster_agent.workloads.swf import read_swf

JUDGED = ("KTH-SP2", "CTC-SP2", "SDSC-SP2", "SDSC-BLUE", "CEA-Curie")
PARTS = {"KTH-SP2": 9_000, "CTC-SP2": 20_000, "SDSC-SP2": 18_000, "SDSC-BLUE": 40_000, "CEA-Curie": 50_000}
"""So many jobs of each, the first ones, choose for the other logs,"""
OTHERS = {"RICC-2010-2": 15_000, "MetaCentrum-wagap-2013": 20_000}
"""and so many of these for all."""
METACENTRUM = 2176
"""Its processors; its header has none."""
MEMBERS = ("easy", "easy-sjbf", "score:lowest=saf", "wfp3")
ESTIMATES = {
    "mean2": "estimate=mean2,history=similar,fixed=start,shadow=inf",
    "true run times": "estimate=clairvoyant",
}
GRID = [
    {"objective": objective, "arrivals": arrivals, "hours": hours, "every": every, "draws": draws}
    for (arrivals, hours), objective, (every, draws) in [
        *product([("none", 24), ("none", 96)], ["slowdown", "wait"], [(4, 0), (16, 0), (64, 0), (16, 4)]),
        *product([("again", 2)], ["slowdown", "wait"], [(16, 0), (64, 0)]),
    ]
]
WEEK_S, RESAMPLES, SEED = 7 * 86_400, 1000, 1


class Row(msgspec.Struct, frozen=True):
    """One policy on a judged log. ``difference``: the mean bounded slowdown of the portfolio less its own."""

    log: str
    estimates: str
    policy: str
    role: str
    ave_bsld: float
    mean_wait_s: float
    longest_wait_h: float
    processor_s: float
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    looks: int = 0
    changes: int = 0


class Measured(msgspec.Struct, frozen=True):
    """A replay, its bounded slowdowns and what it took."""

    result: Result
    slowdown: Float64s
    processor_s: float

    @property
    def mean(self) -> float:
        return float(self.slowdown.mean())


def measured(world: World, text: str) -> Measured:
    begun_s = time.process_time()
    result = run(world, choose(text).composition)
    processor_s = time.process_time() - begun_s
    return Measured(result, bounded_slowdown(result.start_s - world.jobs.submit_s, world.jobs.run_s), processor_s)


def written(member: str, estimates: str) -> str:
    return f"{member}{',' if ':' in member else ':'}{ESTIMATES[estimates]}"


def portfolio(setting: Mapping[str, object], estimates: str) -> str:
    given = ",".join(f"{name}={value}" for name, value in setting.items())
    return f"portfolio:members={'|'.join(MEMBERS)},{given},{ESTIMATES[estimates]}"


def parts(share: float) -> dict[str, World]:
    """What chooses, by log."""
    found = {log: (workload_of(log), jobs) for log, jobs in PARTS.items()}
    for log, jobs in OTHERS.items():
        read = read_swf(str(DATA.parent / "swf" / f"{log}.swf.gz"))
        found[log] = prepare(read, machine_of(read) or METACENTRUM), jobs
    return {
        log: World(workload).only(np.arange(min(int(share * jobs), len(workload.jobs))))
        for log, (workload, jobs) in found.items()
    }


def chosen(worlds: Mapping[str, World], estimates: str) -> dict[str, tuple[str, str]]:
    """The portfolio and the member for each judged log."""
    texts = [*(written(one, estimates) for one in MEMBERS), *(portfolio(one, estimates) for one in GRID)]
    means = np.array([[measured(world, text).mean for text in texts] for world in worlds.values()])
    ratios = np.log(means / means[:, : len(MEMBERS)].min(axis=1, keepdims=True))
    print(f"chosen on the first parts of {', '.join(worlds)}; mean bounded slowdown over that of the best member there")
    for text, each in zip(texts, ratios.T, strict=True):
        print(f"  {np.exp(each.mean()):6.3f}  {' '.join(f'{one:5.2f}' for one in np.exp(each))}  {text}", flush=True)
    found = {}
    for judged in JUDGED:
        cost = ratios[[log != judged for log in worlds]].mean(axis=0)
        found[judged] = (
            texts[len(MEMBERS) + int(cost[len(MEMBERS) :].argmin())],
            texts[int(cost[: len(MEMBERS)].argmin())],
        )
    return found


def interval(world: World, difference: Float64s) -> tuple[float, float]:
    """95 %, over the weeks of submission."""
    week = (world.jobs.submit_s - world.jobs.submit_s[0]) // WEEK_S
    sums, counts = np.bincount(week, difference), np.bincount(week)
    drawn = np.random.default_rng(SEED).integers(0, len(sums), (RESAMPLES, len(sums)))
    low, high = np.percentile(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1), [2.5, 97.5])
    return float(low), float(high)


def judged(log: str, world: World, estimates: str, looking: str, member: str) -> list[Row]:
    mine = measured(world, looking)
    found = {text: measured(world, text) for text in (written(one, estimates) for one in MEMBERS)}
    best = min(found, key=lambda text: found[text].mean)
    rows = []
    for text, one in {looking: mine, **found}.items():
        wait_s = one.result.start_s - world.jobs.submit_s
        roles = [*["portfolio"] * (text == looking), *["hindsight"] * (text == best), *["chosen"] * (text == member)]
        row = Row(
            *(log, estimates, text, ", ".join(roles)),
            *(one.mean, float(wait_s.mean()), float(wait_s.max()) / 3600, one.processor_s),
        )
        if one is not mine:
            difference = mine.slowdown - one.slowdown
            low, high = interval(world, difference)
            row = msgspec.structs.replace(row, difference=float(difference.mean()), low=low, high=high)
        else:
            looked = one.result.looked or {}
            row = msgspec.structs.replace(row, looks=looked["looks"], changes=looked["changes"])
        rows.append(row)
    return rows


def verdict(row: Row) -> str:
    if row.difference is None or row.low is None or row.high is None:
        return f"{row.looks} looks, {row.changes} changes"
    says = "looking is better" if row.high < 0 else "looking is worse" if row.low > 0 else "no difference shown"
    return f"{row.difference:+7.2f} ({row.low:+.2f} to {row.high:+.2f})  {says}"


def show(rows: Sequence[Row]) -> None:
    first, *members = rows
    print(f"\n{first.log}, estimates: {first.estimates}: AVEbsld, mean wait s, longest wait h; portfolio less this")
    for row in rows:
        name = row.policy.split(":estimate=")[0].split(",estimate=")[0]
        name = "portfolio" if row is first else name
        print(
            f"  {name:17} {row.ave_bsld:7.2f} {row.mean_wait_s:7.0f} {row.longest_wait_h:6.0f}  {verdict(row)}"
            f"  {row.role if row is not first else ''}"
        )
    members_s = float(np.mean([row.processor_s for row in members]))
    print(
        f"  {first.policy}\n  {1000 * (first.processor_s - members_s) / max(first.looks, 1):.2f} ms a look", flush=True
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of what chooses, one judged log")
    options = parser.parse_args(arguments)
    if not DATA.exists():
        print("portfolio: no logs, ../shared/data/sc15-backfilling is not here", file=sys.stderr)
        return 2
    rows: list[Row] = []
    worlds = parts(0.1 if options.quick else 1.0)
    for estimates in ESTIMATES:
        choices = chosen(worlds, estimates)
        for log in JUDGED[:1] if options.quick else JUDGED:
            rows += (own := judged(log, World(workload_of(log)), estimates, *choices[log]))
            show(own)
    save("portfolio", {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
