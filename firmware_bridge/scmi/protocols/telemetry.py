"""Vendor protocol 0x80 of our ControlPULP firmware: telemetry, and leases on requests.

The layouts are those of ``firmware_bridge/controlpulp/src/scmi_telemetry.c``, and the reasons the ``enum reason`` of
its ``chip.h``. SCMI requests stay until they are changed. An agent whose requests must not outlive it sets a lease: a
lease of silence, which each of its messages renews, or one with a set end on the controller's clock, which messages do
not renew. The default is no lease.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final, Self

from firmware_bridge.errors import MessageError
from firmware_bridge.scmi.messages.message import Body, Command, command, notification, response
from firmware_bridge.scmi.messages.value_layout import I32, U32, Bits, Word, unpack_word
from firmware_bridge.scmi.protocols import vendor
from firmware_bridge.scmi.protocols.common import ATTRIBUTES

TELEMETRY: Final = 0x80
vendor.VERSIONS[TELEMETRY] = 0x10000

NO_MARGIN_MW: Final = 0x7FFFFFFF
"""The cap margin while there is no cap."""

REASONS: Final = (
    "core power",
    "package cap",
    "domain cap",
    "thermal",
    "emergency",
    "voltage",
    "sensor substituted",
    "bypass",
    "safe state",
    "sensors contradict",
    "own step",
)
"""Names of the bits of a core's reasons, lowest first."""

FAULTS: Final = (
    "package and domain power differ",
    "power contradicts activity",
    "power stays above a cap",
    "temperatures contradict power",
    "temperature sensors failed",
)
"""Names of the bits of the controller's sensor faults, lowest first."""


@response(TELEMETRY, ATTRIBUTES, "TELEMETRY_PROTOCOL_ATTRIBUTES")
class TelemetryAttributesResponse(Body, frozen=True):
    """Number of cores and of voltage domains."""

    attributes: Annotated[int, Word("I", (Bits("cores", 0, 8), Bits("domains", 8, 8)))]


@command(TELEMETRY, ATTRIBUTES, "TELEMETRY_PROTOCOL_ATTRIBUTES")
class TelemetryAttributes(Command[TelemetryAttributesResponse], frozen=True):
    """Request the size of the chip."""


@response(TELEMETRY, 0x3, "TELEMETRY_STATUS")
class TelemetryStatusResponse(Body, frozen=True):
    """Status of the controller; counters wrap."""

    build: U32
    slots: U32
    merged_fast: U32
    merged_control: U32
    margin_mw: I32
    failed_checks: U32
    bypasses: U32
    lost_events: U32
    transport_errors: U32
    commands: U32


@command(TELEMETRY, 0x3, "TELEMETRY_STATUS")
class TelemetryStatus(Command[TelemetryStatusResponse], frozen=True):
    """Request the status of the controller."""


@response(TELEMETRY, 0x4, "TELEMETRY_REASONS")
class TelemetryReasonsResponse(Body, frozen=True):
    """Why each core is slower than requested: one bitmap of 16 bits per core."""

    reasons: tuple[int, ...]

    def pack_payload(self) -> bytes:
        """Count, then two bitmaps to a word."""
        if not all(0 <= reason < 1 << 16 for reason in self.reasons):
            raise MessageError(f"reasons {self.reasons} are not all in 0..65535")
        count = len(self.reasons)
        return struct.pack(f"<I{count}H{count % 2 * 2}x", count, *self.reasons)

    @classmethod
    def unpack_payload(cls, payload: bytes) -> Self:
        """The inverse of ``pack_payload``."""
        count = unpack_word(payload, "reasons")
        if len(payload) != 4 + (count + 1) // 2 * 4:
            raise MessageError(f"reasons: announces {count} cores, has {len(payload) - 4} bytes")
        return cls(struct.unpack_from(f"<{count}H", payload, 4))


@command(TELEMETRY, 0x4, "TELEMETRY_REASONS")
class TelemetryReasons(Command[TelemetryReasonsResponse], frozen=True):
    """Request the reasons of the cores from the ``first`` on."""

    first: U32


@response(TELEMETRY, 0x5, "TELEMETRY_LEASE_SET")
class LeaseSetResponse(Body, frozen=True):
    """Accepted."""


@command(TELEMETRY, 0x5, "TELEMETRY_LEASE_SET")
class LeaseSet(Command[LeaseSetResponse], frozen=True):
    """Set this agent's lease of silence; period 0: none. On expiry the package cap falls to ``cap_mw`` (0: it is
    withdrawn)."""

    period_ms: U32
    cap_mw: U32


@response(TELEMETRY, 0x6, "TELEMETRY_LEASE_GET")
class LeaseGetResponse(Body, frozen=True):
    """This agent's lease of silence."""

    period_ms: U32
    cap_mw: U32


@command(TELEMETRY, 0x6, "TELEMETRY_LEASE_GET")
class LeaseGet(Command[LeaseGetResponse], frozen=True):
    """Request this agent's lease of silence."""


@response(TELEMETRY, 0x7, "TELEMETRY_LEASE_UNTIL")
class LeaseUntilResponse(Body, frozen=True):
    """Accepted."""


@command(TELEMETRY, 0x7, "TELEMETRY_LEASE_UNTIL")
class LeaseUntil(Command[LeaseUntilResponse], frozen=True):
    """From ``end_ms`` of the controller's clock on the package cap is at most ``cap_mw``, whatever this agent requests,
    until it sets another lease; ``cap_mw`` 0: no lease. An end in the past means now."""

    end_ms: U32
    cap_mw: U32


@response(TELEMETRY, 0x8, "TELEMETRY_LEASE_LEFT")
class LeaseLeftResponse(Body, frozen=True):
    """The controller's clock, the time left of this agent's lease (0: ended, or none), and its cap (0: none)."""

    now_ms: U32
    left_ms: U32
    cap_mw: U32


@command(TELEMETRY, 0x8, "TELEMETRY_LEASE_LEFT")
class LeaseLeft(Command[LeaseLeftResponse], frozen=True):
    """Request the clock and the lease."""


@response(TELEMETRY, 0x9, "TELEMETRY_FAULTS")
class FaultsResponse(Body, frozen=True):
    """Contradictions of sensors (``FAULTS``): now, and all since the start; how often the safe level began, and the
    control slots that it still lasts (0: not in force)."""

    now: U32
    ever: U32
    alarms: U32
    slots_left: U32


@command(TELEMETRY, 0x9, "TELEMETRY_FAULTS")
class Faults(Command[FaultsResponse], frozen=True):
    """Request the contradictions of sensors."""


@response(TELEMETRY, 0xA, "TELEMETRY_FAULTS_NOTIFY")
class FaultsNotifyResponse(Body, frozen=True):
    """Accepted."""


@command(TELEMETRY, 0xA, "TELEMETRY_FAULTS_NOTIFY")
class FaultsNotify(Command[FaultsNotifyResponse], frozen=True):
    """Bit 0: report when contradictions, or the safe level, come and go."""

    enable: U32


@notification(TELEMETRY, 0x0, "TELEMETRY_FAULTS_CHANGED")
class FaultsChanged(Body, frozen=True):
    """Contradictions of sensors have come or gone; agent 0 is the platform itself."""

    agent: U32
    now: U32
    is_safe: U32
