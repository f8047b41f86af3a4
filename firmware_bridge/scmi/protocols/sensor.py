"""Sensor protocol 0x15, versions 0x30000 and 0x30001 (DEN0056 4.7).

A value is an integer times ten to the sensor's scale, in the unit of its type. Messages 0x7 and 0xD describe the axes
of multi-axis sensors; they are not supported, since no power controller has such sensors.
"""

from __future__ import annotations

import struct
from typing import Annotated, Self

import msgspec

from firmware_bridge.errors import MessageError
from firmware_bridge.scmi.messages.header import Protocol
from firmware_bridge.scmi.messages.message import Body, Command, command, delayed, notification, response
from firmware_bridge.scmi.messages.value_layout import (
    I64,
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
from firmware_bridge.scmi.protocols.common import ATTRIBUTES

SENSOR = Protocol.SENSOR
READ_ASYNCHRONOUSLY = 1

UNITS = {
    0x2: "C",
    0x4: "K",
    0x5: "V",
    0x6: "A",
    0x7: "W",
    0x8: "J",
    0x14: "Hz",
    0x15: "s",
    0x41: "%",
    0x43: "count",
}
"""Units of the sensor types that a power controller has."""

CONFIG_BITS = (
    Bits("enabled", 0),
    Bits("timestamps", 1),
    Bits("rounding", 9, 2, ("down", "up", "automatic", "reserved")),
    Bits("interval exponent", 11, 5),
    Bits("interval mantissa", 16, 16),
)
TRIP_BITS = (Bits("edge", 0, 2, ("off", "rising", "falling", "both")), Bits("trip point", 4, 8))
EVENT_BITS = (Bits("trip point", 0, 8), Bits("edge", 16, 1, ("falling", "rising")))


def signed5(value: int) -> int:
    """The five-bit two's complement number that scales and exponents are."""
    return (value & 0x1F) - ((value & 0x10) << 1)


@response(SENSOR, ATTRIBUTES, "SENSOR_PROTOCOL_ATTRIBUTES")
class SensorAttributesResponse(Body, frozen=True):
    """Number of sensors, of asynchronous reads at a time, and address of shared values (0 if there are none)."""

    attributes: Annotated[int, Word("I", (Bits("sensors", 0, 16), Bits("asynchronous reads", 16, 8)))]
    registers_address: U64
    registers_size: U32

    @property
    def sensors(self) -> int:
        """Number of sensors."""
        return self.attributes & 0xFFFF


@command(SENSOR, ATTRIBUTES, "SENSOR_PROTOCOL_ATTRIBUTES")
class SensorAttributes(Command[SensorAttributesResponse], frozen=True):
    """Request the number of sensors."""


class ValueRange(msgspec.Struct, frozen=True):
    """Resolution (26:0 value, 31:27 exponent) and bounds of a scalar sensor."""

    resolution: U32
    lowest: I64
    highest: I64


class Extended(msgspec.Struct, frozen=True):
    """The extended attributes: power that the sensor itself uses, and a scalar sensor's range."""

    power_uw: int
    range: ValueRange | None


class _Plain(msgspec.Struct, frozen=True):
    sensor: U32
    attributes_low: U32
    attributes_high: U32
    name: Name16


_PLAIN, _RANGE = Fixed(_Plain), Fixed(ValueRange)


class SensorDescriptor(msgspec.Struct, frozen=True):
    """One sensor: 28 bytes, with extended attributes 52 (32 for one with axes)."""

    sensor: int
    attributes_low: int
    attributes_high: int
    name: str
    extended: Extended | None = None

    @property
    def reads_asynchronously(self) -> bool:
        """READING_GET may be answered by a delayed response."""
        return bool(self.attributes_low >> 31 & 1)

    @property
    def notifies_updates(self) -> bool:
        """SENSOR_UPDATE can be requested."""
        return bool(self.attributes_low >> 30 & 1)

    @property
    def has_extended_name(self) -> bool:
        """The name is truncated; NAME_GET has the full name."""
        return bool(self.attributes_low >> 29 & 1)

    @property
    def trip_points(self) -> int:
        """Number of trip points."""
        return self.attributes_low & 0xFF

    @property
    def type(self) -> int:
        """The standard's number for the kind of sensor."""
        return self.attributes_high & 0xFF

    @property
    def unit(self) -> str:
        """Unit after scaling."""
        return UNITS.get(self.type, f"type {self.type:#x}")

    @property
    def scale(self) -> int:
        """Values are multiplied by ten to this power."""
        return signed5(self.attributes_high >> 11)

    def pack(self) -> bytes:
        """The bytes of this descriptor; attribute bits must agree with its content."""
        extended = self.extended
        has_range = extended is not None and extended.range is not None
        if bool(self.attributes_low >> 8 & 1) != (extended is not None):
            raise MessageError(f"sensor {self.sensor}: attribute bit 8 contradicts the descriptor's content")
        if extended is not None and bool(self.attributes_high >> 8 & 1) == has_range:
            raise MessageError(f"sensor {self.sensor}: a sensor has either axes or a range")
        data = _PLAIN.pack(self.sensor, self.attributes_low, self.attributes_high, self.name)
        if extended is None:
            return data
        if not 0 <= extended.power_uw < 2**32:
            raise MessageError(f"sensor {self.sensor}: power_uw is {extended.power_uw}")
        data += struct.pack("<I", extended.power_uw)
        return data if extended.range is None else data + _RANGE.pack(*msgspec.structs.astuple(extended.range))

    @classmethod
    def unpack_from(cls, payload: bytes, offset: int) -> tuple[Self, int]:
        """One descriptor and where the next one begins."""
        if len(payload) < offset + _PLAIN.size:
            raise MessageError(f"sensor descriptors: {len(payload) - offset} bytes left of {_PLAIN.size}")
        sensor, low, high, name = _PLAIN.unpack(payload, offset)
        offset += _PLAIN.size
        if not low >> 8 & 1:
            return cls(sensor, low, high, name), offset
        power_uw = unpack_word(payload, "sensor descriptors", offset)
        offset += 4
        if high >> 8 & 1:
            return cls(sensor, low, high, name, Extended(power_uw, None)), offset
        if len(payload) < offset + _RANGE.size:
            raise MessageError(f"sensor descriptors: {len(payload) - offset} bytes left of {_RANGE.size}")
        bounds = ValueRange(*_RANGE.unpack(payload, offset))
        return cls(sensor, low, high, name, Extended(power_uw, bounds)), offset + _RANGE.size


@response(SENSOR, 0x3, "SENSOR_DESCRIPTION_GET")
class SensorDescriptionsResponse(Body, frozen=True):
    """Some sensors, and how many are still to be requested."""

    remaining: int
    sensors: tuple[SensorDescriptor, ...]

    def pack_payload(self) -> bytes:
        """Count word, then the descriptors."""
        return pack_count(len(self.sensors), self.remaining) + b"".join(sensor.pack() for sensor in self.sensors)

    @classmethod
    def unpack_payload(cls, payload: bytes) -> Self:
        """The inverse of ``pack_payload``; descriptors have different lengths."""
        word = unpack_word(payload, "sensor descriptors")
        sensors: list[SensorDescriptor] = []
        offset = 4
        while offset < len(payload):
            sensor, offset = SensorDescriptor.unpack_from(payload, offset)
            sensors.append(sensor)
        check_count(word & 0xFFF, len(sensors), "sensor descriptors")
        return cls(word >> 16, tuple(sensors))


@command(SENSOR, 0x3, "SENSOR_DESCRIPTION_GET")
class SensorDescriptions(Command[SensorDescriptionsResponse], frozen=True):
    """Request the sensors from the ``first`` on."""

    first: U32


@response(SENSOR, 0x4, "SENSOR_TRIP_POINT_NOTIFY")
class TripPointNotifyResponse(Body, frozen=True):
    """Accepted."""


@command(SENSOR, 0x4, "SENSOR_TRIP_POINT_NOTIFY")
class TripPointNotify(Command[TripPointNotifyResponse], frozen=True):
    """Bit 0: report trip points that are crossed."""

    sensor: U32
    enable: U32


@response(SENSOR, 0x5, "SENSOR_TRIP_POINT_CONFIG")
class TripPointConfigResponse(Body, frozen=True):
    """Accepted."""


@command(SENSOR, 0x5, "SENSOR_TRIP_POINT_CONFIG")
class TripPointConfig(Command[TripPointConfigResponse], frozen=True):
    """Set a trip point's value and edge."""

    sensor: U32
    control: Annotated[int, Word("I", TRIP_BITS)]
    value: I64


class Reading(msgspec.Struct, frozen=True):
    """A value and its timestamp (0 when the sensor has none)."""

    value: I64
    timestamp: U64


_READING = Fixed(Reading)


@response(SENSOR, 0x6, "SENSOR_READING_GET")
class ReadingGetResponse(Body, frozen=True):
    """One reading per axis; none if the reading comes as a delayed response."""

    readings: tuple[Reading, ...]

    def pack_payload(self) -> bytes:
        """16 bytes per axis."""
        return pack_entries(_READING, self.readings)

    @classmethod
    def unpack_payload(cls, payload: bytes) -> Self:
        """The inverse of ``pack_payload``."""
        return cls(unpack_entries(_READING, Reading, payload, 0, "readings"))


@command(SENSOR, 0x6, "SENSOR_READING_GET")
class ReadingGet(Command[ReadingGetResponse], frozen=True):
    """Read a sensor; flags bit 0: by a delayed response."""

    sensor: U32
    flags: Annotated[int, Word("I", (Bits("asynchronous", 0),))]


@delayed(SENSOR, 0x6, "SENSOR_READING_COMPLETE")
class ReadingComplete(Body, frozen=True):
    """The readings that an asynchronous READING_GET requested."""

    sensor: U32
    readings: tuple[Reading, ...]

    def pack_payload(self) -> bytes:
        """Sensor, then 16 bytes per axis."""
        return _pack_sensor(self.sensor) + pack_entries(_READING, self.readings)

    @classmethod
    def unpack_payload(cls, payload: bytes) -> Self:
        """The inverse of ``pack_payload``."""
        return cls(unpack_word(payload, "readings"), unpack_entries(_READING, Reading, payload, 4, "readings"))


def _pack_sensor(sensor: int) -> bytes:
    if not 0 <= sensor < 2**32:
        raise MessageError(f"sensor is {sensor}, which is not in 0..4294967295")
    return struct.pack("<I", sensor)


@response(SENSOR, 0x8, "SENSOR_LIST_UPDATE_INTERVALS")
class UpdateIntervalsResponse(Body, frozen=True):
    """Intervals (20:5 mantissa, 4:0 exponent of ten, seconds); segmented: lowest, highest, step."""

    remaining: int
    is_segmented: bool
    intervals: tuple[int, ...]

    def pack_payload(self) -> bytes:
        """Count word with bit 12 segmented, then the intervals."""
        if not all(0 <= interval < 2**32 for interval in self.intervals):
            raise MessageError(f"intervals {self.intervals} are not all in 0..4294967295")
        word = int.from_bytes(pack_count(len(self.intervals), self.remaining), "little") | self.is_segmented << 12
        return struct.pack(f"<{1 + len(self.intervals)}I", word, *self.intervals)

    @classmethod
    def unpack_payload(cls, payload: bytes) -> Self:
        """The inverse of ``pack_payload``."""
        word = unpack_word(payload, "update intervals")
        if len(payload) % 4:
            raise MessageError(f"update intervals: {len(payload)} bytes are no whole words")
        check_count(word & 0xFFF, len(payload) // 4 - 1, "update intervals")
        return cls(word >> 16, bool(word >> 12 & 1), struct.unpack_from(f"<{len(payload) // 4 - 1}I", payload, 4))


@command(SENSOR, 0x8, "SENSOR_LIST_UPDATE_INTERVALS")
class UpdateIntervals(Command[UpdateIntervalsResponse], frozen=True):
    """Request the update intervals from the ``first`` on."""

    sensor: U32
    first: U32


@response(SENSOR, 0x9, "SENSOR_CONFIG_GET")
class SensorConfigGetResponse(Body, frozen=True):
    """The sensor's configuration."""

    config: Annotated[int, Word("I", CONFIG_BITS)]


@command(SENSOR, 0x9, "SENSOR_CONFIG_GET")
class SensorConfigGet(Command[SensorConfigGetResponse], frozen=True):
    """Request the configuration."""

    sensor: U32


@response(SENSOR, 0xA, "SENSOR_CONFIG_SET")
class SensorConfigSetResponse(Body, frozen=True):
    """Accepted."""


@command(SENSOR, 0xA, "SENSOR_CONFIG_SET")
class SensorConfigSet(Command[SensorConfigSetResponse], frozen=True):
    """Set the configuration."""

    sensor: U32
    config: Annotated[int, Word("I", CONFIG_BITS)]


@response(SENSOR, 0xB, "SENSOR_CONTINUOUS_UPDATE_NOTIFY")
class ContinuousUpdateNotifyResponse(Body, frozen=True):
    """Accepted."""


@command(SENSOR, 0xB, "SENSOR_CONTINUOUS_UPDATE_NOTIFY")
class ContinuousUpdateNotify(Command[ContinuousUpdateNotifyResponse], frozen=True):
    """Bit 0: report every update."""

    sensor: U32
    enable: U32


@response(SENSOR, 0xC, "SENSOR_NAME_GET")
class SensorNameResponse(Body, frozen=True):
    """A sensor's full name."""

    flags: U32
    name: Name64


@command(SENSOR, 0xC, "SENSOR_NAME_GET")
class SensorName(Command[SensorNameResponse], frozen=True):
    """Request a sensor's full name."""

    sensor: U32


@notification(SENSOR, 0x0, "SENSOR_TRIP_POINT_EVENT")
class TripPointEvent(Body, frozen=True):
    """A trip point was crossed."""

    agent: U32
    sensor: U32
    description: Annotated[int, Word("I", EVENT_BITS)]


@notification(SENSOR, 0x1, "SENSOR_UPDATE")
class SensorUpdate(Body, frozen=True):
    """A reading that the platform sends by itself."""

    agent: U32
    sensor: U32
    readings: tuple[Reading, ...]

    def pack_payload(self) -> bytes:
        """Agent, sensor, then 16 bytes per axis."""
        return _pack_sensor(self.agent) + _pack_sensor(self.sensor) + pack_entries(_READING, self.readings)

    @classmethod
    def unpack_payload(cls, payload: bytes) -> Self:
        """The inverse of ``pack_payload``."""
        agent, sensor = unpack_word(payload, "sensor update"), unpack_word(payload, "sensor update", 4)
        return cls(agent, sensor, unpack_entries(_READING, Reading, payload, 8, "readings"))
