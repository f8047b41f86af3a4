"""Between a node's agent and its node manager, the process that dispatches without a centre (docs/dardis.md).

They are parent and child and share a pair of Unix sockets, on which each packet is one frame of ``power_messages``.
The agent sends ``Lease`` and ``NodeJobs``, at least once a second; the node manager sends what a cluster agent would
send about jobs (``job_messages.Message``). The child ends when the pair is closed.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from foundation.shell.errors import plain_reason
from foundation.wire.job_messages import KINDS, MAX_START
from foundation.wire.power_messages import Envelope, Milliwatts, Nanoseconds, WireError, pack, unpack

LARGEST: Final = 1 << 16
"""Ours: bytes of a job's command, script and environment, so that its start fits a packet."""

FIRST_JOB: Final = 1 << 32
LAST_JOB: Final = 1 << 52
"""Numbers of jobs that are dispatched without a centre: a head counts its own from 1."""


class Lease(msgspec.Struct, frozen=True):
    """The node may draw ``cap_mw`` for ``left_ns`` from now on; 0: its lease is over, or it never had one."""

    cap_mw: Milliwatts
    left_ns: Nanoseconds


class ManagerSettings(msgspec.Struct, frozen=True):
    """What a node manager is started with. ``directory``: of ``nodes.toml`` and ``allowed``; ``key``: the node's own
    pair; ``journal``: a directory of its own; powers in mW, as the node declares them. ``user``: whom the node manager
    becomes if its agent is root; "": nobody else."""

    node: str
    listen: str
    directory: str
    key: str
    journal: str
    tdp_mw: int
    safe_mw: int
    user: str = ""


_KINDS: Final[dict[str, type[Any]]] = {**KINDS, "lease": Lease}
_KIND_OF: Final = {made: kind for kind, made in _KINDS.items()}
_DECODERS: Final = {kind: msgspec.msgpack.Decoder(made) for kind, made in _KINDS.items()}
_LARGER: Final = {"jobs": MAX_START, "job-start": MAX_START}


def packet(message: msgspec.Struct) -> bytes:
    """A packet of the pair."""
    return pack(_KIND_OF[type(message)], message)


def read_packet(frame: bytes) -> Any:
    """The message in a packet; ``WireError`` for none."""
    envelope: Envelope = unpack(frame, _LARGER)
    if envelope.kind not in _DECODERS:
        raise WireError(f"kind {envelope.kind[:40]!r} is not known here")
    try:
        return _DECODERS[envelope.kind].decode(envelope.body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError(f"not a {envelope.kind!r} message: {plain_reason(str(error))}") from None
