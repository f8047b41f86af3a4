"""Knobs that an SCMI controller moves for this node, and who enforces the cap now.

While the controller answers, it gets the decisions on the knobs that the settings delegate to it. When it is silent,
they go to this node's own knobs: RAPL limits where there are any, and clocks. A silent controller most likely still
enforces its last cap, but nobody can know. The node hands the cap back only after the *present* cap has been set at the
controller and verified; until then both enforce it, and the lower one is in force.

A cap under a cluster's grant has an end. A controller that supports this gets the end before the cap, so that the cap
ends with the lease even if this machine hangs.
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
    """The knobs that the settings delegate to a controller, and how each tick's decisions reach them."""

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
        """The decision rows that go to the controller while it answers."""
        return self._clocks

    def start(self) -> None:
        """Connect and read every knob once. ``KnobError`` for a domain that the controller does not have, since the
        settings are wrong; a controller that does not answer is only an alarm."""
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
        """Begin a tick: does the controller answer, and does it enforce this cap? ``packages_mw`` 0: no cap."""
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
            in_force = f"{self._cap.present} mW" if self._cap.present else "no cap"
            why = self._cap.trouble or f"{self._cap.wanted} mW requested, {in_force} in force"
            self._alarm(f"the controller answers, but the cap is not in force: {why}")
        return PackageCap(packages_mw, self._is_local)

    def look_for_lease(self, captured: Container[str]) -> None:
        """Find out whether the controller supports leases. Call it after ``start``, once ``captured``, the knobs that
        an earlier run of this boot has moved, is known."""
        cap = self._cap
        if cap and self._link.is_up:
            with contextlib.suppress(KnobError):  # the link reports it, and there is no grant yet
                self._runs.ask(lambda controller: cap.look_for_lease(controller, cap.name in captured))

    def end_at(self, lease: CapLease) -> None:
        """Have the controller end the cap with this lease. Call it in each tick before the cap is set; the result is in
        ``why_no_lease``."""
        if self._cap is None or lease in (self._lease, self._cap.lease) or not self._link.is_up:
            return
        self._lease = lease
        with contextlib.suppress(KnobError):  # no answer in time: it is done later, or the link reports the silence
            self._cap.end_at(lease)

    @property
    def why_no_lease(self) -> str:
        """Why the controller would not end the cap by itself if this machine hung; empty if it would."""
        if self._cap is None:
            return f"no controller enforces the cap ([scmi] knobs: {CAP_ROW})"
        if self._is_local:
            return "the controller does not enforce the cap, this node does"
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
        """For the journal: outcomes of the link since the last call, and of a cap that is not kept now."""
        found, self._outcomes = self._outcomes, []
        if self._cap and self._link.is_up and self._cap.complaint:
            found.append(Outcome(self._cap.name, "no-effect", self._cap.complaint, "firmware"))
        elif self._cap and self._link.is_up and self._cap.lower_cap:
            found.append(Outcome(self._cap.name, "foreign", self._cap.lower_cap, "foreign writer"))
        return found

    def notices(self) -> list[str]:
        """Lines for people since the last call, each once."""
        found, self._notices = self._notices, []
        return found

    def before_restoring(self) -> None:
        """The run ends: from now on calls may wait longer for the controller."""
        self._runs.new_tick(START_WAIT_S)

    def stop(self) -> None:
        """Close the link."""
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
    """Rows for ``doctor``: every domain of the controller, the knob it serves, or why it cannot be used."""
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
        why = "" if cap.can_set_cap else "this agent may not set this cap"
        why = why if is_in_watts else "counts in abstract units, not in watts"
        add("cap_mw", cap, cap.can_set_cap and is_in_watts, True, why)
    for speed in controller.speed_domains:
        can = speed.can_set_limits if limits else speed.can_set_level
        why = "" if can else f"this agent may not set its {settings.clocks_by}"
        add("limit_khz" if limits else "level_khz", speed, can and bool(speed.levels), False, why)
    for row, domain in missing.items():
        known = controller.cap_domains if row == CAP_ROW else controller.speed_domains
        why = f"wanted for {row}; there are {', '.join(d.name for d in known) or 'none'}"
        rows.append(Finding(f"{settings.url}#{domain}", "scmi", False, why=why))
    return rows
