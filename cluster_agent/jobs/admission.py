"""What a live partition accepts: policies that need no more than it has, and jobs that its nodes can run."""

from __future__ import annotations

import pwd
import re
import shlex
from collections.abc import Collection
from typing import Final

import msgspec

from cluster_agent.budget.sharers.view import tag_of
from cluster_agent.errors import WrongUseError, no_such_node
from cluster_agent.jobs.component_nodes import distributed, requested_nodes
from cluster_agent.jobs.job import LONGEST_GRACE_S, Job, JobSpec
from cluster_agent.jobs.job_nodes import Node
from cluster_agent.scheduler.plans.live_planning import LIVE_TIME_S
from cluster_agent.scheduler.policy_phases import (
    LIVE,
    WITHOUT_CONFIGURATIONS,
    WITHOUT_PAIRS,
    WITHOUT_SWITCHING,
    WITHOUT_WATTS,
    Composition,
    clash,
)
from cluster_agent.scheduler.switches.limits import clash_of
from cluster_agent.sharing.gpu_jobs import floor_of
from foundation.shell.errors import nearest
from foundation.wire.job_messages import MAX_START, JobStart, kind_of
from foundation.wire.power_messages import PROTOCOL, pack

CALIBRATION: Final = ["nodectl", "calibrate", "run"]
"""How a command begins that measures a node; emulated nodes run it too."""

_TIME: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(?:ms|s|min|h|)")
"""A time as emulated nodes read it; a bare number is in seconds."""


def check_live(
    composition: Composition,
    has_watts: bool = False,
    can_switch: bool = False,
    has_configurations: bool = False,
    switches: tuple[str, ...] = (),
    has_pairs: bool = False,
) -> None:
    """``WrongUseError`` for a policy that needs what the partition has not, or that does not go with ``switches``."""
    lacks = (
        (has_watts, WITHOUT_WATTS),
        (can_switch, WITHOUT_SWITCHING),
        (has_configurations, WITHOUT_CONFIGURATIONS),
        (has_pairs, WITHOUT_PAIRS),
    )
    partition = [LIVE, *(without for is_there, without in lacks if not is_there)]
    if reason := clash([*composition.declared, *partition]):
        raise WrongUseError(reason)
    if switches:
        owns_watts = composition.owns_watts or composition.placing is not None
        reason = clash_of(composition, switches)
        if reason is not None or owns_watts:
            raise WrongUseError(reason or f"a policy that owns watts does not go with {', '.join(switches)}")
    if (time_s := composition.plan_time_s) is not None and time_s > LIVE_TIME_S:
        raise WrongUseError(f"time_s={time_s:g}: a live partition waits for no plan longer than {LIVE_TIME_S:g} s")


def check_job(job: Job, nodes: Collection[str], most_nodes: int = 0) -> None:
    """``WrongUseError`` for a job that could never run on these nodes. ``most_nodes``: it may get more than it
    requests."""
    spec = job.spec
    if not spec.command and not spec.script:
        raise WrongUseError("nothing to run: give a command or a script")
    if unknown := sorted(set(job.on) - set(nodes)):
        raise no_such_node(unknown[0], nodes)
    if spec.nodes > len(nodes):
        raise WrongUseError(f"{spec.nodes} nodes requested, but the partition has {len(nodes)}")
    if spec.tag:
        try:
            tag_of(spec.tag)
        except ValueError as error:
            raise WrongUseError(str(error)) from None
    if not spec.workdir.startswith("/"):
        raise WrongUseError(f"workdir {spec.workdir!r} is not an absolute path")
    names = sorted(nodes, key=len)[-max(spec.nodes, most_nodes) :]
    try:
        size = largest_start(job, names)
    except msgspec.MsgspecError as error:
        raise WrongUseError(f"no node would accept this job: {error}") from None
    if size > MAX_START:
        raise WrongUseError(
            f"the job's script, command and environment take {size} bytes, at most {MAX_START} can be sent to a node:"
            " move them to files that nodes can read"
        )


def check_shares(job: Job, shares: bool) -> None:
    """``WrongUseError`` for a job that cannot share nodes as it says. ``shares``: whether the policy has jobs share."""
    share = job.spec.share
    floor_of("--share", share)
    if not shares and (job.spec.halves or share not in ("", "exclusive")):
        what = "half a node" if job.spec.halves else f"--share {share}"
        raise WrongUseError(f"{what}: the partition's policy gives each job its nodes alone: leave it out")
    if shares and job.on:
        raise WrongUseError("the policy chooses who is next to whom, and cannot keep to a node: choose another policy")
    if shares and share == "exclusive" and job.spec.halves:
        raise WrongUseError("half a node, and nobody on the other half: request whole nodes, or --share")
    if shares and job.spec.components:
        raise WrongUseError("components requested, but the policy has jobs share alike nodes: submit them one by one")


def check_yields(spec: JobSpec, has_them: bool) -> None:
    """``WrongUseError`` for a best-effort job that is to have what those have not. ``has_them``: whether the partition
    runs any."""
    if not spec.best_effort:
        return
    if not has_them:
        raise WrongUseError(
            "--best-effort: not with the partition's policy, or its queues that have nodes of their own: leave it out"
        )
    for option, value in {"--queue": spec.queue, "--reservation": spec.reservation}.items():
        if value:
            raise WrongUseError(f"--best-effort and {option} {value}: it gets what all of these leave; leave one out")
    if spec.grace_s > LONGEST_GRACE_S:
        raise WrongUseError(
            f"--grace {spec.grace_s}s: a best-effort job has {LONGEST_GRACE_S} s at most, since another one waits for"
            " its nodes meanwhile"
        )


def check_components(spec: JobSpec, configurations: Collection[str]) -> None:
    """``WrongUseError`` for components where the policy chooses how many nodes a job has."""
    if configurations:
        raise WrongUseError(
            f"{len(spec.components)} components requested, but the partition's policy chooses a job's nodes itself:"
            " submit them as jobs of their own"
        )


def check_runs(job: Job, nodes: Collection[Node]) -> None:
    """``WrongUseError`` if too few nodes can run the job, by what they have and what they have declared to run."""
    spec, able = job.spec, runners(job, nodes)
    if len(distributed(spec, able)) >= spec.nodes:
        return
    if spec.requested and all(node.has is None for node in nodes):
        raise WrongUseError(
            f"{spec.requested} per node requested, but the partition's policy takes all nodes as alike: leave that out"
        )
    _check_nodes_of_components(job, able)
    if (of_queue := sum(node.serves(spec.queue) for node in nodes)) < spec.nodes:
        raise WrongUseError(f"{spec.nodes} nodes requested, but queue {spec.queue} has {of_queue}")
    having = sum(has_resources(job, node) for node in nodes)
    if having < spec.nodes:
        raise WrongUseError(
            f"{spec.nodes} node{'s' if spec.nodes > 1 else ''} with {spec.requested or '1 core'} requested, but by its"
            f" machine file the partition has {having}"
        )
    refusing = [node for node in nodes if not can_run(job, node)]
    _check_user(job, nodes)
    if not refusing:
        raise WrongUseError(f"{spec.nodes} nodes requested, but only {len(able)} emulated ones run `{spec.command[0]}`")
    raise WrongUseError(_why_refused(job, refusing))


def _check_nodes_of_components(job: Job, able: list[Node]) -> None:
    """``WrongUseError`` if there are too few nodes for one of the job's components, or for all at once."""
    components = job.spec.components
    if not components or any(node.has is None for node in able):
        return
    for number, one in enumerate(components, 1):
        having = sum(one.fits(node.has) for node in able if node.has is not None)
        if having < one.nodes:
            raise WrongUseError(
                f"component {number} of {len(components)}: {one.in_words} requested, but the partition has {having}"
            )
    raise WrongUseError(
        f"{requested_nodes(job.spec)} requested, but the partition has no such {job.spec.nodes} nodes at once"
    )


def _check_user(job: Job, nodes: Collection[Node]) -> None:
    """``WrongUseError`` if too few nodes run jobs of this user."""
    wanted = [node for node in nodes if not job.on or node.name in job.on]
    others = [node for node in wanted if not _is_of_user(job, node)]
    if others and len(wanted) - len(others) < job.spec.nodes:
        raise WrongUseError(
            f"{_names(others)} run{'s' if len(others) == 1 else ''} only jobs of {_user(others[0].runs_uid)}, not of"
            f" {job.user or job.uid} (uid {job.uid}): submit as that user"
        )


def _why_refused(job: Job, refusing: list[Node]) -> str:
    """Why these nodes, emulated ones, do not run the job, and what they would run."""
    words, only = job.spec.command[1:], refusing[0].runs_only
    form = f"`{only} NAME TIME [UNIT]`"
    named = [node for node in refusing if node.runs_only and _names_command(job, node)]
    if not named:
        what = job.spec.command[0] if _is_plain(job) else "a script, a prolog or an epilog"
        return (
            f"{what} cannot run on {_names(refusing)}: emulated nodes run only {form}"
            " (`nodectl twin workloads` lists the names)"
        )
    if len(words) not in (2, 3):
        return f"{shlex.join(job.spec.command)}: emulated nodes run {form}, e.g. `{only} hpl 60s`"
    if wrong := next((word for word in words[1:] if not _is_time(word)), ""):
        return f"{wrong!r} is not a time above 0 such as 30s or 2min: emulated nodes run {form}"
    known = {name for node in named for name in node.runs_names}
    return f"{_names(named)} cannot run a workload {words[0]!r}{nearest(words[0], known)}"


def runners(job: Job, nodes: Collection[Node]) -> list[Node]:
    """The nodes that would run the job, by what they have declared to run. A program of emulated nodes does not run on
    others."""
    able = [node for node in nodes if can_run(job, node)]
    if any(node.runs_only and _names_command(job, node) for node in nodes):
        return [node for node in able if node.runs_only or not node.boot_id]
    return able


def can_run(job: Job, node: Node) -> bool:
    """Whether the node would accept the job, by what it has and what it has declared to run."""
    if (job.on and node.name not in job.on) or not node.serves(job.spec.queue):
        return False
    if not has_resources(job, node) or not _is_of_user(job, node):
        return False
    if not node.runs_only or (_is_plain(job) and job.spec.command[:3] == CALIBRATION):
        return True
    words = job.spec.command[1:]
    return (
        _names_command(job, node)
        and len(words) in (2, 3)
        and all(map(_is_time, words[1:]))
        and (not node.runs_names or any(_fits(words[0], name) for name in node.runs_names))
    )


def has_resources(job: Job, node: Node) -> bool:
    """Whether the node has what the job requests of each node."""
    return not job.spec.requested if node.has is None else job.spec.fits(node.has)


def _is_of_user(job: Job, node: Node) -> bool:
    return node.runs_uid in (-1, job.uid)


def _user(uid: int) -> str:
    """As in messages: the name with the number, where it has one here."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _names_command(job: Job, node: Node) -> bool:
    return _is_plain(job) and job.spec.command[0] == node.runs_only


def _is_plain(job: Job) -> bool:
    spec = job.spec
    return bool(spec.command) and not (spec.script or spec.prolog or spec.epilog)


def _fits(word: str, name: str) -> bool:
    return word == name or word.endswith(".toml") or (name.endswith(":") and word.startswith(name))


def _is_time(word: str) -> bool:
    match = _TIME.fullmatch(word.strip())  # blanks in two places of it would be tried in all ways
    return match is not None and float(match[1]) > 0


def _names(nodes: list[Node]) -> str:
    return nodes[0].name if len(nodes) == 1 else f"{nodes[0].name} and {len(nodes) - 1} more"


def largest_start(job: Job, nodes: list[str]) -> int:
    """Bytes of the message that starts the job on these nodes; ``msgspec.ValidationError`` if they would reject it."""
    planned = msgspec.structs.replace(job, id=1, attempt=1, nodes=nodes)
    frame = pack(kind_of(start := planned.start_on(nodes[-1])), start, PROTOCOL)
    msgspec.msgpack.decode(msgspec.msgpack.encode(start), type=JobStart)
    return len(frame) + 2 * 9  # room for the job's number and attempt
