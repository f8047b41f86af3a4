"""The record of a plan, ``plan.jsonl``: what came of every pass, so that a replay repeats it without its planner.

The first line says of which replay it is. Then there is one JSON array a line, for each pass in which somebody waited;
jobs are rows of ``jobs.csv``, nodes those of the machine, both from 0:

[time, "planner" or "list", reason, [[job, [[node, units], ...]], ...]]   started in this order, on these nodes

``list``: the policy's own list schedule decided; ``reason`` says why. Of a portfolio there is a line for each look,
with the number of the member that is in force from then on, and what each member cost:

[time, member, [cost, ...]]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
import numpy as np

from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.scheduler.plans.looks import Look
from cluster_agent.scheduler.plans.planning import DecidedBy, Outcome
from cluster_agent.scheduler.unlike_nodes.node_aware import Placed
from cluster_agent.workloads.job_log import LONGEST_S
from foundation.shell.plain_text import read_utf8

if TYPE_CHECKING:
    from cluster_agent.replay.event_log import Setting

NAME: Final = "plan.jsonl"
VERSION: Final = 1


class _Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """``sha256``: of the trace. ``closed_loop``: with its seed."""

    plan: int
    sha256: str
    policy: str
    machine: str | None
    cap: str | None
    instance: str | None
    closed_loop: str | None = None


_Seconds = Annotated[int, msgspec.Meta(ge=0, le=LONGEST_S)]
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Line: TypeAlias = tuple[_Seconds, DecidedBy, str, list[tuple[_Number, list[tuple[_Number, _Number]]]]]
_LookLine: TypeAlias = tuple[_Seconds, _Number, tuple[float, ...]]
_One = TypeVar("_One")


def written(outcomes: Sequence[Outcome], setting: Setting, sha256: str) -> bytes:
    """The content of the file."""
    planned = [
        (
            one.now_s,
            one.decided_by,
            one.reason,
            [(job, np.stack([on.node, on.count], axis=1).tolist()) for job, on in one.started],
        )
        for one in outcomes
    ]
    return _lines(planned, setting, sha256)


def written_looks(looks: Sequence[Look], setting: Setting, sha256: str) -> bytes:
    """The same of a portfolio."""
    return _lines(looks, setting, sha256)


def _lines(content: Sequence[Any], setting: Setting, sha256: str) -> bytes:
    return b"".join(msgspec.json.encode(line) + b"\n" for line in [_header(setting, sha256), *content])


def read(path: str, setting: Setting, sha256: str) -> list[Outcome]:
    """The outcomes; one line of error if the file is damaged, or of another replay."""
    return _read(path, setting, sha256, _outcome)


def read_looks(path: str, setting: Setting, sha256: str, members: int) -> list[Look]:
    """The same of a portfolio with so many members."""

    def look(line: bytes | str) -> Look:
        one = Look(*msgspec.json.decode(line, type=_LookLine))
        if one.member >= members or len(one.costs) != members:
            raise ValueError("each member has its cost, and one of them is in force")
        return one

    return _read(path, setting, sha256, look)


def _read(path: str, setting: Setting, sha256: str, one_of: Callable[[bytes | str], _One]) -> list[_One]:
    try:
        first, *lines = read_utf8(path).splitlines() or [b""]
    except OSError as error:
        raise ClusterError(f"--plan-from {path}: cannot read it: {error.strerror}") from None
    try:
        header = msgspec.json.decode(first, type=_Header)
    except (ValueError, RecursionError):  # msgspec's errors, what it says of no UTF-8, and of lists in lists
        raise WrongUseError(
            f"--plan-from {path}: no record of a plan; `clusterctl replay --out` writes {NAME}"
        ) from None
    if header.plan != VERSION:
        raise WrongUseError(f"--plan-from {path}: version {header.plan}, but this clusterctl reads {VERSION}")
    ours = _header(setting, sha256)
    for field in header.__struct_fields__:
        recorded, given = getattr(header, field), getattr(ours, field)
        if recorded != given:
            name = {"sha256": "trace with SHA-256", "closed_loop": "closed loop"}.get(field, field)
            raise WrongUseError(
                f"--plan-from {path}: recorded with {name} {recorded or '(none)'}, and here it is {given or '(none)'}:"
                " give what it was recorded with"
            )
    found = []
    for number, line in enumerate(lines, 2):
        try:
            found.append(one_of(line))
        except (ValueError, RecursionError):  # msgspec's errors are of the first kind
            raise ClusterError(f"{path}:{number}: damaged line; record the plan again") from None
    return found


def _outcome(line: bytes | str) -> Outcome:
    now_s, decided_by, reason, started = msgspec.json.decode(line, type=_Line)
    if bool(reason.partition(":")[0].strip()) != (decided_by == "list"):
        raise ValueError("the planner needs no reason, the list schedule one")
    return Outcome(now_s, decided_by, reason, tuple((job, _placed(on)) for job, on in started))


def _header(setting: Setting, sha256: str) -> _Header:
    loop = f"{setting.closed_loop}, seed {setting.seed}" if setting.closed_loop else None
    return _Header(VERSION, sha256, setting.policy, setting.machine, setting.cap, setting.instance, loop)


def _placed(on: list[tuple[int, int]]) -> Placed:
    table = np.array(on, np.int64).reshape(-1, 2)
    return Placed(table[:, 0].copy(), table[:, 1].copy())
