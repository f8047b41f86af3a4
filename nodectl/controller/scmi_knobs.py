"""Settings that an on-chip controller moves for us, over SCMI: power caps and clock limits of its domains.

A name holds all that is needed to find the knob again: ``scmi+shm:/run/scmi.sock#package/cap_mw``. Three kinds:

- ``cap_mw``, a power domain's cap. Its first value may be no cap at all, captured as the word "disabled": putting that
  back withdraws our cap. 0 is never taken as a cap to be set; capping is switched off by hand otherwise
  (``nodectl scmi cap URL DOMAIN --disable``).
- ``limit_khz``, the upper end of a performance domain's limits.
- ``level_khz``, its level. The controller grants the highest level that its agents ask for, so a level bounds a clock
  only while nobody else asks for more.

A SET that is answered is accepted, no more. ``set`` therefore reads back what is in force, and every heartbeat looks
again, and at the power that the controller measures. Caps are rounded down to the domain's step.

The standard does not say whose cap it is that CAP_GET tells. On our own firmware, known by its telemetry protocol, each
agent has a cap of its own and the lowest is in force: a lower one there is another agent's, and ours goes on to exist
below it. On any other controller a value that is not ours is somebody else's in place of ours.

The methods of ``Knob`` never touch the link themselves: they hand a job to ``Asks``, which does it in its own time and
gives up waiting before the agent's period suffers (``nodectl.controller.delegation``).

A cap under a cluster's grant must end with its lease, also when nothing runs on this node any more. Our firmware can do
that (LEASE_UNTIL of its telemetry protocol): told an end on its own clock and what the package has from then on at
most, it needs nobody. Each renewal tells it a later end; heartbeats move nothing. See ``CapLease``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from firmware_bridge.errors import LinkError, NotFoundError, RefusedError, RequestError, ScmiError
from firmware_bridge.scmi.controller import Controller
from firmware_bridge.scmi.domains import CapDomain, SpeedDomain, find
from firmware_bridge.scmi.protocols.telemetry import TELEMETRY, LeaseLeft, LeaseLeftResponse, LeaseUntil
from nodectl.decide.node_cap import CapLease
from nodectl.knobs.api import KnobError, Reason, WholeNumber

DISABLED: Final = "disabled"
"""The captured value of a power domain without a cap."""

LATENCY_S: Final = 0.002
"""Ours: a controller of 500 us periods decides in the next and applies in the one after; twice that."""

OVER_CAP: Final = 1.05
"""Ours: measured power this far above the cap, at two heartbeats running, is a cap that is not kept."""

CLOCKS_DIFFER: Final = 2e-3
"""Ours: the controller's clock and this node's, each within 0.1 % of true time (rule 3 of docs/ledger.md)."""

LONGEST_LEASE_MS: Final = 3_600_000
"""Of our firmware."""

_NAME: Final = re.compile(r"(?P<url>scmi\+[^#]+)#(?P<domain>[^/]+)/(?P<kind>cap_mw|limit_khz|level_khz)")

T = TypeVar("T")


class Asks(Protocol):
    """The way to a controller."""

    def ask(self, job: Callable[[Controller], T]) -> T:
        """What the job brings back; ``KnobError`` when it fails or when that takes too long."""


def lease_left(controller: Controller, domain: CapDomain) -> LeaseLeftResponse | str:
    """This channel's lease on the domain's cap, or why the controller can have none. Other ``ScmiError`` is raised."""
    if TELEMETRY not in controller.identity.versions:
        return "the controller offers no lease (vendor protocol 0x80)"
    if domain.number != 0:
        return f"the controller's lease is on power domain 0, and the cap on {domain.number} ({domain.name})"
    try:
        return controller.client.request(LeaseLeft())
    except NotFoundError:
        return "the controller's firmware is older than leases with a set end (vendor protocol 0x80, message 0x8)"


class ScmiKnob(WholeNumber):
    """What the three kinds share. ``wanted`` is the value that we last set, ``held`` what the controller held when last
    looked at, in the knob's unit; both None while unknown. ``trouble`` says why the last look brought nothing."""

    latency_s = LATENCY_S

    def __init__(self, asks: Asks, url: str, domain: str, kind: str) -> None:
        self.name = f"{url}#{domain}/{kind}"
        self.wanted: int | None = None
        self.held: int | None = None
        self.trouble = ""
        self._asks = asks
        self._domain = domain

    def read(self) -> str:
        """The value in force, asked for now."""
        return str(self._asks.ask(self._look))

    def set(self, value: int) -> None:
        """Ask for a value and wait until it is in force, or for as long as the way to the controller allows."""
        self.wanted = value
        self._asks.ask(lambda controller: self._put(controller, value))

    def read_back(self) -> int | None:
        """The value that the controller held at the last look; a heartbeat ago at most."""
        return self.held if self.held is not None else self._asks.ask(self._look)

    def restore(self, captured: str) -> None:
        """Ask for the captured value again."""
        if not captured.isdigit():
            raise KnobError(f"{self.name}: the saved state {captured!r} is not one this knob can have captured")
        self._asks.ask(lambda controller: self._put(controller, int(captured)))
        self.wanted = None

    def holds(self, asked: int, held: int) -> bool:
        """Is ``held`` what the controller makes of ``asked``?"""
        raise NotImplementedError

    def overruled(self, value: int) -> tuple[Reason, str]:
        """Never: what is read back is what is in force."""
        return "", ""

    def explain(self, asked: int, held: int | None) -> tuple[Reason, str]:
        """Nothing is known beyond what was read."""
        return "", ""

    # ---- on the controller's side, called by whoever owns the link ----

    def look(self, controller: Controller) -> None:
        """Bring ``held`` up to date. A refusal is part of the answer; ``LinkError`` when there is no answer."""
        try:
            self._look(controller)
            self.trouble = ""
        except LinkError:
            raise
        except ScmiError as error:
            self.held, self.trouble = None, str(error)

    def assert_again(self, controller: Controller) -> None:
        """After the controller was away: look, and set our value anew if it has lost it. Raises ``ScmiError``."""
        if self.wanted is not None and self.is_forgotten(self._look(controller)):
            self._put(controller, self.wanted)

    def is_forgotten(self, held: int) -> bool:
        """Is ``held`` what a controller has that was started afresh?"""
        raise NotImplementedError

    def _look(self, controller: Controller) -> int:
        raise NotImplementedError

    def _put(self, controller: Controller, value: int) -> None:
        raise NotImplementedError


class DomainCap(ScmiKnob):
    """A power domain's cap, milliwatts."""

    unit = "mw"

    def __init__(self, asks: Asks, url: str, domain: str) -> None:
        super().__init__(asks, url, domain, "cap_mw")
        self.draws_mw: int | None = None
        self.lease: CapLease | None = None
        """What the controller was told last."""
        self.why_no_lease = "the controller has not been asked for a lease yet"
        self._is_left_over = False
        self._over = 0
        self._keeps_agents_apart = False
        self._range_mw: tuple[int, int, int] | None = None  # lowest, highest, step

    def read(self) -> str:
        """The cap in force as digits, or "disabled"; that is what a cap was before our lease in an earlier boot."""
        if self._is_left_over:
            return DISABLED
        held = self._asks.ask(self._look)
        return str(held) if held else DISABLED

    def set(self, value: int) -> None:
        """Cap at ``value`` milliwatts, brought into the domain's range. 0 is refused: it would switch capping off."""
        if value <= 0:
            raise KnobError(f"{self.name}: a cap of 0 would switch capping off; that is `nodectl scmi cap --disable`")
        self._is_left_over = False
        super().set(value)

    def restore(self, captured: str) -> None:
        """Ask for the captured cap again, or withdraw ours where there was none."""
        if captured != DISABLED and not captured.isdigit():
            raise KnobError(f"{self.name}: the saved state {captured!r} is not one this knob can have captured")
        self._asks.ask(lambda controller: self._return_to(controller, 0 if captured == DISABLED else int(captured)))
        self.wanted = None

    def holds(self, asked: int, held: int) -> bool:
        """Caps are rounded down to the domain's step."""
        return self.brought_into_range(asked) == held

    def overruled(self, value: int) -> tuple[Reason, str]:
        """A cap below the domain's range becomes the lowest that it takes."""
        if self._range_mw is None or value >= self._range_mw[0]:
            return "", ""
        return "firmware", f"the domain takes no cap below {self._range_mw[0]} mW, which is in force"

    def end_at(self, lease: CapLease) -> None:
        """Have the controller end our cap by itself; whether it does is in ``lease`` and ``why_no_lease``."""
        self._asks.ask(lambda controller: self._arm(controller, lease))

    def look_for_lease(self, controller: Controller, is_captured: bool) -> None:
        """Find out whether it could. One that is there although nothing is captured is of a run before this boot: this
        machine has forgotten what it found then, and its controller has not."""
        found = lease_left(controller, self._domain_of(controller))
        self.why_no_lease = found if isinstance(found, str) else ""
        self._is_left_over = isinstance(found, LeaseLeftResponse) and found.cap_mw > 0 and not is_captured

    def explain(self, asked: int, held: int | None) -> tuple[Reason, str]:
        """Where agents have caps of their own, a lower one is another agent's and says nothing against ours."""
        if self._is_lapsed(asked, held):
            return "firmware", f"the lease is over: the controller holds it at {held} mW"
        if self._keeps_agents_apart and held is not None and 0 < held < asked:
            return "foreign writer", f"another agent's lower cap of {held} mW is in force"
        return "", ""

    def brought_into_range(self, asked: int) -> int:
        """The cap that is sent for ``asked``; as it is while the domain is not known."""
        if self._range_mw is None:
            return asked
        lowest, highest, step = self._range_mw
        inside = min(max(asked, lowest), highest)
        return max(inside - inside % step, lowest) if step else inside

    def is_in_force(self, asked: int) -> bool:
        """Does the controller hold a cap that is no higher than ``asked`` (or its lowest)?"""
        return self.held is not None and 0 < self.held <= self.brought_into_range(asked)

    def is_forgotten(self, held: int) -> bool:
        """A controller that was started afresh caps nothing."""
        return held == 0

    def assert_again(self, controller: Controller) -> None:
        """The lease goes first: a cap must not stand without its end."""
        if self.wanted is not None and self.lease is not None:
            self._arm(controller, self.lease)
        super().assert_again(controller)

    def look(self, controller: Controller) -> None:
        """The cap, and the power that the controller measures against it."""
        super().look(controller)
        domain = self._found(controller)
        if self.held is None or domain is None or not domain.has_monitoring:
            return
        try:
            self.draws_mw = round(domain.watts(controller.power(domain)[0]) * 1000)
        except RefusedError:
            self.draws_mw = None  # its sensor has failed; the cap itself is still in force
        is_over = self.held > 0 and self.draws_mw is not None and self.draws_mw > OVER_CAP * self.held
        self._over = self._over + 1 if is_over else 0

    @property
    def lower_cap(self) -> str:
        """Says that another agent's cap, lower than ours, is in force; "" otherwise."""
        if self.wanted is None or self.held is None or self.holds(self.wanted, self.held):
            return ""
        reason, text = self.explain(self.brought_into_range(self.wanted), self.held)
        return text if reason == "foreign writer" else ""

    @property
    def complaint(self) -> str:
        """Why the cap is not kept although it is in force; "" while it is."""
        if self._over < 2:
            return ""
        return f"{self.held} mW are in force, and the controller measures {self.draws_mw} mW"

    def _look(self, controller: Controller) -> int:
        domain = self._domain_of(controller)
        self.held = round(domain.watts(controller.cap(domain)) * 1000)
        return self.held

    def _put(self, controller: Controller, value: int) -> None:
        domain = self._domain_of(controller)
        outcome = controller.set_cap(domain, domain.rounded_down(self.brought_into_range(value) / 1000))
        self.held, self._over = round(domain.watts(outcome.enforced) * 1000), 0

    def _arm(self, controller: Controller, lease: CapLease) -> None:
        """The controller's clock is read first, and what is left counted from when its answer had come: however long
        the way took, there or back, the end there is not after the end here. Told too late it ends at once."""
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

    def _is_lapsed(self, asked: int, held: int | None) -> bool:
        """Is ``held`` what the controller has fallen to by itself?"""
        return self.lease is not None and held == self.brought_into_range(self.lease.cap_mw) < asked

    def _return_to(self, controller: Controller, captured: int) -> None:
        """Leave the cap as it was captured, and no lease of ours on it; one of silence that this channel had before
        rested meanwhile. Where agents have caps of their own, ours goes first: what is then in force shows whether the
        captured cap was another agent's, which must not become ours too."""
        held = self._look(controller)
        self.lease = None
        if self._keeps_agents_apart or (held and not captured):
            domain = self._domain_of(controller)
            held = self.held = round(domain.watts(controller.disable_cap(domain)) * 1000)
        if captured and held != captured:
            self._put(controller, captured)

    def _domain_of(self, controller: Controller) -> CapDomain:
        domain = find(controller.cap_domains, self._domain, "power domain")
        if not domain.can_set_cap:
            raise RequestError(f"power domain {domain.number} ({domain.name}): the controller lets nobody set its cap")
        self._keeps_agents_apart = TELEMETRY in controller.identity.versions
        self._range_mw = (
            -int(-domain.watts(domain.min_cap) * 1000 // 1),
            int(domain.watts(domain.max_cap) * 1000),
            max(int(domain.watts(domain.cap_step) * 1000), 1),
        )
        return domain

    def _found(self, controller: Controller) -> CapDomain | None:
        return next((d for d in controller.cap_domains if self._domain in (d.name, str(d.number))), None)


class DomainClock(ScmiKnob):
    """The upper limit of a performance domain, or its level; kilohertz."""

    unit = "khz"

    def __init__(self, asks: Asks, url: str, domain: str, kind: str) -> None:
        super().__init__(asks, url, domain, kind)
        self._is_level = kind == "level_khz"
        self._khz: tuple[int, ...] = ()

    def holds(self, asked: int, held: int) -> bool:
        """Clocks are rounded down to a listed level."""
        return held == self._at_or_below(asked)

    def is_forgotten(self, held: int) -> bool:
        """A controller that was started afresh runs free."""
        return (
            bool(self._khz) and held == self._khz[-1] and self.wanted is not None and not self.holds(self.wanted, held)
        )

    def _look(self, controller: Controller) -> int:
        domain = self._domain_of(controller)
        number = controller.level(domain) if self._is_level else controller.limits(domain)[1]
        khz = domain.khz(number)
        if khz is None:
            raise RequestError(f"performance domain {domain.number} ({domain.name}): {number} is no level it described")
        self.held = khz
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
                f"performance domain {domain.number} ({domain.name}): the controller lets nobody set its"
                f" {'level' if self._is_level else 'limits'}"
            )
        self._khz = tuple(level.khz for level in domain.levels)
        return domain

    def _at_or_below(self, asked: int) -> int:
        if not self._khz:
            return asked
        return max((khz for khz in self._khz if khz <= asked), default=self._khz[0])


def scmi_knob(asks: Asks, name: str) -> ScmiKnob:
    """The knob of that name; ``KnobError`` for a name that is none."""
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise KnobError(f"no kind of knob is called {name!r}")
    if parts["kind"] == "cap_mw":
        return DomainCap(asks, parts["url"], parts["domain"])
    return DomainClock(asks, parts["url"], parts["domain"], parts["kind"])


def url_of(name: str) -> str:
    """The controller's URL in a knob's name; "" for a knob of this node's own."""
    parts = _NAME.fullmatch(name)
    return parts["url"] if parts else ""


def as_knob_error(error: ScmiError) -> KnobError:
    """What went wrong between an agent and its controller, for a knob."""
    if isinstance(error, LinkError | RequestError):
        return KnobError(str(error), "vanished", "no answer" if isinstance(error, LinkError) else "")
    return KnobError(str(error), "refused", "firmware")


class Direct:
    """The way to a controller for a command that has nothing else to do: ask, and wait."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def ask(self, job: Callable[[Controller], T]) -> T:
        """Do the job now."""
        try:
            return job(self._controller)
        except ScmiError as error:
            raise as_knob_error(error) from error
