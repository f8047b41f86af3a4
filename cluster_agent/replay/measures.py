"""What a schedule was worth, in the measures of the field.

The bounded slowdown of a job is max(1, (wait + run) / max(run, tau)) with tau = 10 s (Feitelson et al., JSSPP 1997);
AVEbsld is its mean over all jobs. A figure that this replay cannot know is None, never 0.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cluster_agent.cluster import UW
from cluster_agent.replay.log_run import Result
from cluster_agent.scheduler.energy_window import Budget
from cluster_agent.scheduler.job_columns import Float64s, Int64s
from cluster_agent.scheduler.native.native_replay import NativeReplay

TAU_S: Final = 10


def bounded_slowdown(wait_s: Int64s, run_s: Int64s, tau_s: int = TAU_S) -> npt.NDArray[np.float64]:
    """Per job."""
    slowdown: npt.NDArray[np.float64] = np.maximum((wait_s + run_s) / np.maximum(run_s, tau_s), 1.0)
    return slowdown


def measure(result: Result) -> dict[str, Any]:
    """The content of ``metrics.json``. Means and the like are over the jobs that were started."""
    jobs, schedule = result.workload.jobs, result.schedule
    start_s = schedule.start_s
    has_started = start_s >= 0
    start_s, run_s, width = start_s[has_started], result.run_s[has_started], jobs.width[has_started]
    wait_s = start_s - jobs.submit_s[has_started]
    bsld = bounded_slowdown(wait_s, run_s)
    from_s = int(jobs.submit_s[0]) if result.from_s is None else result.from_s
    span_s = max(int((start_s + run_s).max()) - from_s, 1)  # the last jobs of a state may end with it
    busy_s = start_s + run_s - np.maximum(start_s, from_s)
    return {
        "jobs": len(jobs),
        "ended": schedule.ended,
        "unstarted": result.unstarted,
        "dropped": result.workload.dropped,
        "ended_at_request": int(result.workload.is_cut.sum()),
        **measure_waits(wait_s, run_s, bsld),
        "makespan_s": span_s,
        "utilisation": float((width * busy_s).sum() / (result.workload.processors * span_s)),
        "throughput_jobs_per_h": schedule.ended * 3600 / span_s,
        **measure_power(schedule),
        "overtook": int(schedule.overtook.sum()),
        "corrections": int(schedule.corrections.sum()),
        "passes": schedule.passes,
        "users": jobs.n_users,
        "fairness": _jain(bsld, jobs.user[has_started]),
    }


def measure_waits(wait_s: Int64s, run_s: Int64s, bsld: Float64s) -> dict[str, Any]:
    """How long jobs that ran had waited. ``bsld``: their bounded slowdowns with ``TAU_S``."""
    return {
        "AVEbsld": float(bsld.mean()),
        "max_bsld": float(bsld.max()),
        "bsld_tau_s": TAU_S,
        "wait_s": spread(wait_s),
        "turnaround_s": spread(wait_s + run_s),
        "stretch": spread((wait_s + run_s) / run_s),
    }


def running_w(times_s: Int64s, start_s: Int64s, end_s: Int64s, watts: Float64s) -> Float64s:
    """Watts of all jobs that run from each of ``times_s`` to the next: all starts and ends are among these, sorted."""
    begun = np.bincount(np.searchsorted(times_s, start_s), watts, len(times_s))
    ended = np.bincount(np.searchsorted(times_s, end_s), watts, len(times_s))
    running: Float64s = np.cumsum(begun - ended)
    return running


def measure_power(schedule: NativeReplay) -> dict[str, Any]:
    """Joules and watts from the first submission to the last end; all None on a machine without watts."""
    names = (
        "energy_j",
        "mean_w",
        "peak_w",
        "over_cap_ws",
        "idle_j",
        "off_j",
        "switching_j",
        "kills",
        "lost_processor_s",
        "wasted_j",
        "window_j",
        "over_budget_j",
    )
    if schedule.watts is None:
        return dict.fromkeys(names)
    joules, (times_s, power_w, cap_w) = schedule.joules, schedule.power
    last_s = max(int(schedule.end_s.max(initial=0)), int(times_s[-1]))
    lasts_s = np.diff(times_s, append=last_s)
    span_s = last_s - int(times_s[0])
    return {
        "energy_j": joules["cluster"],
        "mean_w": joules["cluster"] / span_s if span_s else None,
        "peak_w": float(power_w[lasts_s > 0].max(initial=0.0)),
        "over_cap_ws": float((np.clip(power_w - cap_w, 0, None) * lasts_s).sum()),
        "idle_j": joules["idle"],
        "off_j": joules["off"],
        "switching_j": joules["switching"],
        "kills": int(schedule.kills.sum()),
        "lost_processor_s": int(schedule.lost.sum()),
        "wasted_j": float(schedule.lost_j.sum()),
        **_measure_budget(schedule, schedule.watts.budget),
    }


def joules_between(schedule: NativeReplay, from_s: int, to_s: int) -> float:
    """The cluster's energy in [from_s, to_s), as far as the replay goes."""
    times_s, power_uw = schedule.power_uw
    last_s = max(int(schedule.end_s.max(initial=0)), int(times_s[-1]))
    lasts_s = np.diff(np.clip(times_s, from_s, to_s), append=min(max(last_s, from_s), to_s))
    return float((power_uw / UW * lasts_s).sum())


def _measure_budget(schedule: NativeReplay, budget: Budget | None) -> dict[str, float | None]:
    if budget is None:
        return {"window_j": None, "over_budget_j": None}
    energy_j = joules_between(schedule, budget.from_s, budget.to_s)
    return {"window_j": energy_j, "over_budget_j": max(energy_j - budget.joules - budget.stored_j, 0.0)}


def spread(values: npt.NDArray[Any]) -> dict[str, float]:
    """Mean, median, 95th percentile and maximum."""
    median, p95 = percentiles(values, 0.5, 0.95)
    return {"mean": float(values.mean()), "median": median, "p95": p95, "max": float(values.max())}


def percentiles(values: npt.NDArray[Any], *shares: float) -> list[float]:
    """As ``np.percentile``, bit for bit, which would import numpy.ma: as long as scheduling ten thousand jobs."""
    places = [divmod((len(values) - 1) * share, 1) for share in shares]
    near = [(int(below), min(int(below) + 1, len(values) - 1), part) for below, part in places]
    at = np.partition(values, sorted({place for below, above, _ in near for place in (below, above)}))
    found = []
    for below, above, part in near:
        low, high = float(at[below]), float(at[above])
        found.append(low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part))
    return found


def _jain(bsld: npt.NDArray[np.float64], user: npt.NDArray[np.int32]) -> float:
    """Jain's index of the users' mean bounded slowdowns: 1 if all are equal, 1/n if one user has all the slowdown."""
    count = np.bincount(user)
    mean = np.bincount(user, bsld)[count > 0] / count[count > 0]
    return float(mean.sum() ** 2 / (len(mean) * (mean**2).sum()))
