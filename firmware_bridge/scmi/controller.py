"""A controller for its users: caps, levels and limits by domain, set and then verified.

SUCCESS of a SET only means accepted. So every set here is followed by the GET of the value in force, and the caller
gets both. The value in force may be lower than requested (another agent's cap, the platform's step); a higher one
raises ``NotVerifiedError``. A cap is rounded down to the domain's step before it is sent. 0 disables capping, so it is
never sent as a cap; ``disable_cap`` is for that.
"""

from __future__ import annotations

import contextlib
from typing import TypeVar

import msgspec

from firmware_bridge.errors import (
    DeniedError,
    InvalidParametersError,
    NotFoundError,
    NotSupportedError,
    NotVerifiedError,
    OutOfRangeError,
    RefusedError,
    RequestError,
)
from firmware_bridge.scmi import discovery
from firmware_bridge.scmi.client import Client
from firmware_bridge.scmi.domains import CapDomain, SensorInfo, SpeedDomain
from firmware_bridge.scmi.fast_channel import VERIFY_PAUSE_S, VERIFY_TRIES, FastSetting, find_setting
from firmware_bridge.scmi.messages.header import Protocol
from firmware_bridge.scmi.messages.message import WIRES, Body, Command
from firmware_bridge.scmi.protocols.performance import LevelGet, LevelSet, LimitsGet, LimitsSet, PerformanceFastChannel
from firmware_bridge.scmi.protocols.power_capping import (
    CAP_DISABLED,
    FLAG_ASYNCHRONOUS,
    CapGet,
    CapSet,
    CapSetComplete,
    MeasurementsGet,
    PaiGet,
    PaiSet,
    PowercapFastChannel,
)
from firmware_bridge.scmi.protocols.sensor import READ_ASYNCHRONOUSLY, Reading, ReadingComplete, ReadingGet
from firmware_bridge.scmi.protocols.telemetry import TELEMETRY, LeaseUntil

R = TypeVar("R", bound=Body)


class CapOutcome(msgspec.Struct, frozen=True):
    """A cap as requested, as sent after rounding down, and as enforced; in the domain's unit."""

    domain: CapDomain
    requested: int
    sent: int
    enforced: int
    is_fast: bool = False
    """Requested and confirmed through FastChannels, without a message."""


class LevelOutcome(msgspec.Struct, frozen=True):
    """A level as requested and as in force; another agent's request or a limit may change it."""

    domain: SpeedDomain
    requested: int
    in_force: int
    is_fast: bool = False
    """Requested and confirmed through FastChannels, without a message."""

    @property
    def is_as_requested(self) -> bool:
        """The level in force is the requested one."""
        return self.requested == self.in_force


class Controller:
    """A platform whose base protocol has been read. Domains and sensors are discovered when first needed."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.identity = discovery.identify(client)
        self._cap_domains: tuple[CapDomain, ...] | None = None
        self._speed_domains: tuple[SpeedDomain, ...] | None = None
        self._sensors: tuple[SensorInfo, ...] | None = None
        self._next_level_set_s: dict[int, float] = {}
        self._fast: dict[tuple[type[Body], int], FastSetting | None] = {}

    @property
    def cap_domains(self) -> tuple[CapDomain, ...]:
        """Power-capping domains; none if the platform does not support powercap."""
        if self._cap_domains is None:
            self._cap_domains = discovery.cap_domains(self.client) if self._speaks(Protocol.POWERCAP) else ()
        return self._cap_domains

    @property
    def speed_domains(self) -> tuple[SpeedDomain, ...]:
        """Performance domains."""
        if self._speed_domains is None:
            self._speed_domains = discovery.speed_domains(self.client) if self._speaks(Protocol.PERFORMANCE) else ()
        return self._speed_domains

    @property
    def sensors(self) -> tuple[SensorInfo, ...]:
        """Sensors."""
        if self._sensors is None:
            self._sensors = discovery.sensors(self.client) if self._speaks(Protocol.SENSOR) else ()
        return self._sensors

    def cap(self, domain: CapDomain) -> int:
        """The cap that is enforced; 0 when capping is disabled."""
        return self._ask(CapGet(domain.number), domain).cap

    def set_cap(self, domain: CapDomain, cap: int, *, asynchronously: bool = False, fast: bool = False) -> CapOutcome:
        """Set a cap in the domain's unit and read back what is enforced.

        A refusal leaves the previous cap in force and raises a ``RefusedError`` that names domain and range. ``fast``
        writes the cap to the domain's FastChannel; if there is none, or the cap does not appear there, a message is
        sent.
        """
        sent = domain.quantised(cap)
        if sent <= CAP_DISABLED:
            raise RequestError(
                f"power domain {domain.number} ({domain.name}): a cap of {domain.in_words(cap)} would disable capping;"
                f" its range is {domain.range_in_words()}"
            )
        channel = self._fast_setting(domain, PowercapFastChannel, CapSet, CapGet) if fast else None
        if channel and channel.put_in_force(sent):
            return CapOutcome(domain, cap, sent, sent, is_fast=True)
        if asynchronously:
            command = CapSet(domain.number, FLAG_ASYNCHRONOUS, sent)
            try:
                self.client.request_delayed(command, CapSetComplete)
            except RefusedError as error:
                raise _explained(error, domain) from None
        else:
            self._ask(CapSet(domain.number, 0, sent), domain)
        for attempt in range(VERIFY_TRIES):
            if attempt:
                self.client.transport.clock.sleep(VERIFY_PAUSE_S)
            enforced = self.cap(domain)
            if CAP_DISABLED < enforced <= sent:
                return CapOutcome(domain, cap, sent, enforced)
        state = "disabled" if enforced == CAP_DISABLED else domain.in_words(enforced)
        raise NotVerifiedError(
            f"power domain {domain.number} ({domain.name}): the cap of {domain.in_words(sent)} was accepted,"
            f" but the controller reports {state}"
        )

    def disable_cap(self, domain: CapDomain) -> int:
        """Withdraw this agent's cap, and a lease that would set one. Returns the cap that other agents still enforce,
        or 0."""
        version = self.identity.versions[Protocol.POWERCAP]
        if version < 0x20000:
            raise RequestError(f"powercap version {version:#x} cannot disable capping; set the highest cap instead")
        if domain.number == 0 and TELEMETRY in self.identity.versions:
            with contextlib.suppress(NotFoundError):  # older firmware has no such leases
                self.client.request(LeaseUntil(0, 0))
        self._ask(CapSet(domain.number, 0, CAP_DISABLED), domain)
        return self.cap(domain)

    def power(self, domain: CapDomain) -> tuple[int, int]:
        """Average power in the domain's unit, and the interval in us over which it was averaged."""
        measured = self._ask(MeasurementsGet(domain.number), domain)
        return measured.power, measured.pai_us

    def averaging_interval_us(self, domain: CapDomain) -> int:
        """The averaging interval of power and caps."""
        return self._ask(PaiGet(domain.number), domain).pai_us

    def set_averaging_interval_us(self, domain: CapDomain, interval_us: int) -> int:
        """Set the interval, rounded down to its step, and read it back."""
        sent = interval_us - (interval_us % domain.pai_step_us if domain.pai_step_us else 0)
        self._ask(PaiSet(domain.number, 0, sent), domain, f"{domain.min_pai_us} to {domain.max_pai_us} us")
        in_force = self.averaging_interval_us(domain)
        if in_force != sent:
            raise NotVerifiedError(
                f"power domain {domain.number} ({domain.name}): an averaging interval of {sent} us was accepted,"
                f" but the controller reports {in_force} us"
            )
        return in_force

    def level(self, domain: SpeedDomain) -> int:
        """The level in force."""
        return self._ask(LevelGet(domain.number), domain).level

    def set_level(self, domain: SpeedDomain, level: int, *, fast: bool = False) -> LevelOutcome:
        """Request a level and read back the one in force. Waits for the domain's rate limit first.

        ``fast`` as in ``set_cap``.
        """
        channel = self._fast_setting(domain, PerformanceFastChannel, LevelSet, LevelGet) if fast else None
        if channel and channel.put_in_force(level):
            return LevelOutcome(domain, level, level, is_fast=True)
        clock = self.client.transport.clock
        wait_s = self._next_level_set_s.get(domain.number, 0.0) - clock.now_s()
        if wait_s > 0.0:
            clock.sleep(wait_s)
        self._ask(LevelSet(domain.number, level), domain)
        self._next_level_set_s[domain.number] = clock.now_s() + domain.rate_limit_us * 1e-6
        for attempt in range(VERIFY_TRIES):
            if attempt:
                clock.sleep(VERIFY_PAUSE_S)
            in_force = self.level(domain)
            if in_force == level:
                break
        return LevelOutcome(domain, level, in_force)

    def limits(self, domain: SpeedDomain) -> tuple[int, int]:
        """Lowest and highest allowed level."""
        allowed = self._ask(LimitsGet(domain.number), domain)
        return allowed.lowest, allowed.highest

    def set_limits(self, domain: SpeedDomain, lowest: int, highest: int) -> tuple[int, int]:
        """Set the allowed range and read it back; 0 leaves a limit unchanged. Other agents may narrow it further."""
        self._ask(LimitsSet(domain.number, highest, lowest), domain)
        in_force = self.limits(domain)
        if in_force[0] < lowest or 0 < highest < in_force[1]:
            raise NotVerifiedError(
                f"performance domain {domain.number} ({domain.name}): limits {lowest} to {highest} were accepted,"
                f" but the controller reports {in_force[0]} to {in_force[1]}"
            )
        return in_force

    def readings(self, sensor: SensorInfo, *, asynchronously: bool = False) -> tuple[Reading, ...]:
        """A sensor's readings as integers, one per axis; ``SensorInfo.value`` converts them."""
        try:
            if asynchronously:
                command = ReadingGet(sensor.number, READ_ASYNCHRONOUSLY)
                return self.client.request_delayed(command, ReadingComplete).readings
            return self.client.request(ReadingGet(sensor.number, 0)).readings
        except RefusedError as error:
            raise error.with_hint(f"sensor {sensor.number} ({sensor.name})") from None

    def close(self) -> None:
        """Close the link. Requests stay in force."""
        self.client.close()

    def _speaks(self, protocol: Protocol) -> bool:
        return protocol in self.identity.versions

    def _fast_setting(
        self,
        domain: CapDomain | SpeedDomain,
        describe: type[PowercapFastChannel] | type[PerformanceFastChannel],
        *commands: type[Body],
    ) -> FastSetting | None:
        """The FastChannels that replace a SET and a GET of the domain; their descriptions are read once."""
        key = (describe, domain.number)
        if key not in self._fast:
            request, in_force = (describe(domain.number, WIRES[command].message) for command in commands)
            self._fast[key] = find_setting(self.client, request, in_force) if domain.has_fast_channels else None
        return self._fast[key]

    def _ask(self, command: Command[R], domain: CapDomain | SpeedDomain, bounds: str = "") -> R:
        try:
            return self.client.request(command)
        except RefusedError as error:
            raise _explained(error, domain, bounds) from None


def _explained(error: RefusedError, domain: CapDomain | SpeedDomain, bounds: str = "") -> RefusedError:
    """The same refusal with domain and range."""
    what = "power domain" if isinstance(domain, CapDomain) else "performance domain"
    place = f"{what} {domain.number} ({domain.name})"
    if isinstance(error, OutOfRangeError | InvalidParametersError):
        return error.with_hint(f"{place} takes {bounds or domain.range_in_words()}; the earlier value stays in force")
    if isinstance(error, DeniedError | NotFoundError | NotSupportedError):
        return error.with_hint(f"{place}; the earlier value stays in force")
    return error.with_hint(place)
