"""Power capping protocol 0x18, versions 0x10000 and 0x20000 (DEN0056 4.10).

A *cap* bounds the average power of a domain over its averaging interval (PAI). Domains form a forest. In 0x20000 a cap
of 0 disables capping; 0x10000 cannot disable it. The layouts of the two versions are the same.
"""

from __future__ import annotations

from typing import Annotated

from firmware_bridge.scmi.messages.header import Protocol
from firmware_bridge.scmi.messages.message import Body, Command, command, delayed, notification, response
from firmware_bridge.scmi.messages.value_layout import U32, Bits, Name16, Name64, Word
from firmware_bridge.scmi.protocols.common import ATTRIBUTES, FASTCHANNEL_BITS, FastChannelDescription

POWERCAP = Protocol.POWERCAP
ROOT = 0xFFFFFFFF
"""The parent of a domain that has none."""

CAP_DISABLED = 0
FLAG_IGNORE_DELAYED, FLAG_ASYNCHRONOUS = 1, 2

POWER_UNITS = ("abstract", "uW", "mW", "reserved")
UNIT_BITS = Bits("power unit", 23, 2, POWER_UNITS)
DOMAIN_BITS = (
    Bits("cap changes notified", 31),
    Bits("measurements notified", 30),
    Bits("asynchronous CAP_SET", 29),
    Bits("extended name", 28),
    Bits("cap configurable", 27),
    Bits("monitoring", 26),
    Bits("PAI configurable", 25),
    UNIT_BITS,
    Bits("FastChannels", 22),
)
SET_BITS = (Bits("ignore delayed response", 0), Bits("asynchronous", 1))


@response(POWERCAP, ATTRIBUTES, "POWERCAP_PROTOCOL_ATTRIBUTES")
class PowercapAttributesResponse(Body, frozen=True):
    """Number of domains."""

    attributes: Annotated[int, Word("I", (Bits("domains", 0, 16),))]

    @property
    def domains(self) -> int:
        """Number of domains."""
        return self.attributes & 0xFFFF


@command(POWERCAP, ATTRIBUTES, "POWERCAP_PROTOCOL_ATTRIBUTES")
class PowercapAttributes(Command[PowercapAttributesResponse], frozen=True):
    """Request the number of domains."""


@response(POWERCAP, 0x3, "POWERCAP_DOMAIN_ATTRIBUTES")
class PowercapDomainResponse(Body, frozen=True):
    """Attributes of a domain; caps and powers are in the unit that ``attributes`` names."""

    attributes: Annotated[int, Word("I", DOMAIN_BITS)]
    name: Name16
    min_pai_us: U32
    max_pai_us: U32
    pai_step_us: U32
    min_cap: U32
    max_cap: U32
    cap_step: U32
    sustainable_power: U32
    accuracy_percent: U32
    parent: U32

    @property
    def notifies_caps(self) -> bool:
        """CAP_CHANGED can be requested."""
        return bool(self.attributes >> 31 & 1)

    @property
    def notifies_measurements(self) -> bool:
        """MEASUREMENTS_CHANGED can be requested."""
        return bool(self.attributes >> 30 & 1)

    @property
    def can_set_asynchronously(self) -> bool:
        """CAP_SET may be answered by a delayed response."""
        return bool(self.attributes >> 29 & 1)

    @property
    def has_extended_name(self) -> bool:
        """The name is truncated; DOMAIN_NAME_GET has the full name."""
        return bool(self.attributes >> 28 & 1)

    @property
    def can_set_cap(self) -> bool:
        """CAP_SET is allowed."""
        return bool(self.attributes >> 27 & 1)

    @property
    def has_monitoring(self) -> bool:
        """MEASUREMENTS_GET is provided."""
        return bool(self.attributes >> 26 & 1)

    @property
    def can_set_pai(self) -> bool:
        """PAI_SET is allowed."""
        return bool(self.attributes >> 25 & 1)

    @property
    def has_fast_channels(self) -> bool:
        """DESCRIBE_FASTCHANNEL has their addresses."""
        return bool(self.attributes >> 22 & 1)

    @property
    def power_unit(self) -> str:
        """One of ``POWER_UNITS``."""
        return POWER_UNITS[UNIT_BITS.of(self.attributes)]


@command(POWERCAP, 0x3, "POWERCAP_DOMAIN_ATTRIBUTES")
class PowercapDomain(Command[PowercapDomainResponse], frozen=True):
    """Request the attributes of a domain."""

    domain: U32


@response(POWERCAP, 0x4, "POWERCAP_CAP_GET")
class CapGetResponse(Body, frozen=True):
    """The cap that is enforced; 0 when capping is disabled."""

    cap: U32


@command(POWERCAP, 0x4, "POWERCAP_CAP_GET")
class CapGet(Command[CapGetResponse], frozen=True):
    """Request the cap that is enforced."""

    domain: U32


@response(POWERCAP, 0x5, "POWERCAP_CAP_SET")
class CapSetResponse(Body, frozen=True):
    """Accepted; of an asynchronous request: queued."""


@command(POWERCAP, 0x5, "POWERCAP_CAP_SET")
class CapSet(Command[CapSetResponse], frozen=True):
    """Set the cap; 0 disables capping (0x20000)."""

    domain: U32
    flags: Annotated[int, Word("I", SET_BITS)]
    cap: U32


@delayed(POWERCAP, 0x5, "POWERCAP_CAP_SET_COMPLETE")
class CapSetComplete(Body, frozen=True):
    """An asynchronous CAP_SET is done."""

    domain: U32
    cap: U32


@response(POWERCAP, 0x6, "POWERCAP_PAI_GET")
class PaiGetResponse(Body, frozen=True):
    """The averaging interval."""

    pai_us: U32


@command(POWERCAP, 0x6, "POWERCAP_PAI_GET")
class PaiGet(Command[PaiGetResponse], frozen=True):
    """Request the averaging interval."""

    domain: U32


@response(POWERCAP, 0x7, "POWERCAP_PAI_SET")
class PaiSetResponse(Body, frozen=True):
    """Accepted."""


@command(POWERCAP, 0x7, "POWERCAP_PAI_SET")
class PaiSet(Command[PaiSetResponse], frozen=True):
    """Set the averaging interval; flags are 0."""

    domain: U32
    flags: U32
    pai_us: U32


@response(POWERCAP, 0x8, "POWERCAP_DOMAIN_NAME_GET")
class PowercapNameResponse(Body, frozen=True):
    """A domain's full name."""

    flags: U32
    name: Name64


@command(POWERCAP, 0x8, "POWERCAP_DOMAIN_NAME_GET")
class PowercapName(Command[PowercapNameResponse], frozen=True):
    """Request a domain's full name."""

    domain: U32


@response(POWERCAP, 0x9, "POWERCAP_MEASUREMENTS_GET")
class MeasurementsGetResponse(Body, frozen=True):
    """Average power over the last averaging interval."""

    power: U32
    pai_us: U32


@command(POWERCAP, 0x9, "POWERCAP_MEASUREMENTS_GET")
class MeasurementsGet(Command[MeasurementsGetResponse], frozen=True):
    """Request the measured power."""

    domain: U32


@response(POWERCAP, 0xA, "POWERCAP_CAP_NOTIFY")
class CapNotifyResponse(Body, frozen=True):
    """Accepted."""


@command(POWERCAP, 0xA, "POWERCAP_CAP_NOTIFY")
class CapNotify(Command[CapNotifyResponse], frozen=True):
    """Bit 0: report changes of cap and averaging interval."""

    domain: U32
    enable: U32


@response(POWERCAP, 0xB, "POWERCAP_MEASUREMENTS_NOTIFY")
class MeasurementsNotifyResponse(Body, frozen=True):
    """Accepted."""


@command(POWERCAP, 0xB, "POWERCAP_MEASUREMENTS_NOTIFY")
class MeasurementsNotify(Command[MeasurementsNotifyResponse], frozen=True):
    """Bit 0: report when the average leaves [low, high]."""

    domain: U32
    enable: U32
    low: U32
    high: U32


@response(POWERCAP, 0xC, "POWERCAP_DESCRIBE_FASTCHANNEL")
class PowercapFastChannelResponse(FastChannelDescription, frozen=True):
    """Channels of 4 bytes."""

    attributes: Annotated[int, Word("I", FASTCHANNEL_BITS)]


@command(POWERCAP, 0xC, "POWERCAP_DESCRIBE_FASTCHANNEL")
class PowercapFastChannel(Command[PowercapFastChannelResponse], frozen=True):
    """Request the address of the FastChannel of one message (4 to 7)."""

    domain: U32
    message: U32


@notification(POWERCAP, 0x0, "POWERCAP_CAP_CHANGED")
class CapChanged(Body, frozen=True):
    """Cap or averaging interval has changed; agent 0 is the platform itself."""

    agent: U32
    domain: U32
    cap: U32
    pai_us: U32


@notification(POWERCAP, 0x1, "POWERCAP_MEASUREMENTS_CHANGED")
class MeasurementsChanged(Body, frozen=True):
    """The average has left the requested bounds."""

    agent: U32
    domain: U32
    power: U32
