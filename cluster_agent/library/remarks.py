"""A replay in words: what was found on the way, and the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cluster_agent.cap_steps import Cap
from cluster_agent.errors import ClusterError
from cluster_agent.replay.world_run import Result
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.policies.registry import Choice
from cluster_agent.scheduler.world import Kind
from cluster_agent.scheduler.world import World as Fitted


def remarks_on(choice: Choice, kind: Kind, given: Fitted, result: Result) -> list[str]:
    """Findings and limits, once the replay has ended."""
    path, watts, found = given.trace.path, result.schedule.watts, []
    if given.caps and not choice.on(kind).owns_watts:
        found.append(f"{choice.text} does not know watts: the cap is only measured")
    if watts is not None and (remark := _below_idle(watts, given.caps)):
        found.append(f"{choice.text}: {remark}")
    found += [f"{path}: {finding}" for finding in result.world.trace.findings]
    found += [f"{path}: not modelled: {jobs} jobs {what}" for what, jobs in _not_modelled(given, result)]
    if result.unstarted < len(result.jobs) and (remark := _outside(watts, given.caps, result)):
        found.append(f"{path}: {remark}")
    return found + _of_configurations(given)


def _not_modelled(given: Fitted, result: Result) -> list[tuple[str, int]]:
    """What jobs of a log with clusters state and the replay leaves out; of other logs it is in the manifest alone."""
    return sorted(result.world.trace.not_modelled().items()) if "clusters" in result.switches else []


def check_started(choice: Choice, given: Fitted, result: Result, has_plan: bool) -> None:
    """``ClusterError`` if nobody was started: there is nothing to measure."""
    if result.unstarted == len(result.jobs):
        why = "the allowed watts or joules are too few for any of them; give more"
        why = "its record starts none: plan again" if has_plan else why
        raise ClusterError(
            f"{given.trace.path}: none of {len(result.jobs)} jobs was ever started under {choice.text}: {why}"
        )


def _of_configurations(given: Fitted) -> list[str]:
    tables, found = None if given.ways is None else given.ways.tables, list[str]()
    if tables is None:
        return found
    if tables.is_generated:
        found.append(f"--configurations {tables.text}: times and watts are generated, like Cab's")
    if errors := tables.errors:
        found.append(
            f"--configurations {tables.text}: the model's times are wrong by {100 * errors.time_mean:.1f} % on"
            f" average, {100 * errors.time_max:.0f} % at most, its watts by {100 * errors.watts_mean:.1f} and"
            f" {100 * errors.watts_max:.0f} %"
        )
    return found


def _below_idle(watts: Watts, caps: Sequence[Cap]) -> str:
    """That a budget, or the lowest cap, is no more than idle nodes draw; "" where it is not so."""
    limits = [("budget", watts.budget.limit_w)] if watts.budget is not None else []
    limits += [("lowest cap", min(cap.watts for cap in caps))] if caps else []
    idle_w = watts.machine.idle_w
    for what, limit_w in limits:
        if limit_w <= idle_w:
            draws = f"the {what} is {limit_w:.0f} W, and the idle machine draws {idle_w:.0f} W"
            return f"{draws}: it cannot be kept with all nodes on"
    return ""


def _outside(watts: Watts | None, caps: Sequence[Cap], result: Result) -> str:
    """That a cap or budget is in force only while there is no job, or the profile of a budget ends while jobs come; ""
    where it is not so."""
    submit_s = result.jobs.submit_s
    first_s, last_s = int(submit_s.min()), int(max(submit_s.max(), result.schedule.end_s.max()))
    windows = [("cap", one.from_s, one.to_s) for one in caps]
    if watts is not None and watts.budget is not None:
        windows.append(("budget", watts.budget.from_s, watts.budget.to_s))
    if not windows:
        return ""
    if any(from_s < last_s and to_s > first_s for _, from_s, to_s in windows):
        budget, come_s = None if watts is None else watts.budget, int(submit_s.max())
        if budget is None or budget.profile is None or budget.to_s > come_s:
            return ""
        return f"jobs come until {come_s} s, and the budget by {budget.profile.file} ends at {budget.to_s} s"
    what, from_s, to_s = windows[0]
    return f"the {what} from {from_s} to {to_s} s limits nothing: jobs come and run from {first_s} to {last_s} s"


def in_words(measured: Mapping[str, Any]) -> str:
    """The results; of each line only what was measured."""
    spread = "mean {mean:.0f} s  median {median:.0f} s  max {max:.0f} s"
    rows = [
        f"{measured['ended']} of {measured['jobs']} jobs ended, {measured['overtook']} of them backfilled",
        f"bounded slowdown  mean {measured['AVEbsld']:.3f}  max {measured['max_bsld']:.1f}"
        f"  (tau = {measured['bsld_tau_s']} s)",
        "wait              " + spread.format(**measured["wait_s"]),
        "turnaround        " + spread.format(**measured["turnaround_s"]),
        "stretch           mean {mean:.3f}  median {median:.3f}  max {max:.1f}".format(**measured["stretch"]),
        f"utilisation       {_used(measured)}, makespan {measured['makespan_s']} s",
        f"throughput        {measured['throughput_jobs_per_h']:.2f} jobs/h",
    ]
    if (waits := measured.get("waits_by_promise")) is not None:
        rows.append(f"promised waits    {waits['NL']} jobs late, waits over promises sum to {waits['WQT']:.1f}")
    if measured["energy_j"] is not None:
        rows += _watts_in_words(measured)
    elif measured.get("kills") is not None:
        rows.append(_killed(measured))
    if measured.get("window_j") is not None:
        rows.append(
            f"budget            {measured['window_j'] / 3.6e6:.1f} kWh drawn in its window,"
            f" {measured['over_budget_j'] / 3.6e6:.1f} above it"
        )
    if "pass_max_s" in measured:
        rows.append(f"scheduling        {measured['passes']} passes, longest {measured['pass_max_s']:.4f} s")
    if switches := measured.get("switches"):
        counts = ", ".join(f"{name} {count}" for name, count in switches.items())
        rows.append(f"switches          how often each changed anything: {counts}")
    if looked := measured.get("portfolio"):
        chosen = ", ".join(f"{name} {looks}" for name, looks in looked["chosen"].items())
        rows.append(f"looks             {looked['looks']}, {looked['changes']} changes; chosen: {chosen}")
    if plans := measured.get("plans"):
        why = "".join(f"; {reason}: {count}" for reason, count in plans["reasons"].items())
        rows.append(
            f"plans             {plans['planner']} passes by the planner, {plans['list']} by the list schedule{why};"
            f" longest plan {measured['plan_max_s']:.4f} s"
        )
    return "\n".join(rows)


def _used(measured: Mapping[str, Any]) -> str:
    """Shares of processors, of nodes, or of each resource of them."""
    used = measured["utilisation"]
    if isinstance(used, dict):
        return ", ".join(f"{name} {100 * share:.1f} %" for name, share in used.items() if share)
    requested = measured.get("nodes_over_asked")
    return f"{100 * used:.1f} %" + (
        "" if requested is None else f", {requested:.2f} times the nodes that were requested"
    )


def _watts_in_words(measured: Mapping[str, Any]) -> list[str]:
    kwh = {part: measured[f"{part}_j"] / 3.6e6 for part in ("idle", "off", "switching") if f"{part}_j" in measured}
    boots = f", {measured['boots']} boots" if measured.get("boots") else ""
    parts = ", ".join(f"{part} {amount:.1f}" for part, amount in kwh.items()) + boots
    of_whom = " of jobs" if "kills" not in measured else ", of which" if parts else ""
    of_whom += ", without jobs" if parts and "kills" not in measured else ""
    mean = "unknown" if measured["mean_w"] is None else f"{measured['mean_w']:.0f} W"
    known = measured.get("watts_known")
    assumed = "" if known is None else f"; {100 * known:.0f} % of the jobs have known watts, the rest are assumed"
    rows = [
        f"energy            {measured['energy_j'] / 3.6e6:.1f} kWh{of_whom} {parts}".rstrip(),
        f"power             mean {mean}  highest {measured['peak_w']:.0f} W"
        f"  above the cap {measured['over_cap_ws']:.0f} W s{assumed}",
    ]
    if "kills" in measured:
        rows.append(_killed(measured))
    return rows


def _killed(measured: Mapping[str, Any]) -> str:
    wasted_j = measured["wasted_j"]
    joules = "" if wasted_j is None else f", {wasted_j / 3.6e6:.1f} kWh in vain"
    return f"killed            {measured['kills']} times, {measured['lost_processor_s']} processor-seconds lost{joules}"
