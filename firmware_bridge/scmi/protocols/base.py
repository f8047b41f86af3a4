"""Base protocol 0x10, versions 0x20000 and 0x20001 (DEN0056 4.2): identity of the platform, its protocols and agents.

The two versions differ only by NEGOTIATE_PROTOCOL_VERSION, which 0x20001 has.
"""

from __future__ import annotations

import struct
from typing import Annotated, Self

import msgspec

from firmware_bridge.errors import MessageError
from firmware_bridge.scmi.messages.header import Protocol
from firmware_bridge.scmi.messages.message import Body, Command, command, notification, response
from firmware_bridge.scmi.messages.value_layout import (
    I32,
    U32,
    Bits,
    Fixed,
    Name16,
    Word,
    check_count,
    pack_entries,
    unpack_entries,
    unpack_word,
)
from firmware_bridge.scmi.protocols.common import ATTRIBUTES

BASE = Protocol.BASE
THIS_AGENT = 0xFFFFFFFF
"""In BASE_DISCOVER_AGENT: the agent that sends the command (version 0x20000 on)."""


@response(BASE, ATTRIBUTES, "BASE_PROTOCOL_ATTRIBUTES")
class BaseAttributesResponse(Body, frozen=True):
    """Number of protocols without base, and number of agents."""

    attributes: Annotated[int, Word("I", (Bits("protocols", 0, 8), Bits("agents", 8, 8)))]

    @property
    def protocols(self) -> int:
        """Number of protocols without base."""
        return self.attributes & 0xFF

    @property
    def agents(self) -> int:
        """Number of agents."""
        return self.attributes >> 8 & 0xFF


@command(BASE, ATTRIBUTES, "BASE_PROTOCOL_ATTRIBUTES")
class BaseAttributes(Command[BaseAttributesResponse], frozen=True):
    """Request the numbers of protocols and agents."""


@response(BASE, 0x3, "BASE_DISCOVER_VENDOR")
class DiscoverVendorResponse(Body, frozen=True):
    """The vendor's name."""

    name: Name16


@command(BASE, 0x3, "BASE_DISCOVER_VENDOR")
class DiscoverVendor(Command[DiscoverVendorResponse], frozen=True):
    """Request the vendor."""


@response(BASE, 0x4, "BASE_DISCOVER_SUB_VENDOR")
class DiscoverSubVendorResponse(Body, frozen=True):
    """The sub-vendor's name."""

    name: Name16


@command(BASE, 0x4, "BASE_DISCOVER_SUB_VENDOR")
class DiscoverSubVendor(Command[DiscoverSubVendorResponse], frozen=True):
    """Request the sub-vendor."""


@response(BASE, 0x5, "BASE_DISCOVER_IMPLEMENTATION_VERSION")
class DiscoverImplementationResponse(Body, frozen=True):
    """A number that the vendor defines."""

    version: U32


@command(BASE, 0x5, "BASE_DISCOVER_IMPLEMENTATION_VERSION")
class DiscoverImplementation(Command[DiscoverImplementationResponse], frozen=True):
    """Request the firmware's own version."""


@response(BASE, 0x6, "BASE_DISCOVER_LIST_PROTOCOLS")
class ListProtocolsResponse(Body, frozen=True):
    """Protocol ids, ascending, four to a word with the lowest byte first, unused bytes 0."""

    protocols: tuple[int, ...]

    def pack_payload(self) -> bytes:
        """Count, then the ids in whole words."""
        if not all(0 < protocol < 256 for protocol in self.protocols):
            raise MessageError(f"protocols {self.protocols} are not all in 1..255")
        count = len(self.protocols)
        return struct.pack("<I", count) + bytes(self.protocols).ljust(-(-count // 4) * 4, b"\0")

    @classmethod
    def unpack_payload(cls, payload: bytes) -> Self:
        """Checks the exact length, since Linux rejects a shorter list."""
        count = unpack_word(payload, "list of protocols")
        if len(payload) != 4 + -(-count // 4) * 4:
            raise MessageError(f"list of protocols: announces {count}, has {len(payload) - 4} bytes")
        listed = tuple(payload[4 : 4 + count])
        if 0 in listed or any(payload[4 + count :]):
            raise MessageError(f"list of protocols: {payload[4:].hex(' ')} is not {count} ids and padding")
        return cls(listed)


@command(BASE, 0x6, "BASE_DISCOVER_LIST_PROTOCOLS")
class ListProtocols(Command[ListProtocolsResponse], frozen=True):
    """Request the protocols after the first ``skip``."""

    skip: U32


@response(BASE, 0x7, "BASE_DISCOVER_AGENT")
class DiscoverAgentResponse(Body, frozen=True):
    """An agent's number and name."""

    agent: U32
    name: Name16


@command(BASE, 0x7, "BASE_DISCOVER_AGENT")
class DiscoverAgent(Command[DiscoverAgentResponse], frozen=True):
    """Request an agent's name; ``THIS_AGENT`` for one's own."""

    agent: U32


@response(BASE, 0x8, "BASE_NOTIFY_ERRORS")
class NotifyErrorsResponse(Body, frozen=True):
    """Accepted."""


@command(BASE, 0x8, "BASE_NOTIFY_ERRORS")
class NotifyErrors(Command[NotifyErrorsResponse], frozen=True):
    """Bit 0: report errors by BASE_ERROR_EVENT."""

    enable: U32


@response(BASE, 0x9, "BASE_SET_DEVICE_PERMISSIONS")
class SetDevicePermissionsResponse(Body, frozen=True):
    """Accepted."""


@command(BASE, 0x9, "BASE_SET_DEVICE_PERMISSIONS")
class SetDevicePermissions(Command[SetDevicePermissionsResponse], frozen=True):
    """Flags bit 0: allow."""

    agent: U32
    device: U32
    flags: U32


@response(BASE, 0xA, "BASE_SET_PROTOCOL_PERMISSIONS")
class SetProtocolPermissionsResponse(Body, frozen=True):
    """Accepted."""


@command(BASE, 0xA, "BASE_SET_PROTOCOL_PERMISSIONS")
class SetProtocolPermissions(Command[SetProtocolPermissionsResponse], frozen=True):
    """Flags bit 0: allow."""

    agent: U32
    device: U32
    target_protocol: U32
    flags: U32


@response(BASE, 0xB, "BASE_RESET_AGENT_CONFIGURATION")
class ResetAgentConfigurationResponse(Body, frozen=True):
    """Accepted."""


@command(BASE, 0xB, "BASE_RESET_AGENT_CONFIGURATION")
class ResetAgentConfiguration(Command[ResetAgentConfigurationResponse], frozen=True):
    """Flags bit 0: reset permissions too."""

    agent: U32
    flags: U32


class ErrorReport(msgspec.Struct, frozen=True):
    """The header of a message that failed, and its status."""

    header: U32
    status: I32


_REPORT = Fixed(ErrorReport)
_REPORTS_LIMIT = 0x3FF


@notification(BASE, 0x0, "BASE_ERROR_EVENT")
class ErrorEvent(Body, frozen=True):
    """Errors of an agent; after a fatal one its configuration is lost."""

    agent: U32
    is_fatal: bool
    reports: tuple[ErrorReport, ...]

    def pack_payload(self) -> bytes:
        """Agent, then bit 31 fatal and 9:0 count, then the reports."""
        if not 0 <= self.agent < 2**32 or len(self.reports) > _REPORTS_LIMIT:
            raise MessageError(f"agent {self.agent} with {len(self.reports)} reports does not fit")
        return struct.pack("<II", self.agent, self.is_fatal << 31 | len(self.reports)) + pack_entries(
            _REPORT, self.reports
        )

    @classmethod
    def unpack_payload(cls, payload: bytes) -> Self:
        """The inverse of ``pack_payload``."""
        agent, word = unpack_word(payload, "error event"), unpack_word(payload, "error event", 4)
        reports = unpack_entries(_REPORT, ErrorReport, payload, 8, "error reports")
        check_count(word & _REPORTS_LIMIT, len(reports), "error event")
        return cls(agent, bool(word >> 31), reports)
