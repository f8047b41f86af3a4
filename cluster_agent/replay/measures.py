"""What a schedule was worth, in the measures of the field: the one table of ``metrics.json``.

The bounded slowdown of a job is max(1, (wait + run) / max(run, tau)) with tau = 10 s (Feitelson et al., JSSPP 1997);
AVEbsld is its mean over all jobs. A figure that this replay cannot know is None, never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from cluster_agent.cluster import UW
from cluster_agent.replay.world_run import Result
from cluster_agent.scheduler.energy_window import Budget
from cluster_agent.scheduler.job_columns import RESOURCES, Int64s
from cluster_agent.scheduler.native.native_replay import NativeReplay
from cluster_agent.scheduler.world import Kind, World

if TYPE_CHECKING:
    from cluster_agent.replay.drawn import EmptyNodes, PowerOverTime

TAU_S: Final = 10
NODES_TAU_S: Final = 60
"""The tau of bounded slowdown in the published figures for Eurora, not the usual 10 s."""


def bounded_slowdown(wait_s: Int64s, run_s: Int64s, tau_s: int = TAU_S) -> npt.NDArray[np.float64]:
    """Per job."""
    slowdown: npt.NDArray[np.float64] = np.maximum((wait_s + run_s) / np.maximum(run_s, tau_s), 1.0)
    return slowdown


def measure(result: Result) -> dict[str, Any]:
    """The content of ``metrics.json``. Means and the like are over the jobs that were started."""
    seen = _Seen(result)
    measures = (one for one in MEASURES if result.world.kind in one.of)
    return {name: value for one in measures for name, value in one.values(seen).items()}


class _Seen:
    """A result, and the columns of the jobs that were started."""

    def __init__(self, result: Result) -> None:
        self.result, self.world, self.schedule, self.jobs = result, result.world, result.schedule, result.jobs
        start_s = result.start_s
        self.has_started = has_started = start_s >= 0
        self.start_s, self.run_s = start_s[has_started], result.run_s[has_started]
        self.end_s = self.start_s + self.run_s
        self.wait_s = self.start_s - self.jobs.submit_s[has_started]
        self.tau_s = NODES_TAU_S if self.world.kind == "nodes" else TAU_S
        self.bsld = bounded_slowdown(self.wait_s, self.run_s, self.tau_s)
        first_s = 0 if self.world.kind == "nodes" else int(self.jobs.submit_s[0])
        self.from_s = first_s if result.from_s is None else result.from_s
        self.span_s = max(int(self.end_s.max(initial=0)) - self.from_s, 1)  # the last jobs of a state may end with it
        self.lasts_s = self.end_s - np.maximum(self.start_s, self.from_s)

    @cached_property
    def power(self) -> PowerOverTime:
        """Of jobs, where these are all that counts."""
        from cluster_agent.replay.drawn import power_over_time  # only here: a short replay is as long as its imports

        return power_over_time(self.result)

    @cached_property
    def empty(self) -> EmptyNodes:
        """What nodes without a job drew."""
        from cluster_agent.replay.drawn import empty_nodes  # as above

        return empty_nodes(self.result)

    @property
    def has_watts(self) -> bool:
        """Whether any are known, of a job or of a node."""
        nodes = self.world.nodes
        return nodes is None or bool(self.jobs.watts.any() or any(group.idle_w for group in nodes.group))

    @cached_property
    def energy_j(self) -> float:
        """Of jobs."""
        if self.world.kind == "nodes":
            return float((self.jobs.watts[self.has_started] * self.lasts_s).sum())
        return float((self.power.watts[:-1] * np.diff(self.power.time_s)).sum())


class Measure(msgspec.Struct, frozen=True):
    """Measures of one kind, by name. ``of``: the resources that have them."""

    of: tuple[Kind, ...]
    values: Callable[[_Seen], dict[str, Any]]


def _counts(seen: _Seen) -> dict[str, Any]:
    trace = seen.world.trace
    return {
        "jobs": len(seen.jobs),
        "ended": seen.schedule.ended,
        "unstarted": seen.result.unstarted,
        "dropped": trace.dropped,
        "ended_at_request": int(trace.is_cut.sum()),
    }


def _waits(seen: _Seen) -> dict[str, Any]:
    wait_s, run_s = seen.wait_s, seen.run_s
    return {
        "AVEbsld": float(seen.bsld.mean()),
        "max_bsld": float(seen.bsld.max(initial=0.0)),
        "bsld_tau_s": seen.tau_s,
        "wait_s": spread(wait_s),
        "turnaround_s": spread(wait_s + run_s),
        "stretch": spread((wait_s + run_s) / run_s),
    }


def _throughput(seen: _Seen) -> dict[str, Any]:
    return {"makespan_s": seen.span_s, "throughput_jobs_per_h": len(seen.start_s) * 3600 / seen.span_s}


def _used(seen: _Seen) -> dict[str, Any]:
    """Of processors, or of nodes where jobs have configurations."""
    given = np.array([one.nodes for one in seen.result.chosen if one is not None], np.int64)
    width = given if len(given) else seen.jobs.width[seen.has_started]
    return {"utilisation": float((width * seen.lasts_s).sum() / (seen.world.workload.processors * seen.span_s))}


def _used_of_nodes(seen: _Seen) -> dict[str, Any]:
    assert seen.world.nodes is not None
    busy, has = (
        (seen.jobs.total()[seen.has_started] * seen.lasts_s[:, None]).sum(axis=0),
        seen.world.nodes.has.sum(axis=0),
    )
    shares = {name: float(busy[at] / (has[at] * seen.span_s)) if has[at] else None for at, name in enumerate(RESOURCES)}
    return {"utilisation": shares}


def _requested(seen: _Seen) -> dict[str, Any]:
    given = np.array([one.nodes for one in seen.result.chosen if one is not None], np.int64)
    return {"nodes_over_asked": float(given.mean() / seen.jobs.width[seen.has_started].mean())}


def _drawn(seen: _Seen) -> dict[str, Any]:
    """Of jobs; idle nodes are not counted. None where neither the jobs nor the nodes have watts."""
    if not seen.has_watts:
        return dict.fromkeys(("energy_j", "mean_w", "peak_w", "over_cap_ws"))
    power = seen.power
    return {
        "energy_j": seen.energy_j,
        "mean_w": seen.energy_j / seen.span_s,
        "peak_w": float(power.watts.max()),
        "over_cap_ws": power.over_j,
    }


def _without_jobs(seen: _Seen) -> dict[str, Any]:
    if not seen.has_watts:
        return dict.fromkeys(("idle_j", "off_j", "switching_j", "boots"))
    empty = seen.empty
    parts = {"idle_j": empty.idle_j, "off_j": empty.off_j, "switching_j": empty.switching_j}
    return {**parts, "boots": len(empty.boots)}


def _promised(seen: _Seen) -> dict[str, Any]:
    max_wait_s = seen.jobs.max_wait_s[seen.has_started]
    return {"waits_by_promise": promised_waits(seen.wait_s, max_wait_s)}


def _of_nodes(seen: _Seen) -> dict[str, Any]:
    plans = {"plans": plans_of(seen.result)} if seen.result.outcomes else {}
    known = float(seen.jobs.knows_watts.mean())
    return {"watts_known": known, "longest_queue": seen.schedule.longest_queue, **plans}


def _decided(seen: _Seen) -> dict[str, Any]:
    looked = {} if seen.result.looked is None else {"portfolio": seen.result.looked}
    return {"corrections": int(seen.schedule.corrections.sum()), **looked}


def _failed(seen: _Seen) -> dict[str, Any]:
    """Runs that nodes which failed, or preemptions, have ended; their joules are those of ``measure_power``."""
    return {"kills": int(seen.schedule.kills.sum()), "lost_processor_s": int(seen.schedule.lost.sum())}


def _are_lost(world: World) -> bool:
    """Whether runs may end early, whatever the policy is."""
    return world.failures is not None or world.jobs.best_effort is not None


def _fair(seen: _Seen) -> dict[str, Any]:
    user, start_s = seen.jobs.user[seen.has_started], seen.start_s
    # elsewhere the order of the queue may be a plan's, and differ where the plan is repeated: by starts alone
    overtook = seen.schedule.overtook if seen.world.kind == "processors" else start_s < np.maximum.accumulate(start_s)
    return {
        "overtook": int(overtook.sum()),
        "users": seen.jobs.n_users,
        "fairness": _jain(seen.bsld, user),
    }


EVERYWHERE: Final[tuple[Kind, ...]] = get_args(Kind)

MEASURES: Final = (
    Measure(EVERYWHERE, _counts),
    Measure(EVERYWHERE, _waits),
    Measure(EVERYWHERE, _throughput),
    Measure(("processors", "configurations"), _used),
    Measure(("nodes",), _used_of_nodes),
    Measure(("configurations",), _requested),
    Measure(("processors",), lambda seen: measure_power(seen.schedule)),
    Measure(("processors",), lambda seen: _failed(seen) if _are_lost(seen.world) else {}),
    Measure(("nodes", "configurations"), _drawn),
    Measure(("nodes",), _without_jobs),
    Measure(("nodes",), _promised),
    Measure(("processors",), _decided),
    Measure(("processors", "nodes"), lambda seen: {"passes": seen.schedule.passes}),
    Measure(("nodes",), _of_nodes),
    Measure(EVERYWHERE, _fair),
    Measure(EVERYWHERE, lambda seen: {"switches": dict(seen.result.switches)} if seen.result.switches else {}),
)
"""Everything in ``metrics.json``, in its order."""


def timed(result: Result) -> dict[str, float]:
    """How long deciding took, in seconds of processor time: AO and MO of Bridi ch. 4; where an order is in Python. Not
    the same from run to run."""
    if not result.schedule.pass_s or result.world.kind != "nodes":
        return {}
    pass_s = np.array(result.schedule.pass_s)
    found = {"pass_mean_s": float(pass_s.mean()), "pass_max_s": float(pass_s.max())}
    if result.outcomes:  # none of these if the plan was repeated
        found |= {"plan_mean_s": float(np.mean(result.plan_s or 0.0)), "plan_max_s": max(result.plan_s, default=0.0)}
    return found


def plans_of(result: Result) -> dict[str, Any]:
    """How many passes the planner decided, and how many the list schedule: it raised, was late, or invalid."""
    reasons = Counter(one.reason.split(":")[0].split()[0] for one in result.outcomes if one.decided_by == "list")
    return {"planner": len(result.outcomes) - reasons.total(), "list": reasons.total(), "reasons": dict(reasons)}


def promised_waits(wait_s: Int64s, max_wait_s: Int64s) -> dict[str, float]:
    """Bridi ch. 4 over jobs whose queue promises a wait: WQT, NL, TR and WT."""
    has_promise = max_wait_s > 0
    wait_s, max_wait_s = wait_s[has_promise], max_wait_s[has_promise]
    late_s = np.maximum(wait_s - max_wait_s, 0)
    return {
        "WQT": float((wait_s / max_wait_s).sum()),
        "NL": int((late_s > 0).sum()),
        "TR": float(late_s.sum()),
        "WT": float((late_s / max_wait_s).sum()),
    }


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
