"""What ``nodectl scmi get`` and ``set`` can name: caps, powers, intervals, levels, limits, sensors, status."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from firmware_bridge.errors import RefusedError, RequestError, named_status
from firmware_bridge.scmi.controller import Controller
from firmware_bridge.scmi.domains import CapDomain, SensorInfo, SpeedDomain, find
from firmware_bridge.scmi.protocols.telemetry import NO_MARGIN_MW, REASONS, TELEMETRY, TelemetryReasons, TelemetryStatus
from foundation.shell.errors import nearest

UNITS_W: Final = {"uW": 1e-6, "mW": 1e-3, "W": 1.0, "kW": 1e3}
UNITS_KHZ: Final = {"kHz": 1.0, "MHz": 1e3, "GHz": 1e6}
UNITS_US: Final = {"us": 1.0, "ms": 1e3, "s": 1e6}
UNITS_S: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}


def in_units(text: str, units: Mapping[str, float], what: str) -> float:
    """A number with its unit; ``RequestError`` names the units otherwise."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-zµ]*)\s*", text)
    if not match:
        raise RequestError(f"{text!r} is not {what}")
    number, unit = match.groups()
    if unit not in units:
        problem = f"unit {unit!r} is not known{nearest(unit, units)}" if unit else "has no unit"
        raise RequestError(f"{text!r}: {problem}; write {what}")
    return float(number) * units[unit]


class Value(msgspec.Struct, omit_defaults=True):
    """One thing that was read, or why not."""

    what: str
    name: str
    value: Any = None
    unit: str = ""
    text: str = ""
    problem: str = ""


class Target(msgspec.Struct):
    """One thing that can be read; ``of`` is its domain or sensor."""

    kind: str
    of: CapDomain | SpeedDomain | SensorInfo | None


def targets_of(controller: Controller, wanted: Sequence[str]) -> list[Target]:
    """The things that the words name; all of them where no word is given."""
    if wanted:
        return [target for word in wanted for target in _named(controller, word)]
    return [target for kind in KINDS for target in _all(controller, kind)]


def _named(controller: Controller, word: str) -> list[Target]:
    kind, colon, which = word.partition(":")
    if kind not in KINDS:
        raise RequestError(f"{word!r}: nothing is called {kind!r}{nearest(kind, KINDS)}; there are {', '.join(KINDS)}")
    if not colon:
        found = _all(controller, kind)
        if not found:
            raise RequestError(f"{word!r}: this controller has none")
        return found
    known: Any = _known(controller, kind)
    return [Target(kind, find(known, which, kind))]


def _all(controller: Controller, kind: str) -> list[Target]:
    if kind == "status":
        return [Target(kind, None)] if TELEMETRY in controller.identity.versions else []
    known = _known(controller, kind)
    return [Target(kind, one) for one in known if not (kind == "power" and not getattr(one, "has_monitoring", True))]


def _known(controller: Controller, kind: str) -> Sequence[CapDomain | SpeedDomain | SensorInfo]:
    if kind in ("cap", "power", "pai"):
        return controller.cap_domains
    return controller.speed_domains if kind in ("level", "limits") else controller.sensors


def read(controller: Controller, target: Target) -> Value:
    """Read a value; where the controller refuses it, the result has the reason."""
    what = target.kind if target.of is None else f"{target.kind}:{target.of.number}"
    value = Value(what, "" if target.of is None else target.of.name)
    try:
        value.value, value.unit, value.text = KINDS[target.kind](controller, target.of)
    except RefusedError as error:
        value.problem = ": ".join(named_status(error.code))
    return value


_Read = tuple[Any, str, str]


def _cap(controller: Controller, domain: Any) -> _Read:
    cap = controller.cap(domain)
    return (cap or None, domain.unit, domain.in_words(cap) if cap else "capping is disabled")


def _power(controller: Controller, domain: Any) -> _Read:
    power, interval_us = controller.power(domain)
    return power, domain.unit, f"{domain.in_words(power)} over {interval_us} us"


def _pai(controller: Controller, domain: Any) -> _Read:
    interval_us = controller.averaging_interval_us(domain)
    return interval_us, "us", f"{interval_us} us"


def _level(controller: Controller, domain: Any) -> _Read:
    level = controller.level(domain)
    return level, "level", domain.in_words(level)


def _limits(controller: Controller, domain: Any) -> _Read:
    low, high = controller.limits(domain)
    return (low, high), "level", f"{domain.in_words(low)} to {domain.in_words(high)}"


def _sensor(controller: Controller, sensor: Any) -> _Read:
    values = [sensor.value(reading.value) for reading in controller.readings(sensor)]
    text = ", ".join(f"{value:.10g} {sensor.unit}" for value in values)
    return (values[0] if len(values) == 1 else values), sensor.unit, text


def _status(controller: Controller, _: Any) -> _Read:
    status = controller.client.request(TelemetryStatus())
    reasons: list[int] = list(controller.client.request(TelemetryReasons(0)).reasons)
    found: dict[str, int] = {}
    for bit, name in enumerate(REASONS):
        if cores := sum(reason >> bit & 1 for reason in reasons):
            found[name] = cores
    slow = ", ".join(f"{name} on {cores}" for name, cores in found.items()) or "none"
    margin = "no cap" if status.margin_mw == NO_MARGIN_MW else f"margin {status.margin_mw / 1e3:.10g} W"
    text = (
        f"build {status.build:#x}, {status.slots} slots, {status.merged_control} merged, {margin},"
        f" cores slowed: {slow}, {status.failed_checks} failed checks"
    )
    return {**msgspec.to_builtins(status), "slowed_cores": found}, "", text


KINDS: Final[dict[str, Callable[[Controller, Any], _Read]]] = {
    "cap": _cap,
    "power": _power,
    "pai": _pai,
    "level": _level,
    "limits": _limits,
    "sensor": _sensor,
    "status": _status,
}
"""What can be read, in the order in which everything is listed."""


class Assigned(msgspec.Struct):
    """What was set, and what is in force."""

    what: str
    name: str
    asked: Any
    in_force: Any
    is_as_asked: bool
    text: str
    is_fast: bool = False


def assign(controller: Controller, setting: str, *, fast: bool = False) -> Assigned:
    """Carry out a setting such as ``level:0=2400MHz``; ``RequestError`` for what cannot be set this way.

    With ``fast``, levels go through FastChannels where there are any; limits and intervals are always messages.
    """
    place, equals, value = setting.partition("=")
    kind, _, which = place.partition(":")
    if kind == "cap":
        raise RequestError(f"{setting!r}: caps are set by `nodectl scmi cap URL DOMAIN POWER`")
    settable = ("level", "limits", "pai")
    if kind not in settable:
        raise RequestError(f"{setting!r}: {kind!r} cannot be set{nearest(kind, settable)}; e.g. level:0=2400MHz")
    if not equals or not which:
        raise RequestError(f"{setting!r} is not {kind}:DOMAIN=VALUE")
    if kind == "pai":
        return _assign_pai(controller, find(controller.cap_domains, which, "power domain"), value)
    domain = find(controller.speed_domains, which, "performance domain")
    if kind == "level":
        return _assign_level(controller, domain, value, fast)
    return _assign_limits(controller, domain, value)


def _assign_pai(controller: Controller, domain: CapDomain, value: str) -> Assigned:
    requested_us = int(in_units(value, UNITS_US, "an interval such as 1ms"))
    in_force_us = controller.set_averaging_interval_us(domain, requested_us)
    text = f"{domain.name}: averaging over {in_force_us} us"
    return Assigned(f"pai:{domain.number}", domain.name, requested_us, in_force_us, True, text)


def _assign_level(controller: Controller, domain: SpeedDomain, value: str, fast: bool) -> Assigned:
    level = domain.level_at_or_below(in_units(value, UNITS_KHZ, "a frequency such as 2400MHz"))
    outcome = controller.set_level(domain, level, fast=fast)
    text = f"{domain.name}: {domain.in_words(level)} requested, {domain.in_words(outcome.in_force)} in force"
    if not outcome.is_as_requested:
        text += " (because of another agent's request, or of limits)"
    target = f"level:{domain.number}"
    return Assigned(target, domain.name, level, outcome.in_force, outcome.is_as_requested, text, outcome.is_fast)


def _assign_limits(controller: Controller, domain: SpeedDomain, value: str) -> Assigned:
    low_text, dots, high_text = value.partition("..")
    if not dots:
        raise RequestError(f"{value!r} is not a range such as 800MHz..2400MHz")
    low, high = (
        domain.level_at_or_below(in_units(text, UNITS_KHZ, "a frequency such as 2400MHz"))
        for text in (low_text, high_text)
    )
    in_force = controller.set_limits(domain, low, high)
    text = f"{domain.name}: {domain.in_words(in_force[0])} to {domain.in_words(in_force[1])} allowed"
    return Assigned(f"limits:{domain.number}", domain.name, (low, high), in_force, in_force == (low, high), text)
