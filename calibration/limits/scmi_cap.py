"""The cap of an SCMI controller's power domain, and the power that follows it.

The cap is a knob like any other: the writer captures it, and puts it back. Power is read by the packages' energy
counters, which are independent of the controller; where a node has none, as the controller itself measures it, an
average over its interval (PAI). Source: Arm DEN0056, 4.10.
"""

from __future__ import annotations

import math
from typing import Final

from calibration.limits.knob_latency import LatencyPlan
from calibration.limits.probes import LimitsError, type_shows
from calibration.limits.session_probes import Knobs, PackageEnergy
from firmware_bridge.errors import ScmiError
from firmware_bridge.scmi.controller import Controller
from firmware_bridge.scmi.domains import CapDomain, find
from nodectl.controller.scmi_knobs import Direct, DomainCap
from pmu.layout import Layout
from pmu.ports import Ports

PLAN: Final = LatencyPlan(poll_s=0.0005, settle_s=0.2, apart_s=0.01, give_up_s=1.0, repeats=60, longest_poll_s=0.064)
"""Ours: controllers decide each 0.5 ms or slower; where energy counters move each millisecond, polls get longer."""

SETTLE_S: Final = 1.0
"""Ours: the response to a step is watched for so long; controllers settle within some tens of their periods."""


class ScmiCap:
    """An ``EffectPort``; values in watts of the domain. ``LimitsError`` if the domain cannot be capped or measured."""

    unit = "W"

    def __init__(self, controller: Controller, url: str, domain: str) -> None:
        try:
            self._domain: CapDomain = find(controller.cap_domains, domain, "power domain")
            highest_w, lowest_w = self._domain.watts(self._domain.max_cap), self._domain.watts(self._domain.min_cap)
        except ScmiError as error:
            raise LimitsError(str(error)) from None
        if not self._domain.can_set_cap:
            raise LimitsError(f"{url}: this agent may not set the cap of domain {domain}")
        self.highest_w, self.lowest_w = highest_w, lowest_w
        self.for_writer = DomainCap(Direct(controller), url, domain)
        """For the writer."""
        self.knob = self.for_writer.name
        self._controller = controller
        self._knobs: Knobs | None = None
        self._energy: PackageEnergy | None = None
        self.shows: type_shows = "level"

    def attach(self, knobs: Knobs, ports: Ports, layout: Layout) -> None:
        """Before the first request: the writer's knobs, and what shows the effect."""
        self._knobs = knobs
        if any(zone.kind == "package" for zone in layout.zones):
            self._energy, self.shows = PackageEnergy(ports, layout), "mean of a ramp"
        elif not self._domain.has_monitoring:
            raise LimitsError(f"{self.knob}: neither the node nor the controller measures power")

    def request(self, value: float) -> None:
        """Set the cap."""
        assert self._knobs is not None
        self._knobs.set({self.knob: round(value * 1e3)})

    def observe(self) -> float:
        """Watts since the call before, or the controller's own average."""
        if self._energy is not None:
            return self._energy.watts()
        try:
            return self._domain.watts(self._controller.power(self._domain)[0])
        except ScmiError:
            return math.nan

    def release(self) -> None:
        """Put the cap back to what it was found at."""
        assert self._knobs is not None
        self._knobs.set({self.knob: 0})

    def close(self) -> None:
        """Close the counters."""
        if self._energy is not None:
            self._energy.close()
