"""``clusterctl replay --state``: a replay that starts with the jobs of a machine. ``--state-out`` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cluster_agent.cap_steps import Cap
from cluster_agent.commands.replays.replay import processors_of, watts_of, with_jobs
from cluster_agent.errors import WrongUseError
from cluster_agent.replay import written_whole
from cluster_agent.replay.compare import short_name
from cluster_agent.replay.event_log import Setting
from cluster_agent.replay.log_run import Result, replay
from cluster_agent.replay.state_at import departure, state_at
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.policies.registry import Choice
from cluster_agent.workloads.state_file import encode, problem_of, read_state
from cluster_agent.workloads.swf import read_swf
from cluster_agent.workloads.text_tables import has_nodes
from cluster_agent.workloads.warm_log import (
    Start,
    Warm,
    again,
    budget_from,
    caps_from,
    moved,
    shift_s,
    unix_start_s,
    warm,
)
from nodectl.shell.plain_text import echo
from nodectl.shell.progress_bar import progress


@dataclass(frozen=True, slots=True)
class World:
    """The inputs of a warm replay. ``warm.recorded`` None: the policy's own past, to be replayed again."""

    start: Start
    warm: Warm
    watts: Watts | None
    caps: list[Cap]


def check(option: str, value: str, setting: Setting, choice: Choice) -> None:
    """Refuse what no state has: the line names it."""
    reason = None
    if choice.has_configurations:
        reason = f"{choice.policy.name} chooses configurations, and a state has none"
    elif setting.state != setting.trace and has_nodes(setting.trace):
        reason = "a state has processors, and this trace has nodes"
    elif setting.closed_loop is not None:
        reason = "--closed-loop goes by what users did before, which a state does not have"
    elif setting.instance is not None or setting.configurations is not None:
        reason = "--instance and --configurations are of other traces"
    if reason:
        raise WrongUseError(f"{option} {value}: {reason}; it works only with a plain job log")


def read(setting: Setting, choice: Choice) -> tuple[Start, Watts | None, list[Cap]]:
    """The state, and the machine with its caps in seconds of the log."""
    assert setting.state is not None
    check("--state", setting.state, setting, choice)
    state, sha256 = read_state(setting.state)
    watts, caps = watts_of(setting, choice.composition)
    return Start(setting.state, sha256, state, watts.slowdown if watts else None), watts, caps


def is_own(start: Start, choice: Choice) -> bool:
    """Whether the state is of a replay of this very policy, so that it can be replayed from the start."""
    return (start.state.source, start.state.policy) == ("replay", name_of(choice))


def world(
    setting: Setting, choice: Choice, given: tuple[Start, Watts | None, list[Cap]], own: bool, is_strict: bool = False
) -> World:
    """The jobs of the state and the log. ``own``: as the policy itself had them before the state, else from the state
    on."""
    start, watts, caps = given
    log = None if setting.trace == setting.state else read_swf(setting.trace)
    processors = watts.machine.processors if watts else start.state.processors
    processors = processors if watts or not setting.machine else processors_of(setting.machine)
    composition = choice.composition
    needs_requests = composition.needs_requests or composition.power is not None
    warmed = (again if own else warm)(start, log, processors, needs_requests, is_strict)
    later_s = shift_s(start, log)
    if watts is not None and (budget := watts.budget) is not None:
        budget = replace(budget, from_s=budget.from_s + later_s, to_s=budget.to_s + later_s)
        watts = replace(watts, budget=budget if own else budget_from(budget, start.state))
    caps = moved(caps, later_s) if own else caps_from(moved(caps, later_s), start.state.t0_s)
    return World(start, warmed, with_jobs(setting, composition, watts, warmed.workload), caps)


def replayed(
    setting: Setting, choice: Choice, is_strict: bool = False, at_s: Sequence[int] = ()
) -> tuple[World, Result]:
    """The replay from the state on: again from the start if that leads to the state, else from its jobs."""
    given = read(setting, choice)
    t0_s = given[0].state.t0_s
    for own in (True, False) if is_own(given[0], choice) else (False,):
        found = world(setting, choice, given, own, is_strict)
        workload = found.warm.workload
        with progress(len(workload.jobs)) as advance:
            result = replay(
                workload, choice.composition, advance, found.watts, found.caps, None, found.warm.recorded,
                [t0_s, *at_s],
            )  # fmt: skip
        if own and (job := departure(given[0].state, result)) is not None:
            line = f"{setting.policy} does not lead to this state here (first: job {job}): it starts from it as another"
            echo(f"{setting.state}: {line}", to_stderr=True)
            continue
        break
    return found, result


def name_of(choice: Choice) -> str:
    """The policy as a report names it."""
    parameters = {key: getattr(choice.params, key) for key in choice.params.__struct_fields__}
    return short_name(choice.policy.name, parameters, choice.origin.sha256 if choice.origin else "")


def say(start: Start, in_no_log: int) -> None:
    """Where the replay starts, and what is not known."""
    state, counted = start.state, start.state.count()
    line = f"at {state.t0_s} s {counted['queued']} jobs wait, {counted['running']} run, {counted['ended']} have ended"
    if in_no_log:
        line += f"; {in_no_log} that wait or run are in no log: each runs for its run_s, else for its request"
    echo(f"{start.path}: {line}", to_stderr=True)
    if state.postponed:
        echo(f"{start.path}: {state.postponed} jobs that waited for other jobs are left out", to_stderr=True)
    if state.away:
        echo(
            f"{start.path}: {state.away} of {state.processors} nodes were down or drained, and here they get jobs: plan"
            f" without them by --machine {max(state.processors - state.away, 1)}",
            to_stderr=True,
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
    zero_s = start.state.zero_unix_s if start is not None else unix_start_s(result.workload.log)
    state = state_at(at_s, result, name_of(choice), zero_s)
    if reason := problem_of(state):
        raise WrongUseError(f"--state-out {path}: {reason}")
    with written_whole.one_file(path, "--state-out") as file:
        file.write_bytes(encode(state))
