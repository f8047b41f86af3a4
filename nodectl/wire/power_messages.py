"""What a node and the cluster agent tell each other about power: reports up, grants down.

Both sides read these types and nothing of each other. Watts travel as whole milliwatts, so that sums of thousands of
caps are exact. A node's clock is its CLOCK_BOOTTIME in nanoseconds, which goes on through suspend and knows no wall
clock; the time at which a report was sent is also its name, so a report is newer than another of the same boot if its
name is greater, also across restarts of the node's agent.

On the wire a message is one frame of MessagePack, ``[version, speaks, kind, body]``. A body is a map, so that a field
that came later, which always has a default, is passed over by those who do not know it. Each side writes the oldest
version that is still understood until it has heard what the other speaks, then the newest that both do: so clusters
are upgraded node by node, in any order, one version at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from nodectl.shell.errors import NodectlError

PROTOCOL: Final = 3
"""1: reports and grants. 2: reports also carry energy, the cap asked, the tag and the quality of the power. 3: messages
about jobs (``job_wire``)."""

SPEAKS_JOBS: Final = 3

OLDEST: Final = PROTOCOL - 1

MAX_BYTES: Final = 4096
"""Ours: some eight times the largest message; a peer that sends a larger one is disconnected by its size alone."""

Milliwatts: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000_000)]
"""Up to a megawatt: whatever is more is no node, and sums of it could not be trusted."""

Nanoseconds: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 62)]
Count: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 62)]
Word: TypeAlias = Annotated[str, Meta(max_length=96)]

LeaseClass: TypeAlias = Literal["hw", "os", "sticky"]
"""What ends a lease on the node: the controller itself (``hw``), software with a hardware watchdog behind it (``os``),
or nothing at all: a controller that keeps its last cap whatever happens above it (``sticky``)."""

Effect: TypeAlias = Literal["seen", "provisional", "unseen"]
"""How sure the node is that its newest cap acts. ``seen``: limit read back, enabled, not shadowed by another interface,
and clock or power followed. ``provisional``: nothing followed, but the draw stayed below the cap over a window (an
idle node). ``unseen``: neither, or not yet."""

CAP_TOLERANCE: Final = 1.02
"""Ours: a draw up to so many times a cap keeps it: RAPL's own step and the sensors' noise."""


Held: TypeAlias = Literal["", "no", "unsure", "yes"]
"""Whether a cap holds a node back: ``yes``, it would draw more; ``unsure`` while clocks come back to a higher cap. "":
an older agent, which does not say."""


class Declaration(msgspec.Struct, frozen=True):
    """What a node says of itself, and ``doctor`` checks. Powers in mW, DC, of the whole node.

    ``safe_mw`` is what the node falls to without a lease; ``boot_mw`` the most it draws from power-on until its agent
    has set a cap; ``settle_ms`` how long its slowest knob takes to act, ``watchdog_ms`` (class ``os``) how long until
    the hardware watchdog resets a hung kernel.
    """

    tdp_mw: Milliwatts
    mop_mw: Milliwatts
    safe_mw: Milliwatts
    boot_mw: Milliwatts
    lease_class: LeaseClass
    settle_ms: Annotated[int, Meta(ge=0, le=600_000)] = 500
    watchdog_ms: Annotated[int, Meta(ge=0, le=600_000)] = 0


class Report(msgspec.Struct, frozen=True):
    """A node's state. ``limit_mw`` is the highest cap that may still act: the old one until a lower one is confirmed.

    ``epoch`` and ``sequence`` name the newest grant whose cap is confirmed (0, 0: none in this boot), ``seen_epoch``
    the newest epoch heard of. ``power_mw`` is the mean draw since the report before; -1: not measured.
    """

    node: Word
    boot_id: Word
    report_id: Nanoseconds  # CLOCK_BOOTTIME of the node at sending
    seen_epoch: Count
    epoch: Count
    sequence: Count
    limit_mw: Milliwatts
    effect: Effect
    power_mw: Annotated[int, Meta(ge=-1, le=1_000_000_000)]
    declaration: Declaration
    is_leaving: bool = False  # it asks to put back what it found and to go uncapped
    energy_mj: Annotated[int, Meta(ge=-1, lt=1 << 62)] = -1  # drawn since this agent's start; -1: not measured
    asked_mw: Annotated[int, Meta(ge=-1, le=1_000_000_000)] = -1  # the cap that should act; -1: none
    tag: Word = ""  # what the node's load is, as its agent sees it; "" when it does not
    quality: Word = "missing"  # of the power: measured, estimated, ..., missing (pmu.readings.Quality)
    tag_source: Word = ""  # where the tag is from: "measured" by counters; "" with no tag, or from an older agent
    held: Held = ""  # whether its cap has held it back since the report before
    # work since this agent's start, of which only ratios mean anything; -1: not all counted since the report before
    units: Annotated[int, Meta(ge=-1, lt=1 << 62)] = -1  # finished by its one job, as that says
    instructions: Annotated[int, Meta(ge=-1, lt=1 << 62)] = -1  # retired by its CPUs


class Grant(msgspec.Struct, frozen=True):
    """Leave to draw up to ``cap_mw`` until ``lease_ns`` after the node sent report ``report_id``, and not longer."""

    node: Word
    epoch: Count
    boot_id: Word
    sequence: Count
    cap_mw: Milliwatts
    report_id: Nanoseconds
    lease_ns: Nanoseconds
    is_leave: bool = False  # the node may put back what it found, and end


class WireError(NodectlError):
    """A frame that is no message; the text says why, for a log."""


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """What is around every message. ``speaks``: the newest version that the sender knows."""

    version: int
    speaks: int
    kind: str
    body: msgspec.Raw


_NONE_LARGER: Final[Mapping[str, int]] = {}


def pack(kind: str, body: msgspec.Struct, peer_speaks: int = OLDEST) -> bytes:
    """One frame, in the newest version that both sides know."""
    return _ENCODER.encode(Envelope(min(PROTOCOL, peer_speaks), PROTOCOL, kind, msgspec.Raw(_ENCODER.encode(body))))


def unpack(frame: bytes, larger: Mapping[str, int] = _NONE_LARGER) -> Envelope:
    """``WireError`` for what is no message of a version known here. ``larger``: kinds that may have more than
    ``MAX_BYTES``, and how many."""
    if len(frame) > MAX_BYTES and len(frame) > max(larger.values(), default=0):
        raise WireError(f"a frame of {len(frame)} bytes; at most {MAX_BYTES} are taken")
    try:
        envelope = _ENVELOPES.decode(frame)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError(f"no message: {error}") from None
    if len(frame) > larger.get(envelope.kind, MAX_BYTES):
        raise WireError(f"{envelope.kind[:40]!r} of {len(frame)} bytes; at most {MAX_BYTES} are taken")
    if not OLDEST <= envelope.version <= PROTOCOL or envelope.speaks < envelope.version:
        raise WireError(f"protocol version {envelope.version:d}; versions {OLDEST} to {PROTOCOL} are understood here")
    return envelope


def read_report(envelope: Envelope) -> Report:
    """``WireError`` for a body that is no believable report."""
    try:
        report = _REPORTS.decode(envelope.body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError(f"no report: {error}") from None
    declared = report.declaration
    if not 0 < declared.mop_mw <= declared.tdp_mw or declared.safe_mw > declared.tdp_mw:
        raise WireError(f"no node has MOP {declared.mop_mw}, safe cap {declared.safe_mw}, TDP {declared.tdp_mw} mW")
    return report


def read_grant(envelope: Envelope) -> Grant:
    """``WireError`` for a body that is no grant."""
    try:
        return _GRANTS.decode(envelope.body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError(f"no grant: {error}") from None


_ENCODER: Final = msgspec.msgpack.Encoder()
_ENVELOPES: Final = msgspec.msgpack.Decoder(Envelope)
_REPORTS: Final = msgspec.msgpack.Decoder(Report)
_GRANTS: Final = msgspec.msgpack.Decoder(Grant)
