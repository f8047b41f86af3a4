"""Knobs that an SCMI controller moves for this node, and who holds the cap now.

While the controller answers, decisions on the knobs that the settings give to it go there; when it falls silent they go
to this node's own: RAPL limits where it has any, and clocks. A silent controller most likely still enforces the last
cap that it was given, but nobody can know. It is handed back the cap only when the cap of *now* has been set there and
verified; until then both hold it, and the lower one is in force.

A cap under a cluster's grant has an end, and a controller that can is told it, before the cap: then the cap ends with
the lease even if this machine hangs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Mapping
from typing import Any

from firmware_bridge.errors import ScmiError
from firmware_bridge.scmi.controller import Controller
from nodectl.config import Scmi
from nodectl.controller.scmi_knobs import DomainCap, DomainClock
from nodectl.controller.scmi_link import START_WAIT_S, Runs, patient_client
from nodectl.decide.node_cap import CAP_ROW, CapLease, PackageCap
from nodectl.knobs.api import Knob, KnobError, Outcome
from pmu.findings import Finding


class Delegation:
    """The knobs of this node that the settings give to a controller, and how each tick's decisions reach them."""

    def __init__(self, settings: Scmi, runs: Runs) -> None:
        self._runs, self._link = runs, runs.link
        kind = "limit_khz" if settings.clocks_by == "limits" else "level_khz"
        self._cap: DomainCap | None = None
        self._clocks: dict[str, DomainClock] = {}
        for row, domain in settings.knobs.items():
            if row == CAP_ROW:
                self._cap = DomainCap(runs, settings.url, domain)
            else:
                self._clocks[row] = DomainClock(runs, settings.url, domain, kind)
        self.knobs: list[Knob] = [*([self._cap] if self._cap else []), *self._clocks.values()]
        self._link.knobs = [*([self._cap] if self._cap else []), *self._clocks.values()]
        self._is_local = True
        self._lease: CapLease | None = None
        self._outcomes: list[Outcome] = []
        self._notices: list[str] = []

    @property
    def rows(self) -> Iterable[str]:
        """The rows of the decisions that go to the controller while it answers."""
        return self._clocks

    def start(self) -> None:
        """Connect and look once. A domain that the controller does not have is a ``KnobError``: the settings are wrong;
        a controller that does not answer is an alarm."""
        self._runs.new_tick(START_WAIT_S)
        self._runs.start()
        if self._link.is_up:
            for knob in self._link.knobs:
                if knob.trouble:
                    raise KnobError(knob.trouble)
            self._link.changes.clear()
            self._is_local = False
            return
        self._alarm(f"no controller ({self._link.why_down})")

    def update(self, packages_mw: int) -> PackageCap:
        """Begin a tick: is the controller there, and does it hold this cap? ``packages_mw`` 0 asks for none."""
        self._runs.new_tick()
        self._note_changes()
        if self._cap is None:
            return PackageCap(packages_mw, True)
        if not self._link.is_up:
            self._is_local = True
        elif self._is_local:
            self._is_local = packages_mw > 0 and not self._cap.is_in_force(packages_mw)
            if not self._is_local:
                self._notices.append(f"{self._link.url}: the cap is in force again and verified: handed back")
        elif self._cap.wanted is not None and not self._cap.is_in_force(self._cap.wanted):
            self._is_local = True
            why = self._cap.trouble or f"it holds {self._cap.held or 'no cap'}, {self._cap.wanted} mW were asked"
            self._alarm(f"the controller answers, but the cap is not in force: {why}")
        return PackageCap(packages_mw, self._is_local)

    def look_for_lease(self, captured: Container[str]) -> None:
        """After ``start``, and when it is known which knobs an earlier run of this boot has moved."""
        cap = self._cap
        if cap and self._link.is_up:
            with contextlib.suppress(KnobError):  # it says so itself, and no grant is there yet
                self._runs.ask(lambda controller: cap.look_for_lease(controller, cap.name in captured))

    def end_at(self, lease: CapLease) -> None:
        """The grant that caps this node ends then; in this tick before the cap is set. What comes of it is in
        ``why_no_lease``."""
        if self._cap is None or lease in (self._lease, self._cap.lease) or not self._link.is_up:
            return
        self._lease = lease
        with contextlib.suppress(KnobError):  # no answer in time: it is done all the same, or the silence is noticed
            self._cap.end_at(lease)

    @property
    def why_no_lease(self) -> str:
        """Why the controller would not end the cap by itself if nothing ran here any more; empty if it would."""
        if self._cap is None:
            return f"no controller holds the cap ([scmi] knobs: {CAP_ROW})"
        if self._is_local:
            return "the controller does not hold the cap, this node does"
        if self._cap.why_no_lease or self._lease is None or self._cap.lease == self._lease:
            return self._cap.why_no_lease
        return "the controller has not confirmed the lease yet"

    def settings(self, decided: Mapping[str, int]) -> dict[str, int]:
        """Where each value goes: to the controller while it answers, else to this node's own knob of that name."""
        settled: dict[str, int] = {}
        for row, value in decided.items():
            knob = self._clocks.get(row)
            if row == CAP_ROW:
                if self._cap and self._link.is_up:
                    settled[self._cap.name] = value
            elif knob and self._link.is_up:
                settled[row] = 0  # released before the controller's is set
                settled[knob.name] = value
            else:
                settled[row] = value
        return settled

    def outcomes(self) -> list[Outcome]:
        """What is to be journalled of the link itself since the last call, and of a cap that is not kept."""
        said, self._outcomes = self._outcomes, []
        if self._cap and self._link.is_up and self._cap.complaint:
            said.append(Outcome(self._cap.name, "no-effect", self._cap.complaint, "firmware"))
        elif self._cap and self._link.is_up and self._cap.lower_cap:
            said.append(Outcome(self._cap.name, "foreign", self._cap.lower_cap, "foreign writer"))
        return said

    def notices(self) -> list[str]:
        """What is to be told to people since the last call, each once."""
        said, self._notices = self._notices, []
        return said

    def before_restoring(self) -> None:
        """The run ends: from now on waiting does no harm."""
        self._runs.new_tick(START_WAIT_S)

    def stop(self) -> None:
        """Let go of the controller."""
        self._runs.stop()

    def _note_changes(self) -> None:
        while self._link.changes:
            change = self._link.changes.popleft()
            if change.is_up:
                self._outcomes.append(Outcome(self._link.url, "answers", "the controller answers again"))
                wanted = [knob.name for knob in self._link.knobs if knob.wanted is not None]
                verified = f"; in force again: {', '.join(wanted)}" if wanted else ""
                self._notices.append(f"{self._link.url}: the controller answers again{verified}")
            else:
                self._alarm(f"the controller is silent: {change.why}")

    def _alarm(self, what: str) -> None:
        line = f"ALARM: {what}; this node caps by itself" if self._cap else f"ALARM: {what}; own clock limits are used"
        self._outcomes.append(Outcome(self._link.url, "silent", line, "no answer"))
        self._notices.append(line if self._link.url in line else f"{self._link.url}: {line}")


def findings(settings: Scmi) -> list[Finding]:
    """What ``doctor`` says: every domain of the controller, what it is taken for, and why it cannot be used if not."""
    if not settings.url:
        return []
    try:
        client = patient_client(settings.url)
        try:
            return _domain_findings(settings, Controller(client))
        finally:
            client.close()
    except ScmiError as error:
        return [Finding(settings.url, "scmi", False, why=str(error))]


def _domain_findings(settings: Scmi, controller: Controller) -> list[Finding]:
    rows: list[Finding] = []
    missing = dict(settings.knobs)
    limits = settings.clocks_by == "limits"

    def add(kind: str, domain: Any, is_settable: bool, is_cap: bool, why_not: str) -> None:
        names = (domain.name, str(domain.number))
        taken = [row for row, name in settings.knobs.items() if (row == CAP_ROW) == is_cap and name in names]
        for row in taken:
            missing.pop(row, None)
        use = f"taken for {', '.join(taken)}" if taken else "not taken ([scmi] knobs)"
        name, remark = f"{settings.url}#{domain.name}/{kind}", f"{why_not or domain.range_in_words()}; {use}"
        rows.append(Finding(name, "scmi", True, True, is_settable, False, remark))

    for cap in controller.cap_domains:
        is_in_watts = cap.unit in ("uW", "mW")
        why = "" if cap.can_set_cap else "the controller lets nobody set this cap"
        why = why if is_in_watts else "counts in abstract units, not in watts"
        add("cap_mw", cap, cap.can_set_cap and is_in_watts, True, why)
    for speed in controller.speed_domains:
        can = speed.can_set_limits if limits else speed.can_set_level
        why = "" if can else f"the controller lets nobody set its {settings.clocks_by}"
        add("limit_khz" if limits else "level_khz", speed, can and bool(speed.levels), False, why)
    for row, domain in missing.items():
        known = controller.cap_domains if row == CAP_ROW else controller.speed_domains
        why = f"wanted for {row}; there are {', '.join(d.name for d in known) or 'none'}"
        rows.append(Finding(f"{settings.url}#{domain}", "scmi", False, why=why))
    return rows
