"""A calibration on this node, as the agent's loop serves it: one limit for all clocks in place of the policies.

The cap stays in force: of the requested limit and what the cap allows, the lower one is written. Nothing of it is a
decision of a policy, so the journal has these periods as undecided, and a replay leaves them out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from nodectl.config import Config
from nodectl.decide.decider import Decider
from nodectl.decide.decisions import Decisions
from nodectl.decide.node_cap import CapRequest, PackageCap
from nodectl.knobs import Outcome
from nodectl.knobs.registry import DOMAINS
from nodectl.loop.calibration_page import Answer, CalibrationPage
from pmu.layout import Layout
from pmu.ports import Ports
from pmu.readings import Sample

BAD: Final = frozenset({"refused", "foreign", "vanished"})
"""Not "no-effect": which clock a limit leads to is what is measured."""

BEGINS: Final = "policies rest: a calibration limits the clocks, and the cap stays in force"


class CalibrationGuest:
    """Once per period: ``decide``, apply with ``limits``, ``answer``. A node that only this process reaches (no lock)
    has no guest."""

    def __init__(self, ports: Ports, layout: Layout, config: Config) -> None:
        self._clock, self._layout, self._config = ports.clock, layout, config
        self._page = CalibrationPage(ports.lock_path) if ports.lock_path else None
        self._knobs = [f"cpu/policy{policy}/max_khz" for domain in layout.domains for policy in domain.policies]
        self.limits: Mapping[str, int] = {}
        """By knob, the clock limit that a calibration requests in this period; empty: none does."""
        self._decider: Decider | None = None
        self._is_capped = False
        self._notices: list[str] = []

    def decide(self, policies: Decider, sample: Sample, cap: PackageCap) -> Decisions:
        """What the policies decide; what the cap alone requires, while a calibration limits the clocks."""
        before, khz = bool(self.limits), self._requested_khz()
        self.limits = dict.fromkeys(self._knobs, khz) if khz else {}
        if bool(self.limits) != before:
            self._notices.append("policies decide again: the calibration has ended" if before else BEGINS)
        if not self.limits:
            self._decider = None
            return policies.decide(sample, cap)
        if self._decider is None:
            self._decider = Decider(self._layout, self._config.without(list(DOMAINS)))
        decisions = self._decider.decide(sample, cap)
        values = zip(decisions.knobs, decisions.values.tolist(), strict=True)
        self._is_capped = any(0 < value < khz for name, value in values if name in self.limits)
        return decisions

    def recorded(self, decisions: Decisions) -> Decisions:
        """What of it the journal gets."""
        return Decisions() if self.limits else decisions

    def answer(self, outcomes: Sequence[Outcome], cap: CapRequest | None, most_mw: int = 0) -> None:
        """Report to the calibration what became of its request. ``most_mw``: the highest cap of use to this node."""
        if not self._page or not self.limits:
            return
        bad = next((one for one in outcomes if one.knob in self.limits and one.status in BAD), None)
        trouble = f"{bad.knob}: {bad.detail or bad.status}" if bad else ""
        cap_mw = round(cap.node_w * 1000) if cap else -1
        khz = next(iter(self.limits.values()))
        try:
            self._page.answer(Answer(khz, self._clock.now_ns(), cap_mw, most_mw, self._is_capped, trouble))
        except OSError as error:
            self._notices.append(f"a calibration gets no answer: {error.strerror or error}")

    def notices(self) -> list[str]:
        """What people should know, each line once."""
        lines, self._notices = self._notices, []
        return lines

    def _requested_khz(self) -> int:
        request = self._page.requested(self._clock.now_ns()) if self._page else None
        return request.khz if request else 0
