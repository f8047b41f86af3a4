"""SCMI messages by hand: these tests judge the platform without the client's codec, which could share its mistakes."""

from __future__ import annotations

import struct

from firmware_bridge.controlpulp.host import HostController

BASE, SYSTEM, PERFORMANCE, CLOCK, SENSOR, POWERCAP, TELEMETRY = 0x10, 0x12, 0x13, 0x14, 0x15, 0x18, 0x80
SUCCESS, NOT_SUPPORTED, INVALID_PARAMETERS, DENIED, NOT_FOUND, OUT_OF_RANGE, BUSY = 0, -1, -2, -3, -4, -5, -6
HARDWARE_ERROR, PROTOCOL_ERROR = -9, -10
BMC = 2
"""Channel of the trusted agent."""


def header(protocol: int, message: int, *, token: int = 0, kind: int = 0) -> int:
    return message | kind << 8 | protocol << 10 | token << 18


def command(protocol: int, message: int, *words: int, token: int = 0) -> bytes:
    return struct.pack(f"<{1 + len(words)}I", header(protocol, message, token=token), *(w & 0xFFFFFFFF for w in words))


def ask(host: HostController, protocol: int, message: int, *words: int, channel: int = 0) -> tuple[int, list[int]]:
    """Status and the words after it."""
    reply = host.exchange(channel, command(protocol, message, *words))
    code, *values = struct.unpack(f"<i{(len(reply) - 8) // 4}I", reply[4:])
    return code, values


def must(host: HostController, protocol: int, message: int, *words: int, channel: int = 0) -> list[int]:
    code, values = ask(host, protocol, message, *words, channel=channel)
    assert code == SUCCESS, f"{protocol:#x} {message:#x} {words}: status {code}"
    return values


def text(words: list[int]) -> str:
    return struct.pack(f"<{len(words)}I", *words).partition(b"\0")[0].decode()


def events(host: HostController, channel: int, slots: int = 20) -> list[tuple[int, list[int]]]:
    """Header and words of all that arrives within some slots."""
    seen = []
    for _ in range(slots):
        for message in host.notifications(channel):
            first, *rest = struct.unpack(f"<{len(message) // 4}I", message)
            seen.append((first, rest))
        host.advance_slots(1)
    return seen
