"""Every declared message as a hypothesis strategy, made from its own declaration."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from firmware_bridge.scmi.messages.message import WIRES, Body, Failed
from firmware_bridge.scmi.messages.value_layout import RANGES, Text, declared
from firmware_bridge.scmi.protocols import base, performance, sensor, telemetry

U32 = st.integers(0, 2**32 - 1)
REMAINING = st.integers(0, 0xFFFF)
ASCII = st.characters(min_codepoint=1, max_codepoint=127)


def fixed(shape: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """A class whose fields are all plain values."""
    fields = {}
    for name, kind in declared(shape):
        if kind is None:
            fields[name] = st.integers(0, 255)  # the protocol of a message that all have
        elif isinstance(kind, Text):
            fields[name] = st.text(ASCII, max_size=kind.size - 1)
        else:
            fields[name] = st.integers(*RANGES[kind.code])
    return st.builds(shape, **fields)


def many(entry: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(entry, max_size=8).map(tuple)


def descriptor(low: int, high: int, name: str, number: int, power_uw: int, bounds: Any) -> sensor.SensorDescriptor:
    has_axes = high >> 8 & 1
    extended = sensor.Extended(power_uw, None if has_axes else bounds) if low >> 8 & 1 else None
    return sensor.SensorDescriptor(number, low, high, name, extended)


DESCRIPTORS = st.builds(
    descriptor, U32, U32, st.text(ASCII, max_size=15), U32, U32, fixed(sensor.ValueRange)
)  # fmt: skip
READINGS = many(fixed(sensor.Reading))

VARYING: dict[type[Body], st.SearchStrategy[Any]] = {
    base.ListProtocolsResponse: st.builds(base.ListProtocolsResponse, many(st.integers(1, 255))),
    base.ErrorEvent: st.builds(base.ErrorEvent, U32, st.booleans(), many(fixed(base.ErrorReport))),
    performance.DescribeLevelsV3Response: st.builds(
        performance.DescribeLevelsV3Response, REMAINING, many(fixed(performance.LevelV3))
    ),
    performance.DescribeLevelsResponse: st.builds(
        performance.DescribeLevelsResponse, REMAINING, many(fixed(performance.Level))
    ),
    sensor.SensorDescriptionsResponse: st.builds(sensor.SensorDescriptionsResponse, REMAINING, many(DESCRIPTORS)),
    sensor.ReadingGetResponse: st.builds(sensor.ReadingGetResponse, READINGS),
    sensor.ReadingComplete: st.builds(sensor.ReadingComplete, U32, READINGS),
    sensor.UpdateIntervalsResponse: st.builds(sensor.UpdateIntervalsResponse, REMAINING, st.booleans(), many(U32)),
    telemetry.TelemetryReasonsResponse: st.builds(telemetry.TelemetryReasonsResponse, many(st.integers(0, 0xFFFF))),
    sensor.SensorUpdate: st.builds(sensor.SensorUpdate, U32, U32, READINGS),
}

FAILED = st.builds(
    Failed, st.integers(0, 255), st.integers(0, 255), st.integers(-(2**31), -1), st.booleans()
)  # fmt: skip


def bodies(shape: type[Body]) -> st.SearchStrategy[Any]:
    return VARYING[shape] if WIRES[shape].layout is None else fixed(shape)
