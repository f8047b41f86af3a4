"""A replay that starts with the jobs of a machine (``state``), and the file of them from the middle of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from cluster_agent.errors import WrongUseError
from cluster_agent.library.fitting import (
    Progress,
    Say,
    fitted,
    machine_with_watts,
    of_all,
    plans_requests,
    processors_of,
    recorded_looks,
    with_job_watts,
)
from cluster_agent.library.given import World
from cluster_agent.replay import written_whole
from cluster_agent.replay.compare import short_name
from cluster_agent.replay.state_at import departure, past_of, state_at
from cluster_agent.replay.world_run import Result, run
from cluster_agent.scheduler.energy_window import Budget
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.policies.registry import Choice
from cluster_agent.scheduler.power_cap import PowerCap
from cluster_agent.scheduler.recorded import StartsError
from cluster_agent.scheduler.switches import OPTIONS as SWITCHES
from cluster_agent.scheduler.world import Kind
from cluster_agent.scheduler.world import World as Fitted
from cluster_agent.workloads.job_log import prepare
from cluster_agent.workloads.state_file import StateError, encode, problem_of, read_state
from cluster_agent.workloads.warm_log import (
    Start,
    Warm,
    again,
    budget_from,
    caps_from,
    in_order,
    moved,
    shift_s,
    unix_start_s,
    warm,
)


def check(option: str, given: World, choice: Choice) -> None:
    """Refuse to start from the jobs of a state alone what needs more of them: the line names it."""
    reason = None
    if given.closed_loop is not None:
        reason = "--closed-loop needs all that users did"
    elif choice.has_configurations:
        reason = f"{choice.policy.name} chooses configurations, which are of a trace"
    if reason and given.path == given.state:
        raise WrongUseError(f"{option} {given.state}: {reason}: give the TRACE that it was taken from, too")


def start_of(given: World, choice: Choice, kind: Kind) -> Start:
    """The state; ``WrongUseError`` if another policy led to it, and what this one needs is not in it."""
    assert given.state is not None
    check("--state", given, choice)
    if kind != "processors" and given.has_switches:
        options = (option for name, option in SWITCHES.items() if getattr(given, name) is not None)
        option = next(options, "best-effort jobs")
        raise WrongUseError(f"--state {given.state}: on nodes not with {option}; leave one of them out")
    state, sha256 = read_state(given.state)
    start = Start(given.state, sha256, state)
    needs = _needs(given, choice, kind)
    if needs and not _is_own(start, choice):
        by = f"--policy {state.policy}" if state.source == "replay" else "the policy of a replay that wrote it"
        raise WrongUseError(f"--state {given.state}: with {needs} only {by} goes on from it, not {choice.text}")
    return start


def _needs(given: World, choice: Choice, kind: Kind) -> str:
    """What a replay by another policy than that of a state cannot begin with; "": nothing."""
    composition = choice.on(kind)
    if kind == "configurations":
        return "configurations"
    if kind == "processors":
        return ""
    if composition.idle_off_s is not None:
        return "idle_off_s on nodes"
    return "a plan" if composition.plan is not None else "a closed loop on nodes" if given.closed_loop else ""


def _is_own(start: Start, choice: Choice) -> bool:
    """Whether the state is of a replay of this very policy, so that it can be replayed from the start."""
    return (start.state.source, start.state.policy) == ("replay", name_of(choice))


def replayed(
    given: World,
    choice: Choice,
    kind: Kind,
    say: Say,
    progress: Progress | None = None,
    at_s: Sequence[int] = (),
) -> tuple[Start, Fitted, Result]:
    """The replay from the state on, and the world that it had: again from the start if that leads to the state, else
    from its jobs."""
    start, composition = start_of(given, choice, kind), choice.on(kind)
    is_again = _is_own(start, choice)
    while True:
        world, in_no_log = _world(given, choice, kind, start, is_again, say)
        try:
            result = run(world, composition, of_all(progress, len(world.jobs)), [start.state.t0_s, *at_s])
        except StartsError:  # in another closed loop other jobs have come
            raise _other_past(given, f"{choice.text} does not lead to it here") from None
        job = departure(start.state, past_of(result, result.moments[start.state.t0_s]))
        if job is None or not (is_again or world.loop):
            _say(start, in_no_log, world.watts is not None, say)
            return start, world, result
        departed = f"{choice.text} does not lead to it here (first: job {job})"
        if not is_again or _needs(given, choice, kind):
            raise _other_past(given, departed)
        say(f"{given.state}: {departed}: it starts from its jobs, as another policy")
        is_again = False


def begun(given: World, choice: Choice, say: Say) -> Fitted:
    """The jobs of the state and what comes after it, on processors, for a loop in Python: what happened before is
    recorded."""
    return _world(given, choice, "processors", start_of(given, choice, "processors"), False, say)[0]


def _other_past(given: World, departed: str) -> StateError:
    """Of a replay that does not lead to the state, where nothing else can start from it."""
    return StateError(f"{given.state}: {departed}: give the trace, machine, cap and options that it was taken with")


def _world(given: World, choice: Choice, kind: Kind, start: Start, own: bool, say: Say) -> tuple[Fitted, int]:
    """The jobs of the state and the trace, and how many are in no trace. ``own``: as the policy itself had them before
    the state, else from the state on."""
    if kind == "processors":
        return _on_processors(given, choice, start, own, say)
    world = fitted(given, choice, kind, say)
    if own or world.nodes is None:
        return world, 0
    from cluster_agent.workloads.warm_nodes import warm_on  # only here: a short replay is as long as its imports

    trace, began = warm_on(world.nodes, start.path, start.state, world.node_trace)
    return msgspec.structs.replace(world, source=trace, recorded=began.recorded, on=began.on), 0


def _on_processors(given: World, choice: Choice, start: Start, own: bool, say: Say) -> tuple[Fitted, int]:
    watts, caps = machine_with_watts(given, choice)
    start = _at_pace(given, start, watts)
    log, number = given.log, processors_of(given)
    processors = watts.machine.processors if watts else number or start.state.processors
    of_log = log, processors, plans_requests(choice.on("processors")), given.strict
    loop = None
    if given.closed_loop and log is not None:
        from cluster_agent.replay.closed_loop import closed_loop  # as above

        loop = closed_loop(given.closed_loop, given.seed)
        workload = prepare(log, *of_log[1:])
        warmed = Warm(workload, None if own else in_order(start, workload), 0)
    else:
        warmed = again(start, *of_log) if own else warm(start, *of_log)
    later_s = shift_s(start, log)
    later = moved(caps, later_s)
    caps = PowerCap.of(later if own else caps_from(later, start.state.t0_s))
    budgeted = _with_budget(watts, start, later_s, own, say)
    workload, watts = with_job_watts(given, budgeted, warmed.workload, say)
    looks = recorded_looks(given, choice, workload.sha256)
    world = Fitted(workload, watts, caps=caps, loop=loop, recorded=warmed.recorded, looks=looks)
    if given.has_switches:
        from cluster_agent.library.site_switches import with_switches  # as above

        world = with_switches(world, given, choice)
    return world, warmed.in_no_log


def _with_budget(watts: Watts | None, start: Start, later_s: int, own: bool, say: Say) -> Watts | None:
    """The budget in the state's seconds, or what is left of it."""
    if watts is None or watts.budget is None:
        return watts
    state, budget = start.state, watts.budget
    moved_budget: Budget | None = replace(budget, from_s=budget.from_s + later_s, to_s=budget.to_s + later_s)
    if not own and moved_budget is not None:
        if moved_budget.from_s < state.t0_s < moved_budget.to_s and state.stored_j is None:
            say(f"{start.path}: it has no stored_j: the budget's store is empty at {state.t0_s} s")
        moved_budget = budget_from(moved_budget, state)
    return replace(watts, budget=moved_budget)


def _at_pace(given: World, start: Start, watts: Watts | None) -> Start:
    """The start on the machine of this replay."""
    if watts is None:
        return start
    if watts.machine.node.cores > 1 and start.state.source == "partition":
        fix = f"give nodes of one core ({watts.machine.name}:cores=1)"
        raise WrongUseError(f"--machine {given.machine}: jobs of a partition have whole nodes: {fix}")
    return replace(start, slowdown=watts.slowdown)


def name_of(choice: Choice) -> str:
    """The policy as a report names it."""
    return short_name(choice.policy.name, choice.parameters, choice.origin.sha256 if choice.origin else "")


def _say(start: Start, in_no_log: int, has_watts: bool, say: Say) -> None:
    """Where the replay starts, and what is not known."""
    state, counted = start.state, start.state.count()
    line = f"at {state.t0_s} s {counted['queued']} jobs wait, {counted['running']} run, {counted['ended']} have ended"
    if in_no_log:
        line += f"; {in_no_log} that wait or run are in no log: each runs for its run_s, else for its request"
    say(f"{start.path}: {line}")
    if state.postponed:
        say(f"{start.path}: {state.postponed} jobs that waited for other jobs, or for a time, are left out")
    if not has_watts and (state.stored_j is not None or any(job.level for job in state.jobs)):
        line = "its frequencies and joules count only with a --machine that has watts"
        say(f"{start.path}: {line}")
    if state.away:
        say(
            f"{start.path}: {state.away} of {state.processors} nodes were down or drained, and here they get jobs: plan"
            f" without them by --machine {max(state.processors - state.away, 1)}"
        )


def manifest_of(start: Start) -> dict[str, Any]:
    """What a manifest has about the state."""
    state = start.state
    return {
        "path": start.path,
        "sha256": start.sha256,
        "t0_s": state.t0_s,
        "source": state.source,
        "policy": state.policy,
        "jobs": state.count(),
    }


def save(path: str, at_s: int, result: Result, choice: Choice, start: Start | None) -> None:
    """``--state-out``: the state at ``at_s`` of the replay."""
    if start is not None and at_s < start.state.t0_s:
        raise WrongUseError(f"--state-at {at_s}: this replay starts at {start.state.t0_s} s; give a later time")
    zero_s = start.state.zero_unix_s if start is not None else None
    if start is None and result.world.kind == "processors":
        zero_s = unix_start_s(result.world.workload.log)
    state = state_at(at_s, result, name_of(choice), zero_s)
    if reason := problem_of(state):
        raise WrongUseError(f"--state-out {path}: {reason}")
    with written_whole.one_file(path, "--state-out") as file:
        file.write_bytes(encode(state))
