"""What the agent and its writer process say to each other: typed, versioned, bounded.

One message is one packet of a Unix socket (SOCK_SEQPACKET), MessagePack, at most ``MOST_BYTES``. The agent requests and
the writer answers, one request at a time. Knobs are numbered by the writer's own list, which it computed at its start
and sends in ``Welcome``: a request can name no file and no device, only one of these knobs and a number, and the number
is brought into the knob's range.

``made_ns`` is the time of a request on CLOCK_BOOTTIME, which both processes read and which goes on while the machine is
suspended. A request that is older than its lease when it is read, or while it is carried out, writes nothing.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from foundation.shell.errors import NodectlError, plain_reason
from nodectl.knobs.api import Outcome, Raised

VERSION: Final = 2

MOST_BYTES: Final = 128 * 1024
"""Ours: 384 settings are 3 KiB, 4096 outcomes with short details some 100 KiB; Linux's default socket buffer is 208."""

MOST_KNOBS: Final = 4096
MOST_VALUE: Final = 2**53

LEASE_S: Final = 1.0
"""How long a written knob may stay moved without a renewal, where the agent's period allows so little."""

LONGEST_LEASE_S: Final = 300.0
"""Ours: five times the longest period."""

type_number = Annotated[int, msgspec.Meta(ge=0, lt=MOST_KNOBS)]
type_value = Annotated[int, msgspec.Meta(ge=-MOST_VALUE, le=MOST_VALUE)]
type_clock = Annotated[int, msgspec.Meta(ge=0, lt=100_000)]
type_time = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
type_lease = Annotated[int, msgspec.Meta(ge=1, le=round(LONGEST_LEASE_S * 1000))]
type_name = Annotated[str, msgspec.Meta(max_length=200)]


class ProtocolError(NodectlError):
    """A message that is none of these, or of another version."""


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pass


class Hello(_Message, frozen=True, tag="hello"):
    """First of all: the agent's version of this protocol."""

    version: int


class Start(_Message, frozen=True, tag="start"):
    """Lock the node and put back what a killed run left moved."""


class Apply(_Message, frozen=True, tag="apply"):
    """Bring knobs to values (0: back to the captured one), and renew the lease of each. ``clocks_too``: as
    ``Writer.apply`` takes it."""

    made_ns: type_time
    lease_ms: type_lease
    knobs: Annotated[list[type_number], msgspec.Meta(max_length=MOST_KNOBS)]
    values: Annotated[list[type_value], msgspec.Meta(max_length=MOST_KNOBS)]
    clocks_too: bool = False


class LimitRestores(_Message, frozen=True, tag="limit"):
    """``Writer.limit_restores``. Names, since the node's cap is among them and is no knob."""

    made_ns: type_time
    values: Annotated[dict[type_name, type_value], msgspec.Meta(max_length=MOST_KNOBS)]


class SiteLocks(_Message, frozen=True, tag="site-locks"):
    """The clocks, MHz, that the site has locked its GPUs to (0: not locked), by the name of the knob: the agent finds
    them out under load (``nodectl.write.site_lock``)."""

    values: Annotated[dict[type_name, type_clock], msgspec.Meta(max_length=MOST_KNOBS)]


class Restore(_Message, frozen=True, tag="restore"):
    """Put these knobs back."""

    knobs: Annotated[list[type_number], msgspec.Meta(max_length=MOST_KNOBS)]


class RestoreAll(_Message, frozen=True, tag="restore-all"):
    """Put every knob back."""


class LookAgain(_Message, frozen=True, tag="look-again"):
    """Hardware has come: put every knob back, and find all of this node again. The answer is another ``Welcome``; a
    ``Start`` must follow."""


class PublishJoules(_Message, frozen=True, tag="joules"):
    """Replace the page of what jobs have drawn (``nodectl.site_jobs.joules_page``). It names no file: the writer knows
    where that is."""

    page: Annotated[str, msgspec.Meta(max_length=64 << 10)]


type_request = PublishJoules | LookAgain | Hello | Start | Apply | LimitRestores | SiteLocks | Restore | RestoreAll


class KnobEntry(_Message, frozen=True):
    """One knob that the writer may move. ``path``: its file, where it is one. ``card``: the UUID of its GPU: the two
    processes may number cards otherwise."""

    name: str
    low: int
    high: int
    path: str
    card: str = ""


class Welcome(_Message, frozen=True, tag="welcome"):
    """The answer to ``Hello``. ``n_files``: how many files that only root may read follow in ``Descriptors``."""

    version: int
    pid: int
    knobs: list[KnobEntry]
    n_files: int


class Descriptors(_Message, frozen=True, tag="descriptors"):
    """Files, read-only: the packet carries descriptors of those that could be opened, in this order (SCM_RIGHTS)."""

    paths: list[str]
    is_open: list[bool]


class Started(_Message, frozen=True, tag="started"):
    """The answer to ``Start``: ``Restoration``, and the writer's state. ``ceilings`` and ``site``: ``values`` and
    ``site`` of ``nodectl.write.ceilings.Ceilings``."""

    outcomes: list[Outcome]
    remarks: list[str]
    captured: dict[str, str]
    restore_limits: dict[str, int]
    ceilings: dict[str, int]
    site: dict[str, int]


class Applied(_Message, frozen=True, tag="applied"):
    """The answer to ``Apply``: which knobs were written, and the outcomes of those that were neither written nor
    unchanged. ``expired``: knobs that were put back since the last answer because their lease was over. ``ceilings``
    and ``site``: what is lower now than in the last answer. ``raised``: ``Writer.take_raised``."""

    written: list[int]
    others: list[Outcome]
    expired: int
    ceilings: dict[str, int]
    site: dict[str, int]
    raised: dict[str, Raised] = {}


class Outcomes(_Message, frozen=True, tag="outcomes"):
    """The answer to ``Restore`` and ``RestoreAll``."""

    outcomes: list[Outcome]


class Done(_Message, frozen=True, tag="done"):
    """The answer to ``LimitRestores``, ``SiteLocks`` and ``PublishJoules``."""


class Failed(_Message, frozen=True, tag="failed"):
    """Any request may fail. ``kind``: "lock", "save", "request"; "stopped": the writer ends, all knobs are back."""

    kind: str
    message: str


type_reply = Welcome | Descriptors | Started | Applied | Outcomes | Done | Failed

_ENCODER: Final = msgspec.msgpack.Encoder()
_REQUESTS: Final[msgspec.msgpack.Decoder[type_request]] = msgspec.msgpack.Decoder(type_request)
_REPLIES: Final[msgspec.msgpack.Decoder[type_reply]] = msgspec.msgpack.Decoder(type_reply)


def encode(message: type_request | type_reply) -> bytes:
    """One packet. Details are left out where it would be too long; ``ProtocolError`` if it still is."""
    data = _ENCODER.encode(message)
    if len(data) > MOST_BYTES and isinstance(message, Applied | Outcomes | Started):
        data = _ENCODER.encode(_without_details(message))
    if len(data) > MOST_BYTES:
        raise ProtocolError(f"a message of {len(data)} bytes; at most {MOST_BYTES} are sent")
    return data


def decode_request(data: bytes) -> type_request:
    """What an agent sent; ``ProtocolError`` for anything else."""
    try:
        request = _REQUESTS.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"not a request to the writer: {plain_reason(str(error))}") from None
    if isinstance(request, Apply) and len(request.knobs) != len(request.values):
        raise ProtocolError("not a request to the writer: as many knobs as values are needed")
    return request


def decode_reply(data: bytes) -> type_reply:
    """What a writer sent; ``ProtocolError`` for anything else."""
    try:
        return _REPLIES.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"not an answer of the writer: {plain_reason(str(error))}") from None


def _without_details(message: Applied | Outcomes | Started) -> type_reply:
    def short(outcomes: list[Outcome]) -> list[Outcome]:
        return [Outcome(outcome.knob, outcome.status, "", outcome.reason, outcome.by) for outcome in outcomes]

    if isinstance(message, Applied):
        return msgspec.structs.replace(message, others=short(message.others))
    return msgspec.structs.replace(message, outcomes=short(message.outcomes))
