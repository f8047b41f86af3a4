"""Messages about jobs between a node and its cluster agent.

Any message may be lost. The node lists all jobs it knows in every ``NodeJobs``: once a second while it knows any, else
several times a minute, and at once when something has changed or on a ``JobQuery``. The cluster agent repeats each
request until a ``NodeJobs`` shows that it is done. A run of a job is named by ``(job, attempt)``: a node starts each at
most once, keeps its result on disk, and deletes it only on a ``JobForget``, which says that the result is recorded.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from foundation.shell.errors import plain_reason
from foundation.wire.power_messages import Envelope, WireError

Seconds: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 31)]
Number: TypeAlias = Annotated[int, Meta(ge=1, lt=1 << 53)]
Name: TypeAlias = Annotated[str, Meta(max_length=96)]

Text: TypeAlias = Annotated[str, Meta(max_length=1 << 16)]

MAX_PARTS: Final = 16
"""Ours: the most runs in one ``NodeJobs``: the one job that runs, and those whose end is not recorded yet."""

HOOK_S: Final = 60.0
"""Ours: how long a prolog or an epilog may take."""

MAX_START: Final = 1 << 18
"""Ours: bytes of a ``JobStart``: a script of 64 Ki, an environment, and the names of 10 000 nodes."""

UP: Final = {"jobs": 1 << 15}
DOWN: Final = {"job-start": MAX_START}
"""Kinds of message that may be larger than ``power_messages.MAX_BYTES``, and their limit: from nodes, and to them."""

Phase: TypeAlias = Literal["running", "ending", "ended", "refused", "lost"]
"""``ending``: it has to end, by a signal or at its walltime. ``refused``: not started, ``detail`` says why. ``lost``:
it was started, and how it ended is unknown."""

HOW: Final = ("cpuset", "affinity")
"""By what a node keeps jobs to their halves: the first cannot be left, the second is looked at once a second."""

Cause: TypeAlias = Literal["", "walltime", "told"]
"""Why the node ended a job; ``told``: by a signal from the cluster agent."""


class JobStart(msgspec.Struct, frozen=True):
    """Run a job's part on this node: ``command``, or ``script`` if there is one, with ``command`` as its arguments.

    ``nodes`` are all nodes of the job and ``rank`` is this one's place among them. ``output`` and ``error`` are paths,
    relative to ``workdir``; "" as error: the same file. Prolog and epilog are shell commands, "" none. ``half``: 0 or
    1, the half of the node's cores that it has; -1: all of them.
    ``keeps_phases``: the cluster agent keeps what nodes measure of its program (``phase_messages``).
    """

    job: Number
    attempt: Number
    uid: Annotated[int, Meta(ge=0)]
    command: list[str]
    script: Text
    workdir: Text
    output: Text
    error: Text
    env: dict[str, str]
    walltime_s: Seconds
    grace_s: Seconds
    prolog: Text
    epilog: Text
    rank: Annotated[int, Meta(ge=0)]
    nodes: Annotated[list[Name], Meta(min_length=1)]
    tag: Name = ""
    half: Annotated[int, Meta(ge=-1, le=1)] = -1
    keeps_phases: bool = False


class JobSignal(msgspec.Struct, frozen=True):
    """SIGTERM: end the job, and kill it after its grace. SIGKILL: kill it now. Others are passed on to its
    processes."""

    job: Number
    attempt: Number
    signal: Annotated[int, Meta(ge=1, le=64)]


class JobForget(msgspec.Struct, frozen=True):
    """The result of this run is recorded; the node need not keep it."""

    job: Number
    attempt: Number


Message: TypeAlias = JobStart | JobSignal | JobForget
"""What the cluster agent wants of a node's jobs."""

UnixSeconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e11)]
Slowdown: TypeAlias = Annotated[float, Meta(ge=-0.99, le=1e6)]
"""Bounds refuse NaN and infinities too, which JSON cannot store."""


Millijoules: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 53)]


class PartEnergy(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the node drew for a part since the part's start, by the quality of the power, and for how long it was
    metered. Counters that never fall, also when the node's agent restarts: what a lost report had is in the next."""

    measured_mj: Millijoules = 0
    estimated_mj: Millijoules = 0
    stale_mj: Millijoules = 0
    wrapped_mj: Millijoules = 0
    clipped_mj: Millijoules = 0
    metered_ms: Annotated[int, Meta(ge=0, lt=1 << 53)] = 0


class JobPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job's part on a node. ``status``: its exit status, or minus the signal that ended it. Times: Unix seconds."""

    job: Number
    attempt: Number
    phase: Phase
    status: Annotated[int, Meta(ge=-64, le=255)] = 0
    cause: Cause = ""
    started_s: UnixSeconds = 0.0
    ended_s: UnixSeconds = 0.0
    detail: Annotated[str, Meta(max_length=300)] = ""
    slowdown: Slowdown | None = None  # extra time as a share, where the node knows it (of emulated work it does)
    energy: PartEnergy | None = None  # None: an older agent, or the part was never metered

    @property
    def is_over(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.phase in ("ended", "refused", "lost")


class NodeJobs(msgspec.Struct, frozen=True):
    """All job parts that a node knows: those that run, and those that ended and are not forgotten. ``runs_only``: the
    one command that an emulated node runs; "": any command, or an older agent. ``runs_names``: the words that may be
    the first argument of that command; one that ends in a colon is only its beginning. Empty: the node does not say.
    ``refuses``: why it starts no job now; "": it does. ``runs_uid``: the user whose jobs alone it runs; -1: any, or an
    older agent. ``halves``: how it keeps two jobs on the halves of its cores, ``HOW``; "": it does not, or an older
    agent."""

    node: Name
    boot_id: Name
    parts: Annotated[list[JobPart], Meta(max_length=MAX_PARTS)]
    runs_only: Name = ""
    runs_names: Annotated[list[Name], Meta(max_length=64)] = []
    refuses: Annotated[str, Meta(max_length=300)] = ""
    runs_uid: Annotated[int, Meta(ge=-1, lt=1 << 32)] = -1
    halves: Name = ""


class JobQuery(msgspec.Struct, frozen=True):
    """Ask a node to send ``NodeJobs``, now and for as long as this connection lasts. Without it a node sends none."""


KINDS: Final[dict[str, type[Any]]] = {
    "jobs": NodeJobs, "job-start": JobStart, "job-signal": JobSignal, "job-forget": JobForget, "job-query": JobQuery,
}  # fmt: skip


def standard_output(nodes: int) -> str:
    """Where a job of so many nodes writes, if it does not say."""
    return "job-%j.out" if nodes == 1 else "job-%j-%n.out"


def filled(path: str, job: int, attempt: int, rank: int, node: str) -> str:
    """An output's path with the job for %j, the attempt for %a, the node's rank for %n and its name for %N."""
    for mark, text in {"%j": str(job), "%n": str(rank), "%N": node, "%a": str(attempt)}.items():
        path = path.replace(mark, text)
    return path


def kind_of(message: msgspec.Struct) -> str:
    """The message's kind on the wire."""
    return _KIND_OF[type(message)]


def read_job_message(envelope: Envelope) -> Any:
    """Decode a message of one of ``KINDS``; ``WireError`` for a wrong body."""
    try:
        return _DECODERS[envelope.kind].decode(envelope.body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError(f"not a {envelope.kind!r} message: {plain_reason(str(error))}") from None


_KIND_OF: Final = {made: kind for kind, made in KINDS.items()}
_DECODERS: Final = {kind: msgspec.msgpack.Decoder(made) for kind, made in KINDS.items()}
