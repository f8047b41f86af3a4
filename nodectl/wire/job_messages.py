"""What a node and the cluster agent tell each other about jobs.

Nothing here counts on a message to arrive. The node names all jobs it knows in every ``NodeJobs``, once a second while
it knows any, else several times a minute, and at once when something has changed or it is asked; the cluster agent
repeats what it wants until it sees it done. A job's run is named by ``(job, attempt)``: a node starts each at most
once, keeps what came of it on its disk, and forgets it only when it is told that this is recorded.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from nodectl.wire.power_messages import Envelope, WireError

Seconds: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 31)]
Number: TypeAlias = Annotated[int, Meta(ge=1, lt=1 << 53)]
Name: TypeAlias = Annotated[str, Meta(max_length=96)]

Text: TypeAlias = Annotated[str, Meta(max_length=1 << 16)]

MAX_PARTS: Final = 16
"""Ours: runs that a node speaks of. It has one job at a time, and those whose end is not recorded yet."""

MAX_START: Final = 1 << 18
"""Ours: bytes of a ``JobStart``: a script of 64 Ki, an environment, and the names of 10 000 nodes."""

UP: Final = {"jobs": 1 << 15}
DOWN: Final = {"job-start": MAX_START}
"""What may be larger than ``wire.MAX_BYTES``, by kind: from nodes, and to them."""

Phase: TypeAlias = Literal["running", "ending", "ended", "refused", "lost"]
"""``ending``: told to end, or its walltime is over. ``refused``: not started, ``detail`` says why. ``lost``: it was
started and what became of it cannot be known."""

Cause: TypeAlias = Literal["", "walltime", "told"]
"""Why a job was ended by the node."""


class JobStart(msgspec.Struct, frozen=True):
    """Run a job's part on this node: ``command``, or ``script`` if there is one, with ``command`` as its arguments.

    ``nodes`` are all nodes of the job and ``rank`` is this one's place among them. ``output`` and ``error`` are paths,
    relative to ``workdir``; "" as error: the same file. Prolog and epilog are shell commands, "" none.
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


class JobSignal(msgspec.Struct, frozen=True):
    """SIGTERM: end it, and kill it after its grace. SIGKILL: kill it now. Others are passed on to its processes."""

    job: Number
    attempt: Number
    signal: Annotated[int, Meta(ge=1, le=64)]


class JobForget(msgspec.Struct, frozen=True):
    """What came of this is recorded; the node need not keep it."""

    job: Number
    attempt: Number


UnixSeconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e11)]
Slowdown: TypeAlias = Annotated[float, Meta(ge=-0.99, le=1e6)]
"""Bounds refuse NaN and infinities too, which JSON cannot store."""


class JobPart(msgspec.Struct, frozen=True):
    """A job's part on a node. ``status``: its exit status, or minus the signal that ended it. Times: Unix seconds."""

    job: Number
    attempt: Number
    phase: Phase
    status: Annotated[int, Meta(ge=-64, le=255)] = 0
    cause: Cause = ""
    started_s: UnixSeconds = 0.0
    ended_s: UnixSeconds = 0.0
    detail: Annotated[str, Meta(max_length=300)] = ""
    slowdown: Slowdown | None = None  # extra time as a share, where the node can tell (emulated work can)


class NodeJobs(msgspec.Struct, frozen=True):
    """All parts of jobs that a node knows, running and not forgotten. ``runs_only``: the one command that it runs, as
    an emulated node does; "" any, or an older agent. ``runs_names``: what that command's first word may be, or,
    ending in a colon, begin with; none where the node does not say."""

    node: Name
    boot_id: Name
    parts: Annotated[list[JobPart], Meta(max_length=MAX_PARTS)]
    runs_only: Name = ""
    runs_names: Annotated[list[Name], Meta(max_length=64)] = []


class JobQuery(msgspec.Struct, frozen=True):
    """Say which jobs you know, from now on for as long as this connection lasts. Who is not asked says nothing."""


KINDS: Final[dict[str, type[Any]]] = {
    "jobs": NodeJobs, "job-start": JobStart, "job-signal": JobSignal, "job-forget": JobForget, "job-query": JobQuery,
}  # fmt: skip


def kind_of(message: msgspec.Struct) -> str:
    """Its kind on the wire."""
    return _KIND_OF[type(message)]


def read_job_message(envelope: Envelope) -> Any:
    """A message of one of ``KINDS``; ``WireError`` for a body that is none."""
    try:
        return _DECODERS[envelope.kind].decode(envelope.body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError(f"no message {envelope.kind!r}: {error}") from None


_KIND_OF: Final = {made: kind for kind, made in KINDS.items()}
_DECODERS: Final = {kind: msgspec.msgpack.Decoder(made) for kind, made in KINDS.items()}
