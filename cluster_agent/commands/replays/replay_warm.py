"""``clusterctl replay --state``: a replay that starts with the jobs of a machine. ``--state-out`` writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from cluster_agent.cap_steps import Cap
from cluster_agent.commands.replays.replay_processors import processors_of, watts_of, with_jobs
from cluster_agent.errors import WrongUseError
from cluster_agent.replay import written_whole
from cluster_agent.replay.closed_loop import ClosedLoop, closed_loop
from cluster_agent.replay.compare import short_name
from cluster_agent.replay.event_log import Setting
from cluster_agent.replay.log_run import Result, replay
from cluster_agent.replay.state_at import departure, past_of, state_at
from cluster_agent.scheduler.native.governor import Watts
from cluster_agent.scheduler.policies.registry import Choice
from cluster_agent.scheduler.recorded import StartsError
from cluster_agent.workloads.job_log import prepare
from cluster_agent.workloads.state_file import (
    VERSION,
    MachineState,
    StateError,
    StateJob,
    encode,
    problem_of,
    read_state,
)
from cluster_agent.workloads.swf import read_swf
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
from foundation.shell.plain_text import echo
from foundation.shell.progress_bar import progress


class World(NamedTuple):
    """The inputs of a warm replay. ``warm.recorded`` None: the policy's own past, to be replayed again."""

    start: Start
    warm: Warm
    watts: Watts | None
    caps: list[Cap]
    loop: ClosedLoop | None


def check(option: str, setting: Setting, choice: Choice) -> None:
    """Refuse to start from the jobs of a state alone what needs more of them: the line names it."""
    reason = None
    if setting.closed_loop is not None:
        reason = "--closed-loop needs all that users did"
    elif choice.has_configurations:
        reason = f"{choice.policy.name} chooses configurations, which are of a trace"
    if reason and setting.trace == setting.state:
        raise WrongUseError(f"{option} {setting.state}: {reason}: give the TRACE that it was taken from, too")


def is_own(state: MachineState, choice: Choice) -> bool:
    """Whether the state is of a replay of this very policy, so that it can be replayed from the start."""
    return (state.source, state.policy) == ("replay", name_of(choice))


class States(NamedTuple):
    """``--state`` and ``--state-out`` of a replay."""

    setting: Setting
    choice: Choice
    start: Start | None
    out: str | None
    out_s: int | None

    @property
    def at_s(self) -> list[int]:
        """The moments that are needed."""
        return [at_s for at_s in (self.from_s, self.out_s) if at_s is not None]

    @property
    def from_s(self) -> int | None:
        """When results start."""
        return None if self.start is None else self.start.state.t0_s

    @property
    def manifest(self) -> dict[str, Any]:
        """What a manifest has about the state."""
        return {} if self.start is None else {"state": manifest_of(self.start)}

    @property
    def is_own(self) -> bool:
        """Whether the replay is to begin before the state: there is none, or it is of this policy."""
        return self.start is None or is_own(self.start.state, self.choice)

    def departure(self, past: list[StateJob]) -> str:
        """That a replay has not led to the state, in words; "": it has, or there is none."""
        job = None if self.start is None else departure(self.start.state, past)
        return "" if job is None else f"{self.setting.policy} does not lead to it here (first: job {job})"

    def follow(self, past_at: Callable[[int], list[StateJob]], nodes: int) -> None:
        """Say where the replay starts, and write the other state. ``past_at``: the jobs at a moment."""
        if self.start is not None:
            say(self.start, 0)
        if self.out is not None and self.out_s is not None:
            jobs = past_at(self.out_s)
            state = MachineState(VERSION, "replay", name_of(self.choice), self.out_s, nodes, jobs)
            _write(self.out, state, self.start)


def states(
    setting: Setting, choice: Choice, state_out: str | None = None, state_at: int | None = None, needs: str = ""
) -> States:
    """``WrongUseError`` if another policy led to the state, and what this one ``needs`` is not in it."""
    if setting.state is None:
        return States(setting, choice, None, state_out, state_at)
    check("--state", setting, choice)
    state, sha256 = read_state(setting.state)
    if needs and not is_own(state, choice):
        by = f"--policy {state.policy}" if state.source == "replay" else "the policy of a replay that wrote it"
        raise WrongUseError(f"--state {setting.state}: with {needs} only {by} goes on from it, not {setting.policy}")
    return States(setting, choice, Start(setting.state, sha256, state), state_out, state_at)


def other_past(setting: Setting, departure: str) -> StateError:
    """Of a replay that does not lead to the state, where nothing else can start from it."""
    return StateError(f"{setting.state}: {departure}: give the trace, machine, cap and options that it was taken with")


def _world(
    setting: Setting, choice: Choice, start: Start, watts: Watts | None, caps: list[Cap], own: bool, is_strict: bool
) -> World:
    """The jobs of the state and the log. ``own``: as the policy itself had them before the state, else from the state
    on."""
    composition = choice.composition
    log = None if setting.trace == setting.state else read_swf(setting.trace)
    processors = watts.machine.processors if watts else start.state.processors
    processors = processors if watts or not setting.machine else processors_of(setting.machine)
    of_log = log, processors, composition.needs_requests or composition.power is not None, is_strict
    loop = closed_loop(setting.closed_loop, setting.seed) if setting.closed_loop else None
    if loop is not None and log is not None:
        workload = prepare(log, *of_log[1:])
        warmed = Warm(workload, None if own else in_order(start, workload), 0)
    else:
        warmed = again(start, *of_log) if own else warm(start, *of_log)
    later_s = shift_s(start, log)
    caps = moved(caps, later_s) if own else caps_from(moved(caps, later_s), start.state.t0_s)
    watts = _with_budget(watts, start, later_s, own)
    return World(start, warmed, with_jobs(setting, composition, watts, warmed.workload), caps, loop)


def _with_budget(watts: Watts | None, start: Start, later_s: int, own: bool) -> Watts | None:
    """The budget in the state's seconds, or what is left of it."""
    if watts is None or watts.budget is None:
        return watts
    state, budget = start.state, watts.budget
    budget = replace(budget, from_s=budget.from_s + later_s, to_s=budget.to_s + later_s)
    if own:
        return replace(watts, budget=budget)
    if budget.from_s < state.t0_s < budget.to_s and state.stored_j is None:
        echo(f"{start.path}: it has no stored_j: the budget's store is empty at {state.t0_s} s", to_stderr=True)
    return replace(watts, budget=budget_from(budget, state))


def _at_pace(setting: Setting, start: Start, watts: Watts | None) -> Start:
    """The start on the machine of this replay."""
    if watts is None:
        return start
    if watts.machine.node.cores > 1 and start.state.source == "partition":
        fix = f"give nodes of one core ({watts.machine.name}:cores=1)"
        raise WrongUseError(f"--machine {setting.machine}: jobs of a partition have whole nodes: {fix}")
    return replace(start, slowdown=watts.slowdown)


def replayed(
    setting: Setting, choice: Choice, is_strict: bool = False, at_s: Sequence[int] = ()
) -> tuple[World, Result]:
    """The replay from the state on: again from the start if that leads to the state, else from its jobs."""
    given = states(setting, choice)
    assert given.start is not None
    watts, caps = watts_of(setting, choice.composition)
    start, is_again = _at_pace(setting, given.start, watts), given.is_own
    state = start.state
    while True:
        found = _world(setting, choice, start, watts, caps, is_again, is_strict)
        try:
            result = _run(choice, found, [state.t0_s, *at_s])
        except StartsError:  # in another closed loop other jobs have come
            raise other_past(setting, f"{setting.policy} does not lead to it here") from None
        departure = given.departure(past_of(result, result.moments[state.t0_s])) if is_again or found.loop else ""
        if not departure:
            return found, result
        if not is_again:
            raise other_past(setting, departure)
        say_departure(setting, departure)
        is_again = False


def say_departure(setting: Setting, departure: str) -> None:
    """That the policy starts from the state as another one."""
    echo(f"{setting.state}: {departure}: it starts from its jobs, as another policy", to_stderr=True)


def _run(choice: Choice, given: World, at_s: Sequence[int]) -> Result:
    workload, recorded = given.warm.workload, given.warm.recorded
    with progress(len(workload.jobs)) as advance:
        return replay(workload, choice.composition, advance, given.watts, given.caps, given.loop, recorded, at_s)


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
    if start.slowdown is None and (state.stored_j is not None or any(job.level for job in state.jobs)):
        line = "its frequencies and joules count only with a --machine that has watts"
        echo(f"{start.path}: {line}", to_stderr=True)
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
    zero_s = start.state.zero_unix_s if start is not None else unix_start_s(result.workload.log)
    _write(path, state_at(at_s, result, name_of(choice), zero_s), start)


def _write(path: str, state: MachineState, start: Start | None) -> None:
    if start is not None and state.t0_s < start.state.t0_s:
        raise WrongUseError(f"--state-at {state.t0_s}: this replay starts at {start.state.t0_s} s; give a later time")
    if reason := problem_of(state):
        raise WrongUseError(f"--state-out {path}: {reason}")
    with written_whole.one_file(path, "--state-out") as file:
        file.write_bytes(encode(state))
