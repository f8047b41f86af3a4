"""The state of a machine at an instant, as a JSON file: the jobs that run and wait, and those that have ended.

`clusterctl state export` writes it from a live partition, `clusterctl replay --state-out` from the middle of a replay;
`clusterctl replay --state` goes on from there (``warm_log``). It has no state of any phase of a policy, only what
happened to jobs and the joules of a budget: the policy that led to it is replayed again, and another one starts from
it (``scheduler.recorded``).

Times are whole seconds, in a replay those of its log; ``zero_unix_s`` is the Unix time of second 0, if that is known.
All that happened before ``t0_s`` has happened, and nothing of ``t0_s`` itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from cluster_agent.errors import without_types
from cluster_agent.workloads.job_log import LONGEST_S
from cluster_agent.workloads.swf import TraceError
from foundation.digest import sha256_hex
from foundation.shell.plain_text import utf8

VERSION: Final = 1

Seconds = Annotated[int, Meta(ge=0, le=LONGEST_S)]
Length = Annotated[int, Meta(ge=1, le=LONGEST_S)]
MOST_J: Final = 1e18


class StateError(TraceError):
    """A state that cannot be used as it is, or not with this log; the message says why and what to do."""

    exit_status = 2


class StateJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job, queued without ``start_s``, ended with ``end_s``; unknown values are left out.

    ``run_s``: for how long a job that waits or runs will have run at its end, if somebody knows; of one that has ended,
    if that is not from its start to its end. It counts at the highest frequency, as requests do. ``level``: its
    frequency at last, 0 the highest. ``done_s``: how much of ``run_s`` it has done, if it has not run at ``level``
    since its start was decided (``start_s``): its nodes booted, or its frequency was changed. ``is_killed``: it ended
    so, and does not wait again. ``nodes``, ``application`` and ``tag`` are for the reader: no replay looks at them.
    """

    job: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    submit_s: Seconds
    width: Annotated[int, Meta(ge=1, lt=1 << 31)]
    request_s: Length | None = None
    user: Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)] = -1
    start_s: Seconds | None = None
    end_s: Seconds | None = None
    run_s: Length | None = None
    application: str = ""
    tag: str = ""
    level: Annotated[int, Meta(ge=0)] = 0
    done_s: Annotated[float, Meta(ge=0, le=LONGEST_S)] | None = None
    is_killed: bool = False
    nodes: list[str] = []

    @property
    def what(self) -> Literal["queued", "running", "ended"]:
        """What it does at t0."""
        return "queued" if self.start_s is None else "running" if self.end_s is None else "ended"

    @property
    def stays_s(self) -> int | None:
        """For how long it runs as far as this file says: until its end, by ``run_s``, or by its request."""
        if self.start_s is not None and self.end_s is not None:
            return max(self.end_s - self.start_s, 1)
        return self.run_s if self.run_s is not None else self.request_s


class MachineState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """``jobs`` in the order in which they joined the queue. ``processors``: nodes on a live partition, of which
    ``away`` were down or drained. ``policy``: what had decided until ``t0_s``. ``stored_j``: what a budget of joules
    had stored, below 0: overdrawn."""

    version: int
    source: Literal["replay", "partition"]
    policy: str
    t0_s: Seconds
    processors: Annotated[int, Meta(ge=1, lt=1 << 31)]
    jobs: list[StateJob]
    zero_unix_s: Seconds | None = None
    away: Annotated[int, Meta(ge=0)] = 0
    postponed: Annotated[int, Meta(ge=0)] = 0
    """Jobs of the partition that wait for others, or for a time, and are not in ``jobs``."""
    stored_j: Annotated[float, Meta(ge=-MOST_J, le=MOST_J)] | None = None

    def count(self) -> dict[str, int]:
        """How many jobs wait, run and have ended."""
        counted = Counter(job.what for job in self.jobs)
        return {what: counted[what] for what in ("queued", "running", "ended")}


class _Version(msgspec.Struct, frozen=True):
    version: int


def encode(state: MachineState) -> bytes:
    """One job a line."""
    head = msgspec.json.encode(msgspec.structs.replace(state, jobs=[]))
    lines = b",\n".join(map(msgspec.json.encode, state.jobs))
    return head.replace(b'"jobs":[]', b'"jobs":[\n' + lines + b"\n]") + b"\n"


def read_state(path: str) -> tuple[MachineState, str]:
    """A state and the SHA-256 of its file; ``StateError`` in one line if it cannot be or does not fit together."""
    try:
        raw = Path(path).read_bytes()
        text = utf8(raw)
    except (OSError, ValueError) as error:  # ValueError: a NUL in a path
        reason = getattr(error, "strerror", None) or error
        raise StateError(f"{path}: {reason}; name a file of `clusterctl state export`") from None
    try:
        version = msgspec.json.decode(text, type=_Version).version
        if version != VERSION:
            raise StateError(f"{path}: a state of version {version}, and this reads {VERSION}: export it again")
        state = msgspec.json.decode(text, type=MachineState)
    except msgspec.ValidationError as error:
        raise StateError(f"{path}: no state: {without_types(str(error))}; export it again") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StateError(f"{path}: damaged or no state ({error}); export it again") from None
    if reason := problem_of(state):
        raise StateError(f"{path}: {reason}")
    return state, sha256_hex(raw)


def problem_of(state: MachineState) -> str | None:
    """What does not fit together, and how to fix it; None: all does."""
    counted = Counter(job.job for job in state.jobs)
    if twice := [job for job, count in counted.items() if count > 1]:
        return f"job {twice[0]} is in it {counted[twice[0]]} times: leave one"
    for job in state.jobs:
        if reason := _problem_of_times(job, state.t0_s):
            return f"job {job.job} {reason}"
        if job.stays_s is None:
            return f"job {job.job} has neither request_s nor run_s: give one"
    return _problem_of_nodes(state) if state.source == "partition" else None


def _problem_of_nodes(state: MachineState) -> str | None:
    """Two jobs that run on one node, which a partition does not do."""
    on = dict[str, int]()
    for job in state.jobs:
        for node in job.nodes if job.what == "running" else ():
            if (other := on.setdefault(node, job.job)) != job.job:
                return f"job {job.job} runs on {node}, and so does job {other}: correct one"
    return None


def _problem_of_times(job: StateJob, t0_s: int) -> str | None:
    if job.submit_s >= t0_s:
        return f"is submitted at {job.submit_s} s, and the state is of {t0_s} s: leave it to the log"
    if job.start_s is None:
        return None if job.end_s is None else "has an end_s and no start_s: give both or none"
    if job.start_s >= t0_s:
        return f"starts at {job.start_s} s, and the state is of {t0_s} s: leave its start_s out"
    if job.start_s < job.submit_s:
        return f"starts at {job.start_s} s, before it is submitted at {job.submit_s} s: correct one"
    if job.end_s is not None and not job.start_s <= job.end_s <= t0_s:
        return f"ends at {job.end_s} s, not between its start and the state's {t0_s} s: leave its end_s out"
    if job.done_s is not None and job.done_s > t0_s - job.start_s:
        return f"has done {job.done_s:g} s of its run in {t0_s - job.start_s} s: correct its done_s"
    return None


def wider_than(jobs: Sequence[StateJob], processors: int) -> str | None:
    """Why these jobs do not fit a machine, and what to do; None: they do."""
    for job in jobs:
        if job.what != "ended" and job.width > processors:
            return f"job {job.job} needs {job.width} processors of {processors}: give a larger --machine"
    used = sum(job.width for job in jobs if job.what == "running")
    if used > processors:
        return f"the jobs that run have {used} processors of {processors}: give a larger --machine"
    return None
