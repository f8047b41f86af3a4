"""Power caps of 80, 60 and 40 % on CEA-Curie by idling, switching off, lower frequencies, a mix (Glesser 2016, §4.6).

The thesis replays one interval of 24 hours and three of 5, overloaded, each with a cap of one hour in the middle, known
from the start, through SLURM on emulated nodes. It does not say which hours of 2012 those are: here they are chosen by
rules that this file states. The log does not say when jobs started, so an interval begins with the jobs that run and
wait when EASY replays the whole of it. Work counts processor-seconds at the highest frequency; the thesis's CPU time
counts slowed jobs for longer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from cluster_agent.cap_steps import Cap
from cluster_agent.cluster import Machine, load_machine
from cluster_agent.scheduler.job_columns import Int64s, Jobs
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.workloads.job_log import Workload, prepare
from cluster_agent.workloads.swf import read_swf

ROOT = Path(__file__).parent.parent
TRACE = ROOT.parent / "shared" / "data" / "sc15-backfilling" / "CEA-Curie.swf.gz"
OUT = ROOT / "out" / "bench" / "powercap_curie.json"

Floats: TypeAlias = npt.NDArray[np.float64]

HOUR_S: Final = 3600
SHARES: Final = (0.8, 0.6, 0.4)
POLICIES: Final = ("idle", "shut", "dvfs", "mix")
NAMES: Final = {"24 h": 24, "5 h big jobs": 5, "5 h median jobs": 5, "5 h small jobs": 5}
PUBLISHED: Final = (
    "published, 24 h at 40 %: work 94 % (shut), about 85 % (dvfs, mix), mix least energy; idle alone 40 % less work"
)


class Row(msgspec.Struct, frozen=True):
    """One lever on one interval; shares of what the same interval gives without a cap."""

    interval: str
    share: float | None
    policy: str
    started: int
    work: float
    cpu_time: float
    energy: float
    work_in_window: float
    energy_in_window: float
    off_nodes: int
    over_cap_ws: float


class Interval(msgspec.Struct, frozen=True):
    """Which jobs, from when to when. Those that ran at the beginning are first in the queue."""

    name: str
    jobs: Jobs
    hours: int

    @property
    def window_s(self) -> tuple[int, int]:
        """The hour in the middle; time begins at 0."""
        middle_s = self.hours * HOUR_S // 2
        return middle_s - HOUR_S // 2, middle_s + HOUR_S // 2


def intervals(workload: Workload) -> list[Interval]:
    """Ours. Of all starts at a full hour those whose queue never has less than an hour of the whole machine. For 24
    hours the busiest; for 5, of the busier half, those whose submitted jobs are the widest, in the middle, and the
    narrowest but for one in twenty."""
    jobs = workload.jobs
    starts_s = starts_under_easy(workload)
    chosen = {"24 h": fullest_hours(workload, starts_s, 24)[0]}
    fuller = fullest_hours(workload, starts_s, 5)
    fuller = fuller[: len(fuller) // 2]
    widths = np.array([_mean_width(jobs, int(one), 5) for one in fuller])
    order = np.argsort(widths, kind="stable")
    for name, place in (("5 h big jobs", 0.95), ("5 h median jobs", 0.5), ("5 h small jobs", 0.05)):
        chosen[name] = fuller[order[int(place * len(order))]]
    return [extracted(name, jobs, starts_s, int(one), NAMES[name]) for name, one in chosen.items()]


def starts_under_easy(workload: Workload) -> Int64s:
    """When EASY starts each job of the whole log."""
    easy = NativeReplay(choose("easy").composition, workload.jobs, workload.processors)
    easy.run(len(workload.jobs) + 1)
    return easy.start_s


def fullest_hours(workload: Workload, starts_s: Int64s, hours: int) -> Int64s:
    """Full hours from which on, for so many, an hour of the whole machine or more waits; the busiest first."""
    jobs = workload.jobs
    ends_s = starts_s + jobs.run_s
    at_s = np.arange(jobs.submit_s[0] // HOUR_S + 48, ends_s.max() // HOUR_S) * HOUR_S
    area = jobs.width * jobs.run_s
    waiting = _between(jobs.submit_s, starts_s, area, at_s) / (workload.processors * HOUR_S)  # machine-hours
    busy = _between(starts_s, ends_s, jobs.width.astype(np.int64), at_s) / workload.processors
    return _fullest(at_s, waiting, busy, hours)


def extracted(name: str, jobs: Jobs, starts_s: Int64s, from_s: int, hours: int) -> Interval:
    """The interval's jobs, those that run when it begins first."""
    return Interval(name, _extract(jobs, starts_s, starts_s + jobs.run_s, from_s, hours), hours)


def _between(from_s: Int64s, to_s: Int64s, amount: Int64s, at_s: Int64s) -> Floats:
    """The sum of ``amount`` over those with from <= at < to, at each time."""

    def until(times_s: Int64s) -> Floats:
        order = np.argsort(times_s, kind="stable")
        sums = np.concatenate(([0], np.cumsum(amount[order].astype(np.float64))))
        found: Floats = sums[np.searchsorted(times_s[order], at_s, "right")]
        return found

    return until(from_s) - until(to_s)


def _fullest(at_s: Int64s, waiting: Floats, busy: Floats, hours: int) -> Int64s:
    """Starts, the busiest interval first, of those whose queue never falls below an hour of the whole machine."""
    views = np.lib.stride_tricks.sliding_window_view
    least, mean = views(waiting, hours + 1).min(axis=1), views(busy, hours + 1).mean(axis=1)
    fit = np.flatnonzero(least >= 1.0)
    return at_s[fit[np.argsort(-mean[fit], kind="stable")]]


def _mean_width(jobs: Jobs, from_s: int, hours: int) -> float:
    inside = (jobs.submit_s >= from_s) & (jobs.submit_s < from_s + hours * HOUR_S)
    return float(jobs.width[inside].mean()) if inside.any() else 0.0


def _extract(jobs: Jobs, starts_s: Int64s, ends_s: Int64s, from_s: int, hours: int) -> Jobs:
    runs = np.flatnonzero((starts_s < from_s) & (ends_s > from_s))
    waits = np.flatnonzero((jobs.submit_s < from_s) & (starts_s >= from_s))
    comes = np.flatnonzero((jobs.submit_s >= from_s) & (jobs.submit_s < from_s + hours * HOUR_S))
    rows = np.concatenate((runs, waits, comes))
    done_s = np.zeros(len(rows), np.int64)
    done_s[: len(runs)] = from_s - starts_s[runs]
    return Jobs(
        jobs.number[rows],
        np.maximum(jobs.submit_s[rows] - from_s, 0),
        jobs.run_s[rows] - done_s,
        jobs.request_s[rows] - done_s,
        jobs.width[rows],
        np.unique(jobs.user[rows], return_inverse=True)[1].astype(np.int32),
    )


def measured(interval: Interval, policy: str, share: float | None, machine: Machine) -> dict[str, float]:
    """Sums over the interval and over its window."""
    caps = []
    from_s, to_s = interval.window_s
    if share is not None:
        # the thesis's share is of the nodes; chassis and racks come on top
        caps = [Cap(from_s, to_s, share * (machine.full_w - machine.fixed_w) + machine.fixed_w)]
    composition = choose(f"powercap:mode={policy}").composition
    watts = Watts.of(machine, composition.power)
    replay = NativeReplay(composition, interval.jobs, machine.processors, watts, caps)
    last_s = interval.hours * HOUR_S
    while replay.now_s < last_s and replay.run(replay.ended + 200):
        pass
    start_s, end_s = replay.start_s, np.where(replay.end_s < 0, 2**60, replay.end_s)
    has_started = (start_s >= 0) & (start_s < last_s)
    pace = np.array(watts.slowdown)[replay.level]

    def processor_s(since_s: int, until_s: int) -> np.ndarray:
        ran_s = np.clip(np.minimum(end_s, until_s) - np.maximum(start_s, since_s), 0, None)
        return np.where(has_started, ran_s * interval.jobs.width, 0)

    times_s, drawn_w, cap_w = replay.power

    def joules(since_s: int, until_s: int) -> float:
        edges = np.clip([*times_s, 2**60], since_s, until_s)
        return float((drawn_w * np.diff(edges)).sum())

    edges = np.clip([*times_s, 2**60], 0, last_s)
    off = [] if not composition.power or not composition.power.idle else composition.power.idle(machine, caps, 0)
    return {
        "started": float(has_started.sum()),
        "work": float((processor_s(0, last_s) / pace).sum()),
        "cpu_time": float(processor_s(0, last_s).sum()),
        "energy": joules(0, last_s),
        "work_in_window": float((processor_s(from_s, to_s) / pace).sum()),
        "energy_in_window": joules(from_s, to_s),
        "off_nodes": float(sum(one.nodes for one in off)),
        "over_cap_ws": float((np.clip(drawn_w - cap_w, 0, None) * np.diff(edges)).sum()),
    }


def curie() -> tuple[Machine, Workload] | None:
    """The machine and its log; None, and a line that says so, if that is not there."""
    if not TRACE.exists():
        print(f"skipped: {TRACE} is not there")
        return None
    machine = load_machine("curie")
    return machine, prepare(read_swf(str(TRACE)), machine.processors)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.powercap_curie", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the shorter intervals alone")
    options = parser.parse_args(arguments)
    if (there := curie()) is None:
        return 0
    machine, workload = there
    rows = []
    print("in the window: over its hour; 1 is what the same interval gives without a cap")
    print("interval          share  lever  started   work CPU time  energy  in the window: work  energy  nodes off")
    for interval in intervals(workload):
        if options.quick and interval.hours > 5:
            continue
        base = measured(interval, "idle", None, machine)
        from_s, to_s = interval.window_s
        whole = machine.processors * (to_s - from_s)
        print(f"{interval.name:18}{'none':>5}{len(interval.jobs):8} jobs, {base['started']:.0f} started,"
              f" {100 * base['work'] / (machine.processors * interval.hours * HOUR_S):.1f} % of the processors busy,"
              f" {100 * base['work_in_window'] / whole:.1f} % in the window")  # fmt: skip
        for share in SHARES:
            for policy in POLICIES:
                found = measured(interval, policy, share, machine)
                relative = {
                    key: found[key] / base[key]
                    for key in ("work", "cpu_time", "energy", "work_in_window", "energy_in_window")
                }
                row = Row(interval.name, share, policy, int(found["started"]), off_nodes=int(found["off_nodes"]),
                          over_cap_ws=found["over_cap_ws"], **relative)  # fmt: skip
                rows.append(row)
                print(
                    f"{row.interval:18}{share:5.1f}  {policy:5}{row.started:9}{row.work:7.3f}{row.cpu_time:9.3f}"
                    f"{row.energy:8.3f}{row.work_in_window:21.3f}{row.energy_in_window:8.3f}{row.off_nodes:9}",
                    flush=True,
                )
    print(PUBLISHED)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_bytes(msgspec.json.encode(rows))
    return 1 if any(row.over_cap_ws > 0 for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
