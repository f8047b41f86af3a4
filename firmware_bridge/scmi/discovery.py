"""Reads what a platform is and has, and checks all of it that a client depends on."""

from __future__ import annotations

import itertools
from typing import Final

import msgspec

from firmware_bridge.errors import NotFoundError, NotSupportedError, RefusedError, WrongDeviceError
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
    attributes = client.ask(BaseAttributes())
    for protocol in _protocols(client, attributes.protocols):
        versions[protocol] = client.agree_on_version(protocol)
    try:
        sub_vendor = client.ask(DiscoverSubVendor()).name
    except (NotFoundError, NotSupportedError):
        sub_vendor = ""
    agent, agent_name, agents = _agents(client, attributes.agents)
    return Identity(
        client.ask(DiscoverVendor()).name,
        sub_vendor,
        client.ask(DiscoverImplementation()).version,
        agent,
        agent_name,
        agents,
        versions,
    )


def _protocols(client: Client, total: int) -> list[int]:
    listed: list[int] = []
    while len(listed) < total:
        some = client.ask(ListProtocols(len(listed))).protocols
        if not some:
            raise _confused(client, f"announces {total} protocols and lists {len(listed)}")
        listed.extend(some)
    return listed


def _agents(client: Client, count: int) -> tuple[int, str, tuple[str, ...]]:
    """This agent's number and name, and all agents' names; the command is optional."""
    try:
        own = client.ask(DiscoverAgent(THIS_AGENT))
        return own.agent, own.name, tuple(client.ask(DiscoverAgent(agent)).name for agent in range(count + 1))
    except RefusedError:
        return 0, "", ()


def cap_domains(client: Client) -> tuple[CapDomain, ...]:
    """All power-capping domains."""
    count = client.ask(PowercapAttributes()).domains
    return tuple(_cap_domain(client, domain, count) for domain in range(count))


def _cap_domain(client: Client, domain: int, count: int) -> CapDomain:
    said = client.ask(PowercapDomain(domain))
    problem = _cap_problem(said, domain, count)
    if problem:
        raise _confused(client, f"power domain {domain} ({said.name}): {problem}")
    return CapDomain(
        domain,
        client.ask(PowercapName(domain)).name if said.has_extended_name else said.name,
        said.power_unit,
        said.parent,
        said.min_cap,
        said.max_cap,
        said.cap_step,
        said.sustainable_power,
        said.accuracy_percent,
        said.min_pai_us,
        said.max_pai_us,
        said.pai_step_us,
        said.can_set_cap,
        said.can_set_pai,
        said.has_monitoring,
        said.notifies_caps,
        said.notifies_measurements,
        said.has_fast_channels,
    )


def _cap_problem(said: PowercapDomainResponse, domain: int, count: int) -> str | None:
    """The checks that make Linux drop the whole protocol."""
    for what, settable, low, high, step in (
        ("cap", said.can_set_cap, said.min_cap, said.max_cap, said.cap_step),
        ("averaging interval", said.can_set_pai, said.min_pai_us, said.max_pai_us, said.pai_step_us),
    ):
        if not low or not high or low > high:
            return f"{what} range {low} to {high}"
        if settable != (low != high) or (settable and not step):
            return f"{what} is {'' if settable else 'not '}settable from {low} to {high} in steps of {step}"
    if said.parent != ROOT and (said.parent >= count or said.parent == domain):
        return f"its parent is {said.parent}"
    return None


def speed_domains(client: Client) -> tuple[SpeedDomain, ...]:
    """All performance domains with their levels."""
    attributes = client.ask(PerformanceAttributes())
    return tuple(_speed_domain(client, domain, attributes.power_unit) for domain in range(attributes.domains))


def _speed_domain(client: Client, domain: int, power_unit: str) -> SpeedDomain:
    said = client.ask(PerformanceDomain(domain))
    described = _levels(client, domain)
    levels = tuple(_level(client, said, level) for level in described)
    return SpeedDomain(
        domain,
        client.ask(PerformanceName(domain)).name if said.has_extended_name else said.name,
        power_unit,
        said.rate_limit_us,
        said.sustained_khz,
        levels,
        said.uses_indices,
        said.can_set_level,
        said.can_set_limits,
        said.notifies_level,
        said.notifies_limits,
        said.has_fast_channels,
    )


def _levels(client: Client, domain: int) -> list[Level | LevelV3]:
    listed: list[Level | LevelV3] = []
    remaining = 1
    while remaining:
        some = client.ask(DescribeLevels(domain, len(listed)))
        listed.extend(some.levels)
        remaining = some.remaining
        if remaining and (not some.levels or len(listed) + remaining > LARGEST_LIST):
            raise _confused(client, f"performance domain {domain}: {remaining} levels remain after {len(listed)}")
    if any(low.level >= high.level for low, high in itertools.pairwise(listed)):
        raise _confused(client, f"performance domain {domain}: its levels do not ascend")
    return listed


def _level(client: Client, said: PerformanceDomainResponse, level: Level | LevelV3) -> PerformanceLevel:
    """Frequency of a level (as in Linux: by the ratio of the sustained pair, or given with the index)."""
    if isinstance(level, Level) and said.uses_indices:
        return PerformanceLevel(level.index, level.indicative_khz, level.power_cost, level.latency_us)
    if not said.sustained_level or not said.sustained_khz:
        raise _confused(client, f"performance domain {said.name}: no sustained level to compute frequencies from")
    khz = level.level * said.sustained_khz // said.sustained_level
    return PerformanceLevel(level.level, khz, level.power_cost, level.latency_us)


def sensors(client: Client) -> tuple[SensorInfo, ...]:
    """All sensors."""
    count = client.ask(SensorAttributes()).sensors
    listed: list[SensorDescriptor] = []
    while len(listed) < count:
        some = client.ask(SensorDescriptions(len(listed)))
        if not some.sensors:
            raise _confused(client, f"announces {count} sensors and describes {len(listed)}")
        listed.extend(some.sensors)
    return tuple(
        SensorInfo(
            sensor.sensor,
            client.ask(SensorName(sensor.sensor)).name if sensor.has_extended_name else sensor.name,
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
