"""Performance protocol 0x13, versions 0x30000 and 0x40000 (DEN0056 4.5).

A *level* is a number that rises with speed, often kHz. 0x40000 adds two words to each described level and a mode in
which levels are named by index; in that mode LEVEL and LIMITS messages carry indices.
"""

from __future__ import annotations

from typing import Annotated, Self

import msgspec

from firmware_bridge.scmi.messages.header import Protocol
from firmware_bridge.scmi.messages.message import Body, Command, command, notification, response
from firmware_bridge.scmi.messages.value_layout import (
    U32,
    U64,
    Bits,
    Fixed,
    Name16,
    Name64,
    Word,
    check_count,
    pack_count,
    pack_entries,
    unpack_entries,
    unpack_word,
)
from firmware_bridge.scmi.protocols.common import ATTRIBUTES, FASTCHANNEL_BITS, FastChannelDescription

PERFORMANCE = Protocol.PERFORMANCE
V3, V4 = 0x30000, 0x40000

PROTOCOL_BITS = (Bits("domains", 0, 16), Bits("power unit", 16, 2, ("abstract", "mW", "uW", "both mW and uW")))
DOMAIN_BITS = (
    Bits("limits settable", 31),
    Bits("level settable", 30),
    Bits("limits notified", 29),
    Bits("level notified", 28),
    Bits("FastChannels", 27),
    Bits("extended name", 26),
    Bits("level indexing", 25),
)


@response(PERFORMANCE, ATTRIBUTES, "PERFORMANCE_PROTOCOL_ATTRIBUTES")
class PerformanceAttributesResponse(Body, frozen=True):
    """Number of domains, unit of power costs, and address of the statistics (0 if there are none)."""

    attributes: Annotated[int, Word("I", PROTOCOL_BITS)]
    statistics_address: U64
    statistics_size: U32

    @property
    def domains(self) -> int:
        """Number of domains."""
        return self.attributes & 0xFFFF

    @property
    def power_unit(self) -> str:
        """Unit of the levels' power costs."""
        return PROTOCOL_BITS[1].values[PROTOCOL_BITS[1].of(self.attributes)]


@command(PERFORMANCE, ATTRIBUTES, "PERFORMANCE_PROTOCOL_ATTRIBUTES")
class PerformanceAttributes(Command[PerformanceAttributesResponse], frozen=True):
    """Request the number of domains."""


@response(PERFORMANCE, 0x3, "PERFORMANCE_DOMAIN_ATTRIBUTES")
class PerformanceDomainResponse(Body, frozen=True):
    """Attributes of a domain; frequency = level times sustained frequency over sustained level."""

    attributes: Annotated[int, Word("I", DOMAIN_BITS)]
    rate_limit_us: U32
    sustained_khz: U32
    sustained_level: U32
    name: Name16

    @property
    def can_set_limits(self) -> bool:
        """LIMITS_SET is allowed."""
        return bool(self.attributes >> 31 & 1)

    @property
    def can_set_level(self) -> bool:
        """LEVEL_SET is allowed."""
        return bool(self.attributes >> 30 & 1)

    @property
    def notifies_limits(self) -> bool:
        """LIMITS_CHANGED can be requested."""
        return bool(self.attributes >> 29 & 1)

    @property
    def notifies_level(self) -> bool:
        """LEVEL_CHANGED can be requested."""
        return bool(self.attributes >> 28 & 1)

    @property
    def has_fast_channels(self) -> bool:
        """DESCRIBE_FASTCHANNEL has their addresses."""
        return bool(self.attributes >> 27 & 1)

    @property
    def has_extended_name(self) -> bool:
        """The name is truncated; DOMAIN_NAME_GET has the full name."""
        return bool(self.attributes >> 26 & 1)

    @property
    def uses_indices(self) -> bool:
        """LEVEL and LIMITS messages carry level indices (0x40000)."""
        return bool(self.attributes >> 25 & 1)


@command(PERFORMANCE, 0x3, "PERFORMANCE_DOMAIN_ATTRIBUTES")
class PerformanceDomain(Command[PerformanceDomainResponse], frozen=True):
    """Request the attributes of a domain."""

    domain: U32


class LevelV3(msgspec.Struct, frozen=True):
    """A level before 0x40000: 12 bytes."""

    level: U32
    power_cost: U32
    latency_us: U32


class Level(msgspec.Struct, frozen=True):
    """A level of 0x40000: 20 bytes, also where indices are not used."""

    level: U32
    power_cost: U32
    latency_us: U32
    indicative_khz: U32
    index: U32


_LEVEL_V3, _LEVEL = Fixed(LevelV3), Fixed(Level)


@response(PERFORMANCE, 0x4, "PERFORMANCE_DESCRIBE_LEVELS", until=V4 - 1)
class DescribeLevelsV3Response(Body, frozen=True):
    """Some levels, ascending, and how many are still to be requested."""

    remaining: int
    levels: tuple[LevelV3, ...]

    def pack_payload(self) -> bytes:
        """Count word, then the levels."""
        return pack_count(len(self.levels), self.remaining) + pack_entries(_LEVEL_V3, self.levels)

    @classmethod
    def unpack_payload(cls, payload: bytes) -> Self:
        """The inverse of ``pack_payload``."""
        word = unpack_word(payload, "levels")
        levels = unpack_entries(_LEVEL_V3, LevelV3, payload, 4, "levels")
        check_count(word & 0xFFF, len(levels), "levels")
        return cls(word >> 16, levels)


@response(PERFORMANCE, 0x4, "PERFORMANCE_DESCRIBE_LEVELS", since=V4)
class DescribeLevelsResponse(Body, frozen=True):
    """Some levels, ascending, and how many are still to be requested."""

    remaining: int
    levels: tuple[Level, ...]

    def pack_payload(self) -> bytes:
        """Count word, then the levels."""
        return pack_count(len(self.levels), self.remaining) + pack_entries(_LEVEL, self.levels)

    @classmethod
    def unpack_payload(cls, payload: bytes) -> Self:
        """The inverse of ``pack_payload``."""
        word = unpack_word(payload, "levels")
        levels = unpack_entries(_LEVEL, Level, payload, 4, "levels")
        check_count(word & 0xFFF, len(levels), "levels")
        return cls(word >> 16, levels)


@command(PERFORMANCE, 0x4, "PERFORMANCE_DESCRIBE_LEVELS")
class DescribeLevels(Command[DescribeLevelsResponse | DescribeLevelsV3Response], frozen=True):
    """Request the levels from the ``first`` on."""

    domain: U32
    first: U32


@response(PERFORMANCE, 0x5, "PERFORMANCE_LIMITS_SET")
class LimitsSetResponse(Body, frozen=True):
    """Accepted."""


@command(PERFORMANCE, 0x5, "PERFORMANCE_LIMITS_SET")
class LimitsSet(Command[LimitsSetResponse], frozen=True):
    """Set the allowed range of levels; 0 leaves a limit unchanged."""

    domain: U32
    highest: U32
    lowest: U32


@response(PERFORMANCE, 0x6, "PERFORMANCE_LIMITS_GET")
class LimitsGetResponse(Body, frozen=True):
    """The allowed range of levels."""

    highest: U32
    lowest: U32


@command(PERFORMANCE, 0x6, "PERFORMANCE_LIMITS_GET")
class LimitsGet(Command[LimitsGetResponse], frozen=True):
    """Request the range."""

    domain: U32


@response(PERFORMANCE, 0x7, "PERFORMANCE_LEVEL_SET")
class LevelSetResponse(Body, frozen=True):
    """Accepted and scheduled, not yet applied."""


@command(PERFORMANCE, 0x7, "PERFORMANCE_LEVEL_SET")
class LevelSet(Command[LevelSetResponse], frozen=True):
    """Request a level."""

    domain: U32
    level: U32


@response(PERFORMANCE, 0x8, "PERFORMANCE_LEVEL_GET")
class LevelGetResponse(Body, frozen=True):
    """The level in force."""

    level: U32


@command(PERFORMANCE, 0x8, "PERFORMANCE_LEVEL_GET")
class LevelGet(Command[LevelGetResponse], frozen=True):
    """Request the level in force."""

    domain: U32


@response(PERFORMANCE, 0x9, "PERFORMANCE_NOTIFY_LIMITS")
class NotifyLimitsResponse(Body, frozen=True):
    """Accepted."""


@command(PERFORMANCE, 0x9, "PERFORMANCE_NOTIFY_LIMITS")
class NotifyLimits(Command[NotifyLimitsResponse], frozen=True):
    """Bit 0: report changes of the range."""

    domain: U32
    enable: U32


@response(PERFORMANCE, 0xA, "PERFORMANCE_NOTIFY_LEVEL")
class NotifyLevelResponse(Body, frozen=True):
    """Accepted."""


@command(PERFORMANCE, 0xA, "PERFORMANCE_NOTIFY_LEVEL")
class NotifyLevel(Command[NotifyLevelResponse], frozen=True):
    """Bit 0: report changes of the level."""

    domain: U32
    enable: U32


@response(PERFORMANCE, 0xB, "PERFORMANCE_DESCRIBE_FASTCHANNEL")
class PerformanceFastChannelResponse(FastChannelDescription, frozen=True):
    """LEVEL channels have 4 bytes, LIMITS channels 8: highest, then lowest."""

    attributes: Annotated[int, Word("I", FASTCHANNEL_BITS)]


@command(PERFORMANCE, 0xB, "PERFORMANCE_DESCRIBE_FASTCHANNEL")
class PerformanceFastChannel(Command[PerformanceFastChannelResponse], frozen=True):
    """Request the address of the FastChannel of one message (5 to 8)."""

    domain: U32
    message: U32


@response(PERFORMANCE, 0xC, "PERFORMANCE_DOMAIN_NAME_GET", since=V3)
class PerformanceNameResponse(Body, frozen=True):
    """A domain's full name."""

    flags: U32
    name: Name64


@command(PERFORMANCE, 0xC, "PERFORMANCE_DOMAIN_NAME_GET", since=V3)
class PerformanceName(Command[PerformanceNameResponse], frozen=True):
    """Request a domain's full name."""

    domain: U32


@notification(PERFORMANCE, 0x0, "PERFORMANCE_LIMITS_CHANGED")
class LimitsChanged(Body, frozen=True):
    """The range has changed; agent 0 is the platform itself."""

    agent: U32
    domain: U32
    highest: U32
    lowest: U32


@notification(PERFORMANCE, 0x1, "PERFORMANCE_LEVEL_CHANGED")
class LevelChanged(Body, frozen=True):
    """The level has changed; agent 0 is the platform itself."""

    agent: U32
    domain: U32
    level: U32
