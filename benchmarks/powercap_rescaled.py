"""What it gains to lower running jobs for a cap, and to count what they draw: ``powercap:rescale=true,metered=true``.

Intervals of five hours of CEA-Curie with a cap of 40 % of the nodes' watts (and 60 %) in the hour in their middle, as
``powercap_curie`` makes them, a day or more apart. Those of the first half of the log choose the lowest frequency,
those of the second judge. Work in the hour, over that of the same interval without a cap: geometric mean of the ratios
to ``mix``, paired by interval, with 95 % intervals (Student's t); intervals of which the jobs that wait first can do
nothing under the cap (a head wider than the nodes that stay on) are counted and shown apart. EMULATED: the watts of
single jobs are generated.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from scipy import stats

from benchmarks.experiment import save
from benchmarks.powercap_curie import HOUR_S, Interval, curie, extracted, fullest_hours, starts_under_easy
from benchmarks.shortfalls import in_window
from cluster_agent.cluster import Machine
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.workloads.job_log import Workload
from cluster_agent.workloads.job_watts import read_job_watts

HOURS: Final = 5
APART_S: Final = 24 * HOUR_S
MOST: Final = 40
FLOORS_MHZ: Final = (2000, 1800, 1600, 1400, 1200)
MIX: Final = "powercap:mode=mix"
NOTHING: Final = 0.1
"""Work of ``mix`` below this share: next to nothing runs in the hour, whatever the lever."""


class Row(NamedTuple):
    """One policy on the intervals: work in the hour, a share of that without a cap, jobs killed, and the most watts
    above the cap in any of them."""

    share: float
    policy: str
    work: list[float]
    kills: int
    over_w: float


def chosen_intervals(workload: Workload) -> list[Interval]:
    """The busiest, a day or more apart, in order of time."""
    starts_s, kept = starts_under_easy(workload), list[int]()
    for at_s in fullest_hours(workload, starts_s, HOURS).tolist():
        if len(kept) < MOST and all(abs(at_s - other) >= APART_S for other in kept):
            kept.append(at_s)
    return [extracted(str(at_s), workload.jobs, starts_s, at_s, HOURS) for at_s in sorted(kept)]


def rows(
    intervals: Sequence[Interval], policies: Sequence[str], machine: Machine, drawn_uw: np.ndarray, has_own: bool
) -> list[Row]:
    """``drawn_uw``: by the log's number of a job. ``has_own``: whether jobs draw this, or what the machine says."""
    found = []
    own = [drawn_uw[one.jobs.number] if has_own else None for one in intervals]
    base = [in_window(one, "powercap:mode=idle", machine, None, uw)[0] for one, uw in zip(intervals, own, strict=True)]
    for share in (0.6, 0.4):
        for policy in policies:
            done = [in_window(one, policy, machine, share, uw) for one, uw in zip(intervals, own, strict=True)]
            work = [one.work / full for one, full in zip(done, base, strict=True)]
            kills, over_w = sum(one.kills for one in done), max(one.over_w for one in done)
            found.append(Row(share, policy, work, kills, over_w))
    return found


def gain(row: Row, mix: Row) -> tuple[float, float, float, int]:
    """Per cent more than ``mix``, with its interval, over the intervals in which that does something; how many."""
    pairs = [(one, other) for one, other in zip(row.work, mix.work, strict=True) if other >= NOTHING]
    logs = np.log([one / other for one, other in pairs])
    half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5 if len(logs) > 1 else np.inf
    mean = float(logs.mean())
    by, low, high = (100 * (float(np.exp(one)) - 1) for one in (mean, mean - half, mean + half))
    return by, low, high, len(logs)


def show(found: Sequence[Row], what: str) -> list[dict[str, object]]:
    shown: list[dict[str, object]] = []
    for row in found:
        mix = next(one for one in found if one.share == row.share and one.policy == MIX)
        by, low, high, count = gain(row, mix)
        idle = [value for value, other in zip(row.work, mix.work, strict=True) if other < NOTHING]
        apart = f"; {np.mean(idle):.3f} in {len(idle)} others" if idle else ""
        print(
            f"{what:22}{row.share:4.1f}  {row.policy:58}{np.mean(row.work):6.3f} {by:+6.1f} %"
            f" ({low:+.1f} to {high:+.1f}) of {count}{apart}, {row.kills} killed,"
            f" {row.over_w:.0f} W above the cap",
            flush=True,
        )
        shown.append({"what": what, **row._asdict(), "gain": [by, low, high]})
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three intervals of each half")
    options = parser.parse_args(arguments)
    if (there := curie()) is None:
        return 0
    machine, workload = there
    intervals = chosen_intervals(workload)
    half = len(intervals) // 2
    choose_on, judge_on = intervals[:half], intervals[half:]
    if options.quick:
        choose_on, judge_on = choose_on[:3], judge_on[:3]
    drawn_uw = np.zeros(int(workload.jobs.number.max()) + 1, np.int64)
    drawn_uw[workload.jobs.number] = read_job_watts("generated:seed=1", workload, Watts.of(machine, None)).uw
    floors = [f"{MIX},rescale=true,floor_mhz={mhz}" for mhz in FLOORS_MHZ]
    found = rows(choose_on, [MIX, *floors], machine, drawn_uw, has_own=False)
    results = show(found, "chosen on")
    best = max(floors, key=lambda one: sum(np.mean(row.work) for row in found if row.policy == one))
    others = [MIX, "powercap:mode=shut", f"{MIX},metered=true", best, f"{best},metered=true"]
    results += show(rows(judge_on, [*others[:2], best], machine, drawn_uw, has_own=False), "judged, nameplate")
    results += show(rows(judge_on, others, machine, drawn_uw, has_own=True), "judged, jobs' own watts")
    save("powercap_rescaled", {"chosen": best, "rows": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
