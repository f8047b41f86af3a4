"""Reads what a platform is and has, and checks all of it that a client depends on."""

from __future__ import annotations

import contextlib
import itertools
from typing import Final

import msgspec

from firmware_bridge.errors import DeniedError, NotFoundError, NotSupportedError, RefusedError, WrongDeviceError
from firmware_bridge.scmi.client import Client
from firmware_bridge.scmi.domains import CapDomain, PerformanceLevel, SensorInfo, SpeedDomain
from firmware_bridge.scmi.messages.header import Protocol
from firmware_bridge.scmi.protocols.base import (
    THIS_AGENT,
    BaseAttributes,
    DiscoverAgent,
    DiscoverImplementation,
    DiscoverSubVendor,
    DiscoverVendor,
    ListProtocols,
)
from firmware_bridge.scmi.protocols.performance import (
    DescribeLevels,
    Level,
    LevelV3,
    PerformanceAttributes,
    PerformanceDomain,
    PerformanceDomainResponse,
    PerformanceName,
)
from firmware_bridge.scmi.protocols.power_capping import (
    ROOT,
    PowercapAttributes,
    PowercapDomain,
    PowercapDomainResponse,
    PowercapName,
)
from firmware_bridge.scmi.protocols.sensor import SensorAttributes, SensorDescriptions, SensorDescriptor, SensorName

LARGEST_LIST: Final = 4096
"""Ours: the most entries that a list of a plausible platform has."""


class Identity(msgspec.Struct, frozen=True):
    """Identity of the platform, and of this client as the platform knows it."""

    vendor: str
    sub_vendor: str
    implementation: int
    agent: int
    agent_name: str
    agents: tuple[str, ...]
    """Agents' names by number; 0 is the platform."""
    versions: dict[int, int]
    """The version in use of each protocol."""


def identify(client: Client) -> Identity:
    """Agree on versions and read the base protocol; ``WrongDeviceError`` if there is no common version."""
    versions = {int(Protocol.BASE): client.agree_on_version(Protocol.BASE)}
    attributes = client.request(BaseAttributes())
    for protocol in _protocols(client, attributes.protocols):
        with contextlib.suppress(DeniedError):  # what this agent is permitted nothing of is not there for it
            versions[protocol] = client.agree_on_version(protocol)
    try:
        sub_vendor = client.request(DiscoverSubVendor()).name
    except (NotFoundError, NotSupportedError):
        sub_vendor = ""
    agent, agent_name, agents = _agents(client, attributes.agents)
    return Identity(
        client.request(DiscoverVendor()).name,
        sub_vendor,
        client.request(DiscoverImplementation()).version,
        agent,
        agent_name,
        agents,
        versions,
    )


def _protocols(client: Client, total: int) -> list[int]:
    listed: list[int] = []
    while len(listed) < total:
        some = client.request(ListProtocols(len(listed))).protocols
        if not some:
            raise _confused(client, f"announces {total} protocols and lists {len(listed)}")
        listed.extend(some)
    return listed


def _agents(client: Client, count: int) -> tuple[int, str, tuple[str, ...]]:
    """This agent's number and name, and all agents' names; the command is optional."""
    try:
        own = client.request(DiscoverAgent(THIS_AGENT))
        return own.agent, own.name, tuple(client.request(DiscoverAgent(agent)).name for agent in range(count + 1))
    except RefusedError:
        return 0, "", ()


def cap_domains(client: Client) -> tuple[CapDomain, ...]:
    """All power-capping domains."""
    count = client.request(PowercapAttributes()).domains
    return tuple(_cap_domain(client, domain, count) for domain in range(count))


def _cap_domain(client: Client, domain: int, count: int) -> CapDomain:
    response = client.request(PowercapDomain(domain))
    problem = _cap_problem(response, domain, count)
    if problem:
        raise _confused(client, f"power domain {domain} ({response.name}): {problem}")
    return CapDomain(
        domain,
        client.request(PowercapName(domain)).name if response.has_extended_name else response.name,
        response.power_unit,
        response.parent,
        response.min_cap,
        response.max_cap,
        response.cap_step,
        response.sustainable_power,
        response.accuracy_percent,
        response.min_pai_us,
        response.max_pai_us,
        response.pai_step_us,
        response.can_set_cap,
        response.can_set_pai,
        response.has_monitoring,
        response.notifies_caps,
        response.notifies_measurements,
        response.has_fast_channels,
    )


def _cap_problem(response: PowercapDomainResponse, domain: int, count: int) -> str | None:
    """The first failure of Linux's own checks, on which it drops the whole protocol; None if all pass."""
    for what, settable, low, high, step in (
        ("cap", response.can_set_cap, response.min_cap, response.max_cap, response.cap_step),
        ("averaging interval", response.can_set_pai, response.min_pai_us, response.max_pai_us, response.pai_step_us),
    ):
        if not low or not high or low > high:
            return f"{what} range {low} to {high}"
        if settable != (low != high) or (settable and not step):
            return f"{what} is {'' if settable else 'not '}settable from {low} to {high} in steps of {step}"
    if response.parent != ROOT and (response.parent >= count or response.parent == domain):
        return f"its parent is {response.parent}"
    return None


def speed_domains(client: Client) -> tuple[SpeedDomain, ...]:
    """All performance domains with their levels."""
    attributes = client.request(PerformanceAttributes())
    return tuple(_speed_domain(client, domain, attributes.power_unit) for domain in range(attributes.domains))


def _speed_domain(client: Client, domain: int, power_unit: str) -> SpeedDomain:
    response = client.request(PerformanceDomain(domain))
    described = _levels(client, domain)
    levels = tuple(_level(client, response, level) for level in described)
    return SpeedDomain(
        domain,
        client.request(PerformanceName(domain)).name if response.has_extended_name else response.name,
        power_unit,
        response.rate_limit_us,
        response.sustained_khz,
        levels,
        response.uses_indices,
        response.can_set_level,
        response.can_set_limits,
        response.notifies_level,
        response.notifies_limits,
        response.has_fast_channels,
    )


def _levels(client: Client, domain: int) -> list[Level | LevelV3]:
    listed: list[Level | LevelV3] = []
    remaining = 1
    while remaining:
        some = client.request(DescribeLevels(domain, len(listed)))
        listed.extend(some.levels)
        remaining = some.remaining
        if remaining and (not some.levels or len(listed) + remaining > LARGEST_LIST):
            raise _confused(client, f"performance domain {domain}: {remaining} levels remain after {len(listed)}")
    if any(low.level >= high.level for low, high in itertools.pairwise(listed)):
        raise _confused(client, f"performance domain {domain}: its levels do not ascend")
    return listed


def _level(client: Client, response: PerformanceDomainResponse, level: Level | LevelV3) -> PerformanceLevel:
    """Frequency of a level (as in Linux: by the ratio of the sustained pair, or given with the index)."""
    if isinstance(level, Level) and response.uses_indices:
        return PerformanceLevel(level.index, level.indicative_khz, level.power_cost, level.latency_us)
    if not response.sustained_level or not response.sustained_khz:
        raise _confused(client, f"performance domain {response.name}: no sustained level to compute frequencies from")
    khz = level.level * response.sustained_khz // response.sustained_level
    return PerformanceLevel(level.level, khz, level.power_cost, level.latency_us)


def sensors(client: Client) -> tuple[SensorInfo, ...]:
    """All sensors."""
    count = client.request(SensorAttributes()).sensors
    listed: list[SensorDescriptor] = []
    while len(listed) < count:
        some = client.request(SensorDescriptions(len(listed)))
        if not some.sensors:
            raise _confused(client, f"announces {count} sensors and describes {len(listed)}")
        listed.extend(some.sensors)
    return tuple(
        SensorInfo(
            sensor.sensor,
            client.request(SensorName(sensor.sensor)).name if sensor.has_extended_name else sensor.name,
            sensor.unit,
            sensor.scale,
            sensor.reads_asynchronously,
            sensor.notifies_updates,
            sensor.trip_points,
        )
        for sensor in listed
    )


def _confused(client: Client, what: str) -> WrongDeviceError:
    return WrongDeviceError(f"{client.transport.name}: {what}; the platform contradicts itself")
