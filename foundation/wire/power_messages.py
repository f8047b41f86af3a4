"""Messages about power between a node and its cluster agent: reports up, grants down.

The two sides share these types and nothing else. Power is in whole milliwatts, so that sums of thousands of caps are
exact. Times of a node are its CLOCK_BOOTTIME in nanoseconds, which runs on through suspend and does not depend on the
wall clock. The time at which a report was sent is also its id: of two reports of one boot the one with the greater id
is newer, even if the node's agent restarted between them.

On the wire a message is one frame of MessagePack, ``[version, speaks, kind, body]``. A body is a map: fields that were
added later have defaults, and a peer that does not know them ignores them. Each side writes the oldest version that is
still understood until the first message of the other side, then the newest version that both know. So clusters are
upgraded node by node, in any order, one version at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from foundation.shell.errors import NodectlError, plain_reason

PROTOCOL: Final = 3
"""1: reports and grants. 2: reports also have energy, the requested cap, the load tag and the quality of the power. 3:
messages about jobs (``job_messages``)."""

SPEAKS_JOBS: Final = 3

OLDEST: Final = PROTOCOL - 1

MAX_BYTES: Final = 4096
"""Ours: some eight times the largest message; libzmq disconnects a peer that sends a larger one."""

Milliwatts: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000_000)]
"""Up to a megawatt: no node draws more, and the bound keeps sums of thousands of nodes exact."""

Nanoseconds: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 62)]
Count: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 62)]
Word: TypeAlias = Annotated[str, Meta(max_length=96)]

LeaseClass: TypeAlias = Literal["hw", "os", "sticky"]
"""What ends a lease on the node: the controller itself (``hw``), software with a hardware watchdog behind it (``os``),
or nothing at all: a controller that keeps its last cap whatever happens above it (``sticky``)."""

Effect: TypeAlias = Literal["seen", "provisional", "unseen"]
"""How sure the node is that its newest cap is in force. ``seen``: the limit was read back, is enabled and not overruled
by another interface, and clock or power followed. ``provisional``: nothing followed, but the power stayed below the cap
over a window (an idle node). ``unseen``: neither, or not yet."""

CAP_TOLERANCE: Final = 1.02
"""Ours: a cap counts as kept while the power is at most so many times the cap: RAPL's own step and sensor noise."""


CapBound: TypeAlias = Literal["", "no", "unsure", "yes"]
"""Whether a node is cap-bound: ``yes``, without its cap it would draw more; ``unsure`` while clocks rise to a higher
cap. "": an older agent, which does not say."""


class Declaration(msgspec.Struct, frozen=True):
    """What a node declares of itself, checked by ``nodectl doctor``. Powers in mW, DC, of the whole node.

    ``safe_mw``: the cap that it falls to without a lease; ``boot_mw``: the most it draws from power-on until its agent
    has set a cap; ``settle_ms``: how long its slowest knob takes until a write has its effect; ``watchdog_ms`` (class
    ``os``): how long until the hardware watchdog resets a hung kernel.
    """

    tdp_mw: Milliwatts
    mop_mw: Milliwatts
    safe_mw: Milliwatts
    boot_mw: Milliwatts
    lease_class: LeaseClass
    settle_ms: Annotated[int, Meta(ge=0, le=600_000)] = 500
    watchdog_ms: Annotated[int, Meta(ge=0, le=600_000)] = 0


class Report(msgspec.Struct, frozen=True):
    """A node's state. ``limit_mw`` is the highest cap that may still be in force: the old one until a lower one is
    confirmed.

    ``epoch`` and ``sequence`` name the newest grant whose cap is confirmed (0, 0: none in this boot), ``seen_epoch``
    the newest epoch of any grant. ``power_mw`` is the mean power since the last report; -1: not measured.
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
    is_leaving: bool = False  # it requests to restore its knobs and to run uncapped
    energy_mj: Annotated[int, Meta(ge=-1, lt=1 << 62)] = -1  # drawn in this boot, as far as it was metered; -1: not
    asked_mw: Annotated[int, Meta(ge=-1, le=1_000_000_000)] = -1  # the cap that should be in force; -1: none
    tag: Word = ""  # the load tag that its agent measures; "" where it does not know
    quality: Word = "missing"  # of the power: measured, estimated, ..., missing (pmu.readings.Quality)
    tag_source: Word = ""  # where the tag is from: "measured" by counters; "" with no tag, or from an older agent
    held: CapBound = ""  # whether it was cap-bound since the last report
    # work since this agent's start, of which only ratios mean anything; -1: not all was counted since the last report
    units: Annotated[int, Meta(ge=-1, lt=1 << 62)] = -1  # finished by its one job, as the job reports
    instructions: Annotated[int, Meta(ge=-1, lt=1 << 62)] = -1  # retired by its CPUs
    # more counts of the same kind, for the history of jobs (``cluster_agent.history``)
    cycles: Annotated[int, Meta(ge=-1, lt=1 << 62)] = -1
    stalled_cycles: Annotated[int, Meta(ge=-1, lt=1 << 62)] = -1  # in which a core waited for data
    llc_misses: Annotated[int, Meta(ge=-1, lt=1 << 62)] = -1
    gpu_busy_ms: Annotated[int, Meta(ge=-1, lt=1 << 62)] = -1  # of all GPUs
    gpu_mj: Annotated[int, Meta(ge=-1, lt=1 << 62)] = -1
    # the highest cap of use: the site's own limits allow no more; -1: not known, or from an older agent
    useful_mw: Annotated[int, Meta(ge=-1, le=1_000_000_000)] = -1
    # who has set a limit above the cap, until the cap is confirmed again: a program, or "unknown"; "": nobody, or an
    # older agent. ``limit_mw`` has what that allowed
    raised_by: Word = ""
    # numbers of the jobs that run there without the cluster agent's doing (docs/dardis.md); [] from an older agent
    dispatched: Annotated[list[Annotated[int, Meta(ge=1, lt=1 << 53)]], Meta(max_length=16)] = []
    # the air that the node takes in, in millikelvin: the warmest sensor of it; -1: none, or from an older agent
    inlet_mk: Annotated[int, Meta(ge=-1, le=500_000)] = -1
    # more counts as those of work: what processors, and memory where it has meters of its own, have drawn
    cpu_mj: Annotated[int, Meta(ge=-1, lt=1 << 62)] = -1
    memory_mj: Annotated[int, Meta(ge=-1, lt=1 << 62)] = -1
    # of jobs of the site's manager that are here or have ended lately: mJ so far, constant watts of the node included,
    # and mW now; without those that were not metered well; {} from an older agent (docs/slurm.md)
    site_jobs: Annotated[dict[Word, tuple[Count, Milliwatts]], Meta(max_length=64)] = {}


class Grant(msgspec.Struct, frozen=True):
    """Permission to draw up to ``cap_mw`` until ``lease_ns`` after the node sent report ``report_id``."""

    node: Word
    epoch: Count
    boot_id: Word
    sequence: Count
    cap_mw: Milliwatts
    report_id: Nanoseconds
    lease_ns: Nanoseconds
    is_leave: bool = False  # the node may restore its knobs, and end


class WireError(NodectlError):
    """A frame that is no message; the text says why, for a log."""


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """The frame of every message. ``speaks``: the newest version that the sender knows."""

    version: int
    speaks: int
    kind: str
    body: msgspec.Raw


WORK: Final = (
    "units", "instructions", "cycles", "stalled_cycles", "llc_misses", "gpu_busy_ms", "gpu_mj", "cpu_mj", "memory_mj",
)  # fmt: skip
"""The counts of a ``Report`` that begin with its agent."""

_NONE_LARGER: Final[Mapping[str, int]] = {}


def pack(kind: str, body: msgspec.Struct, peer_speaks: int = OLDEST) -> bytes:
    """Encode one frame, in the newest version that both sides know."""
    return _ENCODER.encode(Envelope(min(PROTOCOL, peer_speaks), PROTOCOL, kind, msgspec.Raw(_ENCODER.encode(body))))


def unpack(frame: bytes, larger: Mapping[str, int] = _NONE_LARGER) -> Envelope:
    """Decode one frame; ``WireError`` for one that is no message of a version known here. ``larger``: the kinds that
    may have more than ``MAX_BYTES``, and their limit."""
    if len(frame) > MAX_BYTES and len(frame) > max(larger.values(), default=0):
        raise WireError(f"a frame of {len(frame)} bytes; at most {MAX_BYTES} are accepted")
    try:
        envelope = _ENVELOPES.decode(frame)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError(f"not a message: {plain_reason(str(error))}") from None
    if len(frame) > larger.get(envelope.kind, MAX_BYTES):
        raise WireError(f"{envelope.kind[:40]!r} of {len(frame)} bytes; at most {MAX_BYTES} are accepted")
    if not OLDEST <= envelope.version <= PROTOCOL or envelope.speaks < envelope.version:
        raise WireError(f"protocol version {envelope.version:d}; versions {OLDEST} to {PROTOCOL} are understood here")
    return envelope


def read_report(envelope: Envelope) -> Report:
    """Decode a report; ``WireError`` for a wrong body or impossible declarations."""
    try:
        report = _REPORTS.decode(envelope.body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError(f"not a report: {plain_reason(str(error))}") from None
    declared = report.declaration
    if not 0 < declared.mop_mw <= declared.tdp_mw or declared.safe_mw > declared.tdp_mw:
        raise WireError(f"impossible: MOP {declared.mop_mw}, safe cap {declared.safe_mw}, TDP {declared.tdp_mw} mW")
    return report


def read_grant(envelope: Envelope) -> Grant:
    """Decode a grant; ``WireError`` for a wrong body."""
    try:
        return _GRANTS.decode(envelope.body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise WireError(f"not a grant: {plain_reason(str(error))}") from None


_ENCODER: Final = msgspec.msgpack.Encoder()
_ENVELOPES: Final = msgspec.msgpack.Decoder(Envelope)
_REPORTS: Final = msgspec.msgpack.Decoder(Report)
_GRANTS: Final = msgspec.msgpack.Decoder(Grant)
