"""Knobs that an on-chip controller moves for us over SCMI: power caps and clock limits of its domains.

A name has all that is needed to find the knob again: ``scmi+shm:/run/scmi.sock#package/cap_mw``. Three kinds:

- ``cap_mw``, the cap of a power domain. Where the domain had no cap, "disabled" is captured, and a restore withdraws
  our cap. 0 is never set as a cap: it would switch capping off, which people do by
  ``nodectl scmi cap URL DOMAIN --disable``.
- ``limit_khz``, the upper end of a performance domain's limits.
- ``level_khz``, its level. The controller grants the highest level that any agent requests, so a level bounds a clock
  only while no other agent requests more.

The answer to a SET only says that it was accepted. So ``set`` reads back what is in force, and every heartbeat reads it
again, together with the power that the controller measures. Caps are rounded down to the domain's step.

The standard does not say whose cap CAP_GET returns. In our own firmware, recognised by its telemetry protocol, each
agent has a cap of its own and the lowest is in force: a lower value is another agent's, and our own cap still exists.
With any other controller, a value that is not ours has replaced ours.

The methods of ``Knob`` never touch the link themselves: they pass a job to ``ControllerAccess``, which gives up waiting
before the agent's period suffers (``nodectl.controller.scmi_link``).

A cap under a cluster's grant must end with its lease, even when nothing runs on this node any more. Our firmware does
that by itself (LEASE_UNTIL of its telemetry protocol): it gets the end on its own clock, and the cap of the package
from then on. Each renewal sets a later end; a heartbeat changes nothing. See ``CapLease``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import msgspec

from firmware_bridge.errors import LinkError, MessageError, NotFoundError, RefusedError, RequestError, ScmiError
from firmware_bridge.scmi.controller import Controller
from firmware_bridge.scmi.domains import CapDomain, SpeedDomain, find
from firmware_bridge.scmi.protocols.telemetry import TELEMETRY, LeaseLeft, LeaseLeftResponse, LeaseUntil
from nodectl.decide.node_cap import CapLease
from nodectl.knobs.api import KnobError, Reason, WholeNumber
from nodectl.knobs.recipe import ScmiRecipe
from pmu.driver_values import MOST_KHZ, MOST_LIMIT_UW, digits, whole

DISABLED: Final = "disabled"
"""The captured value of a power domain without a cap."""

LATENCY_S: Final = 0.002
"""Ours: a controller with periods of 500 us decides in the next period and applies in the one after; twice that."""

OVER_CAP: Final = 1.05
"""Ours: a cap is not kept if the measured power is this far above it at two heartbeats in a row."""

CLOCKS_DIFFER: Final = 2e-3
"""Ours: how far the controller's clock and this node's may differ, each within 0.1 % of true time (rule 3 of
docs/ledger.md)."""

LONGEST_LEASE_MS: Final = 3_600_000
"""Of our firmware."""

MOST_MW: Final = MOST_LIMIT_UW // 1000

_NAME: Final = re.compile(r"(?P<url>scmi\+[^#]+)#(?P<domain>[^/]+)/(?P<kind>cap_mw|limit_khz|level_khz)")

T = TypeVar("T")


class ControllerAccess(Protocol):
    """Runs a job with the controller and waits for its result."""

    def ask(self, job: Callable[[Controller], T]) -> T:
        """The result of the job; ``KnobError`` when it fails or takes too long."""


def lease_left(controller: Controller, domain: CapDomain) -> LeaseLeftResponse | str:
    """This channel's lease on the domain's cap, or why the controller supports none. Raises any other ``ScmiError``."""
    if TELEMETRY not in controller.identity.versions:
        return "the controller offers no lease (vendor protocol 0x80)"
    if domain.number != 0:
        return f"the controller's lease is on power domain 0, and the cap on {domain.number} ({domain.name})"
    try:
        return controller.client.request(LeaseLeft())
    except NotFoundError:
        return "the controller's firmware is older than leases with a set end (vendor protocol 0x80, message 0x8)"


class ScmiKnob(WholeNumber):
    """What the three kinds share. ``wanted`` is the value that we last set, ``present`` the one that was in force when
    last read, in the knob's unit; both None while unknown. ``trouble`` says why the last reading failed."""

    latency_s = LATENCY_S

    def __init__(self, access: ControllerAccess, url: str, domain: str, kind: str) -> None:
        self.name = f"{url}#{domain}/{kind}"
        self.wanted: int | None = None
        self.present: int | None = None
        self.trouble = ""
        self._access = access
        self._domain = domain
        self._recipe = ScmiRecipe(url, domain, kind)

    def recipe(self) -> ScmiRecipe:
        """Controller, domain and setting, and what the controller has said of the domain so far."""
        return self._recipe

    def read(self) -> str:
        """The value in force, read now."""
        return str(self._access.ask(self._look))

    def set(self, value: int) -> None:
        """Request a value and wait until it is in force, or as long as ``ControllerAccess`` allows."""
        self.wanted = value
        self._access.ask(lambda controller: self._put(controller, value))

    def read_back(self) -> int | None:
        """The value in force when last read; a heartbeat ago at most."""
        return self.present if self.present is not None else self._access.ask(self._look)

    def restore(self, captured: str) -> None:
        """Request the captured value again."""
        value = digits(captured)
        if value is None:
            raise KnobError(f"{self.name}: the saved state {captured!r} is not one this knob can have captured")
        self._access.ask(lambda controller: self._put(controller, value))
        self.wanted = None

    def matches(self, requested: int, present: int) -> bool:
        """Is ``present`` what the controller sets for ``requested``?"""
        raise NotImplementedError

    def overruled(self, value: int) -> tuple[Reason, str]:
        """Never overruled: what is read back is what is in force."""
        return "", ""

    def explain(self, requested: int, present: int | None) -> tuple[Reason, str]:
        """No explanation: nothing is known beyond what was read."""
        return "", ""

    # ---- with the controller at hand, called by the owner of the link ----

    def look(self, controller: Controller) -> None:
        """Update ``present``, or ``trouble`` if the controller refuses. ``LinkError`` when there is no answer."""
        try:
            self._look(controller)
            self.trouble = ""
        except LinkError:
            raise
        except ScmiError as error:
            self.present, self.trouble = None, str(error)

    def assert_again(self, controller: Controller) -> None:
        """After the controller was away: set our value again if it has lost it. Raises ``ScmiError``."""
        if self.wanted is not None and self.is_forgotten(self._look(controller)):
            self._put(controller, self.wanted)

    def is_forgotten(self, present: int) -> bool:
        """Does ``present`` show that the controller was restarted and has lost our value?"""
        raise NotImplementedError

    def _look(self, controller: Controller) -> int:
        raise NotImplementedError

    def _put(self, controller: Controller, value: int) -> None:
        raise NotImplementedError


class DomainCap(ScmiKnob):
    """A power domain's cap, milliwatts."""

    unit = "mw"

    def __init__(self, access: ControllerAccess, url: str, domain: str) -> None:
        super().__init__(access, url, domain, "cap_mw")
        self.power_mw: int | None = None
        self.lease: CapLease | None = None
        """The last lease that the controller confirmed."""
        self.why_no_lease = "no lease has been requested from the controller yet"
        self._is_left_over = False
        self._over = 0
        self._keeps_agents_apart = False
        self._range_mw: tuple[int, int, int] | None = None  # lowest, highest, step

    def read(self) -> str:
        """The cap in force as digits, or "disabled". A cap that a lease of an earlier boot has left counts as
        "disabled": there was none before that lease."""
        if self._is_left_over:
            return DISABLED
        in_force = self._access.ask(self._look)
        return str(in_force) if in_force else DISABLED

    def set(self, value: int) -> None:
        """Cap at ``value`` milliwatts, brought into the domain's range. 0 is refused: it would switch capping off."""
        if value <= 0:
            raise KnobError(f"{self.name}: a cap of 0 would switch capping off; that is `nodectl scmi cap --disable`")
        self._is_left_over = False
        super().set(value)

    def restore(self, captured: str) -> None:
        """Request the captured cap again, or withdraw ours where there was none."""
        if captured != DISABLED and digits(captured) is None:
            raise KnobError(f"{self.name}: the saved state {captured!r} is not one this knob can have captured")
        self._access.ask(lambda controller: self._return_to(controller, 0 if captured == DISABLED else int(captured)))
        self.wanted = None

    def matches(self, requested: int, present: int) -> bool:
        """Caps are rounded down to the domain's step."""
        return self.brought_into_range(requested) == present

    def overruled(self, value: int) -> tuple[Reason, str]:
        """A cap below the domain's range becomes the lowest of the range."""
        if self._range_mw is None or value >= self._range_mw[0]:
            return "", ""
        return "firmware", f"the domain accepts no cap below {self._range_mw[0]} mW, which is in force"

    def end_at(self, lease: CapLease) -> None:
        """Have the controller end our cap by itself; ``lease`` and ``why_no_lease`` show whether it will."""
        self._access.ask(lambda controller: self._arm(controller, lease))

    def look_for_lease(self, controller: Controller, is_captured: bool) -> None:
        """Find out whether the controller supports leases. A lease that exists although nothing is captured is from
        before this boot: this machine has lost what it captured then, but the controller kept the lease."""
        found = lease_left(controller, self._domain_of(controller))
        self.why_no_lease = found if isinstance(found, str) else ""
        self._is_left_over = isinstance(found, LeaseLeftResponse) and found.cap_mw > 0 and not is_captured

    def explain(self, requested: int, present: int | None) -> tuple[Reason, str]:
        """Where each agent has a cap of its own, a lower value is another agent's; ours is still set."""
        if self._is_lapsed(requested, present):
            return "firmware", f"the lease is over: the controller keeps it at {present} mW"
        if self._keeps_agents_apart and present is not None and 0 < present < requested:
            return "foreign writer", f"another agent's lower cap of {present} mW is in force"
        return "", ""

    def brought_into_range(self, requested: int) -> int:
        """The cap that is sent for ``requested``; unchanged while the domain is not known."""
        if self._range_mw is None:
            return requested
        lowest, highest, step = self._range_mw
        inside = min(max(requested, lowest), highest)
        return max(inside - inside % step, lowest) if step else inside

    def is_in_force(self, requested: int) -> bool:
        """Is a cap in force that is no higher than ``requested``, or than the domain's lowest?"""
        return self.present is not None and 0 < self.present <= self.brought_into_range(requested)

    def is_forgotten(self, present: int) -> bool:
        """A controller that was restarted has no cap."""
        return present == 0

    def assert_again(self, controller: Controller) -> None:
        """Set the lease first: a cap must not be set without its end."""
        if self.wanted is not None and self.lease is not None:
            self._arm(controller, self.lease)
        super().assert_again(controller)

    def look(self, controller: Controller) -> None:
        """Update the cap in force, and the power that the controller measures against it."""
        super().look(controller)
        domain = self._found(controller)
        if self.present is None or domain is None or not domain.has_monitoring:
            return
        try:
            self.power_mw = whole(domain.watts(controller.power(domain)[0]) * 1000, (0, MOST_MW))
        except RefusedError:
            self.power_mw = None  # the power sensor has failed; the cap itself is still in force
        is_over = self.present > 0 and self.power_mw is not None and self.power_mw > OVER_CAP * self.present
        self._over = self._over + 1 if is_over else 0

    @property
    def lower_cap(self) -> str:
        """A line saying that another agent's lower cap is in force; "" otherwise."""
        if self.wanted is None or self.present is None or self.matches(self.wanted, self.present):
            return ""
        reason, text = self.explain(self.brought_into_range(self.wanted), self.present)
        return text if reason == "foreign writer" else ""

    @property
    def complaint(self) -> str:
        """Why the cap is not kept although it is in force; "" while it is."""
        if self._over < 2:
            return ""
        return f"{self.present} mW are in force, and the controller measures {self.power_mw} mW"

    def _look(self, controller: Controller) -> int:
        domain = self._domain_of(controller)
        self.present = _cap_mw(domain, controller.cap(domain))
        return self.present

    def _put(self, controller: Controller, value: int) -> None:
        domain = self._domain_of(controller)
        outcome = controller.set_cap(domain, domain.rounded_down(self.brought_into_range(value) / 1000))
        self.present, self._over = _cap_mw(domain, outcome.enforced), 0

    def _arm(self, controller: Controller, lease: CapLease) -> None:
        """Set the end of the cap on the controller's clock, never later than the end on ours.

        The controller's time is read first, and the time left is counted from the arrival of its answer. So delays on
        the way, there or back, only make the end earlier. A lease that is over ends at once.
        """
        try:
            found = lease_left(controller, self._domain_of(controller))
            if isinstance(found, str):
                self.why_no_lease = found
                return
            left_ms = int((lease.end_ns - lease.now_ns()) / 1e6 * (1 - CLOCKS_DIFFER))
            end_ms = (found.now_ms + min(max(left_ms, 0), LONGEST_LEASE_MS)) % 2**32
            controller.client.request(LeaseUntil(end_ms, self.brought_into_range(lease.cap_mw)))
            self.lease, self.why_no_lease = lease, ""
        except RefusedError as refused:
            self.why_no_lease = str(refused)

    def _is_lapsed(self, requested: int, present: int | None) -> bool:
        """Is ``present`` the cap to which the controller fell when the lease ended?"""
        return self.lease is not None and present == self.brought_into_range(self.lease.cap_mw) < requested

    def _return_to(self, controller: Controller, captured: int) -> None:
        """Restore the captured cap (0: none) and end our lease. Where each agent has a cap of its own, withdraw ours
        first: what is then in force shows whether the captured cap is another agent's, which must not be set as ours
        too."""
        in_force = self._look(controller)
        self.lease = None
        if self._keeps_agents_apart or (in_force and not captured):
            domain = self._domain_of(controller)
            in_force = self.present = _cap_mw(domain, controller.disable_cap(domain))
        if captured and in_force != captured:
            self._put(controller, captured)

    def _domain_of(self, controller: Controller) -> CapDomain:
        domain = find(controller.cap_domains, self._domain, "power domain")
        if not domain.can_set_cap:
            raise RequestError(f"power domain {domain.number} ({domain.name}): this agent may not set its cap")
        self._keeps_agents_apart = TELEMETRY in controller.identity.versions
        self._range_mw = (
            -int(-domain.watts(domain.min_cap) * 1000 // 1),
            int(domain.watts(domain.max_cap) * 1000),
            max(int(domain.watts(domain.cap_step) * 1000), 1),
        )
        lowest, highest, step = self._range_mw
        self._recipe = msgspec.structs.replace(
            self._recipe, number=domain.number, lowest=lowest, highest=highest, step=step,
            units=(domain.rounded_down(1e-3), domain.min_cap, domain.cap_step),
            keeps_agents_apart=self._keeps_agents_apart,
        )  # fmt: skip
        return domain

    def _found(self, controller: Controller) -> CapDomain | None:
        return next((d for d in controller.cap_domains if self._domain in (d.name, str(d.number))), None)


class DomainClock(ScmiKnob):
    """The upper limit of a performance domain, or its level; kilohertz."""

    unit = "khz"

    def __init__(self, access: ControllerAccess, url: str, domain: str, kind: str) -> None:
        super().__init__(access, url, domain, kind)
        self._is_level = kind == "level_khz"
        self._khz: tuple[int, ...] = ()

    def matches(self, requested: int, present: int) -> bool:
        """Clocks are rounded down to a listed level."""
        return present == self._at_or_below(requested)

    def is_forgotten(self, present: int) -> bool:
        """A controller that was restarted is at its highest clock."""
        is_highest = bool(self._khz) and present == self._khz[-1]
        return is_highest and self.wanted is not None and not self.matches(self.wanted, present)

    def _look(self, controller: Controller) -> int:
        domain = self._domain_of(controller)
        number = controller.level(domain) if self._is_level else controller.limits(domain)[1]
        khz = whole(domain.khz(number), (0, MOST_KHZ))
        if khz is None:
            raise RequestError(f"performance domain {domain.number} ({domain.name}): it has not listed level {number}")
        self.present = khz
        return khz

    def _put(self, controller: Controller, value: int) -> None:
        domain = self._domain_of(controller)
        number = domain.level_at_or_below(max(value, self._khz[0]))
        if self._is_level:
            controller.set_level(domain, number)
        else:
            lowest, _ = controller.limits(domain)
            controller.set_limits(domain, min(lowest, number), number)
        self._look(controller)

    def _domain_of(self, controller: Controller) -> SpeedDomain:
        domain = find(controller.speed_domains, self._domain, "performance domain")
        if not (domain.can_set_level if self._is_level else domain.can_set_limits) or not domain.levels:
            raise RequestError(
                f"performance domain {domain.number} ({domain.name}): this agent may not set its"
                f" {'level' if self._is_level else 'limits'}"
            )
        self._khz = tuple(level.khz for level in domain.levels)
        levels = tuple((level.khz, level.number) for level in domain.levels)
        self._recipe = msgspec.structs.replace(self._recipe, number=domain.number, levels=levels)
        return domain

    def _at_or_below(self, requested: int) -> int:
        if not self._khz:
            return requested
        return max((khz for khz in self._khz if khz <= requested), default=self._khz[0])


def _cap_mw(domain: CapDomain, cap: int) -> int:
    """What a controller says is in force, believed only where it can be: all ones mean that it does not know."""
    found = whole(domain.watts(cap) * 1000, (0, MOST_MW))
    if found is None:
        raise MessageError(f"power domain {domain.number} ({domain.name}): no hardware has the cap {cap} that it shows")
    return found


def scmi_knob(access: ControllerAccess, name: str) -> ScmiKnob:
    """The knob of that name; ``KnobError`` for a name of no known kind."""
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise KnobError(f"no kind of knob is called {name!r}")
    if parts["kind"] == "cap_mw":
        return DomainCap(access, parts["url"], parts["domain"])
    return DomainClock(access, parts["url"], parts["domain"], parts["kind"])


def url_of(name: str) -> str:
    """The controller's URL in a knob's name; "" for a knob that is not behind a controller."""
    parts = _NAME.fullmatch(name)
    return parts["url"] if parts else ""


def as_knob_error(error: ScmiError) -> KnobError:
    """An error between the agent and its controller as the error of a knob."""
    if isinstance(error, LinkError | RequestError):
        return KnobError(str(error), "vanished", "no answer" if isinstance(error, LinkError) else "")
    return KnobError(str(error), "refused", "firmware")


class Direct:
    """``ControllerAccess`` for a command, which may wait as long as it takes."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def ask(self, job: Callable[[Controller], T]) -> T:
        """Do the job now."""
        try:
            return job(self._controller)
        except ScmiError as error:
            raise as_knob_error(error) from error
