"""Messages of managers as bytes on a link: ``[kind, body, program]`` in MessagePack, checked while they are decoded.

A confirmation brings the program along, since the node's journal must have it before the node accepts.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from cluster_agent.dispatch import messages as m
from foundation.shell.errors import plain_reason
from foundation.wire.dispatch_messages import LARGEST
from foundation.wire.job_messages import Name, Seconds, Text
from foundation.wire.power_messages import WireError

MOST: Final = 1 << 40
"""Ours: no number of a message is further from 0, so that no sum of them leaves 64 bits."""
MOST_SLOTS: Final = 1 << 20
MOST_SPANS: Final = 4096


class Program(msgspec.Struct, frozen=True):
    """What a job runs on each of its nodes (``foundation.wire.job_messages.JobStart``)."""

    command: list[str]
    script: Text
    workdir: Text
    output: Text
    error: Text
    env: dict[str, str]
    walltime_s: Seconds
    grace_s: Seconds
    prolog: Text = ""
    epilog: Text = ""
    tag: Name = ""


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """On the wire."""

    kind: Annotated[str, Meta(max_length=40)]
    body: msgspec.Raw
    program: Program | None = None


FROM_TASKS: Final = (m.Submit, m.Confirm, m.Release, m.Start, m.Cancel, m.Closed)
FROM_NODES: Final = (m.Join, m.Joined, m.NotJoined, m.Begin, m.Begun, m.Left, m.End, m.Lost)
TO_TASKS: Final = (m.Candidates, m.Accepted, m.Refused, m.Started, m.Ended, m.Hint)
_KINDS: Final[dict[str, type[Any]]] = {one.__name__: one for one in (*FROM_TASKS, *FROM_NODES, *TO_TASKS)}
_DECODERS: Final = {kind: msgspec.msgpack.Decoder(made) for kind, made in _KINDS.items()}
_FRAMES: Final = msgspec.msgpack.Decoder(Frame)
_ENCODER: Final = msgspec.msgpack.Encoder()
LARGEST_FRAME: Final = 2 * LARGEST


def frame_of(message: m.Message, program: Program | None = None) -> bytes:
    """Ready to send."""
    return _ENCODER.encode(Frame(type(message).__name__, msgspec.Raw(_ENCODER.encode(message)), program))


def read_frame(frame: bytes) -> tuple[m.Message, Program | None]:
    """The message, and the program that a confirmation brings; ``WireError`` in one line for anything else."""
    if len(frame) > LARGEST_FRAME:
        raise WireError(f"a frame of {len(frame)} bytes; at most {LARGEST_FRAME} are accepted")
    try:
        found = _FRAMES.decode(frame)
        if found.kind not in _DECODERS:
            raise WireError(f"kind {found.kind!r} is not known here")
        message = _DECODERS[found.kind].decode(found.body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError(f"not a message: {plain_reason(str(error))}") from None
    is_number = 1 <= message.job < 1 << 53 and 1 <= message.attempt < 1 << 53  # as of ``JobStart``
    if not (is_number and _is_sane(msgspec.to_builtins(message))) or (
        isinstance(message, m.Submit) and not _is_request(message)
    ):
        raise WireError(f"a {found.kind} with numbers that cannot be")
    return message, found.program


def _is_sane(value: Any) -> bool:
    if isinstance(value, dict):
        return all(key in ("seed", "clock_us", "job") or _is_sane(one) for key, one in value.items())
    if isinstance(value, list | tuple):
        return len(value) <= MOST_SPANS and all(map(_is_sane, value))
    return not isinstance(value, int | float) or -MOST <= value <= MOST


def _is_request(message: m.Submit) -> bool:
    """One that a node can answer in a moment."""
    need, window = message.need, message.window
    is_window = 1 <= window.length <= MOST_SLOTS and 0 <= window.first < window.last <= window.first + MOST_SLOTS
    return is_window and 1 <= message.starts <= MOST_SPANS and need.cores >= 0 and need.mw >= 0


def fits_window(message: m.Candidates, window: tuple[int, int, int]) -> bool:
    """Whether a node has offered starts of the requested window alone."""
    _, first, last = window
    return all(first <= begin < end <= last for begin, end, _ in message.spans)
