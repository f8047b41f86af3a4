"""``clusterctl replay --state``: a replay that starts with the jobs of a machine. ``--state-out`` writes them."""

from __future__ import annotations

from typing import Any

from cluster_agent.commands.replays.replay import processors_of
from cluster_agent.errors import WrongUseError
from cluster_agent.replay import written_whole
from cluster_agent.replay.compare import short_name
from cluster_agent.replay.event_log import Setting
from cluster_agent.replay.log_run import Result
from cluster_agent.replay.state_at import state_at
from cluster_agent.scheduler.policies.registry import Choice
from cluster_agent.workloads.state_file import encode, problem_of, read_state
from cluster_agent.workloads.swf import read_swf
from cluster_agent.workloads.text_tables import has_nodes
from cluster_agent.workloads.warm_log import Start, Warm, unix_start_s, warm
from nodectl.shell.plain_text import echo

NEEDS = "works only with a plain job log on a number of processors"


def check(option: str, value: str, setting: Setting, choice: Choice) -> None:
    """Refuse what no state has: the line names it."""
    reason = None
    if choice.has_configurations:
        reason = f"{choice.policy.name} chooses configurations, and a state has none"
    elif setting.state != setting.trace and has_nodes(setting.trace):
        reason = "a state has processors, and this trace has nodes"
    elif choice.composition.power is not None:
        reason = f"{choice.policy.name} counts watts and joules that were drawn before, which a state does not have"
    elif setting.machine is not None and not setting.machine.isdecimal():
        reason = f"--machine {setting.machine} has watts and nodes that are off or booting, which a state does not have"
    elif setting.cap is not None or setting.job_watts is not None:
        reason = "a state has no watts, so --cap and --job-watts do not go with it"
    elif setting.closed_loop is not None:
        reason = "--closed-loop goes by what users did before, which a state does not have"
    elif setting.instance is not None or setting.configurations is not None:
        reason = "--instance and --configurations are of other traces"
    if reason:
        raise WrongUseError(f"{option} {value}: {reason}; it {NEEDS}")


def world(setting: Setting, choice: Choice, is_strict: bool = False) -> tuple[Warm, Start]:
    """The jobs of the state and the log, and the state."""
    assert setting.state is not None
    check("--state", setting.state, setting, choice)
    state, sha256 = read_state(setting.state)
    processors = processors_of(setting.machine) if setting.machine else state.processors
    is_its_own = (state.source, state.policy, state.processors) == ("replay", name_of(choice), processors)
    # where nobody runs somebody can start, whoever has written the state
    is_idle = not state.count()["running"]
    start = Start(setting.state, sha256, state, passes_at_once=is_idle or not is_its_own)
    log = None if setting.trace == setting.state else read_swf(setting.trace)
    needs_requests = choice.composition.needs_requests
    return warm(start, log, processors, needs_requests, is_strict), start


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
