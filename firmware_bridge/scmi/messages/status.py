"""SCMI status codes (DEN0056 4.1.4)."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """The status of a response; 0 means accepted, not completed."""

    SUCCESS = 0
    NOT_SUPPORTED = -1
    INVALID_PARAMETERS = -2
    DENIED = -3
    NOT_FOUND = -4
    OUT_OF_RANGE = -5
    BUSY = -6
    COMMS_ERROR = -7
    GENERIC_ERROR = -8
    HARDWARE_ERROR = -9
    PROTOCOL_ERROR = -10


MEANINGS: dict[Status, str] = {
    Status.SUCCESS: "accepted",
    Status.NOT_SUPPORTED: "the platform does not support it",
    Status.INVALID_PARAMETERS: "a parameter is not legal",
    Status.DENIED: "this agent is not permitted to",
    Status.NOT_FOUND: "no such domain, sensor, agent or message",
    Status.OUT_OF_RANGE: "the value is outside the supported range",
    Status.BUSY: "the resource is busy",
    Status.COMMS_ERROR: "the platform reports a transport failure",
    Status.GENERIC_ERROR: "the platform failed without saying why",
    Status.HARDWARE_ERROR: "the platform reports a hardware fault",
    Status.PROTOCOL_ERROR: "the platform finds that the message breaks the protocol",
}
"""One clause for each, for error messages."""
