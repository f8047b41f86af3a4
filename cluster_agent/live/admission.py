"""What a live partition takes: policies that need no more than it has, and jobs that its nodes could run."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from cluster_agent.budget.sharers.view import tag_of
from cluster_agent.errors import WrongUseError
from cluster_agent.live.job import Job
from cluster_agent.live.nodes import Node
from cluster_agent.scheduler.phases import Composition
from nodectl.job_wire import MAX_START, JobStart, kind_of
from nodectl.wire import PROTOCOL, pack


def check_live(composition: Composition) -> None:
    """``WrongUseError`` for a policy that needs what only a replay has."""
    if composition.power is not None:
        raise WrongUseError(
            "a policy that shares out watts runs in replays only; live, a sharer does (docs/cluster.md)"
        )
    if composition.priority is not None:
        raise WrongUseError("priorities name the users of a table of jobs by its numbers: replays only, so far")
    if composition.estimate == "clairvoyant":
        raise WrongUseError("estimate=clairvoyant needs the run times of the future: replays only")
    if composition.ties != "instant":
        raise WrongUseError("ties=sc15 takes processors as free that are not: replays only")


def check_job(job: Job, nodes: Collection[str]) -> None:
    """``WrongUseError`` for a job that could never run on these nodes."""
    spec = job.spec
    if not spec.command and not spec.script:
        raise WrongUseError("nothing to run: give a command or a script")
    if spec.nodes > len(nodes):
        raise WrongUseError(f"{spec.nodes} nodes asked for, and the partition has {len(nodes)}")
    if spec.tag:
        try:
            tag_of(spec.tag)
        except ValueError as error:
            raise WrongUseError(str(error)) from None
    if not spec.workdir.startswith("/"):
        raise WrongUseError(f"workdir {spec.workdir!r} is no absolute path")
    names = sorted(nodes, key=len)[-spec.nodes :]
    try:
        size = largest_start(job, names)
    except msgspec.MsgspecError as error:
        raise WrongUseError(f"no node would understand this job: {error}") from None
    if size > MAX_START:
        raise WrongUseError(
            f"the job's script, command and environment make {size} bytes, and {MAX_START} can be sent to a node:"
            " put them into files that nodes can read"
        )


def check_runs(job: Job, nodes: Collection[Node]) -> None:
    """``WrongUseError`` for a job that too few of the nodes run, as far as they have said what they run."""
    spec = job.spec
    is_plain = bool(spec.command) and not (spec.script or spec.prolog or spec.epilog)
    refusing = [node for node in nodes if node.runs_only and not (is_plain and spec.command[0] == node.runs_only)]
    if not refusing or len(nodes) - len(refusing) >= spec.nodes:
        return
    what = spec.command[0] if is_plain else "a script, a prolog or an epilog"
    only = refusing[0].runs_only
    raise WrongUseError(
        f"{what} cannot run on {_names(refusing)}: emulated nodes run `{only} NAME TIME [UNIT]` and nothing else"
        " (`nodectl twin workloads` lists the names)"
    )


def _names(nodes: list[Node]) -> str:
    return nodes[0].name if len(nodes) == 1 else f"{nodes[0].name} and {len(nodes) - 1} more"


def largest_start(job: Job, nodes: list[str]) -> int:
    """Bytes of the message that starts the job on these nodes; ``msgspec.ValidationError`` if it would not be taken."""
    planned = msgspec.structs.replace(job, id=1, attempt=1, nodes=nodes)
    frame = pack(kind_of(start := planned.start_on(nodes[-1])), start, PROTOCOL)
    msgspec.msgpack.decode(msgspec.msgpack.encode(start), type=JobStart)
    return len(frame) + 2 * 9  # whatever numbers it will have
